//! What `donors` tells.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    ask::Judged,
    contention::Contention,
    mixed::Mixed,
    register::Registered,
    seen::{ClassSeen, SeenReport},
};
use crate::{
    args::DonorsArgs,
    child::Memory,
    error::LoadtestError,
    measure::{Latencies, Slice},
    prompts::Class,
    server::Settled,
};

/// What `donors --json` prints: the largest number of donors, and how it came to it.
#[derive(Debug, Serialize)]
pub struct DonorsReport {
    pub tokens: usize,
    pub seed: u64,
    #[serde(flatten)]
    pub last: Option<SizeReport>,
    /// Every number of donors measured, the largest at last.
    pub growth: Vec<SizeReport>,
}

/// One number of donors. Times of look-ups are the server's own, from the arrival of the request
/// to the finished answer, while other look-ups are in flight.
#[derive(Debug, Clone, Serialize)]
pub struct SizeReport {
    pub donors: usize,
    pub find_p50_us: f64,
    pub find_p99_us: f64,
    pub find_rps: f64,
    pub round_trip_p50_us: f64,
    pub round_trip_p99_us: f64,
    pub register_per_s: f64,
    /// Making and encoding one donor, which `register_per_s` does not count.
    pub generate_us: f64,
    /// Processor time of this process per second while registrations were measured.
    pub client_cpu_share: f64,
    /// After the registrations; absent for a server that runs elsewhere, like all of memory.
    pub rss_mb: Option<f64>,
    pub peak_rss_mb: Option<f64>,
    /// Before them.
    pub empty_rss_mb: Option<f64>,
    /// All of `rss_mb` / tokens of all donors.
    pub rss_bytes_per_token: Option<f64>,
    /// How long the server was busy after the registrations, and whether it came to an end.
    pub settle_s: Option<f64>,
    pub settled: Option<bool>,
    /// Donors that were registered and not among the neighbours yet when that wait ended.
    pub sketches_behind: Option<u64>,
    pub asked: u64,
    pub right: u64,
    pub false_spans: u64,
    pub failed: u64,
    pub mixed: MixedReport,
    pub classes: BTreeMap<&'static str, ClassReport>,
    pub contention: Option<Contention>,
    pub restart: Option<Restart>,
    #[serde(skip)]
    first_failure: Option<String>,
}

/// 95 % look-ups of all classes and 5 % registrations, at 70 % of what the server takes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MixedReport {
    pub capacity_per_s: f64,
    /// Processor time of this process per second while the capacity was measured: as much as it
    /// has threads means that the capacity is not the server's.
    pub client_cpu_share: f64,
    pub rate_per_s: f64,
    #[serde(flatten)]
    pub seen: SeenReport,
    /// From the time that a call was to be sent, which includes how late this process sent it.
    pub round_trip_p50_us: f64,
    pub round_trip_p99_us: f64,
    pub sent_late_p50_us: f64,
    pub sent_late_p99_us: f64,
    /// Round trips of durable registrations, one call each.
    pub register_p50_us: f64,
    pub register_p99_us: f64,
}

/// How a start with the same folder went.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Restart {
    pub start_s: f64,
    pub held_donors: u64,
    /// Look-ups asked again, and how many answers name a donor as good as the best.
    pub asked: usize,
    pub right: usize,
}

/// How one class went, asked one look-up at a time.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ClassReport {
    pub asked: u64,
    /// Answers that name a donor as good as the best; for negatives, misses.
    pub right: u64,
    /// Tokens in reported spans / tokens of the target in runs of 16 or more that the nominated
    /// donor has; 1 where nothing was nominated.
    pub coverage: f64,
    /// Tokens in reported spans / tokens in such runs that the best donor of all has, a miss
    /// counting as none; 1 where there is none to find.
    pub coverage_of_best: f64,
    pub false_spans: u64,
    #[serde(flatten)]
    pub idle: SeenReport,
    pub round_trip_p50_us: f64,
    /// Under the mixed load.
    pub mixed: SeenReport,
}

/// What a [`SizeReport`] is put together from.
#[derive(Debug)]
pub struct Parts {
    pub tokens_each: usize,
    pub registered: Registered,
    pub settled: Option<Settled>,
    pub empty: Option<Memory>,
    pub memory: Option<Memory>,
    pub tallies: Vec<ClassTally>,
    pub load: Slice,
    pub mixed: Mixed,
    pub contention: Option<Contention>,
    pub restart: Option<Restart>,
}

/// The answers of one class.
#[derive(Debug)]
pub struct ClassTally {
    pub class: Class,
    asked: u64,
    right: u64,
    reported: u64,
    covered: u64,
    best: u64,
    false_spans: u64,
    idle: ClassSeen,
    round_trip: Latencies,
}

