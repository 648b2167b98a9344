//! `manifest`: how much of an empty call's speed a manifest keeps.

pub mod calls;
mod tokens;

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use tonic::transport::Channel;

use crate::{
    args::ManifestArgs,
    child::ServerProcess,
    error::LoadtestError,
    measure::{Load, Slice, median},
    prior::{self, TestPrior},
    random::Random,
    server::Server,
    table::Table,
    wire::{Shown, connect},
};

pub use calls::{Asked, ManifestCaller};
use calls::{EchoCaller, stream_loop};
use tokens::Tokens;

/// Calls before the first round, so that it measures nothing but calls.
const WARM_UP: Duration = Duration::from_millis(500);
const RANDOM_PRIORS: u64 = 1;

/// What `manifest --json` prints. Rates, p50 and ratios are medians over the rounds, so that one
/// disturbed round changes little; p99 is of all calls.
#[derive(Debug, Serialize)]
pub struct ManifestReport {
    pub rps: f64,
    pub stream_rps: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub echo_rps: f64,
    pub echo_p50_us: f64,
    pub echo_p99_us: f64,
    pub rps_ratio: f64,
    pub p50_ratio: f64,
    pub stream_ratio: f64,
    pub stream_p50_us: f64,
    pub stream_p99_us: f64,
    pub import_ms_p50: f64,
    pub import_ms_max: f64,
    pub failed: u64,
    #[serde(skip)]
    rounds: Vec<[Slice; 3]>,
}

/// Measures; fails where any answer is wrong.
///
/// # Errors
/// When a server cannot be started or reached, or a call fails.
pub async fn measure(args: &ManifestArgs) -> Result<ManifestReport, LoadtestError> {
    let tokens = Tokens::of(args)?;
    let shown = &tokens.shown;
    let common = &tokens.common;
    let echo_server = ServerProcess::start("echo", ["echo-child".into()])?;
    let server = Server::of(common)?;
    let channels = connect(&server.address, common.connections).await?;
    let (asked, import_ms) = put_priors(args, &channels[0], shown).await?;
    let manifests = ManifestCaller::new(&channels, Arc::clone(&asked)).showing(shown);
    let echoes = EchoCaller::new(&connect(&echo_server.address, common.connections).await?);

    let load = Load {
        concurrency: args.concurrency,
        rate: args.rate,
        turn: Duration::from_millis(args.turn_ms as u64),
    };
    let warm_up = Load {
        turn: WARM_UP.min(load.turn),
        ..load
    };
    warm_up.on(&echoes).await;
    warm_up.on(&manifests).await;
    let mut rounds = Vec::with_capacity(args.rounds);
    for round in 0..args.rounds {
        // Each is first in every other round, so that a drift of the machine favours neither.
        let (echo, unary) = if round % 2 == 0 {
            let echo = load.on(&echoes).await;
            (echo, load.on(&manifests).await)
        } else {
            let unary = load.on(&manifests).await;
            (load.on(&echoes).await, unary)
        };
        let streamed = stream_loop(channels[0].clone(), shown, Arc::clone(&asked), load).await;
        rounds.push([echo, unary, streamed]);
    }
    if common.address.is_some() {
        for index in 0..args.priors {
            prior::delete(channels[0].clone(), index).await?;
        }
    }
    Ok(ManifestReport::new(rounds, &import_ms))
}

