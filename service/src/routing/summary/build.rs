//! Turns a file's tensors into tables of block rows, a tile of blocks at a time.
//!
//! Files hold one head after the other, tables one block after the other. A tile is as many rows
//! as stay in the cache while every head is read once along its blocks: long reads, short writes.

use half::f16;
use half::slice::HalfFloatSliceExt;
use kvatlas_kernels::score::Elements;
use kvatlas_kernels::screen::{CODE_ZERO, ChannelStatistics, Quantizer, WIDTH_MAX};

use super::block::{Figures, KeySums, check};
use super::content::{Source, SummaryTensors, Tensors};
use super::error::{PutSummaryError, ValueProblem};
use super::record::{Lengths, ScreenBlobs, TableBlobs};
use crate::routing::frame::SummaryShape;
use crate::routing::import::TensorView;
use crate::store::{BlobRef, BlobWriter, Store, StoreError};

/// Rows of all tables that are made at a time; one row at least.
const TILE_BYTES: usize = 4 << 20;

/// Blobs that no record refers to yet. Dropped, they are removed.
#[derive(Debug)]
pub(super) struct NewBlobs<'s> {
    store: &'s Store,
    finished: Vec<BlobRef>,
}

impl<'s> NewBlobs<'s> {
    pub(super) fn new(store: &'s Store) -> Self {
        Self {
            store,
            finished: Vec::new(),
        }
    }

    /// Leaves the blobs to the record that is about to refer to them.
    pub(super) fn keep(&mut self) {
        self.finished.clear();
    }

    fn finish(&mut self, writer: BlobWriter<'_>) -> Result<BlobRef, StoreError> {
        let blob = writer.finish()?;
        self.finished.push(blob);
        Ok(blob)
    }
}

impl Drop for NewBlobs<'_> {
    fn drop(&mut self) {
        for blob in &self.finished {
            if let Err(error) = self.store.remove_blob(blob) {
                tracing::warn!(%error, blob = %blob.name, "a blob without a key summary is left");
            }
        }
    }
}

/// Writes the tables of a source and their screens. `is_wanted` is asked now and then.
///
/// # Errors
/// A number that cannot be stored, a failing disk, and when the tables are not wanted any more.
pub(super) fn build(
    new: &mut NewBlobs<'_>,
    source: &Source<'_>,
    shape: &SummaryShape,
    dither_seed: u64,
    is_wanted: &dyn Fn() -> bool,
) -> Result<TableBlobs, PutSummaryError> {
    let store = new.store;
    let Lengths { width, .. } = Lengths::of(shape);
    let mut means = Rows::create(store, width)?;
    let mut inverse_norms = store.blob_writer()?;
    let optional = |has: bool, width| has.then(|| Rows::create(store, width)).transpose();
    let mut extremes = optional(shape.has_extremes, 2 * width)?;
    let writer = |has: bool| has.then(|| store.blob_writer()).transpose();
    let mut magnitudes = writer(shape.has_magnitudes)?;

    let mut tile = Tile::new(shape);
    let mut reader = Reader::new(source, shape);
    let mut first = 0;
    while first < source.blocks {
        if !is_wanted() {
            return Err(PutSummaryError::Unwanted);
        }
        tile.rows = tile.rows.min(source.blocks - first);
        reader.fill(&mut tile, first)?;
        means.write(tile.means())?;
        inverse_norms.write(bytemuck::cast_slice(tile.inverse_norms()))?;
        if let Some(extremes) = &mut extremes {
            extremes.write(tile.extremes())?;
        }
        if let Some(magnitudes) = &mut magnitudes {
            magnitudes.write(bytemuck::cast_slice(tile.magnitudes()))?;
        }
        first += tile.rows;
    }
    let (means, screen) = means.finish(new, dither_seed, is_wanted)?;
    let extremes = extremes.map(|rows| rows.finish(new, dither_seed, is_wanted));
    let (extremes, extremes_screen) = extremes.transpose()?.unzip();
    Ok(TableBlobs {
        means,
        inverse_norms: new.finish(inverse_norms)?,
        extremes,
        magnitudes: magnitudes.map(|writer| new.finish(writer)).transpose()?,
        screen,
        extremes_screen: extremes_screen.flatten(),
    })
}

/// A table of f16 rows on its way to the disk, and what a screen of it has to know before.
struct Rows<'s> {
    writer: BlobWriter<'s>,
    width: usize,
    /// None where the rows are too wide for a screen.
    statistics: Option<ChannelStatistics>,
}

impl<'s> Rows<'s> {
    fn create(store: &'s Store, width: usize) -> Result<Self, StoreError> {
        Ok(Self {
            writer: store.blob_writer()?,
            width,
            statistics: (width <= WIDTH_MAX).then(|| ChannelStatistics::new(width)),
        })
    }

