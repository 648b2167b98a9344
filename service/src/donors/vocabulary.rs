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
