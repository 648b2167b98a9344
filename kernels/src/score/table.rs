//! A table of block rows in somebody else's memory, such as a mapped file.

use half::f16;

/// The elements of a table, row after row.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    F16(&'a [f16]),
    F32(&'a [f32]),
}

/// Rows of `width` elements, one for each block. A key summary's row is `[layers, kv_heads,
/// head_dim]`; one of extremes `[layers, kv_heads, 2, head_dim]`, smallest first; one of magnitudes
/// `[layers, kv_heads, head_dim / 2]`. All elements are finite.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    pub elements: Elements<'a>,
    pub width: usize,
}

impl<'a> Table<'a> {
    /// # Panics
    /// When the elements are not whole rows.
    #[must_use]
    pub fn new(elements: Elements<'a>, width: usize) -> Self {
        let table = Self { elements, width };
        assert!(
            width > 0 && elements.len().is_multiple_of(width),
            "a table has whole rows: {} elements, {width} a row",
            elements.len()
        );
        table
    }

    #[must_use]
    pub fn rows(&self) -> usize {
        self.elements.len() / self.width
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        match self.elements {
            Elements::F16(elements) => size_of_val(elements),
            Elements::F32(elements) => size_of_val(elements),
        }
    }

    /// An element in f32, which holds every f16.
    #[must_use]
    pub fn get(&self, row: usize, column: usize) -> f32 {
        let at = row * self.width + column;
        match self.elements {
            Elements::F16(elements) => elements[at].to_f32(),
            Elements::F32(elements) => elements[at],
        }
    }
}

impl Elements<'_> {
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F16(elements) => elements.len(),
            Self::F32(elements) => elements.len(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
