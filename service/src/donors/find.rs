//! One donor look-up: gates, search, verdicts, lease. Every way it can fail is a miss.

use std::sync::Arc;

use super::{
    align::Span,
    answer::{Answer, FoundDonor, LeaseRefusal, Outcome, Rejected, Segment, Timings},
    catalog::{Catalog, Donor, Shard, ShardDonors},
    gate::{self, Evidence, GateOverrides, Gates, Refusal, Terms, Verdict, Worth},
    namespace::NamespaceId,
    offer::{Met, Offer, Wanted, Wish, gone, prospect, reach},
    repeats::{RepeatKey, Repeats},
    search::{Aligned, Found, Prospect, Scratch, Target},
    segments::segments,
    vocabulary::{Discovery, FallbackReason, Mode, Tier, VectorSearch},
};
use crate::leases::{AcquireError, DonorLeases, Grant, LeaseState, LeaseTerms, Sighting};

/// Candidates that are compared token by token.
const VERIFY_MAX: usize = 8;
/// Rejected candidates that an explained answer lists.
pub(super) const REJECTED_MAX: usize = 8;

/// A validated look-up.
#[derive(Debug)]
pub struct FindQuery<'a> {
    pub tokens: &'a [u32],
    pub exact_prefix_tokens: u32,
    pub request_id: &'a str,
    pub holder: &'a str,
    pub readable_store_ids: &'a [String],
    pub gates: GateOverrides,
    pub accept_spans: bool,
    pub asynchronous_load: bool,
    pub minimum_tier: Tier,
    pub explain: bool,
    /// Milliseconds.
    pub lease_ttl_ms: u32,
    /// Donors whose spans are combined; 0: none.
    pub segment_donors_max: usize,
    /// Neighbours that a miss lists.
    pub neighbours_max: usize,
}

impl FindQuery<'_> {
    /// Whether the answer may carry a lease. One that nobody would hold is never given: who names
    /// no holder is answered as in discovery, of donors that could not be leased as well.
    pub(super) fn may_lease(&self, mode: Mode) -> bool {
        mode == Mode::Materialize && !self.holder.is_empty()
    }
}

/// What a look-up needs beside the query. Times are in nanoseconds and milliseconds.
pub struct Finder<'a> {
    pub catalog: &'a Catalog,
    pub leases: &'a DonorLeases,
    pub repeats: &'a Repeats,
    pub clock_ns: &'a dyn Fn() -> u64,
    pub now_ms: u64,
    /// On the clock of `clock_ns`: what is not done by then is a miss.
    pub deadline_ns: u64,
}

impl std::fmt::Debug for Finder<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Finder")
            .field("now_ms", &self.now_ms)
            .finish_non_exhaustive()
    }
}

