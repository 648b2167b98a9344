//! Resolving: from a policy, a budget and what a prior says, to the blocks of one request.
//!
//! Pure and deterministic: any client can reproduce an answer that needs no scores from the
//! policy's tag, the budget and the number of blocks alone.

use std::collections::BTreeMap;

use thiserror::Error;

use super::middle::{Span, append_best, draw, fill_segments, ranked, sort_distinct, spread};
use super::policy::{BLOCKS_MAX, Needs, Policy};
use super::ranking::{Ranking, RankingView};

/// The most block indices in a per-head answer, over all heads: about 3 MiB on the wire.
pub const PER_HEAD_INDICES_MAX: u32 = 1 << 20;

/// What a prior says about its prefix's blocks: scores, lists, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorBlocks {
    /// N, from the score tensor or the file's `num_blocks`.
    pub total_blocks: Option<u32>,
    /// All N blocks by pooled score; `None` when the prior is a block list.
    pub ranking: Option<Ranking>,
    /// The file's own choice for each budget, distinct, in its order.
    pub per_k: BTreeMap<u32, Box<[u32]>>,
    /// The older form: the first k entries answer budget k; distinct, best first.
    pub legacy: Box<[u32]>,
}

/// The rankings of every (layer, KV head), layer-major and packed.
#[derive(Clone, Copy, Debug)]
pub struct HeadRankings<'a> {
    pub layers: u32,
    pub kv_heads: u32,
    pub blocks: u32,
    /// `layers * kv_heads` packed rankings, each of `blocks` indices.
    pub packed: &'a [u8],
}

/// The blocks of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Ascending, distinct, each below `total_blocks`; for per-head `effective_k` of them for each
    /// head, layer-major.
    pub blocks: Vec<u32>,
    pub total_blocks: u32,
    /// Blocks that the answer has, per head for per-head.
    pub effective_k: u32,
    pub extent: Extent,
}

/// How the answer's size relates to the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// As many blocks as asked for, some left out.
    Full,
    /// The prior lists fewer blocks than asked for, and has no scores to add others by.
    PriorShort,
    /// The budget reaches the number of blocks: all of them.
    AllBlocks,
}

/// Why there is no answer; [`ResolveError::field`] names the request's field to change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResolveError {
    #[error("k: expected 1 to {BLOCKS_MAX} with the policy {policy}, which fixes no budget; got 0")]
    KMissing { policy: &'static str },
    #[error("k: expected at most {BLOCKS_MAX}, got {k}")]
    KTooLarge { k: u32 },
    #[error("k: expected 0 or {budget}, the budget that the policy fixes; got {k}")]
    KNotTheBudget { k: u32, budget: u32 },
    #[error("k: expected at least {pinned}, the blocks that the policy {policy} pins; got {k}")]
    KBelowPins {
        k: u32,
        pinned: u32,
        policy: &'static str,
    },
    #[error("k: expected at least {smallest}, the smallest k that the prior lists; got {k}")]
    KBelowLists { k: u32, smallest: u32 },
    #[error("k: expected at most {limit} with the policy per-head and {heads} heads, got {k}")]
    KTooLargePerHead { k: u32, limit: u32, heads: u64 },
    #[error("total_blocks: expected at most {BLOCKS_MAX}, got {total_blocks}")]
    TotalBlocksTooLarge { total_blocks: u32 },
    #[error("total_blocks: {prior} blocks are known, give or take one; got {total_blocks}")]
    TotalBlocksDiffer { total_blocks: u32, prior: u32 },
    #[error("total_blocks: none of the blocks that the prior lists is below {total_blocks}")]
    NothingListed { total_blocks: u32 },
    #[error("total_blocks: expected 1 to {BLOCKS_MAX} without a prior, got 0")]
    TotalBlocksMissing,
    #[error("policy: {policy} needs a prior")]
    PriorMissing { policy: &'static str },
    #[error("policy: {policy} needs scores, and the stored prior is only a list of blocks")]
    ScoresMissing { policy: &'static str },
}

impl ResolveError {
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::KMissing { .. }
            | Self::KTooLarge { .. }
            | Self::KNotTheBudget { .. }
            | Self::KBelowPins { .. }
            | Self::KBelowLists { .. }
            | Self::KTooLargePerHead { .. } => "k",
            Self::TotalBlocksTooLarge { .. }
            | Self::TotalBlocksDiffer { .. }
            | Self::NothingListed { .. }
            | Self::TotalBlocksMissing => "total_blocks",
            Self::PriorMissing { .. } | Self::ScoresMissing { .. } => "policy",
        }
    }
}

