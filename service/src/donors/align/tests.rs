//! Alignment judged by an exhaustive twin.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::donors::seeds::{Scan, WINDOW};

/// Every maximal run of at least `shortest` tokens: each diagonal, token by token.
fn reference_runs(target: &[u32], donor: &[u32], boundary: usize, shortest: usize) -> Vec<Span> {
    let same = |t: usize, d: usize| {
        target
            .get(t)
            .is_some_and(|token| donor.get(d) == Some(token))
    };
    let mut runs = Vec::new();
    for t in boundary..target.len() {
        for d in 0..donor.len() {
            let begins = t == boundary || d == 0 || !same(t - 1, d - 1);
            let length = (0..).take_while(|&i| same(t + i, d + i)).count();
            if begins && length >= shortest {
                runs.push(span(t, d, length));
            }
        }
    }
    runs
}

/// Again and again the longest piece of a run whose tokens are all free.
fn reference_spans(runs: &[Span], shortest: usize) -> Vec<Span> {
    let (mut targets, mut donors) = (HashSet::new(), HashSet::new());
    let mut spans = Vec::new();
    loop {
        let mut best: Option<Span> = None;
        for run in runs {
            let is_free = |i: &u32| {
                !targets.contains(&(run.target_start + i))
                    && !donors.contains(&(run.donor_start + i))
            };
            for from in 0..run.length {
                let length = (from..run.length).take_while(is_free).count();
                let piece = run.slice(from, from + count_u32(length));
                if length >= shortest && best.is_none_or(|best| Piece(best) < Piece(piece)) {
                    best = Some(piece);
                }
            }
        }
        let Some(best) = best else { break };
        targets.extend(best.target_start..best.target_end());
        donors.extend(best.donor_start..best.donor_end());
        spans.push(best);
    }
    spans.sort_unstable_by_key(|span| span.target_start);
    spans
}

fn span(target_start: usize, donor_start: usize, length: usize) -> Span {
    Span {
        donor_start: count_u32(donor_start),
        target_start: count_u32(target_start),
        length: count_u32(length),
    }
}

fn align(target: &[u32], donor: &[u32], boundary: usize, shortest: usize) -> Vec<Span> {
    let mut scan = Scan::default();
    scan.scan(&target[boundary..]);
    let mut aligner = Aligner::default();
    aligner.set_target(&scan.short_hashes, boundary);
    let spans = aligner.spans(target, donor, shortest).to_vec();
    assert_eq!(
        spans,
        aligner.spans(target, donor, shortest),
        "a second donor finds clean room"
    );
    spans
}

fn has_repeated_window(tokens: &[u32], length: usize) -> bool {
    let mut seen = HashSet::new();
    !tokens.windows(length).all(|window| seen.insert(window))
}

fn check(target: &[u32], donor: &[u32], boundary: usize, shortest: usize) {
    let spans = align(target, donor, boundary, shortest);
    check_spans(target, donor, boundary, &spans);
    assert!(spans.iter().all(|span| span.length as usize >= shortest));
    let runs = reference_runs(target, donor, boundary, shortest);
    let in_runs: HashSet<u32> = runs
        .iter()
        .flat_map(|run| run.target_start..run.target_end())
        .collect();
    let coverage: u32 = spans.iter().map(|span| span.length).sum();
    assert!(coverage as usize <= in_runs.len());
    assert_eq!(spans.is_empty(), runs.is_empty());
    if !has_repeated_window(&target[boundary..], shortest) && !has_repeated_window(donor, shortest)
    {
        assert_eq!(spans, reference_spans(&runs, shortest));
    }
    let longest = runs
        .iter()
        .filter(|run| run.target_start as usize == boundary)
        .max_by_key(|run| (run.length, run.donor_start as usize == boundary))
        .map(|run| run.length);
    let anchored = anchored_run(target, donor, boundary, shortest);
    assert_eq!(anchored.map(|run| run.length), longest);
    if let Some(anchored) = anchored {
        assert!(runs.contains(&anchored), "the anchored run is kept whole");
    }
}

/// Identical, in order, disjoint on both sides, and longer only at the cost of another span.
fn check_spans(target: &[u32], donor: &[u32], boundary: usize, spans: &[Span]) {
    assert!(spans.is_sorted_by(|a, b| a.target_end() <= b.target_start));
    let mut by_donor = spans.to_vec();
    by_donor.sort_unstable_by_key(|span| span.donor_start);
    assert!(by_donor.is_sorted_by(|a, b| a.donor_end() <= b.donor_start));
    let taken = |t: u32, d: u32| {
        spans.iter().any(|span| {
            (span.target_start..span.target_end()).contains(&t)
                || (span.donor_start..span.donor_end()).contains(&d)
        })
    };
    for span in spans {
        let (t, d) = (span.target_start as usize, span.donor_start as usize);
        let n = span.length as usize;
        assert!(t >= boundary);
        assert_eq!(target[t..t + n], donor[d..d + n]);
        if t > boundary && d > 0 && target[t - 1] == donor[d - 1] {
            assert!(
                taken(span.target_start - 1, span.donor_start - 1),
                "{span:?} could grow left"
            );
        }
        if t + n < target.len() && target.get(t + n) == donor.get(d + n) {
            assert!(
                taken(span.target_end(), span.donor_end()),
                "{span:?} could grow right"
            );
        }
    }
}

