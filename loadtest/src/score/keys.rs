//! Keys without a model, with what makes those of real models awkward.
//!
//! For each (layer, KV head): channels have means of about 1, but for four outlier channels whose
//! means are 8 to 12 and whose spread is double, as keys of Llama and Qwen models have them.
//! Blocks differ from the means by half a channel's spread (what a block's tokens have in common,
//! and what is left of their noise over 16 of them), times the block's own factor, the root of
//! four over a chi-squared of four degrees of freedom: Student's t, so that a few blocks stand out
//! by far. Nothing is planted for a query to find: the best scores lie as close together as those
//! of chance do, which is the hard case for a screen.

use std::ops::Range;

use half::{f16, slice::HalfFloatSliceExt};
use kvatlas::routing::query::WhichTable;
use kvatlas_kernels::score::{Elements, Table};

use super::{ModelShape, noise::rough_normal};
use crate::random::Random;

pub const BLOCK_TOKENS: u32 = 16;

const OUTLIER_CHANNELS: usize = 4;
const OUTLIER_MEANS: Range<f64> = 8.0..12.0;
const OUTLIER_SPREAD: f32 = 2.0;
/// Of a block's mean, in units of the channel's spread.
const BLOCK_SPREAD: f32 = 0.5;
/// Blocks stand out by at most so much.
const BLOCK_FACTOR_MAX: f32 = 8.0;
/// Of the tokens of a block about its mean.
const TOKEN_SPREAD: f32 = 0.9;
/// How far the largest of 16 normal tokens lies from the mean, and the spread of that.
const LARGEST_OF_BLOCK: (f32, f32) = (1.77, 0.4);

/// Which tables there are besides the means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Further {
    pub extremes: bool,
    pub magnitudes: bool,
}

/// A key summary's tables, as the service keeps them, in memory of this process. Where less than
/// all blocks are measured, the first of them are.
#[derive(Debug)]
pub struct Keys {
    pub shape: ModelShape,
    pub blocks: usize,
    /// `[blocks, layers, kv_heads, head_dim]`.
    pub means: Vec<f16>,
    /// `[blocks, layers, kv_heads, 2, head_dim]`, or empty.
    pub extremes: Vec<f16>,
    /// `[blocks, layers, kv_heads, head_dim / 2]`, or empty.
    pub magnitudes: Vec<f16>,
}

impl Keys {
    /// Draws all tables, on so many threads; their number changes nothing.
    #[must_use]
    pub fn draw(
        shape: ModelShape,
        blocks: usize,
        further: Further,
        threads: usize,
        random: &Random,
    ) -> Self {
        let width = shape.width();
        let zeros = |columns: usize, wanted: bool| {
            vec![f16::ZERO; if wanted { columns * blocks } else { 0 }]
        };
        let mut keys = Self {
            shape,
            blocks,
            means: zeros(width, true),
            extremes: zeros(2 * width, further.extremes),
            magnitudes: zeros(width / 2, further.magnitudes),
        };
        let channels = Channel::draw_all(shape, &mut random.branch(0));
        let each = blocks.div_ceil(threads);
        let mut means = keys.means.chunks_mut(each * width);
        let mut extremes = keys.extremes.chunks_mut(each * width * 2);
        let mut magnitudes = keys.magnitudes.chunks_mut(each * width / 2);
        std::thread::scope(|scope| {
            for first in (0..blocks).step_by(each) {
                let mut rows = Rows {
                    channels: &channels,
                    head_dim: shape.head_dim,
                    means: means.next().unwrap_or_default(),
                    extremes: extremes.next().unwrap_or_default(),
                    magnitudes: magnitudes.next().unwrap_or_default(),
                };
                scope.spawn(move || rows.fill(first, random));
            }
        });
        keys
    }

