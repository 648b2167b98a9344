//! A row query as integers, and how far scores made of integers can be off.

use std::ops::Range;

use super::vectors::vectorized;
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

/// Relative error of sums here: more than 2^20 roundings of f64 can make.
const SLACK: f64 = 1e-9;

/// How far a code's mean can be from the ratio it stands for: the dither has 32 bits, and the ratio
/// and what the integers leave of it come from a few roundings of f64.
const DITHER_BIAS: f64 = 1.0 / (1_u64 << 31) as f64;

impl IntegerQuery {
    /// `failure_probability` is that of one block's score being above its upper end.
    ///
    /// # Panics
    /// When a span reaches beyond the screen's columns.
    pub(super) fn new(query: &RowQuery, screen: &Screen<'_>, failure_probability: f64) -> Self {
        let width = screen.width();
        let largest = query.parts().fold(0.0_f64, |largest, (span, values)| {
            largest.max(largest_of(values, &screen.channel_scales[span]))
        });
        let step = largest / f64::from(INTEGER_MAX);
        let mut groups = vec![[0; GROUP]; width.div_ceil(GROUP)];
        let mut sums = Sums::default();
        for (span, values) in query.parts() {
            let channels = Channels {
                centres: &screen.channel_centres[span.clone()],
                scales: &screen.channel_scales[span.clone()],
            };
            let integers = &mut groups.as_flattened_mut()[span];
            sums.add(&integers_of(values, channels, step, integers));
        }
        let columns = query.values.len();
        Self {
            width,
            runs: runs(query),
            groups,
            offset: -i64::from(CODE_ZERO) * exact(sums.integers),
            bound: Bound::new(&sums, step, columns, failure_probability),
        }
    }
}

/// The screen's channels of a span.
#[derive(Clone, Copy)]
struct Channels<'a> {
    centres: &'a [f32],
    scales: &'a [f32],
}

/// Sums over columns.
#[derive(Clone, Copy, Debug, Default)]
struct Sums<T = f64> {
    /// The integers: far below 2^53, so exact.
    integers: T,
    integer_squares: T,
    /// What rounding to integers left, without its sign.
    rests: T,
    /// The products of values and scales, without their signs.
    scaled: T,
    /// The squares of the values.
    squares: T,
    /// The products of values and centres, and those without their signs.
    centre: T,
    centre_sizes: T,
}

impl Sums {
    fn add(&mut self, lanes: &Sums<[f64; LANES]>) {
        self.integers += lanes.integers.iter().sum::<f64>();
        self.integer_squares += lanes.integer_squares.iter().sum::<f64>();
        self.rests += lanes.rests.iter().sum::<f64>();
        self.scaled += lanes.scaled.iter().sum::<f64>();
        self.squares += lanes.squares.iter().sum::<f64>();
        self.centre += lanes.centre.iter().sum::<f64>();
        self.centre_sizes += lanes.centre_sizes.iter().sum::<f64>();
    }
}

/// Columns that the loops below work on together.
const LANES: usize = 8;

vectorized! {
    /// The largest product of a value and a scale, without its sign.
    fn largest_of(values: &[f32], scales: &[f32]) -> f64 {
        let mut largest = [0.0; LANES];
        let (values, scales) = (values.as_chunks::<LANES>(), scales.as_chunks::<LANES>());
        let rest = (padded(values.1), padded(scales.1));
        for (values, scales) in values.0.iter().zip(scales.0).chain([(&rest.0, &rest.1)]) {
            for (largest, (&value, &scale)) in largest.iter_mut().zip(values.iter().zip(scales)) {
                // 24 bits times 24 bits: exact.
                let size = (f64::from(value) * f64::from(scale)).abs();
                *largest = if size > *largest { size } else { *largest };
            }
        }
        largest.into_iter().fold(0.0, f64::max)
    }
}

