//! A made-up fleet: engines whose prompts share templates and documents, as an audit file tells it.
//!
//! What it draws from is stated here and nowhere measured: it shows what a report looks like, and
//! how long it takes, not what reuse brings.

use kvatlas::{
    donors::vocabulary::FallbackReason,
    telemetry::{
        record::{
            Decimal, Digest, Gates, Hex, Line, Lookup, Manifest, Micros, NamespaceDigest, Record,
            Reuse, Share, Source, Sources, Stages, Start, VERSION,
        },
        words::{
            Algorithm, Gate, LeaseRefusal, ManifestOutcome, ManifestProvenance, Mode, Outcome,
            Policy, ReuseProvenance, SourceState, Tier,
        },
    },
};

use crate::random::Random;

/// 2026-03-02 06:00 UTC.
const FROM_MS: u64 = 1_772_431_200_000;
const TEMPLATES: usize = 400;
const DONORS: usize = 4_000;
const WORKERS: u64 = 6;
/// Of a hundred lines, those below the first are manifests, those below the second reuse.
const MANIFESTS: usize = 12;
const REUSES: usize = MANIFESTS + 10;

/// What one namespace's prompts are like, in percent of its look-ups.
struct Tenant {
    id: NamespaceDigest,
    weight: usize,
    exact: usize,
    verified: usize,
    spans: usize,
    refused: usize,
    unasked: usize,
    prompt_tokens: usize,
}

const TENANTS: [Tenant; 5] = [
    // A chat: the next turn begins with the last one.
    tenant(0x3f9a_11c4_e207, 42, [31, 6, 4, 12, 22], 2_600),
    // Documents and questions: the same passages in another order.
    tenant(0x8e02_77b5_90d1, 27, [4, 18, 33, 20, 2], 6_200),
    // Agents with long tool descriptions.
    tenant(0xc5d4_0a6e_4b38, 18, [52, 10, 5, 6, 12], 9_800),
    // Short classifications.
    tenant(0x1b7f_93e8_6c52, 9, [0, 1, 1, 8, 71], 700),
    // One-off prompts.
    tenant(0xe930_5d21_af06, 4, [0, 0, 1, 5, 1], 3_400),
];

const fn tenant(id: u64, weight: usize, of: [usize; 5], prompt_tokens: usize) -> Tenant {
    let [exact, verified, spans, refused, unasked] = of;
    Tenant {
        id: Hex(id),
        weight,
        exact,
        verified,
        spans,
        refused,
        unasked,
        prompt_tokens,
    }
}

/// Draws one line after the other.
#[derive(Debug)]
pub struct Fleet {
    random: Random,
    at_ms: f64,
    step_ms: f64,
    sources_ms: f64,
    lines: usize,
}

impl Fleet {
    /// Spreads so many lines over so many hours.
    #[must_use]
    pub fn new(seed: u64, lines: usize, hours: usize) -> Self {
        Self {
            random: Random::new(seed),
            at_ms: FROM_MS as f64,
            step_ms: hours as f64 * 3.6e6 / lines.max(1) as f64,
            sources_ms: FROM_MS as f64,
            lines: 0,
        }
    }

    /// The next line, at or after the one before.
    pub fn next_line(&mut self) -> Line {
        self.lines += 1;
        let record = if self.lines == 1 {
            Record::Start(Start {
                version: "0.1.0".into(),
                epoch: 3,
                mode: Mode::DiscoveryOnly,
            })
        } else if self.at_ms >= self.sources_ms {
            // At most a line in fifty, however few there are.
            self.sources_ms = self.at_ms + self.step_ms.max(1_200.0) * 50.0;
            self.sources()
        } else {
            match self.random.below(100) {
                0..MANIFESTS => self.manifest(),
                MANIFESTS..REUSES => self.reuse(),
                _ => Record::Lookup(Box::new(self.lookup())),
            }
        };
        let line = Line {
            v: VERSION,
            at_ms: self.at_ms as u64,
            record,
        };
        // Busy in the middle of the day: between half and one and a half times the mean.
        let hour = (self.at_ms / 3.6e6) % 24.0;
        let busy = 1.0 + 0.6 * ((hour - 8.0) / 12.0 * std::f64::consts::PI).sin();
        self.at_ms += self.step_ms * 2.0 * self.random.unit() / busy;
        line
    }

