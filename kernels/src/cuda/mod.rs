//! Scores on a CUDA device: the twin of [`Cpu`](crate::score::Cpu) whose tables stay in the
//! device's memory.
//!
//! The kernels are `cuda/score.cu`; their PTX is part of the binary, so that a host needs no more
//! than its driver, which is looked for at run time. Scores stay on the device, and what comes
//! back is the best blocks ([`DeviceScores::best`]), or a plane of scores where somebody asks.
//!
//! [`Cuda`] is one thread's: it keeps the buffers that its calls share, so that none allocates
//! once it has seen the largest request.

mod choice;
mod device;
mod driver;
mod error;
mod pack;
mod scores;
mod scratch;
mod tables;

use crate::score::{Aggregate, HeadQuery, RowQuery};

pub use choice::{BadDevice, Chosen, DeviceChoice};
pub use device::{BufferAt, Device, Kernel, Launch};
pub use driver::Driver;
pub use error::CudaError;
pub use pack::{CHUNK, HEAD_BATCHES, ROW_TILE, SLICE_CHUNKS};
pub use scores::{BEST_MAX, BEST_TILE, DeviceScores, Plane, Selection};
pub use tables::{DeviceScales, DeviceTable};

use pack::{PackedHeads, PackedRows};
use scratch::{HeadLaunch, HeadMode, SUM_THREADS, Scratch};

/// The most rows of a table: as many blocks as a prefix may have.
pub const ROWS_MAX: usize = 1 << 20;
/// The most queries of one call.
pub const QUERIES_MAX: usize = 64;

/// A device that scores.
#[derive(Debug)]
pub struct Cuda<D: Device = Driver> {
    pub device: D,
    scratch: Scratch<D::Buffer>,
}

impl Cuda {
    /// Opens CUDA device `ordinal`, counted from 0.
    ///
    /// # Errors
    /// Without a driver or the device; when either is too old for the kernels.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        Driver::open(ordinal).map(Self::on)
    }
}

impl<D: Device> Cuda<D> {
    #[must_use]
    pub fn on(device: D) -> Self {
        Self {
            device,
            scratch: Scratch::new(),
        }
    }

