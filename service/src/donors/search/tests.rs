//! Discovery by kind of recipient, on generated prompts.

use super::*;
use crate::donors::index::prepare;

const DONORS: u32 = 60;
const PASSAGE: u32 = 240;

/// Passage `number`: tokens that no other passage has in this order.
fn passage(number: u32) -> Vec<u32> {
    tokens(number, PASSAGE)
}

fn tokens(seed: u32, length: u32) -> Vec<u32> {
    let mix = |i: u32| {
        let x = u64::from(seed) << 32 | u64::from(i);
        let x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from(x >> 48).expect("16 bits")
    };
    (0..length).map(mix).collect()
}

/// An instruction, passages, a question.
fn prompt(wrapper: u32, passages: &[u32]) -> Vec<u32> {
    let body: Vec<u32> = passages
        .iter()
        .flat_map(|&number| passage(number))
        .collect();
    [
        tokens(1_000_000 + wrapper, 25),
        body,
        tokens(2_000_000 + wrapper, 10),
    ]
    .concat()
}

/// Passage numbers of a donor: six of its own, two that every donor of its kind has.
fn passages_of(donor: u32) -> Vec<u32> {
    let mut passages: Vec<u32> = (0..6).map(|i| 100 * donor + i).collect();
    passages.insert(2, 1_000_000 + donor % 3);
    passages.insert(5, 2_000_000 + donor % 5);
    passages
}

fn donor(number: u32) -> Vec<u32> {
    prompt(number, &passages_of(number))
}

fn library() -> DonorIndex {
    index_of((0..DONORS).map(donor))
}

fn index_of(donors: impl IntoIterator<Item = Vec<u32>>) -> DonorIndex {
    let mut index = DonorIndex::new();
    for (slot, donor) in (0..).zip(donors) {
        index.insert(slot, &prepare(&donor));
    }
    index
}

fn search(index: &DonorIndex, tokens: &[u32]) -> Vec<Aligned> {
    search_beyond(index, tokens, 0, &|_| true)
}

fn search_beyond(
    index: &DonorIndex,
    tokens: &[u32],
    boundary: usize,
    is_eligible: &dyn Fn(u32) -> bool,
) -> Vec<Aligned> {
    let target = Target {
        tokens,
        boundary,
        is_eligible,
        reach: None,
        verify_max: 8,
        prospect: &Prospect::by_length,
    };
    let mut scratch = Scratch::default();
    let found = index.search(&target, &mut scratch, &|| 0);
    assert_eq!(
        found,
        index.search(&target, &mut scratch, &|| 0),
        "used room is like new"
    );
    assert!(
        found
            .candidates
            .is_sorted_by(|a, b| a.coverage >= b.coverage)
    );
    for aligned in &found.candidates {
        let mut donor = Vec::new();
        index
            .tokens(aligned.slot)
            .expect("a live donor")
            .unpack_into(&mut donor);
        for span in aligned.spans.iter().chain(&aligned.anchored) {
            let (t, d) = (span.target_start as usize, span.donor_start as usize);
            let n = span.length as usize;
            assert!(t >= boundary);
            assert_eq!(tokens[t..t + n], donor[d..d + n]);
        }
    }
    found.candidates
}

/// The best candidate is `slot` and covers at least `least` of the target.
fn check(index: &DonorIndex, target: &[u32], slot: u32, least: u32) -> Aligned {
    let best = search(index, target)
        .into_iter()
        .next()
        .expect("a donor is found");
    assert_eq!(best.slot, slot);
    assert!(best.coverage >= least, "{} < {least}", best.coverage);
    best
}

#[test]
fn identical() {
    let target = donor(7);
    let length = count_u32(target.len());
    let best = check(&library(), &target, 7, length);
    let whole = Span {
        donor_start: 0,
        target_start: 0,
        length,
    };
    assert_eq!((best.spans, best.anchored), (vec![whole], Some(whole)));
    assert_eq!(best.identical_from_start, length);
}

#[test]
fn wrapper_and_shift_and_multi_turn() {
    let index = library();
    check(&index, &prompt(500, &passages_of(7)), 7, 8 * PASSAGE);
    let length = count_u32(donor(7).len());
    for more in [1, 16, 64] {
        let shifted = [tokens(9_999, more), donor(7)].concat();
        let best = check(&index, &shifted, 7, length);
        let moved = Span {
            donor_start: 0,
            target_start: more,
            length,
        };
        assert_eq!((best.spans, best.anchored), (vec![moved], None));
    }
    let turns = [donor(7), tokens(77, 200)].concat();
    check(&index, &turns, 7, length);
}