impl Finder<'_> {
    /// Answers one look-up in a namespace that the catalog may not know.
    #[must_use]
    pub fn find(&self, query: &FindQuery<'_>, namespace: NamespaceId) -> Arc<Answer> {
        let started = (self.clock_ns)();
        let shard = self.catalog.shard(namespace);
        let (mode, gates) = self.catalog.rules(shard.as_deref());
        let gates = query.gates.over(gates);
        let finish = |mut answer: Answer| {
            answer.namespace = Some(namespace);
            answer.gates = Some(gates);
            answer.timings.total_ns = (self.clock_ns)().saturating_sub(started);
            answer
        };
        if mode == Mode::Disabled {
            let reason = FallbackReason::ProviderDisabled;
            return Arc::new(finish(Answer::miss(reason, "the mode is disabled", mode)));
        }
        let terms = terms(query, gates, shard.as_deref());
        if let Err((reason, detail)) = gate::before_search(&terms) {
            return Arc::new(finish(Answer::miss(reason, detail, mode)));
        }
        let Some(shard) = shard else {
            let detail = "no donor is registered in the namespace";
            let reason = FallbackReason::ProviderMiss;
            return Arc::new(finish(Answer::miss(reason, detail, mode)));
        };
        let repeat = repeat_key(query, namespace, mode);
        if let Some(key) = &repeat
            && let Some(earlier) = self.repeats.get(key)
            && self.is_leased(&earlier, query.holder)
        {
            return Arc::new(repeated(&earlier));
        }
        let search = Search {
            query,
            terms: &terms,
            shard: &shard,
            mode,
        };
        let answer = Arc::new(finish(self.search(&search)));
        self.remembered(repeat, answer, query.holder)
    }

    /// The answer, or the one that holds the request's lease already.
    pub(super) fn remembered(
        &self,
        repeat: Option<RepeatKey>,
        answer: Arc<Answer>,
        holder: &str,
    ) -> Arc<Answer> {
        match (repeat, answer.lease) {
            (Some(key), Some(grant)) => self.remember(key, answer, grant, holder),
            _ => answer,
        }
    }

    // Two look-ups of one request can be under way at once: the first to be remembered wins.
    fn remember(
        &self,
        key: RepeatKey,
        answer: Arc<Answer>,
        grant: Grant,
        holder: &str,
    ) -> Arc<Answer> {
        let is_valid = |earlier: &Answer| self.is_leased(earlier, holder);
        match self.repeats.remember(key, &answer, is_valid) {
            None => answer,
            Some(earlier) => {
                self.leases.release(self.now_ms, grant.id.as_ref(), holder);
                Arc::new(repeated(&earlier))
            }
        }
    }

    fn is_leased(&self, answer: &Answer, holder: &str) -> bool {
        answer.lease.is_some_and(|grant| {
            let state = self
                .leases
                .validate(self.now_ms, grant.id.as_ref(), Some(holder));
            matches!(state, LeaseState::Valid { .. })
        })
    }

    fn search(&self, search: &Search<'_>) -> Answer {
        self.catalog.with_scratch(|scratch| {
            // What cannot be leased or read must not hide what can.
            let serving = Wanted::serving(search.query, search.mode);
            let (answer, is_some_unusable) = self.attempt(search, scratch, serving);
            let is_settled = answer.outcome != Outcome::Miss
                || answer.reason == Some(FallbackReason::ProviderTimeout);
            if is_settled || (!search.query.may_lease(search.mode) && !is_some_unusable) {
                return answer;
            }
            // Nothing usable: say whether there is something that is not.
            let (other, _) = self.attempt(search, scratch, Wanted::Any);
            let says_more = other.found.is_some()
                || other.reason == Some(FallbackReason::DonorStale)
                || answer.reason == Some(FallbackReason::ProviderMiss);
            if says_more { other } else { answer }
        })
    }

    // One search among the donors that are wanted, and the best of them; and whether it came
    // across one that is gone, or not of the tier.
    fn attempt(
        &self,
        search: &Search<'_>,
        scratch: &mut Scratch,
        wanted: Wanted,
    ) -> (Answer, bool) {
        let Search {
            query,
            terms,
            shard,
            mode,
        } = *search;
        if (self.clock_ns)() >= self.deadline_ns {
            let answer = timed_out("the deadline passed before the search", mode);
            return (answer, false);
        }
        let donors = shard.read();
        let wish = Wish {
            query,
            wanted,
            terms,
        };
        let (found, segments, is_some_unusable) = self.nominate(&wish, &donors, scratch);
        let gate_started = (self.clock_ns)();
        let judged = judge_all(terms, &donors, found.candidates);
        drop(donors);
        let ground = Ground {
            mode,
            namespace: shard.id,
        };
        let mut answer = self.conclude(query, judged, ground, Discovery::Seeds);
        answer.segments = segments;
        let gate_ended = (self.clock_ns)();
        if gate_ended >= self.deadline_ns {
            self.take_back(&answer, query.holder);
            let answer = timed_out("the deadline passed during the search", mode);
            return (answer, false);
        }
        answer
            .rejected
            .truncate(if query.explain { REJECTED_MAX } else { 0 });
        answer.timings = Timings {
            seeds_ns: found.seeds_ns,
            align_ns: found.align_ns,
            gate_ns: gate_ended.saturating_sub(gate_started),
            neighbours_ns: 0,
            facts_ns: 0,
            total_ns: 0,
        };
        (answer, is_some_unusable)
    }

    // Whole donors, and where parts of donors came up, the best of these as well.
    fn nominate(
        &self,
        wish: &Wish<'_>,
        donors: &ShardDonors,
        scratch: &mut Scratch,
    ) -> (Found, Vec<Segment>, bool) {
        let query = wish.query;
        let offer = |slot: u32| {
            let donor = donors.at(slot);
            donor.map_or(Offer::Nothing, |donor| self.offer(donor, wish))
        };
        let met = Met::default();
        let target = Target {
            tokens: query.tokens,
            boundary: query.exact_prefix_tokens as usize,
            is_eligible: &|slot| met.is_whole(offer(slot)),
            reach: None,
            verify_max: VERIFY_MAX,
            prospect: &|slot, continuation| {
                let donor = donors.at(slot);
                donor.map_or_else(Prospect::default, |donor| {
                    prospect(wish.terms, donor, continuation)
                })
            },
        };
        let mut found = donors.index.search(&target, scratch, self.clock_ns);
        if met.part.get() && !found.has_identical(query.tokens.len()) {
            let parts = Target {
                is_eligible: &|slot| matches!(offer(slot), Offer::Part(_)),
                reach: Some(&|slot| offer(slot).tokens()),
                ..target
            };
            found.add(donors.index.search(&parts, scratch, self.clock_ns));
        }
        let segments = segments(query, donors, &target, &found.candidates, scratch);
        (found, segments, met.unusable.get())
    }

    /// Gives the lease of an answer back that nobody will get. One that was given before, under the
    /// same request id, is somebody's already.
    pub fn take_back(&self, answer: &Answer, holder: &str) {
        if let Some(grant) = answer.lease
            && !answer.repeated
        {
            self.leases.release(self.now_ms, grant.id.as_ref(), holder);
        }
    }

    // Nominates the best candidate, and leases it where that is allowed.
    pub(super) fn conclude(
        &self,
        query: &FindQuery<'_>,
        judged: Vec<Judged>,
        ground: Ground,
        discovery: Discovery,
    ) -> Answer {
        let mode = ground.mode;
        let Some((best, rejected)) = choose(judged) else {
            let detail = "no donor shares a sampled run of tokens with the prompt";
            return Answer::miss(FallbackReason::ProviderMiss, detail, mode);
        };
        let (outcome, reason, detail) = match &best.verdict {
            Verdict::Rejected(reason, detail) => {
                let (reason, detail) = (*reason, detail.clone());
                return missed(best, rejected, (reason, detail), mode);
            }
            Verdict::Prefix => (Outcome::Prefix, None, String::new()),
            Verdict::Spans(reason, detail) => (Outcome::Spans, Some(*reason), detail.clone()),
        };
        let lease = match gone(best.seen, best.reach) {
            Some(detail) => Err((FallbackReason::DonorStale, detail)),
            None => self.lease(query, &best, outcome, ground),
        };
        let lease = match lease {
            Ok(lease) => lease,
            Err((reason, detail)) => {
                return missed(best, rejected, (reason, detail.to_owned()), mode);
            }
        };
        let Judged {
            donor,
            worth,
            spans,
            ..
        } = best;
        self.catalog.hit(&donor);
        let worst = spans.iter().map(|(_, tier)| *tier).max();
        let tier = worth
            .prefix
            .map_or(worst.unwrap_or(Tier::Verified), |prefix| prefix.tier);
        Answer {
            outcome,
            reason,
            detail,
            found: Some(FoundDonor {
                donor,
                worth,
                tier,
                spans,
                discovery,
                facts_differ: None,
            }),
            lease: lease.ok(),
            lease_refusal: lease.err(),
            namespace: None,
            mode,
            gates: None,
            refusal: None,
            timings: Timings::default(),
            rejected,
            segments: Vec::new(),
            neighbours: Vec::new(),
            sketch_search: VectorSearch::NotNeeded,
            text_search: VectorSearch::NotNeeded,
            repeated: false,
        }
    }

    fn lease(
        &self,
        query: &FindQuery<'_>,
        best: &Judged,
        outcome: Outcome,
        ground: Ground,
    ) -> Result<Result<Grant, LeaseRefusal>, (FallbackReason, &'static str)> {
        if ground.mode != Mode::Materialize {
            return Ok(Err(LeaseRefusal::DiscoveryOnly));
        }
        if !query.may_lease(ground.mode) {
            return Ok(Err(LeaseRefusal::HolderMissing));
        }
        let (donor, seen) = (&best.donor, best.seen);
        if let Some(detail) = donor.unleasable(self.now_ms, seen) {
            return Err((FallbackReason::DonorStale, detail));
        }
        if !is_readable(donor, query) {
            return Ok(Err(LeaseRefusal::StoreNotReadable));
        }
        if outcome == Outcome::Spans && !query.accept_spans {
            return Ok(Err(LeaseRefusal::SpansNotAccepted));
        }
        let terms = LeaseTerms {
            holder: query.holder,
            realm: ground.namespace.0,
            ttl_ms: query.lease_ttl_ms,
            claim: Arc::clone(&donor.claim),
            owner: Arc::clone(&donor.owner.life),
            generation: donor.owner_generation,
            sighting: seen,
        };
        match self.leases.acquire(self.now_ms, terms) {
            Ok(grant) => Ok(Ok(grant)),
            Err(AcquireError::Stale) => Err((
                FallbackReason::DonorStale,
                "the donor went while it was looked up",
            )),
            Err(AcquireError::Full) => {
                Err((FallbackReason::ProviderError, "the lease table is full"))
            }
            Err(AcquireError::NoRandomness) => Err((
                FallbackReason::ProviderError,
                "the system gives no random bytes",
            )),
        }
    }
}

