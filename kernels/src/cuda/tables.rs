//! What stays in the device's memory.

use std::sync::Arc;

use half::f16;

use crate::score::{Elements, Table};

use super::{CHUNK, Cuda, CudaError, Device, Driver, ROWS_MAX};

/// A table in the device's memory. A clone shares it.
#[derive(Debug)]
pub struct DeviceTable<D: Device = Driver> {
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// What it takes on the device.
    pub bytes: usize,
    /// Chunks from one row to the next.
    pub(super) row_chunks: usize,
    pub(super) buffer: Arc<D::Buffer>,
}

/// A factor for each part of each row in the device's memory. A clone shares it.
#[derive(Debug)]
pub struct DeviceScales<D: Device = Driver> {
    pub rows: usize,
    /// Parts of a row, all of the table's.
    pub parts: usize,
    /// What it takes on the device.
    pub bytes: usize,
    pub(super) buffer: Arc<D::Buffer>,
}

impl<D: Device> Cuda<D> {
    /// Copies a table to the device, where it stays as long as anybody holds it.
    ///
    /// # Errors
    /// When the table is not in f16, or the device has too little memory left.
    ///
    /// # Panics
    /// With no row, or more than [`ROWS_MAX`].
    pub fn upload(&mut self, table: &Table<'_>) -> Result<DeviceTable<D>, CudaError> {
        let elements = match table.elements {
            Elements::F16(elements) => elements,
            Elements::F32(_) => return Err(CudaError::TableNotF16),
        };
        let (rows, width) = (table.rows(), table.width);
        assert!((1..=ROWS_MAX).contains(&rows), "1 to {ROWS_MAX} rows");
        let row_chunks = width.div_ceil(CHUNK);
        let bytes = rows * row_chunks * CHUNK * size_of::<f16>();
        let mut buffer = self.device.allocate(bytes)?;
        if width.is_multiple_of(CHUNK) {
            self.device
                .write(&mut buffer, bytemuck::cast_slice(elements))?;
        } else {
            let padded = padded_rows(elements, width, row_chunks * CHUNK);
            self.device
                .write(&mut buffer, bytemuck::cast_slice(&padded))?;
        }
        Ok(DeviceTable {
            rows,
            width,
            bytes,
            row_chunks,
            buffer: Arc::new(buffer),
        })
    }

    /// Copies `[rows, parts]` factors to the device, such as one over each part's norm.
    ///
    /// # Errors
    /// When the device has too little memory left.
    ///
    /// # Panics
    /// When the factors are not whole rows.
    pub fn upload_scales(
        &mut self,
        scales: &[f32],
        parts: usize,
    ) -> Result<DeviceScales<D>, CudaError> {
        assert!(
            parts > 0 && scales.len().is_multiple_of(parts),
            "whole rows"
        );
        let bytes = size_of_val(scales);
        let mut buffer = self.device.allocate(bytes)?;
        self.device
            .write(&mut buffer, bytemuck::cast_slice(scales))?;
        Ok(DeviceScales {
            rows: scales.len() / parts,
            parts,
            bytes,
            buffer: Arc::new(buffer),
        })
    }
}

impl<D: Device> Clone for DeviceTable<D> {
    fn clone(&self) -> Self {
        Self {
            buffer: Arc::clone(&self.buffer),
            ..*self
        }
    }
}

impl<D: Device> Clone for DeviceScales<D> {
    fn clone(&self) -> Self {
        Self {
            buffer: Arc::clone(&self.buffer),
            ..*self
        }
    }
}

fn padded_rows(elements: &[f16], width: usize, padded: usize) -> Vec<f16> {
    let mut rows = vec![f16::ZERO; elements.len() / width * padded];
    for (row, elements) in rows
        .chunks_exact_mut(padded)
        .zip(elements.chunks_exact(width))
    {
        row[..width].copy_from_slice(elements);
    }
    rows
}
