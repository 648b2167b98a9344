//! FindDonor: a look-up that always has an answer, and never a wrong one.

use kvatlas_proto::v1;
use tokio::time::Instant;
use tonic::Code;
use v1::{FallbackReason, FindOutcome};

use crate::{
    client::{Client, within},
    error::ClientError,
    leases::Lease,
    namespace::NamespaceRef,
    tokens::{TOKENS_MAX, Tokens},
};

mod answer;

/// What to look up. The gates and the lease's length default to the server's.
#[derive(Debug, Clone)]
pub struct FindDonor {
    /// The whole prompt.
    pub tokens: Tokens,
    pub namespace: NamespaceRef,
    /// Tokens from the start that the engine's own prefix cache covers.
    pub exact_prefix_tokens: u32,
    /// A look-up repeated under it returns the same answer and lease. Empty: never repeated.
    pub request_id: String,
    /// Who will hold the lease; empty: nobody, so there is none.
    pub holder: String,
    pub readable_store_ids: Vec<String>,
    pub gates: Option<v1::Gates>,
    /// The engine can use several spans that are not anchored at the boundary.
    pub accept_spans: bool,
    /// The whole prompt may come from the load. Otherwise one token is left to compute.
    pub asynchronous_load: bool,
    /// The worst tier that may be nominated.
    pub minimum_tier: Tier,
    /// Adds the rejected candidates and why.
    pub explain: bool,
    /// In milliseconds; 0: the server's default.
    pub lease_ttl_ms: u32,
    /// For look-ups by meaning, where the operator has enabled them.
    pub text: String,
    /// Also list the best spans over up to this many donors, at most 8.
    pub segment_donors_max: u32,
    /// List up to this many neighbours by vocabulary or meaning on a miss, at most 5.
    pub neighbours_max: u32,
}

/// What came of a look-up. There is no error: an engine that cannot be helped computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Lookup {
    Hit(Box<Nomination>),
    Miss {
        reason: MissReason,
        /// The reason in numbers or words. Never prompt content.
        detail: String,
        /// What else the server said; absent when its answer did not come or cannot be used.
        answered: Option<Box<Answered>>,
    },
}

/// A donor to borrow from. Checked against the request: its spans lie within the prompt and the
/// donor, apart from each other, and its tier allows what its cache policy says.
#[derive(Debug, Clone, PartialEq)]
pub struct Nomination {
    pub outcome: Outcome,
    pub donor_id: String,
    pub owner: v1::Owner,
    pub owner_generation: u64,
    pub medium: v1::Medium,
    pub store_id: String,
    pub tier: Tier,
    pub cache_policy: CachePolicy,
    /// Additional tokens beyond the exact prefix; 0 unless the outcome is `Prefix`.
    pub reusable_prefix_tokens: u32,
    /// Where in the donor they begin.
    pub donor_offset: u32,
    /// In target order, disjoint on both sides.
    pub spans: Vec<Span>,
    /// Verified tokens / prompt tokens beyond the exact prefix, 0 to 1.
    pub similarity: f32,
    /// Tokens reusable under the outcome / prompt tokens, 0 to 1.
    pub reuse_ratio: f32,
    pub captured_tokens: u32,
    pub quality: v1::QualitySignals,
    /// Without it, nothing may be materialized.
    pub lease: Result<Lease, v1::LeaseRefusal>,
    pub answered: Answered,
}

/// What comes with every answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    /// Empty when the namespace is incomplete.
    pub namespace_id: String,
    pub mode: v1::Mode,
    pub timings: v1::StageTimings,
    /// With `explain`.
    pub rejected: Vec<v1::RejectedCandidate>,
    /// With `segment_donors_max`.
    pub segments: Vec<v1::SegmentSpan>,
    /// With `neighbours_max`, on a miss: donors near in vocabulary or meaning, nearest first.
    pub neighbours: Vec<v1::Neighbour>,
    pub sketch_search: v1::NeighbourSearch,
    pub text_search: v1::NeighbourSearch,
    /// The remembered answer to an earlier look-up under the same request id.
    pub repeated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Reusable tokens continue the exact prefix.
    Prefix,
    /// Spans were found, but nothing at the boundary.
    Spans,
}

