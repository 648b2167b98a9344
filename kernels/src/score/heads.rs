//! From the products of query heads to the scores of blocks.

/// How the query heads that share a KV head are taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregate {
    Mean,
    Max,
}

/// Scores for each KV head and pooled over them.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupScores {
    /// `[rows]`: the mean over all (layer, KV head).
    pub pooled: Vec<f32>,
    /// `[heads, rows]`, heads being (layer, KV head) in the query's order; empty unless asked for.
    pub per_head: Vec<f32>,
}

/// Takes the group's heads together: `dots` is `[rows, heads, group]`. A NaN among them makes the
/// score NaN, whichever way they are taken together.
///
/// `row_scales`, where given, is `[rows, heads]`: each part's factor, such as one over its norm.
///
/// # Panics
/// When the lengths do not fit each other.
#[must_use]
pub fn group_scores(
    dots: &[f32],
    (heads, group): (usize, usize),
    aggregate: Aggregate,
    row_scales: Option<&[f32]>,
    want_per_head: bool,
) -> GroupScores {
    let width = heads * group;
    assert!(width > 0 && dots.len().is_multiple_of(width), "whole rows");
    let rows = dots.len() / width;
    if let Some(scales) = row_scales {
        assert_eq!(scales.len(), rows * heads, "a scale for each part");
    }
    let mut scores = GroupScores {
        pooled: Vec::with_capacity(rows),
        per_head: vec![0.0; if want_per_head { heads * rows } else { 0 }],
    };
    // Few rows at a time, turned within the cache: a head's scores then leave it in whole lines.
    let mut panel = vec![0.0; heads * PANEL_ROWS];
    for first in (0..rows).step_by(PANEL_ROWS) {
        let panel_rows = PANEL_ROWS.min(rows - first);
        for (offset, row) in (first..first + panel_rows).enumerate() {
            let places = panel.iter_mut().skip(offset).step_by(PANEL_ROWS);
            let dots = dots[row * width..][..width].chunks_exact(group);
            let mut sum = 0.0_f64;
            for (head, (place, dots)) in places.zip(dots).enumerate() {
                let scale = row_scales.map_or(1.0, |scales| scales[row * heads + head]);
                *place = aggregate.of(dots) * scale;
                sum += f64::from(*place);
            }
            scores.pooled.push(narrow(sum / f64::from(count(heads))));
        }
        let heads_scores = scores.per_head.chunks_exact_mut(rows);
        for (scores, panel) in heads_scores.zip(panel.chunks_exact(PANEL_ROWS)) {
            scores[first..first + panel_rows].copy_from_slice(&panel[..panel_rows]);
        }
    }
    scores
}

/// Rows that are turned at once: one line of memory of each head's scores.
const PANEL_ROWS: usize = 16;

impl Aggregate {
    fn of(self, dots: &[f32]) -> f32 {
        match self {
            Self::Mean => dots.iter().sum::<f32>() / count(dots.len()),
            Self::Max => dots.iter().fold(f32::NEG_INFINITY, |best, &dot| {
                // Nothing is greater than a NaN, so that once there it stays.
                if dot > best || dot.is_nan() {
                    dot
                } else {
                    best
                }
            }),
        }
    }
}

/// The least deviation that [`standardize`] divides by.
pub(super) const DEVIATION_MIN: f64 = 1e-6;

