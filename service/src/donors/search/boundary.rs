//! Donors that continue the prompt at its boundary: told apart token by token where seeds cannot.

use std::cmp::Reverse;

use kvatlas_kernels::prefetch;

use super::{
    Aligned, Candidate, Continuation, DonorIndex, Hit, Prospect, QUERY_WORK_MAX, Scratch, Span,
    Target, WINDOW, count_u32,
};

/// Verified at most, of the donors that may continue the prompt further than those with most votes.
pub(super) const ANCHORED_MAX: usize = 2;
/// Donors whose tokens at the boundary are compared at a time: each is a visit to cold memory.
pub(super) const COMPARED_MAX: usize = 256;
/// Tokens compared at a time before the donors that are left have to do without.
const COMPARED_TOKENS_MAX: usize = 65_536;
/// Donors of the rarest of the first seeds that are looked up in the lists of the others.
const LISTED_MAX: usize = 64;
/// Those of them that are compared where none verified so far continues the prompt.
const PROBES_MAX: usize = 16;
/// Lists of those others.
const LISTS_MAX: usize = 8;
/// Seeds looked ahead for one with so few donors.
const AHEAD_MAX: usize = 32;
/// Look-ups of those donors in the lists of the first seeds.
const LOOKUPS_MAX: usize = 256;

/// A donor, and what it is good for at the boundary.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    slot: u32,
    /// What it would be good for if it went on as far as it is long.
    at_best: Prospect,
    prospect: Prospect,
}

impl DonorIndex {
    /// Orders the candidates from a place on that can still win, where they are more than there is
    /// room for: the one that goes on best at the boundary, then those with most votes, of equal
    /// ones the best. True when the first is one that goes on.
    ///
    /// Few prompts have so many, and what is compared here is cold memory: so it comes after the
    /// first were verified.
    pub(super) fn put_best_first(
        &self,
        target: &Target<'_>,
        scratch: &mut Scratch,
        (from, room): (usize, usize),
        most_hits: u32,
    ) -> bool {
        let Scratch {
            candidates,
            standings,
            ..
        } = scratch;
        let rest = &candidates[from..];
        let tied = from + rest.partition_point(|c| c.votes + c.votes / 32 >= most_hits);
        if tied - from <= room {
            return false;
        }
        let slots = candidates[from..tied]
            .iter()
            .map(|candidate| candidate.slot);
        self.compare(target, slots, standings);
        candidates[from..tied].sort_unstable_by_key(|candidate| candidate.slot);
        let candidate = |standing: &Standing| {
            let tied = &candidates[from..tied];
            let at = tied.binary_search_by_key(&standing.slot, |candidate| candidate.slot);
            at.ok().map(|at| tied[at])
        };
        let mut ordered: Vec<Candidate> = standings.iter().filter_map(candidate).collect();
        let leads = standings.first().is_some_and(Standing::is_in_place);
        ordered[usize::from(leads)..].sort_by_key(|candidate| Reverse(candidate.votes));
        candidates.splice(from..tied, ordered);
        leads
    }

    /// Verifies donors that may continue the prompt further than any verified so far.
    pub(super) fn verify_anchored(
        &self,
        target: &Target<'_>,
        scratch: &mut Scratch,
        out: &mut Vec<Aligned>,
    ) {
        self.nominate_anchored(target, scratch, out);
        self.verify_nominated(target, scratch, out);
        let boundary = count_u32(target.boundary);
        let in_place = |aligned: &Aligned| {
            aligned
                .anchored
                .is_some_and(|run| run.donor_start == boundary)
        };
        if out.iter().any(|aligned| aligned.anchored.is_some()) && !out.iter().any(in_place) {
            self.nominate_in_place(target, scratch, out);
            self.verify_nominated(target, scratch, out);
        }
    }

    fn verify_nominated(&self, target: &Target<'_>, scratch: &mut Scratch, out: &mut Vec<Aligned>) {
        for at in 0..scratch.anchored.len() {
            if scratch.aligner.work() > QUERY_WORK_MAX {
                break;
            }
            let aligned = self.verify(target, scratch, scratch.anchored[at]);
            out.extend(aligned.filter(|aligned| aligned.coverage > 0));
        }
    }

    /// Those donors have the first seeds beyond the boundary, one more than a verified one has in
    /// what can be used of it. The best of those that have the very tokens at the boundary's place;
    /// where there is none, one that may have them elsewhere gets a chance.
    fn nominate_anchored(&self, target: &Target<'_>, scratch: &mut Scratch, verified: &[Aligned]) {
        let Scratch {
            anchored,
            standings,
            hits,
            leading,
            ..
        } = scratch;
        anchored.clear();
        let reached = verified
            .iter()
            .map(|aligned| (target.prospect)(aligned.slot, Continuation::of(aligned)).end)
            .max()
            .unwrap_or(0);
        let leading = &hits[..*leading];
        let inside = leading.partition_point(|hit| hit.position + count_u32(WINDOW) <= reached);
        let Some(wanted) = leading.get(..=inside) else {
            return;
        };
        let Some(rarest) = wanted.iter().min_by_key(|hit| hit.donors) else {
            return;
        };
        // A rare seed further on tells more; where its donors lack the ones before, the newest of
        // the rarest of those have to do.
        let mut ahead = leading[inside..].iter().take(AHEAD_MAX);
        let rare = ahead.find(|hit| hit.donors as usize <= LISTED_MAX);
        for start in rare.into_iter().chain([rarest]) {
            anchored.clear();
            let listed = self.postings.listed(start.list);
            listed.last_into(LISTED_MAX, anchored);
            // From the last on: it is what the verified ones lack.
            for hit in wanted.iter().rev().take(LISTS_MAX) {
                self.keep_those_with(hit, anchored);
            }
            anchored.retain(|&slot| verified.iter().all(|aligned| aligned.slot != slot));
            if reached == 0 {
                self.keep_deepest(&leading[inside + 1..], PROBES_MAX, anchored);
            }
            self.compare(target, anchored.iter().copied(), standings);
            if !standings.is_empty() {
                break;
            }
        }
        anchored.clear();
        if standings.iter().any(Standing::is_in_place) {
            let further = standings.iter().filter(|s| s.prospect.end > reached);
            anchored.extend(further.take(ANCHORED_MAX).map(|standing| standing.slot));
        } else {
            anchored.extend(standings.iter().map(|standing| standing.slot));
            anchored.sort_unstable();
            self.keep_deepest(&leading[inside + 1..], 1, anchored);
        }
    }