// One look-up, once it is known where and under which rules.
#[derive(Clone, Copy)]
struct Search<'a> {
    query: &'a FindQuery<'a>,
    terms: &'a Terms,
    shard: &'a Shard,
    mode: Mode,
}

/// What a lease is given under.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ground {
    pub(super) mode: Mode,
    pub(super) namespace: NamespaceId,
}

/// A candidate with its verdict.
#[derive(Debug)]
pub(super) struct Judged {
    donor: Arc<Donor>,
    verdict: Verdict,
    worth: Worth,
    spans: Vec<(Span, Tier)>,
    /// Of one that was rejected.
    refusal: Option<Refusal>,
    /// Before it was judged, of a donor in device memory.
    seen: Option<Sighting>,
    /// How far into the donor all this goes.
    reach: u32,
}

impl Judged {
    // Best first: more that continues the prefix, else more in all; then what the engine may keep;
    // then the fresher; then the id.
    fn rank(&self) -> impl Ord + '_ {
        use std::cmp::Reverse;
        let (class, tokens) = match self.verdict {
            Verdict::Prefix => (0, self.worth.prefix.map_or(0, |prefix| prefix.tokens)),
            Verdict::Spans(..) => (1, self.worth.verified_tokens),
            Verdict::Rejected(..) => (2, self.worth.verified_tokens),
        };
        let tier = self
            .worth
            .prefix
            .map_or(Tier::Verified, |prefix| prefix.tier);
        (
            class,
            Reverse(tokens),
            tier,
            Reverse(self.donor.sequence),
            &self.donor.id,
        )
    }
}

