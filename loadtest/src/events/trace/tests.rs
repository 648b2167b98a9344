//! Conversations over a few workers: FindWorkers finds most of the hits that there are and keeps
//! everybody busy; policies that look at the load alone do not.

use super::{
    Scale,
    file::{self, Request},
    replay::{Outcome, Policy, ideal_hits, replay},
};
use crate::events::subject::world::mix;

/// Small blocks, computed as slowly as large ones.
const SCALE: Scale = Scale {
    workers: 4,
    worker_blocks: 500,
    block_tokens: 16,
    prefill_tokens_per_s: 312,
    decode_tokens_per_s: 30,
};
const CONVERSATIONS: u64 = 150;
const TURNS_MAX: u64 = 6;

/// Conversations that begin within ten minutes. Each turn asks all that was said before and a
/// few blocks more, a minute or two after the last. All begin with the same block. A worker
/// computes about half of the time.
fn conversations() -> Vec<Request> {
    let mut next_block = 1;
    let mut trace = Vec::new();
    for conversation in 0..CONVERSATIONS {
        let draw = |what: u64, below: u64| mix(conversation << 16 | what) % below;
        let mut blocks = vec![0];
        let mut at_us = draw(0, 600_000_000);
        for turn in 0..=draw(1, TURNS_MAX) {
            let new = 2 + draw(turn << 8 | 2, 30);
            for _ in 0..new {
                blocks.push(next_block);
                next_block += 1;
            }
            trace.push(Request {
                at_us,
                input_tokens: (blocks.len() * SCALE.block_tokens) as u64,
                output_tokens: 50 + draw(turn << 8 | 3, 500),
                blocks: blocks.clone(),
            });
            at_us += 60_000_000 + draw(turn << 8 | 4, 60_000_000);
        }
    }
    trace.sort_by_key(|request| request.at_us);
    trace
}

/// Share of the hits that there are, and the busiest worker over the mean.
fn check(policy: Policy, is_good: impl Fn(f64, f64) -> bool) -> Outcome {
    let trace = conversations();
    let outcome = replay(&trace, &SCALE, policy).unwrap();
    let share = outcome.hits as f64 / ideal_hits(&trace, &SCALE) as f64;
    let imbalance = outcome.imbalance();
    assert!(
        is_good(share, imbalance),
        "{policy:?}: share {share:.3}, imbalance {imbalance:.3}"
    );
    assert_eq!(outcome.waits_s.len(), trace.len(), "all were answered");
    outcome
}

#[test]
fn find_workers_finds_nine_tenths_of_the_hits_and_spreads_the_work() {
    for seed in 0..4 {
        check(Policy::FindWorkers(seed << 32), |share, imbalance| {
            share >= 0.9 && imbalance <= 1.2
        });
    }
}

#[test]
fn load_alone_finds_half() {
    check(Policy::RoundRobin, |share, _| share < 0.6);
    check(Policy::LeastLoad, |share, _| share < 0.6);
}

#[test]
fn first_tokens_come_sooner() {
    let mean = |policy| {
        let waits = check(policy, |_, _| true).waits_s;
        waits.iter().sum::<f64>() / waits.len() as f64
    };
    let ours = mean(Policy::FindWorkers(0));
    assert!(ours < mean(Policy::RoundRobin) && ours < mean(Policy::LeastLoad));
}

#[test]
fn one_worker_alone_hits_as_the_ideal_does() {
    let scale = Scale {
        workers: 1,
        worker_blocks: 2_000,
        prefill_tokens_per_s: 100_000_000,
        ..SCALE
    };
    let trace = conversations();
    let outcome = replay(&trace, &scale, Policy::FindWorkers(0)).unwrap();
    assert_eq!(outcome.hits, ideal_hits(&trace, &scale));
    assert!((outcome.imbalance() - 1.0).abs() < 1e-9);
}

#[test]
fn a_file_is_read_in_order_of_time_and_as_fast_as_asked() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("trace.jsonl");
    let line = |at: u64, blocks: &str| {
        let lengths = r#""input_length": 700, "output_length": 9"#;
        format!(r#"{{"timestamp": {at}, {lengths}, "hash_ids": {blocks}}}"#)
    };
    let text = [line(3000, "[0, 2]"), line(1000, "[0, 1]")].join("\n");
    std::fs::write(&path, text).unwrap();
    let requests = file::read(&path, 2.0).unwrap();
    let told: Vec<_> = requests
        .iter()
        .map(|of| (of.at_us, of.blocks.as_slice()))
        .collect();
    assert_eq!(told, [(500_000, &[0, 1][..]), (1_500_000, &[0, 2])]);
    for wrong in ["", "{\"timestamp\": 1}"] {
        std::fs::write(&path, wrong).unwrap();
        assert!(file::read(&path, 1.0).is_err(), "{wrong:?}");
    }
}
