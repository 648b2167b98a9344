//! What a look-up came to, in the few classes that an operator tells apart.

use crate::{
    donors::vocabulary::FallbackReason,
    telemetry::{
        record::Lookup,
        words::{Outcome, Tier},
    },
};

/// In the order in which they are shown: what can be reused, what could be, what need not, and what
/// went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A prefix that may be committed to the engine's cache.
    ExactPrefix,
    /// A prefix for this request only.
    VerifiedPrefix,
    /// Verified spans that nothing anchors at the boundary.
    Spans,
    /// Something was found, and a gate refused it.
    BelowGates,
    /// Found, and of no use where it lies.
    Misplaced,
    /// Found, and its owner's cache cannot be relied on.
    DonorStale,
    /// Nothing alike is known.
    NothingAlike,
    /// The engine's own prefix cache covers enough.
    EngineHasIt,
    /// Not searched: too short, no complete namespace, or switched off.
    NotSearched,
    /// Late or failed.
    Failed,
}

impl Class {
    pub const ALL: [Class; 10] = [
        Class::ExactPrefix,
        Class::VerifiedPrefix,
        Class::Spans,
        Class::BelowGates,
        Class::Misplaced,
        Class::DonorStale,
        Class::NothingAlike,
        Class::EngineHasIt,
        Class::NotSearched,
        Class::Failed,
    ];

    #[must_use]
    pub fn of(lookup: &Lookup) -> Class {
        match lookup.outcome {
            Outcome::Prefix if lookup.tier == Some(Tier::Exact) => Class::ExactPrefix,
            Outcome::Prefix => Class::VerifiedPrefix,
            Outcome::Spans => Class::Spans,
            Outcome::Miss => lookup.reason.map_or(Class::NothingAlike, Class::of_reason),
        }
    }

    fn of_reason(reason: FallbackReason) -> Class {
        match reason {
            FallbackReason::LowSimilarity | FallbackReason::LowReuseTokens => Class::BelowGates,
            FallbackReason::NotPrefixAnchored | FallbackReason::NotBlockAligned => Class::Misplaced,
            FallbackReason::DonorStale => Class::DonorStale,
            FallbackReason::ProviderMiss => Class::NothingAlike,
            FallbackReason::ExactPrefixSufficient => Class::EngineHasIt,
            FallbackReason::ProviderDisabled
            | FallbackReason::NamespaceMismatch
            | FallbackReason::UnsupportedRequest => Class::NotSearched,
            FallbackReason::ProviderTimeout
            | FallbackReason::ProviderError
            | FallbackReason::AllocationFailed
            | FallbackReason::LoadFailed
            | FallbackReason::InvalidBlocks
            | FallbackReason::RecomputePolicy => Class::Failed,
        }
    }

    /// Its name in JSON and in class names of the page.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Class::ExactPrefix => "exact_prefix",
            Class::VerifiedPrefix => "verified_prefix",
            Class::Spans => "spans",
            Class::BelowGates => "below_gates",
            Class::Misplaced => "misplaced",
            Class::DonorStale => "donor_stale",
            Class::NothingAlike => "nothing_alike",
            Class::EngineHasIt => "engine_has_it",
            Class::NotSearched => "not_searched",
            Class::Failed => "failed",
        }
    }

    /// For people.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Class::ExactPrefix => "exact prefix",
            Class::VerifiedPrefix => "verified prefix",
            Class::Spans => "spans",
            Class::BelowGates => "below the gates",
            Class::Misplaced => "not at the boundary",
            Class::DonorStale => "donor stale",
            Class::NothingAlike => "nothing alike",
            Class::EngineHasIt => "engine has it",
            Class::NotSearched => "not searched",
            Class::Failed => "failed",
        }
    }

    #[must_use]
    pub fn is_found(self) -> bool {
        match self {
            Class::ExactPrefix | Class::VerifiedPrefix | Class::Spans => true,
            Class::BelowGates
            | Class::Misplaced
            | Class::DonorStale
            | Class::NothingAlike
            | Class::EngineHasIt
            | Class::NotSearched
            | Class::Failed => false,
        }
    }
}