/// The number of blocks that a request with this policy and `k` asks for, at least 1.
///
/// # Errors
/// When `k` is out of range or contradicts the policy, whatever the prior.
pub fn budget(policy: &Policy, k: u32) -> Result<u32, ResolveError> {
    let name = policy.name();
    let (anchor, recent) = policy.pinned();
    let pinned = anchor + recent;
    match policy.fixed_budget() {
        Some(budget) if k == 0 || k == budget => Ok(budget),
        Some(budget) => Err(ResolveError::KNotTheBudget { k, budget }),
        None if k == 0 => Err(ResolveError::KMissing { policy: name }),
        None if k > BLOCKS_MAX => Err(ResolveError::KTooLarge { k }),
        None if k < pinned => Err(ResolveError::KBelowPins {
            k,
            pinned,
            policy: name,
        }),
        None => Ok(k),
    }
}

/// Chooses the blocks of one request; for per-head see [`resolve_per_head`].
///
/// `budget` comes from [`budget`] with the same policy. `total_blocks` is the caller's, 0 for the
/// prior's: it may differ from the prior's by one (a tokens/block_size that was rounded the other
/// way). The caller's wins: blocks beyond it are dropped before the budget is cut, one more block
/// than the prior knows ranks last.
///
/// # Errors
/// When the prior cannot serve the policy, or the numbers of blocks are too far apart.
///
/// # Panics
/// With the policy per-head.
pub fn resolve(
    policy: &Policy,
    budget: u32,
    total_blocks: u32,
    prior: Option<&PriorBlocks>,
) -> Result<Resolved, ResolveError> {
    let total = count_blocks(total_blocks, prior)?;
    let ranking = prior
        .and_then(|prior| prior.ranking.as_ref())
        .map(Ranking::view);
    if policy.needs() != Needs::Positions && prior.is_none() {
        return Err(ResolveError::PriorMissing {
            policy: policy.name(),
        });
    }
    if policy.needs() == Needs::Scores && ranking.is_none() {
        return Err(ResolveError::ScoresMissing {
            policy: policy.name(),
        });
    }
    if budget >= total {
        return Ok(Resolved::new(
            (0..total).collect(),
            total,
            Extent::AllBlocks,
        ));
    }
    let span = Span {
        budget,
        total,
        pinned: policy.pinned(),
    };
    let blocks = match *policy {
        Policy::TopK => {
            let prior = prior.expect("checked above");
            return top_k(prior, budget, total);
        }
        Policy::Recency => (total - budget..total).collect(),
        Policy::Hybrid { .. } => span.with_middle(|_| {}),
        Policy::AnchorRecentMiddle { .. } => span.with_middle(|blocks| {
            let length = blocks.len() + span.wanted();
            append_best((ranking, total), blocks, length, |block| {
                span.is_middle(block)
            });
        }),
        Policy::AnchorRecencySpread { .. } => span.with_middle(|blocks| spread(&span, blocks)),
        Policy::RandomMiddle { seed, .. } => span.with_middle(|blocks| draw(&span, seed, blocks)),
        Policy::SegmentQuota { segments, .. } => {
            span.with_middle(|blocks| fill_segments(&span, segments, ranking, blocks))
        }
        Policy::PerHead => unreachable!("per-head is resolved by resolve_per_head"),
    };
    Ok(Resolved::new(blocks, total, Extent::Full))
}

/// Chooses `budget` blocks for each head, by that head's own ranking.
///
/// # Errors
/// When the answer would be too large, or the numbers of blocks are too far apart.
pub fn resolve_per_head(
    budget: u32,
    total_blocks: u32,
    heads: &HeadRankings<'_>,
) -> Result<Resolved, ResolveError> {
    let total = agree(total_blocks, heads.blocks)?;
    let effective_k = budget.min(total);
    let count = u64::from(heads.layers) * u64::from(heads.kv_heads);
    let limit = u64::from(PER_HEAD_INDICES_MAX) / count.max(1);
    if u64::from(effective_k) > limit {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        return Err(ResolveError::KTooLargePerHead {
            k: budget,
            limit,
            heads: count,
        });
    }
    let mut blocks = Vec::with_capacity(effective_k as usize * heads.rankings().len());
    for ranking in heads.rankings() {
        let start = blocks.len();
        blocks.extend(ranked(Some(ranking), total).take(effective_k as usize));
        sort_distinct(&mut blocks[start..], total);
    }
    let extent = if budget >= total {
        Extent::AllBlocks
    } else {
        Extent::Full
    };
    Ok(Resolved {
        blocks,
        total_blocks: total,
        effective_k,
        extent,
    })
}

impl Resolved {
    fn new(blocks: Vec<u32>, total_blocks: u32, extent: Extent) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "distinct and below total_blocks"
        )]
        let effective_k = blocks.len() as u32;
        Self {
            blocks,
            total_blocks,
            effective_k,
            extent,
        }
    }
}

