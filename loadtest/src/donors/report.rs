//! What `donors` tells.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Registered, ask::Judged};
use crate::{
    child::Memory,
    error::LoadtestError,
    measure::{Latencies, Slice},
    prompts::Class,
    table::Table,
};

/// What `donors --json` prints. Times of look-ups are the server's own, from the arrival of the
/// request to the finished answer, while other look-ups are in flight.
#[derive(Debug, Serialize)]
pub struct DonorsReport {
    pub donors: usize,
    pub find_p50_us: f64,
    pub find_p99_us: f64,
    pub find_rps: f64,
    pub round_trip_p50_us: f64,
    pub round_trip_p99_us: f64,
    pub register_per_s: f64,
    /// Absent for a server that runs elsewhere.
    pub rss_mb: Option<f64>,
    pub peak_rss_mb: Option<f64>,
    pub failed: u64,
    pub classes: BTreeMap<&'static str, ClassReport>,
    #[serde(skip)]
    first_failure: Option<String>,
}

/// How one class went, asked one look-up at a time.
#[derive(Debug, Serialize)]
pub struct ClassReport {
    pub asked: u64,
    /// Answers that name a donor as good as the best; for negatives, misses.
    pub right: u64,
    /// Tokens in reported spans / tokens of the target in runs of 16 or more that the nominated
    /// donor has; 1 where nothing was nominated.
    pub coverage: f64,
    pub false_spans: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub round_trip_p50_us: f64,
}

/// The answers of one class.
#[derive(Debug)]
pub struct ClassTally {
    pub class: Class,
    asked: u64,
    right: u64,
    reported: u64,
    covered: u64,
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
            false_spans,
            round_trip,
            server_us,
        } = *judged;
        self.asked += 1;
        self.right += u64::from(right);
        self.reported += reported;
        self.covered += covered;
        self.false_spans += false_spans;
        self.round_trip.record(round_trip);
        self.server.record_us(server_us);
    }

    fn report(&self) -> ClassReport {
        ClassReport {
            asked: self.asked,
            right: self.right,
            coverage: if self.covered > 0 {
                self.reported as f64 / self.covered as f64
            } else {
                1.0
            },
            false_spans: self.false_spans,
            p50_us: self.server.quantile_us(0.5),
            p99_us: self.server.quantile_us(0.99),
            round_trip_p50_us: self.round_trip.quantile_us(0.5),
        }
    }
}

impl DonorsReport {
    /// Puts everything together.
    #[must_use]
    pub fn new(
        tallies: &[ClassTally],
        registered: Registered,
        load: Slice,
        memory: Option<Memory>,
    ) -> Self {
        Self {
            donors: registered.donors,
            find_p50_us: load.server.quantile_us(0.5),
            find_p99_us: load.server.quantile_us(0.99),
            find_rps: load.per_second(),
            round_trip_p50_us: load.round_trip.quantile_us(0.5),
            round_trip_p99_us: load.round_trip.quantile_us(0.99),
            register_per_s: registered.per_second,
            rss_mb: memory.map(|memory| memory.resident_mb),
            peak_rss_mb: memory.map(|memory| memory.peak_resident_mb),
            failed: load.failed,
            classes: tallies
                .iter()
                .map(|tally| (tally.class.name(), tally.report()))
                .collect(),
            first_failure: load.first_failure,
        }
    }

    /// Fails when a call did, or a span was reported that is not there.
    ///
    /// # Errors
    /// With the first failure, or the number of false spans.
    pub fn verdict(&self) -> Result<(), LoadtestError> {
        if let Some(first) = &self.first_failure {
            return Err(LoadtestError::Failed {
                count: self.failed,
                first: first.clone(),
            });
        }
        match self.classes.values().map(|class| class.false_spans).sum() {
            0 => Ok(()),
            count => Err(LoadtestError::FalseSpans { count }),
        }
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new(&[
            "class",
            "asked",
            "right",
            "coverage",
            "false",
            "p50 us",
            "p99 us",
            "trip p50 us",
        ]);
        for class in Class::ALL {
            let Some(report) = self.classes.get(class.name()) else {
                continue;
            };
            let right = report.right as f64 * 100.0 / report.asked as f64;
            table.row([
                class.name().to_owned(),
                report.asked.to_string(),
                format!("{right:.1} %"),
                format!("{:.4}", report.coverage),
                report.false_spans.to_string(),
                format!("{:.0}", report.p50_us),
                format!("{:.0}", report.p99_us),
                format!("{:.0}", report.round_trip_p50_us),
            ]);
        }
        let memory = match (self.rss_mb, self.peak_rss_mb) {
            (Some(now), Some(peak)) => format!("{now:.0} MB now, {peak:.0} MB at most"),
            (_, _) => "not known: the server runs elsewhere".to_owned(),
        };
        format!(
            "{} donors, registered at {:.0}/s\n\n{}\n\
             under load: {:.0} look-ups/s, {} failed\n\
             in the server: p50 {:.0} us, p99 {:.0} us\n\
             round trip: p50 {:.0} us, p99 {:.0} us\n\
             memory: {memory}\n",
            self.donors,
            self.register_per_s,
            table.render(),
            self.find_rps,
            self.failed,
            self.find_p50_us,
            self.find_p99_us,
            self.round_trip_p50_us,
            self.round_trip_p99_us,
        )
    }
}
