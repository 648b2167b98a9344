//! Checks a look-up's answer against its request: what cannot be true is not believed.

use kvatlas_proto::v1;
use tokio::time::Instant;

use super::{
    Answered, Bounds, CachePolicy, FindOutcome, Lease, Lookup, MissReason, Nomination, Outcome,
    Span, Tier,
};

/// What is wrong with an answer.
type Lie = &'static str;

/// The answer as a look-up, or why it contradicts the request or itself.
pub(super) fn checked(
    wire: v1::FindDonorResponse,
    bounds: Bounds,
    sent: Instant,
) -> Result<Lookup, Lie> {
    let outcome = FindOutcome::try_from(wire.outcome).map_err(|_| "an unknown outcome")?;
    let outcome = match outcome {
        FindOutcome::Prefix => Outcome::Prefix,
        FindOutcome::Spans => Outcome::Spans,
        FindOutcome::Miss => return miss(wire),
        FindOutcome::Unspecified => return Err("no outcome"),
    };
    let lease = lease(wire.lease.clone(), wire.lease_refusal(), sent)?;
    let Some(found) = wire.r#match.clone() else {
        return Err("a hit without its match");
    };
    let nomination = nomination(found, outcome, lease, answered(wire))?;
    check_tier(&nomination, bounds)?;
    check_prefix(&nomination, bounds)?;
    check_spans(&nomination, bounds)?;
    Ok(Lookup::Hit(Box::new(nomination)))
}

fn miss(wire: v1::FindDonorResponse) -> Result<Lookup, Lie> {
    let reason = v1::FallbackReason::try_from(wire.reason).map_err(|_| "an unknown reason")?;
    let reason = MissReason::from_wire(reason).ok_or("a miss without a reason")?;
    Ok(Lookup::Miss {
        reason,
        detail: wire.detail.clone(),
        answered: Some(Box::new(answered(wire))),
    })
}

fn answered(wire: v1::FindDonorResponse) -> Answered {
    Answered {
        mode: wire.mode(),
        sketch_search: wire.sketch_search(),
        text_search: wire.text_search(),
        namespace_id: wire.namespace_id,
        timings: wire.timings.unwrap_or_default(),
        rejected: wire.rejected,
        segments: wire.segments,
        neighbours: wire.neighbours,
        repeated: wire.repeated_answer,
    }
}

fn lease(
    lease: Option<v1::Lease>,
    refusal: v1::LeaseRefusal,
    sent: Instant,
) -> Result<Result<Lease, v1::LeaseRefusal>, Lie> {
    match (lease, refusal) {
        (Some(lease), v1::LeaseRefusal::Unspecified) => Lease::from_wire(lease, sent).map(Ok),
        (Some(_), _) => Err("a lease and a refusal of it"),
        (None, v1::LeaseRefusal::Unspecified) => Err("no lease and no word why"),
        (None, refusal) => Ok(Err(refusal)),
    }
}

fn nomination(
    found: v1::DonorMatch,
    outcome: Outcome,
    lease: Result<Lease, v1::LeaseRefusal>,
    answered: Answered,
) -> Result<Nomination, Lie> {
    let tier = tier(found.tier)?;
    let cache_policy = cache_policy(found.cache_policy)?;
    let medium = found.medium();
    let spans: Result<Vec<Span>, Lie> = found.spans.iter().map(span).collect();
    let shares = [found.similarity, found.reuse_ratio];
    if !shares.iter().all(|share| (0.0..=1.0).contains(share)) {
        return Err("a similarity or reuse ratio outside 0 to 1");
    }
    if found.donor_id.is_empty() || medium == v1::Medium::Unspecified {
        return Err("a donor without an id or a medium");
    }
    Ok(Nomination {
        outcome,
        donor_id: found.donor_id,
        owner: found.owner.ok_or("a donor without an owner")?,
        owner_generation: found.owner_generation,
        medium,
        store_id: found.store_id,
        tier,
        cache_policy,
        reusable_prefix_tokens: found.reusable_prefix_tokens,
        donor_offset: found.donor_offset,
        spans: spans?,
        similarity: found.similarity,
        reuse_ratio: found.reuse_ratio,
        captured_tokens: found.captured_tokens,
        quality: found.quality.unwrap_or_default(),
        lease,
        answered,
    })
}

fn span(wire: &v1::Span) -> Result<Span, Lie> {
    let v1::Span {
        donor_start,
        target_start,
        length,
        tier: span_tier,
    } = *wire;
    Ok(Span {
        donor_start,
        target_start,
        length,
        tier: tier(span_tier)?,
    })
}

