//! Makes a screen from a table's rows, in two passes over them.

use half::slice::HalfFloatSliceExt as _;

use super::dither::Dither;
use super::vectors::vectorized;
use super::{CODE_REACH, CODE_ZERO, GROUP, Screen, elements};
use crate::score::{Elements, Table};

/// First pass: what the channels (columns) look like over all rows.
///
/// A row weighs one over the square of its typical size: its own scale takes its size out of it, so
/// a few huge rows shall not make the channels of all others coarse.
#[derive(Clone, Debug)]
pub struct ChannelStatistics {
    first: Vec<f32>,
    /// Of the last row, and of all rows.
    weight: f64,
    weights: f64,
    /// `[width]`: weighted sums of the distances from the first row, and of their squares.
    sums: Vec<f64>,
    squares: Vec<f64>,
    /// The row at hand.
    row: Vec<f32>,
}

/// Centre and scale of each channel, both finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Channels {
    pub centres: Vec<f32>,
    /// Zero for a channel in which all rows are equal to its centre.
    pub scales: Vec<f32>,
}

/// Second pass: turns rows into codes.
#[derive(Clone, Debug)]
pub struct Quantizer {
    channels: Channels,
    /// One over the channel's scale; zero where that is zero.
    inverses: Vec<f64>,
    seed: u64,
    /// The row at hand, and its values' distances from the centres as multiples of the scales.
    row: Vec<f32>,
    ratios: Vec<f64>,
}

/// What a row has besides its codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowScale {
    pub scale: f32,
    /// The row's Euclidean norm or a little more; infinite where f32 does not reach.
    pub norm: f32,
}

impl ChannelStatistics {
    #[must_use]
    pub fn new(width: usize) -> Self {
        Self {
            first: vec![0.0; width],
            weight: 1.0,
            weights: 0.0,
            sums: vec![0.0; width],
            squares: vec![0.0; width],
            row: vec![0.0; width],
        }
    }

    /// # Panics
    /// When the row has another width.
    pub fn add_row(&mut self, row: Elements<'_>) {
        widen(row, &mut self.row);
        // A row of zeros, which has no size, weighs as much as the row before.
        if let Some(size) = typical_size(&self.row) {
            self.weight = (size * size).recip();
        }
        if self.weights == 0.0 {
            self.first.copy_from_slice(&self.row);
        }
        self.weights += self.weight;
        let Self {
            row,
            first,
            weight,
            sums,
            squares,
            ..
        } = self;
        add_distances(row, first, *weight, sums, squares);
    }

    /// Weighted mean and standard deviation of each channel.
    #[must_use]
    pub fn finish(&self) -> Channels {
        let channel = |(column, &first): (usize, &f32)| {
            // The weighted square of no f32 vanishes in f64, so then all rows are equal.
            if self.squares[column] == 0.0 {
                return (first, 0.0);
            }
            let mean = self.sums[column] / self.weights;
            let variance = self.squares[column] / self.weights - mean * mean;
            let scale = narrow(variance.max(0.0).sqrt());
            (
                narrow(f64::from(first) + mean),
                scale.clamp(f32::MIN_POSITIVE, f32::MAX),
            )
        };
        let (centres, scales) = self.first.iter().enumerate().map(channel).unzip();
        Channels { centres, scales }
    }
}

impl Quantizer {
    /// `seed` must be unpredictable to whoever makes queries; see the [module](super).
    #[must_use]
    pub fn new(channels: Channels, seed: u64) -> Self {
        let inverses = channels
            .scales
            .iter()
            .map(|&scale| inverse(scale))
            .collect();
        Self {
            inverses,
            seed,
            row: vec![0.0; channels.scales.len()],
            ratios: vec![0.0; channels.scales.len()],
            channels,
        }
    }

