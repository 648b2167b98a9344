//! The closed vocabularies of records and of metric labels: one word for each value, both ways.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::donors::vocabulary::FallbackReason;

/// An enum whose every value is one word.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $value:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$of])* $value),+ }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$value),+];

            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $($name::$value => $word),+ }
            }

            #[must_use]
            pub fn parse(word: &str) -> Option<$name> {
                match word { $($word => Some($name::$value),)+ _ => None }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                from.deserialize_str(Word($name::parse))
            }
        }
    };
}

words! {
    /// What a look-up came to.
    Outcome { Prefix = "prefix", Spans = "spans", Miss = "miss" }
}
words! {
    /// Which threshold a look-up did not pass.
    Gate {
        MinPromptTokens = "min_prompt_tokens",
        MinReuseTokens = "min_reuse_tokens",
        MinSimilarity = "min_similarity",
        MinReuseRatio = "min_reuse_ratio",
        ExactPrefixSkipRatio = "exact_prefix_skip_ratio",
        MinimumTier = "minimum_tier",
    }
}
words! {
    Mode {
        Disabled = "disabled",
        DiscoveryOnly = "discovery_only",
        Materialize = "materialize",
    }
}
words! { Tier { Exact = "exact", Verified = "verified" } }
words! {
    /// Why an answer that is not a miss carries no lease.
    LeaseRefusal {
        DiscoveryOnly = "discovery_only",
        StoreNotReadable = "store_not_readable",
        SpansNotAccepted = "spans_not_accepted",
        HolderMissing = "holder_missing",
    }
}
words! {
    /// What a call for a manifest came to.
    ManifestOutcome {
        Ok = "ok",
        /// Nothing is stored under the prefix.
        Miss = "miss",
        Refused = "refused",
    }
}
words! {
    /// Where a manifest's blocks come from.
    ManifestProvenance { Prior = "prior", Online = "online", PolicyOnly = "policy_only" }
}
words! {
    /// Why a manifest is not what was asked for; of a refusal, its status.
    ManifestReason {
        PriorMissing = "prior_missing",
        PriorShort = "prior_short",
        AllBlocks = "all_blocks",
        OnlineUnavailable = "online_unavailable",
        QueryUnknown = "query_unknown",
        NotFound = "not_found",
        InvalidArgument = "invalid_argument",
        FailedPrecondition = "failed_precondition",
        ResourceExhausted = "resource_exhausted",
        DeadlineExceeded = "deadline_exceeded",
        Unavailable = "unavailable",
        DataLoss = "data_loss",
        OtherError = "other_error",
    }
}
words! {
    /// Where a manifest's scores come from. A stored prior may bear any name, so that there is one
    /// word for all that are not known.
    Algorithm {
        KriDKvSum = "kri-d-kv-sum",
        KriD = "kri-d",
        KriA = "kri-a",
        KriG = "kri-g",
        KmeansKeys = "kmeans_keys",
        AttentionPrefill = "attention_prefill",
        EigenvectorCentrality = "eigenvector-centrality",
        KriQ = "kri-q",
        KriQQuest = "kri-q-quest",
        KriT = "kri-t",
        Hybrid = "hybrid",
        Recency = "recency",
        Unknown = "unknown",
        Other = "other",
    }
}
words! {
    /// A policy without its numbers.
    Policy {
        TopK = "top-k",
        AnchorRecentMiddle = "anchor-recent-middle",
        Hybrid = "hybrid",
        Recency = "recency",
        AnchorRecencySpread = "anchor-recency-spread",
        RandomMiddle = "random-middle",
        SegmentQuota = "segment-quota",
        PerHead = "per-head",
    }
}
words! {
    /// What an engine says became of a nomination.
    ReuseProvenance {
        ExactLocalPrefixHit = "exact_local_prefix_hit",
        ExactExternalHit = "exact_external_hit",
        RequestOnlyReuse = "request_only_reuse",
        CandidateRejected = "candidate_rejected",
        FallbackRecompute = "fallback_recompute",
    }
}
words! {
    /// How far what is known of a worker's cache can be believed.
    SourceState { Exact = "exact", Degraded = "degraded", Stale = "stale" }
}

impl Serialize for FallbackReason {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for FallbackReason {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<FallbackReason, D::Error> {
        from.deserialize_str(Word(fallback_reason))
    }
}

fn fallback_reason(word: &str) -> Option<FallbackReason> {
    let mut all = FallbackReason::ALL.into_iter();
    all.find(|reason| reason.as_str() == word)
}

// Reads a word where it lies, so that a line is read without an allocation.
struct Word<T>(fn(&str) -> Option<T>);

impl<T> de::Visitor<'_> for Word<T> {
    type Value = T;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a word of the vocabulary")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<T, E> {
        (self.0)(word).ok_or_else(|| E::custom("a word that is not of the vocabulary"))
    }
}
