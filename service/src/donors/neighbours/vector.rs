//! A vector of unit length at a byte a dimension: what neighbours are told by.

use kvatlas_kernels::Dot8;

/// Most dimensions; text models have 384 to 1,024.
pub const DIMENSIONS_MAX: usize = 4_096;
/// Standard deviations of an even unit vector's elements that the largest byte stands for. The
/// rounding then costs a ten-thousandth of a cosine, and what lies beyond is cut.
const DEVIATIONS: f32 = 5.0;
const LARGEST: f32 = 127.0;

/// A direction. It is finite and not zero: only [`Vector::new`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vector(Box<[i8]>);

impl Vector {
    /// The direction of these values, which need not have unit length. `None` when there is none:
    /// no values, more than [`DIMENSIONS_MAX`], all zero, or one that is not finite.
    #[must_use]
    pub fn new(values: &[f32]) -> Option<Vector> {
        if values.len() > DIMENSIONS_MAX {
            return None;
        }
        let square: f64 = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        if !square.is_finite() || square <= 0.0 {
            return None;
        }
        let scale = f64::from(length(values.len())) / square.sqrt();
        let bytes: Box<[i8]> = values.iter().map(|&v| byte(f64::from(v) * scale)).collect();
        // Only where one value outweighs all others by far and is cut could nothing be left.
        bytes.iter().any(|&b| b != 0).then_some(Vector(bytes))
    }

    /// Takes over bytes that an earlier vector was stored as.
    pub(super) fn stored(bytes: &[i8]) -> Vector {
        Vector(bytes.into())
    }

    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn bytes(&self) -> &[i8] {
        &self.0
    }

    /// The cosine of the angle between two vectors of one space, to within a hundredth.
    #[must_use]
    pub fn cosine(&self, other: &Vector) -> f32 {
        cosine(Dot8::best().dot(&self.0, &other.0), self.0.len())
    }
}

/// The cosine that a product of two vectors' bytes stands for.
#[expect(
    clippy::cast_precision_loss,
    reason = "a product of bytes needs no more digits than a cosine"
)]
pub(super) fn cosine(product: i32, dimensions: usize) -> f32 {
    let length = length(dimensions);
    (product as f32 / (length * length)).clamp(-1.0, 1.0)
}

/// The length of every vector's bytes.
#[expect(clippy::cast_precision_loss, reason = "dimensions are far below 2^24")]
fn length(dimensions: usize) -> f32 {
    LARGEST / DEVIATIONS * (dimensions as f32).sqrt()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "rounded and cut to a byte's range"
)]
fn byte(value: f64) -> i8 {
    value.round().clamp(-f64::from(LARGEST), f64::from(LARGEST)) as i8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_has_no_direction_is_refused() {
        let long = vec![1.0; DIMENSIONS_MAX + 1];
        let refused: [&[f32]; 7] = [
            &[],
            &[0.0, 0.0],
            &[-0.0],
            &[1.0, f32::NAN],
            &[f32::INFINITY, 1.0],
            &[1.0, f32::NEG_INFINITY],
            &long,
        ];
        for values in refused {
            assert_eq!(Vector::new(values), None, "{:?}", values.first());
        }
        assert!(Vector::new(&long[1..]).is_some());
        assert!(Vector::new(&[f32::MAX; 8]).is_some(), "no overflow");
        assert!(
            Vector::new(&[f32::MIN_POSITIVE; 8]).is_some(),
            "no underflow"
        );
    }

    fn even(seed: u64, dimensions: usize) -> Vec<f32> {
        let mut state = seed;
        let mut draw = || {
            state = state
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            f32::from(i16::try_from(state >> 49).unwrap_or(0)) / 16_384.0 - 1.0
        };
        (0..dimensions).map(|_| draw() + draw() + draw()).collect()
    }

    proptest! {
        #[test]
        fn cosines_are_those_of_the_floats(
            a in any::<u64>(), b in any::<u64>(), mix in 0.0_f32..1.0, scale in 1e-6_f32..1e6,
        ) {
            let (x, other) = (even(a, 192), even(b, 192));
            let mixed = x.iter().zip(&other).map(|(x, o)| x * mix + o * (1.0 - mix));
            let y: Vec<f32> = mixed.collect();
            let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
            let wanted = dot(&x, &y) / (dot(&x, &x) * dot(&y, &y)).sqrt();
            let scaled: Vec<f32> = y.iter().map(|y| y * scale).collect();
            let (x, y) = (Vector::new(&x).unwrap(), Vector::new(&scaled).unwrap());
            prop_assert!((x.cosine(&y) - wanted).abs() < 0.01, "{} {wanted}", x.cosine(&y));
        }
    }
}
