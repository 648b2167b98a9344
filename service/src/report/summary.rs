//! What a picture says: shares, savings, lists of the most, and the verdict. This is what
//! `--output json` prints and what every page shows.

use serde::Serialize;

use super::{
    class::Class,
    latency::Quantiles,
    picture::{ByClass, Picture, Yield},
    relax::{self, Gains},
    tally::{ByDigest, Counts, Shares},
    verdict::{Measured, Verdict, judge},
};
use crate::telemetry::{
    record::Gates,
    words::{Gate, LeaseRefusal, Mode, ReuseProvenance, SourceState},
};

/// Rows of each list.
const ROWS_MAX: usize = 10;
/// Bars of the look-ups over time.
const BARS_MAX: u64 = 60;
/// Workers that are listed.
const WORKERS_MAX: usize = 64;

/// What savings are reckoned with.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Assumptions {
    pub prefill_tokens_per_second: Option<f64>,
    pub cost_per_gpu_hour: Option<f64>,
    /// What the cost is in.
    pub currency: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Where the records come from, for people.
    pub source: String,
    pub version: Option<String>,
    /// Unix milliseconds of the first and the last record.
    pub from_ms: Option<u64>,
    pub to_ms: Option<u64>,
    pub lines: u64,
    pub damaged_lines: u64,
    /// Left out, and not among `lines`: a vLLM connector wrote them.
    pub connector_lines: u64,
    pub starts: u64,
    pub modes: Vec<Count>,
    pub lookups: u64,
    pub found: u64,
    pub classes: Vec<ClassRow>,
    pub reasons: Vec<Count>,
    pub prompt_tokens: u64,
    pub exact_prefix_tokens: u64,
    pub reusable_tokens: u64,
    pub savings: Savings,
    pub namespaces: Vec<NamespaceRow>,
    pub namespaces_known: usize,
    pub namespaces_beyond: u64,
    pub donors: Vec<YieldRow>,
    pub donors_known: usize,
    pub donors_beyond: u64,
    pub templates: Vec<YieldRow>,
    pub templates_known: usize,
    pub templates_beyond: u64,
    /// Twenty steps from 0 to 1, each of found and of refused.
    pub similarity: Spread,
    pub reuse_ratio: Spread,
    pub gates: GateReport,
    pub time: TimeSeries,
    pub leases: Leases,
    pub engines: Engines,
    pub manifests: ManifestReport,
    pub sources: Sources,
    pub latency: Vec<LatencyRow>,
    pub verdict: Verdict,
    pub assumptions: Assumptions,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    pub name: &'static str,
    pub count: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClassRow {
    pub class: &'static str,
    pub title: &'static str,
    pub lookups: u64,
    pub reusable_tokens: u64,
}