fn tier(wire: i32) -> Result<Tier, Lie> {
    match v1::Tier::try_from(wire) {
        Ok(v1::Tier::Exact) => Ok(Tier::Exact),
        Ok(v1::Tier::Verified) => Ok(Tier::Verified),
        Ok(v1::Tier::Semantic) => Ok(Tier::Semantic),
        Ok(v1::Tier::Unspecified) | Err(_) => Err("an unknown tier"),
    }
}

fn cache_policy(wire: i32) -> Result<CachePolicy, Lie> {
    match v1::CachePolicy::try_from(wire) {
        Ok(v1::CachePolicy::ExactCommit) => Ok(CachePolicy::ExactCommit),
        Ok(v1::CachePolicy::RequestOnly) => Ok(CachePolicy::RequestOnly),
        Ok(v1::CachePolicy::DiscoveryOnly) => Ok(CachePolicy::DiscoveryOnly),
        Ok(v1::CachePolicy::Unspecified) | Err(_) => Err("an unknown cache policy"),
    }
}

/// A tier that allows less than its policy says would poison the engine's exact cache.
fn check_tier(nomination: &Nomination, bounds: Bounds) -> Result<(), Lie> {
    if nomination.tier > bounds.minimum_tier {
        return Err("a tier worse than asked for");
    }
    match (nomination.tier, nomination.cache_policy) {
        (Tier::Exact, _)
        | (_, CachePolicy::DiscoveryOnly)
        | (Tier::Verified, CachePolicy::RequestOnly) => Ok(()),
        (Tier::Verified | Tier::Semantic, CachePolicy::ExactCommit)
        | (Tier::Semantic, CachePolicy::RequestOnly) => {
            Err("a cache policy that its tier does not allow")
        }
    }
}

fn check_prefix(nomination: &Nomination, bounds: Bounds) -> Result<(), Lie> {
    let reusable = nomination.reusable_prefix_tokens;
    if nomination.outcome == Outcome::Spans {
        return match reusable {
            0 => Ok(()),
            _ => Err("reusable prefix tokens without a prefix"),
        };
    }
    let left_to_compute = u32::from(!bounds.asynchronous_load);
    let within_prompt = sum_is_within(
        [bounds.exact_prefix, reusable, left_to_compute],
        bounds.prompt,
    );
    if reusable == 0 || !within_prompt {
        return Err("reusable tokens over the prompt's length, or none");
    }
    let donor_offset = nomination.donor_offset;
    if !sum_is_within([donor_offset, reusable, 0], nomination.captured_tokens) {
        return Err("reusable tokens over what the donor has captured");
    }
    if nomination.tier == Tier::Exact && donor_offset != bounds.exact_prefix {
        return Err("an exact tier at another position");
    }
    Ok(())
}

fn check_spans(nomination: &Nomination, bounds: Bounds) -> Result<(), Lie> {
    let spans = &nomination.spans;
    if spans.is_empty() {
        return Err("a hit without a span");
    }
    for span in spans {
        let in_target = span.target_start >= bounds.exact_prefix
            && sum_is_within([span.target_start, span.length, 0], bounds.prompt);
        let in_donor = sum_is_within(
            [span.donor_start, span.length, 0],
            nomination.captured_tokens,
        );
        if span.length == 0 || !in_target || !in_donor {
            return Err("a span outside the prompt or the donor");
        }
        if span.tier == Tier::Exact && span.donor_start != span.target_start {
            return Err("an exact span at another position");
        }
    }
    let by_target = spans.iter().map(|span| (span.target_start, span.length));
    let mut by_donor: Vec<(u32, u32)> = spans
        .iter()
        .map(|span| (span.donor_start, span.length))
        .collect();
    by_donor.sort_unstable();
    if disjoint_in_order(by_target) && disjoint_in_order(by_donor.into_iter()) {
        Ok(())
    } else {
        Err("spans that overlap or are out of order")
    }
}

fn sum_is_within(parts: [u32; 3], limit: u32) -> bool {
    parts.iter().copied().map(u64::from).sum::<u64>() <= u64::from(limit)
}

/// Each `(start, length)` begins where the one before has ended, or later.
fn disjoint_in_order(runs: impl Iterator<Item = (u32, u32)>) -> bool {
    let mut end = 0;
    for (start, length) in runs {
        if u64::from(start) < end {
            return false;
        }
        end = u64::from(start) + u64::from(length);
    }
    true
}