    #[must_use]
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Writes the codes of a row of the first pass. The same seed, index and row give the same
    /// codes, in whatever order the rows come.
    ///
    /// # Panics
    /// When the row or the codes have another width.
    pub fn quantize_row(&mut self, index: usize, row: Elements<'_>, codes: &mut [u8]) -> RowScale {
        assert_eq!(codes.len(), self.row.len(), "a code for each column");
        widen(row, &mut self.row);
        let (centres, ratios) = (&self.channels.centres, &mut self.ratios);
        let scale = row_scale(ratios_of(&self.row, centres, &self.inverses, ratios));
        if !scale.is_finite() {
            // Such a row is never screened out.
            codes.fill(CODE_ZERO);
            return RowScale {
                scale: 0.0,
                norm: f32::INFINITY,
            };
        }
        let dither = Dither {
            seed: self.seed,
            row: index as u64,
        };
        dithered(ratios, inverse(scale), dither, codes);
        RowScale {
            scale,
            norm: upwards(square_sum(&self.row).sqrt()),
        }
    }
}

/// A screen in memory of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedScreen {
    pub channels: Channels,
    pub codes: Vec<u8>,
    pub block_scales: Vec<f32>,
    pub block_norms: Vec<f32>,
}

impl OwnedScreen {
    /// Both passes over a table.
    #[must_use]
    pub fn new(table: &Table<'_>, seed: u64) -> Self {
        let row = |row: usize| elements(table, row..row + 1);
        let mut statistics = ChannelStatistics::new(table.width);
        for index in 0..table.rows() {
            statistics.add_row(row(index));
        }
        let mut quantizer = Quantizer::new(statistics.finish(), seed);
        let mut codes = vec![CODE_ZERO; table.rows() * table.width];
        let rows = codes.chunks_exact_mut(table.width).enumerate();
        let scales = rows.map(|(index, codes)| quantizer.quantize_row(index, row(index), codes));
        let (block_scales, block_norms) = scales.map(|row| (row.scale, row.norm)).unzip();
        Self {
            channels: quantizer.channels,
            codes,
            block_scales,
            block_norms,
        }
    }

    #[must_use]
    pub fn view(&self) -> Screen<'_> {
        Screen {
            codes: &self.codes,
            block_scales: &self.block_scales,
            block_norms: &self.block_norms,
            channel_centres: &self.channels.centres,
            channel_scales: &self.channels.scales,
        }
    }
}

/// Values that the loops below work on together.
const LANES: usize = 16;

vectorized! {
    fn add_distances(
        row: &[f32],
        first: &[f32],
        weight: f64,
        sums: &mut [f64],
        squares: &mut [f64],
    ) {
        let sums = sums.iter_mut().zip(squares);
        for ((sum, square), (&value, &first)) in sums.zip(row.iter().zip(first)) {
            let distance = f64::from(value) - f64::from(first);
            *sum += weight * distance;
            *square += weight * distance * distance;
        }
    }
}

/// The power of two that the values are near, on average over those that are not zero. The average
/// of exponents hardly knows of a huge channel.
fn typical_size(row: &[f32]) -> Option<f64> {
    let (sum, count) = exponents(row);
    (count > 0).then(|| (f64::from(sum) / f64::from(count) - f64::from(EXPONENT_BIAS)).exp2())
}

/// Of f32.
const EXPONENT_BIAS: u8 = 127;

vectorized! {
    /// Sum and number of the exponents of normal numbers.
    fn exponents(row: &[f32]) -> (u32, u32) {
        let (mut sum, mut count) = (0, 0);
        for value in row {
            let exponent = value.to_bits() >> (f32::MANTISSA_DIGITS - 1) & 0xff;
            sum += exponent;
            count += u32::from(exponent > 0);
        }
        (sum, count)
    }
}