#[test]
fn reordered_and_partial_and_contained() {
    let index = library();
    let mut passages = passages_of(7);
    passages.rotate_left(3);
    passages.swap(0, 4);
    check(&index, &prompt(500, &passages), 7, 8 * PASSAGE);
    let partial = [&passages_of(7)[..6], &[8_000_001, 8_000_002]].concat();
    check(&index, &prompt(500, &partial), 7, 6 * PASSAGE);
    check(&index, &prompt(500, &passages_of(7)[3..5]), 7, 2 * PASSAGE);
}

#[test]
fn edited() {
    let mut target = donor(7);
    for i in (20..target.len()).step_by(60).rev() {
        match i % 3 {
            0 => target[i] += 100_000,
            1 => drop(target.remove(i)),
            _ => target.insert(i, target[i]),
        }
    }
    let least = count_u32(target.len()) * 95 / 100;
    check(&library(), &target, 7, least);
}

#[test]
fn behind_a_preamble_that_everyone_has() {
    let shared = tokens(31, 500);
    let with = |prompt: Vec<u32>| [shared.clone(), prompt].concat();
    let index = index_of((0..DONORS).map(|number| with(donor(number))));
    check(
        &index,
        &with(prompt(500, &passages_of(7))),
        7,
        500 + 8 * PASSAGE,
    );
}

#[test]
fn the_right_one_of_a_crowd() {
    let form = tokens(41, 1_500);
    let of = |number: u32| [form.clone(), passage(number)].concat();
    let index = index_of((0..40).map(of));
    for number in [0, 17, 39] {
        check(&index, &of(number), number, 1_500 + PASSAGE);
    }
}

#[test]
fn a_filled_form_is_found() {
    let of = |number: u32| {
        let mut form = tokens(43, 1_500);
        for i in (90..1_500).step_by(100) {
            form[i] = 70_000 + number;
        }
        form
    };
    let index = index_of((0..40).map(of));
    let best = &search(&index, &of(99))[0];
    // All but the variables, and the nine tokens behind the last.
    assert_eq!(best.coverage, 1_500 - 15 - 9);
}

#[test]
fn contained_under_popular_passages() {
    // Each of the two passages has hundreds of donors; only one donor has both.
    let donors = 900;
    let of = |number: u32| match number {
        450 => prompt(number, &[1, 2, 10 * number]),
        _ => prompt(number, &[1 + number % 2, 10 * number, 10 * number + 1]),
    };
    check(
        &index_of((0..donors).map(of)),
        &prompt(5_000, &[1, 2]),
        450,
        2 * PASSAGE,
    );
}

#[test]
fn strangers_are_not_found() {
    let index = library();
    assert_eq!(search(&index, &prompt(500, &[8_000_001, 8_000_002])), []);
    assert_eq!(search(&index, &[]), []);
    assert_eq!(search(&DonorIndex::new(), &donor(1)), []);
    assert_eq!(
        search_beyond(&index, &donor(1), donor(1).len() + 5, &|_| true),
        []
    );
}

#[test]
fn only_what_lies_beyond_the_boundary_counts() {
    let target = donor(7);
    let length = count_u32(target.len());
    let best = search_beyond(&library(), &target, 700, &|_| true).remove(0);
    let rest = Span {
        donor_start: 700,
        target_start: 700,
        length: length - 700,
    };
    assert_eq!((best.slot, best.anchored), (7, Some(rest)));
    assert_eq!(
        (best.coverage, best.identical_from_start),
        (length - 700, length)
    );
}

#[test]
fn ineligible_donors_take_no_place() {
    // Re-issues of a prompt, and one donor that may serve it a little less well.
    for reissues in [1, 5, 200] {
        let mut donors = vec![donor(7); reissues as usize];
        donors.push(prompt(500, &passages_of(7)[1..]));
        let index = index_of(donors);
        let found = search_beyond(&index, &donor(7), 0, &|slot| slot >= reissues);
        assert_eq!((found.len(), found[0].slot), (1, reissues));
        assert!(found[0].coverage >= 7 * PASSAGE);
        assert_eq!(search_beyond(&index, &donor(7), 0, &|_| false), []);
    }
    let alike = index_of(vec![donor(7); 20]);
    let found = search_beyond(&alike, &donor(7), 0, &|slot| slot % 3 == 2);
    let slots: Vec<u32> = found.iter().map(|aligned| aligned.slot).collect();
    assert_eq!(slots, [2, 5, 8, 11, 14, 17]);
}

