//! Manifests scored against the request's own query: what is to be scored, and the answer once it
//! is. The scoring itself is the scorer's.

use std::sync::Arc;

use super::encoder::{EncoderError, registry::Encoders};
use super::manifest::{
    Manifest, ManifestError, ManifestQuery, OnlineSource, Reason, Request, get_manifest,
};
use super::policy::{Needs, Policy};
use super::priors::Priors;
use super::query::{Algorithm, OnlineQuery, PlanError, Queries};
use super::ranking::Ranking;
use super::resolve::{HeadRankings, PriorBlocks, Resolved, agree, resolve, resolve_per_head};
use super::scorer::{Order, QuerySource, ScoreError, Scored, Task, Want};
use super::summary::{KeySummary, Summaries};

/// What is stored and kept.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    pub priors: &'a Priors,
    pub summaries: &'a Summaries,
    pub queries: &'a Queries,
    pub encoders: &'a Encoders,
}

/// What a request says about scoring.
#[derive(Debug)]
pub struct Ask {
    pub algorithm: Algorithm,
    /// The request's own query.
    pub query: Option<OnlineQuery>,
    /// For kri-t with statistics that were kept before: the position of the next token, at most
    /// [`super::query::POSITION_MAX`].
    pub position: Option<u64>,
    pub tokens: Option<TokensAsk>,
}

/// Tokens whose query an encoder makes.
#[derive(Debug)]
pub struct TokensAsk {
    pub encoder: String,
    pub tokens: Vec<u32>,
    pub start_position: u64,
    pub mean_of_last: u32,
}

/// How a request goes on.
#[derive(Debug)]
pub enum Prepared {
    /// Without scoring.
    Answered(Manifest),
    /// By the stored prior, with the reason: see [`stored_instead`].
    Stored(Reason),
    Score(Task, Choice),
}

/// How the answer is made of the scores.
#[derive(Debug)]
pub struct Choice {
    algorithm: &'static str,
    policy: Policy,
    budget: u32,
    total_blocks: u32,
    summary: Arc<KeySummary>,
}

/// Finds the summary and the query of a request, and says what is to be scored.
///
/// Under a query_hash under which nothing is kept the stored prior answers, with the reason.
///
/// # Errors
/// A request that contradicts itself, that brings no query, or whose prefix has no summary.
pub fn prepare(
    sources: &Sources<'_>,
    query: &ManifestQuery<'_>,
    ask: Ask,
    now_ms: u64,
) -> Result<Prepared, ManifestError> {
    let Request {
        policy,
        budget,
        fallback: _,
    } = Request::check(query)?;
    if ask.query.is_none() && ask.tokens.is_none() && query.query_hash.is_empty() {
        return Err(ManifestError::QueryMissing);
    }
    let summary = sources.summaries.find(query.prefix_hash);
    if policy.needs() == Needs::Positions {
        // No scores are needed; the summary can say how many blocks there are.
        return by_positions(sources.priors, query, summary.as_deref()).map(Prepared::Answered);
    }
    let algorithm = ask.algorithm;
    let Some(source) = source(sources, query.query_hash, ask, now_ms)? else {
        return Ok(Prepared::Stored(Reason::QueryUnknown));
    };
    let Some(summary) = summary else {
        return Err(ManifestError::SummaryMissing);
    };
    let total = agree(query.total_blocks, summary.shape.blocks)?;
    let task = Task {
        summary: Arc::clone(&summary),
        query: source,
        algorithm,
        want: want(&policy, budget, (total, summary.shape.blocks)),
    };
    let choice = Choice {
        algorithm: algorithm.name(),
        policy,
        budget,
        total_blocks: query.total_blocks,
        summary,
    };
    Ok(Prepared::Score(task, choice))
}

/// The answer of the stored prior where scoring was asked for. The reason is told before one that
/// the answer's size shows as well.
///
/// # Errors
/// As [`get_manifest`].
pub fn stored_instead(
    priors: &Priors,
    query: &ManifestQuery<'_>,
    reason: Reason,
) -> Result<Manifest, ManifestError> {
    let stored = ManifestQuery {
        algorithm: "",
        ..*query
    };
    let mut manifest = get_manifest(priors, &stored).map_err(|error| {
        let nothing_known = matches!(error, ManifestError::NotFound { .. });
        if nothing_known && reason == Reason::QueryUnknown {
            ManifestError::QueryUnknown
        } else {
            error
        }
    })?;
    if manifest.reason != Some(Reason::PriorMissing) {
        manifest.reason = Some(reason);
    }
    Ok(manifest)
}

