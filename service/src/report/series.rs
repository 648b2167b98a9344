//! Look-ups over time, in bounded memory: slots widen as the time that they cover grows.

use std::collections::BTreeMap;

use super::tally::Merge;

/// Slots that are kept at most.
const SLOTS_MAX: usize = 2_048;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
/// How wide slots can be: widths that people count in, each a multiple of the one before.
const WIDTHS_MS: [u64; 14] = [
    1_000,
    5_000,
    15_000,
    MINUTE_MS,
    5 * MINUTE_MS,
    15 * MINUTE_MS,
    30 * MINUTE_MS,
    HOUR_MS,
    3 * HOUR_MS,
    6 * HOUR_MS,
    DAY_MS,
    7 * DAY_MS,
    28 * DAY_MS,
    364 * DAY_MS,
];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slot {
    pub prefix: u64,
    pub spans: u64,
    pub miss: u64,
}

impl Slot {
    #[must_use]
    pub fn total(&self) -> u64 {
        self.prefix + self.spans + self.miss
    }
}

impl Merge for Slot {
    fn merge(&mut self, other: &Self) {
        self.prefix += other.prefix;
        self.spans += other.spans;
        self.miss += other.miss;
    }
}

/// What happened in each slot of time.
#[derive(Debug, Clone)]
pub struct Series {
    width_ms: u64,
    slots: BTreeMap<u64, Slot>,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            width_ms: WIDTHS_MS[0],
            slots: BTreeMap::new(),
        }
    }
}

impl Series {
    pub fn at(&mut self, at_ms: u64) -> &mut Slot {
        if self.slots.len() >= SLOTS_MAX && !self.slots.contains_key(&(at_ms / self.width_ms)) {
            self.widen(wider(self.width_ms));
        }
        self.slots.entry(at_ms / self.width_ms).or_default()
    }

    /// Equal slots, at most `most`, from the first to the last that holds anything: when each
    /// begins, how wide all are, and what they hold, the empty ones between included.
    #[must_use]
    pub fn spread(&self, most: u64) -> (u64, u64, Vec<Slot>) {
        let (Some((first, _)), Some((last, _))) =
            (self.slots.first_key_value(), self.slots.last_key_value())
        else {
            return (0, self.width_ms, Vec::new());
        };
        let (first_ms, last_ms) = (first * self.width_ms, last * self.width_ms);
        let mut width_ms = self.width_ms;
        while last_ms / width_ms - first_ms / width_ms >= most.max(1) {
            width_ms = wider(width_ms);
        }
        let from = first_ms / width_ms;
        let count = last_ms / width_ms - from + 1;
        let mut spread: Vec<Slot> = (0..count).map(|_| Slot::default()).collect();
        for (place, slot) in &self.slots {
            let place = place * self.width_ms / width_ms - from;
            if let Some(into) = usize::try_from(place)
                .ok()
                .and_then(|at| spread.get_mut(at))
            {
                into.merge(slot);
            }
        }
        (from * width_ms, width_ms, spread)
    }

    // Until what is there fits.
    fn widen(&mut self, width_ms: u64) {
        let by = width_ms / self.width_ms;
        let mut merged = BTreeMap::<u64, Slot>::new();
        for (place, slot) in &self.slots {
            merged.entry(place / by).or_default().merge(slot);
        }
        self.slots = merged;
        self.width_ms = width_ms;
        if self.slots.len() >= SLOTS_MAX {
            self.widen(wider(width_ms));
        }
    }
}

// The next width; beyond the widest, twice as wide.
fn wider(width_ms: u64) -> u64 {
    let next = WIDTHS_MS.into_iter().find(|width| *width > width_ms);
    next.unwrap_or_else(|| width_ms.saturating_mul(2))
}

impl Merge for Series {
    fn merge(&mut self, other: &Self) {
        if other.width_ms > self.width_ms {
            self.widen(other.width_ms);
        }
        for (place, slot) in &other.slots {
            self.at(place * other.width_ms).merge(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times_ms: &[u64]) -> Series {
        let mut series = Series::default();
        for at_ms in times_ms {
            series.at(*at_ms).miss += 1;
        }
        series
    }

    // When the first slot begins, how wide each is, and the counts.
    fn check(times_ms: &[u64], most: u64, expected: (u64, u64, &[u64])) {
        let (from_ms, width_ms, slots) = of(times_ms).spread(most);
        let counts: Vec<u64> = slots.iter().map(Slot::total).collect();
        assert_eq!((from_ms, width_ms, counts.as_slice()), expected);
    }

    #[test]
    fn slots_are_as_narrow_as_fit() {
        check(&[], 10, (0, 1_000, &[]));
        check(&[1_500, 1_900, 3_000], 10, (1_000, 1_000, &[2, 0, 1]));
        check(&[1_500, 1_900, 3_000], 3, (1_000, 1_000, &[2, 0, 1]));
        check(&[1_500, 1_900, 3_000], 2, (0, 5_000, &[3]));
        check(&[4_999, 5_000], 1, (0, 15_000, &[2]));
    }

    #[test]
    fn whatever_the_time_covered_memory_is_bounded_and_nothing_is_lost() {
        let times: Vec<u64> = (0..10_000).map(|at| at * at * 7_919).collect();
        let series = of(&times);
        assert!(series.slots.len() <= SLOTS_MAX);
        let (_, _, slots) = series.spread(60);
        assert!(slots.len() <= 60);
        assert_eq!(slots.iter().map(Slot::total).sum::<u64>(), 10_000);
        // Clocks that are wrong by any number of years.
        let (_, _, slots) = of(&[0, u64::MAX]).spread(60);
        assert_eq!(slots.iter().map(Slot::total).sum::<u64>(), 2);
    }

    #[test]
    fn halves_merge_to_the_whole() {
        let times: Vec<u64> = (0..5_000).map(|at| at * 991).collect();
        let (early, late) = times.split_at(100);
        for (one, other) in [(early, late), (late, early)] {
            let mut merged = of(one);
            merged.merge(&of(other));
            assert_eq!(merged.spread(60), of(&times).spread(60));
        }
    }
}
