//! Finds the best blocks of a table by an int8 copy of it: half the bytes, the same answer.

mod best;
mod build;
mod dither;
mod products;
mod query;
mod vectors;

use std::ops::Range;

use thiserror::Error;

use crate::score::{Elements, Table};

pub use best::{FAILURE_PROBABILITY, Screened, Wanted};
pub use build::{ChannelStatistics, Channels, OwnedScreen, Quantizer, RowScale};

/// Columns that are multiplied in one go.
const GROUP: usize = 64;

/// The code of a value at its channel's centre.
pub const CODE_ZERO: u8 = 128;

/// Codes reach this far from [`CODE_ZERO`] before dithering, which may add one.
const CODE_REACH: f64 = 126.0;

/// Columns of a table that can be screened: the sums of products are exact up to here.
pub const WIDTH_MAX: usize = 1 << 20;

/// An int8 copy of a table of `blocks` rows and `width` columns, in somebody else's memory.
///
/// The value of a column is, on average, its channel's centre + the block's scale times the
/// channel's scale times (code - [`CODE_ZERO`]).
#[derive(Clone, Copy, Debug)]
pub struct Screen<'a> {
    /// `[blocks, width]`.
    pub codes: &'a [u8],
    /// `[blocks]`.
    pub block_scales: &'a [f32],
    /// `[blocks]`: the Euclidean norms of the table's rows, rounded upwards.
    pub block_norms: &'a [f32],
    /// `[width]`.
    pub channel_centres: &'a [f32],
    /// `[width]`.
    pub channel_scales: &'a [f32],
}

/// Bytes of each section of a [`Screen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionBytes {
    pub codes: usize,
    pub block_scales: usize,
    pub block_norms: usize,
    pub channel_centres: usize,
    pub channel_scales: usize,
}

/// Why sections are not a screen.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ScreenError {
    #[error("a screen has 1 to {WIDTH_MAX} columns, not {0}")]
    Width(usize),
    #[error("{section} has {found} elements, not {expected}")]
    Length {
        section: &'static str,
        expected: usize,
        found: usize,
    },
    #[error("{section}[{index}] is not a finite number of the right sign")]
    Value { section: &'static str, index: usize },
}

impl SectionBytes {
    #[must_use]
    pub const fn new(blocks: usize, width: usize) -> Self {
        Self {
            codes: blocks * width,
            block_scales: blocks * size_of::<f32>(),
            block_norms: blocks * size_of::<f32>(),
            channel_centres: width * size_of::<f32>(),
            channel_scales: width * size_of::<f32>(),
        }
    }
}

impl Screen<'_> {
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.block_scales.len()
    }

    #[must_use]
    pub fn width(&self) -> usize {
        self.channel_scales.len()
    }

    /// Looks at everything but the codes, any of which is a code.
    ///
    /// # Errors
    /// When the sections do not fit each other, or a number is not what it must be: centres finite,
    /// scales finite and not negative, norms not negative (infinite is allowed: such a block is
    /// never screened out).
    pub fn check(&self) -> Result<(), ScreenError> {
        let (blocks, width) = (self.blocks(), self.width());
        if width == 0 || width > WIDTH_MAX {
            return Err(ScreenError::Width(width));
        }
        check_length("codes", self.codes.len(), blocks.saturating_mul(width))?;
        check_length("block_norms", self.block_norms.len(), blocks)?;
        check_length("channel_centres", self.channel_centres.len(), width)?;
        let scale = |scale: f32| scale.is_finite() && scale >= 0.0;
        check_values("block_scales", self.block_scales, scale)?;
        check_values("channel_scales", self.channel_scales, scale)?;
        check_values("block_norms", self.block_norms, |norm| norm >= 0.0)?;
        check_values("channel_centres", self.channel_centres, f32::is_finite)
    }
}

/// The elements of some rows.
fn elements<'a>(table: &Table<'a>, rows: Range<usize>) -> Elements<'a> {
    let columns = rows.start * table.width..rows.end * table.width;
    match table.elements {
        Elements::F16(elements) => Elements::F16(&elements[columns]),
        Elements::F32(elements) => Elements::F32(&elements[columns]),
    }
}

fn check_length(section: &'static str, found: usize, expected: usize) -> Result<(), ScreenError> {
    if found == expected {
        Ok(())
    } else {
        Err(ScreenError::Length {
            section,
            expected,
            found,
        })
    }
}

fn check_values(
    section: &'static str,
    values: &[f32],
    is_right: impl Fn(f32) -> bool,
) -> Result<(), ScreenError> {
    match values.iter().position(|&value| !is_right(value)) {
        Some(index) => Err(ScreenError::Value { section, index }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
