//! What `donors` tells.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    ask::Judged,
    contention::Contention,
    mixed::{ClassSeen, Mixed},
    register::Registered,
};
use crate::{
    args::DonorsArgs,
    child::Memory,
    error::LoadtestError,
    measure::{Latencies, Slice},
    prompts::Class,
    server::Settled,
    table::Table,
};

/// What `donors --json` prints: the largest number of donors, and how it came to it.
#[derive(Debug, Serialize)]
pub struct DonorsReport {
    pub tokens: usize,
    pub seed: u64,
    #[serde(flatten)]
    last: Option<SizeReport>,
    /// Every number of donors measured, the largest at last.
    growth: Vec<SizeReport>,
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

/// 95 % look-ups of all classes and 5 % registrations, at 70 % of what the server takes. Times are
/// the server's: the search without neighbours, and neighbours where they were asked.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MixedReport {
    pub capacity_per_s: f64,
    pub rate_per_s: f64,
    pub search_p50_us: f64,
    pub search_p99_us: f64,
    pub search_p999_us: f64,
    pub neighbours_asked: u64,
    pub neighbours_p50_us: f64,
    pub neighbours_p99_us: f64,
    pub neighbours_p999_us: f64,
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

/// How one class went: asked one look-up at a time, and (`search_..`, `neighbours_..`) under the
/// mixed load.
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
    pub p50_us: f64,
    pub p99_us: f64,
    pub round_trip_p50_us: f64,
    pub search_p50_us: f64,
    pub search_p99_us: f64,
    pub search_p999_us: f64,
    pub neighbours_asked: u64,
    pub neighbours_p50_us: f64,
    pub neighbours_p99_us: f64,
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
    server: Latencies,
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
            server: Latencies::default(),
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
            server_us,
        } = *judged;
        self.asked += 1;
        self.right += u64::from(right);
        self.reported += reported;
        self.covered += covered;
        self.best += best;
        self.false_spans += false_spans;
        self.round_trip.record(round_trip);
        self.server.record_us(server_us);
    }

    fn report(&self, seen: Option<&ClassSeen>) -> ClassReport {
        let share = |of: u64| {
            if of > 0 {
                self.reported as f64 / of as f64
            } else {
                1.0
            }
        };
        let search = |share| seen.map_or(0.0, |seen| seen.search.quantile_us(share));
        let neighbours = |share| seen.map_or(0.0, |seen| seen.neighbours.quantile_us(share));
        ClassReport {
            asked: self.asked,
            right: self.right,
            coverage: share(self.covered),
            coverage_of_best: share(self.best),
            false_spans: self.false_spans,
            p50_us: self.server.quantile_us(0.5),
            p99_us: self.server.quantile_us(0.99),
            round_trip_p50_us: self.round_trip.quantile_us(0.5),
            search_p50_us: search(0.5),
            search_p99_us: search(0.99),
            search_p999_us: search(0.999),
            neighbours_asked: seen.map_or(0, |seen| seen.neighbours.count()),
            neighbours_p50_us: neighbours(0.5),
            neighbours_p99_us: neighbours(0.99),
        }
    }
}

impl MixedReport {
    fn of(mixed: &Mixed) -> Self {
        let (search, neighbours) = mixed.seen.together();
        Self {
            capacity_per_s: mixed.capacity_per_s,
            rate_per_s: mixed.rate_per_s,
            search_p50_us: search.quantile_us(0.5),
            search_p99_us: search.quantile_us(0.99),
            search_p999_us: search.quantile_us(0.999),
            neighbours_asked: neighbours.count(),
            neighbours_p50_us: neighbours.quantile_us(0.5),
            neighbours_p99_us: neighbours.quantile_us(0.99),
            neighbours_p999_us: neighbours.quantile_us(0.999),
            register_p50_us: mixed.seen.register.quantile_us(0.5),
            register_p99_us: mixed.seen.register.quantile_us(0.99),
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
        let seen_of = |class| mixed.seen.classes.iter().find(|seen| seen.class == class);
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
            asked: tallies.iter().map(|tally| tally.asked).sum(),
            right: tallies.iter().map(|tally| tally.right).sum(),
            false_spans: tallies.iter().map(|tally| tally.false_spans).sum(),
            failed: load.failed + mixed.slice.failed + beside.map_or(0, |beside| beside.failed),
            mixed: MixedReport::of(&mixed),
            classes: tallies
                .iter()
                .map(|tally| (tally.class.name(), tally.report(seen_of(tally.class))))
                .collect(),
            first_failure: load
                .first_failure
                .or(mixed.slice.first_failure)
                .or_else(|| beside.and_then(|beside| beside.first_failure.clone())),
            contention,
            restart,
        }
    }