vectorized! {
    /// The largest ratio, without its sign.
    fn ratios_of(row: &[f32], centres: &[f32], inverses: &[f64], ratios: &mut [f64]) -> f64 {
        let channels = centres.iter().zip(inverses);
        for ((ratio, &value), (&centre, &inverse)) in ratios.iter_mut().zip(row).zip(channels) {
            *ratio = (f64::from(value) - f64::from(centre)) * inverse;
        }
        let mut largest = [0.0_f64; LANES];
        for ratios in ratios.chunks(LANES) {
            for (largest, ratio) in largest.iter_mut().zip(ratios) {
                *largest = if ratio.abs() > *largest {
                    ratio.abs()
                } else {
                    *largest
                };
            }
        }
        largest.into_iter().fold(0.0, f64::max)
    }
}

vectorized! {
    fn square_sum(row: &[f32]) -> f64 {
        let mut sums = [0.0_f64; LANES];
        for values in row.chunks(LANES) {
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum += f64::from(value) * f64::from(value);
            }
        }
        sums.into_iter().sum()
    }
}

vectorized! {
    /// For each ratio times `inverse` one of the two integers beside it, such that it is the mean.
    fn dithered(ratios: &[f64], inverse: f64, dither: Dither, codes: &mut [u8]) {
        /// Added to a number, it leaves the nearest integer in the lowest bits.
        const ALIGN: f64 = (1_u64 << 52) as f64 * 1.5;
        const WHOLE: f64 = (1_u64 << 32) as f64;
        // Between -1/2 and 1/2, so that the nearest integer is what the floor is with a fraction.
        let shift = |bits: u32| (f64::from(bits) + 0.5) / WHOLE - 0.5;
        let groups = ratios.chunks(GROUP).zip(codes.chunks_mut(GROUP));
        for (group, (ratios, codes)) in (0..).zip(groups) {
            let bits = dither.group(group);
            for ((code, &ratio), &bits) in codes.iter_mut().zip(ratios).zip(bits.as_flattened()) {
                let number = ratio * inverse + shift(bits) + f64::from(CODE_ZERO);
                *code = lowest_byte((number + ALIGN).to_bits());
            }
        }
    }
}

/// The scale with which the row's largest ratio lands within [`CODE_REACH`].
fn row_scale(largest: f64) -> f32 {
    if largest > 0.0 {
        upwards(largest / CODE_REACH).max(f32::MIN_POSITIVE)
    } else {
        0.0
    }
}

fn inverse(scale: f32) -> f64 {
    if scale > 0.0 {
        1.0 / f64::from(scale)
    } else {
        0.0
    }
}

/// To f32, never to a smaller number.
fn upwards(number: f64) -> f32 {
    narrow(number).next_up()
}

