//! The answer to one request: find the prior, resolve the policy, say where the blocks came from.
//!
//! Nothing here waits: the one thing that may have to, reading a prior's per-head rankings for the
//! first time, is handed to the caller as [`ManifestError::LoadPerHead`].

use std::sync::Arc;

use thiserror::Error;

use super::policy::{Needs, Policy, PolicyError};
use super::prior::{PerHead, Prior};
use super::priors::{
    ALGORITHM_BYTES_MAX, Found, PREFIX_HASH_BYTES_MAX, Priors, QUERY_HASH_BYTES_MAX,
};
use super::resolve::{Extent, ResolveError, Resolved, budget, resolve, resolve_per_head};

/// One request, as the wire gives it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ManifestQuery<'a> {
    pub prefix_hash: &'a str,
    pub query_hash: &'a str,
    /// 0 only with a policy that fixes its budget.
    pub k: u32,
    /// A tag; see [`Policy::parse`].
    pub policy: &'a str,
    pub algorithm: &'a str,
    /// 0: as many as the prior has.
    pub total_blocks: u32,
    /// A tag of a policy that needs no prior, for unknown prefixes; empty: none.
    pub fallback_policy: &'a str,
}

#[derive(Clone, Debug)]
pub struct Manifest {
    /// Ascending, distinct, each below `total_blocks`; for per-head `effective_k` for each head,
    /// layer-major.
    pub blocks: Vec<u32>,
    /// For per-head: (layers, kv_heads).
    pub heads: Option<(u32, u32)>,
    pub total_blocks: u32,
    pub effective_k: u32,
    /// The policy that answered.
    pub policy: Policy,
    /// The prior that took part: its algorithm, generation and repair belong to the answer. With a
    /// policy that goes by positions it gave the number of blocks.
    pub prior: Option<Arc<Prior>>,
    pub provenance: Provenance,
    /// What was scored, when the blocks were.
    pub online: Option<OnlineSource>,
    /// Why the answer is not exactly what was asked for.
    pub reason: Option<Reason>,
}

/// What an answer was scored with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnlineSource {
    pub algorithm: &'static str,
    /// Of the key summary.
    pub generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// From a stored prior.
    Prior,
    /// Scored against the request's own query.
    Online,
    /// From positions alone.
    PolicyOnly,
}

/// Why an answer is not exactly what was asked for. When several apply the first in this order is
/// told: a missing prior before all, then what the caller sees in the answer's size, then which
/// scores were used. Where scoring was asked for and the prior answers, that is told before all but
/// a missing prior.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    PriorMissing,
    PriorShort,
    AllBlocks,
    OnlineUnavailable,
    QueryUnknown,
}

/// Why there is no answer. Messages name the field and the limit, and no value of the request
/// beyond its numbers.
#[derive(Debug, Error)]
pub enum ManifestError {
    #[error("{field}: expected {least} to {most} bytes, got {bytes}")]
    Length {
        field: &'static str,
        least: usize,
        most: usize,
        bytes: usize,
    },
    #[error("policy: {0}")]
    Policy(PolicyError),
    #[error("fallback_policy: {0}")]
    FallbackPolicy(PolicyError),
    #[error("fallback_policy: expected a policy that needs no prior, got {policy}")]
    FallbackNeedsPrior { policy: &'static str },
    #[error("total_blocks: expected at least 1 with a fallback_policy and an unknown prefix_hash")]
    FallbackNeedsTotalBlocks,
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("no prior is stored under this prefix_hash{}", and_algorithm(*.named))]
    NotFound { named: bool },
    #[error("query: scoring online takes a query, query_tokens or a query_hash, and none is given")]
    QueryMissing,
    #[error(
        "no query is kept under this query_hash, and no prior is stored under this prefix_hash"
    )]
    QueryUnknown,
    #[error("query_tokens.encoder: no encoder is registered under this name")]
    EncoderMissing,
    #[error(
        "query_tokens.encoder: the model folder could not be read at the last start; ListEncoders \
         says why"
    )]
    EncoderBroken,
    #[error(
        "no key summary is stored under this prefix_hash; allow_fallback takes the stored prior"
    )]
    SummaryMissing,
    /// Not a refusal: call [`Prior::load_per_head`] where blocking is allowed, then ask again.
    #[error("the rankings of the prior's heads are not loaded")]
    LoadPerHead(Arc<Prior>),
}

/// Answers one request from the stored priors.
///
/// # Errors
/// See [`ManifestError`]; a request that contradicts itself is refused whatever is stored.
pub fn get_manifest(priors: &Priors, query: &ManifestQuery<'_>) -> Result<Manifest, ManifestError> {
    let Request {
        policy,
        budget,
        fallback,
    } = Request::check(query)?;
    let Some(found) = priors.find(query.prefix_hash, query.query_hash, query.algorithm) else {
        return without_prior(query, &policy, budget, fallback);
    };
    let mut manifest = with_prior(query, policy, budget, &found)?;
    let unknown = (!found.exact_query).then_some(Reason::QueryUnknown);
    manifest.reason = manifest.reason.into_iter().chain(unknown).min();
    manifest.prior = Some(found.prior);
    Ok(manifest)
}

impl ManifestError {
    /// Whether the stored prior may answer a request for scoring that ended so: what was asked for
    /// is sound, and cannot be had.
    #[must_use]
    pub fn allows_fallback(&self) -> bool {
        match self {
            Self::SummaryMissing | Self::EncoderMissing | Self::EncoderBroken => true,
            Self::Length { .. }
            | Self::Policy(_)
            | Self::FallbackPolicy(_)
            | Self::FallbackNeedsPrior { .. }
            | Self::FallbackNeedsTotalBlocks
            | Self::Resolve(_)
            | Self::NotFound { .. }
            | Self::QueryMissing
            | Self::QueryUnknown
            | Self::LoadPerHead(_) => false,
        }
    }
}

