//! Workloads that a plain list by last hit fails, beside ones that it serves well; a slow twin.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;

/// Items by number, with the tick of their last hit; leased ones cannot be taken.
#[derive(Default)]
struct House {
    segments: Segments<u32>,
    twin: Twin,
    last_hit: BTreeMap<u32, u64>,
    leased: HashSet<u32>,
    tick: u64,
    capacity: usize,
}

impl House {
    fn of(capacity: usize) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    /// Whether the item is there to be hit.
    fn hit(&mut self, item: u32) -> bool {
        self.tick += 1;
        let tick = self.tick;
        self.last_hit
            .get_mut(&item)
            .map(|last_hit| *last_hit = tick)
            .is_some()
    }

    /// Makes room where there is none, and adds.
    fn add(&mut self, item: u32) {
        if self.last_hit.len() >= self.capacity {
            self.evict();
        }
        self.tick += 1;
        self.last_hit.insert(item, self.tick);
        self.segments.add(item, self.tick);
        self.twin.add(item, self.tick);
    }

    fn evict(&mut self) -> Option<u32> {
        let last_hit = |item: &u32| self.last_hit.get(item).copied();
        let take = |item: &u32| (!self.leased.contains(item)).then_some(*item);
        let victim = self.segments.next(&last_hit, take);
        assert_eq!(victim, self.twin.next(&self.last_hit, &self.leased));
        if let Some(victim) = victim {
            self.last_hit.remove(&victim);
        }
        victim
    }

    fn count(&self, items: std::ops::Range<u32>) -> usize {
        self.last_hit.range(items).count()
    }
}

/// The same rules on plain lists that are searched from end to end.
#[derive(Default)]
struct Twin {
    /// (item, last hit seen).
    probation: Vec<(u32, u64)>,
    /// (item, last hit seen, credit).
    protected: Vec<(u32, u64, u8)>,
    due: usize,
}

impl Twin {
    fn add(&mut self, item: u32, tick: u64) {
        self.probation.push((item, tick));
    }

    fn next(&mut self, last_hit: &BTreeMap<u32, u64>, leased: &HashSet<u32>) -> Option<u32> {
        self.due += self.protected.len();
        while self.due > self.probation.len() + self.protected.len() {
            self.due -= self.probation.len() + self.protected.len();
            self.look(last_hit);
        }
        let mut refused = HashSet::new();
        loop {
            let all = self.probation.len() + self.protected.len();
            let is_short = self.probation.len() * PROBATION_SHARE <= all;
            let oldest = (0..self.probation.len())
                .filter(|&at| !refused.contains(&self.probation[at].0))
                .min_by_key(|&at| self.probation[at].1);
            if (is_short || oldest.is_none()) && !self.protected.is_empty() {
                self.look(last_hit);
                continue;
            }
            let (item, seen) = self.probation[oldest?];
            if leased.contains(&item) && last_hit.get(&item) == Some(&seen) {
                refused.insert(item);
                continue;
            }
            self.probation.remove(oldest?);
            match last_hit.get(&item) {
                None => {}
                Some(&hit) if hit > seen => self.protected.push((item, hit, CREDIT_AT_FIRST)),
                Some(_) => return Some(item),
            }
        }
    }

    fn look(&mut self, last_hit: &BTreeMap<u32, u64>) {
        if self.protected.is_empty() {
            return;
        }
        let (item, seen, credit) = self.protected.remove(0);
        match last_hit.get(&item) {
            None => {}
            Some(&hit) if hit > seen => {
                let credit = (credit + CREDIT_PER_HIT).min(CREDIT_MAX);
                self.protected.push((item, hit, credit));
            }
            Some(_) if credit > 0 => self.protected.push((item, seen, credit - 1)),
            Some(_) => self.probation.push((item, seen)),
        }
    }
}

/// Numbers that look random: a fixed sequence.
fn draws() -> impl FnMut(u32) -> u32 {
    let mut state = 7_u64;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((state >> 33) % u64::from(below)).unwrap()
    }
}

const HOT: u32 = 100;

/// A house of 200 with `HOT` items, of which one is hit at random for each one-off item.
fn house_with_hot_ones(one_offs: u32) -> House {
    let mut house = House::of(200);
    let mut draw = draws();
    (0..HOT).for_each(|item| house.add(item));
    for one_off in 0..one_offs {
        house.hit(draw(HOT));
        house.add(10_000 + one_off);
    }
    house
}