vectorized! {
    /// Makes the products of values and scales integers of this step.
    fn integers_of(
        values: &[f32],
        channels: Channels<'_>,
        step: f64,
        integers: &mut [i32],
    ) -> Sums<[f64; LANES]> {
        let mut sums = Sums::default();
        let (whole, rest) = values.as_chunks::<LANES>();
        let (whole_integers, rest_integers) = integers.as_chunks_mut::<LANES>();
        let centres = channels.centres.as_chunks::<LANES>();
        let scales = channels.scales.as_chunks::<LANES>();
        let channels = centres.0.iter().zip(scales.0);
        let columns = whole.iter().zip(whole_integers).zip(channels);
        for ((values, integers), (centres, scales)) in columns {
            *integers = sums.add_columns(values, centres, scales, step);
        }
        let [rest, centres, scales] = [rest, centres.1, scales.1].map(padded);
        let integers = sums.add_columns(&rest, &centres, &scales, step);
        rest_integers.copy_from_slice(&integers[..rest_integers.len()]);
        sums
    }
}

impl Sums<[f64; LANES]> {
    /// Adds the columns, and makes their products of values and scales integers of this step.
    #[inline(always)]
    fn add_columns(
        &mut self,
        values: &[f32; LANES],
        centres: &[f32; LANES],
        scales: &[f32; LANES],
        step: f64,
    ) -> [i32; LANES] {
        let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
        let mut integers = [0; LANES];
        for lane in 0..LANES {
            let value = f64::from(values[lane]);
            let scaled = value * f64::from(scales[lane]);
            let centre = value * f64::from(centres[lane]);
            let integer = nearest(scaled * inverse);
            let multiple = f64::from(integer);
            integers[lane] = integer;
            self.integers[lane] += multiple;
            self.integer_squares[lane] += multiple * multiple;
            self.rests[lane] += (scaled - multiple * step).abs();
            self.scaled[lane] += scaled.abs();
            self.squares[lane] += value * value;
            self.centre[lane] += centre;
            self.centre_sizes[lane] += centre.abs();
        }
        integers
    }
}

fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut padded = [0.0; LANES];
    padded[..rest.len()].copy_from_slice(rest);
    padded
}

