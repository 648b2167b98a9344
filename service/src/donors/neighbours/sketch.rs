//! A prompt's token sketch: where its vocabulary lies, without text and without a model.
//!
//! Every distinct token has a pseudorandom sign in each dimension; a sketch is the sum of its
//! tokens' signs, weighted, so that the cosine of two sketches estimates how much weight their
//! vocabularies share (random projection: Charikar, "Similarity estimation techniques from
//! rounding algorithms", 2002; the sums here keep more than their sign).

use kvatlas_kernels::{SIGNS_LANES, Signed, add_signed};

use super::{super::seeds::count_u32, vector::Vector};

/// Dimensions of a sketch.
pub const SKETCH_DIMENSIONS: usize = 192;
/// Tokens that are read; of a longer prompt the first.
pub const SKETCH_TOKENS_MAX: usize = 1 << 16;

/// Words whose bits are a token's signs.
const WORDS: usize = SKETCH_DIMENSIONS / SIGNS_LANES;
const _: () = assert!(SKETCH_DIMENSIONS.is_multiple_of(SIGNS_LANES));
/// The first token that is as rare as a token can be, and what it counts that stands there once.
const RAREST: u32 = 2_055;
const RAREST_ONCE: u8 = 30;

/// The sketch of a prompt; `None` when it has no tokens.
#[must_use]
pub fn sketch(tokens: &[u32]) -> Option<Vector> {
    let counted = count(&tokens[..tokens.len().min(SKETCH_TOKENS_MAX)]);
    let terms: Vec<Signed<WORDS>> = counted
        .iter()
        .map(|&(token, count)| (signs(token), weight(token, count)))
        .collect();
    let mut sums = [[0; SIGNS_LANES]; WORDS];
    add_signed(&terms, &mut sums);
    #[expect(clippy::cast_precision_loss, reason = "at most 2^24")]
    let values = sums.as_flattened().iter().map(|&sum| sum as f32);
    Vector::new(&values.collect::<Vec<_>>())
}

/// Every distinct token, and how often it stands there.
fn count(tokens: &[u32]) -> Vec<(u32, u32)> {
    let cells = (tokens.len() * 2).next_power_of_two().max(2);
    let shift = u32::BITS - cells.ilog2();
    // 1 + the token's place in `counted`; 0 is none.
    let mut places = vec![0_u32; cells];
    let mut counted: Vec<(u32, u32)> = Vec::with_capacity(tokens.len());
    for &token in tokens {
        let mut at = (token.wrapping_mul(0x9e37_79b1) >> shift) as usize;
        loop {
            let place = places[at] as usize;
            match place.checked_sub(1).map(|place| &mut counted[place]) {
                Some((known, count)) if *known == token => *count += 1,
                Some(_) => {
                    at = (at + 1) % cells;
                    continue;
                }
                None => {
                    counted.push((token, 1));
                    places[at] = count_u32(counted.len());
                }
            }
            break;
        }
    }
    counted
}

/// What a token counts that stands in the prompt so often.
///
/// Its rarity is told by its number: vocabularies are numbered in the order in which they were
/// learned, frequent pieces first. Where that does not hold, rarity is a random factor between
/// bounds, and the sketch as good as one without. Frequencies counted among the donors would
/// change with every donor, so that sketches of different days could not be compared; and tokens
/// that are in no other donor, which then weigh most, say nothing about which donor is near.
fn weight(token: u32, count: u32) -> u8 {
    const UNIT: f32 = 12.0;
    const COMMON_TOKENS: f32 = 256.0;
    const RARITY_LEAST: f32 = 0.3;
    const RARITY_MOST: f32 = 2.5;
    // Most of a prompt's distinct tokens, without a logarithm.
    if token >= RAREST && count == 1 {
        return RAREST_ONCE;
    }
    #[expect(clippy::cast_precision_loss, reason = "a weight needs few digits")]
    let (token, count) = (token as f32, count as f32);
    let rarity = ((token / COMMON_TOKENS).ln_1p() + RARITY_LEAST).min(RARITY_MOST);
    let weight = UNIT * rarity * (1.0 + count.ln());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "cut to a byte's range"
    )]
    let weight = weight.round().min(f32::from(u8::MAX)) as u8;
    weight
}

/// A token's signs: set bits are plus.
fn signs(token: u32) -> [u64; WORDS] {
    std::array::from_fn(|word| mix(u64::from(token) | (word as u64) << u32::BITS))
}

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
        let mut counts = std::collections::BTreeMap::<u32, u32>::new();
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

    #[test]
    fn the_rarest_tokens_weigh_what_the_formula_gives() {
        let once = |token: u32| (12.0 * ((token as f32 / 256.0).ln_1p() + 0.3).min(2.5)).round();
        for token in (0..6_000).chain([100_000, u32::MAX]) {
            let off = f32::from(weight(token, 1)) - once(token);
            assert!(off.abs() < 0.5, "{token}: {off}");
        }
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
        assert_eq!(weight(u32::MAX, u32::MAX), u8::MAX);
    }
}
