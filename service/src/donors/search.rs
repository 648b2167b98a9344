//! The search of one namespace: seeds nominate donors, alignment verifies them.

use boundary::Standing;

use super::{
    align::{Aligner, Span, anchored_run, common_prefix},
    index::DonorIndex,
    seeds::{SHORT_WINDOW, Scan, WINDOW, count_u32},
    votes::{Candidate, Hit, Votes},
};

/// Comparisons, in the aligner's units, after which no further donor is verified.
const QUERY_WORK_MAX: usize = 24_576;
/// Votes that a donor needs when only short seeds know it.
const SHORT_VOTES_MIN: u32 = 2;
/// Verified at most when only short seeds know them: they explain a miss, no more.
const SHORT_VERIFY_MAX: usize = 2;

/// What to look for.
#[expect(missing_debug_implementations, reason = "prompts must not reach a log")]
pub struct Target<'a> {
    /// The whole prompt.
    pub tokens: &'a [u32],
    /// Tokens that the engine has already; spans begin here at the earliest.
    pub boundary: usize,
    /// Whether the donor in a slot may serve. Others are dropped before any cut.
    pub is_eligible: &'a dyn Fn(u32) -> bool,
    /// How many of a donor's tokens may be compared, from its start; none where all of them may.
    pub reach: Option<&'a dyn Fn(u32) -> u32>,
    /// Donors compared token by token.
    pub verify_max: usize,
    /// What a donor in a slot is good for that continues the prompt so: of donors that seeds cannot
    /// tell apart, the best are compared.
    pub prospect: &'a dyn Fn(u32, Continuation) -> Prospect,
}

/// How a donor goes on where the boundary is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Continuation {
    /// A run that begins exactly at the boundary.
    pub run: Option<Span>,
    /// Tokens that donor and target share from their starts.
    pub identical_from_start: u32,
}

impl Continuation {
    fn of(aligned: &Aligned) -> Self {
        Self {
            run: aligned.anchored,
            identical_from_start: aligned.identical_from_start,
        }
    }
}

/// What a continuation is worth: the greater the better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prospect {
    /// Reusable tokens.
    pub tokens: u32,
    /// Whether the engine may keep them.
    pub is_exact: bool,
    /// The higher the fresher.
    pub sequence: u64,
    /// Where in the target what can be used of the run ends.
    pub end: u32,
}

impl Prospect {
    /// By the length of the run alone, whatever the donor.
    #[must_use]
    pub fn by_length(_: u32, continuation: Continuation) -> Self {
        Self {
            tokens: continuation.run.map_or(0, |run| run.length),
            end: continuation.run.map_or(0, |run| run.target_end()),
            ..Self::default()
        }
    }
}

/// Verified donors, and what finding them took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// By falling coverage.
    pub candidates: Vec<Aligned>,
    pub seeds_ns: u64,
    pub align_ns: u64,
}

impl Found {
    /// Adds what another search of the same target found.
    pub fn add(&mut self, other: Found) {
        for candidate in other.candidates {
            if self
                .candidates
                .iter()
                .all(|known| known.slot != candidate.slot)
            {
                self.candidates.push(candidate);
            }
        }
        self.candidates
            .sort_by_key(|aligned| std::cmp::Reverse(aligned.coverage));
        self.seeds_ns += other.seeds_ns;
        self.align_ns += other.align_ns;
    }

    /// Whether one is identical with a target of so many tokens: none can be better.
    #[must_use]
    pub fn has_identical(&self, tokens: usize) -> bool {
        let is_identical = |aligned: &Aligned| aligned.identical_from_start as usize == tokens;
        self.candidates.iter().any(is_identical)
    }
}

/// What a donor and the target share, every token compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aligned {
    pub slot: u32,
    /// In target order, disjoint in donor and target, each of at least 16 tokens.
    pub spans: Vec<Span>,
    /// Target tokens in spans.
    pub coverage: u32,
    /// The longest run that begins exactly at the boundary, whole, also where a span is not.
    pub anchored: Option<Span>,
    /// Tokens that donor and target share from their starts.
    pub identical_from_start: u32,
    /// Target tokens in runs of 8 to 15; only counted for donors that short seeds alone found.
    pub short_matches: u32,
}

/// Room for a search, reused by the next; one per thread.
#[derive(Debug, Default)]
pub struct Scratch {
    scan: Scan,
    hits: Vec<Hit>,
    /// How many of the hits come before the first seed that no donor has.
    leading: usize,
    votes: Votes,
    candidates: Vec<Candidate>,
    aligner: Aligner,
    donor: Vec<u32>,
    anchored: Vec<u32>,
    standings: Vec<Standing>,
}