impl ManifestReport {
    fn new(rounds: Vec<[Slice; 3]>, import_ms: &[f64]) -> Self {
        let mut all = [Slice::default(), Slice::default(), Slice::default()];
        for round in &rounds {
            for (total, slice) in all.iter_mut().zip(round) {
                total.then(slice.clone());
            }
        }
        let over_rounds = |value: &dyn Fn(&[Slice; 3]) -> f64| {
            let values: Vec<f64> = rounds.iter().map(value).collect();
            median(&values)
        };
        let middle = |slice: &Slice| slice.round_trip.quantile_us(0.5);
        let rate = |which: usize| over_rounds(&|round| round[which].per_second());
        let p50 = |which: usize| over_rounds(&|round| middle(&round[which]));
        // Of neighbouring turns: what slows the machine down for a while slows both.
        let of_echo =
            |which: usize| over_rounds(&|round| round[which].per_second() / round[0].per_second());
        let p99 = |which: usize| all[which].round_trip.quantile_us(0.99);
        Self {
            rps: rate(1),
            stream_rps: rate(2),
            p50_us: p50(1),
            p99_us: p99(1),
            echo_rps: rate(0),
            echo_p50_us: p50(0),
            echo_p99_us: p99(0),
            rps_ratio: of_echo(1),
            p50_ratio: over_rounds(&|round| middle(&round[1]) / middle(&round[0])),
            stream_ratio: of_echo(2),
            stream_p50_us: p50(2),
            stream_p99_us: p99(2),
            import_ms_p50: median(import_ms),
            import_ms_max: import_ms.iter().copied().fold(0.0, f64::max),
            failed: all.iter().map(|slice| slice.failed).sum(),
            rounds,
        }
    }

    /// Fails when a call did.
    ///
    /// # Errors
    /// With the first failure.
    pub fn verdict(&self) -> Result<(), LoadtestError> {
        let first = self
            .rounds
            .iter()
            .flatten()
            .find_map(|slice| slice.first_failure.clone());
        match first {
            Some(first) => Err(LoadtestError::Failed {
                count: self.failed,
                first,
            }),
            None => Ok(()),
        }
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new(&[
            "call", "calls/s", "of echo", "least", "most", "p50 us", "p99 us", "failed",
        ]);
        let rows = [
            (
                "echo (empty, unary)",
                0,
                self.echo_rps,
                self.echo_p50_us,
                self.echo_p99_us,
            ),
            ("GetManifest (unary)", 1, self.rps, self.p50_us, self.p99_us),
            (
                "GetManifests (stream)",
                2,
                self.stream_rps,
                self.stream_p50_us,
                self.stream_p99_us,
            ),
        ];
        for (name, which, rps, p50_us, p99_us) in rows {
            let rates = self.rounds.iter().map(|round| round[which].per_second());
            let failed: u64 = self.rounds.iter().map(|round| round[which].failed).sum();
            table.row([
                name.to_owned(),
                format!("{rps:.0}"),
                format!("{:.3}", [1.0, self.rps_ratio, self.stream_ratio][which]),
                format!("{:.0}", rates.clone().fold(f64::INFINITY, f64::min)),
                format!("{:.0}", rates.fold(0.0, f64::max)),
                format!("{p50_us:.0}"),
                format!("{p99_us:.0}"),
                failed.to_string(),
            ]);
        }
        format!(
            "{}p50 of GetManifest against the echo's: {:.3}\n\
             prior import: median {:.1} ms, longest {:.1} ms\n\
             calls/s, p50 and ratios: median of {} rounds; least and most: of one; p99: of all\n",
            table.render(),
            self.p50_ratio,
            self.import_ms_p50,
            self.import_ms_max,
            self.rounds.len(),
        )
    }
}

/// Stores the priors, and makes the requests for them in a random order.
async fn put_priors(
    args: &ManifestArgs,
    channel: &Channel,
    shown: &Shown,
) -> Result<(Arc<[Asked]>, Vec<f64>), LoadtestError> {
    let mut random = Random::new(args.common.seed).branch(RANDOM_PRIORS);
    let mut asked = Vec::with_capacity(args.priors * 2);
    let mut import_ms = Vec::with_capacity(args.priors);
    for index in 0..args.priors {
        let prior = TestPrior::new(index, args.shape.into(), &mut random);
        import_ms.push(prior.put(channel.clone(), shown).await?);
        asked.extend(Asked::about(&prior));
    }
    random.shuffle(&mut asked);
    Ok((asked.into(), import_ms))
}
