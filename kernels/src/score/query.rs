//! The two forms of a query: a vector over whole rows, or one for each query head.

use std::ops::Range;

/// A vector that a row is multiplied with. Elements of the row outside the spans take no part.
#[derive(Clone, Debug, PartialEq)]
pub struct RowQuery {
    /// Columns of the table, ascending, disjoint, not empty; neighbours are merged into one.
    pub spans: Vec<Range<usize>>,
    /// One for each column of the spans, finite.
    pub values: Vec<f32>,
}

/// Vectors of query heads, each multiplied with its KV head's part of the row.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadQuery {
    /// First column of each (layer, KV head) that is asked about, ascending.
    pub starts: Vec<usize>,
    /// Columns of each part.
    pub width: usize,
    /// Query heads that share a part.
    pub group: usize,
    /// `[starts, group, width]`, finite.
    pub values: Vec<f32>,
}

impl RowQuery {
    /// # Panics
    /// When the spans are not ascending, or the values are not one for each column.
    #[must_use]
    pub fn new(spans: Vec<Range<usize>>, values: Vec<f32>) -> Self {
        let mut merged: Vec<Range<usize>> = Vec::with_capacity(spans.len());
        for span in spans {
            assert!(span.start < span.end, "a span has columns");
            match merged.last_mut() {
                Some(last) if last.end == span.start => last.end = span.end,
                Some(last) => {
                    assert!(last.end < span.start, "spans ascend");
                    merged.push(span);
                }
                None => merged.push(span),
            }
        }
        let columns: usize = merged.iter().map(ExactSizeIterator::len).sum();
        assert_eq!(columns, values.len(), "a value for each column");
        Self {
            spans: merged,
            values,
        }
    }

    /// The spans with their values.
    pub fn parts(&self) -> impl Iterator<Item = (Range<usize>, &[f32])> {
        let mut rest = &self.values[..];
        self.spans.iter().map(move |span| {
            let (values, after) = rest.split_at(span.len());
            rest = after;
            (span.clone(), values)
        })
    }
}

impl HeadQuery {
    /// Dot products a row.
    #[must_use]
    pub fn dots(&self) -> usize {
        self.starts.len() * self.group
    }
}
