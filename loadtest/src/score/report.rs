//! What the score command found, for programs and for people.

use kvatlas_kernels::score::Level;
use serde::Serialize;

use super::{
    python::Compared,
    rounds::{Identity, Rounds},
};
use crate::{
    args::ScoreArgs,
    error::LoadtestError,
    measure::{Latencies, median},
    table::Table,
};

/// What `score --json` prints.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ScoreReports {
    One(Box<ScoreReport>),
    Sweep { points: Vec<ScoreReport> },
}

/// One number of blocks. Ratios are medians over the rounds, so that what slows the machine for a
/// while slows both sides of them.
#[derive(Debug, Serialize)]
pub struct ScoreReport {
    pub model: String,
    pub algorithm: String,
    pub blocks: usize,
    pub k: usize,
    pub threads: usize,
    /// That the products are made with.
    pub instructions: String,
    /// Of the full pass, with the choice of the best blocks.
    pub ms_p50: f64,
    pub ms_p99: f64,
    /// That a full pass reads.
    pub bytes: usize,
    pub gb_per_s: f64,
    /// Of a plain read of the same bytes, by the same threads, in the same rounds.
    pub stream_gb_per_s: f64,
    pub bandwidth_ratio: f64,
    /// Absent for kri-t, which has no screen; so are the next three.
    pub screened_ms_p50: Option<f64>,
    pub screened_ratio: Option<f64>,
    /// Blocks that the screen left to be scored in full, on average.
    pub screened_survivors: Option<f64>,
    /// Whether the screened choice was the full pass's, order included, with every table and query.
    pub identical_topk: Option<bool>,
    /// Tables times queries that were compared.
    pub compared: usize,
    /// Absent where the interpreter has no such package.
    pub numpy_ms_p50: Option<f64>,
    pub torch_ms_p50: Option<f64>,
    /// GetManifest with an inline query, over TCP on the loopback, one call at a time; absent
    /// without calls.
    pub rpc_ms_p50: Option<f64>,
    pub rpc_ms_p99: Option<f64>,
}

impl ScoreReport {
    #[must_use]
    pub fn new(
        (args, blocks): (&ScoreArgs, usize),
        (level, bytes): (Level, usize),
        (rounds, identity): (&Rounds, Identity),
        compared: Compared,
        latencies: Option<&Latencies>,
    ) -> Self {
        let gb_per_s = |ms: f64| bytes as f64 / ms / 1e6;
        let ratio = |above: &[f64], below: &[f64]| {
            let ratios: Vec<f64> = above.iter().zip(below).map(|(a, b)| a / b).collect();
            median(&ratios)
        };
        let has_screen = !rounds.screened.is_empty();
        let quantile_ms = |share| latencies.map(|all| all.quantile_us(share) / 1e3);
        let Compared {
            numpy_ms_p50,
            torch_ms_p50,
        } = compared;
        Self {
            model: spelled(&args.model),
            algorithm: spelled(&args.algorithm),
            blocks,
            k: args.k,
            threads: args.threads,
            instructions: format!("{level:?}").to_lowercase(),
            ms_p50: median(&rounds.full),
            ms_p99: quantile(&rounds.full, 0.99),
            bytes,
            gb_per_s: gb_per_s(median(&rounds.full)),
            stream_gb_per_s: gb_per_s(median(&rounds.plain_read)),
            bandwidth_ratio: ratio(&rounds.plain_read, &rounds.full),
            screened_ms_p50: has_screen.then(|| median(&rounds.screened)),
            screened_ratio: has_screen.then(|| ratio(&rounds.screened, &rounds.full)),
            screened_survivors: has_screen
                .then(|| identity.survivors as f64 / identity.compared.max(1) as f64),
            identical_topk: has_screen.then_some(identity.identical == identity.compared),
            compared: identity.compared,
            numpy_ms_p50,
            torch_ms_p50,
            rpc_ms_p50: quantile_ms(0.5),
            rpc_ms_p99: quantile_ms(0.99),
        }
    }
}

impl ScoreReports {
    fn points(&self) -> &[ScoreReport] {
        match self {
            Self::One(report) => std::slice::from_ref(&**report),
            Self::Sweep { points } => points,
        }
    }

    /// Fails when a screened choice was not the full pass's.
    ///
    /// # Errors
    /// With the number of blocks.
    pub fn verdict(&self) -> Result<(), LoadtestError> {
        let differs = |point: &&ScoreReport| point.identical_topk == Some(false);
        match self.points().iter().find(differs) {
            Some(point) => Err(LoadtestError::WrongAnswer {
                call: "screened pass",
                reason: format!("other blocks than by the full pass, of {}", point.blocks),
            }),
            None => Ok(()),
        }
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let Some(first) = self.points().first() else {
            return String::new();
        };
        let mut table = Table::new(&[
            "blocks",
            "full ms",
            "p99",
            "GB/s",
            "read GB/s",
            "of read",
            "screened ms",
            "of full",
            "left",
            "same",
            "numpy ms",
            "torch ms",
            "call ms",
            "p99",
        ]);
        let number = |value: f64| format!("{value:.2}");
        let maybe = |value: Option<f64>| value.map_or("-".to_owned(), number);
        for point in self.points() {
            table.row([
                point.blocks.to_string(),
                number(point.ms_p50),
                number(point.ms_p99),
                number(point.gb_per_s),
                number(point.stream_gb_per_s),
                number(point.bandwidth_ratio),
                maybe(point.screened_ms_p50),
                maybe(point.screened_ratio),
                maybe(point.screened_survivors),
                match point.identical_topk {
                    Some(true) => format!("all {}", point.compared),
                    Some(false) => "NO".to_owned(),
                    None => "-".to_owned(),
                },
                maybe(point.numpy_ms_p50),
                maybe(point.torch_ms_p50),
                maybe(point.rpc_ms_p50),
                maybe(point.rpc_ms_p99),
            ]);
        }
        format!(
            "{}, {}, best {} blocks, {} threads, {}\n{}",
            first.model,
            first.algorithm,
            first.k,
            first.threads,
            first.instructions,
            table.render()
        )
    }
}

/// As the command line spells it.
fn spelled(value: &impl clap::ValueEnum) -> String {
    let possible = value.to_possible_value();
    possible.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The smallest of the values that so many of them do not exceed; 0 when there are none.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length"
    )]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_values() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        for (share, expected) in [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            assert!(
                (quantile(&values, share) - expected).abs() < 1e-9,
                "{share}"
            );
        }
        assert!(quantile(&[], 0.5).abs() < 1e-9);
    }
}