/// Judges each candidate that is still there.
pub(super) fn judge_all(
    terms: &Terms,
    donors: &ShardDonors,
    candidates: Vec<Aligned>,
) -> Vec<Judged> {
    let judge_one = |candidate: Aligned| {
        let donor = Arc::clone(donors.at(candidate.slot)?);
        let (seen, reach) = (donor.sight(), reach(&candidate));
        let evidence = Evidence {
            spans: &candidate.spans,
            anchored: candidate.anchored,
            identical_from_start: candidate.identical_from_start,
            exact_tokens: donor.exact_tokens,
        };
        let (verdict, worth) = gate::judge(terms, &evidence);
        let is_rejected = matches!(verdict, Verdict::Rejected(..));
        let refusal = is_rejected.then(|| gate::refusal(terms, &evidence));
        let tier = |span: &Span| (*span, gate::span_tier(span, &evidence));
        let spans = candidate.spans.iter().map(tier).collect();
        Some(Judged {
            donor,
            verdict,
            worth,
            spans,
            refusal,
            seen,
            reach,
        })
    };
    candidates.into_iter().filter_map(judge_one).collect()
}

fn choose(mut judged: Vec<Judged>) -> Option<(Judged, Vec<Rejected>)> {
    judged.sort_by(|left, right| left.rank().cmp(&right.rank()));
    let mut rest = judged.into_iter();
    let best = rest.next()?;
    let rejected = rest
        .map(|judged| {
            let (reason, detail) = match judged.verdict {
                Verdict::Rejected(reason, detail) => (reason, detail),
                Verdict::Prefix | Verdict::Spans(..) => (
                    FallbackReason::LowReuseTokens,
                    "another donor offers more".to_owned(),
                ),
            };
            Rejected {
                donor: judged.donor,
                reason,
                detail,
                worth: judged.worth,
            }
        })
        .collect();
    Some((best, rejected))
}

