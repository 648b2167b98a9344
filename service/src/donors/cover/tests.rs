//! Covers against every choice there is, and cases that greedy luck fails.

use proptest::prelude::*;

use super::*;
use crate::donors::{index::prepare, search::Prospect};

type Candidates = Vec<(usize, Vec<Span>)>;

fn span(target_start: u32, length: u32) -> Span {
    Span {
        donor_start: 1_000 + target_start,
        target_start,
        length,
    }
}

/// Donors 0, 1, ... with (target start, length) each.
fn candidates(donors: &[&[(u32, u32)]]) -> Candidates {
    let spans = |donor: &&[(u32, u32)]| donor.iter().map(|&(at, n)| span(at, n)).collect();
    donors.iter().map(spans).enumerate().collect()
}

/// (tokens, donors, spans, donors used), compared as the answer's merit is.
type Merit = (u32, Reverse<usize>, Reverse<usize>, Reverse<Vec<usize>>);

fn merit(cover: &[(usize, Span)]) -> Merit {
    let mut donors: Vec<usize> = cover.iter().map(|&(donor, _)| donor).collect();
    donors.sort_unstable();
    donors.dedup();
    (
        cover.iter().map(|(_, span)| span.length).sum(),
        Reverse(donors.len()),
        Reverse(cover.len()),
        Reverse(donors),
    )
}

/// Every set of donors, every way to cut their spans, token by token.
fn reference(candidates: &Candidates, donors_max: usize) -> Merit {
    let mut best = merit(&[]);
    for set in 0_u32..1 << candidates.len() {
        if set.count_ones() as usize > donors_max {
            continue;
        }
        let chosen: Vec<&(usize, Vec<Span>)> = (0..candidates.len())
            .filter(|at| set >> at & 1 == 1)
            .map(|at| &candidates[at])
            .collect();
        let (tokens, Reverse(spans)) = reference_arrangement(&chosen);
        let donors: Vec<usize> = chosen.iter().map(|(donor, _)| *donor).collect();
        // A set with a donor to spare comes up without it, too.
        let found = (
            tokens,
            Reverse(donors.len()),
            Reverse(spans),
            Reverse(donors),
        );
        best = best.max(found);
    }
    best
}

/// By the end: the most tokens before it, and the fewest pieces for that.
fn reference_arrangement(chosen: &[&(usize, Vec<Span>)]) -> (u32, Reverse<usize>) {
    let spans = || chosen.iter().flat_map(|(_, spans)| spans);
    let length = spans().map(Span::target_end).max().unwrap_or(0);
    let mut best = vec![(0, Reverse(0)); length as usize + 1];
    for end in 1..=length {
        let mut here = best[end as usize - 1];
        for span in spans() {
            let last = end.saturating_sub(SHORTEST);
            for start in span.target_start..=last {
                if end <= span.target_end() && start + SHORTEST <= end {
                    let (tokens, Reverse(pieces)) = best[start as usize];
                    here = here.max((tokens + end - start, Reverse(pieces + 1)));
                }
            }
        }
        best[end as usize] = here;
    }
    best[length as usize]
}

fn check(candidates: &Candidates, donors_max: usize) -> Vec<(usize, Span)> {
    let cover = cover_within(candidates, donors_max, usize::MAX);
    check_valid(candidates, &cover.spans);
    assert_eq!(cover.tokens_at_most, cover.tokens);
    assert_eq!(cover.tokens, merit(&cover.spans).0);
    assert_eq!(merit(&cover.spans), reference(candidates, donors_max));
    cover.spans
}

/// In target order, disjoint, long enough, and each a part of a span of its donor.
fn check_valid(candidates: &Candidates, cover: &[(usize, Span)]) {
    assert!(cover.is_sorted_by(|(_, a), (_, b)| a.target_end() <= b.target_start));
    for (donor, part) in cover {
        assert!(part.length >= SHORTEST);
        let (_, spans) = candidates
            .iter()
            .find(|(candidate, _)| candidate == donor)
            .unwrap();
        let holds = |span: &Span| {
            span.target_start <= part.target_start
                && part.target_end() <= span.target_end()
                && part.donor_start + span.target_start == span.donor_start + part.target_start
        };
        assert!(spans.iter().any(holds), "{part:?} of donor {donor}");
    }
}