/// Makes each column of `dots`, `[rows, columns]`, a z-score: its mean taken away, divided by its
/// population standard deviation, which counts as at least 1e-6.
///
/// # Panics
/// When `dots` is not whole rows.
pub fn standardize(dots: &mut [f32], columns: usize) {
    assert!(
        columns > 0 && dots.len().is_multiple_of(columns),
        "whole rows"
    );
    // Two passes in memory order: squares of what is left of the mean, since the mean may be large.
    let rows = f64::from(count(dots.len() / columns));
    let mut means = vec![0.0_f64; columns];
    for row in dots.chunks_exact(columns) {
        for (mean, &dot) in means.iter_mut().zip(row) {
            *mean += f64::from(dot);
        }
    }
    for mean in &mut means {
        *mean /= rows;
    }
    let mut squares = vec![0.0_f64; columns];
    for row in dots.chunks_exact(columns) {
        for ((square, mean), &dot) in squares.iter_mut().zip(&means).zip(row) {
            let offset = f64::from(dot) - mean;
            *square += offset * offset;
        }
    }
    let mut factors = squares;
    for factor in &mut factors {
        *factor = 1.0 / (*factor / rows).sqrt().max(DEVIATION_MIN);
    }
    for row in dots.chunks_exact_mut(columns) {
        for ((factor, mean), dot) in factors.iter().zip(&means).zip(row) {
            *dot = narrow((f64::from(*dot) - mean) * factor);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "to the precision of a score"
)]
fn narrow(score: f64) -> f32 {
    score as f32
}

#[expect(
    clippy::cast_precision_loss,
    reason = "far fewer than 2^24 heads or rows"
)]
fn count(number: usize) -> f32 {
    number as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As one would write it down: head by head, column by column.
    fn group_scores_twin(
        dots: &[f32],
        (heads, group): (usize, usize),
        aggregate: Aggregate,
        row_scales: Option<&[f32]>,
    ) -> GroupScores {
        let rows = dots.len() / (heads * group);
        let score = |head: usize, row: usize| {
            let dots = &dots[(row * heads + head) * group..][..group];
            let score = match aggregate {
                _ if dots.iter().any(|dot| dot.is_nan()) => f32::NAN,
                Aggregate::Mean => dots.iter().sum::<f32>() / count(group),
                Aggregate::Max => dots.iter().copied().fold(f32::NEG_INFINITY, f32::max),
            };
            score * row_scales.map_or(1.0, |scales| scales[row * heads + head])
        };
        let all = |row: usize| (0..heads).map(move |head| f64::from(score(head, row)));
        GroupScores {
            pooled: (0..rows)
                .map(|row| narrow(all(row).sum::<f64>() / f64::from(count(heads))))
                .collect(),
            per_head: (0..heads)
                .flat_map(|head| (0..rows).map(move |row| score(head, row)))
                .collect(),
        }
    }

    fn bits(scores: &[f32]) -> Vec<u32> {
        // One NaN is as good as another, and so is a zero.
        let canonical = |score: &f32| {
            if score.is_nan() {
                f32::NAN
            } else {
                score + 0.0
            }
        };
        let bits = |score| canonical(score).to_bits();
        scores.iter().map(bits).collect()
    }

    #[test]
    fn takes_heads_together() {
        // One row of two heads with three query heads each, and one of another.
        let dots = [
            1.0,
            2.0,
            6.0,
            -1.0,
            -2.0,
            -3.0,
            0.0,
            0.0,
            3.0,
            4.0,
            5.0,
            f32::NAN,
        ];
        let mean = group_scores(&dots[..6], (2, 3), Aggregate::Mean, None, true);
        assert_eq!((mean.pooled, mean.per_head), (vec![0.5], vec![3.0, -2.0]));
        let scales = [1.0, 0.5, 2.0, 1.0];
        let max = group_scores(&dots, (2, 3), Aggregate::Max, Some(&scales), true);
        assert_eq!(bits(&max.pooled), bits(&[2.75, f32::NAN]));
        assert_eq!(bits(&max.per_head), bits(&[6.0, 6.0, -0.5, f32::NAN]));
        let max = group_scores(&dots, (2, 3), Aggregate::Max, None, false);
        assert!(max.per_head.is_empty());
    }

    fn check_standard(dots: &[f32], columns: usize, expected: &[f32]) {
        let mut scores = dots.to_vec();
        standardize(&mut scores, columns);
        for (score, expected) in scores.iter().zip(expected) {
            assert!((score - expected).abs() < 1e-6, "{scores:?}");
        }
    }

    #[test]
    fn each_column_becomes_a_z_score() {
        check_standard(&[1.0, 7.0, 3.0, 7.0], 2, &[-1.0, 0.0, 1.0, 0.0]);
        check_standard(&[5.0], 1, &[0.0]);
        // A mean that is large beside the deviation; a deviation that counts as the least.
        let large = 16_777_216.0;
        check_standard(&[large, large + 2.0], 1, &[-1.0, 1.0]);
        check_standard(&[-1e-8, 1e-8], 1, &[-0.01, 0.01]);
        let tenths: Vec<f32> = (0..10_u8).map(f32::from).collect();
        let deviation = 8.25_f32.sqrt();
        let expected: Vec<f32> = tenths.iter().map(|dot| (dot - 4.5) / deviation).collect();
        check_standard(&tenths, 1, &expected);
    }

    #[test]
    #[should_panic(expected = "whole rows")]
    fn half_a_row_is_a_bug_of_the_caller() {
        standardize(&mut [1.0; 5], 2);
    }

    #[test]
    #[should_panic(expected = "a scale for each part")]
    fn scales_that_do_not_fit_are_a_bug_of_the_caller() {
        let _ = group_scores(&[1.0; 6], (2, 3), Aggregate::Mean, Some(&[1.0]), false);
    }

    proptest! {
        #[test]
        fn agrees_with_its_twin(
            heads in 1_usize..5,
            group in 1_usize..9,
            rows in 0_usize..50,
            seed in prop::collection::vec(-1e3_f32..1e3, 2000),
            nan in any::<bool>(),
            max in any::<bool>(),
            scaled in any::<bool>(),
        ) {
            let mut dots = seed[..heads * group * rows].to_vec();
            if let (Some(dot), true) = (dots.last_mut(), nan) {
                *dot = f32::NAN;
            }
            let aggregate = if max { Aggregate::Max } else { Aggregate::Mean };
            let scales = scaled.then(|| &seed[..heads * rows]);
            let scores = group_scores(&dots, (heads, group), aggregate, scales, true);
            let twin = group_scores_twin(&dots, (heads, group), aggregate, scales);
            prop_assert_eq!(bits(&scores.pooled), bits(&twin.pooled));
            prop_assert_eq!(bits(&scores.per_head), bits(&twin.per_head));
        }
    }
}