// A miss that lists the best candidate first among the rejected.
fn missed(
    best: Judged,
    rejected: Vec<Rejected>,
    (reason, detail): (FallbackReason, String),
    mode: Mode,
) -> Answer {
    let mut answer = Answer::miss(reason, detail.clone(), mode);
    answer.refusal = best.refusal;
    answer.rejected.push(Rejected {
        donor: best.donor,
        reason,
        detail,
        worth: best.worth,
    });
    answer.rejected.extend(rejected);
    answer
}

/// Under which an answer with a lease is remembered; none where there can be no lease.
pub(super) fn repeat_key(
    query: &FindQuery<'_>,
    namespace: NamespaceId,
    mode: Mode,
) -> Option<RepeatKey> {
    (query.may_lease(mode) && !query.request_id.is_empty()).then(|| {
        let prompt = (query.tokens, query.exact_prefix_tokens);
        RepeatKey::new(namespace, query.holder, query.request_id, prompt)
    })
}

/// What the request says that bears on verdicts.
pub(super) fn terms(query: &FindQuery<'_>, gates: Gates, shard: Option<&Shard>) -> Terms {
    Terms {
        // The edge keeps prompts far below 2^32 tokens.
        prompt_tokens: u32::try_from(query.tokens.len()).unwrap_or(u32::MAX),
        exact_prefix_tokens: query.exact_prefix_tokens,
        block_size: shard.map_or(1, |shard| shard.namespace.block_size),
        asynchronous_load: query.asynchronous_load,
        minimum_tier: query.minimum_tier,
        gates,
    }
}

// A request never borrows from its own served prompt.
pub(super) fn is_own(donor: &Donor, query: &FindQuery<'_>) -> bool {
    !query.request_id.is_empty() && *donor.source_request_id == *query.request_id
}

pub(super) fn is_readable(donor: &Donor, query: &FindQuery<'_>) -> bool {
    query
        .readable_store_ids
        .iter()
        .any(|store| **store == *donor.store_id)
}

pub(super) fn timed_out(detail: &str, mode: Mode) -> Answer {
    Answer::miss(FallbackReason::ProviderTimeout, detail, mode)
}

fn repeated(earlier: &Answer) -> Answer {
    Answer {
        repeated: true,
        ..earlier.clone()
    }
}
