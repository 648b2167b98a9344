//! What is known of a good choice, each time with policies that get it wrong.

#[cfg(test)]
mod pick {
    use std::collections::BTreeMap;

    use kvatlas_events::pick::{Candidate, Load, Picked, SourceState, pick};
    use kvatlas_events::view::{Namespace, SourceId, View};
    use proptest::prelude::{Just, Strategy, prop, prop_assert_eq, proptest};

    const LEASE_MS: u64 = 60_000;
    /// Long enough for any charge to wear off, and shorter than a lease.
    const LATER_MS: u64 = 50_000;

    type Policy = fn(&[Candidate], u32, &Load, u64, u64) -> Option<Picked>;

    fn always_first(
        candidates: &[Candidate],
        total_blocks: u32,
        _: &Load,
        _: u64,
        _: u64,
    ) -> Option<Picked> {
        candidates.first().map(|first| Picked {
            source: first.source,
            charge_blocks: total_blocks.max(1),
        })
    }

    fn load_only(
        candidates: &[Candidate],
        total_blocks: u32,
        load: &Load,
        now_ms: u64,
        spread: u64,
    ) -> Option<Picked> {
        let cold: Vec<_> = candidates.iter().map(|one| cold(one.source)).collect();
        pick(&cold, total_blocks, load, now_ms, spread)
    }

    fn cache_only(
        candidates: &[Candidate],
        total_blocks: u32,
        _: &Load,
        now_ms: u64,
        spread: u64,
    ) -> Option<Picked> {
        let idle = Load::new(LEASE_MS);
        pick(candidates, total_blocks, &idle, now_ms, spread)
    }

    /// `answer` holds for the policy, and for those of [always the first, load only, cache only]
    /// that can know it.
    fn check(answer: impl Fn(&mut Fleet) -> bool, degenerate: [bool; 3]) {
        let holds = |policy: Policy| answer(&mut Fleet::new(policy));
        assert!(holds(pick));
        let found = [always_first, load_only, cache_only].map(|policy: Policy| holds(policy));
        assert_eq!(found, degenerate);
    }

    /// Workers, what they have to do, and the policy that gives it to them.
    struct Fleet {
        policy: Policy,
        workers: Vec<SourceId>,
        load: Load,
        now_ms: u64,
        picks: u64,
    }

    impl Fleet {
        fn new(policy: Policy) -> Self {
            Self {
                policy,
                workers: sources(8),
                load: Load::new(LEASE_MS),
                now_ms: 0,
                picks: 0,
            }
        }

        /// Sends a prompt of which the first workers hold `held` blocks, listed backwards where
        /// `is_turned`, and says to whom.
        fn send(&mut self, held: &[u32], total_blocks: u32, is_turned: bool) -> usize {
            let mut candidates: Vec<Candidate> = held
                .iter()
                .zip(&self.workers)
                .map(|(&device_blocks, &source)| Candidate {
                    device_blocks,
                    ..cold(source)
                })
                .collect();
            if is_turned {
                candidates.reverse();
            }
            self.picks += 1;
            let to = (self.policy)(
                &candidates,
                total_blocks,
                &self.load,
                self.now_ms,
                self.picks,
            )
            .unwrap();
            self.load
                .start(&self.request(), to.source, to.charge_blocks, self.now_ms)
                .unwrap();
            self.workers
                .iter()
                .position(|&worker| worker == to.source)
                .unwrap()
        }

        /// Ends what was sent last.
        fn finish(&mut self) {
            assert!(self.load.finish(&self.request()));
        }

        fn request(&self) -> String {
            format!("request {}", self.picks)
        }
    }

    fn cold(source: SourceId) -> Candidate {
        Candidate {
            source,
            device_blocks: 0,
            lower_blocks: 0,
            state: SourceState::Exact,
        }
    }

    fn sources(count: usize) -> Vec<SourceId> {
        let view = View::default();
        (0..count)
            .map(|_| view.add(Namespace(1)).unwrap())
            .collect()
    }

    fn shares(picked: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut shares = BTreeMap::new();
        for worker in picked {
            *shares.entry(worker).or_default() += 1;
        }
        shares.into_values().collect()
    }

    const BOTH_ORDERS: [bool; 2] = [false, true];

