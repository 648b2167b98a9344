//! What many records amount to. Pictures of two halves merge into the picture of the whole.

use super::{
    class::Class,
    latency::Times,
    relax::Relaxing,
    series::Series,
    tally::{ByDigest, Counts, Shares},
};
use crate::{
    donors::vocabulary::FallbackReason,
    telemetry::{
        record::{
            Line, Lookup, Manifest, Micros, Record, Reuse, Sources, Stages, Start, is_of_connector,
        },
        words::{
            Algorithm, Gate, LeaseRefusal, ManifestOutcome, ManifestProvenance, ManifestReason,
            Mode, Outcome, Policy, ReuseProvenance, SourceState,
        },
    },
};

/// Everything that a report is made from.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    pub lines: Lines,
    pub lookups: Lookups,
    pub namespaces: ByDigest<Namespace>,
    pub donors: ByDigest<Yield>,
    pub templates: ByDigest<Yield>,
    pub relaxing: Relaxing,
    pub series: Series,
    pub reuse: Reuses,
    pub manifests: Manifests,
    pub sources: SourceHealth,
    pub times: StageTimes,
}

/// What was read.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    /// All but the connectors'.
    pub read: u64,
    pub damaged: u64,
    /// Whole, but of a vLLM connector's audit.
    pub of_connectors: u64,
    /// Starts of the server, or of a new file.
    pub starts: u64,
    pub modes: Counts<Mode>,
    /// The newest version of the service that wrote, and when.
    pub version: Option<(u64, Box<str>)>,
    /// Of all records: from, to.
    pub period_ms: Option<(u64, u64)>,
}

#[derive(Debug, Clone, Default)]
pub struct Lookups {
    pub by_class: ByClass,
    pub reasons: Counts<FallbackReason>,
    pub gates: Counts<Gate>,
    pub modes: Counts<Mode>,
    pub prompt_tokens: u64,
    pub exact_prefix_tokens: u64,
    /// Reusable tokens of what was found, by class.
    pub tokens: ByClass,
    pub leased: u64,
    pub lease_refusals: Counts<LeaseRefusal>,
    /// Finds that are not exact whose texts were compared, and those that differ in a fact.
    pub facts_compared: u64,
    pub facts_differ: u64,
    pub similarity_found: Shares,
    pub similarity_refused: Shares,
    pub reuse_ratio_found: Shares,
    pub reuse_ratio_refused: Shares,
    /// The limits of the newest look-up that says them, and when.
    pub limits: Option<(u64, crate::telemetry::record::Gates)>,
}

/// A count for each class, in the classes' order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByClass(pub [u64; Class::ALL.len()]);

/// The look-ups of one namespace.
#[derive(Debug, Clone, Copy, Default)]
pub struct Namespace {
    pub by_class: ByClass,
    pub prompt_tokens: u64,
    pub reusable_tokens: u64,
}

/// What a donor gave, or what prompts of a template got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Yield {
    pub lookups: u64,
    pub found: u64,
    pub reusable_tokens: u64,
}

/// What engines reported.
#[derive(Debug, Clone, Default)]
pub struct Reuses {
    pub reports: Counts<ReuseProvenance>,
    pub tokens: Counts<ReuseProvenance>,
    pub reasons: Counts<FallbackReason>,
    /// Reports of tokens that came from a donor.
    pub loaded: u64,
    /// Reports of loads that did not work: a failed allocation, a failed load, invalid blocks.
    pub failed: u64,
    pub invalid_blocks: u64,
    pub released: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Manifests {
    pub outcomes: Counts<ManifestOutcome>,
    pub reasons: Counts<ManifestReason>,
    pub algorithms: Counts<Algorithm>,
    pub policies: Counts<Policy>,
    pub provenances: Counts<ManifestProvenance>,
    /// Blocks picked, and of how many.
    pub blocks: u64,
    pub blocks_of: u64,
}

/// What is known of workers' caches.
#[derive(Debug, Clone, Default)]
pub struct SourceHealth {
    /// How often workers were seen in each state, once a minute and at changes.
    pub seen: Counts<SourceState>,
    /// The newest record, and when.
    pub newest: Option<(u64, Sources)>,
}

/// How long look-ups, their stages and manifests took.
#[derive(Debug, Clone, Default)]
pub struct StageTimes {
    pub lookup: Times,
    pub seeds: Times,
    pub align: Times,
    pub gate: Times,
    pub neighbours: Times,
    pub facts: Times,
    pub manifest: Times,
}

impl Picture {
    /// Adds one line of an audit file, without its end.
    pub fn add(&mut self, line: &str) {
        match Line::parse(line) {
            Ok(line) => {
                self.lines.read += 1;
                self.add_record(&line);
            }
            Err(_not_a_line) if is_of_connector(line) => self.lines.of_connectors += 1,
            Err(_not_a_line) => self.add_damaged(),
        }
    }