impl DonorIndex {
    /// Finds the donors that share the most with a target, in bounded time.
    ///
    /// `clock` gives nanoseconds from any start.
    pub fn search(
        &self,
        target: &Target<'_>,
        scratch: &mut Scratch,
        clock: &dyn Fn() -> u64,
    ) -> Found {
        let started = clock();
        let beyond = target.tokens.get(target.boundary..).unwrap_or(&[]);
        scratch.scan.scan(beyond);
        self.nominate(target, scratch);
        let is_short = scratch.candidates.is_empty();
        if is_short {
            scratch.scan.use_short(beyond);
            self.nominate(target, scratch);
            scratch
                .candidates
                .retain(|candidate| candidate.votes >= SHORT_VOTES_MIN);
        }
        let nominated = clock();
        let mut candidates = Vec::new();
        if !scratch.candidates.is_empty() {
            scratch
                .aligner
                .set_target(&scratch.scan.short_hashes, target.boundary);
            if is_short {
                self.verify_short(target, scratch, &mut candidates);
            } else {
                self.verify_best(target, scratch, &mut candidates);
                self.verify_anchored(target, scratch, &mut candidates);
            }
        }
        candidates.sort_by_key(|aligned| std::cmp::Reverse(aligned.coverage));
        Found {
            candidates,
            seeds_ns: nominated.saturating_sub(started),
            align_ns: clock().saturating_sub(nominated),
        }
    }

    /// Compares given donors with a target, whoever nominated them: eligible ones, as many as
    /// `verify_max` and the bound on work allow, by falling coverage.
    pub fn verify_slots(
        &self,
        target: &Target<'_>,
        slots: &[u32],
        scratch: &mut Scratch,
    ) -> Vec<Aligned> {
        set_target(target, scratch);
        let mut verified = Vec::new();
        for &slot in slots {
            if verified.len() == target.verify_max || scratch.aligner.work() > QUERY_WORK_MAX {
                break;
            }
            if (target.is_eligible)(slot) {
                let aligned = self.verify(target, scratch, slot);
                verified.extend(aligned.filter(|aligned| aligned.coverage > 0));
            }
        }
        verified.sort_by_key(|aligned| std::cmp::Reverse(aligned.coverage));
        verified
    }

    /// Verified donors, at most `max`, that have most of the target's seeds outside of `covered`:
    /// each the one with most of the seeds that those before it lack as well.
    ///
    /// `covered` are stretches of the target, in order and apart; only their target side counts.
    pub(super) fn nominate_uncovered(
        &self,
        target: &Target<'_>,
        covered: &[Span],
        scratch: &mut Scratch,
        max: usize,
    ) -> Vec<Aligned> {
        set_target(target, scratch);
        drop_covered(&mut scratch.scan, target.boundary, covered);
        let mut found = Vec::new();
        while found.len() < max
            && !scratch.scan.seeds.is_empty()
            && scratch.aligner.work() <= QUERY_WORK_MAX
        {
            self.nominate(target, scratch);
            let eligible = |candidate: &&Candidate| (target.is_eligible)(candidate.slot);
            let Some(&Candidate { slot, .. }) = scratch.candidates.iter().find(eligible) else {
                break;
            };
            let left = scratch.scan.seeds.len();
            let Some(aligned) = self.verify(target, scratch, slot) else {
                break;
            };
            drop_covered(&mut scratch.scan, target.boundary, &aligned.spans);
            if scratch.scan.seeds.len() == left {
                break;
            }
            found.push(aligned);
        }
        found
    }

    /// Turns the seeds of the target into hits, and the hits into candidates: in rounds, each of
    /// which asks for the memory that the next one reads.
    fn nominate(&self, target: &Target<'_>, scratch: &mut Scratch) {
        let Scratch { scan, hits, .. } = scratch;
        for seed in &scan.seeds {
            self.postings.ask_for(seed.key);
        }
        hits.clear();
        let mut leading = None;
        for seed in &scan.seeds {
            let Some(list) = self.postings.find(seed.key) else {
                leading.get_or_insert(hits.len());
                continue;
            };
            self.postings.ask_for_list(list);
            hits.push(Hit {
                position: count_u32(target.boundary) + seed.position,
                list,
                donors: 1,
                ends: (0, 0),
            });
        }
        for hit in hits.iter() {
            self.postings.ask_for_slots(hit.list);
        }
        scratch.leading = leading.unwrap_or(hits.len());
        for hit in hits.iter_mut() {
            let listed = self.postings.listed(hit.list);
            hit.donors = count_u32(listed.count());
            hit.ends = listed.ends();
        }
        let nominated = scratch
            .votes
            .nominate(&self.postings, hits, target.is_eligible);
        scratch.candidates.clear();
        scratch.candidates.extend_from_slice(nominated);
    }