    /// A donor that has the boundary's tokens at the boundary's place may be exact, which no donor
    /// that has them elsewhere can be: it is worth a look also where its run is no longer.
    fn nominate_in_place(&self, target: &Target<'_>, scratch: &mut Scratch, verified: &[Aligned]) {
        let Scratch {
            anchored,
            standings,
            hits,
            leading,
            ..
        } = scratch;
        let leading = &hits[..*leading];
        let rarest = leading.iter().min_by_key(|hit| hit.donors);
        for start in rarest.into_iter().chain(leading.first()) {
            anchored.clear();
            let listed = self.postings.listed(start.list);
            listed.last_into(LISTED_MAX, anchored);
            anchored.retain(|&slot| verified.iter().all(|aligned| aligned.slot != slot));
            self.compare(target, anchored.iter().copied(), standings);
            anchored.clear();
            let in_place = standings.iter().filter(|standing| standing.is_in_place());
            anchored.extend(in_place.take(ANCHORED_MAX).map(|standing| standing.slot));
            if !anchored.is_empty() {
                break;
            }
        }
    }

    /// Eligible ones of these donors, best first by what they have at the boundary's place.
    ///
    /// The most promising are compared first, until none left can be better than the best.
    fn compare(
        &self,
        target: &Target<'_>,
        slots: impl Iterator<Item = u32>,
        out: &mut Vec<Standing>,
    ) {
        out.clear();
        let eligible = slots.filter(|&slot| (target.is_eligible)(slot));
        out.extend(eligible.take(COMPARED_MAX).filter_map(|slot| {
            let donor = self.tokens(slot)?;
            if let Some(there) = donor.byte_of(target.boundary) {
                prefetch(there);
            }
            let length = target
                .reach
                .map_or(donor.len(), |reach| donor.len().min(reach(slot) as usize));
            let end = length.min(target.tokens.len());
            Some(Standing {
                slot,
                at_best: (target.prospect)(slot, in_place(target.boundary, end, end)),
                prospect: Prospect::default(),
            })
        }));
        out.sort_unstable_by_key(|standing| Reverse((standing.at_best, Reverse(standing.slot))));
        let mut best = Prospect::default();
        let mut tokens_left = COMPARED_TOKENS_MAX;
        for standing in out.iter_mut() {
            if best >= standing.at_best || tokens_left == 0 {
                break;
            }
            let continuation = self.continuation(target, standing.slot);
            tokens_left = tokens_left.saturating_sub(compared(continuation));
            standing.prospect = (target.prospect)(standing.slot, continuation);
            best = best.max(standing.prospect);
        }
        out.sort_by_key(|s| Reverse((s.prospect, s.at_best.sequence, Reverse(s.slot))));
    }

    /// What a donor has at the boundary's place.
    fn continuation(&self, target: &Target<'_>, slot: u32) -> Continuation {
        let Some(donor) = self.tokens(slot) else {
            return Continuation::default();
        };
        let reach = target
            .reach
            .map_or(usize::MAX, |reach| reach(slot) as usize);
        let (before, beyond) = target.tokens.split_at(target.boundary);
        let end = target.boundary + donor.shared_at(target.boundary, beyond);
        let end = end.min(reach);
        if end < target.boundary + WINDOW {
            return Continuation::default();
        }
        let identical = if donor.starts_with(before) { end } else { 0 };
        in_place(target.boundary, end, identical)
    }

    /// Drops donors that lack one of the next seeds while others have it, until few are left.
    fn keep_deepest(&self, next: &[Hit], few: usize, donors: &mut Vec<u32>) {
        let mut lookups = 0;
        let mut before = Vec::new();
        for hit in next {
            if donors.len() <= few || lookups >= LOOKUPS_MAX {
                break;
            }
            lookups += donors.len();
            before.clone_from(donors);
            self.keep_those_with(hit, donors);
            if donors.is_empty() {
                donors.append(&mut before);
                break;
            }
        }
        donors.truncate(few);
    }

    fn keep_those_with(&self, hit: &Hit, donors: &mut Vec<u32>) {
        let mut listed = self.postings.listed(hit.list).ascending();
        donors.retain(|&donor| listed.has(donor));
    }
}

impl Standing {
    fn is_in_place(&self) -> bool {
        self.prospect.end > 0
    }
}

/// A donor that has the target's tokens from the boundary up to `end` where the target has them.
fn in_place(boundary: usize, end: usize, identical_from_start: usize) -> Continuation {
    let length = end.saturating_sub(boundary);
    Continuation {
        run: (length >= WINDOW).then(|| Span {
            donor_start: count_u32(boundary),
            target_start: count_u32(boundary),
            length: count_u32(length),
        }),
        identical_from_start: count_u32(identical_from_start),
    }
}

/// About how many tokens were looked at.
fn compared(continuation: Continuation) -> usize {
    let run = continuation.run.map_or(0, |run| run.length);
    WINDOW + run.max(continuation.identical_from_start) as usize
}