/// A donor, a target of pieces of it and of foreign tokens, and a boundary.
fn prompts() -> impl Strategy<Value = (Vec<u32>, Vec<u32>, usize)> {
    let alphabet = prop_oneof![Just(1_u32), Just(2), Just(5), Just(100_000), Just(100_000)];
    alphabet
        .prop_flat_map(|alphabet| {
            let donor = prop::collection::vec(0..alphabet, 0..150);
            let piece = (any::<bool>(), 0_usize..150, 0_usize..60);
            let foreign = prop::collection::vec(0..alphabet, 0..12);
            (
                donor,
                prop::collection::vec((piece, foreign), 0..6),
                any::<prop::sample::Index>(),
            )
        })
        .prop_map(|(donor, pieces, boundary)| {
            let mut target = Vec::new();
            for ((copied, start, length), foreign) in pieces {
                if copied {
                    target.extend(donor.iter().skip(start).take(length));
                }
                target.extend(foreign);
            }
            let boundary = boundary.index(target.len() + 1);
            (target, donor, boundary)
        })
}

fn distinct(range: std::ops::Range<u32>) -> Vec<u32> {
    range.map(|i| i.wrapping_mul(2_654_435_761) >> 8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn agrees_with_the_exhaustive_twin((target, donor, boundary) in prompts()) {
        check(&target, &donor, 0, WINDOW);
        check(&target, &donor, boundary, WINDOW);
    }

    #[test]
    fn agrees_on_shorter_runs((target, donor, boundary) in prompts()) {
        check(&target, &donor, boundary, SHORT_WINDOW);
    }
}

#[test]
fn a_run_of_sixteen_is_found_at_every_phase_and_one_of_fifteen_at_none() {
    for before in 0..40 {
        let shared = distinct(0..16);
        let donor = [
            distinct(1_000..1_000 + before),
            shared.clone(),
            distinct(2_000..2_050),
        ]
        .concat();
        let target = [distinct(3_000..3_021), shared, distinct(4_000..4_020)].concat();
        assert_eq!(
            align(&target, &donor, 0, WINDOW),
            [span(21, before as usize, 16)]
        );
        let mut broken = target;
        broken[36] = 7;
        assert_eq!(align(&broken, &donor, 0, WINDOW), []);
    }
}

#[test]
fn a_doubled_token_is_taken_once_from_the_donor() {
    let donor = distinct(0..100);
    let mut target = donor.clone();
    target.insert(40, donor[40]);
    // The second run is the longer one, and has the donor's token 40.
    assert_eq!(
        align(&target, &donor, 0, WINDOW),
        [span(0, 0, 40), span(41, 40, 60)]
    );
    let anchored = anchored_run(&target, &donor, 0, WINDOW);
    assert_eq!(
        anchored,
        Some(span(0, 0, 41)),
        "but the anchored run is whole"
    );
}

#[test]
fn a_run_nested_in_another_is_still_anchored() {
    let (a, b, c) = (distinct(0..40), distinct(100..140), distinct(200..240));
    let donor = [a.clone(), b.clone(), c.clone()].concat();
    let target = [b.clone(), distinct(300..310), a, b, c].concat();
    assert_eq!(
        anchored_run(&target, &donor, 0, WINDOW),
        Some(span(0, 40, 40))
    );
}

#[test]
fn repetition_is_cut_short() {
    let text = distinct(0..64);
    let periodic: Vec<u32> = (0..8_192).map(|i| text[i % 15]).collect();
    let mut pocked = vec![1; 8_192];
    for i in (15..8_192).step_by(16) {
        pocked[i] = count_u32(i);
    }
    for (target, donor) in [
        (vec![1; 8_192], vec![1; 8_192]),
        (vec![1; 8_192], pocked.clone()),
        (
            pocked.clone(),
            pocked.iter().map(|&token| token.max(2) - 1).collect(),
        ),
        (periodic.clone(), periodic),
    ] {
        let mut scan = Scan::default();
        scan.scan(&target);
        let mut aligner = Aligner::default();
        aligner.set_target(&scan.short_hashes, 0);
        let spans = aligner.spans(&target, &donor, WINDOW).to_vec();
        check_spans(&target, &donor, 0, &spans);
        let longest_try = 8_192 / LANES * WINDOW_TRIES_MAX;
        assert!(aligner.work() <= WORK_MAX + longest_try + WINDOW_TRIES_MAX);
    }
    let spans = align(&[1; 8_192], &[1; 8_192], 0, WINDOW);
    assert_eq!(
        spans,
        [span(0, 0, 8_192)],
        "the same prompt is the same, however dull"
    );
}
