//! Ranks blocks by score: descending, ties by index, NaN last.

use crate::Scores;

/// The indices of `scores`, best first: by score descending, ties by index ascending, NaN after
/// everything. `-inf` is a score like any other; `-0.0` and `0.0` tie.
///
/// # Panics
/// With 2^32 scores or more.
#[must_use]
pub fn rank<T: Score>(scores: &[T]) -> Vec<u32> {
    let mut ranked = Vec::with_capacity(scores.len());
    T::rank_into(scores, &mut Scratch::default(), &mut ranked);
    ranked
}

/// Ranks each row of `scores` of shape `[rows, blocks]`; the answer has the same shape.
///
/// # Panics
/// When the scores are not whole rows of at least one block.
#[must_use]
pub fn rank_rows(scores: &Scores, blocks: usize) -> Vec<u32> {
    fn rows<T: Score>(scores: &[T], blocks: usize) -> Vec<u32> {
        let mut scratch = Scratch::default();
        let mut ranked = Vec::with_capacity(scores.len());
        for row in scores.chunks_exact(blocks) {
            T::rank_into(row, &mut scratch, &mut ranked);
        }
        ranked
    }
    assert!(
        blocks > 0 && scores.len().is_multiple_of(blocks),
        "scores are whole rows"
    );
    match scores {
        Scores::F32(scores) => rows(scores, blocks),
        Scores::F64(scores) => rows(scores, blocks),
    }
}

/// The specification of [`rank`]: a stable sort by a comparison.
///
/// # Panics
/// As [`rank`].
#[must_use]
pub fn rank_scalar<T: Score>(scores: &[T]) -> Vec<u32> {
    let mut ranked: Vec<u32> = (0..length(scores)).collect();
    ranked.sort_by(|&left, &right| {
        let [left, right] = [left, right].map(|index| scores[index as usize]);
        match (left.is_nan(), right.is_nan()) {
            (false, false) => right.partial_cmp(&left).expect("neither is NaN"),
            (left_nan, right_nan) => left_nan.cmp(&right_nan),
        }
    });
    ranked
}

/// A score that can be ranked: f32 or f64.
pub trait Score: Copy + PartialOrd + sealed::Rank {
    fn is_nan(self) -> bool;
}

impl Score for f32 {
    fn is_nan(self) -> bool {
        self.is_nan()
    }
}

impl Score for f64 {
    fn is_nan(self) -> bool {
        self.is_nan()
    }
}

/// Keys and their second buffer, kept from row to row.
#[derive(Debug, Default)]
pub struct Scratch {
    keys: Vec<u64>,
    spare: Vec<u64>,
    wide: Vec<u128>,
}

mod sealed {
    pub trait Rank: Sized {
        /// Appends the ranking of `scores` to `ranked`.
        fn rank_into(scores: &[Self], scratch: &mut super::Scratch, ranked: &mut Vec<u32>);
    }
}

/// Below this many scores a comparison sort beats the three counting passes.
const RADIX_SCORES_MIN: usize = 512;

impl sealed::Rank for f32 {
    /// Key in the upper half, index in the lower: one integer order holds the whole rule, and a
    /// counting sort of the key's three digits (it is stable) never looks at the index.
    fn rank_into(scores: &[Self], scratch: &mut Scratch, ranked: &mut Vec<u32>) {
        let Scratch {
            keys,
            spare,
            wide: _,
        } = scratch;
        keys.clear();
        keys.extend(scores.iter().zip(0..length(scores)).map(|(&score, index)| {
            u64::from(descending_key_f32(score)) << u32::BITS | u64::from(index)
        }));
        if keys.len() < RADIX_SCORES_MIN {
            keys.sort_unstable();
        } else {
            spare.resize(keys.len(), 0);
            radix_sort(keys, spare);
        }
        ranked.extend(keys.iter().map(|&key| low_half(key)));
    }
}

impl sealed::Rank for f64 {
    fn rank_into(scores: &[Self], scratch: &mut Scratch, ranked: &mut Vec<u32>) {
        let keys = &mut scratch.wide;
        keys.clear();
        keys.extend(scores.iter().zip(0..length(scores)).map(|(&score, index)| {
            u128::from(descending_key_f64(score)) << u32::BITS | u128::from(index)
        }));
        keys.sort_unstable();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lower half is the index"
        )]
        ranked.extend(keys.iter().map(|&key| key as u32));
    }
}

