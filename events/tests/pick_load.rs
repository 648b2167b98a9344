//! The load book against a slow twin that keeps everything, and at its bounds.

#[cfg(test)]
mod pick_load {
    use std::collections::BTreeMap;

    use kvatlas_events::pick::{
        EXPIRED_AT_ONCE_MAX, IN_FLIGHT_BLOCKS, Load, LoadError, RECENT_HALF_LIFE_MS, RECENT_SHARE,
        REQUEST_ID_BYTES_MAX, REQUESTS_MAX, SOURCES_MAX,
    };
    use kvatlas_events::view::{Change, Namespace, SourceId, View};
    use proptest::prelude::{Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

    const LEASE_MS: u64 = 10_000;

    fn sources(count: usize) -> Vec<SourceId> {
        let view = View::default();
        (0..count)
            .map(|_| view.add(Namespace(1)).unwrap())
            .collect()
    }

    /// Starts `starts` of (request, blocks) at one source and looks `later_ms` after.
    fn check(starts: &[(&str, u32)], later_ms: u64, blocks: u32) {
        let source = sources(1)[0];
        let mut load = Load::new(LEASE_MS);
        for &(request, charge) in starts {
            load.start(request, source, charge, 0).unwrap();
        }
        load.expire(later_ms);
        assert_eq!(load.blocks(source, later_ms), blocks, "{starts:?}");
    }

    #[test]
    fn a_request_weighs_until_its_lease_ends_and_its_charge_wears_off() {
        check(&[], 0, 0);
        check(&[("a", 0)], 0, 1);
        check(&[("a", 64)], 0, 33);
        check(&[("a", 64)], RECENT_HALF_LIFE_MS, 17);
        check(&[("a", 64)], 4 * RECENT_HALF_LIFE_MS, 3);
        check(&[("a", 64), ("b", 64)], 2 * RECENT_HALF_LIFE_MS, 18);
        check(&[("a", 0)], LEASE_MS - 1, 1);
        check(&[("a", 0)], LEASE_MS, 0);
        check(&[("a", u32::MAX)], u64::MAX, 0);
    }

    #[test]
    fn a_request_twice_is_one() {
        check(&[("a", 64), ("a", 64)], 0, 33);
        let [one, other] = sources(2)[..] else {
            unreachable!("two were asked for")
        };
        let mut load = Load::new(LEASE_MS);
        load.start("a", one, 0, 0).unwrap();
        // The second start renews the lease.
        load.start("a", one, 0, LEASE_MS - 1).unwrap();
        assert_eq!(load.expire(LEASE_MS), 0);
        // A third moves it, with a charge of its own.
        load.start("a", other, 64, LEASE_MS).unwrap();
        assert_eq!(load.blocks(one, LEASE_MS), 0);
        assert_eq!(load.blocks(other, LEASE_MS), 33);
        assert!(load.finish("a"));
        assert!(!load.finish("a"));
        assert_eq!(load.blocks(other, LEASE_MS), 32);
    }

    #[test]
    fn a_removed_source_begins_at_nothing() {
        let source = sources(1)[0];
        let mut load = Load::new(LEASE_MS);
        load.start("before", source, 64, 0).unwrap();
        load.remove(source);
        assert_eq!(load.blocks(source, 0), 0);
        load.start("after", source, 0, 0).unwrap();
        // It was started before the source went, and takes nothing from what came after.
        assert!(load.finish("before"));
        assert_eq!((load.blocks(source, 0), load.requests()), (1, 1));
    }

    #[test]
    fn ids_have_bounds() {
        let source = sources(1)[0];
        let mut load = Load::new(LEASE_MS);
        for bytes in [0, REQUEST_ID_BYTES_MAX + 1] {
            let refused = Err(LoadError::RequestId { bytes });
            assert_eq!(load.start(&"x".repeat(bytes), source, 1, 0), refused);
        }
        assert_eq!((load.requests(), load.blocks(source, 0)), (0, 0));
        let longest = "x".repeat(REQUEST_ID_BYTES_MAX);
        assert_eq!(load.start(&longest, source, 1, 0), Ok(()));
    }

    #[test]
    fn requests_have_a_bound() {
        let source = sources(1)[0];
        let mut load = Load::new(LEASE_MS);
        for request in 0..REQUESTS_MAX {
            load.start(&request.to_string(), source, 0, 0).unwrap();
        }
        let full = Err(LoadError::TooManyRequests);
        assert_eq!(load.start("one more", source, 0, 0), full);
        assert_eq!(load.start("0", source, 0, 1), Ok(()), "it is there already");
        assert!(load.finish("1"));
        assert_eq!(load.start("one more", source, 0, 2), Ok(()));
        // All but those two end together, some at a time.
        assert_eq!(load.expire(LEASE_MS), EXPIRED_AT_ONCE_MAX);
        for _ in 0..REQUESTS_MAX / EXPIRED_AT_ONCE_MAX {
            load.expire(LEASE_MS);
        }
        assert_eq!((load.requests(), load.blocks(source, LEASE_MS)), (2, 2));
    }

    #[test]
    fn a_full_book_takes_the_next_when_a_lease_ends() {
        let source = sources(1)[0];
        let mut load = Load::new(LEASE_MS);
        for request in 0..REQUESTS_MAX {
            load.start(&request.to_string(), source, 0, 0).unwrap();
        }
        assert_eq!(load.start("one more", source, 0, LEASE_MS), Ok(()));
    }

    #[test]
    fn a_clock_that_goes_back_stands() {
        let source = sources(1)[0];
        let mut load = Load::new(LEASE_MS);
        load.charge(source, 64, RECENT_HALF_LIFE_MS).unwrap();
        assert_eq!(load.blocks(source, 0), 32);
        load.charge(source, 64, 0).unwrap();
        assert_eq!(load.blocks(source, RECENT_HALF_LIFE_MS), 64);
    }

    #[test]
    fn sources_have_a_bound() {
        let view = View::default();
        let mut load = Load::new(LEASE_MS);
        let mut idle = Vec::new();
        for number in 0..SOURCES_MAX {
            let source = view.add(Namespace(1)).unwrap();
            load.start(&number.to_string(), source, 0, 0).unwrap();
            idle.push(source);
        }
        let mut changes: Vec<Change> = Vec::new();
        view.remove(idle[7], &mut changes).unwrap();
        let late = view.add(Namespace(1)).unwrap();
        let full = Err(LoadError::TooManySources);
        assert_eq!(load.start("late", late, 5, 0), full);
        assert_eq!(load.charge(late, 5, 0), full);
        assert_eq!((load.requests(), load.blocks(late, 0)), (SOURCES_MAX, 0));
        // One with nothing to do makes room.
        assert!(load.finish("7"));
        assert_eq!(load.start("late", late, 0, 0), Ok(()));
        assert_eq!(load.blocks(late, 0), 1);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Start(u8, usize, u32),
        Charge(usize, u32),
        Finish(u8),
        Remove(usize),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0_u8..12, 0_usize..3, 0_u32..40).prop_map(|(id, at, n)| Step::Start(id, at, n)),
            1 => (0_usize..3, 0_u32..40).prop_map(|(at, blocks)| Step::Charge(at, blocks)),
            2 => (0_u8..12).prop_map(Step::Finish),
            1 => (0_usize..3).prop_map(Step::Remove),
            3 => (0_u64..6_000).prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 0..80)
    }

    /// The book, with every charge ever made.
    #[derive(Default)]
    struct Twin {
        now_ms: u64,
        /// Where a request is, unless its source was removed, and until when.
        requests: BTreeMap<u8, (Option<usize>, u64)>,
        /// At which source, of how many blocks, when.
        charges: Vec<(usize, u32, u64)>,
    }

    impl Twin {
        fn take(&mut self, step: Step) {
            self.requests
                .retain(|_, (_, ends_ms)| *ends_ms > self.now_ms);
            match step {
                Step::Start(request, source, blocks) => {
                    let flight = (Some(source), self.now_ms + LEASE_MS);
                    let before = self.requests.insert(request, flight);
                    if before.is_none_or(|(at, _)| at != Some(source)) {
                        self.charges.push((source, blocks, self.now_ms));
                    }
                }
                Step::Charge(source, blocks) => self.charges.push((source, blocks, self.now_ms)),
                Step::Finish(request) => {
                    self.requests.remove(&request);
                }
                Step::Remove(source) => {
                    self.charges.retain(|charge| charge.0 != source);
                    for (at, _) in self.requests.values_mut() {
                        *at = at.filter(|&at| at != source);
                    }
                }
                Step::Wait(wait_ms) => self.now_ms += wait_ms,
            }
            self.requests
                .retain(|_, (_, ends_ms)| *ends_ms > self.now_ms);
        }

        fn blocks(&self, source: usize) -> f64 {
            let in_flight = self.requests.values().filter(|(at, _)| *at == Some(source));
            let recent = self.charges.iter().filter(|charge| charge.0 == source);
            let recent = recent.map(|&(_, blocks, at_ms)| {
                let halvings = (self.now_ms - at_ms) as f64 / RECENT_HALF_LIFE_MS as f64;
                f64::from(blocks) * RECENT_SHARE * 0.5_f64.powf(halvings)
            });
            in_flight.count() as f64 * IN_FLIGHT_BLOCKS as f64 + recent.sum::<f64>()
        }
    }

    proptest! {
        #[test]
        fn the_book_is_its_twin(steps in steps()) {
            let sources = sources(3);
            let mut load = Load::new(LEASE_MS);
            let mut twin = Twin::default();
            for step in steps {
                match step {
                    Step::Start(id, at, blocks) => {
                        load.start(&id.to_string(), sources[at], blocks, twin.now_ms).unwrap();
                    }
                    Step::Charge(at, blocks) => {
                        load.charge(sources[at], blocks, twin.now_ms).unwrap();
                    }
                    Step::Finish(id) => {
                        let was_there = twin.requests.contains_key(&id);
                        prop_assert_eq!(load.finish(&id.to_string()), was_there);
                    }
                    Step::Remove(at) => load.remove(sources[at]),
                    Step::Wait(_) => {}
                }
                twin.take(step);
                load.expire(twin.now_ms);
                prop_assert_eq!(load.requests(), twin.requests.len());
                for (at, &source) in sources.iter().enumerate() {
                    let (found, true_blocks) = (load.blocks(source, twin.now_ms), twin.blocks(at));
                    let off = f64::from(found) - true_blocks;
                    // Rounded up to a block, after down by less than a 256th of one.
                    prop_assert!((-0.01..1.0).contains(&off), "{} for {}", found, true_blocks);
                }
            }
        }
    }
}
