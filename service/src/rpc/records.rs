//! What a call leaves behind: its counters at once, and its record for the recorder's thread.

use kvatlas_proto::v1;
use tonic::{Code, Request, Status};

use super::{
    Core,
    clock::Deadline,
    convert::donors::{Lookup, Provenance},
};
use crate::{
    donors::{
        answer::{Answer, LeaseRefusal, Outcome},
        catalog::Donor,
        gate::{Gate, Gates},
        vocabulary::{FallbackReason, Mode, Tier},
    },
    telemetry::{
        digests::{self, Kind, join_key},
        record::{self, Decimal, Digest, Line, Micros, Record, Share, Stages, VERSION},
        recorder::{Entry, Recorder},
        traces::Seat,
        words,
    },
};

/// In the metadata of a call whose message has no request_id of its own.
const REQUEST_ID_HEADER: &str = "x-request-id";

/// What is known of a call beside its message.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) deadline: Deadline,
    /// In a trace, when it is sampled.
    seat: Option<Box<Seat>>,
    request: Option<Digest>,
}

impl Call {
    /// A call with one message.
    pub(super) fn unary<T>(core: &Core, request: &Request<T>) -> Call {
        let deadline = core.deadline(request.metadata());
        let id = request.metadata().get(REQUEST_ID_HEADER);
        let id = id.and_then(|it| it.to_str().ok());
        let mut seat = seat(core, request);
        if let Some(seat) = &mut seat {
            seat.began_unix_ns = core.clock.unix_ns(deadline.began_ns);
        }
        Call {
            deadline,
            seat,
            request: id.and_then(join_key),
        }
    }

    /// One message of a stream that has this seat itself.
    pub(super) fn message(core: &Core, stream: Option<&Seat>) -> Call {
        let deadline = core.message_deadline();
        let traces = core.traces.as_ref();
        let mut seat = traces.and_then(|traces| traces.sample_message(stream));
        if let Some(seat) = &mut seat {
            seat.began_unix_ns = core.clock.unix_ns(deadline.began_ns);
        }
        Call {
            deadline,
            seat,
            request: None,
        }
    }

    fn took(&self, core: &Core) -> Micros {
        Decimal(core.clock.now_ns().saturating_sub(self.deadline.began_ns))
    }

    fn leave(self, recorder: &Recorder, record: Record) {
        recorder.record(Entry {
            line: Line {
                v: VERSION,
                at_ms: self.deadline.began_ms,
                record,
            },
            seat: self.seat,
        });
    }
}

/// The seat that a layer gave to the call; see [`super::traced`].
pub(super) fn seat<T>(core: &Core, request: &Request<T>) -> Option<Box<Seat>> {
    core.traces.as_ref()?;
    request.extensions().get::<Box<Seat>>().cloned()
}

/// What the record says of a look-up's question.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asked {
    request: Option<Digest>,
    template: Option<Digest>,
    prompt_tokens: u32,
    exact_prefix_tokens: u32,
}

impl Asked {
    pub(super) fn of(core: &Core, lookup: &Lookup) -> Asked {
        let Some(recorder) = &core.recorder else {
            return Asked::default();
        };
        Asked {
            request: join_key(&lookup.request_id),
            template: recorder.key.template(&lookup.tokens),
            prompt_tokens: u32::try_from(lookup.tokens.len()).unwrap_or(u32::MAX),
            exact_prefix_tokens: lookup.exact_prefix_tokens,
        }
    }
}

