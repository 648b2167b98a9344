//! Counters and histograms, with every handle bound once at the start.

mod donor_events;
mod event_outcomes;
pub mod latency;
pub mod manifests;
pub mod namespaces;
mod own;

use std::sync::Arc;

use prometheus_client::{
    encoding::text::encode,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::ConstGauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

pub use self::{
    donor_events::DonorEvents, event_outcomes::EventOutcomes, latency::Latency, own::Reading,
};
use self::{manifests::Manifests, namespaces::NamespaceSeries};
use super::{record, recorder::RecorderCounters, traces::TraceCounters, words::ReuseProvenance};
use crate::donors::vocabulary::{FallbackReason, VectorSearch};

/// Geometric: 16 tokens to about half a million.
const TOKEN_BUCKETS: (f64, f64, u16) = (16.0, 2.0, 16);
const BATCH_BUCKETS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];
const SHARE_BUCKETS: [f64; 10] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

type Labels = [(&'static str, &'static str); 1];

/// One counter for each reason of the closed vocabulary.
#[derive(Debug, Clone)]
pub struct ByReason([Counter; FallbackReason::ALL.len()]);

impl ByReason {
    fn bind(family: &Family<Labels, Counter>) -> ByReason {
        ByReason(
            FallbackReason::ALL
                .map(|reason| family.get_or_create(&[("reason", reason.as_str())]).clone()),
        )
    }

    pub fn inc(&self, reason: FallbackReason) {
        let place = FallbackReason::ALL.iter().position(|each| *each == reason);
        if let Some(counter) = place.and_then(|place| self.0.get(place)) {
            counter.inc();
        }
    }
}

/// One counter for each end that a search by vectors can come to.
#[derive(Debug, Clone)]
pub struct BySearch([Counter; VectorSearch::ALL.len()]);

impl BySearch {
    fn new(registry: &mut Registry, name: &str, help: &str) -> BySearch {
        let family = Family::<Labels, Counter>::default();
        registry.register(name, help, family.clone());
        BySearch(
            VectorSearch::ALL.map(|end| family.get_or_create(&[("end", end.as_str())]).clone()),
        )
    }

    pub fn inc(&self, end: VectorSearch) {
        let place = VectorSearch::ALL.iter().position(|each| *each == end);
        if let Some(counter) = place.and_then(|place| self.0.get(place)) {
            counter.inc();
        }
    }
}

/// Every metric that the service keeps. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    pub lookups: Lookups,
    pub reuse: Reuse,
    pub scorer: Scoring,
    pub workers: WorkerLookups,
    pub event_outcomes: EventOutcomes,
    pub donor_events: DonorEvents,
    pub donor_registrations: Counter,
    pub donor_evictions: Counter,
    pub donors_unstored: Unstored,
    pub manifests: Manifests,
    pub namespaces: Arc<NamespaceSeries>,
    pub recorder: RecorderCounters,
    pub traces: TraceCounters,
    pub priors_put: Counter,
    pub calls_refused: Counter,
}

/// Registrations that were acknowledged and not stored.
#[derive(Debug, Clone)]
pub struct Unstored {
    /// A live donor of the same owner begins with the same tokens.
    pub covered: Counter,
    /// Nothing was captured.
    pub nothing_captured: Counter,
}

impl Unstored {
    fn new(r: &mut Registry) -> Unstored {
        let family = Family::<Labels, Counter>::default();
        r.register(
            "semantic_donor_unstored",
            "Registrations that were acknowledged and not stored",
            family.clone(),
        );
        let why = |why| family.get_or_create(&[("why", why)]).clone();
        Unstored {
            covered: why("covered"),
            nothing_captured: why("nothing_captured"),
        }
    }
}

/// What donor look-ups came to.
#[derive(Debug, Clone)]
pub struct Lookups {
    pub requests: Counter,
    pub hits: Counter,
    pub misses: ByReason,
    /// Look-ups whose candidates the gates turned down.
    pub rejected: ByReason,
    pub errors: Counter,
    /// Look-ups that were handed to a worker thread since their prompt is long.
    pub deferred: Counter,
    pub cross_namespace_rejected: Counter,
    pub seconds: Latency,
    pub seeds_seconds: Latency,
    pub align_seconds: Latency,
    pub gate_seconds: Latency,
    pub neighbours_seconds: Latency,
    pub facts_seconds: Latency,
    /// What became of the searches by token sketch, and by text.
    pub sketch_searches: BySearch,
    pub text_searches: BySearch,
    /// Nominations whose facts differ from the prompt's.
    pub facts_differ: Counter,
    pub external_tokens_reported: Histogram,
    pub similarity: Histogram,
    pub reuse_ratio: Histogram,
}

/// What online scoring came to.
#[derive(Debug, Clone)]
pub struct Scoring {
    /// Scored with others that read the same table, this one included.
    pub batch: Histogram,
    /// From the call's start to its answer, the time in the queue included.
    pub seconds: Latency,
    /// The pass over the tables.
    pub work_seconds: Latency,
    /// Tasks for which a screen left only some blocks to be scored.
    pub screened: Counter,
    pub refused: Counter,
    pub late: Counter,
    pub fallbacks: Counter,
}

