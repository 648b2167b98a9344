//! The closed vocabularies of donor discovery, in the domain's own types.

/// How good a reuse is, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Token-identical from 0 through the end, within the donor's exact tokens.
    Exact,
    /// Token-identical, but behind a difference, at another position, or past the exact tokens.
    Verified,
}

/// Where a donor's KV lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Lives and dies with the owner's own cache.
    Device,
    Host,
    Disk,
}

/// What a look-up may lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    Disabled,
    #[default]
    DiscoveryOnly,
    Materialize,
}

/// How a donor was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discovery {
    /// By runs of tokens.
    Seeds,
    /// By a sketch of its tokens.
    Sketch,
    /// By embeddings of its text.
    Text,
    /// By an embedding that another provider announced.
    Announced,
}

/// What became of a look-up by vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorSearch {
    /// The seeds alone satisfied the gates, or nothing was searched at all.
    NotNeeded,
    Done,
    /// The operator has not enabled it.
    Disabled,
    NoText,
    /// No donor of the namespace has a vector yet.
    NothingIndexed,
    /// Not done by the deadline.
    Late,
    /// Too many wait for it already.
    Busy,
    Failed,
}

impl VectorSearch {
    pub const ALL: [VectorSearch; 8] = [
        VectorSearch::NotNeeded,
        VectorSearch::Done,
        VectorSearch::Disabled,
        VectorSearch::NoText,
        VectorSearch::NothingIndexed,
        VectorSearch::Late,
        VectorSearch::Busy,
        VectorSearch::Failed,
    ];

    /// The name on metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            VectorSearch::NotNeeded => "not_needed",
            VectorSearch::Done => "done",
            VectorSearch::Disabled => "disabled",
            VectorSearch::NoText => "no_text",
            VectorSearch::NothingIndexed => "nothing_indexed",
            VectorSearch::Late => "late",
            VectorSearch::Busy => "busy",
            VectorSearch::Failed => "failed",
        }
    }
}

/// What became of an event about a donor that another provider announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DonorEventOutcome {
    Applied,
    /// Events before it are missing.
    AppliedAfterGap,
    /// Seen before, or older than what was applied.
    Duplicate,
    /// Not understood, beyond a limit, or of an older generation.
    Refused,
}

impl DonorEventOutcome {
    pub const ALL: [DonorEventOutcome; 4] = [
        DonorEventOutcome::Applied,
        DonorEventOutcome::AppliedAfterGap,
        DonorEventOutcome::Duplicate,
        DonorEventOutcome::Refused,
    ];

    /// The name on metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            DonorEventOutcome::Applied => "applied",
            DonorEventOutcome::AppliedAfterGap => "applied_after_gap",
            DonorEventOutcome::Duplicate => "duplicate",
            DonorEventOutcome::Refused => "refused",
        }
    }
}

/// Why a donor that was announced is found by nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfindable {
    #[error("it names no tenant: neither namespace.extra.tenant_key nor cache_salt")]
    NoTenant,
    #[error("namespace.extra has a key that no look-up has, so that it cannot be compared")]
    UnknownKey,
    #[error("namespace.extra.cache_salt isolates by more than the tenant, or by less")]
    OtherIsolation,
    #[error("no segment has a vector")]
    NoVector,
    #[error("its vectors have other dimensions than those of the embedding model here")]
    OtherDimensions,
    #[error("this server has no embedding model")]
    NoModel,
}

impl Unfindable {
    pub const ALL: [Unfindable; 6] = [
        Unfindable::NoTenant,
        Unfindable::UnknownKey,
        Unfindable::OtherIsolation,
        Unfindable::NoVector,
        Unfindable::OtherDimensions,
        Unfindable::NoModel,
    ];

    /// The name on metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Unfindable::NoTenant => "no_tenant",
            Unfindable::UnknownKey => "unknown_key",
            Unfindable::OtherIsolation => "other_isolation",
            Unfindable::NoVector => "no_vector",
            Unfindable::OtherDimensions => "other_dimensions",
            Unfindable::NoModel => "no_model",
        }
    }
}

/// Why a donor that was announced is there no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// Evicted or purged, by an event.
    Withdrawn,
    /// Announced again.
    Replaced,
    /// It may have been evicted by an event that is missing, or by one that was not understood.
    Gap,
    /// A newer generation began.
    Generation,
    /// It made room.
    Room,
}

impl Forgotten {
    pub const ALL: [Forgotten; 5] = [
        Forgotten::Withdrawn,
        Forgotten::Replaced,
        Forgotten::Gap,
        Forgotten::Generation,
        Forgotten::Room,
    ];

    /// The name on metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Forgotten::Withdrawn => "withdrawn",
            Forgotten::Replaced => "replaced",
            Forgotten::Gap => "gap",
            Forgotten::Generation => "generation",
            Forgotten::Room => "room",
        }
    }
}

/// Why a look-up was not served, or not fully; the last five are reported by engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FallbackReason {
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

impl FallbackReason {
    pub const ALL: [FallbackReason; 16] = [
        FallbackReason::ExactPrefixSufficient,
        FallbackReason::ProviderDisabled,
        FallbackReason::ProviderTimeout,
        FallbackReason::ProviderError,
        FallbackReason::ProviderMiss,
        FallbackReason::LowSimilarity,
        FallbackReason::LowReuseTokens,
        FallbackReason::NamespaceMismatch,
        FallbackReason::UnsupportedRequest,
        FallbackReason::NotPrefixAnchored,
        FallbackReason::NotBlockAligned,
        FallbackReason::DonorStale,
        FallbackReason::AllocationFailed,
        FallbackReason::LoadFailed,
        FallbackReason::InvalidBlocks,
        FallbackReason::RecomputePolicy,
    ];

    /// The name on metrics and in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            FallbackReason::ExactPrefixSufficient => "exact_prefix_sufficient",
            FallbackReason::ProviderDisabled => "provider_disabled",
            FallbackReason::ProviderTimeout => "provider_timeout",
            FallbackReason::ProviderError => "provider_error",
            FallbackReason::ProviderMiss => "provider_miss",
            FallbackReason::LowSimilarity => "low_similarity",
            FallbackReason::LowReuseTokens => "low_reuse_tokens",
            FallbackReason::NamespaceMismatch => "namespace_mismatch",
            FallbackReason::UnsupportedRequest => "unsupported_request",
            FallbackReason::NotPrefixAnchored => "not_prefix_anchored",
            FallbackReason::NotBlockAligned => "not_block_aligned",
            FallbackReason::DonorStale => "donor_stale",
            FallbackReason::AllocationFailed => "allocation_failed",
            FallbackReason::LoadFailed => "load_failed",
            FallbackReason::InvalidBlocks => "invalid_blocks",
            FallbackReason::RecomputePolicy => "recompute_policy",
        }
    }
}