/// One look-up.
pub(super) fn lookup(core: &Core, call: Call, asked: Asked, answer: &Answer) {
    let Some(recorder) = &core.recorder else {
        return;
    };
    let found = answer.found.as_ref();
    let refusal = answer.refusal.filter(|_| found.is_none());
    let donor = |donor: &Donor| recorder.key.id(Kind::Donor, donor.id.as_bytes());
    let owner = |donor: &Donor| {
        let key = &donor.owner.key;
        recorder.key.owner(&key.worker_id, key.data_parallel_rank)
    };
    let (similarity, reuse_ratio) = match (found, refusal) {
        (Some(found), _) => (Some(found.worth.similarity), Some(found.worth.reuse_ratio)),
        (None, Some(refusal)) => (Some(refusal.similarity), Some(refusal.reuse_ratio)),
        (None, None) => (None, None),
    };
    let verified = found.map(|it| it.worth.verified_tokens);
    let reusable = found.map(|it| offered_tokens(&it.worth));
    let record = record::Lookup {
        request: asked.request.or(call.request),
        took_us: call.took(core),
        namespace: answer.namespace.map(|id| digests::namespace(&id.0)),
        outcome: outcome(answer.outcome),
        reason: answer.reason,
        gate: closed_gate(&asked, answer),
        mode: mode(answer.mode),
        prompt_tokens: asked.prompt_tokens,
        exact_prefix_tokens: asked.exact_prefix_tokens,
        verified_tokens: verified
            .or(refusal.map(|it| it.verified_tokens))
            .unwrap_or(0),
        reusable_tokens: reusable
            .or(refusal.map(|it| it.reusable_tokens))
            .unwrap_or(0),
        similarity: similarity.map(share),
        reuse_ratio: reuse_ratio.map(share),
        gates: answer.gates.as_ref().map(gates),
        tier: found.map(|it| tier(it.tier)),
        donor: found.map(|it| donor(&it.donor)),
        owner: found.map(|it| owner(&it.donor)),
        template: asked.template,
        leased: answer.lease.is_some(),
        lease_refusal: answer.lease_refusal.map(lease_refusal),
        facts_differ: found.and_then(|it| it.facts_differ),
        stages_us: Stages {
            seeds: Decimal(answer.timings.seeds_ns),
            align: Decimal(answer.timings.align_ns),
            gate: Decimal(answer.timings.gate_ns),
            neighbours: Decimal(answer.timings.neighbours_ns),
            facts: Decimal(answer.timings.facts_ns),
        },
    };
    call.leave(recorder, Record::Lookup(Box::new(record)));
}

/// Tokens that an answer offers.
pub(super) fn offered_tokens(worth: &crate::donors::gate::Worth) -> u32 {
    let prefix = worth.prefix.map(|prefix| prefix.tokens);
    prefix.unwrap_or(worth.verified_tokens)
}

/// One call for a manifest, and its counters.
pub(super) fn manifest(
    core: &Core,
    call: Call,
    prefix_hash: &str,
    answer: &Result<v1::GetManifestResponse, Status>,
) {
    let Some(recorder) = &core.recorder else {
        return;
    };
    let prefix = recorder.key.id(Kind::Prefix, prefix_hash.as_bytes());
    let (request, took_us) = (call.request, call.took(core));
    let record = match answer {
        Ok(answer) => record::Manifest {
            request,
            took_us,
            outcome: words::ManifestOutcome::Ok,
            reason: manifest_reason(answer.reason()),
            prefix,
            algorithm: algorithm(&answer.algorithm),
            policy: policy(&answer.policy),
            provenance: manifest_provenance(answer.provenance()),
            k: answer.effective_k,
            total_blocks: answer.total_blocks,
        },
        Err(status) => {
            let reason = refused_reason(status.code());
            let is_miss = reason == words::ManifestReason::NotFound;
            record::Manifest {
                request,
                took_us,
                outcome: if is_miss {
                    words::ManifestOutcome::Miss
                } else {
                    words::ManifestOutcome::Refused
                },
                reason: Some(reason),
                prefix,
                algorithm: None,
                policy: None,
                provenance: None,
                k: 0,
                total_blocks: 0,
            }
        }
    };
    core.metrics.manifests.count(&record);
    call.leave(recorder, Record::Manifest(record));
}