/// What questions for workers came to.
#[derive(Debug, Clone)]
pub struct WorkerLookups {
    pub requests: Counter,
    pub picks: Counter,
    pub seconds: Latency,
    /// Tokens that the worker which holds most has on its device.
    pub held_tokens: Histogram,
}

/// What engines made of the answers.
#[derive(Debug, Clone)]
pub struct Reuse {
    /// Nominations that were given a lease.
    pub requests: Counter,
    pub success: Counter,
    pub recompute: Counter,
    pub failed: Counter,
    /// By provenance, in the order of the vocabulary.
    pub reports: [Counter; ReuseProvenance::ALL.len()],
    pub reasons: ByReason,
    pub invalid_blocks: Counter,
    pub tokens_loaded: Histogram,
}

impl Metrics {
    /// Registers everything; `epoch` is the service's restart counter.
    #[must_use]
    pub fn new(epoch: u64) -> Metrics {
        let mut registry = Registry::default();
        let r = &mut registry;
        own::build(r);
        let epoch = ConstGauge::new(i64::try_from(epoch).unwrap_or(i64::MAX));
        r.register("kvatlas_epoch", "Restart counter of the service", epoch);
        Metrics {
            lookups: Lookups::new(r),
            reuse: Reuse::new(r),
            scorer: Scoring::new(r),
            workers: WorkerLookups::new(r),
            event_outcomes: EventOutcomes::new(r),
            donor_events: DonorEvents::new(r),
            donor_registrations: counter(
                r,
                "semantic_donor_registrations",
                "Donors that were added or replaced",
            ),
            donor_evictions: counter(r, "semantic_donor_evictions", "Donors that made room"),
            donors_unstored: Unstored::new(r),
            manifests: Manifests::new(r),
            namespaces: own::namespaces(r),
            recorder: own::recorder(r),
            traces: own::traces(r),
            priors_put: counter(r, "kvatlas_priors_put", "Priors imported"),
            calls_refused: counter(
                r,
                "kvatlas_calls_refused",
                "Calls refused since too many were in flight",
            ),
            registry: Arc::new(registry),
        }
    }

    /// The text exposition, followed by what is read when asked for.
    #[must_use]
    pub fn render(&self, gauges: &[(&str, &str, u64)], readings: &[Reading]) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            // Writing to a String cannot fail; an empty page shows it if it ever does.
            text.clear();
        }
        let end = "# EOF\n";
        if text.ends_with(end) {
            text.truncate(text.len() - end.len());
        }
        for (name, help, value) in gauges {
            text.push_str(&format!(
                "# HELP {name} {help}.\n# TYPE {name} gauge\n{name} {value}\n"
            ));
        }
        for reading in readings {
            reading.render(&mut text);
        }
        text.push_str(end);
        text
    }
}

impl WorkerLookups {
    fn new(r: &mut Registry) -> WorkerLookups {
        WorkerLookups {
            requests: counter(r, "kvatlas_worker_lookups", "Questions for workers"),
            picks: counter(r, "kvatlas_worker_picks", "Workers that were picked"),
            seconds: latency(
                r,
                "kvatlas_worker_lookup",
                "From the decoded question to the answer",
            ),
            held_tokens: tokens(
                r,
                "kvatlas_worker_held_tokens",
                "Tokens that the worker which holds most has on its device",
            ),
        }
    }

    /// One answer.
    pub fn found(&self, took_ns: u64, held_tokens: u32, is_picked: bool) {
        self.requests.inc();
        self.seconds.observe_ns(took_ns);
        self.held_tokens.observe(f64::from(held_tokens));
        if is_picked {
            self.picks.inc();
        }
    }
}

impl Lookups {
    fn new(r: &mut Registry) -> Lookups {
        let stages = Family::<Labels, Latency>::default();
        r.register_with_unit(
            "semantic_lookup_stage",
            "Time spent in each stage of a donor look-up",
            Unit::Seconds,
            stages.clone(),
        );
        let stage = |name| stages.get_or_create(&[("stage", name)]).clone();
        Lookups {
            requests: counter(r, "semantic_lookup_requests", "Donor look-ups"),
            hits: counter(r, "semantic_lookup_hits", "Look-ups that nominated a donor"),
            misses: by_reason(r, "semantic_lookup_misses", "Look-ups without a donor"),
            rejected: by_reason(
                r,
                "semantic_lookup_rejected",
                "Look-ups whose candidates were turned down",
            ),
            errors: counter(r, "semantic_lookup_errors", "Look-ups that were malformed"),
            deferred: counter(
                r,
                "semantic_lookup_deferred",
                "Look-ups handed to a worker thread for their length",
            ),
            cross_namespace_rejected: counter(
                r,
                "semantic_lookup_cross_namespace_rejected",
                "Look-ups without a complete and known namespace",
            ),
            seconds: latency(r, "semantic_lookup_latency", "Time to answer a look-up"),
            seeds_seconds: stage("seeds"),
            align_seconds: stage("align"),
            gate_seconds: stage("gate"),
            neighbours_seconds: stage("neighbours"),
            facts_seconds: stage("facts"),
            sketch_searches: BySearch::new(
                r,
                "semantic_lookup_sketch_searches",
                "Donor look-ups by what became of their search by token sketch",
            ),
            text_searches: BySearch::new(
                r,
                "semantic_lookup_text_searches",
                "Donor look-ups by what became of their search by text",
            ),
            facts_differ: counter(
                r,
                "semantic_lookup_facts_differ",
                "Nominations that differ from the prompt in a number, name, negation or identifier",
            ),
            external_tokens_reported: tokens(
                r,
                "semantic_external_tokens_reported",
                "Tokens beyond the exact prefix that an answer offered",
            ),
            similarity: share(r, "semantic_similarity", "Similarity of nominated donors"),
            reuse_ratio: share(r, "semantic_reuse_ratio", "Reuse ratio of nominated donors"),
        }
    }
}

