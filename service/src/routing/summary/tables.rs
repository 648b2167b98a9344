//! The mapped tables of a key summary.

use half::f16;
use kvatlas_kernels::score::{Elements, Table};
use kvatlas_kernels::screen::Screen;

use super::error::SummaryError;
use super::record::{Lengths, ScreenBlobs, TableBlobs};
use crate::routing::frame::SummaryShape;
use crate::store::{Blob, BlobRef, Damage, Store, StoreError};

#[cfg(not(target_endian = "little"))]
compile_error!("tables are mapped as they lie in files, which are little-endian");

/// Tables `[blocks][layers][kv_heads][...]`, one row a block.
#[derive(Debug)]
pub struct Tables {
    /// layers x KV heads x head_dim.
    width: usize,
    means: Blob,
    inverse_norms: Blob,
    extremes: Option<Blob>,
    magnitudes: Option<Blob>,
    screen: Option<ScreenFiles>,
    extremes_screen: Option<ScreenFiles>,
}

#[derive(Debug)]
struct ScreenFiles {
    blocks: usize,
    width: usize,
    codes: Blob,
    parameters: Blob,
}

impl Tables {
    pub(super) fn open(
        store: &Store,
        blobs: &TableBlobs,
        shape: &SummaryShape,
    ) -> Result<Self, SummaryError> {
        let TableBlobs {
            means,
            inverse_norms,
            extremes,
            magnitudes,
            screen,
            extremes_screen,
        } = blobs;
        let width = Lengths::of(shape).width;
        let map = |table, blob: &BlobRef| map(store, table, blob);
        let optional =
            |table, blob: &Option<BlobRef>| blob.as_ref().map(|b| map(table, b)).transpose();
        let screen_files = |table, blobs: &Option<ScreenBlobs>, width| {
            let open = |blobs| ScreenFiles::open(store, table, blobs, (shape.blocks, width));
            blobs.as_ref().map(open).transpose()
        };
        Ok(Self {
            width,
            means: map("means", means)?,
            inverse_norms: map("norms", inverse_norms)?,
            extremes: optional("smallest and largest keys", extremes)?,
            magnitudes: optional("magnitudes", magnitudes)?,
            screen: screen_files("screened means", screen, width)?,
            extremes_screen: screen_files("screened extremes", extremes_screen, 2 * width)?,
        })
    }

    /// `[layers][kv_heads][head_dim]` a row.
    #[must_use]
    pub fn means(&self) -> Table<'_> {
        table(&self.means, self.width)
    }

    /// `[layers][kv_heads][2][head_dim]` a row, smallest first. They lie outwards of the keys that
    /// they were made of where f16 cannot hold those, so that a bound made of them stays one.
    #[must_use]
    pub fn extremes(&self) -> Option<Table<'_>> {
        let extremes = self.extremes.as_ref()?;
        Some(table(extremes, 2 * self.width))
    }

    /// `[layers][kv_heads][head_dim / 2]` a row: the mean of |k_f|.
    #[must_use]
    pub fn magnitudes(&self) -> Option<Table<'_>> {
        let magnitudes = self.magnitudes.as_ref()?;
        Some(table(magnitudes, self.width / 2))
    }

    /// Of the means.
    #[must_use]
    pub fn screen(&self) -> Option<Screen<'_>> {
        self.screen.as_ref().map(ScreenFiles::view)
    }

    #[must_use]
    pub fn extremes_screen(&self) -> Option<Screen<'_>> {
        self.extremes_screen.as_ref().map(ScreenFiles::view)
    }

    /// `[blocks, layers, kv_heads]`: 1 / max(|mean key|, 1e-12), of the means as they are stored.
    #[must_use]
    pub fn inverse_norms(&self) -> &[f32] {
        bytemuck::cast_slice(&self.inverse_norms)
    }
}

impl ScreenFiles {
    fn open(
        store: &Store,
        table: &'static str,
        blobs: &ScreenBlobs,
        (blocks, width): (u32, usize),
    ) -> Result<Self, SummaryError> {
        let files = Self {
            blocks: blocks as usize,
            width,
            codes: map(store, table, &blobs.codes)?,
            parameters: map(store, table, &blobs.parameters)?,
        };
        // The checksum has said that this is what was written: so it was written wrong.
        files.view().check().map_err(|_| SummaryError::Damaged {
            table,
            damage: Damage::Newer,
        })?;
        Ok(files)
    }

    fn view(&self) -> Screen<'_> {
        let parameters: &[f32] = bytemuck::cast_slice(&self.parameters);
        let (block_scales, rest) = parameters.split_at(self.blocks);
        let (block_norms, rest) = rest.split_at(self.blocks);
        let (channel_centres, channel_scales) = rest.split_at(self.width);
        Screen {
            codes: &self.codes,
            block_scales,
            block_norms,
            channel_centres,
            channel_scales,
        }
    }
}

/// Lengths were checked against the shape when the record was read, and against the file when it
/// was mapped; a map begins on a page.
fn table(blob: &Blob, width: usize) -> Table<'_> {
    Table::new(Elements::F16(bytemuck::cast_slice::<u8, f16>(blob)), width)
}

fn map(store: &Store, table: &'static str, blob: &BlobRef) -> Result<Blob, SummaryError> {
    store.map_blob(blob).map_err(|error| match error {
        StoreError::Blob { damage, .. } => SummaryError::Damaged { table, damage },
        error @ (StoreError::Io { .. }
        | StoreError::Log { .. }
        | StoreError::LogDamaged { .. }
        | StoreError::InUse { .. }
        | StoreError::NewerFormat { .. }
        | StoreError::Header { .. }
        | StoreError::Record { .. }
        | StoreError::TooLarge { .. }
        | StoreError::SyncFailed { .. }
        | StoreError::NoRandomness
        | StoreError::Exhausted { .. }) => SummaryError::Store(error),
    })
}