/// Up to six donors, each with disjoint spans of 8 to 50 tokens in a target of about 160.
fn few_donors() -> impl Strategy<Value = Candidates> {
    let spans = prop::collection::vec((0_u32..40, 8_u32..50), 0..4);
    prop::collection::vec(spans, 0..6).prop_map(|donors| {
        let spans = |gaps: Vec<(u32, u32)>| {
            let mut at = 0;
            let next = |(gap, length): (u32, u32)| {
                let found = span(at + gap, length);
                at = found.target_end();
                found
            };
            gaps.into_iter().map(next).collect()
        };
        donors.into_iter().map(spans).enumerate().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn is_the_best_there_is(candidates in few_donors(), donors_max in 0_usize..5) {
        check(&candidates, donors_max);
    }

    #[test]
    fn what_a_short_search_finds_is_valid_and_its_bound_holds(
        candidates in few_donors(),
        donors_max in 0_usize..5,
        work_max in 0_usize..400,
    ) {
        let cover = cover_within(&candidates, donors_max, work_max);
        check_valid(&candidates, &cover.spans);
        let (best, ..) = reference(&candidates, donors_max);
        prop_assert!(cover.tokens <= best && best <= cover.tokens_at_most);
    }
}

#[test]
fn the_largest_donor_is_left_out_where_two_others_cover_more() {
    let candidates = candidates(&[&[(50, 120)], &[(0, 100)], &[(100, 100)]]);
    assert_eq!(
        check(&candidates, 2),
        [(1, span(0, 100)), (2, span(100, 100))]
    );
    assert_eq!(check(&candidates, 1), [(0, span(50, 120))]);
}

#[test]
fn spans_that_overlap_are_cut_so_that_each_keeps_sixteen_tokens() {
    // Both can be had whole but for the overlap.
    let cover = check(&candidates(&[&[(0, 40)], &[(30, 40)]]), 8);
    assert_eq!(cover.iter().map(|(_, s)| s.length).sum::<u32>(), 70);
    // 31 tokens hold no two spans.
    let cover = check(&candidates(&[&[(0, 17)], &[(15, 16)]]), 8);
    assert_eq!(cover, [(0, span(0, 17))]);
    // A donor that adds no token makes the others fit: it takes the middle.
    let squeezed: &[&[(u32, u32)]] =
        &[&[(0, 17)], &[(15, 16), (100, 50)], &[(31, 29)], &[(17, 23)]];
    let cover = check(&candidates(squeezed), 8);
    assert_eq!(cover.iter().map(|(_, s)| s.length).sum::<u32>(), 110);
}

#[test]
fn equals_are_told_by_donors_then_spans_then_order() {
    let candidates = candidates(&[
        &[(0, 50)],
        &[(50, 50)],
        &[(0, 30), (30, 70)],
        &[(0, 100)],
        &[(0, 100)],
    ]);
    assert_eq!(check(&candidates, 8), [(3, span(0, 100))]);
    assert_eq!(check(&candidates[..3].to_vec(), 8).len(), 2);
    assert_eq!(check(&candidates[..2].to_vec(), 8).len(), 2);
}

#[test]
fn of_twelve_donors_the_best_eight_are_taken() {
    let candidates: Candidates = (0_u32..12)
        .map(|i| (i as usize, vec![span(i * 200, 100 + i * 5)]))
        .collect();
    let cover = best_cover(&candidates, COVER_DONORS_MAX);
    check_valid(&candidates, &cover);
    let donors: Vec<usize> = cover.iter().map(|&(donor, _)| donor).collect();
    assert_eq!(donors, [4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(cover_within(&candidates, 99, usize::MAX).spans, cover);
}

#[test]
fn candidates_beyond_the_limit_are_left_out() {
    let mut candidates: Candidates = (0..CANDIDATES_MAX)
        .map(|i| (i, vec![span(0, 20)]))
        .collect();
    candidates.push((CANDIDATES_MAX, vec![span(0, 100)]));
    assert_eq!(best_cover(&candidates, 8), [(0, span(0, 20))]);
}

/// `count` tokens that no other number has in this order.
fn passage(number: u32, count: u32) -> Vec<u32> {
    let mix = |i: u32| {
        let x = u64::from(number) << 32 | u64::from(i);
        let x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        u32::try_from((x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 48).expect("16 bits")
    };
    (0..count).map(mix).collect()
}

/// Passage i, of 100 + 5 i tokens, lies at some place in donor i, amid others.
fn check_search(passages: u32, expected: &[u32]) {
    let mut index = DonorIndex::new();
    let own = |i: u32| passage(i, 100 + 5 * i);
    for i in 0..passages {
        let before = passage(1_000 + i, 20 + i);
        let donor = [before, own(i), passage(2_000 + i, 300)].concat();
        index.insert(i, &prepare(&donor));
    }
    let tokens: Vec<u32> = (0..passages).rev().flat_map(own).collect();
    let target = Target {
        tokens: &tokens,
        boundary: 0,
        is_eligible: &|_| true,
        reach: None,
        verify_max: 8,
        prospect: &Prospect::by_length,
    };
    let mut scratch = Scratch::default();
    let first = index.search(&target, &mut scratch, &|| 0).candidates;
    let cover = index.search_cover(&target, &first, COVER_DONORS_MAX, &mut scratch);
    let mut start = 0;
    let mut whole = Vec::new();
    for i in (0..passages).rev() {
        let length = 100 + 5 * i;
        let span = Span {
            donor_start: 20 + i,
            target_start: start,
            length,
        };
        start += length;
        if expected.contains(&i) {
            whole.push((i, span));
        }
    }
    assert_eq!(cover, whole);
}

#[test]
fn a_target_of_eight_donors_passages_is_covered_by_the_eight() {
    check_search(8, &[0, 1, 2, 3, 4, 5, 6, 7]);
    check_search(1, &[0]);
}

#[test]
fn of_twelve_donors_passages_the_eight_longest_are_found() {
    check_search(12, &[4, 5, 6, 7, 8, 9, 10, 11]);
}

/// Eight donors have an eighth of the target each; many others have less, across its borders.
#[test]
fn eight_donors_that_cover_all_are_found_beside_many_that_do_not() {
    const PART: u32 = 256;
    let tokens = passage(1, 8 * PART);
    let part = |from: u32, length: u32| &tokens[from as usize..][..length as usize];
    let mut index = DonorIndex::new();
    for i in 0..200_u32 {
        let from = (i.wrapping_mul(2_654_435_761) >> 8) % (7 * PART);
        let length = [100, 180, 240][i as usize % 3];
        let donor = [
            &passage(100 + i, 20),
            part(from, length),
            &passage(400 + i, 50),
        ]
        .concat();
        index.insert(i, &prepare(&donor));
    }
    for i in 0..8 {
        let donor = [
            &passage(700 + i, 30),
            part(i * PART, PART),
            &passage(800 + i, 30),
        ]
        .concat();
        index.insert(200 + i, &prepare(&donor));
    }
    let target = Target {
        tokens: &tokens,
        boundary: 0,
        is_eligible: &|_| true,
        reach: None,
        verify_max: 8,
        prospect: &Prospect::by_length,
    };
    let mut scratch = Scratch::default();
    let first = index.search(&target, &mut scratch, &|| 0).candidates;
    let cover = index.search_cover(&target, &first, COVER_DONORS_MAX, &mut scratch);
    let covered: u32 = cover.iter().map(|(_, span)| span.length).sum();
    assert!(covered >= 1_950, "{covered} of {}", 8 * PART);
}
