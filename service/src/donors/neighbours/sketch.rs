//! A prompt's token sketch: where its vocabulary lies, without text and without a model.
//!
//! Every distinct token has a pseudorandom sign in each dimension; a sketch is the sum of its
//! tokens' signs, weighted, so that the cosine of two sketches estimates how much weight their
//! vocabularies share (random projection: Charikar, "Similarity estimation techniques from
//! rounding algorithms", 2002; the sums here keep more than their sign).

use super::vector::Vector;

/// Dimensions of a sketch.
pub const SKETCH_DIMENSIONS: usize = 192;
/// Tokens that are read; of a longer prompt the first.
pub const SKETCH_TOKENS_MAX: usize = 1 << 16;

/// A sum of signs has this many lanes at a time: one byte of a token's hash.
const LANES: usize = 8;
/// The largest weight of a token, and how many of them an `i16` can add up.
const WEIGHT_MAX: i16 = 255;
const BLOCK_TOKENS: usize = 128;
const _: () = assert!(WEIGHT_MAX as usize * BLOCK_TOKENS <= i16::MAX as usize);
const _: () = assert!(SKETCH_DIMENSIONS.is_multiple_of(u64::BITS as usize));

type Sums<T> = [[T; LANES]; SKETCH_DIMENSIONS / LANES];

/// The sketch of a prompt; `None` when it has no tokens.
#[must_use]
pub fn sketch(tokens: &[u32]) -> Option<Vector> {
    let mut sorted = tokens[..tokens.len().min(SKETCH_TOKENS_MAX)].to_vec();
    sorted.sort_unstable();
    let distinct: Vec<&[u32]> = sorted.chunk_by(|a, b| a == b).collect();
    let mut sums: Sums<i32> = [[0; LANES]; SKETCH_DIMENSIONS / LANES];
    for block in distinct.chunks(BLOCK_TOKENS) {
        let mut part: Sums<i16> = [[0; LANES]; SKETCH_DIMENSIONS / LANES];
        for same in block {
            add(&mut part, same[0], weight(same[0], same.len()));
        }
        for (sum, part) in sums.as_flattened_mut().iter_mut().zip(part.as_flattened()) {
            *sum += i32::from(*part);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "at most 2^24")]
    let values = sums.as_flattened().iter().map(|&sum| sum as f32);
    Vector::new(&values.collect::<Vec<_>>())
}

/// What a token counts that stands in the prompt so often.
///
/// Its rarity is told by its number: vocabularies are numbered in the order in which they were
/// learned, frequent pieces first. Where that does not hold, rarity is a random factor between
/// bounds, and the sketch as good as one without. Frequencies counted among the donors would
/// change with every donor, so that sketches of different days could not be compared; and tokens
/// that are in no other donor, which then weigh most, say nothing about which donor is near.
fn weight(token: u32, count: usize) -> i16 {
    const UNIT: f32 = 12.0;
    const COMMON_TOKENS: f32 = 256.0;
    const RARITY_LEAST: f32 = 0.3;
    const RARITY_MOST: f32 = 2.5;
    #[expect(clippy::cast_precision_loss, reason = "a weight needs few digits")]
    let (token, count) = (token as f32, count as f32);
    let rarity = ((token / COMMON_TOKENS).ln_1p() + RARITY_LEAST).min(RARITY_MOST);
    let weight = UNIT * rarity * (1.0 + count.ln());
    #[expect(clippy::cast_possible_truncation, reason = "cut to a byte's range")]
    let weight = weight.round().min(f32::from(WEIGHT_MAX)) as i16;
    weight
}

/// Adds the token's signs, times its weight.
fn add(sums: &mut Sums<i16>, token: u32, weight: i16) {
    let words = sums.as_chunks_mut::<{ u64::BITS as usize / LANES }>().0;
    for (word, sums) in (0..).zip(words) {
        let signs = mix(u64::from(token) | word << u32::BITS).to_le_bytes();
        for (sums, byte) in sums.iter_mut().zip(signs) {
            for (sum, sign) in sums.iter_mut().zip(SIGNS[usize::from(byte)]) {
                *sum += sign * weight;
            }
        }
    }
}

/// The signs that the bits of a byte stand for.
static SIGNS: [[i16; LANES]; 256] = {
    let mut signs = [[1; LANES]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut bit = 0;
        while bit < LANES {
            if byte >> bit & 1 == 0 {
                signs[byte][bit] = -1;
            }
            bit += 1;
        }
        byte += 1;
    }
    signs
};

/// Splitmix64: every bit of the result depends on every bit of the number.
fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As one would write it down.
    fn slow_sketch(tokens: &[u32]) -> Option<Vector> {
        let mut counts = std::collections::BTreeMap::<u32, usize>::new();
        for &token in tokens {
            *counts.entry(token).or_default() += 1;
        }
        let value = |dimension: usize| {
            let signed = counts.iter().map(|(&token, &count)| {
                let word = (dimension / 64) as u64;
                let bit = mix(u64::from(token) | word << 32) >> (dimension % 64) & 1;
                let weight = f32::from(weight(token, count));
                if bit == 1 { weight } else { -weight }
            });
            signed.sum::<f32>()
        };
        Vector::new(&(0..SKETCH_DIMENSIONS).map(value).collect::<Vec<_>>())
    }

    proptest! {
        #[test]
        fn it_is_the_weighted_sum_of_the_signs_in_any_order(
            mut tokens in prop::collection::vec(
                prop_oneof![0_u32..50, 0_u32..200_000, any::<u32>()], 0..600,
            ),
        ) {
            let made = sketch(&tokens);
            prop_assert_eq!(&made, &slow_sketch(&tokens));
            tokens.reverse();
            prop_assert_eq!(made, sketch(&tokens));
        }
    }

    #[test]
    fn no_tokens_have_no_sketch_and_heavy_ones_do_not_overflow() {
        assert_eq!(sketch(&[]), None);
        // All of them rare and so often that their weights are the largest.
        let tokens: Vec<u32> = (1..=400).flat_map(|i| [i * 1_000_003; 300]).collect();
        let heavy = &tokens[..SKETCH_TOKENS_MAX];
        assert_eq!(sketch(heavy), slow_sketch(heavy));
        assert_eq!(sketch(&tokens), sketch(heavy), "the rest is not read");
    }

    #[test]
    fn rare_and_frequent_tokens_weigh_more_within_bounds() {
        assert!(weight(13, 1) >= 3, "even the commonest counts");
        assert!(weight(100_000, 1) > 5 * weight(13, 1));
        assert_eq!(weight(100_000, 1), weight(200_000, 1), "rarity has a most");
        assert!(weight(13, 40) > weight(13, 1));
        assert!(
            weight(13, 40) < weight(13, 1) * 6,
            "far less than in proportion"
        );
        assert_eq!(weight(u32::MAX, usize::MAX), WEIGHT_MAX);
    }
}
