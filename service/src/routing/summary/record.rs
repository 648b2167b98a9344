//! The stored form of a key summary: one checksummed record, and a blob for each table.
//!
//! As for priors, the record is a protobuf message of its own. Its key is the prefix_hash. Tags
//! are never used again.

use std::sync::OnceLock;

use kvatlas_kernels::screen::SectionBytes;
use prost::Message;

use super::key_summary::KeySummary;
use super::{HEAD_DIM_MAX, ROW_ELEMENTS_MAX};
use crate::routing::frame::{KeyFrame, PairLayout, RopeFrame, SummaryShape};
use crate::routing::import::{BLOCKS_MAX, KV_HEADS_MAX, LAYERS_MAX};
use crate::store::BlobRef;

/// The files of a summary.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TableBlobs {
    pub means: BlobRef,
    pub inverse_norms: BlobRef,
    pub extremes: Option<BlobRef>,
    pub magnitudes: Option<BlobRef>,
    /// Of the means. Rows that are very wide have none, as below.
    pub screen: Option<ScreenBlobs>,
    pub extremes_screen: Option<ScreenBlobs>,
}

/// The files of a screen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ScreenBlobs {
    pub codes: BlobRef,
    /// Scales and norms of the blocks, centres and scales of the channels.
    pub parameters: BlobRef,
}

impl TableBlobs {
    pub(super) fn all(&self) -> impl Iterator<Item = &BlobRef> {
        let Self {
            means,
            inverse_norms,
            extremes,
            magnitudes,
            screen,
            extremes_screen,
        } = self;
        let screens = screen.iter().chain(extremes_screen);
        [means, inverse_norms]
            .into_iter()
            .chain(extremes)
            .chain(magnitudes)
            .chain(screens.flat_map(|screen| [&screen.codes, &screen.parameters]))
    }

    fn fit(&self, shape: &SummaryShape) -> bool {
        let Lengths {
            width,
            means,
            extremes,
            magnitudes,
            inverse_norms,
        } = Lengths::of(shape);
        let tables = [
            (Some(&self.means), means),
            (Some(&self.inverse_norms), inverse_norms),
            (self.extremes.as_ref(), extremes),
            (self.magnitudes.as_ref(), magnitudes),
        ];
        let blocks = shape.blocks as usize;
        let screen = |screen: &ScreenBlobs, width: usize| {
            let bytes = SectionBytes::new(blocks, width);
            let parameters = bytes.block_scales
                + bytes.block_norms
                + bytes.channel_centres
                + bytes.channel_scales;
            is_long(&screen.codes, bytes.codes as u128)
                && is_long(&screen.parameters, parameters as u128)
        };
        tables
            .into_iter()
            .all(|(blob, bytes)| blob.is_none_or(|blob| is_long(blob, bytes)))
            && self.screen.as_ref().is_none_or(|s| screen(s, width))
            && self
                .extremes_screen
                .as_ref()
                .is_none_or(|s| screen(s, 2 * width))
    }
}

fn is_long(blob: &BlobRef, bytes: u128) -> bool {
    u128::from(blob.length) == bytes
}

impl ScreenBlobs {
    fn to_bytes(&self) -> Vec<u8> {
        [self.codes.to_bytes(), self.parameters.to_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (codes, parameters) = bytes.split_at_checked(BlobRef::BYTES)?;
        Some(Self {
            codes: BlobRef::from_bytes(codes)?,
            parameters: BlobRef::from_bytes(parameters)?,
        })
    }
}

/// What the tables of a shape take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    /// Elements of a row of means: layers x KV heads x head_dim.
    pub width: usize,
    /// In bytes, as the others.
    pub means: u128,
    pub extremes: u128,
    pub magnitudes: u128,
    pub inverse_norms: u128,
}

impl Lengths {
    pub(super) fn of(shape: &SummaryShape) -> Self {
        const HALF_BYTES: u128 = 2;
        const FLOAT_BYTES: u128 = 4;
        let heads = shape.frame.layer_ids.len() * shape.kv_heads as usize;
        let width = heads * shape.head_dim as usize;
        let elements = width as u128 * u128::from(shape.blocks);
        Self {
            width,
            means: elements * HALF_BYTES,
            extremes: elements * 2 * HALF_BYTES,
            magnitudes: elements / 2 * HALF_BYTES,
            inverse_norms: heads as u128 * u128::from(shape.blocks) * FLOAT_BYTES,
        }
    }
}

/// What the codes of a screen mean. One that says something else is left alone: without a screen
/// the answers are the same.
const SCREEN_VERSION: u32 = 1;

const PRE_ROPE: u32 = 1;
const POST_ROPE: u32 = 2;
const HALF: u32 = 1;
const INTERLEAVED: u32 = 2;

