//! A query and a key summary's shape become the products to make: checked, laid out, scaled.
//!
//! For a layer l, KV head h of H, query heads g of the group of G = heads / H, and a block b with
//! mean key K and per-channel smallest and largest keys min and max:
//!
//! | algorithm | score of (l, h, b) |
//! |---|---|
//! | kri-q, dot | agg_g q_g . K / sqrt(head_dim): with the mean, the block's mean attention logit |
//! | kri-q, cosine | agg_g (q_g / \|q_g\|) . K / \|K\| |
//! | kri-q-quest | agg_g sum_d max(q_d max_d, q_d min_d) (arXiv 2406.10774), not scaled |
//! | kri-t | max_g z-score over the blocks of w~_g . K + s (a - \|m\|) . mean \|k\|, see `fold` |
//!
//! and the score of b is the mean over the named layers and all KV heads. max(q max, q min) is
//! q+ max + q- min, where q+ and q- are the positive and the negative part: Quest's bound is a dot
//! product too. Wherever agg is the mean, the mean goes into the query, since a dot product is
//! linear: one vector for each KV head. And where nothing is asked for each head and no part of a
//! row has a factor of its own, all of them are one vector over the row.

use std::fmt;

use kvatlas_kernels::score::{Aggregate, HeadQuery, RowQuery};

use super::super::frame::{PairLayout, RopeFrame, SummaryShape};
use super::{Calibration, Fold, OFFSETS, OnlineQuery, QueryVectors};

/// Norms count as at least this, as in the summary's inverse norms.
const NORM_MIN: f32 = 1e-12;

/// What a block's score is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    KriQ {
        similarity: Similarity,
        aggregate: Aggregate,
    },
    Quest {
        aggregate: Aggregate,
    },
    KriT,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Similarity {
    /// q . k / sqrt(head_dim).
    Dot,
    Cosine,
}

/// The table of a key summary that a product is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WhichTable {
    Means,
    Extremes,
}

/// The products to make, and what becomes of them.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// A row's product is the block's score: the head-uniform fast path.
    Rows { table: WhichTable, query: RowQuery },
    /// The products of a group are taken together as `aggregate` says, and pooled by the mean over
    /// layers and KV heads. With `cosine`, each (layer, KV head) counts times the summary's inverse
    /// norm. Where `aggregate` is the mean, the query may already be the group's.
    Heads {
        table: WhichTable,
        query: HeadQuery,
        aggregate: Aggregate,
        cosine: bool,
    },
    /// The products with the means and with the magnitudes are added, made z-scores over the
    /// blocks for each query head, the group's largest taken, and pooled by the mean over layers
    /// and KV heads.
    Calibrated {
        means: HeadQuery,
        magnitudes: HeadQuery,
    },
}

/// Why a query cannot be scored against a summary. No message has any of their numbers in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("query.vectors: must be given for {algorithm}")]
    VectorsMissing { algorithm: Algorithm },
    #[error("query.mean_real: the calibration statistics must be given for kri-t")]
    CalibrationMissing,
    #[error(
        "aggregation: max needs the vectors of every query head; group means know only the mean"
    )]
    MaxOfGroupMeans,
    #[error("query.frame: the vectors are {query}, the summary's keys {summary}")]
    Frame { query: Shown, summary: Shown },
    #[error("query.pair_layout: {query}, the summary's is {summary}")]
    Layout { query: Shown, summary: Shown },
    #[error("query.head_dim: {query}, the summary's is {summary}")]
    HeadDim { query: u32, summary: u32 },
    #[error("query.heads: {query}, not a multiple of the summary's {summary} KV heads")]
    Heads { query: u32, summary: u32 },
    #[error("query.heads: {query} group means, the summary has {summary} KV heads")]
    GroupMeans { query: u32, summary: u32 },
    #[error("query.layer_ids: layer {layer} is not in the summary, which has {layers} layers")]
    LayerMissing { layer: u32, layers: usize },
    #[error(
        "the summary holds no smallest and largest keys (key_min, key_max), which kri-q-quest reads"
    )]
    ExtremesMissing,
    #[error("the summary holds no mean magnitudes (key_magnitudes), which kri-t reads")]
    MagnitudesMissing,
    #[error(
        "the summary's keys are pre-RoPE: kri-t needs them post-RoPE, since the mean over a block \
         loses the positions that it turns them by"
    )]
    KriTNeedsPostRope,
}

/// A frame or a layout as messages spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown(&'static str);

/// What to multiply with what, so that the blocks of a summary of that shape are scored.
///
/// `per_head`: scores of each (layer, KV head) are wanted too.
///
/// # Errors
/// When the query has not what the algorithm reads, or does not fit the summary.
pub fn plan(
    algorithm: Algorithm,
    query: &OnlineQuery,
    shape: &SummaryShape,
    per_head: bool,
) -> Result<Plan, PlanError> {
    let vectors = || {
        let missing = PlanError::VectorsMissing { algorithm };
        query.vectors.as_ref().ok_or(missing)
    };
    match algorithm {
        Algorithm::KriQ {
            similarity,
            aggregate,
        } => kri_q(similarity, aggregate, vectors()?, (shape, per_head)),
        Algorithm::Quest { aggregate } => quest(aggregate, vectors()?, shape, per_head),
        Algorithm::KriT => {
            let missing = PlanError::CalibrationMissing;
            kri_t(query.calibration.as_ref().ok_or(missing)?, shape)
        }
    }
}