impl Scoring {
    fn new(r: &mut Registry) -> Scoring {
        let batch = Histogram::new(BATCH_BUCKETS);
        r.register(
            "kvatlas_score_batch",
            "Requests that were scored together",
            batch.clone(),
        );
        Scoring {
            batch,
            seconds: latency(
                r,
                "kvatlas_score_latency",
                "Time from a call that is scored online to its answer",
            ),
            work_seconds: latency(
                r,
                "kvatlas_score_work",
                "Time of the pass over the tables that answers a request",
            ),
            screened: counter(
                r,
                "kvatlas_score_screened",
                "Requests for which a screen left only some blocks to be scored",
            ),
            refused: counter(
                r,
                "kvatlas_score_refused",
                "Requests that found the scorer's queue full",
            ),
            late: counter(
                r,
                "kvatlas_score_late",
                "Requests whose deadline passed while they waited for the scorer",
            ),
            fallbacks: counter(
                r,
                "kvatlas_score_fallbacks",
                "Requests that the stored prior answered since scoring was not possible",
            ),
        }
    }

    pub fn observe(&self, took_ns: u64, work_ns: u64, batch: usize) {
        self.seconds.observe_ns(took_ns);
        self.work_seconds.observe_ns(work_ns);
        #[expect(clippy::cast_precision_loss, reason = "a batch is small")]
        self.batch.observe(batch as f64);
    }
}

impl Reuse {
    fn new(r: &mut Registry) -> Reuse {
        let reports = Family::<Labels, Counter>::default();
        r.register(
            "kvatlas_reuse_reports",
            "Reports of what became of nominations",
            reports.clone(),
        );
        let report = |it: &ReuseProvenance| {
            let labels = [("provenance", it.as_str())];
            reports.get_or_create(&labels).clone()
        };
        Reuse {
            reports: std::array::from_fn(|at| report(&ReuseProvenance::ALL[at])),
            requests: counter(
                r,
                "semantic_materialize_requests",
                "Nominations that were given a lease",
            ),
            success: counter(
                r,
                "semantic_materialize_success",
                "Reports of loads that worked",
            ),
            recompute: counter(
                r,
                "semantic_materialize_recompute",
                "Reports of a fall-back to prefill",
            ),
            failed: counter(
                r,
                "semantic_materialize_failed",
                "Reports of loads that did not work",
            ),
            reasons: by_reason(
                r,
                "semantic_reuse_reported",
                "Reasons that engines reported",
            ),
            invalid_blocks: counter(
                r,
                "semantic_invalid_blocks",
                "Blocks that engines reported as invalid",
            ),
            tokens_loaded: tokens(
                r,
                "semantic_tokens_loaded",
                "Tokens that an engine reported as loaded",
            ),
        }
    }

    /// One report. Engines tell of a load that failed as what they did then: they recomputed.
    pub fn count(&self, report: &record::Reuse) {
        self.reports[report.provenance as usize].inc();
        if report.has_loaded() {
            self.success.inc();
            let tokens = f64::from(report.tokens_loaded);
            self.tokens_loaded.observe(tokens);
        }
        if report.has_failed() {
            self.failed.inc();
        }
        if report.provenance == ReuseProvenance::FallbackRecompute {
            self.recompute.inc();
        }
        self.invalid_blocks.inc_by(report.invalid_blocks.into());
        if let Some(reason) = report.reason {
            self.reasons.inc(reason);
        }
    }
}

fn latency(registry: &mut Registry, name: &str, help: &str) -> Latency {
    let histogram = Latency::default();
    registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
    histogram
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

fn by_reason(registry: &mut Registry, name: &str, help: &str) -> ByReason {
    let family = Family::<Labels, Counter>::default();
    registry.register(name, help, family.clone());
    ByReason::bind(&family)
}

fn tokens(registry: &mut Registry, name: &str, help: &str) -> Histogram {
    let (start, factor, length) = TOKEN_BUCKETS;
    let histogram = Histogram::new(exponential_buckets(start, factor, length));
    registry.register(name, help, histogram.clone());
    histogram
}

fn share(registry: &mut Registry, name: &str, help: &str) -> Histogram {
    let histogram = Histogram::new(SHARE_BUCKETS);
    registry.register(name, help, histogram.clone());
    histogram
}
