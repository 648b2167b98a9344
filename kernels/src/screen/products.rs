//! Products of codes and integers: exact, so that every kind of instruction gives the same.

use std::ops::Range;

use super::GROUP;
use super::query::IntegerQuery;
use crate::score::Level;

/// Codes of [`GROUP`] columns.
pub(super) type Codes = [u8; GROUP];

/// Rows whose products are made together, so that the query is read once for all of them.
pub(super) const ROWS: usize = 4;

/// Instructions that the products are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instructions {
    Scalar,
    Avx2,
    Avx512,
    Avx512Vnni,
}

impl Instructions {
    /// The best that the processor has, up to the level.
    pub(super) fn detect(level: Level) -> Self {
        let _ = level;
        Self::Scalar
    }
}

/// A query in the digits that the instructions want.
#[derive(Debug)]
pub(super) enum Digits {
    Whole,
}

/// The specification: as one would write it down.
pub(super) fn product_scalar(codes: &[u8], query: &IntegerQuery) -> i64 {
    let columns = query
        .runs
        .iter()
        .flat_map(|run| run.start * GROUP..run.end * GROUP);
    let product = |column: usize| {
        let integer = query.groups[column / GROUP][column % GROUP];
        i64::from(codes.get(column).copied().unwrap_or(0)) * i64::from(integer)
    };
    query.offset + columns.map(product).sum::<i64>()
}