fn kri_q(
    similarity: Similarity,
    aggregate: Aggregate,
    vectors: &QueryVectors,
    (shape, per_head): (&SummaryShape, bool),
) -> Result<Plan, PlanError> {
    let fit = Fit::of_vectors(vectors, aggregate, shape)?;
    let width = fit.head_dim;
    let scaled = match similarity {
        // Scaling the mean is as good as scaling each, and less work.
        Similarity::Dot => None,
        Similarity::Cosine => Some(normalized(&vectors.values, width)),
    };
    let values = scaled.as_deref().unwrap_or(&vectors.values);
    let (mut values, group) = match aggregate {
        Aggregate::Mean => (group_means(values, width, fit.group), 1),
        Aggregate::Max => (values.to_vec(), fit.group),
    };
    let cosine = similarity == Similarity::Cosine;
    if !cosine {
        scale(&mut values, 1.0 / count(width).sqrt());
    }
    let table = WhichTable::Means;
    if aggregate == Aggregate::Mean && !cosine && !per_head {
        let query = fit.rows(width, values);
        return Ok(Plan::Rows { table, query });
    }
    Ok(Plan::Heads {
        table,
        query: fit.heads(width, group, values),
        aggregate,
        cosine,
    })
}

fn quest(
    aggregate: Aggregate,
    vectors: &QueryVectors,
    shape: &SummaryShape,
    per_head: bool,
) -> Result<Plan, PlanError> {
    let fit = Fit::of_vectors(vectors, aggregate, shape)?;
    if !shape.has_extremes {
        return Err(PlanError::ExtremesMissing);
    }
    // A part of a row is the smallest, then the largest.
    let width = 2 * fit.head_dim;
    let mut values = Vec::with_capacity(2 * vectors.values.len());
    for head in vectors.values.chunks_exact(fit.head_dim) {
        values.extend(head.iter().map(|value| value.min(0.0)));
        values.extend(head.iter().map(|value| value.max(0.0)));
    }
    let (values, group) = match aggregate {
        Aggregate::Mean => (group_means(&values, width, fit.group), 1),
        Aggregate::Max => (values, fit.group),
    };
    let table = WhichTable::Extremes;
    if aggregate == Aggregate::Mean && !per_head {
        let query = fit.rows(width, values);
        return Ok(Plan::Rows { table, query });
    }
    Ok(Plan::Heads {
        table,
        query: fit.heads(width, group, values),
        aggregate,
        cosine: false,
    })
}

fn kri_t(calibration: &Calibration, shape: &SummaryShape) -> Result<Plan, PlanError> {
    let fit = Fit::new(
        (calibration.layout, calibration.head_dim),
        calibration.heads,
        &calibration.layer_ids,
        shape,
    )?;
    match shape.frame.rope {
        RopeFrame::PostRope => {}
        RopeFrame::PreRope => return Err(PlanError::KriTNeedsPostRope),
    }
    if !shape.has_magnitudes {
        return Err(PlanError::MagnitudesMissing);
    }
    let Fold { means, magnitudes } = Fold::new(
        calibration,
        &shape.frame.inv_freq,
        shape.frame.attention_scaling,
        &OFFSETS,
    );
    Ok(Plan::Calibrated {
        means: fit.heads(fit.head_dim, fit.group, means),
        magnitudes: fit.heads(fit.head_dim / 2, fit.group, magnitudes),
    })
}

/// How a query that fits a summary lies in its rows.
struct Fit {
    /// Where the query's layers are among the summary's, ascending.
    layers: Vec<usize>,
    kv_heads: usize,
    head_dim: usize,
    /// Query heads for each KV head.
    group: usize,
}

impl Fit {
    fn of_vectors(
        vectors: &QueryVectors,
        aggregate: Aggregate,
        shape: &SummaryShape,
    ) -> Result<Self, PlanError> {
        if vectors.group_mean && aggregate == Aggregate::Max {
            return Err(PlanError::MaxOfGroupMeans);
        }
        if vectors.rope != shape.frame.rope {
            return Err(PlanError::Frame {
                query: vectors.rope.into(),
                summary: shape.frame.rope.into(),
            });
        }
        if vectors.group_mean && vectors.heads != shape.kv_heads {
            return Err(PlanError::GroupMeans {
                query: vectors.heads,
                summary: shape.kv_heads,
            });
        }
        Self::new(
            (vectors.layout, vectors.head_dim),
            vectors.heads,
            &vectors.layer_ids,
            shape,
        )
    }