impl Bound {
    fn new(sums: &Sums, step: f64, columns: usize, failure_probability: f64) -> Self {
        let norm = sums.squares.sqrt() * (1.0 + SLACK);
        let deviations = (-failure_probability.ln() / 2.0).sqrt() * (1.0 + SLACK);
        let rounding = CODE_REACH * sums.rests + DITHER_BIAS * sums.scaled;
        #[expect(clippy::cast_precision_loss, reason = "at most WIDTH_MAX")]
        let underflow = columns as f64 * ROW_DOT_UNDERFLOW;
        Self {
            centre: sums.centre,
            step,
            chance: deviations * step * sums.integer_squares.sqrt(),
            rounding: rounding * (1.0 + SLACK),
            full_pass: row_dot_error(columns) * norm,
            constant: SLACK * sums.centre_sizes + underflow,
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
        if norm >= self.norm_max {
            return f64::INFINITY;
        }
        let error = f64::from(scale) * (self.chance + self.rounding);
        score + error + norm * self.full_pass + self.constant + SLACK * score.abs()
    }
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

#[expect(clippy::cast_possible_truncation, reason = "an integer below 2^53")]
fn exact(integer: f64) -> i64 {
    integer as i64
}

/// The nearest integer, a tie to even, for numbers below 2^31.
#[inline(always)]
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

#[cfg(test)]
mod tests {
    use std::iter::once;

    use proptest::prelude::*;

    use super::*;

    const PROBABILITY: f64 = 1e-6;

    fn wide(values: &[f32]) -> Vec<f64> {
        values.iter().copied().map(f64::from).collect()
    }

    fn dot(left: &[f64], right: &[f64]) -> f64 {
        left.iter()
            .zip(right)
            .map(|(left, right)| left * right)
            .sum()
    }

    /// All parts against their definitions in the [module](crate::screen).
    fn check(query: &RowQuery, centres: &[f32], scales: &[f32]) {
        let screen = Screen {
            codes: &[],
            block_scales: &[],
            block_norms: &[],
            channel_centres: centres,
            channel_scales: scales,
        };
        let found = IntegerQuery::new(query, &screen, PROBABILITY);
        let mut dense = vec![0.0; centres.len()];
        for (span, values) in query.parts() {
            dense[span].copy_from_slice(values);
        }
        let (dense, centres, scales) = (wide(&dense), wide(centres), wide(scales));
        let scaled: Vec<f64> = dense
            .iter()
            .zip(scales)
            .map(|(value, scale)| value * scale)
            .collect();
        let largest = scaled
            .iter()
            .fold(0.0_f64, |largest, value| largest.max(value.abs()));
        let step = largest / f64::from(INTEGER_MAX);
        let integers = found.groups.as_flattened();
        let multiples: Vec<f64> = integers
            .iter()
            .map(|&integer| f64::from(integer) * step)
            .collect();
        let rests = scaled
            .iter()
            .zip(&multiples)
            .map(|(value, multiple)| (value - multiple).abs());
        let rests: Vec<f64> = rests.collect();
        assert!(rests.iter().all(|&rest| rest <= 0.5 * step * (1.0 + 1e-6)));
        assert!(integers[scaled.len()..].iter().all(|&integer| integer == 0));
        assert_eq!(
            found.offset,
            -128 * integers.iter().copied().map(i64::from).sum::<i64>()
        );
        near(found.bound.step, step);
        near(found.bound.centre, dot(&dense, &centres));
        let chance = dot(&multiples, &multiples).sqrt() * (-PROBABILITY.ln() / 2.0).sqrt();
        near(found.bound.chance, chance);
        let rounding = 126.0 * rests.iter().sum::<f64>();
        assert!(found.bound.rounding >= rounding);
        assert!(found.bound.rounding <= rounding + 1e-6 * chance + f64::MIN_POSITIVE);
        let norm = dot(&dense, &dense).sqrt();
        near(
            found.bound.full_pass,
            norm * row_dot_error(query.values.len()),
        );
        let sizes: f64 = dense
            .iter()
            .zip(&centres)
            .map(|(value, centre)| (value * centre).abs())
            .sum();
        let columns = f64::from(u32::try_from(query.values.len()).unwrap());
        near(
            found.bound.constant,
            SLACK * sizes + columns * ROW_DOT_UNDERFLOW,
        );
        let largest = found.bound.norm_max * norm;
        assert!(norm == 0.0 || (largest * 2.0 / f64::from(f32::MAX) - 1.0).abs() < 1e-6);
    }

    fn near(found: f64, expected: f64) {
        let error = (found - expected).abs();
        assert!(
            error <= 1e-7 * expected.abs() + 1e-300,
            "{found} is not {expected}"
        );
    }

    proptest! {
        #[test]
        fn parts_are_as_defined(
            centres in prop::collection::vec(-2.0_f32..2.0, 300),
            scales in prop::collection::vec(0.0_f32..3.0, 300),
            values in prop::collection::vec(1.0_f32..9.0, 300),
            start in 0_usize..150,
            middle in 1_usize..70,
            end in 221_usize..=300,
        ) {
            let spans = vec![start..start + middle, 220..end];
            let columns = middle + end - 220;
            let query = RowQuery::new(spans, values[..columns].to_vec());
            check(&query, &centres, &scales);
        }
    }

    #[test]
    fn an_upper_end_holds_every_error() {
        let bound = Bound {
            centre: 5.0,
            step: 0.5,
            chance: 2.0,
            rounding: 0.25,
            full_pass: 0.125,
            constant: 0.0625,
            norm_max: 100.0,
        };
        near(bound.score(6, 3.0), 14.0);
        near(
            bound.upper(14.0, 3.0, 8.0),
            14.0 + 3.0 * 2.25 + 1.0 + 0.0625,
        );
        assert!(bound.upper(14.0, 3.0, 99.0).is_finite());
        assert!(bound.upper(14.0, 3.0, 100.0).is_infinite());
    }

    #[test]
    fn runs_are_the_groups_with_a_column() {
        let check = |spans: &[Range<usize>], expected: &[Range<usize>]| {
            let values = vec![1.0; spans.iter().map(ExactSizeIterator::len).sum()];
            assert_eq!(runs(&RowQuery::new(spans.to_vec(), values)), expected);
        };
        check(&[0..1, 3..64, 70..71], std::slice::from_ref(&(0..2)));
        check(&[63..65, 130..300, 384..385], &[0..5, 6..7]);
    }

    #[test]
    fn a_query_of_nothing_has_no_error() {
        check(&RowQuery::new(vec![], vec![]), &[1.0; 3], &[1.0; 3]);
        check(
            &RowQuery::new(once(1..3).collect(), vec![1.0, -2.0]),
            &[0.0; 3],
            &[0.0; 3],
        );
    }
}
