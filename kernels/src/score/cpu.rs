//! The products on the processor.

use super::{HeadQuery, RowQuery, Table, scalar};

/// Instructions that the products are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Scalar,
    Neon,
    Avx2,
    Avx512,
}

/// The products on threads of its own, with the best instructions that the processor has.
#[derive(Debug)]
pub struct Cpu {
    pub level: Level,
    pub threads: usize,
}

impl Cpu {
    /// Starts the threads; the caller of a product is one of them.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        Ok(Self {
            level: Level::Scalar,
            threads,
        })
    }

    /// `scores[q][row]`: the product of each row with each query. A row's score has the same bits
    /// whatever the number of threads and of queries.
    ///
    /// # Panics
    /// When `scores` has another length than queries times rows.
    pub fn row_dots(&self, table: &Table<'_>, queries: &[&RowQuery], scores: &mut [f32]) {
        assert_eq!(scores.len(), queries.len() * table.rows());
        for (query, scores) in queries.iter().zip(scores.chunks_mut(table.rows().max(1))) {
            for (score, dot) in scores.iter_mut().zip(scalar::row_dots(table, query)) {
                *score = narrow(dot);
            }
        }
    }

    /// `dots[row][head]`: the product of each query head with its part of each row.
    ///
    /// # Panics
    /// When `dots` has another length than rows times [`HeadQuery::dots`].
    pub fn head_dots(&self, table: &Table<'_>, query: &HeadQuery, dots: &mut [f32]) {
        assert_eq!(dots.len(), table.rows() * query.dots());
        for (dot, exact) in dots.iter_mut().zip(scalar::head_dots(table, query)) {
            *dot = narrow(exact);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "to the precision of the answer"
)]
fn narrow(dot: f64) -> f32 {
    dot as f32
}