    fn write(&mut self, rows: &[f16]) -> Result<(), StoreError> {
        if let Some(statistics) = &mut self.statistics {
            for row in rows.chunks_exact(self.width) {
                statistics.add_row(Elements::F16(row));
            }
        }
        self.writer.write(bytemuck::cast_slice(rows))
    }

    fn finish(
        self,
        new: &mut NewBlobs<'_>,
        dither_seed: u64,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(BlobRef, Option<ScreenBlobs>), PutSummaryError> {
        let table = new.finish(self.writer)?;
        let Some(statistics) = self.statistics else {
            return Ok((table, None));
        };
        let mut quantizer = Quantizer::new(statistics.finish(), dither_seed);
        let screen = write_screen(new, &table, &mut quantizer, is_wanted)?;
        Ok((table, Some(screen)))
    }
}

/// Reads a table again and writes its screen.
fn write_screen(
    new: &mut NewBlobs<'_>,
    table: &BlobRef,
    quantizer: &mut Quantizer,
    is_wanted: &dyn Fn() -> bool,
) -> Result<ScreenBlobs, PutSummaryError> {
    let store = new.store;
    let table = store.map_blob(table)?;
    let table: &[f16] = bytemuck::cast_slice(&table);
    let width = quantizer.channels().centres.len();
    let mut codes = store.blob_writer()?;
    let (mut scales, mut norms) = (Vec::new(), Vec::new());
    let tile_rows = (TILE_BYTES / width).max(1);
    let mut tile_codes = vec![CODE_ZERO; tile_rows * width];
    for tile in table.chunks(tile_rows * width) {
        if !is_wanted() {
            return Err(PutSummaryError::Unwanted);
        }
        let tile_codes = &mut tile_codes[..tile.len()];
        let rows = tile
            .chunks_exact(width)
            .zip(tile_codes.chunks_exact_mut(width));
        for (row, codes) in rows {
            let row = quantizer.quantize_row(scales.len(), Elements::F16(row), codes);
            scales.push(row.scale);
            norms.push(row.norm);
        }
        codes.write(tile_codes)?;
    }
    let channels = quantizer.channels();
    let mut parameters = store.blob_writer()?;
    for section in [&scales, &norms, &channels.centres, &channels.scales] {
        parameters.write(bytemuck::cast_slice(section))?;
    }
    Ok(ScreenBlobs {
        codes: new.finish(codes)?,
        parameters: new.finish(parameters)?,
    })
}

/// Rows of every table, for blocks that follow each other.
struct Tile {
    rows: usize,
    heads: usize,
    head_dim: usize,
    has_extremes: bool,
    has_magnitudes: bool,
    means: Vec<f16>,
    extremes: Vec<f16>,
    magnitudes: Vec<f16>,
    inverse_norms: Vec<f32>,
    /// One head's part of a row, as it was rounded.
    rounded: Vec<f32>,
}

impl Tile {
    fn new(shape: &SummaryShape) -> Self {
        let Lengths { width, .. } = Lengths::of(shape);
        let head_dim = shape.head_dim as usize;
        let (has_extremes, has_magnitudes) = (shape.has_extremes, shape.has_magnitudes);
        let of = |has: bool, elements: usize| if has { elements } else { 0 };
        let (extremes, magnitudes) = (of(has_extremes, 2 * width), of(has_magnitudes, width / 2));
        let row_bytes = (width + extremes + magnitudes) * size_of::<f16>();
        let rows = (TILE_BYTES / row_bytes).clamp(1, shape.blocks as usize);
        let halves = |elements: usize| vec![f16::ZERO; rows * elements];
        Self {
            rows,
            heads: width / head_dim,
            head_dim,
            has_extremes,
            has_magnitudes,
            means: halves(width),
            extremes: halves(extremes),
            magnitudes: halves(magnitudes),
            inverse_norms: vec![0.0; rows * (width / head_dim)],
            rounded: vec![0.0; head_dim],
        }
    }

    /// Sets one head's part of a row.
    fn set(&mut self, row: usize, head: usize, figures: &Figures) {
        let (part, width) = (row * self.heads + head, self.head_dim);
        let means = &mut self.means[part * width..][..width];
        means.convert_from_f32_slice(&figures.mean);
        means.convert_to_f32_slice(&mut self.rounded);
        self.inverse_norms[part] = inverse_norm(&self.rounded);
        if self.has_extremes {
            let extremes = &mut self.extremes[part * 2 * width..][..2 * width];
            let (min, max) = extremes.split_at_mut(width);
            min.convert_from_f32_slice(&figures.min);
            min.convert_to_f32_slice(&mut self.rounded);
            for ((half, &rounded), &exact) in min.iter_mut().zip(&self.rounded).zip(&figures.min) {
                if rounded > exact {
                    *half = next_down(*half);
                }
            }
            max.convert_from_f32_slice(&figures.max);
            max.convert_to_f32_slice(&mut self.rounded);
            for ((half, &rounded), &exact) in max.iter_mut().zip(&self.rounded).zip(&figures.max) {
                if rounded < exact {
                    *half = -next_down(-*half);
                }
            }
        }
        if self.has_magnitudes {
            let magnitudes = &mut self.magnitudes[part * width / 2..][..width / 2];
            magnitudes.convert_from_f32_slice(&figures.magnitude);
        }
    }

