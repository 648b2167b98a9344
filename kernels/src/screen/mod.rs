//! Finds the best blocks of a table by an int8 copy of it: half the bytes, the same answer.
//!
//! # The copy
//! Channel (column) `d` has a centre `m_d` and a scale `s_d`, about its mean and standard deviation
//! over the blocks; block `b` has a scale `w_b`. An element's ratio `y = (K[b,d] - m_d) / (w_b
//! s_d)` becomes the code `c = floor(y + u)` with `u` uniform in [0, 1): one of the two integers
//! beside `y`, chosen so that `E[c] = y`. This is dithered rounding. The errors `y - c` are
//! independent of each other, each has mean zero and lies in an interval of width 1, and that is
//! all that is used of them. `w_b` makes the block's largest ratio 126, so that codes stay within a
//! byte.
//!
//! # The bound
//! A query's score is `q.K_b = q.m + w_b sum q_d s_d y_d`. The channels' scales go into the query,
//! which becomes multiples of a step, `q_d s_d = h Q_d + r_d` with `|Q_d| <= 127 * 2^16`. The
//! screen computes `S_b = q.m + w_b h sum Q_d c_d`, the sum in exact integers, and is off by
//! ```text
//! q.K_b - S_b = w_b (sum r_d y_d + h sum Q_d (y_d - c_d))
//! ```
//! - The first sum is at most `126 sum |r_d|`, whatever the codes are.
//! - The second adds independent terms of mean zero, in intervals of width `h |Q_d|`. Hoeffding's
//!   inequality ("Probability inequalities for sums of bounded random variables", 1963, theorem 2)
//!   gives `P(h sum Q_d (y_d - c_d) >= t) <= exp(-2 t^2 / (h^2 sum Q_d^2))`. That is `p` for
//!   `t = h |Q| sqrt(ln(1/p) / 2)`.
//! - The full pass itself rounds: it is off by at most `row_dot_error |q| |K_b|`, and the norm of
//!   each row is kept.
//!
//! `S_b` and these three make the block's upper end: what its score in the full pass does not
//! exceed, but with probability `p`.
//!
//! # The answer
//! The `k` blocks with the largest `S_b` are scored from the full table, by the very code of the
//! full pass. The least of these scores is surely one that `k` blocks reach. All blocks whose upper
//! end reaches it too are scored in the same way, and the best `k` of them are the answer, in the
//! order and with the ties of the full pass. Where so many reach it that reading them takes longer
//! than reading all, all are read.
//!
//! # What can fail
//! Only a block that belongs in the answer can be missed, and only if its score exceeds its upper
//! end. So an answer is wrong with probability `k p` at most, however many blocks there are: with
//! 16 blocks at 1e-9, once in 62 million queries. The errors' true spread is about 0.41 a code
//! where Hoeffding must assume 0.5, so in truth it is far less.
//!
//! The probability is over the dither, for a table and a query made without knowing it. Whoever
//! knows the errors can align a query with them (`q_d s_d` with the signs of `y_d - c_d`), and its
//! score is then off by a multiple of the width instead of its root. That is why rounding to
//! nearest will not do, whose errors anybody can work out who has the table; why the seed must be
//! unpredictable and be forgotten; and why codes are shown to nobody. Answers tell nothing of the
//! dither, being those of the full pass: a query may depend on earlier answers. How many blocks
//! survived does tell something, so give it to whoever runs the service, not to who makes queries.
//!
//! # What lost
//! - A bound for the worst case: `w_b sum |q_d| s_d / 2` or more, beyond the spread of the scores.
//! - Intervals with two ends, compared with each other: twice as many survivors, and every block of
//!   the table can fail. A threshold of exact scores costs `k` rows.
//! - The largest distance as a channel's scale: one outlier makes its channel coarse for all
//!   blocks. With the standard deviation it makes its own block coarse instead, unless it is beyond
//!   reason.
//! - Two digits of a query instead of three: with outlier channels the first error above is as
//!   large as the second. The third costs nothing that waiting for memory does not hide.
//! - Products in f32: their rounding would have to be bounded too, and depends on the instructions.

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
