//! Conversations over a few workers: the pick finds most of the hits that there are and keeps
//! everybody busy; policies that look at the load alone do not.

#[cfg(test)]
#[path = "../benches/mooncake/replay.rs"]
mod replay;

#[cfg(test)]
mod pick_replay {
    use super::replay::{Fleet, Policy, Report, Request, ideal_hits, replay};

    const FLEET: Fleet = Fleet {
        workers: 4,
        worker_blocks: 500,
        block_tokens: 512,
        prefill_tokens_per_s: 10_000,
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
                    input_tokens: blocks.len() as u64 * FLEET.block_tokens,
                    output_tokens: 50 + draw(turn << 8 | 3, 500),
                    blocks: blocks.clone(),
                });
                at_us += 60_000_000 + draw(turn << 8 | 4, 60_000_000);
            }
        }
        trace.sort_by_key(|request| request.at_us);
        trace
    }

    fn mix(number: u64) -> u64 {
        let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ number >> 31
    }

    /// Share of the hits that there are, and the busiest worker over the mean.
    fn check(policy: Policy, is_good: impl Fn(f64, f64) -> bool) -> Report {
        let trace = conversations();
        let report = replay(&trace, &FLEET, policy);
        let share = report.hits as f64 / ideal_hits(&trace, &FLEET) as f64;
        let imbalance = report.imbalance();
        assert!(
            is_good(share, imbalance),
            "{policy:?}: share {share:.3}, imbalance {imbalance:.3}"
        );
        assert_eq!(report.waits_s.len(), trace.len(), "all were answered");
        report
    }

    #[test]
    fn the_pick_finds_nine_tenths_of_the_hits_and_spreads_the_work() {
        for seed in 0..4 {
            check(Policy::Pick(seed << 32), |share, imbalance| {
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
        let of_pick = mean(Policy::Pick(0));
        assert!(of_pick < mean(Policy::RoundRobin) && of_pick < mean(Policy::LeastLoad));
    }

    #[test]
    fn one_worker_alone_hits_as_the_ideal_does() {
        let fleet = Fleet {
            workers: 1,
            worker_blocks: 2_000,
            prefill_tokens_per_s: 100_000_000,
            ..FLEET
        };
        let trace = conversations();
        let report = replay(&trace, &fleet, Policy::Pick(0));
        assert_eq!(report.hits, ideal_hits(&trace, &fleet));
        assert!((report.imbalance() - 1.0).abs() < 1e-9);
    }
}
