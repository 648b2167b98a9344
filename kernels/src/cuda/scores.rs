//! Scores that lie on a device, and the best of them.

use std::ops::Range;

use crate::score;

use super::{Cuda, CudaError, Device, Driver, Kernel, Launch, narrow};

/// The most blocks of a selection that the device makes; a larger one takes its scores off the
/// device. As in `cuda/score.cu`.
pub const BEST_MAX: usize = 2048;
/// Keys that a block of threads selects from. As in `cuda/score.cu`.
pub const BEST_TILE: usize = 8192;
/// The most candidates that a round leaves.
const ROUND_BYTES_MAX: usize = 64 << 20;
/// The most selections of one launch.
const SELECTIONS_MAX: usize = 65_535;

/// The scores of the device's last call, one plane for each query and one for each of its heads.
#[derive(Debug)]
pub struct DeviceScores<'a, D: Device = Driver> {
    cuda: &'a mut Cuda<D>,
    pub rows: usize,
    /// (Layer, KV head) parts of each query; 0 for row products.
    pub heads: usize,
    /// Where each query's pooled plane lies.
    pooled: Vec<usize>,
}

/// A score for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// The query's row products, or the mean over its heads.
    Pooled { query: usize },
    /// Of one (layer, KV head), counted in the order of the query's starts.
    Head { query: usize, head: usize },
}

/// The `k` best blocks of a range of a plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    pub plane: Plane,
    pub among: Range<usize>,
    pub k: usize,
}

impl<'a, D: Device> DeviceScores<'a, D> {
    pub(super) fn new(
        cuda: &'a mut Cuda<D>,
        rows: usize,
        pooled: Vec<usize>,
        heads: usize,
    ) -> Self {
        Self {
            cuda,
            rows,
            heads,
            pooled,
        }
    }

    /// A plane's scores, one for each row.
    ///
    /// # Errors
    /// When the device failed.
    ///
    /// # Panics
    /// When there is no such plane.
    pub fn plane(&mut self, plane: Plane) -> Result<Vec<f32>, CudaError> {
        self.read(self.place(plane), 1)
    }

    /// `[heads, rows]`: the scores of all of a query's (layer, KV head) parts.
    ///
    /// # Errors
    /// When the device failed.
    ///
    /// # Panics
    /// When there is no such query, or it has no heads.
    pub fn per_head(&mut self, query: usize) -> Result<Vec<f32>, CudaError> {
        self.read(self.place(Plane::Head { query, head: 0 }), self.heads)
    }

    /// What each selection selects, best first, as [`best`](crate::score::best): a tie goes to the
    /// smaller index, NaN comes last. All selections are made in the same launches.
    ///
    /// # Errors
    /// When the device failed.
    ///
    /// # Panics
    /// When there is no such plane, or a range reaches beyond the rows.
    pub fn best(&mut self, selections: &[Selection]) -> Result<Vec<Vec<u32>>, CudaError> {
        let mut chosen: Vec<Vec<u32>> = vec![Vec::new(); selections.len()];
        let mut here = Vec::new();
        for (index, selection) in selections.iter().enumerate() {
            let Range { start, end } = selection.among;
            assert!(start <= end && end <= self.rows, "a range of rows");
            if selection.k.min(end - start) > BEST_MAX {
                let scores = self.plane(selection.plane)?;
                chosen[index] = score::best(&scores, start..end, selection.k);
            } else if start < end && selection.k > 0 {
                here.push(index);
            }
        }
        let of = |index: &usize| &selections[*index];
        let width = here
            .iter()
            .map(|index| of(index).k.min(BEST_MAX))
            .max()
            .unwrap_or(0);
        let longest = here
            .iter()
            .map(|index| of(index).among.len())
            .max()
            .unwrap_or(0);
        let tiles = longest.div_ceil(BEST_TILE);
        let together = ROUND_BYTES_MAX / (tiles * width * size_of::<u64>()).max(1);
        for together in here.chunks(together.clamp(1, SELECTIONS_MAX)) {
            let places: Vec<[u32; 4]> = together
                .iter()
                .map(|index| {
                    let Selection { plane, among, k } = of(index);
                    [
                        self.place(*plane),
                        among.start,
                        among.end,
                        *k.min(&BEST_MAX),
                    ]
                    .map(narrow)
                })
                .collect();
            let keys = self.tournament(&places, tiles, width)?;
            for (index, keys) in together.iter().zip(keys.chunks_exact(width)) {
                chosen[*index] = blocks(keys, of(index).k);
            }
        }
        Ok(chosen)
    }

    /// Rounds until one tile is left: `[selections, width]` keys.
    fn tournament(
        &mut self,
        selections: &[[u32; 4]],
        mut tiles: usize,
        width: usize,
    ) -> Result<Vec<u64>, CudaError> {
        let Cuda { device, scratch } = &mut *self.cuda;
        let key_bytes = selections.len() * width * size_of::<u64>();
        scratch
            .selections
            .write(device, bytemuck::cast_slice(selections))?;
        let [from, to] = &mut scratch.keys;
        let (mut from, mut to) = (from, to);
        from.reserve(device, tiles * key_bytes)?;
        device.launch(&Launch {
            kernel: Kernel::BestScores,
            grid: (tiles, selections.len()),
            buffers: &[scratch.planes.at(0), scratch.selections.at(0), from.at(0)],
            numbers: &[self.rows, width],
        })?;
        while tiles > 1 {
            let candidates = tiles * width;
            tiles = candidates.div_ceil(BEST_TILE);
            to.reserve(device, tiles * key_bytes)?;
            device.launch(&Launch {
                kernel: Kernel::BestKeys,
                grid: (tiles, selections.len()),
                buffers: &[from.at(0), scratch.selections.at(0), to.at(0)],
                numbers: &[candidates, width],
            })?;
            (from, to) = (to, from);
        }
        let mut keys = vec![0_u64; selections.len() * width];
        device.read(&from.at(0), bytemuck::cast_slice_mut(&mut keys))?;
        Ok(keys)
    }

    fn read(&mut self, first_plane: usize, planes: usize) -> Result<Vec<f32>, CudaError> {
        let mut scores = vec![0.0_f32; planes * self.rows];
        let start = first_plane * self.rows * size_of::<f32>();
        let Cuda { device, scratch } = &mut *self.cuda;
        let from = scratch.planes.at(start);
        device.read(&from, bytemuck::cast_slice_mut(&mut scores))?;
        Ok(scores)
    }

    fn place(&self, plane: Plane) -> usize {
        match plane {
            Plane::Pooled { query } => self.pooled[query],
            Plane::Head { query, head } => {
                assert!(query < self.pooled.len() && head < self.heads, "a plane");
                self.pooled.len() + query * self.heads + head
            }
        }
    }
}

/// The blocks of the first keys; the rest of them are no blocks.
fn blocks(keys: &[u64], k: usize) -> Vec<u32> {
    const NO_KEY: u64 = u64::MAX;
    keys.iter()
        .take(k)
        .take_while(|&&key| key != NO_KEY)
        .map(|key| u32::try_from(key & 0xffff_ffff).expect("masked"))
        .collect()
}
