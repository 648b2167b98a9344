//! The best spans over several donors, and how good each is.

use std::sync::Arc;

use super::{
    align::Span,
    answer::Segment,
    catalog::ShardDonors,
    find::FindQuery,
    offer::gone,
    search::{Aligned, Scratch, Target},
    vocabulary::Tier,
};

/// Where they were asked for.
pub(super) fn segments(
    query: &FindQuery<'_>,
    donors: &ShardDonors,
    target: &Target<'_>,
    candidates: &[Aligned],
    scratch: &mut Scratch,
) -> Vec<Segment> {
    if query.segment_donors_max == 0 {
        return Vec::new();
    }
    // One of which nothing is left may be said to be there, and lends nothing.
    let is_there = |slot| {
        let donor = donors.at(slot);
        donor.is_some_and(|donor| gone(donor.sight(), 0).is_none())
    };
    let target = Target {
        is_eligible: &|slot| is_there(slot) && (target.is_eligible)(slot),
        ..*target
    };
    let candidates = candidates.iter().filter(|found| is_there(found.slot));
    let candidates: Vec<Aligned> = candidates.cloned().collect();
    let cover = donors
        .index
        .search_cover(&target, &candidates, query.segment_donors_max, scratch);
    let segment = |(slot, span): (u32, Span)| {
        let donor = Arc::clone(donors.at(slot)?);
        let end = span.target_end() as usize;
        let is_exact = span.donor_start == span.target_start
            && span.target_end() <= donor.exact_tokens
            && donors
                .index
                .tokens(slot)
                .is_some_and(|tokens| tokens.starts_with(&query.tokens[..end]));
        let tier = if is_exact {
            Tier::Exact
        } else {
            Tier::Verified
        };
        Some(Segment { donor, span, tier })
    };
    cover.into_iter().filter_map(segment).collect()
}
