//! A look-up's answer, to the wire.

use kvatlas_proto::v1;

use super::{donors::mode_to_wire, leases};
use crate::donors::{
    align::Span,
    answer::{Answer, FoundDonor, LeaseRefusal, Neighbour, Outcome, Rejected, Segment},
    owners::{Owner, OwnerKey},
    vocabulary::{Discovery, FallbackReason, Medium, Tier, VectorSearch},
};

#[must_use]
pub fn answer(answer: &Answer, now_ms: u64, decode_ns: u64) -> v1::FindDonorResponse {
    let (lease_refusal, timings) = (
        answer.lease_refusal.map_or(0, refusal_to_wire),
        answer.timings,
    );
    let outcome = match answer.outcome {
        Outcome::Prefix => v1::FindOutcome::Prefix,
        Outcome::Spans => v1::FindOutcome::Spans,
        Outcome::Miss => v1::FindOutcome::Miss,
    };
    v1::FindDonorResponse {
        outcome: outcome.into(),
        reason: answer.reason.map_or(0, reason_to_wire),
        detail: answer.detail.clone(),
        r#match: answer.found.as_ref().map(donor_match),
        lease: answer
            .lease
            .as_ref()
            .map(|grant| leases::grant(grant, now_ms)),
        lease_refusal,
        namespace_id: answer
            .namespace
            .map(|id| id.to_string())
            .unwrap_or_default(),
        mode: mode_to_wire(answer.mode).into(),
        timings: Some(v1::StageTimings {
            decode_us: micros(decode_ns),
            seeds_us: micros(timings.seeds_ns),
            align_us: micros(timings.align_ns),
            gate_us: micros(timings.gate_ns),
            total_us: micros(timings.total_ns),
            neighbours_us: micros(timings.neighbours_ns),
            facts_us: micros(timings.facts_ns),
        }),
        rejected: answer.rejected.iter().map(rejected).collect(),
        segments: answer.segments.iter().map(segment).collect(),
        repeated_answer: answer.repeated,
        neighbours: answer.neighbours.iter().map(neighbour).collect(),
        sketch_search: search_to_wire(answer.sketch_search),
        text_search: search_to_wire(answer.text_search),
    }
}
fn donor_match(found: &FoundDonor) -> v1::DonorMatch {
    let FoundDonor {
        donor,
        worth,
        tier,
        spans,
        discovery,
        facts_differ,
    } = found;
    let cache_policy = match tier {
        Tier::Exact => v1::CachePolicy::ExactCommit,
        Tier::Verified => v1::CachePolicy::RequestOnly,
    };
    let medium = match donor.medium {
        Medium::Device => v1::Medium::Device,
        Medium::Host => v1::Medium::Host,
        Medium::Disk => v1::Medium::Disk,
    };
    v1::DonorMatch {
        donor_id: donor.id.to_string(),
        owner: Some(owner_to_wire(&donor.owner)),
        owner_generation: donor.owner_generation,
        medium: medium.into(),
        store_id: donor.store_id.to_string(),
        tier: tier_to_wire(*tier),
        cache_policy: cache_policy.into(),
        reusable_prefix_tokens: worth.prefix.map_or(0, |prefix| prefix.tokens),
        donor_offset: worth.prefix.map_or(0, |prefix| prefix.donor_offset),
        spans: spans
            .iter()
            .map(|(span, tier)| span_to_wire(span, *tier))
            .collect(),
        similarity: worth.similarity,
        reuse_ratio: worth.reuse_ratio,
        captured_tokens: donor.captured_tokens,
        quality: Some(quality(*discovery, *facts_differ)),
    }
}

fn span_to_wire(span: &Span, tier: Tier) -> v1::Span {
    v1::Span {
        donor_start: span.donor_start,
        target_start: span.target_start,
        length: span.length,
        tier: tier_to_wire(tier),
    }
}

fn quality(discovery: Discovery, facts_differ: Option<bool>) -> v1::QualitySignals {
    v1::QualitySignals {
        facts_differ: facts_differ == Some(true),
        facts_compared: facts_differ.is_some(),
        discovery: discovery_to_wire(discovery),
    }
}

fn segment(segment: &Segment) -> v1::SegmentSpan {
    v1::SegmentSpan {
        donor_id: segment.donor.id.to_string(),
        owner: Some(owner_to_wire(&segment.donor.owner)),
        span: Some(span_to_wire(&segment.span, segment.tier)),
    }
}

