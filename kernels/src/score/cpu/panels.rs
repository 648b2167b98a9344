//! What becomes of the products of a panel of rows, compiled once for each instruction set.
//!
//! Rows lie next to each other, so that all of them go through the same steps at once: nothing here
//! depends on how many query heads share a KV head.

use super::rows::PANEL_ROWS;
use crate::score::Aggregate;

/// A number for each row of a panel.
pub(super) type Panel = [f32; PANEL_ROWS];

/// Of one column of products: over the rows of a chunk, then over all.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moments {
    pub(super) mean: f64,
    /// The sum of the squares of what is left when the mean is taken away.
    pub(super) squares: f64,
}

/// What makes a column's products z-scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standard {
    pub(super) mean: f64,
    /// One over the deviation.
    pub(super) factor: f64,
}

/// Takes equally many `dots` together for each score, in the order of
/// [`group_scores`](crate::score::group_scores).
#[inline(always)]
pub(super) fn aggregate(how: Aggregate, dots: &[Panel], scores: &mut [Panel]) {
    let group = dots.len() / scores.len();
    let groups = dots.chunks_exact(group).zip(scores);
    match how {
        Aggregate::Mean => {
            let heads = narrow(count(group));
            for (dots, score) in groups {
                let mut sum = [-0.0; PANEL_ROWS];
                for dot in dots {
                    for row in 0..PANEL_ROWS {
                        sum[row] += dot[row];
                    }
                }
                *score = sum.map(|sum| sum / heads);
            }
        }
        Aggregate::Max => {
            for (dots, score) in groups {
                let mut best = [f32::NEG_INFINITY; PANEL_ROWS];
                for dot in dots {
                    keep_greater(&mut best, dot);
                }
                *score = best;
            }
        }
    }
}

/// As [`aggregate`] the greatest, of z-scores; `standards` are those of the columns.
#[inline(always)]
pub(super) fn standard_max(dots: &[Panel], standards: &[Standard], scores: &mut [Panel]) {
    let group = dots.len() / scores.len();
    let groups = dots
        .chunks_exact(group)
        .zip(standards.chunks_exact(group))
        .zip(scores);
    for ((dots, standards), score) in groups {
        let mut best = [f32::NEG_INFINITY; PANEL_ROWS];
        for (dot, standard) in dots.iter().zip(standards) {
            let standard_score = |dot| narrow((f64::from(dot) - standard.mean) * standard.factor);
            keep_greater(&mut best, &dot.map(standard_score));
        }
        *score = best;
    }
}

/// Nothing is greater than a NaN, so that once there it stays.
#[inline(always)]
fn keep_greater(best: &mut Panel, others: &Panel) {
    for (best, &other) in best.iter_mut().zip(others) {
        *best = if other > *best || other.is_nan() {
            other
        } else {
            *best
        };
    }
}

/// The mean of each row's scores.
#[inline(always)]
pub(super) fn pool(scores: &[Panel]) -> Panel {
    let mut sums = [0.0_f64; PANEL_ROWS];
    for score in scores {
        for row in 0..PANEL_ROWS {
            sums[row] += f64::from(score[row]);
        }
    }
    let heads = count(scores.len());
    sums.map(|sum| narrow(sum / heads))
}

pub(super) fn add(sums: &mut [Panel], others: &[Panel]) {
    for (sum, other) in sums.iter_mut().zip(others) {
        for row in 0..PANEL_ROWS {
            sum[row] += other[row];
        }
    }
}

/// Of each column of a chunk: `dots` is `[panels, moments]`, with `rows` rows.
///
/// Sums of squares lose what the mean is larger than the deviation, so all is counted from the
/// first row's product: no value of `n` is farther than `sqrt(n - 1)` deviations from their mean,
/// hence at most `log2 n` of the 53 bits are lost.
#[inline(always)]
pub(super) fn moments(dots: &[Panel], rows: usize, moments: &mut [Moments]) {
    let width = moments.len();
    let (whole, rest) = (rows / PANEL_ROWS, rows % PANEL_ROWS);
    let all = count(rows);
    for (column, moments) in moments.iter_mut().enumerate() {
        let origin = f64::from(dots[column][0]);
        let (mut sums, mut squares) = ([0.0_f64; PANEL_ROWS], [0.0_f64; PANEL_ROWS]);
        for panel in 0..whole {
            let dots = &dots[panel * width + column];
            for row in 0..PANEL_ROWS {
                let offset = f64::from(dots[row]) - origin;
                sums[row] += offset;
                squares[row] += offset * offset;
            }
        }
        for row in 0..rest {
            let offset = f64::from(dots[whole * width + column][row]) - origin;
            sums[row] += offset;
            squares[row] += offset * offset;
        }
        let (sum, squares) = (total(sums), total(squares));
        moments.mean = origin + sum / all;
        moments.squares = (squares - sum * sum / all).max(0.0);
    }
}

/// In pairs, as lanes are added.
#[inline(always)]
fn total(sums: [f64; PANEL_ROWS]) -> f64 {
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Takes the moments of `rows` more rows into those of `before` (Chan, Golub and LeVeque, Updating
/// formulae and a pairwise algorithm for computing sample variances, 1979).
pub(super) fn merge(all: &mut [Moments], before: usize, more: &[Moments], rows: usize) {
    let (before, rows) = (count(before), count(rows));
    let share = rows / (before + rows);
    for (all, more) in all.iter_mut().zip(more) {
        let offset = more.mean - all.mean;
        all.mean += offset * share;
        all.squares += more.squares + offset * offset * before * share;
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "to the precision of a score"
)]
#[inline(always)]
fn narrow(score: f64) -> f32 {
    score as f32
}

#[expect(
    clippy::cast_precision_loss,
    reason = "far fewer than 2^53 heads or rows"
)]
#[inline(always)]
pub(super) fn count(number: usize) -> f64 {
    number as f64
}