    /// In one line, for who waits.
    #[must_use]
    pub fn line(&self) -> String {
        let memory = self.rss_mb.zip(self.rss_bytes_per_token);
        let memory = memory.map_or_else(String::new, |(megabytes, each)| {
            format!("{megabytes:.0} MB ({each:.2} B a token), ")
        });
        let behind = if self.settled == Some(false) {
            ", still busy with what it does behind registrations"
        } else {
            ""
        };
        let MixedReport {
            search_p50_us,
            search_p99_us,
            search_p999_us,
            rate_per_s,
            ..
        } = self.mixed;
        format!(
            "{} donors: {memory}registered at {:.0}/s, search p50 {search_p50_us:.0} us, \
             p99 {search_p99_us:.0} us, p99.9 {search_p999_us:.0} us at {rate_per_s:.0} calls/s, \
             {} of {} right{behind}",
            self.donors, self.register_per_s, self.right, self.asked
        )
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

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let growth = growth_table(&self.growth);
        let last = self.last.as_ref().map_or_else(String::new, |last| {
            let alone = format!(
                "look-ups alone: {:.0}/s, in the server p50 {:.0} us, p99 {:.0} us, \
                 round trip p50 {:.0} us, p99 {:.0} us\n",
                last.find_rps,
                last.find_p50_us,
                last.find_p99_us,
                last.round_trip_p50_us,
                last.round_trip_p99_us,
            );
            format!("{}\n{alone}", class_table(last))
        });
        let further: String = self.growth.iter().map(further_lines).collect();
        format!("{growth}\n{last}{further}")
    }
}

/// One row a number of donors, under the mixed load.
fn growth_table(growth: &[SizeReport]) -> String {
    let mut table = Table::new(&[
        "donors",
        "MB",
        "B/token",
        "registered/s",
        "calls/s",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "neighbours p99 us",
        "right",
        "false",
        "failed",
    ]);
    let known = |value: Option<f64>, digits| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    for size in growth {
        table.row([
            size.donors.to_string(),
            known(size.rss_mb, 0),
            known(size.rss_bytes_per_token, 2),
            format!("{:.0}", size.register_per_s),
            format!("{:.0}", size.mixed.rate_per_s),
            format!("{:.0}", size.mixed.search_p50_us),
            format!("{:.0}", size.mixed.search_p99_us),
            format!("{:.0}", size.mixed.search_p999_us),
            format!("{:.0}", size.mixed.neighbours_p99_us),
            percent(size.right, size.asked),
            size.false_spans.to_string(),
            size.failed.to_string(),
        ]);
    }
    table.render()
}

fn class_table(size: &SizeReport) -> String {
    let mut table = Table::new(&[
        "class",
        "asked",
        "right",
        "coverage",
        "of best",
        "false",
        "p50 us",
        "p99 us",
        "loaded p50",
        "p99",
        "p99.9",
    ]);
    for class in Class::ALL {
        let Some(report) = size.classes.get(class.name()) else {
            continue;
        };
        table.row([
            class.name().to_owned(),
            report.asked.to_string(),
            percent(report.right, report.asked),
            format!("{:.4}", report.coverage),
            format!("{:.4}", report.coverage_of_best),
            report.false_spans.to_string(),
            format!("{:.0}", report.p50_us),
            format!("{:.0}", report.p99_us),
            format!("{:.0}", report.search_p50_us),
            format!("{:.0}", report.search_p99_us),
            format!("{:.0}", report.search_p999_us),
        ]);
    }
    table.render()
}

/// What only some numbers of donors have.
fn further_lines(size: &SizeReport) -> String {
    let contention = size.contention.as_ref().map_or_else(String::new, |beside| {
        format!(
            "{} donors, {:.0} look-ups/s: p99 in the server {:.0} us alone, {:.0} us beside \
             {:.0} registrations/s ({:.2} times); round trip {:.0} and {:.0} us ({:.2} times)\n\
             {} donors: {:.0} registrations/s, {:.0} removals/s\n",
            size.donors,
            beside.finds_per_s,
            beside.idle.p99_us,
            beside.busy.p99_us,
            beside.registrations_per_s,
            beside.server_p99_ratio,
            beside.idle.round_trip_p99_us,
            beside.busy.round_trip_p99_us,
            beside.round_trip_p99_ratio,
            size.donors,
            beside.bulk_registrations_per_s,
            beside.removals_per_s,
        )
    });
    let restart = size.restart.map_or_else(String::new, |restart| {
        format!(
            "{} donors there {:.2} s after the start; {} of {} right\n",
            restart.held_donors, restart.start_s, restart.right, restart.asked
        )
    });
    contention + &restart
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole as f64)
}