/// What a request says, as far as that can be checked whatever is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub policy: Policy,
    pub budget: u32,
    pub fallback: Option<Policy>,
}

impl Request {
    pub(super) fn check(query: &ManifestQuery<'_>) -> Result<Self, ManifestError> {
        check_lengths(query)?;
        let policy = Policy::parse(query.policy).map_err(ManifestError::Policy)?;
        Ok(Self {
            policy,
            budget: budget(&policy, query.k)?,
            fallback: parse_fallback(query.fallback_policy)?,
        })
    }
}

fn check_lengths(query: &ManifestQuery<'_>) -> Result<(), ManifestError> {
    for (field, value, least, most) in [
        ("prefix_hash", query.prefix_hash, 1, PREFIX_HASH_BYTES_MAX),
        ("query_hash", query.query_hash, 0, QUERY_HASH_BYTES_MAX),
        ("algorithm", query.algorithm, 0, ALGORITHM_BYTES_MAX),
    ] {
        let bytes = value.len();
        if !(least..=most).contains(&bytes) {
            return Err(ManifestError::Length {
                field,
                least,
                most,
                bytes,
            });
        }
    }
    Ok(())
}

fn parse_fallback(tag: &str) -> Result<Option<Policy>, ManifestError> {
    if tag.is_empty() {
        return Ok(None);
    }
    let policy = Policy::parse(tag).map_err(ManifestError::FallbackPolicy)?;
    match policy.needs() {
        Needs::Positions => Ok(Some(policy)),
        Needs::Prior | Needs::Scores => Err(ManifestError::FallbackNeedsPrior {
            policy: policy.name(),
        }),
    }
}

fn with_prior(
    query: &ManifestQuery<'_>,
    policy: Policy,
    budget: u32,
    found: &Found,
) -> Result<Manifest, ManifestError> {
    let prior = &found.prior;
    let provenance = match policy.needs() {
        Needs::Positions => Provenance::PolicyOnly,
        Needs::Prior | Needs::Scores => Provenance::Prior,
    };
    if policy != Policy::PerHead {
        let resolved = resolve(&policy, budget, query.total_blocks, Some(&prior.blocks))?;
        return Ok(Manifest::new(resolved, policy, provenance));
    }
    match prior.per_head() {
        PerHead::Absent => Err(ResolveError::ScoresMissing {
            policy: policy.name(),
        }
        .into()),
        PerHead::NotLoaded => Err(ManifestError::LoadPerHead(Arc::clone(prior))),
        PerHead::Ready(heads) => {
            let resolved = resolve_per_head(budget, query.total_blocks, &heads)?;
            let mut manifest = Manifest::new(resolved, policy, provenance);
            manifest.heads = Some((prior.layers, prior.kv_heads));
            Ok(manifest)
        }
    }
}

/// By positions alone: the policy itself when it needs no more, else the fallback. A fallback that
/// fixes its budget keeps it; any other gets the request's.
fn without_prior(
    query: &ManifestQuery<'_>,
    policy: &Policy,
    own_budget: u32,
    fallback: Option<Policy>,
) -> Result<Manifest, ManifestError> {
    if policy.needs() == Needs::Positions && query.total_blocks > 0 {
        let resolved = resolve(policy, own_budget, query.total_blocks, None)?;
        return Ok(Manifest::new(resolved, *policy, Provenance::PolicyOnly));
    }
    let named = !query.algorithm.is_empty();
    let fallback = fallback.ok_or(ManifestError::NotFound { named })?;
    if query.total_blocks == 0 {
        return Err(ManifestError::FallbackNeedsTotalBlocks);
    }
    let k = if fallback.fixed_budget().is_some() {
        0
    } else {
        own_budget
    };
    let resolved = resolve(&fallback, budget(&fallback, k)?, query.total_blocks, None)?;
    let mut manifest = Manifest::new(resolved, fallback, Provenance::PolicyOnly);
    manifest.reason = Some(Reason::PriorMissing);
    Ok(manifest)
}

impl Manifest {
    /// Of blocks that were scored.
    pub(super) fn online(
        resolved: Resolved,
        heads: Option<(u32, u32)>,
        policy: Policy,
        source: OnlineSource,
    ) -> Self {
        let mut manifest = Self::new(resolved, policy, Provenance::Online);
        manifest.heads = heads;
        manifest.online = Some(source);
        manifest
    }

    /// Of what the answer was made from: the key summary's or the prior's; 0 for neither.
    #[must_use]
    pub fn generation(&self) -> u64 {
        let of_prior = self.prior.as_ref().map(|prior| prior.generation);
        let of_summary = self.online.map(|online| online.generation);
        of_summary.or(of_prior).unwrap_or(0)
    }

    fn new(resolved: Resolved, policy: Policy, provenance: Provenance) -> Self {
        let Resolved {
            blocks,
            total_blocks,
            effective_k,
            extent,
        } = resolved;
        Self {
            blocks,
            heads: None,
            total_blocks,
            effective_k,
            policy,
            prior: None,
            provenance,
            online: None,
            reason: match extent {
                Extent::Full => None,
                Extent::PriorShort => Some(Reason::PriorShort),
                Extent::AllBlocks => Some(Reason::AllBlocks),
            },
        }
    }
}

fn and_algorithm(named: bool) -> &'static str {
    if named { " and algorithm" } else { "" }
}

#[cfg(test)]
mod tests;