fn neighbour(neighbour: &Neighbour) -> v1::Neighbour {
    v1::Neighbour {
        donor_id: neighbour.donor.id().to_owned(),
        owner: neighbour.donor.holder().map(key_to_wire),
        discovery: discovery_to_wire(neighbour.discovery),
        score: neighbour.score,
        quality: Some(quality(neighbour.discovery, neighbour.facts_differ)),
    }
}

fn discovery_to_wire(discovery: Discovery) -> i32 {
    match discovery {
        Discovery::Seeds => v1::Discovery::Seeds.into(),
        Discovery::Sketch => v1::Discovery::Sketch.into(),
        Discovery::Text => v1::Discovery::Text.into(),
        Discovery::Announced => v1::Discovery::Announced.into(),
    }
}

fn search_to_wire(search: VectorSearch) -> i32 {
    use v1::NeighbourSearch as Wire;
    let wire = match search {
        VectorSearch::NotNeeded => Wire::NotNeeded,
        VectorSearch::Done => Wire::Done,
        VectorSearch::Disabled => Wire::Disabled,
        VectorSearch::NoText => Wire::NoText,
        VectorSearch::NothingIndexed => Wire::NothingIndexed,
        VectorSearch::Late => Wire::Late,
        VectorSearch::Busy => Wire::Busy,
        VectorSearch::Failed => Wire::Failed,
    };
    wire.into()
}

fn rejected(rejected: &Rejected) -> v1::RejectedCandidate {
    v1::RejectedCandidate {
        donor_id: rejected.donor.id.to_string(),
        reason: reason_to_wire(rejected.reason),
        detail: rejected.detail.clone(),
        verified_tokens: rejected.worth.verified_tokens,
        reusable_prefix_tokens: rejected.worth.prefix.map_or(0, |prefix| prefix.tokens),
    }
}

fn owner_to_wire(owner: &Owner) -> v1::Owner {
    key_to_wire(&owner.key)
}

fn key_to_wire(key: &OwnerKey) -> v1::Owner {
    v1::Owner {
        worker_id: key.worker_id.to_string(),
        data_parallel_rank: key.data_parallel_rank,
    }
}

fn tier_to_wire(tier: Tier) -> i32 {
    match tier {
        Tier::Exact => v1::Tier::Exact.into(),
        Tier::Verified => v1::Tier::Verified.into(),
    }
}

fn refusal_to_wire(refusal: LeaseRefusal) -> i32 {
    match refusal {
        LeaseRefusal::DiscoveryOnly => v1::LeaseRefusal::DiscoveryOnly.into(),
        LeaseRefusal::StoreNotReadable => v1::LeaseRefusal::StoreNotReadable.into(),
        LeaseRefusal::SpansNotAccepted => v1::LeaseRefusal::SpansNotAccepted.into(),
        LeaseRefusal::HolderMissing => v1::LeaseRefusal::HolderMissing.into(),
    }
}

pub(super) fn reason_to_wire(reason: FallbackReason) -> i32 {
    use v1::FallbackReason as Wire;
    let wire = match reason {
        FallbackReason::ExactPrefixSufficient => Wire::ExactPrefixSufficient,
        FallbackReason::ProviderDisabled => Wire::ProviderDisabled,
        FallbackReason::ProviderTimeout => Wire::ProviderTimeout,
        FallbackReason::ProviderError => Wire::ProviderError,
        FallbackReason::ProviderMiss => Wire::ProviderMiss,
        FallbackReason::LowSimilarity => Wire::LowSimilarity,
        FallbackReason::LowReuseTokens => Wire::LowReuseTokens,
        FallbackReason::NamespaceMismatch => Wire::NamespaceMismatch,
        FallbackReason::UnsupportedRequest => Wire::UnsupportedRequest,
        FallbackReason::NotPrefixAnchored => Wire::NotPrefixAnchored,
        FallbackReason::NotBlockAligned => Wire::NotBlockAligned,
        FallbackReason::DonorStale => Wire::DonorStale,
        FallbackReason::AllocationFailed => Wire::AllocationFailed,
        FallbackReason::LoadFailed => Wire::LoadFailed,
        FallbackReason::InvalidBlocks => Wire::InvalidBlocks,
        FallbackReason::RecomputePolicy => Wire::RecomputePolicy,
    };
    wire.into()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "for people"
)]
fn micros(ns: u64) -> f32 {
    (ns as f64 / 1000.0) as f32
}
