//! One donor look-up: convert, look up, record, convert back.

use std::sync::Arc;

use kvatlas_proto::v1;
use tonic::Status;

use super::{
    Core,
    access::NOBODYS,
    clock::Deadline,
    convert::{self, donors::Lookup, namespace::LookupNamespace},
    near,
    records::{self, Asked, Call, offered_tokens},
};
use crate::{
    access::Pass,
    donors::{
        answer::Answer,
        find::{FindQuery, Finder},
        namespace::NamespaceId,
        vocabulary::{Discovery, FallbackReason},
    },
};

/// Longer prompts are looked up on a worker thread: they would hold up an async one too long.
const INLINE_TOKENS_MAX: usize = 32_768;

/// Answers one look-up; its errors are of the request's form alone.
pub(super) async fn find(
    core: &Arc<Core>,
    pass: &Pass,
    request: v1::FindDonorRequest,
    call: Call,
) -> Result<v1::FindDonorResponse, Status> {
    let deadline = call.deadline;
    let started_ns = core.clock.now_ns();
    core.metrics.lookups.requests.inc();
    let mut lookup =
        convert::donors::lookup(request, core.limits.lease_ttl_ms).inspect_err(|_| {
            core.metrics.lookups.errors.inc();
        })?;
    let hidden = hide(core, pass, &mut lookup);
    let decode_ns = core.clock.now_ns().saturating_sub(started_ns);
    let asked = Asked::of(core, &lookup);
    let is_long = lookup.tokens.len() > INLINE_TOKENS_MAX || lookup.segment_donors_max > 0;
    let answer = if is_long {
        Box::pin(find_aside(core, lookup, deadline)).await
    } else {
        let answer = find_now(core, &lookup, deadline);
        if near::is_wanted(core, &lookup, &answer) {
            Box::pin(near::second_stage(core, Arc::new(lookup), answer, deadline)).await
        } else {
            answer
        }
    };
    record(core, &answer);
    records::lookup(core, call, asked, &answer);
    let mut answer = convert::answers::answer(&answer, core.clock.now_ms(), decode_ns);
    if let Some(asked) = hidden
        && !answer.namespace_id.is_empty()
    {
        answer.namespace_id = asked.to_string();
    }
    Ok(answer)
}

// A namespace that is not the caller's is looked up as one that nobody has, to the end: so the
// answer is that of a namespace that does not exist, and takes as long. Returns what was asked for.
fn hide(core: &Core, pass: &Pass, lookup: &mut Lookup) -> Option<NamespaceId> {
    let LookupNamespace::Known(asked, whole) = &lookup.namespace else {
        return None;
    };
    let asked = *asked;
    if core.covers(pass, asked, whole.as_deref()) {
        return None;
    }
    core.metrics.lookups.cross_namespace_rejected.inc();
    lookup.namespace = LookupNamespace::Known(NOBODYS, None);
    Some(asked)
}

async fn find_aside(core: &Arc<Core>, lookup: Lookup, deadline: Deadline) -> Arc<Answer> {
    core.metrics.lookups.deferred.inc();
    let lookup = Arc::new(lookup);
    let work = move |core: &Core, lookup: &Lookup| find_now(core, lookup, deadline);
    let answer = match near::on_worker(core, &core.finders, &lookup, deadline, work).await {
        Ok(answer) => answer,
        Err(failure) => {
            let (mode, _) = core.catalog.rules(None);
            let (reason, detail) = failure.as_miss();
            return Arc::new(Answer::miss(reason, detail, mode));
        }
    };
    if near::is_wanted(core, &lookup, &answer) {
        near::second_stage(core, lookup, answer, deadline).await
    } else {
        answer
    }
}

fn find_now(core: &Core, lookup: &Lookup, deadline: Deadline) -> Arc<Answer> {
    let namespace = match &lookup.namespace {
        LookupNamespace::Known(id, _) => *id,
        LookupNamespace::Incomplete(field) => {
            core.metrics.lookups.cross_namespace_rejected.inc();
            let (mode, _) = core.catalog.rules(None);
            let detail = format!("{field} is empty");
            return Arc::new(Answer::miss(
                FallbackReason::NamespaceMismatch,
                detail,
                mode,
            ));
        }
    };
    with_finder(core, deadline, |finder| {
        finder.find(&query(lookup), namespace)
    })
}

