//! How much of a donor a look-up may nominate.

use std::cell::Cell;

use super::{
    align::Span,
    catalog::Donor,
    find::{FindQuery, Finder, is_own, is_readable},
    gate::{self, Evidence, Terms},
    search::{Aligned, Continuation, Prospect},
    seeds::{WINDOW, count_u32},
    vocabulary::{Mode, Tier},
};
use crate::leases::Sighting;

/// What a search is after.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    /// What can be leased, and read by the recipient.
    Leasable,
    /// What discovery shows, which needs no lease.
    Shown,
    /// Also what can serve neither: to say that it is there.
    Any,
}

impl Wanted {
    /// What can serve this look-up in this mode.
    pub(super) fn serving(query: &FindQuery<'_>, mode: Mode) -> Wanted {
        if query.may_lease(mode) {
            Wanted::Leasable
        } else {
            Wanted::Shown
        }
    }
}

/// A look-up's own conditions.
#[derive(Clone, Copy)]
pub(super) struct Wish<'a> {
    pub(super) query: &'a FindQuery<'a>,
    pub(super) wanted: Wanted,
    pub(super) terms: &'a Terms,
}

/// What there is of a donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    Nothing,
    /// Too little is left on its owner's device.
    Gone,
    /// Too little of it is of the tier that the look-up asks for.
    Unfit,
    /// So many tokens from its start.
    Part(u32),
    All,
}

impl Offer {
    /// Tokens from the donor's start that may be compared.
    pub(super) fn tokens(self) -> u32 {
        match self {
            Offer::Nothing | Offer::Gone | Offer::Unfit => 0,
            Offer::Part(tokens) => tokens,
            Offer::All => u32::MAX,
        }
    }
}

impl Wish<'_> {
    /// Fewer tokens of a donor cannot pass the gates.
    fn tokens_min(&self) -> u32 {
        self.terms.gates.min_reuse_tokens.max(count_u32(WINDOW))
    }

    /// Whether a donor whose every token continued the prompt would pass the gates in its tier.
    fn is_fit(&self, donor: &Donor) -> bool {
        match self.terms.minimum_tier {
            Tier::Exact => gate::may_pass(self.terms, donor.captured_tokens, donor.exact_tokens),
            // What does not continue the prompt may do as spans.
            Tier::Verified => true,
        }
    }
}

impl Finder<'_> {
    pub(super) fn offer(&self, donor: &Donor, wish: &Wish<'_>) -> Offer {
        if is_own(donor, wish.query) {
            return Offer::Nothing;
        }
        let seen = donor.sight();
        let live = seen.and_then(Sighting::live_tokens);
        let part = |live| {
            if live >= donor.captured_tokens {
                Offer::All
            } else {
                Offer::Part(live)
            }
        };
        let is_leasable =
            || donor.unleasable(self.now_ms, seen).is_none() && is_readable(donor, wish.query);
        match (wish.wanted, live) {
            (Wanted::Any, None | Some(0)) => Offer::All,
            (Wanted::Any, Some(live)) => part(live),
            (Wanted::Leasable, _) if !is_leasable() => Offer::Nothing,
            (Wanted::Leasable | Wanted::Shown, _) if !wish.is_fit(donor) => Offer::Unfit,
            (Wanted::Leasable | Wanted::Shown, None) => Offer::All,
            (Wanted::Leasable | Wanted::Shown, Some(live)) if live < wish.tokens_min() => {
                Offer::Gone
            }
            (Wanted::Leasable | Wanted::Shown, Some(live)) => part(live),
        }
    }
}

/// What a search came across that it left out.
#[derive(Debug, Default)]
pub(super) struct Met {
    pub(super) part: Cell<bool>,
    /// Gone, or unfit.
    pub(super) unusable: Cell<bool>,
}

impl Met {
    /// Whether the donor is offered whole. Those of which only a part is left are looked for by
    /// themselves: they have the votes of all their tokens, and would hide whole ones.
    pub(super) fn is_whole(&self, offer: Offer) -> bool {
        match offer {
            Offer::All => return true,
            Offer::Part(_) => self.part.set(true),
            Offer::Gone | Offer::Unfit => self.unusable.set(true),
            Offer::Nothing => {}
        }
        false
    }
}

/// What a donor that goes on so is good for under the contract.
pub(super) fn prospect(terms: &Terms, donor: &Donor, continuation: Continuation) -> Prospect {
    let Continuation {
        run,
        identical_from_start,
    } = continuation;
    let evidence = Evidence {
        spans: &[],
        anchored: run,
        identical_from_start,
        exact_tokens: donor.exact_tokens,
    };
    let prefix = gate::prefix(terms, &evidence);
    let end = run.map_or(0, |run| run.target_end());
    Prospect {
        tokens: prefix.map_or(0, |prefix| prefix.tokens),
        is_exact: prefix.is_some_and(|prefix| prefix.tier == Tier::Exact),
        sequence: donor.sequence,
        end: match terms.minimum_tier {
            Tier::Exact => identical_from_start.min(donor.exact_tokens),
            Tier::Verified => end,
        },
    }
}

/// How far into the donor a candidate's evidence goes, in tokens.
pub(super) fn reach(candidate: &Aligned) -> u32 {
    let runs = candidate.spans.iter().chain(&candidate.anchored);
    runs.map(Span::donor_end)
        .fold(candidate.identical_from_start, u32::max)
}

/// Why a donor that was compared so far cannot be nominated, by what was seen of it since.
pub(super) fn gone(seen: Option<Sighting>, reach: u32) -> Option<&'static str> {
    let live = seen?.live_tokens()?;
    match live {
        0 => Some("the donor's blocks have left the device memory"),
        _ if live < reach => Some("some of the donor left the device memory as it was looked up"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leases::{Claim, OwnerLife};

    fn span(donor_start: u32, length: u32) -> Span {
        Span {
            donor_start,
            target_start: 0,
            length,
        }
    }

    #[test]
    fn evidence_reaches_as_far_as_its_last_token() {
        let check = |spans: &[Span], anchored, identical_from_start, expected| {
            let candidate = Aligned {
                slot: 0,
                spans: spans.to_vec(),
                coverage: 0,
                anchored,
                identical_from_start,
                short_matches: 0,
            };
            assert_eq!(reach(&candidate), expected);
        };
        check(&[], None, 0, 0);
        check(&[span(100, 20), span(40, 30)], None, 7, 120);
        check(&[span(40, 30)], Some(span(60, 30)), 7, 90);
        check(&[span(40, 30)], Some(span(60, 30)), 91, 91);
    }

    #[test]
    fn what_went_since_it_was_compared_is_not_nominated() {
        let (claim, owner) = (Claim::default(), OwnerLife::default());
        let gone = |reach| gone(Some(Sighting::take(&claim, &owner)), reach);
        assert_eq!(
            gone(100),
            None,
            "nothing is known, which is for the lease to judge"
        );
        claim.residency.grow(96);
        assert_eq!(gone(96), None);
        assert!(gone(97).is_some_and(|detail| detail.contains("some of the donor")));
        claim.residency.shrink(0);
        assert!(gone(0).is_some_and(|detail| detail.contains("have left")));
        assert_eq!(super::gone(None, 100), None);
    }
}