    /// A pooled plane of scores for each query: its product with each row. Queries over the same
    /// spans are scored in one pass over the table; a score has the same bits in any company.
    ///
    /// # Errors
    /// When the device failed.
    ///
    /// # Panics
    /// Without queries, with more than [`QUERIES_MAX`], or when one reaches beyond the row.
    pub fn row_dots(
        &mut self,
        table: &DeviceTable<D>,
        queries: &[&RowQuery],
    ) -> Result<DeviceScores<'_, D>, CudaError> {
        check_count(queries.len());
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (index, query) in queries.iter().enumerate() {
            let end = query.spans.last().map_or(0, |span| span.end);
            assert!((1..=table.width).contains(&end), "spans within the row");
            let same = groups
                .iter_mut()
                .find(|group| queries[group[0]].spans == query.spans);
            match same {
                Some(group) => group.push(index),
                None => groups.push(vec![index]),
            }
        }
        let plane_bytes = table.rows * size_of::<f32>();
        let Self { device, scratch } = self;
        scratch
            .planes
            .reserve(device, queries.len() * plane_bytes)?;
        let mut pooled = vec![0; queries.len()];
        let mut first_plane = 0;
        for group in groups {
            let members: Vec<&RowQuery> = group.iter().map(|&index| queries[index]).collect();
            self.row_group(table, &members, first_plane)?;
            for index in group {
                pooled[index] = first_plane;
                first_plane += 1;
            }
        }
        Ok(DeviceScores::new(self, table.rows, pooled, 0))
    }

    /// The scores of each (layer, KV head) that the queries ask about, and pooled over these: as
    /// [`group_scores`](crate::score::group_scores). All queries have one shape: the same starts,
    /// width and group. `scales`, where given, has a factor for part `start / width` of each row.
    ///
    /// # Errors
    /// When the device failed.
    ///
    /// # Panics
    /// Without queries, with more than [`QUERIES_MAX`], of different shapes, or when one reaches
    /// beyond the row; when the scales do not fit the table.
    pub fn head_scores(
        &mut self,
        table: &DeviceTable<D>,
        queries: &[&HeadQuery],
        aggregate: Aggregate,
        scales: Option<&DeviceScales<D>>,
    ) -> Result<DeviceScores<'_, D>, CudaError> {
        check_heads(table, queries);
        if let Some(scales) = scales {
            let starts = &queries[0].starts;
            let part = starts.iter().map(|start| start / queries[0].width).max();
            assert_eq!(scales.rows, table.rows, "scales for each row");
            assert!(part < Some(scales.parts), "scales for each part");
        }
        let packed = PackedHeads::new(queries, Some(aggregate));
        let (count, heads) = (queries.len(), queries[0].starts.len());
        let plane_bytes = table.rows * size_of::<f32>();
        let Self { device, scratch } = self;
        scratch
            .planes
            .reserve(device, count * (1 + heads) * plane_bytes)?;
        scratch.upload_heads(device, &packed)?;
        let out = scratch.planes.at(count * plane_bytes);
        let launch = HeadLaunch {
            packed: &packed,
            queries: count,
            scales: scales.map(|scales| (&*scales.buffer, scales.parts)),
            mode: HeadMode::Max,
        };
        launch.run(device, scratch, table, out)?;
        scratch.pool(device, table.rows, count, heads)?;
        Ok(DeviceScores::new(
            self,
            table.rows,
            (0..count).collect(),
            heads,
        ))
    }

    /// The scores of KRI-T for each (layer, KV head), and pooled over these: each head's product
    /// with the means plus that with the magnitudes, made a z-score over the blocks (population
    /// deviation, at least 1e-6), the largest of the group. The queries of a table have one shape,
    /// and both tables' queries as many parts and heads a group.
    ///
    /// # Errors
    /// When the device failed.
    ///
    /// # Panics
    /// As [`Self::head_scores`]; when the two sides do not fit each other.
    pub fn calibrated_scores(
        &mut self,
        means: (&DeviceTable<D>, &[&HeadQuery]),
        magnitudes: (&DeviceTable<D>, &[&HeadQuery]),
    ) -> Result<DeviceScores<'_, D>, CudaError> {
        let (rows, count) = (means.0.rows, means.1.len());
        check_heads(means.0, means.1);
        check_heads(magnitudes.0, magnitudes.1);
        assert_eq!(magnitudes.0.rows, rows, "the same rows");
        assert_eq!(magnitudes.1.len(), count, "as many queries");
        let (heads, group) = (means.1[0].starts.len(), means.1[0].group);
        let other = magnitudes.1[0];
        assert_eq!(
            (other.starts.len(), other.group),
            (heads, group),
            "the same heads"
        );

        let plane_bytes = rows * size_of::<f32>();
        let Self { device, scratch } = self;
        scratch
            .planes
            .reserve(device, count * (1 + heads) * plane_bytes)?;
        scratch
            .partial
            .reserve(device, count * heads * group * plane_bytes)?;
        for ((table, queries), mode) in [(means, HeadMode::Raw), (magnitudes, HeadMode::Add)] {
            let packed = PackedHeads::new(queries, None);
            scratch.upload_heads(device, &packed)?;
            let launch = HeadLaunch {
                packed: &packed,
                queries: count,
                scales: None,
                mode,
            };
            launch.run(device, scratch, table, scratch.partial.at(0))?;
        }
        device.launch(&Launch {
            kernel: Kernel::StandardScores,
            grid: (count * heads, 1),
            buffers: &[
                scratch.partial.at(0),
                scratch.planes.at(count * plane_bytes),
            ],
            numbers: &[rows, group],
        })?;
        scratch.pool(device, rows, count, heads)?;
        Ok(DeviceScores::new(self, rows, (0..count).collect(), heads))
    }

    fn row_group(
        &mut self,
        table: &DeviceTable<D>,
        queries: &[&RowQuery],
        first_plane: usize,
    ) -> Result<(), CudaError> {
        let packed = PackedRows::new(queries);
        let (rows, count) = (table.rows, queries.len());
        let slices = packed.chunks.len().div_ceil(SLICE_CHUNKS);
        let plane_bytes = rows * size_of::<f32>();
        let Self { device, scratch } = self;
        scratch
            .columns
            .write(device, bytemuck::cast_slice(&packed.chunks))?;
        scratch
            .values
            .write(device, bytemuck::cast_slice(&packed.values))?;
        scratch
            .partial
            .reserve(device, slices * count * plane_bytes)?;
        let (kernel, tile) = match count {
            1 => (Kernel::RowDots1, 1),
            _ => (Kernel::RowDots4, 4),
        };
        device.launch(&Launch {
            kernel,
            grid: (slices * count.div_ceil(tile), rows.div_ceil(ROW_TILE)),
            buffers: &[
                BufferAt::start(&*table.buffer),
                scratch.columns.at(0),
                scratch.values.at(0),
                scratch.partial.at(0),
            ],
            numbers: &[rows, table.row_chunks, packed.chunks.len(), count],
        })?;
        device.launch(&Launch {
            kernel: Kernel::SumPlanes,
            grid: (rows.div_ceil(SUM_THREADS), count),
            buffers: &[
                scratch.partial.at(0),
                scratch.planes.at(first_plane * plane_bytes),
            ],
            numbers: &[rows, slices, count, 1, 1],
        })
    }
}

fn check_count(queries: usize) {
    assert!(
        (1..=QUERIES_MAX).contains(&queries),
        "1 to {QUERIES_MAX} queries"
    );
}

fn check_heads<D: Device>(table: &DeviceTable<D>, queries: &[&HeadQuery]) {
    check_count(queries.len());
    let first = queries[0];
    let end = first
        .starts
        .iter()
        .max()
        .map_or(0, |start| start + first.width);
    assert!(first.group > 0 && first.width > 0, "heads with columns");
    assert!((1..=table.width).contains(&end), "parts within the row");
    for query in queries {
        assert!(
            query.starts == first.starts && query.width == first.width,
            "queries of one shape"
        );
        assert_eq!(query.group, first.group, "queries of one shape");
        assert_eq!(
            query.values.len(),
            query.dots() * query.width,
            "a value for each column of each head"
        );
    }
}

/// A count for a kernel.
fn narrow(number: usize) -> u32 {
    u32::try_from(number).expect("counts of rows, columns, heads and queries are bounded")
}