/// How good a reuse is; a better one is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    Exact,
    Verified,
    Semantic,
}

/// What the engine may do with the KV it loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePolicy {
    /// May be committed to the exact prefix cache.
    ExactCommit,
    /// For this request only, after RoPE re-rotation.
    RequestOnly,
    /// Not to be loaded.
    DiscoveryOnly,
}

/// A run of token-identical tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub donor_start: u32,
    pub target_start: u32,
    pub length: u32,
    pub tier: Tier,
}

/// Why a look-up found nothing to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissReason {
    ExactPrefixSufficient,
    ProviderDisabled,
    ProviderTimeout,
    ProviderError,
    ProviderMiss,
    LowSimilarity,
    LowReuseTokens,
    NamespaceMismatch,
    UnsupportedRequest,
    NotPrefixAnchored,
    NotBlockAligned,
    DonorStale,
    AllocationFailed,
    LoadFailed,
    InvalidBlocks,
    RecomputePolicy,
}

impl FindDonor {
    /// A look-up with the server's gates, for the tiers that can be materialized.
    pub fn new(tokens: Tokens, namespace: NamespaceRef) -> Self {
        Self {
            tokens,
            namespace,
            exact_prefix_tokens: 0,
            request_id: String::new(),
            holder: String::new(),
            readable_store_ids: Vec::new(),
            gates: None,
            accept_spans: false,
            asynchronous_load: false,
            minimum_tier: Tier::Verified,
            explain: false,
            lease_ttl_ms: 0,
            text: String::new(),
            segment_donors_max: 0,
            neighbours_max: 0,
        }
    }

    /// What an answer is checked against. `None`: the server would refuse the request.
    pub(crate) fn bounds(&self) -> Option<Bounds> {
        let tokens = self.tokens.len();
        let prompt = u32::try_from(tokens).ok()?;
        let fits = (1..=TOKENS_MAX).contains(&tokens) && self.exact_prefix_tokens <= prompt;
        fits.then_some(Bounds {
            prompt,
            exact_prefix: self.exact_prefix_tokens,
            asynchronous_load: self.asynchronous_load,
            minimum_tier: self.minimum_tier,
        })
    }

    pub(crate) fn to_wire(&self) -> v1::FindDonorRequest {
        v1::FindDonorRequest {
            tokens: Some(self.tokens.to_wire()),
            namespace: Some(self.namespace.to_wire()),
            exact_prefix_tokens: self.exact_prefix_tokens,
            request_id: self.request_id.clone(),
            holder: self.holder.clone(),
            readable_store_ids: self.readable_store_ids.clone(),
            gates: self.gates,
            accept_spans: self.accept_spans,
            asynchronous_load: self.asynchronous_load,
            minimum_tier: self.minimum_tier.to_wire().into(),
            explain: self.explain,
            lease_ttl_ms: self.lease_ttl_ms,
            text: self.text.clone(),
            segment_donors_max: self.segment_donors_max,
            neighbours_max: self.neighbours_max,
        }
    }
}

/// The part of a request that its answer must agree with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) prompt: u32,
    pub(crate) exact_prefix: u32,
    pub(crate) asynchronous_load: bool,
    pub(crate) minimum_tier: Tier,
}

impl Client {
    /// Whose cached prompt can this one borrow from? Never fails: a timeout is a miss with
    /// `ProviderTimeout`, a request that the server refuses one with `UnsupportedRequest`, and
    /// everything else that goes wrong, an answer that contradicts itself included, one with
    /// `ProviderError`.
    pub async fn find_donor(&self, query: &FindDonor) -> Lookup {
        let Some(bounds) = query.bounds() else {
            return Lookup::unsupported();
        };
        let sent = Instant::now();
        let mut donors = self.donors();
        let answer = within(
            self.deadlines.lookup,
            query.to_wire(),
            |request| async move { donors.find_donor(request).await },
        )
        .await;
        Lookup::from_answer(answer, bounds, sent)
    }
}

impl Lookup {
    pub fn hit(&self) -> Option<&Nomination> {
        match self {
            Self::Hit(nomination) => Some(nomination),
            Self::Miss { .. } => None,
        }
    }

    /// What else the server said.
    pub fn answered(&self) -> Option<&Answered> {
        match self {
            Self::Hit(nomination) => Some(&nomination.answered),
            Self::Miss { answered, .. } => answered.as_deref(),
        }
    }