/// An integer that is smaller for the better score; NaN gets the largest of all.
pub(crate) fn descending_key_f32(score: f32) -> u32 {
    if score.is_nan() {
        return u32::MAX;
    }
    // Adding zero makes -0.0 positive, so that both zeros tie.
    let bits = (score + 0.0).to_bits();
    let sign = bits >> (u32::BITS - 1);
    // Positive: the larger, the smaller the key. Negative: the bits already grow downwards.
    if sign == 0 {
        !(bits | 1 << (u32::BITS - 1))
    } else {
        bits
    }
}

/// As [`descending_key_f32`].
fn descending_key_f64(score: f64) -> u64 {
    if score.is_nan() {
        return u64::MAX;
    }
    let bits = (score + 0.0).to_bits();
    let sign = bits >> (u64::BITS - 1);
    if sign == 0 {
        !(bits | 1 << (u64::BITS - 1))
    } else {
        bits
    }
}

const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 3;
const BUCKETS: usize = 1 << DIGIT_BITS;

/// Sorts by the upper 32 bits, least digit first. A digit that all keys share costs no pass:
/// scores that came from f16 or small integers have many.
fn radix_sort(keys: &mut Vec<u64>, spare: &mut Vec<u64>) {
    let mut counts = vec![[0_u32; BUCKETS]; DIGITS];
    for &key in keys.iter() {
        for (place, counts) in counts.iter_mut().enumerate() {
            counts[digit(key, place)] += 1;
        }
    }
    for (place, counts) in counts.iter_mut().enumerate() {
        if counts[digit(keys[0], place)] == length(keys) {
            continue;
        }
        let mut start = 0;
        for count in counts.iter_mut() {
            start += std::mem::replace(count, start);
        }
        for &key in keys.iter() {
            let next = &mut counts[digit(key, place)];
            spare[*next as usize] = key;
            *next += 1;
        }
        std::mem::swap(keys, spare);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "masked to a digit")]
fn digit(key: u64, place: usize) -> usize {
    (key >> (u32::BITS as usize + place * DIGIT_BITS as usize)) as usize & (BUCKETS - 1)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half is the index"
)]
fn low_half(key: u64) -> u32 {
    key as u32
}

fn length<T>(scores: &[T]) -> u32 {
    u32::try_from(scores.len()).expect("a prior has at most 2^20 blocks")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(scores: &[f32], expected: &[u32]) {
        let wide: Vec<f64> = scores.iter().copied().map(f64::from).collect();
        assert_eq!(rank(scores), expected);
        assert_eq!(rank(&wide), expected);
        assert_eq!(rank_scalar(scores), expected);
        assert_eq!(rank_scalar(&wide), expected);
    }

    #[test]
    fn best_first_then_by_index() {
        check(&[], &[]);
        check(&[0.5, 2.0, -1.0, 2.0, 0.5], &[1, 3, 0, 4, 2]);
    }

    #[test]
    fn zeros_tie_and_nan_never_wins() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        check(&[-0.0, 0.0, -0.0], &[0, 1, 2]);
        check(&[nan, -inf, inf, -nan, -f32::MAX, 0.0], &[2, 5, 4, 1, 0, 3]);
        check(&[f32::MIN_POSITIVE, 1e-45, 0.0, -1e-45], &[0, 1, 2, 3]);
    }

    #[test]
    fn rows_are_ranked_apart() {
        let rows = vec![1.0, 2.0, 3.0, 9.0, 7.0, 8.0];
        assert_eq!(rank_rows(&Scores::F32(rows), 3), [2, 1, 0, 0, 2, 1]);
        assert_eq!(
            rank_rows(&Scores::F64(vec![1.0, 1.0, 5.0, 6.0]), 2),
            [0, 1, 1, 0]
        );
    }

    /// Scores with many ties, every special value, and raw bits.
    fn scores() -> impl Strategy<Value = Vec<f32>> {
        let special = prop::sample::select(vec![
            0.0,
            -0.0,
            f32::NAN,
            -f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
            1.0,
            -1.0,
        ]);
        let score = prop_oneof![
            special,
            any::<u32>().prop_map(f32::from_bits),
            (-5_i8..5).prop_map(f32::from),
        ];
        prop_oneof![
            prop::collection::vec(score.clone(), 0..40),
            prop::collection::vec(score, RADIX_SCORES_MIN - 2..RADIX_SCORES_MIN + 300),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_its_twin(scores in scores()) {
            prop_assert_eq!(rank(&scores), rank_scalar(&scores));
            let wide: Vec<f64> = scores.iter().map(|&score| f64::from(score) / 3.0).collect();
            prop_assert_eq!(rank(&wide), rank_scalar(&wide));
        }
    }
}
