//! The buffers that calls share, and the launches that fill them.

use super::pack::{HeadTile, PackedHeads};
use super::{BufferAt, CudaError, Device, DeviceTable, Kernel, Launch};

/// Rows that a block of sums takes, as in `cuda/score.cu`.
pub(super) const SUM_THREADS: usize = 256;

/// Buffers that calls share; each grows to what the largest call needed.
#[derive(Debug)]
pub(super) struct Scratch<B> {
    /// Which columns a query is about, and its values.
    pub(super) columns: Grown<B>,
    pub(super) values: Grown<B>,
    /// Sums of slices, or products of single heads.
    pub(super) partial: Grown<B>,
    /// `[planes, rows]`: the scores.
    pub(super) planes: Grown<B>,
    pub(super) selections: Grown<B>,
    /// The candidates of two rounds.
    pub(super) keys: [Grown<B>; 2],
}

#[derive(Debug)]
pub(super) struct Grown<B> {
    buffer: Option<B>,
    bytes: usize,
}

/// What the head products write, numbered as in the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeadMode {
    Max = 0,
    Raw = 1,
    Add = 2,
}

/// A launch of the head products.
pub(super) struct HeadLaunch<'a, B> {
    pub(super) packed: &'a PackedHeads,
    pub(super) queries: usize,
    /// The factors, and how many a row has.
    pub(super) scales: Option<(&'a B, usize)>,
    pub(super) mode: HeadMode,
}

impl<B> HeadLaunch<'_, B> {
    pub(super) fn run<D: Device<Buffer = B>>(
        &self,
        device: &mut D,
        scratch: &Scratch<B>,
        table: &DeviceTable<D>,
        out: BufferAt<'_, B>,
    ) -> Result<(), CudaError> {
        let packed = self.packed;
        let kernel = match packed.tile {
            HeadTile::One => Kernel::HeadScores1,
            HeadTile::Four => Kernel::HeadScores4,
            HeadTile::Eight => Kernel::HeadScores8,
        };
        // Without scales the kernel reads none, whatever the buffer.
        let (scales, scale_width) = self.scales.unwrap_or((&*table.buffer, 0));
        device.launch(&Launch {
            kernel,
            grid: (
                packed.parts.len() / 2 * self.queries,
                table.rows.div_ceil(packed.block_rows()),
            ),
            buffers: &[
                BufferAt::start(&*table.buffer),
                scratch.columns.at(0),
                scratch.values.at(0),
                BufferAt::start(scales),
                out,
            ],
            numbers: &[
                table.rows,
                table.row_chunks,
                self.queries,
                packed.group,
                packed.part_chunks,
                packed.lanes,
                scale_width,
                self.mode as usize,
            ],
        })
    }
}

impl<B> Scratch<B> {
    pub(super) fn new() -> Self {
        Self {
            columns: Grown::new(),
            values: Grown::new(),
            partial: Grown::new(),
            planes: Grown::new(),
            selections: Grown::new(),
            keys: [Grown::new(), Grown::new()],
        }
    }

    pub(super) fn upload_heads<D: Device<Buffer = B>>(
        &mut self,
        device: &mut D,
        packed: &PackedHeads,
    ) -> Result<(), CudaError> {
        self.columns
            .write(device, bytemuck::cast_slice(&packed.parts))?;
        self.values
            .write(device, bytemuck::cast_slice(&packed.values))
    }

    /// The mean over each query's heads, whose planes follow the pooled ones.
    pub(super) fn pool<D: Device<Buffer = B>>(
        &self,
        device: &mut D,
        rows: usize,
        queries: usize,
        heads: usize,
    ) -> Result<(), CudaError> {
        let planes = queries * rows * size_of::<f32>();
        device.launch(&Launch {
            kernel: Kernel::SumPlanes,
            grid: (rows.div_ceil(SUM_THREADS), queries),
            buffers: &[self.planes.at(planes), self.planes.at(0)],
            numbers: &[rows, heads, 1, heads, heads],
        })
    }
}

impl<B> Grown<B> {
    fn new() -> Self {
        Self {
            buffer: None,
            bytes: 0,
        }
    }

    pub(super) fn reserve<D: Device<Buffer = B>>(
        &mut self,
        device: &mut D,
        bytes: usize,
    ) -> Result<(), CudaError> {
        if self.buffer.is_none() || self.bytes < bytes {
            self.buffer = None;
            self.buffer = Some(device.allocate(bytes)?);
            self.bytes = bytes;
        }
        Ok(())
    }

    pub(super) fn write<D: Device<Buffer = B>>(
        &mut self,
        device: &mut D,
        bytes: &[u8],
    ) -> Result<(), CudaError> {
        self.reserve(device, bytes.len())?;
        match &mut self.buffer {
            Some(buffer) => device.write(buffer, bytes),
            None => Ok(()),
        }
    }

    pub(super) fn at(&self, byte: usize) -> BufferAt<'_, B> {
        let buffer = self.buffer.as_ref().expect("reserved before it is used");
        BufferAt { buffer, byte }
    }
}