#[test]
fn ties_are_all_verified_up_to_the_limit() {
    let index = index_of(vec![donor(7); 20]);
    assert_eq!(search(&index, &donor(7)).len(), 8);
}

#[test]
fn the_donor_that_continues_furthest_is_verified() {
    // Many have more of the target, in another order; one has its first three passages.
    let of = |number: u32| match number {
        20 => [tokens(51, 100), passage(1), passage(2), passage(3)].concat(),
        _ => [
            tokens(51, 100),
            passage(3),
            passage(2),
            passage(1),
            passage(4),
            passage(5),
        ]
        .concat(),
    };
    let index = index_of((0..40).map(of));
    let target = [tokens(51, 100), (1..6).flat_map(passage).collect()].concat();
    let found = search(&index, &target);
    let longest = found
        .iter()
        .filter_map(|a| Some((a.anchored?.length, a.slot)))
        .max();
    assert_eq!(longest, Some((100 + 3 * PASSAGE, 20)));
    assert_ne!(found[0].slot, 20);
}

#[test]
fn an_edit_in_every_twelve_tokens_is_explained() {
    let mut target = donor(7);
    for i in (11..target.len()).step_by(12) {
        target[i] += 100_000;
    }
    let best = search(&library(), &target).remove(0);
    assert_eq!((best.slot, best.coverage, best.spans), (7, 0, vec![]));
    let kept = target.len() * 11 / 12;
    assert!(best.short_matches as usize > kept * 95 / 100);
}

#[test]
fn dull_prompts_are_bounded() {
    let dull = vec![5; 8_192];
    let index = index_of((0..300).map(|i| vec![5; 8_192 - i]));
    let found = search(&index, &dull);
    assert!(found.len() <= 8 + boundary::ANCHORED_MAX);
}

#[test]
fn given_donors_are_compared_whoever_nominated_them() {
    let index = library();
    let target = prompt(99, &passages_of(7));
    let check = |slots: &[u32], barred: u32, expected: &[u32]| {
        let target = Target {
            tokens: &target,
            boundary: 0,
            is_eligible: &|slot| slot != barred,
            reach: None,
            verify_max: 8,
            prospect: &Prospect::by_length,
        };
        let found = index.verify_slots(&target, slots, &mut Scratch::default());
        let slots: Vec<u32> = found.iter().map(|aligned| aligned.slot).collect();
        assert_eq!(slots, expected);
    };
    // Donor 10 has the same shared passage as donor 7; donor 8 has none of its own passages.
    check(&[10, 7], DONORS, &[7, 10]);
    check(&[10, 7], 7, &[10]);
    check(&[DONORS + 5], DONORS, &[]);
    check(&[], DONORS, &[]);
}

#[test]
fn a_donor_is_compared_as_far_as_it_reaches() {
    let donor = prompt(7, &passages_of(7));
    let index = index_of([donor.clone()]);
    for live in [0, 15, 16, 700, 100_000] {
        let target = Target {
            tokens: &donor,
            boundary: 0,
            is_eligible: &|_| true,
            reach: Some(&|_| live),
            verify_max: 8,
            prospect: &Prospect::by_length,
        };
        let found = index.search(&target, &mut Scratch::default(), &|| 0);
        let expected = count_u32(donor.len()).min(live);
        let covered = found.candidates.first().map_or(0, |one| {
            assert_eq!(one.identical_from_start, expected);
            assert_eq!(one.anchored.map(|run| run.length), Some(expected));
            one.coverage
        });
        assert_eq!(
            covered,
            if expected < count_u32(WINDOW) {
                0
            } else {
                expected
            }
        );
    }
}

#[test]
fn what_is_uncovered_finds_its_own_donors() {
    let index = library();
    let halves = [100 * 3, 100 * 3 + 1, 100 * 9, 100 * 9 + 1];
    let target = prompt(99, &halves);
    let check = |covered: &[Span], max: usize, expected: &[u32]| {
        let target = Target {
            tokens: &target,
            boundary: 0,
            is_eligible: &|_| true,
            reach: None,
            verify_max: 8,
            prospect: &Prospect::by_length,
        };
        let found = index.nominate_uncovered(&target, covered, &mut Scratch::default(), max);
        let mut slots: Vec<u32> = found.iter().map(|aligned| aligned.slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, expected);
    };
    let first_half = Span {
        donor_start: 0,
        target_start: 0,
        length: 25 + 2 * PASSAGE,
    };
    check(&[], 8, &[3, 9]);
    check(&[first_half], 8, &[9]);
    let all = Span {
        length: count_u32(target.len()),
        ..first_half
    };
    check(&[all], 8, &[]);
    check(&[], 0, &[]);
}
