//! The best blocks of a range.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::rank::descending_key_f32;

/// The `k` best-scored blocks of `among`, best first; a tie goes to the smaller index. NaN never
/// wins against a number.
///
/// # Panics
/// When the range reaches beyond the scores, or beyond `u32`.
#[must_use]
pub fn best(scores: &[f32], among: Range<usize>, k: usize) -> Vec<u32> {
    if k == 0 || among.is_empty() {
        return Vec::new();
    }
    let count = among.len();
    let first = u32::try_from(among.start).expect(COUNTED);
    let _last = u32::try_from(among.end - 1).expect(COUNTED);
    // Score above, index below: one integer order holds the whole rule, the smaller the better.
    let keys = scores[among].iter().zip(first..).map(|(&score, block)| {
        u64::from(descending_key_f32(score)) << u32::BITS | u64::from(block)
    });
    // The worst of the best so far is on top.
    let mut kept = BinaryHeap::with_capacity(k.min(count));
    for key in keys {
        if kept.len() < k {
            kept.push(key);
        } else if let Some(mut worst) = kept.peek_mut()
            && key < *worst
        {
            *worst = key;
        }
    }
    kept.into_sorted_vec().into_iter().map(block_of).collect()
}

/// The specification of [`best`]: sort all, take `k`.
///
/// # Panics
/// As [`best`].
#[must_use]
pub fn best_scalar(scores: &[f32], among: Range<usize>, k: usize) -> Vec<u32> {
    let mut order: Vec<usize> = among.collect();
    order.sort_by(|&left, &right| descending(scores[left], scores[right]).then(left.cmp(&right)));
    order.truncate(k);
    let narrow = |block: usize| u32::try_from(block).expect(COUNTED);
    order.into_iter().map(narrow).collect()
}

const COUNTED: &str = "blocks are counted in u32";

fn descending(left: f32, right: f32) -> Ordering {
    match (left.is_nan(), right.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        // -0 and 0 are the same score.
        (false, false) => (right + 0.0).total_cmp(&(left + 0.0)),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half is the block"
)]
fn block_of(key: u64) -> u32 {
    key as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(scores: &[f32], among: Range<usize>, k: usize, expected: &[u32]) {
        assert_eq!(best(scores, among.clone(), k), expected);
        assert_eq!(best_scalar(scores, among, k), expected);
    }

    #[test]
    fn best_first_and_ties_by_index() {
        let scores = [1.0, 5.0, -0.0, 5.0, 0.0, f32::NEG_INFINITY, 7.0];
        check(&scores, 0..7, 3, &[6, 1, 3]);
        check(&scores, 2..6, 2, &[3, 2]);
        check(&scores, 2..6, 99, &[3, 2, 4, 5]);
        check(&scores, 0..7, 0, &[]);
        check(&scores, 3..3, 4, &[]);
    }

    #[test]
    fn nan_never_wins() {
        let scores = [f32::NAN, f32::NEG_INFINITY, -f32::NAN, f32::INFINITY];
        check(&scores, 0..4, 4, &[3, 1, 0, 2]);
        check(&scores, 0..4, 2, &[3, 1]);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_range_beyond_the_scores_is_a_bug_of_the_caller() {
        let _ = best(&[1.0; 4], 2..5, 1);
    }

    fn scores() -> impl Strategy<Value = Vec<f32>> {
        let score = prop_oneof![
            any::<f32>(),
            any::<u32>().prop_map(f32::from_bits),
            (-3_i8..3).prop_map(f32::from),
        ];
        prop::collection::vec(score, 0..120)
    }

    proptest! {
        #[test]
        fn agrees_with_its_twin(
            scores in scores(),
            start in 0_usize..120,
            len in 0_usize..120,
            k in 0_usize..40,
        ) {
            let start = start.min(scores.len());
            let among = start..(start + len).min(scores.len());
            prop_assert_eq!(best(&scores, among.clone(), k), best_scalar(&scores, among, k));
        }
    }
}