/// Runs one stage of a look-up with the parts of the server that it needs.
pub(super) fn with_finder<T>(
    core: &Core,
    deadline: Deadline,
    stage: impl FnOnce(&Finder<'_>) -> T,
) -> T {
    let clock_ns = || core.clock.now_ns();
    stage(&Finder {
        catalog: &core.catalog,
        leases: &core.donor_leases,
        repeats: &core.repeats,
        clock_ns: &clock_ns,
        now_ms: core.clock.now_ms(),
        deadline_ns: deadline.at_ns,
    })
}

/// The look-up in the domain's terms.
pub(super) fn query(lookup: &Lookup) -> FindQuery<'_> {
    FindQuery {
        tokens: &lookup.tokens,
        exact_prefix_tokens: lookup.exact_prefix_tokens,
        request_id: &lookup.request_id,
        holder: &lookup.holder,
        readable_store_ids: &lookup.readable_store_ids,
        gates: lookup.gates,
        accept_spans: lookup.accept_spans,
        asynchronous_load: lookup.asynchronous_load,
        minimum_tier: lookup.minimum_tier,
        explain: lookup.explain,
        lease_ttl_ms: lookup.lease_ttl_ms,
        segment_donors_max: lookup.segment_donors_max as usize,
        neighbours_max: lookup.neighbours_max as usize,
    }
}

fn record(core: &Core, answer: &Answer) {
    if core.recorder.is_none() {
        return;
    }
    let lookups = &core.metrics.lookups;
    let timings = answer.timings;
    lookups.seconds.observe_ns(timings.total_ns);
    if timings.seeds_ns > 0 {
        lookups.seeds_seconds.observe_ns(timings.seeds_ns);
        lookups.align_seconds.observe_ns(timings.align_ns);
        lookups.gate_seconds.observe_ns(timings.gate_ns);
    }
    if timings.neighbours_ns > 0 {
        lookups.neighbours_seconds.observe_ns(timings.neighbours_ns);
    }
    if timings.facts_ns > 0 {
        lookups.facts_seconds.observe_ns(timings.facts_ns);
    }
    lookups.sketch_searches.inc(answer.sketch_search);
    lookups.text_searches.inc(answer.text_search);
    let listed = answer.neighbours.iter();
    let listed = listed.filter(|neighbour| neighbour.discovery == Discovery::Announced);
    core.metrics
        .donor_events
        .listed
        .inc_by(listed.count() as u64);
    let Some(found) = &answer.found else {
        let Some(reason) = answer.reason else {
            return;
        };
        lookups.misses.inc(reason);
        if is_rejection(reason) {
            lookups.rejected.inc(reason);
        }
        return;
    };
    lookups.hits.inc();
    if found.facts_differ == Some(true) {
        lookups.facts_differ.inc();
    }
    if answer.lease.is_some() && !answer.repeated {
        core.metrics.reuse.requests.inc();
    }
    let worth = &found.worth;
    let offered = f64::from(offered_tokens(worth));
    lookups.external_tokens_reported.observe(offered);
    lookups.similarity.observe(f64::from(worth.similarity));
    lookups.reuse_ratio.observe(f64::from(worth.reuse_ratio));
}

// Whether there was a candidate, and it was turned down.
fn is_rejection(reason: FallbackReason) -> bool {
    match reason {
        FallbackReason::LowSimilarity
        | FallbackReason::LowReuseTokens
        | FallbackReason::DonorStale
        | FallbackReason::NotBlockAligned
        | FallbackReason::NotPrefixAnchored => true,
        FallbackReason::ExactPrefixSufficient
        | FallbackReason::ProviderDisabled
        | FallbackReason::ProviderTimeout
        | FallbackReason::ProviderError
        | FallbackReason::ProviderMiss
        | FallbackReason::NamespaceMismatch
        | FallbackReason::UnsupportedRequest
        | FallbackReason::AllocationFailed
        | FallbackReason::LoadFailed
        | FallbackReason::InvalidBlocks
        | FallbackReason::RecomputePolicy => false,
    }
}