    pub(crate) fn unsupported() -> Self {
        let detail = "tokens are 1 to 1048576, and exact_prefix_tokens at most their number";
        Self::miss(MissReason::UnsupportedRequest, detail.to_owned())
    }

    pub(crate) fn from_answer(
        answer: Result<v1::FindDonorResponse, ClientError>,
        bounds: Bounds,
        sent: Instant,
    ) -> Self {
        match answer {
            Ok(wire) => answer::checked(wire, bounds, sent).unwrap_or_else(|lie| {
                let detail = format!("the server's answer is not valid: {lie}");
                Self::miss(MissReason::ProviderError, detail)
            }),
            Err(error) => Self::miss(MissReason::of_error(&error), error.to_string()),
        }
    }

    fn miss(reason: MissReason, detail: String) -> Self {
        Self::Miss {
            reason,
            detail,
            answered: None,
        }
    }
}

impl MissReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ExactPrefixSufficient => "exact_prefix_sufficient",
            Self::ProviderDisabled => "provider_disabled",
            Self::ProviderTimeout => "provider_timeout",
            Self::ProviderError => "provider_error",
            Self::ProviderMiss => "provider_miss",
            Self::LowSimilarity => "low_similarity",
            Self::LowReuseTokens => "low_reuse_tokens",
            Self::NamespaceMismatch => "namespace_mismatch",
            Self::UnsupportedRequest => "unsupported_request",
            Self::NotPrefixAnchored => "not_prefix_anchored",
            Self::NotBlockAligned => "not_block_aligned",
            Self::DonorStale => "donor_stale",
            Self::AllocationFailed => "allocation_failed",
            Self::LoadFailed => "load_failed",
            Self::InvalidBlocks => "invalid_blocks",
            Self::RecomputePolicy => "recompute_policy",
        }
    }

    /// `None`: unspecified.
    pub fn from_wire(reason: FallbackReason) -> Option<Self> {
        Some(match reason {
            FallbackReason::Unspecified => return None,
            FallbackReason::ExactPrefixSufficient => Self::ExactPrefixSufficient,
            FallbackReason::ProviderDisabled => Self::ProviderDisabled,
            FallbackReason::ProviderTimeout => Self::ProviderTimeout,
            FallbackReason::ProviderError => Self::ProviderError,
            FallbackReason::ProviderMiss => Self::ProviderMiss,
            FallbackReason::LowSimilarity => Self::LowSimilarity,
            FallbackReason::LowReuseTokens => Self::LowReuseTokens,
            FallbackReason::NamespaceMismatch => Self::NamespaceMismatch,
            FallbackReason::UnsupportedRequest => Self::UnsupportedRequest,
            FallbackReason::NotPrefixAnchored => Self::NotPrefixAnchored,
            FallbackReason::NotBlockAligned => Self::NotBlockAligned,
            FallbackReason::DonorStale => Self::DonorStale,
            FallbackReason::AllocationFailed => Self::AllocationFailed,
            FallbackReason::LoadFailed => Self::LoadFailed,
            FallbackReason::InvalidBlocks => Self::InvalidBlocks,
            FallbackReason::RecomputePolicy => Self::RecomputePolicy,
        })
    }

    fn of_error(error: &ClientError) -> Self {
        match error {
            ClientError::Timeout { .. } => Self::ProviderTimeout,
            ClientError::Refused { code, .. } if *code == Code::InvalidArgument => {
                Self::UnsupportedRequest
            }
            ClientError::Invalid(_) => Self::UnsupportedRequest,
            ClientError::Refused { .. }
            | ClientError::Unreachable(_)
            | ClientError::Malformed(_)
            | ClientError::StreamEnded
            | ClientError::File(_) => Self::ProviderError,
        }
    }
}

impl Tier {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Verified => "verified",
            Self::Semantic => "semantic",
        }
    }

    fn to_wire(self) -> v1::Tier {
        match self {
            Self::Exact => v1::Tier::Exact,
            Self::Verified => v1::Tier::Verified,
            Self::Semantic => v1::Tier::Semantic,
        }
    }
}

impl Outcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::Spans => "spans",
        }
    }
}