    fn means(&self) -> &[f16] {
        &self.means[..self.rows * self.heads * self.head_dim]
    }

    fn extremes(&self) -> &[f16] {
        &self.extremes[..self.rows * self.heads * self.head_dim * 2]
    }

    fn magnitudes(&self) -> &[f16] {
        &self.magnitudes[..self.rows * self.heads * self.head_dim / 2]
    }

    fn inverse_norms(&self) -> &[f32] {
        &self.inverse_norms[..self.rows * self.heads]
    }
}

/// 1 / max(|mean|, 1e-12): a cosine's factor, and not infinite for a mean of zeros.
fn inverse_norm(mean: &[f32]) -> f32 {
    const NORM_MIN: f64 = 1e-12;
    let square: f64 = mean.iter().map(|&value| f64::from(value).powi(2)).sum();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "at most 1e12, which f32 holds"
    )]
    let inverse = (1.0 / square.sqrt().max(NORM_MIN)) as f32;
    inverse
}

/// The largest f16 below a finite one.
fn next_down(half: f16) -> f16 {
    const SMALLEST_NEGATIVE: u16 = 0x8001;
    let bits = half.to_bits();
    f16::from_bits(match half.is_sign_negative() {
        true => bits + 1,
        false if bits == 0 => SMALLEST_NEGATIVE,
        false => bits - 1,
    })
}

/// Reads the figures of block after block.
struct Reader<'r, 'a> {
    source: &'r Source<'a>,
    shape: &'r SummaryShape,
    sums: KeySums,
    key: Vec<f32>,
    figures: Figures,
}

impl<'r, 'a> Reader<'r, 'a> {
    fn new(source: &'r Source<'a>, shape: &'r SummaryShape) -> Self {
        Self {
            sums: KeySums::new(source.head_dim, shape.frame.layout),
            key: vec![0.0; source.head_dim],
            figures: Figures::new(source.head_dim),
            source,
            shape,
        }
    }

    /// Fills the tile's rows with the blocks from `first`.
    fn fill(&mut self, tile: &mut Tile, first: usize) -> Result<(), PutSummaryError> {
        for layer in 0..self.source.layers {
            for kv_head in 0..self.source.kv_heads {
                for row in 0..tile.rows {
                    let block = first + row;
                    let read = self.read([layer, kv_head, block]);
                    read.map_err(|(field, problem)| PutSummaryError::Value {
                        field,
                        layer,
                        kv_head,
                        block,
                        problem,
                    })?;
                    let head = layer * self.source.kv_heads + kv_head;
                    tile.set(row, head, &self.figures);
                }
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        [layer, kv_head, block]: [usize; 3],
    ) -> Result<(), (&'static str, ValueProblem)> {
        match &self.source.tensors {
            Tensors::Cartridge { layers, tokens } => {
                let size = self.shape.frame.block_size as usize;
                let end = ((block + 1) * size).min(*tokens);
                for_tokens(&layers[layer], block * size..end, |part, token| {
                    part.read_row(&[kv_head, token], &mut self.key);
                    self.sums.add(&self.key);
                });
                let figures = &mut self.figures;
                self.sums
                    .finish(figures)
                    .map_err(|problem| ("keys", problem))
            }
            Tensors::Summary(tensors) => {
                let SummaryTensors {
                    means,
                    extremes,
                    magnitudes,
                } = &**tensors;
                let place = [layer, kv_head, block];
                let mut elements = [means.element; 3];
                means.read_row(&place, &mut self.figures.mean);
                if let Some([min, max]) = extremes {
                    elements = [means.element, min.element, max.element];
                    min.read_row(&place, &mut self.figures.min);
                    max.read_row(&place, &mut self.figures.max);
                }
                if let Some(magnitudes) = magnitudes {
                    magnitudes.read_row(&place, &mut self.figures.magnitude);
                }
                check(&self.figures, elements, self.source.tensors.has())
            }
        }
    }
}

/// Calls `each` with the part and the index in it of each token of a range.
fn for_tokens<'t, 'a>(
    parts: &'t [TensorView<'a>],
    tokens: std::ops::Range<usize>,
    mut each: impl FnMut(&'t TensorView<'a>, usize),
) {
    let mut part_first = 0;
    for part in parts {
        let part_end = part_first + part.shape[1];
        for token in tokens.start.max(part_first)..tokens.end.min(part_end) {
            each(part, token - part_first);
        }
        part_first = part_end;
    }
}
