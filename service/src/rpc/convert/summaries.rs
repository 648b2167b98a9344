//! Key summaries from and to the wire.

use kvatlas_proto::v1;
use tonic::Status;

use super::{check_length, invalid, routing::format};
use crate::routing::{
    frame::{KeyFrame, PairLayout, RopeFrame},
    import::Format,
    priors::PREFIX_HASH_BYTES_MAX,
    summary::{Content, KeySummary, check_frame},
};

/// A summary's header, checked before its file comes.
#[derive(Debug)]
pub struct SummaryHeader {
    pub prefix_hash: String,
    pub frame: KeyFrame,
    pub content: Option<Content>,
    pub format: Option<Format>,
    /// 0: not said.
    pub size_bytes: u64,
}

pub fn header(header: v1::PutKeySummaryHeader, bytes_max: u64) -> Result<SummaryHeader, Status> {
    let v1::PutKeySummaryHeader {
        prefix_hash,
        frame,
        pair_layout,
        inv_freq,
        attention_scaling,
        block_size,
        layer_ids,
        size_bytes,
        content,
        format: format_number,
    } = header;
    check_length("prefix_hash", &prefix_hash, 1, PREFIX_HASH_BYTES_MAX)?;
    if size_bytes > bytes_max {
        return Err(invalid(
            "size_bytes",
            format!("{size_bytes}, at most {bytes_max}"),
        ));
    }
    let content = match v1::KeySummaryContent::try_from(content) {
        Ok(v1::KeySummaryContent::Unspecified) => None,
        Ok(v1::KeySummaryContent::Summary) => Some(Content::Summary),
        Ok(v1::KeySummaryContent::Cartridge) => Some(Content::Cartridge),
        Err(_) => return Err(invalid("content", format!("{content} is not a content"))),
    };
    let frame = KeyFrame {
        rope: rope("frame", frame)?,
        layout: layout("pair_layout", pair_layout)?,
        inv_freq: inv_freq.into(),
        attention_scaling,
        block_size,
        layer_ids: layer_ids.into(),
    };
    check_frame(&frame).map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok(SummaryHeader {
        prefix_hash,
        frame,
        content,
        format: format(format_number)?,
        size_bytes,
    })
}

fn rope(field: &str, number: i32) -> Result<RopeFrame, Status> {
    match v1::RopeFrame::try_from(number) {
        Ok(v1::RopeFrame::PreRope) => Ok(RopeFrame::PreRope),
        Ok(v1::RopeFrame::PostRope) => Ok(RopeFrame::PostRope),
        Ok(v1::RopeFrame::Unspecified) => {
            Err(invalid(field, "must be given, before or after RoPE"))
        }
        Err(_) => Err(invalid(field, format!("{number} is not a frame"))),
    }
}

fn layout(field: &str, number: i32) -> Result<PairLayout, Status> {
    match v1::PairLayout::try_from(number) {
        Ok(v1::PairLayout::Half) => Ok(PairLayout::Half),
        Ok(v1::PairLayout::Interleaved) => Ok(PairLayout::Interleaved),
        Ok(v1::PairLayout::Unspecified) => {
            Err(invalid(field, "must be given, half or interleaved"))
        }
        Err(_) => Err(invalid(field, format!("{number} is not a pair layout"))),
    }
}

#[must_use]
pub fn summary(summary: &KeySummary) -> v1::KeySummary {
    let shape = &summary.shape;
    let frame = &shape.frame;
    let rope = match frame.rope {
        RopeFrame::PreRope => v1::RopeFrame::PreRope,
        RopeFrame::PostRope => v1::RopeFrame::PostRope,
    };
    let layout = match frame.layout {
        PairLayout::Half => v1::PairLayout::Half,
        PairLayout::Interleaved => v1::PairLayout::Interleaved,
    };
    v1::KeySummary {
        prefix_hash: summary.prefix_hash.to_string(),
        generation: summary.generation,
        total_blocks: shape.blocks,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        block_size: frame.block_size,
        layer_ids: frame.layer_ids.to_vec(),
        frame: rope.into(),
        pair_layout: layout.into(),
        inv_freq: frame.inv_freq.to_vec(),
        attention_scaling: frame.attention_scaling,
        has_extremes: shape.has_extremes,
        has_magnitudes: shape.has_magnitudes,
        stored_bytes: summary.stored_bytes(),
        put_unix_ms: summary.put_unix_ms,
    }
}