    fn new(
        (layout, head_dim): (PairLayout, u32),
        heads: u32,
        layer_ids: &[u32],
        shape: &SummaryShape,
    ) -> Result<Self, PlanError> {
        if layout != shape.frame.layout {
            return Err(PlanError::Layout {
                query: layout.into(),
                summary: shape.frame.layout.into(),
            });
        }
        if head_dim != shape.head_dim {
            return Err(PlanError::HeadDim {
                query: head_dim,
                summary: shape.head_dim,
            });
        }
        if heads == 0 || !heads.is_multiple_of(shape.kv_heads) {
            return Err(PlanError::Heads {
                query: heads,
                summary: shape.kv_heads,
            });
        }
        let known = &shape.frame.layer_ids;
        let place = |&layer: &u32| {
            known
                .binary_search(&layer)
                .map_err(|_| PlanError::LayerMissing {
                    layer,
                    layers: known.len(),
                })
        };
        Ok(Self {
            layers: layer_ids.iter().map(place).collect::<Result<_, _>>()?,
            kv_heads: shape.kv_heads as usize,
            head_dim: head_dim as usize,
            group: (heads / shape.kv_heads) as usize,
        })
    }

    /// One vector over the rows of a table whose parts have `width` columns, from one for each
    /// (layer, KV head). Its product is the mean of theirs.
    fn rows(&self, width: usize, mut values: Vec<f32>) -> RowQuery {
        scale(&mut values, 1.0 / count(self.layers.len() * self.kv_heads));
        let layer_width = self.kv_heads * width;
        let span = |&layer: &usize| layer * layer_width..(layer + 1) * layer_width;
        RowQuery::new(self.layers.iter().map(span).collect(), values)
    }

    /// `values`: `[layers, KV heads, group, width]`.
    fn heads(&self, width: usize, group: usize, values: Vec<f32>) -> HeadQuery {
        let starts = self.layers.iter().flat_map(|&layer| {
            let heads = layer * self.kv_heads..(layer + 1) * self.kv_heads;
            heads.map(|head| head * width)
        });
        let query = HeadQuery {
            starts: starts.collect(),
            width,
            group,
            values,
        };
        assert_eq!(query.values.len(), query.dots() * width, "a value a column");
        query
    }
}

/// Each vector of `width` divided by its length. The vectors of a group mean are taken as they
/// are: their directions, not the mean of their heads' directions, which they do not tell.
fn normalized(values: &[f32], width: usize) -> Vec<f32> {
    let mut values = values.to_vec();
    for vector in values.chunks_exact_mut(width) {
        // Eight sums, since one would wait for each addition before the next.
        let mut sums = [0.0_f64; 8];
        for values in vector.chunks(sums.len()) {
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum += f64::from(value) * f64::from(value);
            }
        }
        let squares: f64 = sums.iter().sum();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "to the precision of the elements"
        )]
        let norm = squares.sqrt() as f32;
        scale(vector, 1.0 / norm.max(NORM_MIN));
    }
    values
}

/// The mean of each `group` vectors of `width` that follow each other.
fn group_means(values: &[f32], width: usize, group: usize) -> Vec<f32> {
    let mut means = Vec::with_capacity(values.len() / group);
    for heads in values.chunks_exact(group * width) {
        let (first, others) = heads.split_at(width);
        let at = means.len();
        means.extend_from_slice(first);
        for other in others.chunks_exact(width) {
            for (sum, value) in means[at..].iter_mut().zip(other) {
                *sum += value;
            }
        }
    }
    if group > 1 {
        scale(&mut means, 1.0 / count(group));
    }
    means
}

fn scale(values: &mut [f32], factor: f32) {
    for value in values {
        *value *= factor;
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "far fewer than 2^24 heads, layers or channels"
)]
fn count(number: usize) -> f32 {
    number as f32
}

impl PlanError {
    /// Whether the request cannot be answered whatever the summary is. Otherwise the two do not fit
    /// each other, and another summary, or another query, would do.
    #[must_use]
    pub fn is_of_request(&self) -> bool {
        match self {
            Self::VectorsMissing { .. } | Self::CalibrationMissing | Self::MaxOfGroupMeans => true,
            Self::Frame { .. }
            | Self::Layout { .. }
            | Self::HeadDim { .. }
            | Self::Heads { .. }
            | Self::GroupMeans { .. }
            | Self::LayerMissing { .. }
            | Self::ExtremesMissing
            | Self::MagnitudesMissing
            | Self::KriTNeedsPostRope => false,
        }
    }
}

impl Algorithm {
    /// Its name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::KriQ { .. } => "kri-q",
            Self::Quest { .. } => "kri-q-quest",
            Self::KriT => "kri-t",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

impl From<RopeFrame> for Shown {
    fn from(frame: RopeFrame) -> Self {
        Self(match frame {
            RopeFrame::PreRope => "pre-RoPE",
            RopeFrame::PostRope => "post-RoPE",
        })
    }
}

impl From<PairLayout> for Shown {
    fn from(layout: PairLayout) -> Self {
        Self(match layout {
            PairLayout::Half => "half",
            PairLayout::Interleaved => "interleaved",
        })
    }
}

#[cfg(test)]
mod tests;
