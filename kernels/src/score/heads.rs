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

/// Takes the group's heads together: `dots` is `[rows, heads, group]`.
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
    let mut scores = GroupScores {
        pooled: Vec::with_capacity(rows),
        per_head: vec![0.0; if want_per_head { heads * rows } else { 0 }],
    };
    for (row, dots) in dots.chunks_exact(width).enumerate() {
        let mut sum = 0.0_f64;
        for (head, dots) in dots.chunks_exact(group).enumerate() {
            let score = match aggregate {
                Aggregate::Mean => dots.iter().sum::<f32>() / count(group),
                Aggregate::Max => dots.iter().copied().fold(f32::NEG_INFINITY, f32::max),
            };
            let scale = row_scales.map_or(1.0, |scales| scales[row * heads + head]);
            let score = score * scale;
            sum += f64::from(score);
            if want_per_head {
                scores.per_head[head * rows + row] = score;
            }
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "to the precision of a score"
        )]
        scores.pooled.push((sum / f64::from(count(heads))) as f32);
    }
    scores
}

/// Makes each column of `dots`, `[rows, columns]`, a z-score: its mean taken away, divided by its
/// population standard deviation, which counts as at least 1e-6.
///
/// # Panics
/// When `dots` is not whole rows.
pub fn standardize(dots: &mut [f32], columns: usize) {
    const DEVIATION_MIN: f64 = 1e-6;
    assert!(
        columns > 0 && dots.len().is_multiple_of(columns),
        "whole rows"
    );
    let rows = f64::from(count(dots.len() / columns));
    for column in 0..columns {
        let values = || {
            dots.iter()
                .skip(column)
                .step_by(columns)
                .map(|&dot| f64::from(dot))
        };
        let mean = values().sum::<f64>() / rows;
        let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / rows;
        let deviation = variance.sqrt().max(DEVIATION_MIN);
        for dot in dots.iter_mut().skip(column).step_by(columns) {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "to the precision of a score"
            )]
            let score = ((f64::from(*dot) - mean) / deviation) as f32;
            *dot = score;
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "far fewer than 2^24 heads or rows"
)]
fn count(number: usize) -> f32 {
    number as f32
}