impl ClassTally {
    /// No answer yet.
    #[must_use]
    pub fn new(class: Class) -> Self {
        Self {
            class,
            asked: 0,
            right: 0,
            reported: 0,
            covered: 0,
            best: 0,
            false_spans: 0,
            idle: ClassSeen::default(),
            round_trip: Latencies::default(),
        }
    }

    /// Adds one answer.
    pub fn add(&mut self, judged: &Judged) {
        let Judged {
            right,
            reported,
            covered,
            best,
            false_spans,
            round_trip,
            times,
        } = *judged;
        self.asked += 1;
        self.right += u64::from(right);
        self.reported += reported;
        self.covered += covered;
        self.best += best;
        self.false_spans += false_spans;
        self.round_trip.record(round_trip);
        self.idle.add(times);
    }

    fn report(&self, seen: Option<&ClassSeen>) -> ClassReport {
        let share = |of: u64| {
            if of > 0 {
                self.reported as f64 / of as f64
            } else {
                1.0
            }
        };
        ClassReport {
            asked: self.asked,
            right: self.right,
            coverage: share(self.covered),
            coverage_of_best: share(self.best),
            false_spans: self.false_spans,
            idle: self.idle.report(),
            round_trip_p50_us: self.round_trip.quantile_us(0.5),
            mixed: seen.map(ClassSeen::report).unwrap_or_default(),
        }
    }
}

impl MixedReport {
    fn of(mixed: &Mixed) -> Self {
        Self {
            capacity_per_s: mixed.capacity_per_s,
            client_cpu_share: mixed.client_cpu_share,
            rate_per_s: mixed.rate_per_s,
            seen: mixed.seen.together().report(),
            round_trip_p50_us: mixed.slice.round_trip.quantile_us(0.5),
            round_trip_p99_us: mixed.slice.round_trip.quantile_us(0.99),
            sent_late_p50_us: mixed.slice.sent_late.quantile_us(0.5),
            sent_late_p99_us: mixed.slice.sent_late.quantile_us(0.99),
            register_p50_us: mixed.register.quantile_us(0.5),
            register_p99_us: mixed.register.quantile_us(0.99),
        }
    }
}

impl SizeReport {
    /// Puts everything together.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts {
            tokens_each,
            registered,
            settled,
            empty,
            memory,
            tallies,
            load,
            mixed,
            contention,
            restart,
        } = parts;
        let tokens = (registered.donors * tokens_each) as f64;
        let beside = contention.as_ref();
        Self {
            donors: registered.donors,
            find_p50_us: load.server.quantile_us(0.5),
            find_p99_us: load.server.quantile_us(0.99),
            find_rps: load.per_second(),
            round_trip_p50_us: load.round_trip.quantile_us(0.5),
            round_trip_p99_us: load.round_trip.quantile_us(0.99),
            register_per_s: registered.per_second,
            generate_us: registered.generate_us,
            client_cpu_share: registered.client_cpu_share,
            rss_mb: memory.map(|memory| memory.resident_mb),
            peak_rss_mb: memory.map(|memory| memory.peak_resident_mb),
            empty_rss_mb: empty.map(|memory| memory.resident_mb),
            rss_bytes_per_token: memory.map(|memory| memory.resident_mb * 1e6 / tokens),
            settle_s: settled.map(|settled| settled.waited.as_secs_f64()),
            settled: settled.map(|settled| settled.quiet),
            sketches_behind: settled.and_then(|settled| settled.sketches_behind),
            asked: tallies.iter().map(|tally| tally.asked).sum(),
            right: tallies.iter().map(|tally| tally.right).sum(),
            false_spans: tallies.iter().map(|tally| tally.false_spans).sum(),
            failed: load.failed + mixed.slice.failed + beside.map_or(0, |beside| beside.failed),
            mixed: MixedReport::of(&mixed),
            classes: tallies
                .iter()
                .map(|tally| (tally.class.name(), tally.report(mixed.seen.of(tally.class))))
                .collect(),
            first_failure: load
                .first_failure
                .or(mixed.slice.first_failure)
                .or_else(|| beside.and_then(|beside| beside.first_failure.clone())),
            contention,
            restart,
        }
    }
}

impl DonorsReport {
    /// The sizes in the order that they were measured.
    #[must_use]
    pub fn new(args: &DonorsArgs, growth: Vec<SizeReport>) -> Self {
        Self {
            tokens: args.tokens,
            seed: args.common.seed,
            last: growth.last().cloned(),
            growth,
        }
    }

    /// Fails when a call did, or a span was reported that is not there.
    ///
    /// # Errors
    /// With the first failure, or the number of false spans.
    pub fn verdict(&self) -> Result<(), LoadtestError> {
        for size in &self.growth {
            if let Some(first) = &size.first_failure {
                return Err(LoadtestError::Failed {
                    count: size.failed,
                    first: first.clone(),
                });
            }
        }
        match self.growth.iter().map(|size| size.false_spans).sum() {
            0 => Ok(()),
            count => Err(LoadtestError::FalseSpans { count }),
        }
    }
}
