//! What `quality` tells.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    ask::{Facts, FoundBy, Judged, Question},
    class::QualityClass,
};
use crate::{error::LoadtestError, measure::Latencies, table::Table};

/// What `quality --json` prints. The same seed prints the same but for the times.
#[derive(Debug, Default, Serialize)]
pub struct QualityReport {
    pub seed: u64,
    pub donors: usize,
    /// Tokens of a donor without text.
    pub tokens: usize,
    pub classes: BTreeMap<&'static str, ClassReport>,
}

/// How one class went, asked one look-up at a time.
#[derive(Debug, Default, Serialize)]
pub struct ClassReport {
    pub asked: u64,
    /// Why none was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_asked: Option<&'static str>,
    /// Outcomes other than a miss.
    pub found: u64,
    /// Answers that name a donor as good as the best; where there is none, misses; for
    /// paraphrases, answers that nominate the donor.
    pub right: u64,
    /// Tokens in reported spans / tokens that the best donor covers, all look-ups together; absent
    /// where there is nothing to cover.
    pub coverage: Option<f64>,
    pub false_spans: u64,
    /// The server's own, from the arrival of the request to the finished answer.
    pub p50_us: f64,
    pub p99_us: f64,
    #[serde(flatten)]
    pub facts: Option<FactsReport>,
    #[serde(flatten)]
    pub nomination: Option<NominationReport>,
}

/// For classes whose text was changed.
#[derive(Debug, Default, Serialize)]
pub struct FactsReport {
    /// Answers that say that facts differ.
    pub flagged: u64,
    /// Answers that say that facts were compared.
    pub compared: u64,
    pub changes: BTreeMap<&'static str, ChangeReport>,
}

impl ClassReport {
    /// Of a class that was not asked.
    #[must_use]
    pub fn not_asked(why: Option<&'static str>) -> Self {
        Self {
            not_asked: Some(why.unwrap_or("no such target")),
            ..Self::default()
        }
    }
}

/// One kind of change.
#[derive(Debug, Default, Serialize)]
pub struct ChangeReport {
    pub asked: u64,
    pub flagged: u64,
}

/// For paraphrases.
#[derive(Debug, Default, Serialize)]
pub struct NominationReport {
    /// Answers that name the right donor, as the match or among the neighbours.
    pub nominated: u64,
    pub nominated_by: BTreeMap<FoundBy, u64>,
}

/// The answers of one class.
#[derive(Debug, Default)]
pub struct ClassTally {
    report: ClassReport,
    reported: u64,
    best: u64,
    server: Latencies,
}

impl ClassTally {
    /// Adds one answer.
    pub fn add(&mut self, question: &Question, judged: &Judged) {
        let report = &mut self.report;
        report.asked += 1;
        report.found += u64::from(judged.found);
        report.right += u64::from(judged.right);
        report.false_spans += judged.false_spans;
        self.server.record_us(judged.server_us);
        if !question.class.must_miss() {
            self.reported += judged.reported;
            self.best += question.best as u64;
        }
        if let Some(change) = question.change {
            let facts = report.facts.get_or_insert_default();
            let flagged = judged.facts == Facts::Differ;
            let kind = facts.changes.entry(change).or_default();
            kind.asked += 1;
            kind.flagged += u64::from(flagged);
            facts.flagged += u64::from(flagged);
            facts.compared += u64::from(judged.facts != Facts::NotCompared);
        }
        if question.class == QualityClass::Paraphrase {
            let nomination = report.nomination.get_or_insert_default();
            nomination.nominated += u64::from(judged.nominated.is_some());
            if let Some(by) = judged.nominated {
                *nomination.nominated_by.entry(by).or_default() += 1;
            }
        }
    }

    /// The report of the class.
    #[must_use]
    pub fn report(self) -> ClassReport {
        ClassReport {
            coverage: (self.best > 0).then(|| self.reported as f64 / self.best as f64),
            p50_us: self.server.quantile_us(0.5),
            p99_us: self.server.quantile_us(0.99),
            ..self.report
        }
    }
}

impl QualityReport {
    /// Fails when a span was reported that is not there, or a donor where there is none to find.
    ///
    /// # Errors
    /// With the number of false spans, or of such donors.
    pub fn verdict(&self) -> Result<(), LoadtestError> {
        let false_spans: u64 = self.classes.values().map(|class| class.false_spans).sum();
        if false_spans > 0 {
            return Err(LoadtestError::FalseSpans { count: false_spans });
        }
        let wrongly = QualityClass::all()
            .filter(|class| class.must_miss())
            .filter_map(|class| self.classes.get(class.name()))
            .map(|class| class.asked - class.right)
            .sum();
        match wrongly {
            0 => Ok(()),
            count => Err(LoadtestError::Failed {
                count,
                first: "a donor was told of where there is none to find".to_owned(),
            }),
        }
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new(&[
            "class",
            "asked",
            "found",
            "right",
            "coverage",
            "false",
            "p50 us",
            "p99 us",
            "flagged",
            "nominated",
        ]);
        let mut notes = String::new();
        for class in QualityClass::all() {
            let Some(report) = self.classes.get(class.name()) else {
                continue;
            };
            if let Some(reason) = report.not_asked {
                notes += &format!("{}: not asked: {reason}\n", class.name());
                continue;
            }
            let share = |count: u64| format!("{:.1} %", count as f64 * 100.0 / report.asked as f64);
            let dash = || "-".to_owned();
            table.row([
                class.name().to_owned(),
                report.asked.to_string(),
                share(report.found),
                share(report.right),
                report
                    .coverage
                    .map_or_else(dash, |value| format!("{value:.4}")),
                report.false_spans.to_string(),
                format!("{:.0}", report.p50_us),
                format!("{:.0}", report.p99_us),
                report
                    .facts
                    .as_ref()
                    .map_or_else(dash, |facts| share(facts.flagged)),
                report
                    .nomination
                    .as_ref()
                    .map_or_else(dash, |found| share(found.nominated)),
            ]);
        }
        format!(
            "{} donors, seed {}\n\n{}{notes}",
            self.donors,
            self.seed,
            table.render()
        )
    }
}
