//! What a look-up came to: a nomination or a miss with its reason, and what else was learned.

use std::sync::Arc;

use super::{
    align::Span,
    catalog::Donor,
    gate::{Gates, Refusal, Worth},
    namespace::NamespaceId,
    owners::OwnerKey,
    vocabulary::{Discovery, FallbackReason, Mode, Tier, VectorSearch},
};
use crate::leases::Grant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Prefix,
    Spans,
    Miss,
}

/// Why an answer that is not a miss carries no lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRefusal {
    DiscoveryOnly,
    StoreNotReadable,
    SpansNotAccepted,
    HolderMissing,
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub outcome: Outcome,
    /// On a miss, and on spans.
    pub reason: Option<FallbackReason>,
    /// In numbers, never content.
    pub detail: String,
    pub found: Option<FoundDonor>,
    pub lease: Option<Grant>,
    pub lease_refusal: Option<LeaseRefusal>,
    pub namespace: Option<NamespaceId>,
    pub mode: Mode,
    /// The thresholds that held; absent where the look-up ended before they were known.
    pub gates: Option<Gates>,
    /// Of a miss: the best candidate, where the gates turned it down.
    pub refusal: Option<Refusal>,
    pub timings: Timings,
    pub rejected: Vec<Rejected>,
    /// The best set of spans over several donors, where that was asked for.
    pub segments: Vec<Segment>,
    /// Of a miss: similar donors, nearest first.
    pub neighbours: Vec<Neighbour>,
    pub sketch_search: VectorSearch,
    pub text_search: VectorSearch,
    /// This is what was answered before.
    pub repeated: bool,
}

#[derive(Debug, Clone)]
pub struct FoundDonor {
    pub donor: Arc<Donor>,
    pub worth: Worth,
    pub tier: Tier,
    /// In target order, with the tier of each.
    pub spans: Vec<(Span, Tier)>,
    pub discovery: Discovery,
    /// Absent when the text of one of the two is not known.
    pub facts_differ: Option<bool>,
}

/// A candidate that was verified and not nominated.
#[derive(Debug, Clone)]
pub struct Rejected {
    pub donor: Arc<Donor>,
    pub reason: FallbackReason,
    pub detail: String,
    pub worth: Worth,
}

/// A span of one of several donors.
#[derive(Debug, Clone)]
pub struct Segment {
    pub donor: Arc<Donor>,
    pub span: Span,
    pub tier: Tier,
}

/// A donor that shares vocabulary or meaning with the prompt.
#[derive(Debug, Clone)]
pub struct Neighbour {
    pub donor: NeighbourDonor,
    pub discovery: Discovery,
    /// A cosine, or a mean of cosines.
    pub score: f32,
    /// Absent when the text of one of the two is not known.
    pub facts_differ: Option<bool>,
}

/// Whose donor it is.
#[derive(Debug, Clone)]
pub enum NeighbourDonor {
    Registered(Arc<Donor>),
    /// By another provider: nothing else is known of it.
    Announced {
        donor_id: Box<str>,
        /// None: its KV lies in a store that is no worker's.
        holder: Option<Arc<OwnerKey>>,
    },
}

impl NeighbourDonor {
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            NeighbourDonor::Registered(donor) => &donor.id,
            NeighbourDonor::Announced { donor_id, .. } => donor_id,
        }
    }

    /// Whether two name one donor of one holder.
    #[must_use]
    pub fn is_same(&self, other: &NeighbourDonor) -> bool {
        self.id() == other.id() && self.holder() == other.holder()
    }

    #[must_use]
    pub fn holder(&self) -> Option<&OwnerKey> {
        match self {
            NeighbourDonor::Registered(donor) => Some(&donor.owner.key),
            NeighbourDonor::Announced { holder, .. } => holder.as_deref(),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Timings {
    pub seeds_ns: u64,
    pub align_ns: u64,
    pub gate_ns: u64,
    /// Vectors, their search, and the alignment of what they nominate.
    pub neighbours_ns: u64,
    /// Facts compared, the wait for a thread included.
    pub facts_ns: u64,
    pub total_ns: u64,
}

impl Answer {
    /// A miss, before or instead of a search.
    #[must_use]
    pub fn miss(reason: FallbackReason, detail: impl Into<String>, mode: Mode) -> Answer {
        Answer {
            outcome: Outcome::Miss,
            reason: Some(reason),
            detail: detail.into(),
            found: None,
            lease: None,
            lease_refusal: None,
            namespace: None,
            mode,
            gates: None,
            refusal: None,
            timings: Timings::default(),
            rejected: Vec::new(),
            segments: Vec::new(),
            neighbours: Vec::new(),
            sketch_search: VectorSearch::NotNeeded,
            text_search: VectorSearch::NotNeeded,
            repeated: false,
        }
    }

    /// Whether donors of other providers may be listed: as [`Self::wants_neighbours`], or nobody
    /// has registered a donor in the namespace.
    #[must_use]
    pub fn wants_announced(&self) -> bool {
        let is_unknown = self.reason == Some(FallbackReason::ProviderMiss);
        self.outcome == Outcome::Miss
            && (self.wants_neighbours() || (is_unknown && !self.timings.searched()))
    }

    /// Whether the search by seeds left room for one by vectors: it found nothing, or too little.
    #[must_use]
    pub fn wants_neighbours(&self) -> bool {
        let too_little = match self.reason {
            Some(
                FallbackReason::ProviderMiss
                | FallbackReason::LowSimilarity
                | FallbackReason::LowReuseTokens,
            ) => true,
            None
            | Some(
                FallbackReason::ExactPrefixSufficient
                | FallbackReason::ProviderDisabled
                | FallbackReason::ProviderTimeout
                | FallbackReason::ProviderError
                | FallbackReason::NamespaceMismatch
                | FallbackReason::UnsupportedRequest
                | FallbackReason::NotPrefixAnchored
                | FallbackReason::NotBlockAligned
                | FallbackReason::DonorStale
                | FallbackReason::AllocationFailed
                | FallbackReason::LoadFailed
                | FallbackReason::InvalidBlocks
                | FallbackReason::RecomputePolicy,
            ) => false,
        };
        // A look-up that ended before the search has no timings of one.
        self.outcome == Outcome::Miss && too_little && self.timings.searched()
    }
}

impl Timings {
    fn searched(&self) -> bool {
        self.seeds_ns + self.align_ns + self.gate_ns > 0
    }
}