    fn lookup(&mut self) -> Lookup {
        let tenant = self.tenant();
        let prompt_tokens = self.around(tenant.prompt_tokens);
        let template = self.zipf(TEMPLATES) as u64;
        let mut lookup = Lookup {
            request: Some(Hex(self.random.bits())),
            took_us: self.took(30.0),
            namespace: Some(tenant.id),
            outcome: Outcome::Miss,
            reason: Some(FallbackReason::ProviderMiss),
            gate: None,
            mode: Mode::DiscoveryOnly,
            prompt_tokens,
            exact_prefix_tokens: 0,
            verified_tokens: 0,
            reusable_tokens: 0,
            similarity: None,
            reuse_ratio: None,
            gates: Some(default_gates()),
            tier: None,
            donor: None,
            owner: None,
            template: Some(digest(template, tenant.id.0)),
            leased: false,
            lease_refusal: None,
            facts_differ: None,
            stages_us: Stages {
                seeds: self.took(6.0),
                align: self.took(14.0),
                gate: self.took(0.4),
                neighbours: Decimal(0),
                facts: Decimal(0),
            },
        };
        let kinds = [
            tenant.exact,
            tenant.verified,
            tenant.spans,
            tenant.refused,
            tenant.unasked,
        ];
        let mut draw = self.random.below(100);
        for (kind, weight) in kinds.into_iter().enumerate() {
            if draw < weight {
                self.becomes(&mut lookup, kind, tenant);
                return lookup;
            }
            draw -= weight;
        }
        self.nothing(&mut lookup);
        lookup
    }

    fn becomes(&mut self, lookup: &mut Lookup, kind: usize, tenant: &Tenant) {
        match kind {
            0 => self.found(lookup, Outcome::Prefix, Tier::Exact),
            1 => self.found(lookup, Outcome::Prefix, Tier::Verified),
            2 => self.found(lookup, Outcome::Spans, Tier::Verified),
            3 => self.refused(lookup),
            _ if tenant.prompt_tokens < 1_000 => {
                lookup.prompt_tokens = lookup.prompt_tokens.min(511);
                lookup.reason = Some(FallbackReason::UnsupportedRequest);
                lookup.gate = Some(Gate::MinPromptTokens);
                lookup.stages_us = Stages::default();
                lookup.took_us = self.took(2.0);
            }
            _ => {
                let share = 0.5 + 0.5 * self.random.unit();
                lookup.exact_prefix_tokens = part(lookup.prompt_tokens, share);
                lookup.reason = Some(FallbackReason::ExactPrefixSufficient);
                lookup.gate = Some(Gate::ExactPrefixSkipRatio);
                lookup.stages_us = Stages::default();
                lookup.took_us = self.took(2.0);
            }
        }
    }

    fn found(&mut self, lookup: &mut Lookup, outcome: Outcome, tier: Tier) {
        let most = 1.0 - self.random.unit().powi(2) * 0.4;
        let ratio = most - 0.1 * self.random.unit();
        lookup.outcome = outcome;
        lookup.reason = (outcome == Outcome::Spans).then_some(FallbackReason::NotPrefixAnchored);
        lookup.reusable_tokens = part(lookup.prompt_tokens, ratio).max(512);
        lookup.verified_tokens = part(lookup.prompt_tokens, most).max(lookup.reusable_tokens);
        lookup.prompt_tokens = lookup.prompt_tokens.max(lookup.verified_tokens);
        Self::measured(lookup);
        lookup.tier = Some(tier);
        let donor = self.zipf(DONORS) as u64;
        lookup.donor = Some(digest(donor, 1));
        lookup.owner = Some(digest(donor % WORKERS, 2));
        lookup.lease_refusal = Some(LeaseRefusal::DiscoveryOnly);
        if tier == Tier::Verified && self.random.below(100) < 60 {
            lookup.facts_differ = Some(self.random.below(1_000) < 22);
            lookup.stages_us.facts = self.took(180.0);
            lookup.took_us.0 += lookup.stages_us.facts.0;
        }
    }

    fn refused(&mut self, lookup: &mut Lookup) {
        let ratio = 0.62 * self.random.unit().sqrt();
        lookup.reusable_tokens = part(lookup.prompt_tokens, ratio);
        lookup.verified_tokens = lookup.reusable_tokens;
        Self::measured(lookup);
        let gates = default_gates();
        let low_similarity = lookup
            .similarity
            .is_some_and(|it| it < gates.min_similarity);
        let (reason, gate) = if lookup.reusable_tokens < gates.min_reuse_tokens {
            (FallbackReason::LowReuseTokens, Gate::MinReuseTokens)
        } else if low_similarity {
            (FallbackReason::LowSimilarity, Gate::MinSimilarity)
        } else {
            // What passes all of them after all was found.
            return self.found(lookup, Outcome::Spans, Tier::Verified);
        };
        (lookup.reason, lookup.gate) = (Some(reason), Some(gate));
        lookup.stages_us.neighbours = self.took(310.0);
        lookup.took_us.0 += lookup.stages_us.neighbours.0;
    }

    fn nothing(&mut self, lookup: &mut Lookup) {
        lookup.stages_us.neighbours = self.took(310.0);
        lookup.took_us.0 += lookup.stages_us.neighbours.0;
        match self.random.below(1_000) {
            0..2 => {
                lookup.reason = Some(FallbackReason::ProviderTimeout);
                lookup.took_us = Decimal(4_900_000);
            }
            2..30 => lookup.reason = Some(FallbackReason::DonorStale),
            30..38 => {
                lookup.namespace = None;
                lookup.reason = Some(FallbackReason::NamespaceMismatch);
            }
            _ => {}
        }
    }