    /// Verifies candidates until none left can be better than the best.
    ///
    /// Where those are more than can be verified, the best of them at the boundary come next after
    /// the first few; one of them also when the bound on work is reached.
    fn verify_best(&self, target: &Target<'_>, scratch: &mut Scratch, out: &mut Vec<Aligned>) {
        let few = target.verify_max.div_ceil(2);
        let mut most_hits = 0;
        let mut is_ordered = false;
        let mut at = 0;
        while let Some(&Candidate { votes, .. }) = scratch.candidates.get(at) {
            let can_win = votes + votes / 32 >= most_hits;
            if !can_win || out.len() == target.verify_max {
                break;
            }
            let exhausted = scratch.aligner.work() > QUERY_WORK_MAX;
            if !is_ordered && (exhausted || out.len() == few) {
                is_ordered = true;
                let room = if exhausted {
                    0
                } else {
                    target.verify_max - few
                };
                let leads = self.put_best_first(target, scratch, (at, room), most_hits);
                if exhausted && !leads {
                    break;
                }
            } else if exhausted {
                break;
            }
            let Some(&Candidate { slot, .. }) = scratch.candidates.get(at) else {
                break;
            };
            at += 1;
            if !(target.is_eligible)(slot) {
                continue;
            }
            if let Some(aligned) = self.verify(target, scratch, slot) {
                most_hits = most_hits.max(hits_inside(&scratch.hits, &aligned.spans));
                out.push(aligned);
            }
        }
        out.retain(|aligned| aligned.coverage > 0);
    }

    /// Compares a donor with the target token by token.
    fn verify(&self, target: &Target<'_>, scratch: &mut Scratch, slot: u32) -> Option<Aligned> {
        let Scratch { aligner, donor, .. } = scratch;
        self.tokens(slot)?.unpack_into(donor);
        if let Some(reach) = target.reach {
            donor.truncate(reach(slot) as usize);
        }
        let spans = aligner.spans(target.tokens, donor, WINDOW).to_vec();
        Some(Aligned {
            slot,
            coverage: spans.iter().map(|span| span.length).sum(),
            spans,
            anchored: anchored_run(target.tokens, donor, target.boundary, WINDOW),
            identical_from_start: count_u32(common_prefix(target.tokens, donor)),
            short_matches: 0,
        })
    }

    /// Tells how much the donors share that only short seeds know.
    fn verify_short(&self, target: &Target<'_>, scratch: &mut Scratch, out: &mut Vec<Aligned>) {
        for at in 0..scratch.candidates.len() {
            let slot = scratch.candidates[at].slot;
            if out.len() == SHORT_VERIFY_MAX.min(target.verify_max) {
                break;
            }
            if !(target.is_eligible)(slot) {
                continue;
            }
            let Some(mut aligned) = self.verify(target, scratch, slot) else {
                continue;
            };
            let short = scratch
                .aligner
                .spans(target.tokens, &scratch.donor, SHORT_WINDOW);
            let shared: u32 = short.iter().map(|span| span.length).sum();
            aligned.short_matches = shared.saturating_sub(aligned.coverage);
            if shared > 0 {
                out.push(aligned);
            }
        }
    }
}

fn set_target(target: &Target<'_>, scratch: &mut Scratch) {
    let beyond = target.tokens.get(target.boundary..).unwrap_or(&[]);
    scratch.scan.scan(beyond);
    scratch
        .aligner
        .set_target(&scratch.scan.short_hashes, target.boundary);
}

/// Takes out the seeds that lie in stretches of the target; both are in target order.
fn drop_covered(scan: &mut Scan, boundary: usize, covered: &[Span]) {
    let mut covered = covered.iter().peekable();
    scan.seeds.retain(|seed| {
        let start = count_u32(boundary) + seed.position;
        let end = start + count_u32(WINDOW);
        while covered.next_if(|span| span.target_end() < end).is_some() {}
        covered.peek().is_none_or(|span| start < span.target_start)
    });
}

/// How many hits lie in spans; both are in target order.
fn hits_inside(hits: &[Hit], spans: &[Span]) -> u32 {
    let mut spans = spans.iter().peekable();
    let inside = hits.iter().filter(|hit| {
        let end = hit.position + count_u32(WINDOW);
        while spans.next_if(|span| span.target_end() < end).is_some() {}
        spans
            .peek()
            .is_some_and(|span| span.target_start <= hit.position)
    });
    count_u32(inside.count())
}

mod boundary;
#[cfg(test)]
mod tests;
