//! A row query as integers, and how far scores made of integers can be off.

use std::ops::Range;

use super::{CODE_REACH, CODE_ZERO, GROUP, Screen};
use crate::score::{ROW_DOT_UNDERFLOW, RowQuery, row_dot_error};

/// The query's values times the channels' scales, as multiples of one step.
#[derive(Clone, Debug)]
pub(super) struct IntegerQuery {
    /// Groups of [`GROUP`] columns in which a span has a column; ascending, neighbours merged.
    pub runs: Vec<Range<usize>>,
    /// Columns of a row.
    pub width: usize,
    /// For all groups of a row; zero outside the spans and beyond the row.
    pub groups: Vec<[i32; GROUP]>,
    /// What the codes' zero adds to a product of codes and integers.
    pub offset: i64,
    pub bound: Bound,
}

/// Turns a block's integer product into the upper end of its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    /// The query times the channels' centres: a part of every score.
    pub centre: f64,
    /// One unit of the integer product, for each unit of the block's scale.
    pub step: f64,
    /// Hoeffding's error for each unit of the block's scale.
    pub chance: f64,
    /// Error of the integers and of the dither, for each unit of the block's scale.
    pub rounding: f64,
    /// Error of the full pass, for each unit of the block's norm.
    pub full_pass: f64,
    /// Error that every score may have.
    pub constant: f64,
    /// With a block's norm beyond it the full pass may overflow.
    pub norm_max: f64,
}

/// The largest multiple: its three digits to the base 256 fit in i8.
pub(super) const INTEGER_MAX: i32 = 127 << 16;

/// Relative errors of the f64 arithmetic here; thousands of times what it can be.
const SLACK: f64 = 1e-9;

/// How far a code's mean can be from the ratio it stands for: the dither's fraction has 32 bits,
/// and is added in f64.
const DITHER_BIAS: f64 = 1.0 / (1_u64 << 31) as f64;

impl IntegerQuery {
    /// `failure_probability` is that of one block's score being above its upper end.
    pub(super) fn new(query: &RowQuery, screen: &Screen<'_>, failure_probability: f64) -> Self {
        let width = screen.channel_scales.len();
        let largest =
            scaled(query, screen).fold(0.0_f64, |largest, (_, _, value)| largest.max(value.abs()));
        let step = largest / f64::from(INTEGER_MAX);
        let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
        let mut groups = vec![[0; GROUP]; width.div_ceil(GROUP)];
        let mut sums = Sums::default();
        let mut offset = 0;
        for (column, raw, value) in scaled(query, screen) {
            let integer = nearest(value * inverse);
            groups[column / GROUP][column % GROUP] = integer;
            offset -= i64::from(CODE_ZERO) * i64::from(integer);
            let integer = f64::from(integer);
            let centre = f64::from(raw) * f64::from(screen.channel_centres[column]);
            sums.query += f64::from(raw) * f64::from(raw);
            sums.centre += centre;
            sums.centre_absolute += centre.abs();
            sums.integers += integer * integer;
            sums.scaled_absolute += value.abs();
            sums.rest_absolute += (value - integer * step).abs();
        }
        let bound = Bound::new(&sums, step, query.values.len(), failure_probability);
        Self {
            width,
            runs: runs(query),
            groups,
            offset,
            bound,
        }
    }
}

/// Sums over the columns of the spans, in f64.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    query: f64,
    centre: f64,
    centre_absolute: f64,
    integers: f64,
    scaled_absolute: f64,
    rest_absolute: f64,
}

impl Bound {
    fn new(sums: &Sums, step: f64, columns: usize, failure_probability: f64) -> Self {
        let norm = sums.query.sqrt() * (1.0 + SLACK);
        let deviations = (-failure_probability.ln() / 2.0).sqrt() * (1.0 + SLACK);
        let rounding = CODE_REACH * sums.rest_absolute + DITHER_BIAS * sums.scaled_absolute;
        #[expect(clippy::cast_precision_loss, reason = "at most WIDTH_MAX")]
        let underflow = columns as f64 * ROW_DOT_UNDERFLOW;
        Self {
            centre: sums.centre,
            step,
            chance: deviations * step * sums.integers.sqrt(),
            rounding: rounding * (1.0 + SLACK),
            full_pass: row_dot_error(columns) * norm,
            constant: SLACK * sums.centre_absolute + underflow,
            norm_max: f64::from(f32::MAX) / 2.0 / norm,
        }
    }

    /// What the block's score is on average over the dither.
    pub(super) fn score(&self, product: i64, scale: f32) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "below 2^53, see WIDTH_MAX")]
        let product = product as f64;
        self.centre + f64::from(scale) * self.step * product
    }

    /// What the full pass's score of the block does not exceed, but for bad luck.
    pub(super) fn upper(&self, score: f64, scale: f32, norm: f32) -> f64 {
        let norm = f64::from(norm);
        // Also when the norm is infinite.
        if !(norm < self.norm_max) {
            return f64::INFINITY;
        }
        let error = f64::from(scale) * (self.chance + self.rounding);
        score + error + norm * self.full_pass + self.constant + SLACK * score.abs()
    }
}

/// Column, value, and value times the channel's scale: 24 bits times 24 bits are exact.
fn scaled(query: &RowQuery, screen: &Screen<'_>) -> impl Iterator<Item = (usize, f32, f64)> {
    let columns = query.parts().flat_map(|(span, values)| span.zip(values));
    columns.map(|(column, &value)| {
        let scale = screen.channel_scales[column];
        (column, value, f64::from(value) * f64::from(scale))
    })
}

fn runs(query: &RowQuery) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::with_capacity(query.spans.len());
    for span in &query.spans {
        let run = span.start / GROUP..span.end.div_ceil(GROUP);
        match runs.last_mut() {
            Some(last) if run.start <= last.end => last.end = run.end,
            Some(_) | None => runs.push(run),
        }
    }
    runs
}

/// The nearest integer, a tie to even, for numbers up to 2^31.
fn nearest(number: f64) -> i32 {
    // Adding it leaves the integer in the lowest bits, without the call that `round` is.
    const ALIGN: f64 = (1_u64 << 52) as f64 * 1.5;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lowest bits are the integer"
    )]
    let integer = (number + ALIGN).to_bits() as i32;
    integer
}
