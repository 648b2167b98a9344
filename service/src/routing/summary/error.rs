//! Why a key summary was not put, or cannot be read.

use super::{HEAD_DIM_MAX, ROW_ELEMENTS_MAX, SUMMARIES_MAX};
use crate::routing::import::{BLOCK_SIZE_MAX, ImportError, LAYERS_MAX};
use crate::routing::priors::{BlocksDiffer, PREFIX_HASH_BYTES_MAX};
use crate::store::{BLOB_BYTES_MAX, Damage, StoreError};

/// Why a key summary was not put. Messages name the field and the limit, and no name that was sent.
#[derive(Debug, thiserror::Error)]
pub enum PutSummaryError {
    #[error("prefix_hash: expected 1 to {PREFIX_HASH_BYTES_MAX} bytes, got {bytes}")]
    PrefixHash { bytes: usize },
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("the file: {0}")]
    Import(#[from] ImportError),
    #[error(
        "the file: expected key_means, or a cartridge's trainable_keys.<layer>, <layer>.0 or \
         layers.<layer>.keys; found {found}"
    )]
    Unknown { found: String },
    #[error("frozen_keys, fixed_keys: two names of the same keys; a cartridge has one of them")]
    FrozenTwice,
    #[error(
        "{field}: unknown beside trainable_keys, frozen_keys and its older name fixed_keys; which \
         tokens are its keys of?"
    )]
    OtherKeys { field: String },
    #[error("{field}: missing in the file, which has {found}")]
    Missing { field: String, found: String },
    #[error("{field}: expected the shape {wanted}, got {found:?}")]
    Shape {
        field: String,
        wanted: String,
        found: Box<[usize]>,
    },
    #[error("{field}: {found} {what}; 1 to {limit} are taken")]
    Dimension {
        field: String,
        what: &'static str,
        found: usize,
        limit: usize,
    },
    #[error("{field}: head_dim is {found}; expected an even number, 2 to {HEAD_DIM_MAX}")]
    HeadDim { field: String, found: usize },
    #[error("layers x KV heads x head_dim is {found}, at most {ROW_ELEMENTS_MAX}")]
    RowElements { found: usize },
    #[error("the {table} take {bytes} bytes, at most {BLOB_BYTES_MAX}")]
    TableBytes { table: &'static str, bytes: u128 },
    #[error("{field}: layer {layer}, KV head {kv_head}, block {block}: {problem}")]
    Value {
        field: &'static str,
        /// Index in the file, as the others.
        layer: usize,
        kv_head: usize,
        block: usize,
        problem: ValueProblem,
    },
    #[error("{0}")]
    BlocksDiffer(#[from] BlocksDiffer),
    #[error("the server keeps at most {SUMMARIES_MAX} key summaries")]
    Full,
    #[error("nobody waits for the summary any more")]
    Unwanted,
    #[error("the system gives no random bytes")]
    NoRandomness,
    #[error("the key summary was not stored: what was written does not read back")]
    Unreadable(#[source] SummaryError),
    #[error("the key summary was not stored: {0}")]
    Store(#[from] StoreError),
}

/// What is wrong with the frame that a summary states.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FrameError {
    #[error("inv_freq: {found} numbers, expected 1 to {}", HEAD_DIM_MAX / 2)]
    InvFreqLimit { found: usize },
    #[error("inv_freq: expected {wanted} (head_dim / 2), got {found}")]
    InvFreqCount { wanted: usize, found: usize },
    #[error("inv_freq: number {index} is {found}; expected finite numbers above 0")]
    InvFreq { index: usize, found: f32 },
    #[error("attention_scaling: {found}; expected a finite number above 0")]
    AttentionScaling { found: f32 },
    #[error("block_size: {found}; expected 1 to {BLOCK_SIZE_MAX}")]
    BlockSize { found: u32 },
    #[error("layer_ids: {found} layers, expected 1 to {LAYERS_MAX}")]
    LayerLimit { found: usize },
    #[error("layer_ids: {given} given, the file has {found} layers")]
    LayerCount { given: usize, found: usize },
    #[error("layer_ids: {found} follows {before}; expected ascending numbers")]
    LayerOrder { before: u32, found: u32 },
}

/// What is wrong with a number of a file.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ValueProblem {
    #[error("a value is NaN or infinite")]
    NotFinite,
    #[error("{found} is beyond f16, which ends at 65504")]
    BeyondF16 { found: f32 },
    #[error("{found} is below 0")]
    BelowZero { found: f32 },
    #[error("the mean {mean} does not lie between the smallest, {min}, and the largest, {max}")]
    OutOfOrder { min: f32, mean: f32, max: f32 },
}

/// Why a stored key summary cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SummaryError {
    #[error("the stored {table} of the key summary are damaged ({damage}); put it again")]
    Damaged { table: &'static str, damage: Damage },
    #[error("the stored key summary cannot be read: {0}")]
    Store(#[from] StoreError),
}
