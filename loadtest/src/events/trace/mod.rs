//! `events --trace`: how many of the prefix hits that a trace allows each policy finds.

mod cache;
mod file;
mod replay;
mod service;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde::Serialize;

use self::replay::{Outcome, Policy, ideal_hits, replay};
use crate::{
    args::{EventsArgs, TraceArgs},
    error::LoadtestError,
    table::Table,
};

/// Workers that keep the blocks used last, compute one prompt at a time, and decode many.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub(super) workers: usize,
    pub(super) worker_blocks: usize,
    pub(super) block_tokens: usize,
    pub(super) prefill_tokens_per_s: u64,
    pub(super) decode_tokens_per_s: u64,
}

/// What `events --trace` prints.
#[derive(Debug, Serialize)]
pub struct TraceReport {
    pub requests: usize,
    pub blocks: usize,
    pub workers: usize,
    pub worker_blocks: usize,
    /// Blocks that one cache as large as all together would hit.
    pub ideal_hits: usize,
    /// The worst over the seeds, which differ in how equals are told apart.
    pub find_workers_share: f64,
    pub find_workers_imbalance: f64,
    pub round_robin_share: f64,
    pub least_load_share: f64,
    pub policies: Vec<PolicyReport>,
}

/// One policy, with one seed.
#[derive(Debug, Clone, Serialize)]
pub struct PolicyReport {
    pub policy: String,
    pub hits: usize,
    /// Of the ideal hits.
    pub share: f64,
    /// The busiest worker over the mean: of prefill or of decoding, whichever is worse.
    pub imbalance: f64,
    /// From the arrival of a request to its first token.
    pub wait_mean_s: f64,
    pub wait_p50_s: f64,
    pub wait_p99_s: f64,
}

/// Replays the trace by every policy.
///
/// # Errors
/// When the file is no such trace, or FindWorkers does not say what the caches hold.
pub fn measure(args: &EventsArgs, path: &Path) -> Result<TraceReport, LoadtestError> {
    let TraceArgs {
        trace_workers,
        trace_worker_blocks,
        trace_speed,
        trace_seeds,
        ..
    } = args.trace;
    let scale = Scale {
        workers: trace_workers,
        worker_blocks: trace_worker_blocks,
        block_tokens: file::BLOCK_TOKENS,
        prefill_tokens_per_s: 10_000,
        decode_tokens_per_s: 30,
    };
    let trace = file::read(path, trace_speed)?;
    let ideal_hits = ideal_hits(&trace, &scale);
    let of = |policy| {
        let outcome = replay(&trace, &scale, policy)?;
        Ok::<_, LoadtestError>(PolicyReport::new(policy, &outcome, ideal_hits))
    };
    let round_robin = of(Policy::RoundRobin)?;
    let least_load = of(Policy::LeastLoad)?;
    let seeds = args.seed..args.seed + trace_seeds as u64;
    let ours: Vec<PolicyReport> = seeds
        .map(|seed| of(Policy::FindWorkers(seed << 32)))
        .collect::<Result<_, _>>()?;
    let worst = |figure: fn(&PolicyReport) -> f64, of: fn(f64, f64) -> f64| {
        ours.iter().map(figure).reduce(of).unwrap_or_default()
    };
    Ok(TraceReport {
        requests: trace.len(),
        blocks: trace.iter().map(|request| request.blocks.len()).sum(),
        workers: scale.workers,
        worker_blocks: scale.worker_blocks,
        ideal_hits,
        find_workers_share: worst(|of| of.share, f64::min),
        find_workers_imbalance: worst(|of| of.imbalance, f64::max),
        round_robin_share: round_robin.share,
        least_load_share: least_load.share,
        policies: [vec![round_robin, least_load], ours].concat(),
    })
}

impl PolicyReport {
    fn new(policy: Policy, outcome: &Outcome, ideal_hits: usize) -> Self {
        let waits = &outcome.waits_s;
        let at = |percent: usize| waits.get(waits.len() * percent / 100).copied();
        Self {
            policy: policy.name(),
            hits: outcome.hits,
            share: outcome.hits as f64 / ideal_hits as f64,
            imbalance: outcome.imbalance(),
            wait_mean_s: waits.iter().sum::<f64>() / waits.len() as f64,
            wait_p50_s: at(50).unwrap_or_default(),
            wait_p99_s: at(99).unwrap_or_default(),
        }
    }
}

impl TraceReport {
    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new(&[
            "policy",
            "hits",
            "of ideal",
            "busiest over mean",
            "first token: mean s",
            "p50",
            "p99",
        ]);
        for of in &self.policies {
            table.row([
                of.policy.clone(),
                of.hits.to_string(),
                format!("{:.1} %", of.share * 100.0),
                format!("{:.3}", of.imbalance),
                format!("{:.2}", of.wait_mean_s),
                format!("{:.2}", of.wait_p50_s),
                format!("{:.2}", of.wait_p99_s),
            ]);
        }
        format!(
            "{}{} requests of {} blocks over {} workers of {} blocks; ideal: {} hits\n",
            table.render(),
            self.requests,
            self.blocks,
            self.workers,
            self.worker_blocks,
            self.ideal_hits,
        )
    }
}