    /// A line that is no record, not even text, or too long to look at.
    pub fn add_damaged(&mut self) {
        self.lines.read += 1;
        self.lines.damaged += 1;
    }

    /// Adds one record.
    pub fn add_record(&mut self, line: &Line) {
        let at_ms = line.at_ms;
        self.lines.saw(at_ms);
        match &line.record {
            Record::Start(start) => self.lines.start(at_ms, start),
            Record::Lookup(lookup) => self.lookup(at_ms, lookup),
            Record::Manifest(manifest) => {
                self.times.manifest.add(whole_us(manifest.took_us));
                self.manifests.add(manifest);
            }
            Record::Reuse(reuse) => self.reuse.add(reuse),
            Record::Sources(sources) => self.sources.add(at_ms, sources),
        }
    }

    fn lookup(&mut self, at_ms: u64, lookup: &Lookup) {
        let class = Class::of(lookup);
        self.lookups.add(at_ms, lookup, class);
        self.relaxing.add(lookup, class);
        self.times.add(lookup);
        let slot = self.series.at(at_ms);
        match lookup.outcome {
            Outcome::Prefix => slot.prefix += 1,
            Outcome::Spans => slot.spans += 1,
            Outcome::Miss => slot.miss += 1,
        }
        if let Some(namespace) = lookup.namespace {
            self.namespaces.row(namespace.0).add(lookup, class);
        }
        if let Some(template) = lookup.template {
            self.templates.row(template.0).add(lookup, class);
        }
        if let Some(donor) = lookup.donor.filter(|_| class.is_found()) {
            self.donors.row(donor.0).add(lookup, class);
        }
    }
}

impl Lines {
    pub(super) fn saw(&mut self, at_ms: u64) {
        let (from, to) = self.period_ms.unwrap_or((at_ms, at_ms));
        self.period_ms = Some((from.min(at_ms), to.max(at_ms)));
    }

    fn start(&mut self, at_ms: u64, start: &Start) {
        self.starts += 1;
        self.modes.add(start.mode, 1);
        let version = Some((at_ms, start.version.as_str().into()));
        self.version = newest(self.version.take(), version);
    }
}

impl Lookups {
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_class.total()
    }

    fn add(&mut self, at_ms: u64, lookup: &Lookup, class: Class) {
        self.by_class.add(class, 1);
        self.modes.add(lookup.mode, 1);
        self.prompt_tokens += u64::from(lookup.prompt_tokens);
        self.exact_prefix_tokens += u64::from(lookup.exact_prefix_tokens);
        self.leased += u64::from(lookup.leased);
        if let Some(reason) = lookup.reason {
            self.reasons.add(reason, 1);
        }
        if let Some(gate) = lookup.gate {
            self.gates.add(gate, 1);
        }
        if let Some(refusal) = lookup.lease_refusal {
            self.lease_refusals.add(refusal, 1);
        }
        if class.is_found() {
            self.tokens.add(class, u64::from(lookup.reusable_tokens));
        }
        if let Some(differ) = lookup.facts_differ.filter(|_| class != Class::ExactPrefix) {
            self.facts_compared += 1;
            self.facts_differ += u64::from(differ);
        }
        let (similarities, ratios) = if class.is_found() {
            (&mut self.similarity_found, &mut self.reuse_ratio_found)
        } else {
            (&mut self.similarity_refused, &mut self.reuse_ratio_refused)
        };
        if let Some(similarity) = lookup.similarity {
            similarities.add(similarity);
        }
        if let Some(ratio) = lookup.reuse_ratio {
            ratios.add(ratio);
        }
        if let Some(limits) = lookup.gates
            && self.limits.is_none_or(|(then, _)| then < at_ms)
        {
            self.limits = Some((at_ms, limits));
        }
    }
}