#[expect(clippy::cast_possible_truncation, reason = "to the nearest f32")]
fn narrow(number: f64) -> f32 {
    number as f32
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lowest byte")]
fn lowest_byte(bits: u64) -> u8 {
    bits as u8
}

fn widen(row: Elements<'_>, into: &mut [f32]) {
    assert_eq!(row.len(), into.len(), "a row has a value for each column");
    match row {
        Elements::F16(row) => row.convert_to_f32_slice(into),
        Elements::F32(row) => into.copy_from_slice(row),
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    fn channels(rows: &[&[f32]]) -> Channels {
        let mut statistics = ChannelStatistics::new(rows[0].len());
        for row in rows {
            statistics.add_row(Elements::F32(row));
        }
        statistics.finish()
    }

    fn check(rows: &[&[f32]], centres: &[f32], scales: &[f32]) {
        let found = channels(rows);
        for (found, expected) in [(&found.centres, centres), (&found.scales, scales)] {
            for (found, expected) in found.iter().zip(expected) {
                let error = (f64::from(*found) - f64::from(*expected)).abs();
                assert!(
                    error <= f64::from(expected.abs()) * 1e-6,
                    "{found} is not {expected}"
                );
            }
        }
    }

    #[test]
    fn channels_have_mean_and_deviation() {
        check(
            &[&[4.0, 5.0], &[5.0, 5.0], &[6.0, 5.0]],
            &[5.0, 5.0],
            &[0.816_496_6, 0.0],
        );
        // A spread far below the value, where squares of the values themselves would cancel.
        let (low, high) = (1e6, 1_000_000.1);
        check(
            &[&[low], &[high]],
            &[0.5 * (low + high)],
            &[0.5 * (high - low)],
        );
        // Ends of f32.
        check(&[&[f32::MAX], &[-f32::MAX]], &[0.0], &[f32::MAX]);
        check(&[&[1e-45], &[0.0]], &[0.0], &[f32::MIN_POSITIVE]);
        check(&[&[0.25]], &[0.25], &[0.0]);
        // A row of 4,096 times the size weighs 2^-24 of the other, and deviates as much as it.
        check(&[&[1.0], &[4096.0]], &[1.000_244], &[0.999_755_9]);
        check(&[&[4096.0], &[0.0], &[1.0]], &[1.000_244], &[0.999_755_9]);
    }

    /// Codes of a row with these ratios, the last being the largest.
    fn codes(ratios: &[f32], seed: u64, index: usize) -> Vec<u8> {
        let channels = Channels {
            centres: vec![0.0; ratios.len()],
            scales: vec![1.0; ratios.len()],
        };
        let mut codes = vec![0; ratios.len()];
        let row = Elements::F32(ratios);
        let scale = Quantizer::new(channels, seed)
            .quantize_row(index, row, &mut codes)
            .scale;
        assert!(
            (scale - 1.0).abs() < 1e-6,
            "the last ratio makes the scale 1"
        );
        codes
    }

    #[test]
    fn a_code_is_beside_its_ratio_and_right_on_average() {
        let ratios = [0.0, 0.25, -0.25, 99.9, -125.5, -126.0, 126.0];
        let rows = 4000_u16;
        let mut sums = [0.0; 7];
        for index in 0..rows {
            let codes = codes(&ratios, 3, usize::from(index));
            for (sum, (code, ratio)) in sums.iter_mut().zip(codes.into_iter().zip(ratios)) {
                let code = f64::from(code) - f64::from(CODE_ZERO);
                assert!(
                    (code - f64::from(ratio)).abs() < 1.0 + 1e-4,
                    "{ratio} became {code}"
                );
                *sum += code;
            }
        }
        for (sum, ratio) in sums.into_iter().zip(ratios) {
            let error = sum / f64::from(rows) - f64::from(ratio);
            // Five standard deviations of the mean.
            assert!(
                error.abs() < 5.0 * 0.5 / f64::from(rows).sqrt(),
                "{ratio}: {error}"
            );
        }
    }

    #[test]
    fn seed_and_index_make_the_codes() {
        let mut ratios = vec![0.5; 200];
        ratios[199] = 126.0;
        assert_eq!(codes(&ratios, 1, 5), codes(&ratios, 1, 5));
        assert_ne!(codes(&ratios, 1, 5), codes(&ratios, 1, 6));
        assert_ne!(codes(&ratios, 1, 5), codes(&ratios, 2, 5));
    }

    #[test]
    fn f16_and_f32_rows_make_the_same_screen() {
        let narrow: Vec<f16> = (0..60_u16).map(f16::from_bits).collect();
        let wide: Vec<f32> = narrow.iter().copied().map(f16::to_f32).collect();
        let narrow = OwnedScreen::new(&Table::new(Elements::F16(&narrow), 12), 9);
        assert_eq!(
            narrow,
            OwnedScreen::new(&Table::new(Elements::F32(&wide), 12), 9)
        );
    }

    #[test]
    fn norms_are_not_below_the_truth() {
        let rows = [3.0, 4.0, 0.0, 0.0, f32::MAX, f32::MAX, 1e-45, 0.0];
        let screen = OwnedScreen::new(&Table::new(Elements::F32(&rows), 2), 1);
        let norms = screen.block_norms;
        assert!(norms[0] >= 5.0 && norms[0] < 5.000_01);
        assert!(norms[1] >= 0.0 && norms[1] < 1e-40);
        assert!(norms[2].is_infinite());
        assert!(norms[3] >= 1e-45 && norms[3] < 1e-40);
    }
}