    /// The first `blocks` rows of a table.
    #[must_use]
    pub fn table(&self, which: WhichTable, blocks: usize) -> Table<'_> {
        match which {
            WhichTable::Means => rows(&self.means, self.shape.width(), blocks),
            WhichTable::Extremes => rows(&self.extremes, self.shape.width() * 2, blocks),
        }
    }

    /// The first `blocks` rows of the magnitudes.
    #[must_use]
    pub fn magnitudes(&self, blocks: usize) -> Table<'_> {
        rows(&self.magnitudes, self.shape.width() / 2, blocks)
    }
}

fn rows(elements: &[f16], width: usize, blocks: usize) -> Table<'_> {
    Table::new(Elements::F16(&elements[..blocks * width]), width)
}

/// A channel over all blocks.
#[derive(Debug, Clone, Copy)]
struct Channel {
    mean: f32,
    spread: f32,
}

impl Channel {
    fn draw_all(shape: ModelShape, random: &mut Random) -> Vec<Self> {
        let mut channels: Vec<Self> = (0..shape.width())
            .map(|_| Self {
                mean: rough_normal(random),
                spread: 1.0,
            })
            .collect();
        for head in channels.chunks_exact_mut(shape.head_dim) {
            for _ in 0..OUTLIER_CHANNELS {
                let size =
                    OUTLIER_MEANS.start + (OUTLIER_MEANS.end - OUTLIER_MEANS.start) * random.unit();
                head[random.below(shape.head_dim)] = Self {
                    mean: narrow(size) * rough_normal(random).signum(),
                    spread: OUTLIER_SPREAD,
                };
            }
        }
        channels
    }
}

/// Some rows of all tables.
struct Rows<'a> {
    channels: &'a [Channel],
    head_dim: usize,
    means: &'a mut [f16],
    extremes: &'a mut [f16],
    magnitudes: &'a mut [f16],
}

impl Rows<'_> {
    fn fill(&mut self, first: usize, random: &Random) {
        let width = self.channels.len();
        let mut extremes = self.extremes.chunks_exact_mut(width * 2);
        let mut magnitudes = self.magnitudes.chunks_exact_mut(width / 2);
        let mut row = Row::new(width, self.head_dim);
        for (at, means) in self.means.chunks_exact_mut(width).enumerate() {
            let mut random = random.branch((first + at) as u64 + 1);
            row.draw_means(self.channels, &mut random);
            means.convert_from_f32_slice(&row.means);
            if let Some(extremes) = extremes.next() {
                extremes.convert_from_f32_slice(row.draw_extremes(&mut random));
            }
            if let Some(magnitudes) = magnitudes.next() {
                magnitudes.convert_from_f32_slice(row.magnitudes());
            }
        }
    }
}

/// One block.
struct Row {
    head_dim: usize,
    means: Vec<f32>,
    /// Of the tokens about the mean.
    spreads: Vec<f32>,
    others: Vec<f32>,
}

impl Row {
    fn new(width: usize, head_dim: usize) -> Self {
        Self {
            head_dim,
            means: vec![0.0; width],
            spreads: vec![0.0; width],
            others: Vec::with_capacity(width * 2),
        }
    }

    fn draw_means(&mut self, channels: &[Channel], random: &mut Random) {
        let heads = channels.chunks_exact(self.head_dim);
        let of_heads = (self.means.chunks_exact_mut(self.head_dim))
            .zip(self.spreads.chunks_exact_mut(self.head_dim));
        for (channels, (means, spreads)) in heads.zip(of_heads) {
            let factor = block_factor(random);
            for (channel, (mean, spread)) in channels.iter().zip(means.iter_mut().zip(spreads)) {
                let scale = channel.spread * factor;
                *mean = channel.mean + scale * BLOCK_SPREAD * rough_normal(random);
                *spread = scale * TOKEN_SPREAD;
            }
        }
    }