/// What reuse would save; none without a prefill rate, no cost without its price.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Savings {
    pub prefix_tokens: u64,
    pub spans_tokens: u64,
    pub loaded_tokens: u64,
    pub prefix_seconds: Option<f64>,
    pub spans_seconds: Option<f64>,
    pub loaded_seconds: Option<f64>,
    pub prefix_cost: Option<f64>,
    pub spans_cost: Option<f64>,
    pub loaded_cost: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamespaceRow {
    pub namespace: String,
    pub lookups: u64,
    pub found: u64,
    pub prompt_tokens: u64,
    pub reusable_tokens: u64,
    pub classes: Vec<Count>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct YieldRow {
    pub digest: String,
    pub lookups: u64,
    pub found: u64,
    pub reusable_tokens: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Spread {
    pub found: Vec<u64>,
    pub refused: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GateReport {
    /// Of the newest look-up that says them.
    pub limits: Option<Gates>,
    /// The gate that refused first, of all look-ups.
    pub refused: Vec<Count>,
    pub by_several: u64,
    pub unmeasured: u64,
    pub relaxed: Vec<Relaxed>,
}

/// What one gate would let pass if it stood elsewhere, the others as they are.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Relaxed {
    pub gate: &'static str,
    pub steps: Vec<RelaxedStep>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RelaxedStep {
    pub at: f64,
    pub lookups: u64,
    pub tokens: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TimeSeries {
    pub from_ms: u64,
    pub width_ms: u64,
    /// Prefix, spans, miss.
    pub bars: Vec<[u64; 3]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leases {
    pub given: u64,
    pub refused: Vec<Count>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Engines {
    pub reports: Vec<EngineRow>,
    pub reasons: Vec<Count>,
    pub failed: u64,
    pub invalid_blocks: u64,
    pub released: u64,
    pub facts_compared: u64,
    pub facts_differ: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EngineRow {
    pub provenance: &'static str,
    pub reports: u64,
    pub tokens: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ManifestReport {
    pub calls: u64,
    pub outcomes: Vec<Count>,
    pub reasons: Vec<Count>,
    pub algorithms: Vec<Count>,
    pub policies: Vec<Count>,
    pub provenances: Vec<Count>,
    pub blocks: u64,
    pub blocks_of: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sources {
    /// How often workers were seen in each state.
    pub seen: Vec<Count>,
    pub at_ms: Option<u64>,
    pub workers: Vec<WorkerRow>,
    pub workers_known: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerRow {
    pub worker: String,
    pub state: SourceState,
    pub gaps: u64,
    pub replays: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LatencyRow {
    pub what: &'static str,
    #[serde(flatten)]
    pub us: Quantiles,
}

impl Relaxed {
    /// The steps that bring more than the one before.
    pub fn telling(&self) -> impl Iterator<Item = &RelaxedStep> {
        let before = std::iter::once(0).chain(self.steps.iter().map(|step| step.lookups));
        let both = self.steps.iter().zip(before);
        both.filter(|(step, before)| step.lookups > *before)
            .map(|(step, _)| step)
    }
}

/// Says what the picture shows.
#[must_use]
pub fn summarize(picture: &Picture, source: String, assumptions: Assumptions) -> Summary {
    let lookups = &picture.lookups;
    let period = picture.lines.period_ms;
    let (from_ms, width_ms, slots) = picture.series.spread(BARS_MAX);
    let bars = slots
        .iter()
        .map(|slot| [slot.prefix, slot.spans, slot.miss]);
    let spread = |found: &Shares, refused: &Shares| Spread {
        found: found.0.to_vec(),
        refused: refused.0.to_vec(),
    };
    Summary {
        source,
        version: picture.lines.version.as_ref().map(|it| it.1.to_string()),
        from_ms: period.map(|(from, _)| from),
        to_ms: period.map(|(_, to)| to),
        lines: picture.lines.read,
        damaged_lines: picture.lines.damaged,
        connector_lines: picture.lines.of_connectors,
        starts: picture.lines.starts,
        modes: counted(&lookups.modes, Mode::as_str),
        lookups: lookups.total(),
        found: lookups.by_class.found(),
        classes: classes(&lookups.by_class, &lookups.tokens),
        reasons: counted(&lookups.reasons, |reason| reason.as_str()),
        prompt_tokens: lookups.prompt_tokens,
        exact_prefix_tokens: lookups.exact_prefix_tokens,
        reusable_tokens: lookups.tokens.total(),
        savings: savings(picture, &assumptions),
        namespaces: namespaces(picture),
        namespaces_known: picture.namespaces.len(),
        namespaces_beyond: picture.namespaces.beyond.by_class.total(),
        donors: yields(&picture.donors),
        donors_known: picture.donors.len(),
        donors_beyond: picture.donors.beyond.lookups,
        templates: yields(&picture.templates),
        templates_known: picture.templates.len(),
        templates_beyond: picture.templates.beyond.lookups,
        similarity: spread(&lookups.similarity_found, &lookups.similarity_refused),
        reuse_ratio: spread(&lookups.reuse_ratio_found, &lookups.reuse_ratio_refused),
        gates: gates(picture),
        time: TimeSeries {
            from_ms,
            width_ms,
            bars: bars.collect(),
        },
        leases: Leases {
            given: lookups.leased,
            refused: counted(&lookups.lease_refusals, LeaseRefusal::as_str),
        },
        engines: engines(picture),
        manifests: manifests(picture),
        sources: sources(picture),
        latency: latency(picture),
        verdict: judge(&measured(picture)),
        assumptions,
    }
}

fn classes(lookups: &ByClass, tokens: &ByClass) -> Vec<ClassRow> {
    let row = |class: Class| ClassRow {
        class: class.as_str(),
        title: class.title(),
        lookups: lookups.get(class),
        reusable_tokens: tokens.get(class),
    };
    Class::ALL.map(row).to_vec()
}

fn savings(picture: &Picture, assumptions: &Assumptions) -> Savings {
    let tokens = &picture.lookups.tokens;
    let prefix_tokens = tokens.get(Class::ExactPrefix) + tokens.get(Class::VerifiedPrefix);
    let spans_tokens = tokens.get(Class::Spans);
    let loads = &picture.reuse.tokens;
    let loaded_tokens =
        loads.get(ReuseProvenance::ExactExternalHit) + loads.get(ReuseProvenance::RequestOnlyReuse);
    let rate = assumptions.prefill_tokens_per_second;
    let seconds = |tokens: u64| rate.map(|rate| real(tokens) / rate);
    let price = assumptions.cost_per_gpu_hour;
    let cost = |seconds: Option<f64>| Some(seconds? / 3_600.0 * price?);
    Savings {
        prefix_tokens,
        spans_tokens,
        loaded_tokens,
        prefix_seconds: seconds(prefix_tokens),
        spans_seconds: seconds(spans_tokens),
        loaded_seconds: seconds(loaded_tokens),
        prefix_cost: cost(seconds(prefix_tokens)),
        spans_cost: cost(seconds(spans_tokens)),
        loaded_cost: cost(seconds(loaded_tokens)),
    }
}

fn namespaces(picture: &Picture) -> Vec<NamespaceRow> {
    let top = picture.namespaces.top(ROWS_MAX, |row| row.by_class.total());
    let row = |(digest, row): (u64, &super::picture::Namespace)| NamespaceRow {
        namespace: format!("{digest:012x}"),
        lookups: row.by_class.total(),
        found: row.by_class.found(),
        prompt_tokens: row.prompt_tokens,
        reusable_tokens: row.reusable_tokens,
        classes: Class::ALL
            .map(|class| Count {
                name: class.as_str(),
                count: row.by_class.get(class),
            })
            .to_vec(),
    };
    top.into_iter().map(row).collect()
}

fn yields(rows: &ByDigest<Yield>) -> Vec<YieldRow> {
    let top = rows.top(ROWS_MAX, |row| row.reusable_tokens);
    let gave = top.into_iter().filter(|(_, row)| row.reusable_tokens > 0);
    gave.map(|(digest, row)| YieldRow {
        digest: format!("{digest:016x}"),
        lookups: row.lookups,
        found: row.found,
        reusable_tokens: row.reusable_tokens,
    })
    .collect()
}

fn gates(picture: &Picture) -> GateReport {
    let relaxing = &picture.relaxing;
    let limits = picture.lookups.limits.map(|(_, limits)| limits);
    let thousandths = |value: u64| real(value) / 10_000.0;
    let tokens = |limits: &Gates| f64::from(limits.min_reuse_tokens);
    let relaxed = [
        (
            Gate::MinReuseTokens,
            steps(&relax::REUSE_TOKENS, &relaxing.reuse_tokens, real),
            limits.as_ref().map(tokens),
        ),
        (
            Gate::MinSimilarity,
            steps(&relax::SIMILARITIES, &relaxing.similarity, thousandths),
            limits.map(|limits| limits.min_similarity.value()),
        ),
        (
            Gate::MinReuseRatio,
            steps(&relax::REUSE_RATIOS, &relaxing.reuse_ratio, thousandths),
            limits.map(|limits| limits.min_reuse_ratio.value()),
        ),
    ];
    GateReport {
        limits,
        refused: counted(&picture.lookups.gates, Gate::as_str),
        by_several: relaxing.by_several,
        unmeasured: relaxing.unmeasured,
        relaxed: relaxed
            .into_iter()
            .map(|(gate, steps, limit)| Relaxed {
                gate: gate.as_str(),
                // What lies above the limit is not relaxed.
                steps: steps
                    .into_iter()
                    .filter(|step| limit.is_none_or(|limit| step.at < limit))
                    .collect(),
            })
            .collect(),
    }
}

fn steps(at: &[u32], gains: &Gains, value: impl Fn(u64) -> f64) -> Vec<RelaxedStep> {
    let both = at.iter().zip(&gains.0);
    both.map(|(at, gain)| RelaxedStep {
        at: value(u64::from(*at)),
        lookups: gain.lookups,
        tokens: gain.tokens,
    })
    .collect()
}

fn engines(picture: &Picture) -> Engines {
    let reuse = &picture.reuse;
    let rows = ReuseProvenance::ALL.iter().map(|provenance| EngineRow {
        provenance: provenance.as_str(),
        reports: reuse.reports.get(*provenance),
        tokens: reuse.tokens.get(*provenance),
    });
    Engines {
        reports: rows.collect(),
        reasons: counted(&reuse.reasons, |reason| reason.as_str()),
        failed: reuse.failed,
        invalid_blocks: reuse.invalid_blocks,
        released: reuse.released,
        facts_compared: picture.lookups.facts_compared,
        facts_differ: picture.lookups.facts_differ,
    }
}

fn manifests(picture: &Picture) -> ManifestReport {
    let of = &picture.manifests;
    ManifestReport {
        calls: of.outcomes.total(),
        outcomes: counted(&of.outcomes, |word| word.as_str()),
        reasons: counted(&of.reasons, |word| word.as_str()),
        algorithms: counted(&of.algorithms, |word| word.as_str()),
        policies: counted(&of.policies, |word| word.as_str()),
        provenances: counted(&of.provenances, |word| word.as_str()),
        blocks: of.blocks,
        blocks_of: of.blocks_of,
    }
}

fn sources(picture: &Picture) -> Sources {
    let of = &picture.sources;
    let newest = of.newest.as_ref();
    let mut workers: Vec<_> = newest.map_or_else(Vec::new, |(_, it)| it.sources.clone());
    // Those that need a look first.
    workers.sort_by_key(|it| (std::cmp::Reverse(it.state), it.worker));
    let row = |it: &crate::telemetry::record::Source| WorkerRow {
        worker: it.worker.to_string(),
        state: it.state,
        gaps: it.gaps,
        replays: it.replays,
    };
    Sources {
        seen: counted(&of.seen, SourceState::as_str),
        at_ms: newest.map(|(at_ms, _)| *at_ms),
        workers_known: workers.len(),
        workers: workers.iter().take(WORKERS_MAX).map(row).collect(),
    }
}

fn latency(picture: &Picture) -> Vec<LatencyRow> {
    let times = &picture.times;
    let rows = [
        ("look-up", &times.lookup),
        ("seeds", &times.seeds),
        ("align", &times.align),
        ("gate", &times.gate),
        ("neighbours", &times.neighbours),
        ("facts", &times.facts),
        ("manifest", &times.manifest),
    ];
    let row = |(what, times): (&'static str, &super::latency::Times)| {
        times.quantiles().map(|us| LatencyRow { what, us })
    };
    rows.into_iter().filter_map(row).collect()
}

fn measured(picture: &Picture) -> Measured {
    let lookups = &picture.lookups;
    let (by_class, tokens) = (&lookups.by_class, &lookups.tokens);
    let verified = |of: &ByClass| of.get(Class::VerifiedPrefix) + of.get(Class::Spans);
    let failed = picture.reuse.failed;
    Measured {
        lines: picture.lines.read,
        damaged: picture.lines.damaged,
        lookups: lookups.total(),
        period_ms: picture.lines.period_ms.map_or(0, |(from, to)| to - from),
        failed: by_class.get(Class::Failed),
        p99_us: picture.times.lookup.quantiles().map_or(0, |it| it.p99),
        prompt_tokens: lookups.prompt_tokens,
        exact_lookups: by_class.get(Class::ExactPrefix),
        exact_tokens: tokens.get(Class::ExactPrefix),
        verified_lookups: verified(by_class),
        verified_tokens: verified(tokens),
        loads: picture.reuse.loaded,
        loads_failed: failed,
        facts_compared: lookups.facts_compared,
        facts_differ: lookups.facts_differ,
        is_materializing: lookups.modes.get(Mode::Materialize) > 0,
    }
}

fn counted<T: Copy + PartialEq>(counts: &Counts<T>, name: fn(T) -> &'static str) -> Vec<Count> {
    let sorted = counts.sorted(name).into_iter();
    let count = |(value, count)| Count {
        name: name(value),
        count,
    };
    sorted.filter(|(_, count)| *count > 0).map(count).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn real(count: u64) -> f64 {
    count as f64
}