    #[test]
    fn a_prompt_that_one_worker_holds_wholly_goes_there() {
        for is_finished in [false, true] {
            let answer = |fleet: &mut Fleet| {
                BOTH_ORDERS.iter().all(|&is_turned| {
                    (0..20).all(|_| {
                        let to = fleet.send(&[0, 64], 64, is_turned);
                        if is_finished {
                            fleet.finish();
                        }
                        to == 1
                    })
                })
            };
            check(answer, [false, false, true]);
        }
    }

    #[test]
    fn two_prefixes_sort_themselves_by_content() {
        let answer = |fleet: &mut Fleet| {
            BOTH_ORDERS.iter().all(|&is_turned| {
                (0..10).all(|_| {
                    fleet.send(&[32, 0], 34, is_turned) == 0
                        && fleet.send(&[0, 32], 34, is_turned) == 1
                })
            })
        };
        check(answer, [false, false, true]);
    }

    #[test]
    fn one_block_decides() {
        let answer = |fleet: &mut Fleet| {
            BOTH_ORDERS.iter().all(|&is_turned| {
                (0..20).all(|_| {
                    let to = fleet.send(&[5, 6, 5], 10, is_turned);
                    fleet.finish();
                    fleet.now_ms += LATER_MS;
                    to == 1
                })
            })
        };
        check(answer, [false, false, true]);
    }

    #[test]
    fn a_cold_fleet_spreads() {
        for is_turned in BOTH_ORDERS {
            let at_once = |fleet: &mut Fleet| {
                shares((0..64).map(|_| fleet.send(&[0; 8], 16, is_turned))) == [8; 8]
            };
            check(at_once, [false, true, false]);
            // Each after the one before is long over: only the spread is left.
            let paced = |fleet: &mut Fleet| {
                let shares = shares((0..800).map(|_| {
                    let to = fleet.send(&[0; 8], 16, is_turned);
                    fleet.finish();
                    fleet.now_ms += LATER_MS;
                    to
                }));
                shares.len() == 8 && shares.iter().all(|share| (70..130).contains(share))
            };
            check(paced, [false, true, true]);
        }
    }

    #[test]
    fn one_cached_block_loses_against_two_in_flight() {
        // Requests whose blocks were all cached, or one that computes two, or did so long ago.
        for (requests, blocks, later_ms) in [(2, 0, 0), (1, 2, 0), (1, 2, LATER_MS)] {
            for is_turned in BOTH_ORDERS {
                let answer = |fleet: &mut Fleet| {
                    let worker = fleet.workers[0];
                    for request in 0..requests {
                        let request = format!("before {request}");
                        fleet.load.start(&request, worker, blocks, 0).unwrap();
                    }
                    fleet.now_ms += later_ms;
                    fleet.send(&[1, 0], 10, is_turned) == 1
                };
                check(answer, [is_turned, true, false]);
            }
        }
    }

    #[test]
    fn prompts_too_short_to_hash_spread() {
        for is_finished in [false, true] {
            let answer = |fleet: &mut Fleet| {
                shares((0..64).map(|_| {
                    let to = fleet.send(&[0; 8], 0, false);
                    if is_finished {
                        fleet.finish();
                    }
                    to
                })) == [8; 8]
            };
            check(answer, [false, true, false]);
        }
    }

    #[test]
    fn nobody_is_picked_from_nobody() {
        assert_eq!(pick(&[], 10, &Load::new(LEASE_MS), 0, 0), None);
    }

    /// Of two idle workers, which is picked for a prompt of ten blocks under every spread, and
    /// with what charge. Nothing where the spread decides.
    fn of_two(
        one: (u32, u32, SourceState),
        other: (u32, u32, SourceState),
    ) -> Option<(usize, u32)> {
        let workers = sources(2);
        let candidates: Vec<_> = [one, other]
            .iter()
            .zip(&workers)
            .map(
                |(&(device_blocks, lower_blocks, state), &source)| Candidate {
                    source,
                    device_blocks,
                    lower_blocks,
                    state,
                },
            )
            .collect();
        let idle = Load::new(LEASE_MS);
        let picked: Vec<_> = (0..32)
            .map(|spread| pick(&candidates, 10, &idle, 0, spread).unwrap())
            .collect();
        picked.iter().all(|one| *one == picked[0]).then(|| {
            let is_first = picked[0].source == workers[0];
            (usize::from(!is_first), picked[0].charge_blocks)
        })
    }

