//! Chance that a seed decides: the same seed, the same schedule.

/// A stream of words (splitmix64).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed);
        // Mixed, since the streams of neighbouring seeds would overlap.
        Self(random.word())
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Less than `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.word() % bound as u64).unwrap()
    }

    /// One of `from..=to`.
    pub(crate) fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to + 1 - from)
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.word() % 100 < chance
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| &from[self.below(from.len())])
    }

    /// One of these, each as often as its weight says.
    pub(crate) fn weighed<T: Copy>(&mut self, choices: &[(u32, T)]) -> T {
        let all: u32 = choices.iter().map(|(weight, _)| weight).sum();
        let mut left = u32::try_from(self.word() % u64::from(all)).unwrap();
        for &(weight, choice) in choices {
            if left < weight {
                return choice;
            }
            left -= weight;
        }
        unreachable!("less than the sum is left")
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}