impl Choice {
    /// The manifest of these scores.
    ///
    /// # Errors
    /// When a per-head answer would be too large.
    pub fn manifest(self, scored: Scored) -> Result<Manifest, ManifestError> {
        let blocks = self.summary.shape.blocks;
        let (resolved, heads) = match scored.order {
            Order::Pooled(order) => (self.pooled(&order)?, None),
            Order::PerHead {
                layers,
                kv_heads,
                packed,
            } => {
                let rankings = HeadRankings {
                    layers,
                    kv_heads,
                    blocks,
                    packed: &packed,
                };
                let resolved = resolve_per_head(self.budget, self.total_blocks, &rankings)?;
                (resolved, Some((layers, kv_heads)))
            }
        };
        let source = OnlineSource {
            algorithm: self.algorithm,
            generation: self.summary.generation,
        };
        Ok(Manifest::online(resolved, heads, self.policy, source))
    }

    fn pooled(&self, order: &[u32]) -> Result<Resolved, ManifestError> {
        let scored = PriorBlocks {
            total_blocks: Some(self.summary.shape.blocks),
            ranking: Some(Ranking::pack(order)),
            per_k: Default::default(),
            legacy: Default::default(),
        };
        let (policy, budget) = (&self.policy, self.budget);
        Ok(resolve(policy, budget, self.total_blocks, Some(&scored))?)
    }
}

impl ScoreError {
    /// Whether the stored prior may answer instead: what was asked for is sound and cannot be had.
    /// Where the query and the keys are not of one kind, somebody must know of it.
    #[must_use]
    pub fn allows_fallback(&self) -> bool {
        match self {
            Self::Plan(error) => match error {
                PlanError::LayerMissing { .. }
                | PlanError::ExtremesMissing
                | PlanError::MagnitudesMissing
                | PlanError::KriTNeedsPostRope => true,
                PlanError::VectorsMissing { .. }
                | PlanError::CalibrationMissing
                | PlanError::MaxOfGroupMeans
                | PlanError::Frame { .. }
                | PlanError::Layout { .. }
                | PlanError::HeadDim { .. }
                | PlanError::Heads { .. }
                | PlanError::GroupMeans { .. } => false,
            },
            Self::Encoder(error) => match error {
                EncoderError::Layer | EncoderError::Changed | EncoderError::OutOfBounds => true,
                EncoderError::KvHeads { .. }
                | EncoderError::Tokens { .. }
                | EncoderError::Vocabulary { .. }
                | EncoderError::MeanOfLast { .. }
                | EncoderError::MeanBeyondTokens { .. }
                | EncoderError::Position
                | EncoderError::Layout
                | EncoderError::Bands { .. }
                | EncoderError::Frequency { .. }
                | EncoderError::AttentionScaling { .. } => false,
            },
            Self::Summary(_) => true,
        }
    }
}

/// `None` where nothing is kept under the request's query_hash.
fn source(
    sources: &Sources<'_>,
    query_hash: &str,
    ask: Ask,
    now_ms: u64,
) -> Result<Option<QuerySource>, ManifestError> {
    let Ask {
        algorithm: _,
        query,
        position,
        tokens,
    } = ask;
    if let Some(query) = query {
        return Ok(Some(QuerySource::Given {
            query: Arc::new(query),
            position: None,
        }));
    }
    if let Some(tokens) = tokens {
        let TokensAsk {
            encoder,
            tokens,
            start_position,
            mean_of_last,
        } = tokens;
        let encoders = sources.encoders;
        let found = encoders.find(&encoder);
        let encoder = found.ok_or_else(|| match encoders.get(&encoder) {
            Some(_) => ManifestError::EncoderBroken,
            None => ManifestError::EncoderMissing,
        })?;
        return Ok(Some(QuerySource::Tokens {
            encoder,
            tokens,
            start_position,
            mean_of_last,
        }));
    }
    let kept = sources.queries.find(query_hash, now_ms);
    Ok(kept.map(|query| QuerySource::Given { query, position }))
}

/// The blocks whose order the policy looks at: `total` as the caller counts them, of which `scored`
/// have a score, one more or one less.
fn want(policy: &Policy, budget: u32, (total, scored): (u32, u32)) -> Want {
    let best = |start: u32, end: u32, k: u32| {
        let end = end.min(scored);
        Want::Best {
            among: start.min(end) as usize..end as usize,
            k: k as usize,
        }
    };
    match policy {
        Policy::TopK => best(0, total, budget),
        Policy::AnchorRecentMiddle {
            anchor,
            recent,
            middle,
        } => best(*anchor, total.saturating_sub(*recent), *middle),
        Policy::PerHead => Want::PerHead,
        Policy::SegmentQuota { .. }
        | Policy::Hybrid { .. }
        | Policy::Recency
        | Policy::AnchorRecencySpread { .. }
        | Policy::RandomMiddle { .. } => Want::All,
    }
}

fn by_positions(
    priors: &Priors,
    query: &ManifestQuery<'_>,
    summary: Option<&KeySummary>,
) -> Result<Manifest, ManifestError> {
    let total_blocks = match (query.total_blocks, summary) {
        (0, Some(summary)) => summary.shape.blocks,
        (given, _) => given,
    };
    let stored = ManifestQuery {
        algorithm: "",
        total_blocks,
        ..*query
    };
    get_manifest(priors, &stored)
}
