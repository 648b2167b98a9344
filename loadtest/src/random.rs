//! Reproducible randomness: the same seed gives the same run on every machine.

use std::ops::RangeInclusive;

/// `SplitMix64` (Steele, Lea, Flood 2014): small, fast, and good enough to draw test data.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator that depends on `seed` alone.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator of its own for one purpose, so that drawing more for one leaves the others be.
    #[must_use]
    pub fn branch(&self, purpose: u64) -> Self {
        Self(mix(self.0 ^ mix(purpose.wrapping_add(1))))
    }

    /// The next 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Uniform in `0..bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let product = u128::from(self.bits()) * bound as u128;
        usize::try_from(product >> 64).expect("the high half is below the bound")
    }

    /// Uniform in `0..bound`; 0 for a bound of 0.
    pub fn below_u32(&mut self, bound: u32) -> u32 {
        let product = u128::from(self.bits()) * u128::from(bound);
        u32::try_from(product >> 64).expect("the high half is below the bound")
    }

    /// Uniform in the range, both ends included.
    pub fn within(&mut self, range: &RangeInclusive<usize>) -> usize {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// Uniform in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        const SCALE: f64 = (1_u64 << 53) as f64;
        (self.bits() >> 11) as f64 / SCALE
    }

    /// Fisher-Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// The finalizer of `SplitMix64`.
const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// Draws ranks `0..count` with a probability that falls as `1 / (rank + 1)^exponent`.
#[derive(Debug, Clone)]
pub struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    /// The distribution over `0..count`.
    #[must_use]
    pub fn new(count: usize, exponent: f64) -> Self {
        let mut total = 0.0;
        let cumulative = (0..count)
            .map(|rank| {
                total += (rank as f64 + 1.0).powf(-exponent);
                total
            })
            .collect();
        Self { cumulative }
    }

    /// One rank; 0 when there are none.
    pub fn draw(&self, random: &mut Random) -> usize {
        let Some(total) = self.cumulative.last() else {
            return 0;
        };
        let at = random.unit() * total;
        self.cumulative
            .partition_point(|&upto| upto <= at)
            .min(self.cumulative.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        // The first outputs of the reference implementation for the seed 1234567.
        let mut random = Random::new(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(drawn, published);
    }

    #[test]
    fn draws_stay_in_range_and_reach_both_ends() {
        let mut random = Random::new(7);
        let drawn: Vec<usize> = (0..1000).map(|_| random.within(&(10..=12))).collect();
        assert!(drawn.iter().all(|value| (10..=12).contains(value)));
        assert!((10..=12).all(|value| drawn.contains(&value)));
    }

    #[test]
    fn zipf_prefers_low_ranks_as_its_exponent_says() {
        let zipf = Zipf::new(100, 0.8);
        let mut random = Random::new(3);
        let mut counts = [0_u32; 100];
        for _ in 0..100_000 {
            counts[zipf.draw(&mut random)] += 1;
        }
        let ratio = f64::from(counts[0]) / f64::from(counts[15]);
        // (16 / 1)^0.8 = 9.2
        assert!((8.0..10.5).contains(&ratio), "rank 0 against 15: {ratio}");
    }
}
