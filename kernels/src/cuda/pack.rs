//! Queries in the form that the kernels read: whole chunks of 8 columns, zeros where a query does
//! not ask. The constants are those of `cuda/score.cu`.

use crate::score::{Aggregate, HeadQuery, RowQuery};

use super::narrow;

/// Columns that a kernel loads at once: 8 f16, 16 bytes.
pub const CHUNK: usize = 8;
/// Rows that a block of the row products takes.
pub const ROW_TILE: usize = 32;
/// Chunks of a query that a block of the row products takes.
pub const SLICE_CHUNKS: usize = 256;
/// Batches of rows that a block of the head products takes.
pub const HEAD_BATCHES: usize = 4;

/// Row queries over the same spans.
#[derive(Debug, PartialEq)]
pub(super) struct PackedRows {
    /// The row's chunks that are asked about, ascending.
    pub chunks: Vec<u32>,
    /// `[queries, chunks, 8]`.
    pub values: Vec<f32>,
}

/// Head queries of one shape.
#[derive(Debug, PartialEq)]
pub(super) struct PackedHeads {
    /// `[parts, 2]`: the part's first chunk, and its place among the row's parts.
    pub parts: Vec<u32>,
    /// `[queries, parts, group in whole tiles, part_chunks, 8]`.
    pub values: Vec<f32>,
    pub group: usize,
    pub tile: HeadTile,
    /// Chunks of a part, in whole `lanes`.
    pub part_chunks: usize,
    /// Lanes that share a row's part.
    pub lanes: usize,
}

/// How many query heads a block takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadTile {
    One,
    Four,
    Eight,
}

impl HeadTile {
    fn of(group: usize) -> Self {
        match group {
            0 | 1 => Self::One,
            2..=4 => Self::Four,
            _ => Self::Eight,
        }
    }

    fn heads(self) -> usize {
        match self {
            Self::One => 1,
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

impl PackedRows {
    pub(super) fn new(queries: &[&RowQuery]) -> Self {
        let mut chunks: Vec<u32> = Vec::new();
        for span in &queries[0].spans {
            let first = span.start / CHUNK;
            // A chunk that holds the end of one span and the start of the next is there once.
            let first = chunks
                .last()
                .map_or(first, |&last| first.max(last as usize + 1));
            chunks.extend((first..span.end.div_ceil(CHUNK)).map(narrow));
        }
        let mut values = vec![0.0; queries.len() * chunks.len() * CHUNK];
        for (query, packed) in queries.iter().zip(values.chunks_mut(chunks.len() * CHUNK)) {
            for (span, values) in query.parts() {
                // Within a span the chunks follow each other.
                let first = narrow(span.start / CHUNK);
                let place = chunks.partition_point(|&chunk| chunk < first) * CHUNK;
                let place = place + span.start % CHUNK;
                packed[place..place + values.len()].copy_from_slice(values);
            }
        }
        Self { chunks, values }
    }
}

impl PackedHeads {
    /// With a mean over the group, its heads become one beforehand: the mean of their products is
    /// the product of their mean.
    pub(super) fn new(queries: &[&HeadQuery], aggregate: Option<Aggregate>) -> Self {
        let (width, starts) = (queries[0].width, &queries[0].starts);
        let mean = aggregate == Some(Aggregate::Mean);
        let group = if mean { 1 } else { queries[0].group };
        let tile = HeadTile::of(group);
        let chunks = starts
            .iter()
            .map(|start| (start % CHUNK + width).div_ceil(CHUNK))
            .max()
            .unwrap_or(1);
        let lanes = chunks.next_power_of_two().clamp(8, 32);
        let part_chunks = chunks.next_multiple_of(lanes);
        let parts = starts
            .iter()
            .flat_map(|start| [narrow(start / CHUNK), narrow(start / width)])
            .collect();

        let heads = group.next_multiple_of(tile.heads());
        let mut values = vec![0.0; queries.len() * starts.len() * heads * part_chunks * CHUNK];
        let mut places = values.chunks_exact_mut(part_chunks * CHUNK);
        for query in queries {
            for (part, start) in query.values.chunks_exact(query.group * width).zip(starts) {
                let averaged = mean.then(|| mean_of_heads(part, width));
                let part = averaged.as_deref().unwrap_or(part);
                for head in 0..heads {
                    // The tile is filled with its last head, which no maximum sees.
                    let values = &part[head.min(group - 1) * width..][..width];
                    let place = places.next().expect("a place for each head");
                    place[start % CHUNK..][..width].copy_from_slice(values);
                }
            }
        }
        Self {
            parts,
            values,
            group,
            tile,
            part_chunks,
            lanes,
        }
    }

    /// Rows that a block takes.
    pub(super) fn block_rows(&self) -> usize {
        const WARPS: usize = 8;
        let rows = match self.tile {
            HeadTile::One | HeadTile::Four => 8,
            HeadTile::Eight => 4,
        };
        HEAD_BATCHES * WARPS * (32 / self.lanes) * rows
    }
}

fn mean_of_heads(part: &[f32], width: usize) -> Vec<f32> {
    #[expect(clippy::cast_precision_loss, reason = "a group has few heads")]
    let group = (part.len() / width) as f64;
    let mean = |column| {
        let heads = part.iter().skip(column).step_by(width);
        heads.map(|&value| f64::from(value)).sum::<f64>() / group
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "to the precision of a query"
    )]
    let means = (0..width).map(|column| mean(column) as f32);
    means.collect()
}