    fn measured(lookup: &mut Lookup) {
        let of = |tokens: u32| f64::from(tokens) / f64::from(lookup.prompt_tokens);
        lookup.similarity = Some(Share::of(of(lookup.verified_tokens)));
        lookup.reuse_ratio = Some(Share::of(of(lookup.reusable_tokens)));
    }

    fn manifest(&mut self) -> Record {
        let is_online = self.random.below(100) < 18;
        let is_missing = self.random.below(100) < 3;
        let (outcome, provenance, algorithm) = match (is_missing, is_online) {
            (true, _) => (ManifestOutcome::Miss, None, None),
            (false, true) => (
                ManifestOutcome::Ok,
                Some(ManifestProvenance::Online),
                Some(Algorithm::KriQ),
            ),
            (false, false) => (
                ManifestOutcome::Ok,
                Some(ManifestProvenance::Prior),
                Some(Algorithm::KriDKvSum),
            ),
        };
        let policies = [
            Policy::TopK,
            Policy::AnchorRecentMiddle,
            Policy::SegmentQuota,
        ];
        let policy = policies.get(self.zipf(policies.len())).copied();
        let is_ok = outcome == ManifestOutcome::Ok;
        Record::Manifest(Manifest {
            request: Some(Hex(self.random.bits())),
            took_us: self.took(if is_online { 900.0 } else { 3.0 }),
            outcome,
            reason: None,
            prefix: digest(self.zipf(60) as u64, 3),
            algorithm,
            policy: policy.filter(|_| is_ok),
            provenance,
            k: if is_ok { 32 } else { 0 },
            total_blocks: if is_ok { 512 } else { 0 },
        })
    }

    // In discovery engines report what they did without the service.
    fn reuse(&mut self) -> Record {
        let is_hit = self.random.below(100) < 38;
        let (provenance, reason, tokens) = if is_hit {
            let tokens = self.around(1_400);
            (ReuseProvenance::ExactLocalPrefixHit, None, tokens)
        } else {
            let reason = Some(FallbackReason::RecomputePolicy);
            (ReuseProvenance::FallbackRecompute, reason, 0)
        };
        Record::Reuse(Reuse {
            request: Some(Hex(self.random.bits())),
            took_us: self.took(2.0),
            provenance,
            reason,
            tokens_loaded: tokens,
            invalid_blocks: 0,
            released: false,
        })
    }

    fn sources(&mut self) -> Record {
        let mut sources = Vec::new();
        for worker in 0..WORKERS {
            let state = match self.random.below(100) {
                0..3 if worker > 3 => SourceState::Stale,
                3..9 if worker > 2 => SourceState::Degraded,
                _ => SourceState::Exact,
            };
            sources.push(Source {
                worker: digest(worker, 2),
                state,
                gaps: worker.saturating_sub(2) * 3,
                replays: worker.saturating_sub(2) * 2,
            });
        }
        let count = |state| sources.iter().filter(|it| it.state == state).count() as u32;
        Record::Sources(Sources {
            exact: count(SourceState::Exact),
            degraded: count(SourceState::Degraded),
            stale: count(SourceState::Stale),
            sources,
        })
    }

    fn tenant(&mut self) -> &'static Tenant {
        let mut draw = self.random.below(TENANTS.iter().map(|it| it.weight).sum());
        for tenant in &TENANTS {
            if draw < tenant.weight {
                return tenant;
            }
            draw -= tenant.weight;
        }
        &TENANTS[0]
    }

    // Half to twice the middle.
    fn around(&mut self, middle: usize) -> u32 {
        let factor = (self.random.unit() * 2.0 - 1.0).exp2();
        (middle as f64 * factor) as u32
    }

    // The product of three draws has a long tail.
    fn took(&mut self, median_us: f64) -> Micros {
        let draws = (0..3).map(|_| self.random.unit() * 2.0 - 1.0).sum::<f64>();
        Decimal((median_us * 1_000.0 * (draws * 0.7).exp2()) as u64)
    }

    fn zipf(&mut self, items: usize) -> usize {
        let place = (items as f64 + 1.0).powf(self.random.unit()) - 1.0;
        (place as usize).min(items - 1)
    }
}

fn default_gates() -> Gates {
    Gates {
        min_prompt_tokens: 512,
        min_reuse_tokens: 512,
        min_similarity: Share::of(0.6),
        min_reuse_ratio: Share::of(0.5),
        exact_prefix_skip_ratio: Share::of(0.5),
    }
}

fn digest(item: u64, kind: u64) -> Digest {
    Hex(Random::new(item).branch(kind).bits())
}

fn part(tokens: u32, share: f64) -> u32 {
    (f64::from(tokens) * share) as u32
}