impl<'a> HeadRankings<'a> {
    fn rankings(&self) -> impl ExactSizeIterator<Item = RankingView<'a>> + use<'a> {
        let blocks = self.blocks as usize;
        let each = super::ranking::packed_bytes(blocks).max(1);
        let packed = self.packed.chunks_exact(each);
        packed.map(move |bytes| RankingView::exactly(bytes, blocks))
    }
}

impl PriorBlocks {
    /// N as far as the prior knows. A bare list whose file does not say falls back to the block
    /// after its last: too few when the list leaves out the end, so the caller's number, which
    /// comes first, is worth sending.
    #[must_use]
    pub fn known_or_listed_blocks(&self) -> u32 {
        let listed = || self.per_k.values().chain([&self.legacy]).flatten().max();
        self.total_blocks
            .unwrap_or_else(|| listed().map_or(0, |&last| last.saturating_add(1)))
    }

    /// Whether there is anything to choose by: scores, or a listed block.
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.ranking.is_some()
            || self
                .per_k
                .values()
                .chain([&self.legacy])
                .any(|l| !l.is_empty())
    }
}

/// The N of this request.
fn count_blocks(asked: u32, prior: Option<&PriorBlocks>) -> Result<u32, ResolveError> {
    let known = prior.and_then(|prior| prior.total_blocks);
    match (known, prior) {
        (Some(known), _) => agree(asked, known),
        _ if asked > BLOCKS_MAX => Err(ResolveError::TotalBlocksTooLarge {
            total_blocks: asked,
        }),
        _ if asked > 0 => Ok(asked),
        (None, Some(prior)) => Ok(prior.known_or_listed_blocks()),
        (None, None) => Err(ResolveError::TotalBlocksMissing),
    }
}

/// The caller's number when it is within one of the prior's.
pub(super) fn agree(asked: u32, prior: u32) -> Result<u32, ResolveError> {
    match asked {
        0 => Ok(prior),
        _ if asked > BLOCKS_MAX => Err(ResolveError::TotalBlocksTooLarge {
            total_blocks: asked,
        }),
        _ if asked.abs_diff(prior) <= 1 => Ok(asked),
        _ => Err(ResolveError::TotalBlocksDiffer {
            total_blocks: asked,
            prior,
        }),
    }
}

/// `budget < total`. In this order: the list for exactly this budget, the first entries of the
/// legacy list, the scores, the longest shorter list. Where scores exist they also fill up a list
/// that is too short.
fn top_k(prior: &PriorBlocks, budget: u32, total: u32) -> Result<Resolved, ResolveError> {
    let wanted = budget as usize;
    let exact = prior.per_k.get(&budget).filter(|list| !list.is_empty());
    let legacy = Some(&prior.legacy).filter(|list| !list.is_empty());
    let list = match (exact.or(legacy), &prior.ranking) {
        (Some(list), _) => Some(&list[..]),
        (None, Some(_)) => None,
        (None, None) => Some(shorter_list(prior, budget)?),
    };
    let mut blocks = Vec::with_capacity(wanted);
    if let Some(list) = list {
        blocks.extend(
            list.iter()
                .copied()
                .filter(|&block| block < total)
                .take(wanted),
        );
        sort_distinct(&mut blocks, total);
    }
    if let Some(ranking) = prior.ranking.as_ref().filter(|_| blocks.len() < wanted) {
        let listed = blocks.len();
        let scored = (Some(ranking.view()), total);
        if listed == 0 {
            append_best(scored, &mut blocks, wanted, |_| true);
        } else {
            let mut others = Vec::with_capacity(wanted - listed);
            let is_new = |block: u32| blocks.binary_search(&block).is_err();
            append_best(scored, &mut others, wanted - listed, is_new);
            blocks.extend(others);
        }
        sort_distinct(&mut blocks, total);
    }
    if blocks.is_empty() {
        return Err(ResolveError::NothingListed {
            total_blocks: total,
        });
    }
    let extent = if blocks.len() < wanted {
        Extent::PriorShort
    } else {
        Extent::Full
    };
    Ok(Resolved::new(blocks, total, extent))
}

/// The list of the largest k below the budget.
fn shorter_list(prior: &PriorBlocks, budget: u32) -> Result<&[u32], ResolveError> {
    let mut lists = prior.per_k.iter().filter(|(_, list)| !list.is_empty());
    let below = prior
        .per_k
        .range(..budget)
        .rev()
        .find(|(_, list)| !list.is_empty());
    match (below, lists.next()) {
        (Some((_, list)), _) => Ok(list),
        (None, Some((&smallest, _))) => Err(ResolveError::KBelowLists {
            k: budget,
            smallest,
        }),
        // Not a prior that was put: those have at least one of the three.
        (None, None) => Err(ResolveError::ScoresMissing { policy: "top-k" }),
    }
}

#[cfg(test)]
mod tests;