    #[test]
    fn lower_tiers_cost_more_than_nothing_and_less_than_all() {
        use SourceState::Exact;
        // Four on a lower tier are one that is missing.
        assert_eq!(of_two((0, 4, Exact), (3, 0, Exact)), None);
        assert_eq!(of_two((0, 5, Exact), (3, 0, Exact)), Some((0, 7)));
        assert_eq!(of_two((0, 10, Exact), (8, 0, Exact)), Some((1, 2)));
        assert_eq!(of_two((9, 1, Exact), (9, 0, Exact)), Some((0, 1)));
        assert_eq!(of_two((9, 1, Exact), (10, 0, Exact)), Some((1, 0)));
        // More than the prompt has is not better than the whole of it.
        assert_eq!(of_two((12, 3, Exact), (10, 0, Exact)), None);
        assert_eq!(of_two((8, 9, Exact), (8, 2, Exact)), None);
    }

    #[test]
    fn only_stale_claims_count_for_nothing() {
        use SourceState::{Degraded, Exact, Stale};
        assert_eq!(of_two((1, 0, Exact), (5, 0, Degraded)), Some((1, 5)));
        assert_eq!(of_two((1, 0, Exact), (10, 0, Stale)), Some((0, 9)));
        assert_eq!(of_two((0, 0, Exact), (5, 5, Stale)), None);
    }

    #[test]
    fn equal_costs_go_to_the_lower_load() {
        let workers = sources(2);
        let mut load = Load::new(LEASE_MS);
        load.start("one", workers[0], 0, 0).unwrap();
        let candidates = [
            Candidate {
                device_blocks: 1,
                ..cold(workers[0])
            },
            cold(workers[1]),
        ];
        for spread in 0..32 {
            let picked = pick(&candidates, 10, &load, 0, spread).unwrap();
            assert_eq!((picked.source, picked.charge_blocks), (workers[1], 10));
        }
    }

    /// Worker, blocks on the device, on a lower tier.
    type Listed = Vec<(usize, u32, u32)>;

    /// Candidates in two orders, and the requests in flight at each worker.
    fn fleets() -> impl Strategy<Value = (Listed, Listed, Vec<u32>)> {
        (1_usize..12).prop_flat_map(|count| {
            let one = (0_u32..6, 0_u32..3);
            let list = prop::collection::vec(one, count).prop_map(|list| {
                list.iter()
                    .enumerate()
                    .map(|(worker, &(device, lower))| (worker, device, lower))
                    .collect::<Listed>()
            });
            let loads = prop::collection::vec(0_u32..3, count);
            (list, loads).prop_flat_map(|(list, loads)| {
                (Just(list.clone()), Just(list).prop_shuffle(), Just(loads))
            })
        })
    }

    proptest! {
        #[test]
        fn the_order_means_nothing_and_nobody_is_cheaper(
            (one, other, loads) in fleets(),
            spread: u64,
        ) {
            let workers = sources(one.len());
            let mut load = Load::new(LEASE_MS);
            for (worker, &requests) in loads.iter().enumerate() {
                for request in 0..requests {
                    load.start(&format!("{worker} {request}"), workers[worker], 0, 0).unwrap();
                }
            }
            let listed = |list: &Listed| -> Vec<Candidate> {
                list.iter()
                    .map(|&(worker, device_blocks, lower_blocks)| Candidate {
                        device_blocks,
                        lower_blocks,
                        ..cold(workers[worker])
                    })
                    .collect()
            };
            let picked = pick(&listed(&one), 8, &load, 0, spread).unwrap();
            prop_assert_eq!(pick(&listed(&other), 8, &load, 0, spread), Some(picked));
            // In quarters of a block, by hand.
            let key = |&(worker, device, lower): &(usize, u32, u32)| {
                ((8 - device - lower) * 4 + lower + loads[worker] * 4, loads[worker])
            };
            let best = one.iter().map(key).min().unwrap();
            let found = one.iter().find(|one| workers[one.0] == picked.source).unwrap();
            prop_assert_eq!(key(found), best);
        }
    }
}