#[derive(Clone, PartialEq, Message)]
struct SummaryRecord {
    #[prost(string, tag = "1")]
    prefix_hash: String,
    #[prost(uint64, tag = "2")]
    generation: u64,
    #[prost(uint64, tag = "3")]
    put_unix_ms: u64,
    #[prost(uint32, tag = "4")]
    rope: u32,
    #[prost(uint32, tag = "5")]
    layout: u32,
    #[prost(float, repeated, tag = "6")]
    inv_freq: Vec<f32>,
    #[prost(float, tag = "7")]
    attention_scaling: f32,
    #[prost(uint32, tag = "8")]
    block_size: u32,
    #[prost(uint32, repeated, tag = "9")]
    layer_ids: Vec<u32>,
    #[prost(uint32, tag = "10")]
    kv_heads: u32,
    #[prost(uint32, tag = "11")]
    head_dim: u32,
    #[prost(uint32, tag = "12")]
    blocks: u32,
    /// A [`BlobRef`], as the others; empty without the table.
    #[prost(bytes = "vec", tag = "13")]
    means: Vec<u8>,
    #[prost(bytes = "vec", tag = "14")]
    inverse_norms: Vec<u8>,
    #[prost(bytes = "vec", tag = "15")]
    extremes: Vec<u8>,
    #[prost(bytes = "vec", tag = "16")]
    magnitudes: Vec<u8>,
    #[prost(uint32, tag = "17")]
    screen_version: u32,
    /// A [`ScreenBlobs`], as the next; empty without the screen.
    #[prost(bytes = "vec", tag = "18")]
    screen: Vec<u8>,
    #[prost(bytes = "vec", tag = "19")]
    extremes_screen: Vec<u8>,
}

pub(super) fn encode(summary: &KeySummary) -> Vec<u8> {
    let SummaryShape {
        frame,
        kv_heads,
        head_dim,
        blocks,
        has_extremes: _,
        has_magnitudes: _,
    } = &summary.shape;
    let TableBlobs {
        means,
        inverse_norms,
        extremes,
        magnitudes,
        screen,
        extremes_screen,
    } = &summary.blobs;
    let screen_bytes =
        |screen: &Option<ScreenBlobs>| screen.as_ref().map_or(Vec::new(), ScreenBlobs::to_bytes);
    let optional = |blob: &Option<BlobRef>| {
        blob.as_ref()
            .map_or(Vec::new(), |blob| blob.to_bytes().into())
    };
    let record = SummaryRecord {
        prefix_hash: summary.prefix_hash.to_string(),
        generation: summary.generation,
        put_unix_ms: summary.put_unix_ms,
        rope: match frame.rope {
            RopeFrame::PreRope => PRE_ROPE,
            RopeFrame::PostRope => POST_ROPE,
        },
        layout: match frame.layout {
            PairLayout::Half => HALF,
            PairLayout::Interleaved => INTERLEAVED,
        },
        inv_freq: frame.inv_freq.to_vec(),
        attention_scaling: frame.attention_scaling,
        block_size: frame.block_size,
        layer_ids: frame.layer_ids.to_vec(),
        kv_heads: *kv_heads,
        head_dim: *head_dim,
        blocks: *blocks,
        means: means.to_bytes().into(),
        inverse_norms: inverse_norms.to_bytes().into(),
        extremes: optional(extremes),
        magnitudes: optional(magnitudes),
        screen_version: SCREEN_VERSION,
        screen: screen_bytes(screen),
        extremes_screen: screen_bytes(extremes_screen),
    };
    record.encode_to_vec()
}

/// `None` when the bytes are no key summary, or not the one that the key names.
pub(super) fn decode(key: &[u8], payload: &[u8]) -> Option<KeySummary> {
    let record = SummaryRecord::decode(payload).ok()?;
    if record.prefix_hash.as_bytes() != key {
        return None;
    }
    let optional = |bytes: &[u8]| match bytes {
        [] => Some(None),
        bytes => BlobRef::from_bytes(bytes).map(Some),
    };
    let screen = |bytes: &[u8]| match bytes {
        [] => Some(None),
        _ if record.screen_version != SCREEN_VERSION => Some(None),
        bytes => ScreenBlobs::from_bytes(bytes).map(Some),
    };
    let blobs = TableBlobs {
        means: BlobRef::from_bytes(&record.means)?,
        inverse_norms: BlobRef::from_bytes(&record.inverse_norms)?,
        extremes: optional(&record.extremes)?,
        magnitudes: optional(&record.magnitudes)?,
        screen: screen(&record.screen)?,
        extremes_screen: screen(&record.extremes_screen)?,
    };
    let shape = SummaryShape {
        frame: KeyFrame {
            rope: match record.rope {
                PRE_ROPE => RopeFrame::PreRope,
                POST_ROPE => RopeFrame::PostRope,
                _ => return None,
            },
            layout: match record.layout {
                HALF => PairLayout::Half,
                INTERLEAVED => PairLayout::Interleaved,
                _ => return None,
            },
            inv_freq: record.inv_freq.into(),
            attention_scaling: record.attention_scaling,
            block_size: record.block_size,
            layer_ids: record.layer_ids.into(),
        },
        kv_heads: record.kv_heads,
        head_dim: record.head_dim,
        blocks: record.blocks,
        has_extremes: blobs.extremes.is_some(),
        has_magnitudes: blobs.magnitudes.is_some(),
    };
    (is_within_limits(&shape) && blobs.fit(&shape)).then_some(KeySummary {
        prefix_hash: record.prefix_hash.into(),
        generation: record.generation,
        shape,
        put_unix_ms: record.put_unix_ms,
        blobs,
        loaded: OnceLock::new(),
    })
}

fn is_within_limits(shape: &SummaryShape) -> bool {
    let head_dim = shape.head_dim as usize;
    (1..=LAYERS_MAX as usize).contains(&shape.frame.layer_ids.len())
        && (1..=KV_HEADS_MAX).contains(&shape.kv_heads)
        && (2..=HEAD_DIM_MAX).contains(&head_dim)
        && head_dim.is_multiple_of(2)
        && (1..=BLOCKS_MAX).contains(&shape.blocks)
        && shape.frame.inv_freq.len() == head_dim / 2
        && Lengths::of(shape).width <= ROW_ELEMENTS_MAX
}