    fn draw_extremes(&mut self, random: &mut Random) -> &[f32] {
        let (middle, spread_of_it) = LARGEST_OF_BLOCK;
        self.others.clear();
        let heads =
            (self.means.chunks_exact(self.head_dim)).zip(self.spreads.chunks_exact(self.head_dim));
        for (means, spreads) in heads {
            for sign in [-1.0, 1.0] {
                self.others
                    .extend(means.iter().zip(spreads).map(|(mean, spread)| {
                        let reach = (middle + spread_of_it * rough_normal(random)).max(0.1);
                        mean + sign * reach * spread
                    }));
            }
        }
        &self.others
    }

    /// Of two normal channels, roughly: the root of the mean square.
    fn magnitudes(&mut self) -> &[f32] {
        self.others.clear();
        let heads =
            (self.means.chunks_exact(self.head_dim)).zip(self.spreads.chunks_exact(self.head_dim));
        for (means, spreads) in heads {
            let half = self.head_dim / 2;
            let square = |at: usize| means[at].powi(2) + spreads[at].powi(2);
            self.others
                .extend((0..half).map(|band| (square(band) + square(band + half)).sqrt()));
        }
        &self.others
    }
}

fn block_factor(random: &mut Random) -> f32 {
    // A chi-squared of four degrees of freedom, from two exponential numbers.
    let exponential = |random: &mut Random| -(1.0 - random.unit()).ln();
    let squares = 2.0 * (exponential(random) + exponential(random));
    narrow((4.0 / squares).sqrt()).min(BLOCK_FACTOR_MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "to the precision of a draw"
)]
const fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ModelShape = ModelShape {
        layers: 2,
        query_heads: 4,
        kv_heads: 2,
        head_dim: 32,
    };
    const ALL: Further = Further {
        extremes: true,
        magnitudes: true,
    };

    #[test]
    fn threads_change_nothing() {
        let random = Random::new(3);
        let one = Keys::draw(SHAPE, 37, ALL, 1, &random);
        let many = Keys::draw(SHAPE, 37, ALL, 5, &random);
        assert_eq!(one.means, many.means);
        assert_eq!(one.extremes, many.extremes);
        assert_eq!(one.magnitudes, many.magnitudes);
        assert_ne!(one.means[..128], one.means[128..256], "blocks differ");
    }

    #[test]
    fn a_mean_lies_between_the_extremes_and_no_magnitude_is_below_it() {
        let keys = Keys::draw(SHAPE, 64, ALL, 2, &Random::new(4));
        let means = keys.table(WhichTable::Means, 64);
        let extremes = keys.table(WhichTable::Extremes, 64);
        let magnitudes = keys.magnitudes(64);
        for block in 0..64 {
            for part in 0..SHAPE.parts() {
                for at in 0..32 {
                    let mean = means.get(block, part * 32 + at);
                    let least = extremes.get(block, part * 64 + at);
                    let most = extremes.get(block, part * 64 + 32 + at);
                    assert!(least <= mean && mean <= most, "{least} {mean} {most}");
                    let magnitude = magnitudes.get(block, part * 16 + at % 16);
                    assert!(magnitude >= mean.abs() * 0.999, "{magnitude} {mean}");
                }
            }
        }
    }

    #[test]
    fn some_channels_and_some_blocks_stand_out() {
        let keys = Keys::draw(SHAPE, 512, ALL, 2, &Random::new(5));
        let table = keys.table(WhichTable::Means, 512);
        let mean = |column| (0..512).map(|row| table.get(row, column)).sum::<f32>() / 512.0;
        let outliers = (0..32).filter(|&column| mean(column).abs() > 6.0).count();
        assert!((2..=4).contains(&outliers), "{outliers} channels");
        let distance = |row| {
            let squares = (0..32).map(|column| (table.get(row, column) - mean(column)).powi(2));
            squares.sum::<f32>().sqrt()
        };
        let mut distances: Vec<f32> = (0..512).map(distance).collect();
        distances.sort_by(f32::total_cmp);
        assert!(distances[511] > 4.0 * distances[256], "{distances:?}");
    }
}