impl ByClass {
    pub fn add(&mut self, class: Class, count: u64) {
        for (mine, each) in self.0.iter_mut().zip(Class::ALL) {
            *mine += if each == class { count } else { 0 };
        }
    }

    #[must_use]
    pub fn get(&self, class: Class) -> u64 {
        let found = Class::ALL.iter().position(|each| *each == class);
        found.and_then(|at| self.0.get(at)).copied().unwrap_or(0)
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    #[must_use]
    pub fn found(&self) -> u64 {
        let found = Class::ALL.into_iter().filter(|class| class.is_found());
        found.map(|class| self.get(class)).sum()
    }
}

impl Namespace {
    fn add(&mut self, lookup: &Lookup, class: Class) {
        self.by_class.add(class, 1);
        self.prompt_tokens += u64::from(lookup.prompt_tokens);
        if class.is_found() {
            self.reusable_tokens += u64::from(lookup.reusable_tokens);
        }
    }
}

impl Yield {
    fn add(&mut self, lookup: &Lookup, class: Class) {
        self.lookups += 1;
        if class.is_found() {
            self.found += 1;
            self.reusable_tokens += u64::from(lookup.reusable_tokens);
        }
    }
}

impl Reuses {
    fn add(&mut self, reuse: &Reuse) {
        self.reports.add(reuse.provenance, 1);
        let tokens = u64::from(reuse.tokens_loaded);
        self.tokens.add(reuse.provenance, tokens);
        if let Some(reason) = reuse.reason {
            self.reasons.add(reason, 1);
        }
        self.loaded += u64::from(reuse.has_loaded());
        self.failed += u64::from(reuse.has_failed());
        self.invalid_blocks += u64::from(reuse.invalid_blocks);
        self.released += u64::from(reuse.released);
    }
}

impl Manifests {
    fn add(&mut self, manifest: &Manifest) {
        self.outcomes.add(manifest.outcome, 1);
        if let Some(reason) = manifest.reason {
            self.reasons.add(reason, 1);
        }
        if let Some(algorithm) = manifest.algorithm {
            self.algorithms.add(algorithm, 1);
        }
        if let Some(policy) = manifest.policy {
            self.policies.add(policy, 1);
        }
        if let Some(provenance) = manifest.provenance {
            self.provenances.add(provenance, 1);
        }
        self.blocks += u64::from(manifest.k);
        self.blocks_of += u64::from(manifest.total_blocks);
    }
}

impl SourceHealth {
    fn add(&mut self, at_ms: u64, sources: &Sources) {
        self.seen.add(SourceState::Exact, sources.exact.into());
        self.seen
            .add(SourceState::Degraded, sources.degraded.into());
        self.seen.add(SourceState::Stale, sources.stale.into());
        self.newest = newest(self.newest.take(), Some((at_ms, sources.clone())));
    }
}

impl StageTimes {
    fn add(&mut self, lookup: &Lookup) {
        self.lookup.add(whole_us(lookup.took_us));
        let Stages {
            seeds,
            align,
            gate,
            neighbours,
            facts,
        } = lookup.stages_us;
        for (times, took) in [
            (&mut self.seeds, seeds),
            (&mut self.align, align),
            (&mut self.gate, gate),
            (&mut self.neighbours, neighbours),
            (&mut self.facts, facts),
        ] {
            if took.0 > 0 {
                times.add(whole_us(took));
            }
        }
    }
}

// Rounded up: nothing takes no time.
fn whole_us(us: Micros) -> u64 {
    us.0.div_ceil(1_000)
}

// Of what happened at the same time, the first.
pub(super) fn newest<T>(one: Option<(u64, T)>, other: Option<(u64, T)>) -> Option<(u64, T)> {
    match (one, other) {
        (Some(one), Some(other)) if other.0 > one.0 => Some(other),
        (Some(one), _) => Some(one),
        (None, other) => other,
    }
}