#[test]
fn one_off_items_do_not_push_out_what_is_hit() {
    let house = house_with_hot_ones(10_000);
    // By last hit alone none would be left after two thousand: a third goes before it is hit.
    let left = house.count(0..HOT);
    assert!(left >= 65, "{left} of {HOT}");
    assert!(left >= house_with_hot_ones(1_000).count(0..HOT) - 5);
    let mut house = House::of(200);
    (0..HOT).for_each(|item| house.add(item));
    for one_off in 0..10_000 {
        assert!(house.hit(one_off % HOT), "hit in turn, none is ever lost");
        house.add(10_000 + one_off);
    }
}

#[test]
fn what_is_no_longer_hit_goes() {
    let mut house = house_with_hot_ones(2_000);
    assert!(house.count(0..HOT) > 50);
    for one_off in 0..3_000 {
        house.add(50_000 + one_off);
    }
    assert_eq!(house.count(0..HOT), 0);
}

#[test]
fn other_items_take_the_place_of_what_was_hot() {
    let mut house = house_with_hot_ones(2_000);
    let mut draw = draws();
    let (mut hits, mut asked) = (0, 0);
    for one_off in 0..8_000 {
        let item = 90_000 + draw(HOT);
        let is_hit = house.hit(item);
        // Who misses it registers it.
        if !is_hit {
            house.add(item);
        }
        if one_off >= 4_000 {
            asked += 1;
            hits += usize::from(is_hit);
        }
        house.add(50_000 + one_off);
    }
    assert!(hits * 100 >= asked * 95, "{hits} of {asked}");
    assert_eq!(house.count(0..HOT), 0);
}

#[test]
fn a_new_item_that_is_hit_soon_and_again_stays() {
    let mut house = house_with_hot_ones(2_000);
    house.add(7_777);
    let mut draw = draws();
    for one_off in 0..4_000 {
        house.hit(draw(HOT));
        if one_off % 40 == 20 {
            assert!(house.hit(7_777), "after {one_off}");
        }
        house.add(50_000 + one_off);
    }
}

#[test]
fn conversations_that_hit_each_turn_once_are_kept_as_by_last_hit() {
    // Each turn hits the one before it, once: of two hundred by last hit a hundred live.
    const CONVERSATIONS: u32 = 95;
    let mut house = House::of(200);
    for turn in 0..40 {
        for conversation in 0..CONVERSATIONS {
            let item = turn * CONVERSATIONS + conversation;
            if turn > 0 {
                let before = item - CONVERSATIONS;
                assert!(house.hit(before), "turn {turn} of {conversation}");
            }
            house.add(item);
        }
    }
}

#[test]
fn leased_items_stay_and_when_all_are_leased_nothing_goes() {
    let mut house = House::of(8);
    house.leased = (0..8).collect();
    (0..8).for_each(|item| house.add(item));
    assert_eq!(house.evict(), None);
    assert_eq!(house.segments.len(), 8);
    house.leased.remove(&3);
    assert_eq!(house.evict(), Some(3));
    house.leased.clear();
    assert_eq!(house.evict(), Some(0));
}

#[test]
fn an_entry_takes_at_most_forty_bytes() {
    let mut segments = Segments::default();
    let donors = 100_000;
    for tick in 0..donors {
        segments.add((Weak::<Donor>::new(), Weak::<Shard>::new()), tick);
    }
    let entry = size_of::<Entry<(Weak<Donor>, Weak<Shard>)>>();
    let held = (segments.probation.capacity() + segments.protected.capacity()) * entry;
    // A quarter more entries than donors may have gone and not been dropped yet.
    let bytes = held * 5 / 4 / usize::try_from(donors).unwrap();
    assert!(bytes <= 40, "{bytes}");
}

proptest! {
    #[test]
    fn agrees_with_the_twin(
        steps in prop::collection::vec((0_u8..6, 0_u32..200), 0..400),
        capacity in 1_usize..20,
    ) {
        let mut house = House::of(capacity);
        let mut added = 0;
        for (step, some) in steps {
            let item = some % (added + 1);
            match step {
                0 | 1 => {
                    house.hit(item);
                }
                2 => {
                    if !house.leased.remove(&item) {
                        house.leased.insert(item);
                    }
                }
                // Removed by its owner: the entry is found to be of nobody.
                3 => {
                    house.last_hit.remove(&item);
                }
                _ => {
                    house.add(added);
                    added += 1;
                }
            }
        }
    }

    #[test]
    fn retaining_drops_what_has_gone(gone in prop::collection::hash_set(0_u32..50, 0..50)) {
        let mut house = house_with_hot_ones(300);
        house.last_hit.retain(|item, _| !gone.contains(item));
        house.segments.retain(|item| house.last_hit.contains_key(item));
        prop_assert_eq!(house.segments.len(), house.last_hit.len());
    }
}
