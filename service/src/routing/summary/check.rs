//! What must hold of a summary's frame and size before its keys are read.

use super::content::Source;
use super::error::{FrameError, PutSummaryError};
use super::record::Lengths;
use super::{HEAD_DIM_MAX, ROW_ELEMENTS_MAX};
use crate::routing::frame::{KeyFrame, SummaryShape};
use crate::routing::import::{BLOCK_SIZE_MAX, LAYERS_MAX};

/// What can be said of a frame before the file is there.
///
/// # Errors
/// What is not as [`KeyFrame`] says, with its limit.
pub fn check_frame(frame: &KeyFrame) -> Result<(), FrameError> {
    let KeyFrame {
        rope: _,
        layout: _,
        inv_freq,
        attention_scaling,
        block_size,
        layer_ids,
    } = frame;
    let found = inv_freq.len();
    if !(1..=HEAD_DIM_MAX / 2).contains(&found) {
        return Err(FrameError::InvFreqLimit { found });
    }
    let is_bad = |number: &f32| !(number.is_finite() && *number > 0.0);
    if let Some(index) = inv_freq.iter().position(is_bad) {
        let found = inv_freq[index];
        return Err(FrameError::InvFreq { index, found });
    }
    let (found, block_size) = (*attention_scaling, *block_size);
    if is_bad(&found) {
        return Err(FrameError::AttentionScaling { found });
    }
    if !(1..=BLOCK_SIZE_MAX).contains(&block_size) {
        return Err(FrameError::BlockSize { found: block_size });
    }
    let found = layer_ids.len();
    if !(1..=LAYERS_MAX as usize).contains(&found) {
        return Err(FrameError::LayerLimit { found });
    }
    if let Some(pair) = layer_ids.windows(2).find(|pair| pair[0] >= pair[1]) {
        let (before, found) = (pair[0], pair[1]);
        return Err(FrameError::LayerOrder { before, found });
    }
    Ok(())
}

/// The shape of the summary that a file makes, once the frame is found to fit it and the tables to
/// keep their limits.
pub(super) fn shape(frame: KeyFrame, source: &Source<'_>) -> Result<SummaryShape, PutSummaryError> {
    let (given, found) = (frame.layer_ids.len(), source.layers);
    if given != found {
        return Err(FrameError::LayerCount { given, found }.into());
    }
    let (wanted, found) = (source.head_dim / 2, frame.inv_freq.len());
    if wanted != found {
        return Err(FrameError::InvFreqCount { wanted, found }.into());
    }
    let found = source.layers * source.kv_heads * source.head_dim;
    if found > ROW_ELEMENTS_MAX {
        return Err(PutSummaryError::RowElements { found });
    }
    let (has_extremes, has_magnitudes) = source.tensors.has();
    // Each is within its limit, which is a u32.
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let shape = SummaryShape {
        frame,
        kv_heads: number(source.kv_heads),
        head_dim: number(source.head_dim),
        blocks: number(source.blocks),
        has_extremes,
        has_magnitudes,
    };
    check_lengths(&shape)?;
    Ok(shape)
}

fn check_lengths(shape: &SummaryShape) -> Result<(), PutSummaryError> {
    let lengths = Lengths::of(shape);
    let tables = [
        ("means", true, lengths.means),
        ("norms", true, lengths.inverse_norms),
        (
            "smallest and largest keys",
            shape.has_extremes,
            lengths.extremes,
        ),
        ("magnitudes", shape.has_magnitudes, lengths.magnitudes),
    ];
    for (table, is_there, bytes) in tables {
        if is_there && bytes > crate::store::BLOB_BYTES_MAX as u128 {
            return Err(PutSummaryError::TableBytes { table, bytes });
        }
    }
    Ok(())
}