/// What an engine reported, and what became of the lease it named.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reported<'a> {
    pub(super) request_id: &'a str,
    pub(super) provenance: Provenance,
    pub(super) reason: Option<FallbackReason>,
    pub(super) tokens_loaded: u32,
    pub(super) invalid_blocks: u32,
    pub(super) released: bool,
}

/// One report of reuse, and its counters.
pub(super) fn reuse(core: &Core, call: Call, reported: Reported<'_>) {
    let Some(recorder) = &core.recorder else {
        return;
    };
    let Reported {
        request_id,
        provenance,
        reason,
        tokens_loaded,
        invalid_blocks,
        released,
    } = reported;
    let record = record::Reuse {
        request: join_key(request_id).or(call.request),
        took_us: call.took(core),
        provenance: reuse_provenance(provenance),
        reason,
        tokens_loaded,
        invalid_blocks,
        released,
    };
    core.metrics.reuse.count(&record);
    call.leave(recorder, Record::Reuse(record));
}

fn share(share: f32) -> Share {
    Decimal::of(f64::from(share))
}

fn gates(gates: &Gates) -> record::Gates {
    let Gates {
        min_prompt_tokens,
        min_reuse_tokens,
        min_similarity,
        min_reuse_ratio,
        exact_prefix_skip_ratio,
    } = *gates;
    record::Gates {
        min_prompt_tokens,
        min_reuse_tokens,
        min_similarity: share(min_similarity),
        min_reuse_ratio: share(min_reuse_ratio),
        exact_prefix_skip_ratio: share(exact_prefix_skip_ratio),
    }
}

fn closed_gate(asked: &Asked, answer: &Answer) -> Option<words::Gate> {
    let gates = answer.gates.filter(|_| answer.outcome == Outcome::Miss)?;
    if answer.reason == Some(FallbackReason::ExactPrefixSufficient) {
        return Some(words::Gate::ExactPrefixSkipRatio);
    }
    if asked.prompt_tokens < gates.min_prompt_tokens {
        return Some(words::Gate::MinPromptTokens);
    }
    Some(match answer.refusal?.gate {
        Gate::MinPromptTokens => words::Gate::MinPromptTokens,
        Gate::MinReuseTokens => words::Gate::MinReuseTokens,
        Gate::MinSimilarity => words::Gate::MinSimilarity,
        Gate::MinReuseRatio => words::Gate::MinReuseRatio,
        Gate::ExactPrefixSkipRatio => words::Gate::ExactPrefixSkipRatio,
        Gate::MinimumTier => words::Gate::MinimumTier,
    })
}

fn outcome(outcome: Outcome) -> words::Outcome {
    match outcome {
        Outcome::Prefix => words::Outcome::Prefix,
        Outcome::Spans => words::Outcome::Spans,
        Outcome::Miss => words::Outcome::Miss,
    }
}

/// The mode on a record.
#[must_use]
pub fn mode(mode: Mode) -> words::Mode {
    match mode {
        Mode::Disabled => words::Mode::Disabled,
        Mode::DiscoveryOnly => words::Mode::DiscoveryOnly,
        Mode::Materialize => words::Mode::Materialize,
    }
}

fn tier(tier: Tier) -> words::Tier {
    match tier {
        Tier::Exact => words::Tier::Exact,
        Tier::Verified => words::Tier::Verified,
    }
}

fn lease_refusal(refusal: LeaseRefusal) -> words::LeaseRefusal {
    match refusal {
        LeaseRefusal::DiscoveryOnly => words::LeaseRefusal::DiscoveryOnly,
        LeaseRefusal::StoreNotReadable => words::LeaseRefusal::StoreNotReadable,
        LeaseRefusal::SpansNotAccepted => words::LeaseRefusal::SpansNotAccepted,
        LeaseRefusal::HolderMissing => words::LeaseRefusal::HolderMissing,
    }
}

