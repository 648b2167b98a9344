//! Random numbers that are not uniform.

use std::f64::consts::TAU;

use crate::random::Random;

/// Normal with mean 0 and variance 1 (Box and Muller 1958).
pub fn normal(random: &mut Random) -> f32 {
    // In (0, 1], so that its logarithm is finite.
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    narrow(radius * (TAU * random.unit()).cos())
}

/// Nearly normal, mean 0 and variance 1, never beyond 3.5: the sum of the four uniform numbers in
/// 64 random bits. Ten times as fast as [`normal`].
pub const fn rough_normal(random: &mut Random) -> f32 {
    const PART: u64 = 0xFFFF;
    // Of four uniform whole numbers below 2^16: the mean, and one over the deviation, 2^16 / sqrt
    // 3.
    const MEAN: f32 = 2.0 * 65_535.0;
    const INVERSE_DEVIATION: f32 = 1.732_050_8 / 65_536.0;
    let bits = random.bits();
    let sum = (bits & PART) + ((bits >> 16) & PART) + ((bits >> 32) & PART) + (bits >> 48);
    (sum as f32 - MEAN) * INVERSE_DEVIATION
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "to the precision of a draw"
)]
const fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(draw: fn(&mut Random) -> f32) {
        const DRAWS: usize = 100_000;
        let mut random = Random::new(11);
        let drawn: Vec<f64> = (0..DRAWS).map(|_| f64::from(draw(&mut random))).collect();
        let mean = drawn.iter().sum::<f64>() / DRAWS as f64;
        let variance = drawn
            .iter()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>()
            / DRAWS as f64;
        let beyond_one = drawn.iter().filter(|value| value.abs() > 1.0).count();
        assert!(mean.abs() < 0.02, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.02, "variance {variance}");
        let share = beyond_one as f64 / DRAWS as f64;
        assert!((0.30..0.34).contains(&share), "beyond 1: {share}");
    }

    #[test]
    fn both_are_normal_enough() {
        check(normal);
        check(rough_normal);
    }
}
