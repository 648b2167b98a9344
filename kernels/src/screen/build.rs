//! Makes a screen from a table's rows, in two passes over them.

use half::slice::HalfFloatSliceExt as _;

use super::{CODE_REACH, CODE_ZERO, Screen};
use crate::score::{Elements, Table};

/// First pass: what the channels (columns) look like over all rows.
#[derive(Clone, Debug)]
pub struct ChannelStatistics {
    rows: u64,
    first: Vec<f32>,
    /// `[width]`: whether a row differs from the first.
    varies: Vec<bool>,
    /// `[width]`: sums of the distances from the first row, and of their squares.
    sums: Vec<f64>,
    squares: Vec<f64>,
    row: Vec<f32>,
}

/// Centre and scale of each channel.
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
    dither: Dither,
    row: Vec<f32>,
    ratios: Vec<f64>,
}

/// What a row has besides its codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowScale {
    pub scale: f32,
    /// The row's Euclidean norm or a little more; infinite where that is beyond f32.
    pub norm: f32,
}

impl ChannelStatistics {
    #[must_use]
    pub fn new(width: usize) -> Self {
        Self {
            rows: 0,
            first: vec![0.0; width],
            varies: vec![false; width],
            sums: vec![0.0; width],
            squares: vec![0.0; width],
            row: vec![0.0; width],
        }
    }

    /// # Panics
    /// When the row has another width, or with a value that is not finite.
    pub fn add_row(&mut self, row: Elements<'_>) {
        widen(row, &mut self.row);
        if self.rows == 0 {
            self.first.copy_from_slice(&self.row);
        }
        self.rows += 1;
        let sums = self.sums.iter_mut().zip(&mut self.squares);
        let rows = self.row.iter().zip(&self.first).zip(&mut self.varies);
        for ((sum, square), ((&value, &first), varies)) in sums.zip(rows) {
            // Exact, or so near that the spread does not suffer.
            let distance = f64::from(value) - f64::from(first);
            *sum += distance;
            *square += distance * distance;
            *varies |= distance != 0.0;
        }
    }

    /// Mean and standard deviation of each channel.
    #[must_use]
    pub fn finish(&self) -> Channels {
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53 rows")]
        let rows = self.rows.max(1) as f64;
        let channel = |column: usize| {
            let first = self.first[column];
            if !self.varies[column] {
                return (first, 0.0);
            }
            let mean = self.sums[column] / rows;
            let variance = (self.squares[column] / rows - mean * mean).max(0.0);
            let scale = narrow(variance.sqrt()).clamp(f32::MIN_POSITIVE, f32::MAX);
            (narrow(f64::from(first) + mean), scale)
        };
        let (centres, scales) = (0..self.first.len()).map(channel).unzip();
        Channels { centres, scales }
    }
}

impl Quantizer {
    /// `seed` must be unpredictable to whoever makes queries; see the [module](super).
    #[must_use]
    pub fn new(channels: Channels, seed: u64) -> Self {
        let inverse = |&scale: &f32| {
            if scale > 0.0 {
                1.0 / f64::from(scale)
            } else {
                0.0
            }
        };
        Self {
            inverses: channels.scales.iter().map(inverse).collect(),
            dither: Dither::new(seed),
            row: vec![0.0; channels.scales.len()],
            ratios: vec![0.0; channels.scales.len()],
            channels,
        }
    }

    #[must_use]
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Writes the codes of the row with this index. The same seed, index and row give the same
    /// codes, in whatever order the rows come.
    ///
    /// # Panics
    /// When the row or the codes have another width, or with a value that is not finite.
    pub fn quantize_row(&mut self, index: usize, row: Elements<'_>, codes: &mut [u8]) -> RowScale {
        assert_eq!(codes.len(), self.row.len(), "a code for each column");
        widen(row, &mut self.row);
        let channels = self.channels.centres.iter().zip(&self.inverses);
        let mut largest = 0.0_f64;
        let mut square = 0.0_f64;
        for ((ratio, &value), (&centre, &inverse)) in
            self.ratios.iter_mut().zip(&self.row).zip(channels)
        {
            let value = f64::from(value);
            *ratio = (value - f64::from(centre)) * inverse;
            largest = largest.max(ratio.abs());
            square += value * value;
        }
        let scale = row_scale(largest);
        let inverse = if scale > 0.0 {
            1.0 / f64::from(scale)
        } else {
            0.0
        };
        let pairs = codes.chunks_mut(2).zip(self.ratios.chunks(2));
        for (pair, (codes, ratios)) in pairs.enumerate() {
            let fractions = self.dither.pair(index, pair);
            for ((code, &ratio), fraction) in codes.iter_mut().zip(ratios).zip(fractions) {
                *code = dithered(ratio * inverse, fraction);
            }
        }
        RowScale {
            scale,
            norm: upwards(square.sqrt()),
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
        let row = |row: usize| {
            let columns = row * table.width..(row + 1) * table.width;
            match table.elements {
                Elements::F16(elements) => Elements::F16(&elements[columns]),
                Elements::F32(elements) => Elements::F32(&elements[columns]),
            }
        };
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

/// Random fractions by counter: any row can be made again without those before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dither {
    key: u64,
}

impl Dither {
    pub(super) fn new(seed: u64) -> Self {
        Self { key: mix(seed) }
    }

    /// The fractions of columns `2 * pair` and the next, in [0, 1) with 32 bits.
    pub(super) fn pair(self, row: usize, pair: usize) -> [f64; 2] {
        const WHOLE: f64 = (1_u64 << 32) as f64;
        // Row and pair are counted in u32 (see COLUMNS_MAX, and blocks fit u32).
        let counter = (row as u64) << 32 | pair as u64;
        let bits = mix(self.key ^ mix(counter.wrapping_add(GOLDEN)));
        [bits >> 32, bits & u64::from(u32::MAX)].map(|half| half as f64 / WHOLE)
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// `floor(ratio + fraction)`, whose mean over the fraction is `ratio`.
fn dithered(ratio: f64, fraction: f64) -> u8 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and 255 by the choice of the row's scale"
    )]
    let code = (ratio + fraction + f64::from(CODE_ZERO)).floor() as u8;
    code
}

/// The scale with which the row's largest ratio lands within [`CODE_REACH`].
fn row_scale(largest: f64) -> f32 {
    if largest > 0.0 {
        upwards(largest / CODE_REACH).max(f32::MIN_POSITIVE)
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

fn widen(row: Elements<'_>, into: &mut [f32]) {
    assert_eq!(row.len(), into.len(), "a row has a value for each column");
    match row {
        Elements::F16(row) => row.convert_to_f32_slice(into),
        Elements::F32(row) => into.copy_from_slice(row),
    }
}
