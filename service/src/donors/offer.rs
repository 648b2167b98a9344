//! How much of a donor a look-up may nominate.

use std::cell::Cell;

use super::{
    align::Span,
    catalog::Donor,
    find::{FindQuery, Finder, is_own, is_readable},
    search::Aligned,
    seeds::{WINDOW, count_u32},
    vocabulary::Mode,
};
use crate::leases::Sighting;

/// What a search is after.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    /// What can serve in this mode.
    Serving(Mode),
    /// Also what cannot: to say that it is there.
    Any,
}

/// A look-up's own conditions.
#[derive(Clone, Copy)]
pub(super) struct Wish<'a> {
    pub(super) query: &'a FindQuery<'a>,
    pub(super) wanted: Wanted,
    /// Fewer tokens of a donor cannot pass the gates.
    pub(super) tokens_min: u32,
}

/// What there is of a donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    Nothing,
    /// Too little is left on its owner's device.
    Gone,
    /// So many tokens from its start.
    Part(u32),
    All,
}

impl Offer {
    /// Tokens from the donor's start that may be compared.
    pub(super) fn tokens(self) -> u32 {
        match self {
            Offer::Nothing | Offer::Gone => 0,
            Offer::Part(tokens) => tokens,
            Offer::All => u32::MAX,
        }
    }
}

impl<'a> Wish<'a> {
    pub(super) fn new(query: &'a FindQuery<'a>, wanted: Wanted, min_reuse_tokens: u32) -> Wish<'a> {
        Wish {
            query,
            wanted,
            tokens_min: min_reuse_tokens.max(count_u32(WINDOW)),
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
            (Wanted::Serving(Mode::Materialize), _) if !is_leasable() => Offer::Nothing,
            (Wanted::Serving(_), None) => Offer::All,
            (Wanted::Serving(_), Some(live)) if live < wish.tokens_min => Offer::Gone,
            (Wanted::Serving(_), Some(live)) => part(live),
        }
    }
}

/// What a search came across that it left out.
#[derive(Debug, Default)]
pub(super) struct Met {
    pub(super) part: Cell<bool>,
    pub(super) gone: Cell<bool>,
}

impl Met {
    /// Whether the donor is offered whole. Those of which only a part is left are looked for by
    /// themselves: they have the votes of all their tokens, and would hide whole ones.
    pub(super) fn is_whole(&self, offer: Offer) -> bool {
        match offer {
            Offer::All => return true,
            Offer::Part(_) => self.part.set(true),
            Offer::Gone => self.gone.set(true),
            Offer::Nothing => {}
        }
        false
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
