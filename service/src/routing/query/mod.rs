//! A request's own query: what online scoring multiplies with a key summary.
//!
//! Pure decisions: the types here, `plan` (a query and a summary's shape become products), `fold`
//! (calibration statistics become query vectors), `file` (files of either). Around them: `kept`
//! (queries put before they are used).

mod file;
mod fold;
mod kept;
mod plan;
#[cfg(test)]
mod twin;

pub use self::file::{FILE_ELEMENTS_MAX, QueryFile, QueryFileError, Statistics};
pub use self::fold::{Fold, OFFSETS};
pub use self::kept::{KeptCounts, Queries, QueriesFull, TTL_MS_MAX};
pub use self::plan::{Algorithm, Plan, PlanError, Similarity, WhichTable, plan};
use super::frame::{PairLayout, RopeFrame};

/// Layers that a query may name.
pub const LAYERS_MAX: usize = 512;
/// Heads of a layer.
pub const HEADS_MAX: u32 = 1024;
/// Elements of a head's vector; they are even in number.
pub const HEAD_DIM_MAX: u32 = 1024;
/// Position of the next token.
pub const POSITION_MAX: u64 = 1 << 31;
/// Largest magnitude of an element: no product with a row of f16 overflows f32 then.
pub const ELEMENT_MAX: f32 = 1e15;
/// How far |E\[q\]| may exceed E|q|, relative to it: both are rounded, the larger never is less.
pub const MEAN_EXCESS_MAX: f32 = 1e-3;

/// The vectors of a request's query heads, or their means over the heads that share a KV head.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryVectors {
    pub rope: RopeFrame,
    pub layout: PairLayout,
    /// Model layers, ascending, distinct, at least one.
    pub layer_ids: Box<[u32]>,
    /// Query heads per layer; KV heads when these are group means.
    pub heads: u32,
    pub head_dim: u32,
    /// The vectors are means over the query heads that share a KV head.
    pub group_mean: bool,
    /// `[layers, heads, head_dim]`, finite.
    pub values: Box<[f32]>,
}

/// What is known of a model's queries from calibration: over the positions of a text, for each
/// layer, query head and frequency band f of F = head_dim / 2, the moments of q_f before RoPE
/// (after the model's q_norm, where it has one), as complex numbers over the pairs of channels.
/// TriAttention, arXiv 2604.04921.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Of the summary that the statistics are for.
    pub layout: PairLayout,
    /// Model layers, ascending, distinct, at least one.
    pub layer_ids: Box<[u32]>,
    /// Query heads per layer; KV heads when the statistics are means over a group.
    pub heads: u32,
    pub head_dim: u32,
    /// Of the next token.
    pub position: u64,
    /// Re E\[q_f\], `[layers, heads, head_dim / 2]`, finite, as the two that follow.
    pub mean_real: Box<[f32]>,
    /// Im E\[q_f\].
    pub mean_imaginary: Box<[f32]>,
    /// E|q_f|, not below |E\[q_f\]| but for rounding.
    pub mean_absolute: Box<[f32]>,
}

/// What a request brings for online scoring; at least one is there.
#[derive(Clone, Debug, PartialEq)]
pub struct OnlineQuery {
    /// For kri-q and kri-q-quest.
    pub vectors: Option<QueryVectors>,
    /// For kri-t.
    pub calibration: Option<Calibration>,
}

impl OnlineQuery {
    /// Bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let vectors = self.vectors.as_ref().map_or(0, |vectors| {
            size_of_val(&*vectors.layer_ids) + size_of_val(&*vectors.values)
        });
        let calibration = self.calibration.as_ref().map_or(0, |calibration| {
            size_of_val(&*calibration.layer_ids) + 3 * size_of_val(&*calibration.mean_real)
        });
        size_of::<Self>() + vectors + calibration
    }
}
