//! The best blocks of a range.

use std::cmp::Ordering;
use std::ops::Range;

/// The `k` best-scored blocks of `among`, best first; a tie goes to the smaller index. NaN never
/// wins against a number.
#[must_use]
pub fn best(scores: &[f32], among: Range<usize>, k: usize) -> Vec<u32> {
    best_scalar(scores, among, k)
}

/// The specification of [`best`]: sort all, take `k`.
///
/// # Panics
/// When the range reaches beyond the scores, or beyond `u32`.
#[must_use]
pub fn best_scalar(scores: &[f32], among: Range<usize>, k: usize) -> Vec<u32> {
    let mut order: Vec<usize> = among.collect();
    order.sort_by(|&left, &right| descending(scores[left], scores[right]).then(left.cmp(&right)));
    order.truncate(k);
    let narrow = |block: usize| u32::try_from(block).expect("blocks are counted in u32");
    order.into_iter().map(narrow).collect()
}

fn descending(left: f32, right: f32) -> Ordering {
    match (left.is_nan(), right.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        // -0 and 0 are the same score.
        (false, false) => (right + 0.0).total_cmp(&(left + 0.0)),
    }
}
