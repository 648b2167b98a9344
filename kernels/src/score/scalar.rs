//! The specification of the products: as one would write them down, in f64.

use super::{HeadQuery, RowQuery, Table};

/// `[rows]`: the product of each row with the query.
#[must_use]
pub fn row_dots(table: &Table<'_>, query: &RowQuery) -> Vec<f64> {
    let row_dot = |row: usize| {
        let parts = query.parts().flat_map(|(span, values)| span.zip(values));
        parts
            .map(|(column, value)| f64::from(table.get(row, column)) * f64::from(*value))
            .sum()
    };
    (0..table.rows()).map(row_dot).collect()
}

/// `[rows, starts, group]`: the product of each query head with its part of each row.
#[must_use]
pub fn head_dots(table: &Table<'_>, query: &HeadQuery) -> Vec<f64> {
    let mut dots = Vec::with_capacity(table.rows() * query.dots());
    for row in 0..table.rows() {
        for (head, values) in query.values.chunks_exact(query.width).enumerate() {
            let start = query.starts[head / query.group];
            let products = values.iter().enumerate().map(|(offset, value)| {
                f64::from(table.get(row, start + offset)) * f64::from(*value)
            });
            dots.push(products.sum());
        }
    }
    dots
}
