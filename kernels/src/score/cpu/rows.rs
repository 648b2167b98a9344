//! One dot product a row, and how far it may be off.

use std::ops::Range;

use super::kernels::ROWS;
use super::simd::{Element, Simd};
use super::{TASK_BYTES, narrow};
use crate::score::RowQuery;

/// Columns whose products are added in f32; the sums of tiles are added in f64.
const TILE: usize = 1024;

/// Chains of f32 sums that a tile is spread over, at the level with the fewest.
const CHAINS_MIN: usize = 16;

/// Additions that bring the chains of a tile together, at the level with the most chains.
const CHAIN_SUMS_MAX: usize = 5;

/// The rows of a table of one element, with the instructions to multiply them.
pub(super) struct Rows<'a, E> {
    simd: Simd,
    cells: &'a [E],
    width: usize,
}

impl<'a, E: Element> Rows<'a, E> {
    pub(super) fn new(simd: Simd, cells: &'a [E], width: usize) -> Self {
        Self { simd, cells, width }
    }

    pub(super) fn count(&self) -> usize {
        self.cells.len() / self.width
    }

    pub(super) fn at(&self, row: usize) -> &'a [E] {
        &self.cells[row * self.width..(row + 1) * self.width]
    }

    /// Rows that make a task, a multiple of [`PANEL_ROWS`].
    pub(super) fn in_a_task(&self) -> usize {
        rows_in_a_task(self.width * size_of::<E>())
    }

    /// The products of consecutive rows, `first` and as many as there are scores, with the query.
    ///
    /// Whatever their number, a row's product has the same bits: the same tiles, the same chains in
    /// each, the same order of their sums.
    ///
    /// # Panics
    /// When there are no such rows or columns.
    pub(super) fn dots(&self, first: usize, query: &RowQuery, scores: &mut [f32]) {
        for (first, scores) in (first..)
            .step_by(PANEL_ROWS)
            .zip(scores.chunks_mut(PANEL_ROWS))
        {
            // Tile by tile, so that the query's is read from the nearest cache for all rows.
            let mut sums = [0.0_f64; PANEL_ROWS];
            let sums = &mut sums[..scores.len()];
            for (span, values) in query.parts() {
                for (start, values) in span.step_by(TILE).zip(values.chunks(TILE)) {
                    let columns = start..start + values.len();
                    self.add_tile(first, columns, values, sums);
                }
            }
            for (score, &sum) in scores.iter_mut().zip(&*sums) {
                *score = narrow(sum);
            }
        }
    }

    fn add_tile(&self, first: usize, columns: Range<usize>, query: &[f32], sums: &mut [f64]) {
        let (groups, rest) = sums.as_chunks_mut::<ROWS>();
        let rest_first = first + groups.len() * ROWS;
        for (first, sums) in (first..).step_by(ROWS).zip(groups) {
            let tiles = std::array::from_fn(|next| &self.at(first + next)[columns.clone()]);
            let products: [f32; ROWS] = E::tile(self.simd, tiles, query);
            for (sum, product) in sums.iter_mut().zip(products) {
                *sum += f64::from(product);
            }
        }
        for (row, sum) in (rest_first..).zip(rest) {
            let [product] = E::tile(self.simd, [&self.at(row)[columns.clone()]], query);
            *sum += f64::from(product);
        }
    }
}

/// Rows that are multiplied with a part of the query before the next one.
pub(super) const PANEL_ROWS: usize = 8;

/// As [`Rows::in_a_task`], for rows of so many bytes.
pub(super) fn rows_in_a_task(bytes: usize) -> usize {
    (TASK_BYTES / bytes)
        .next_multiple_of(PANEL_ROWS)
        .max(PANEL_ROWS)
}

/// Bounds the rounding of a row's product, at every level, relative to the norms of its factors:
/// `|computed - exact| <= row_dot_error(width) |q| |k| + width ROW_DOT_UNDERFLOW`, for a query with
/// `width` columns, as long as the sum of all `|q_i k_i|` is below half of [`f32::MAX`].
///
/// Each product takes part in at most `TILE / CHAINS_MIN` roundings of its chain, one of its own
/// where multiplication and addition are not fused, `CHAIN_SUMS_MAX` when chains are added, and one
/// when the answer is made f32 again: `n` roundings, each by a factor within `1 +- u`, `u = 2^-24`.
/// So much for f32: at most `g = n u / (1 - n u)` times the sum of `|q_i k_i|` (Higham, Accuracy
/// and Stability of Numerical Algorithms, 2nd edition, lemma 3.1). The f64 sums of tiles add at
/// most one rounding a column, and the terms that multiply both; `width 2^-52` holds them. The sum
/// of `|q_i k_i|` is at most `|q| |k|` (Cauchy and Schwarz).
#[must_use]
pub fn row_dot_error(width: usize) -> f64 {
    let roundings = count(TILE / CHAINS_MIN + 1 + CHAIN_SUMS_MAX + 1);
    let narrow = roundings * f64::from(f32::EPSILON) / 2.0;
    narrow / (1.0 - narrow) + count(width) * f64::EPSILON
}

/// What a column may add to the error where products are too small for a normal f32: each rounding
/// then is off by at most half of the smallest f32, and there are at most two a column.
pub const ROW_DOT_UNDERFLOW: f64 = 1.401_298_464_324_817e-45;

#[expect(
    clippy::cast_precision_loss,
    reason = "2^53 columns do not fit into memory"
)]
fn count(number: usize) -> f64 {
    number as f64
}