fn algorithm(name: &str) -> Option<words::Algorithm> {
    if name.is_empty() {
        return None;
    }
    Some(words::Algorithm::parse(name).unwrap_or(words::Algorithm::Other))
}

// A tag is a name, perhaps with numbers behind a colon, or letters with numbers between.
fn policy(tag: &str) -> Option<words::Policy> {
    let name = tag.split_once(':').map_or(tag, |(name, _)| name);
    words::Policy::parse(name).or_else(|| {
        tag.starts_with(['A', 'R', 'K'])
            .then_some(words::Policy::AnchorRecentMiddle)
    })
}

fn manifest_provenance(provenance: v1::ManifestProvenance) -> Option<words::ManifestProvenance> {
    match provenance {
        v1::ManifestProvenance::Prior => Some(words::ManifestProvenance::Prior),
        v1::ManifestProvenance::Online => Some(words::ManifestProvenance::Online),
        v1::ManifestProvenance::PolicyOnly => Some(words::ManifestProvenance::PolicyOnly),
        v1::ManifestProvenance::Unspecified => None,
    }
}

fn manifest_reason(reason: v1::ManifestReason) -> Option<words::ManifestReason> {
    match reason {
        v1::ManifestReason::PriorMissing => Some(words::ManifestReason::PriorMissing),
        v1::ManifestReason::PriorShort => Some(words::ManifestReason::PriorShort),
        v1::ManifestReason::AllBlocks => Some(words::ManifestReason::AllBlocks),
        v1::ManifestReason::OnlineUnavailable => Some(words::ManifestReason::OnlineUnavailable),
        v1::ManifestReason::QueryUnknown => Some(words::ManifestReason::QueryUnknown),
        v1::ManifestReason::Unspecified => None,
    }
}

fn refused_reason(code: Code) -> words::ManifestReason {
    match code {
        Code::NotFound => words::ManifestReason::NotFound,
        Code::InvalidArgument | Code::OutOfRange => words::ManifestReason::InvalidArgument,
        Code::FailedPrecondition => words::ManifestReason::FailedPrecondition,
        Code::ResourceExhausted => words::ManifestReason::ResourceExhausted,
        Code::DeadlineExceeded => words::ManifestReason::DeadlineExceeded,
        Code::Unavailable => words::ManifestReason::Unavailable,
        Code::DataLoss => words::ManifestReason::DataLoss,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Aborted
        | Code::Unimplemented
        | Code::Internal
        | Code::Unauthenticated => words::ManifestReason::OtherError,
    }
}

fn reuse_provenance(provenance: Provenance) -> words::ReuseProvenance {
    match provenance {
        Provenance::ExactLocalPrefixHit => words::ReuseProvenance::ExactLocalPrefixHit,
        Provenance::ExactExternalHit => words::ReuseProvenance::ExactExternalHit,
        Provenance::RequestOnlyReuse => words::ReuseProvenance::RequestOnlyReuse,
        Provenance::CandidateRejected => words::ReuseProvenance::CandidateRejected,
        Provenance::FallbackRecompute => words::ReuseProvenance::FallbackRecompute,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::policy::Policy;

    #[test]
    fn every_policy_has_its_word() {
        for (tag, word) in [
            ("", words::Policy::TopK),
            ("top-k", words::Policy::TopK),
            ("A1R2K13", words::Policy::AnchorRecentMiddle),
            ("hybrid:2,6", words::Policy::Hybrid),
            ("recency", words::Policy::Recency),
            (
                "anchor-recency-spread:1,2",
                words::Policy::AnchorRecencySpread,
            ),
            ("random-middle:1,2,9", words::Policy::RandomMiddle),
            ("segment-quota:1,2,8", words::Policy::SegmentQuota),
            ("per-head", words::Policy::PerHead),
        ] {
            let canonical = Policy::parse(tag).unwrap().tag();
            assert_eq!(policy(&canonical), Some(word), "{tag}");
        }
    }
}
