//! What callers get for a policy, a budget and a prior; each policy against an obvious twin.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::middle::split_mix_64;
use super::super::policy::tests::any_policy;
use super::super::ranking::pack_rows;
use super::*;

const LISTED_4: [u32; 4] = [10, 102, 174, 242];
const LISTED_8: [u32; 8] = [10, 57, 77, 102, 159, 174, 221, 246];
/// Best first, as k-means wrote it: not ascending beyond the fourth.
const LEGACY: [u32; 8] = [10, 31, 14, 24, 88, 41, 61, 63];

fn scored(scores: &[f32]) -> PriorBlocks {
    PriorBlocks {
        total_blocks: Some(u32::try_from(scores.len()).unwrap()),
        ranking: Some(Ranking::pack(&kvatlas_kernels::rank(scores))),
        per_k: BTreeMap::new(),
        legacy: Box::default(),
    }
}

fn listed(total_blocks: Option<u32>, lists: &[&[u32]], legacy: &[u32]) -> PriorBlocks {
    let key = |list: &[u32]| u32::try_from(list.len()).unwrap();
    PriorBlocks {
        total_blocks,
        ranking: None,
        per_k: lists
            .iter()
            .map(|list| (key(list), Box::from(*list)))
            .collect(),
        legacy: legacy.into(),
    }
}

/// As a request would ask.
fn ask(
    tag: &str,
    k: u32,
    total_blocks: u32,
    prior: Option<&PriorBlocks>,
) -> Result<Resolved, ResolveError> {
    let policy = Policy::parse(tag).unwrap();
    resolve(&policy, budget(&policy, k)?, total_blocks, prior)
}

#[track_caller]
fn check(resolved: Result<Resolved, ResolveError>, expected: &[u32], total: u32, extent: Extent) {
    let resolved = resolved.unwrap();
    assert_eq!(resolved.blocks, expected);
    assert_eq!(resolved.effective_k as usize, expected.len());
    assert_eq!((resolved.total_blocks, resolved.extent), (total, extent));
}

#[track_caller]
fn refused(resolved: Result<Resolved, ResolveError>, field: &str, says: &str) {
    let error = resolved.unwrap_err();
    assert_eq!(error.field(), field, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn golden_lists_of_258_blocks() {
    let prior = listed(Some(258), &[&LISTED_4, &LISTED_8], &LEGACY);
    check(
        ask("top-k", 4, 0, Some(&prior)),
        &LISTED_4,
        258,
        Extent::Full,
    );
    check(ask("", 8, 258, Some(&prior)), &LISTED_8, 258, Extent::Full);
    // No list for 5: the legacy list is cut first and sorted then.
    check(
        ask("top-k", 5, 0, Some(&prior)),
        &[10, 14, 24, 31, 88],
        258,
        Extent::Full,
    );
    let legacy_only = listed(Some(258), &[], &LEGACY);
    check(
        ask("top-k", 4, 0, Some(&legacy_only)),
        &[10, 14, 24, 31],
        258,
        Extent::Full,
    );
    let all: Vec<u32> = (0..258).collect();
    check(
        ask("top-k", 258, 0, Some(&prior)),
        &all,
        258,
        Extent::AllBlocks,
    );
    check(
        ask("top-k", 1 << 20, 0, Some(&prior)),
        &all,
        258,
        Extent::AllBlocks,
    );
}

#[test]
fn lists_come_before_scores_and_scores_fill_them_up() {
    let mut prior = scored(&[9.0, 8.0, 7.0, 6.0, 5.0, 4.0]);
    prior.per_k.insert(2, Box::new([5, 3]));
    check(ask("top-k", 2, 0, Some(&prior)), &[3, 5], 6, Extent::Full);
    check(
        ask("top-k", 3, 0, Some(&prior)),
        &[0, 1, 2],
        6,
        Extent::Full,
    );
    prior.legacy = Box::new([4, 5]);
    check(ask("top-k", 1, 0, Some(&prior)), &[4], 6, Extent::Full);
    check(
        ask("top-k", 3, 0, Some(&prior)),
        &[0, 4, 5],
        6,
        Extent::Full,
    );
}

#[test]
fn short_lists_say_so() {
    let legacy = listed(Some(258), &[&LISTED_4], &LEGACY);
    let mut sorted = LEGACY;
    sorted.sort_unstable();
    check(
        ask("top-k", 16, 0, Some(&legacy)),
        &sorted,
        258,
        Extent::PriorShort,
    );
    let per_k = listed(Some(258), &[&LISTED_4, &LISTED_8], &[]);
    check(
        ask("top-k", 5, 0, Some(&per_k)),
        &LISTED_4,
        258,
        Extent::PriorShort,
    );
    check(
        ask("top-k", 200, 0, Some(&per_k)),
        &LISTED_8,
        258,
        Extent::PriorShort,
    );
    refused(
        ask("top-k", 3, 0, Some(&per_k)),
        "k",
        "at least 4, the smallest k",
    );
}

#[test]
fn scores_rank_ties_by_index_and_nan_last() {
    let prior = scored(&[1.0, 5.0, f32::NAN, 5.0, 1.0]);
    check(ask("top-k", 1, 0, Some(&prior)), &[1], 5, Extent::Full);
    check(
        ask("top-k", 3, 0, Some(&prior)),
        &[0, 1, 3],
        5,
        Extent::Full,
    );
    check(
        ask("top-k", 4, 0, Some(&prior)),
        &[0, 1, 3, 4],
        5,
        Extent::Full,
    );
}

#[test]
fn the_callers_number_of_blocks_may_differ_by_one() {
    let prior = scored(&[1.0, 2.0, 3.0, 9.0]);
    // One fewer: the best block is gone, and the next one takes its place.
    check(ask("top-k", 2, 3, Some(&prior)), &[1, 2], 3, Extent::Full);
    // One more: it ranks last, and recent blocks count from it.
    check(
        ask("top-k", 4, 5, Some(&prior)),
        &[0, 1, 2, 3],
        5,
        Extent::Full,
    );
    check(ask("A0R1K1", 0, 5, Some(&prior)), &[3, 4], 5, Extent::Full);
    check(
        ask("top-k", 5, 5, Some(&prior)),
        &[0, 1, 2, 3, 4],
        5,
        Extent::AllBlocks,
    );
    refused(
        ask("top-k", 2, 6, Some(&prior)),
        "total_blocks",
        "4 blocks are known, give or take one; got 6",
    );
    refused(
        ask("recency", 2, 2, Some(&prior)),
        "total_blocks",
        "4 blocks are known, give or take one; got 2",
    );
    let lists = listed(Some(258), &[&[10, 257]], &[257, 3, 4]);
    check(
        ask("top-k", 2, 257, Some(&lists)),
        &[10],
        257,
        Extent::PriorShort,
    );
    // The legacy list loses what is out of range before it is cut.
    check(
        ask("top-k", 1, 257, Some(&listed(Some(258), &[], &[257, 3, 4]))),
        &[3],
        257,
        Extent::Full,
    );
}

#[test]
fn a_list_that_does_not_know_its_number_of_blocks_takes_the_callers() {
    let prior = listed(None, &[&LISTED_4], &[]);
    check(
        ask("top-k", 4, 300, Some(&prior)),
        &LISTED_4,
        300,
        Extent::Full,
    );
    check(
        ask("top-k", 4, 200, Some(&prior)),
        &[10, 102, 174],
        200,
        Extent::PriorShort,
    );
    check(
        ask("top-k", 4, 0, Some(&prior)),
        &LISTED_4,
        243,
        Extent::Full,
    );
    refused(
        ask("top-k", 4, 10, Some(&prior)),
        "total_blocks",
        "none of the blocks",
    );
    refused(
        ask("top-k", 4, BLOCKS_MAX + 1, Some(&prior)),
        "total_blocks",
        "at most 1048576",
    );
}

#[test]
fn pinned_ends_and_the_best_between() {
    let prior = scored(&[9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 9.0]);
    check(
        ask("A1R2K2", 0, 0, Some(&prior)),
        &[0, 2, 4, 6, 7],
        8,
        Extent::Full,
    );
    check(
        ask("A1R2K2", 5, 0, Some(&prior)),
        &[0, 2, 4, 6, 7],
        8,
        Extent::Full,
    );
    check(
        ask("hybrid:1,2", 0, 0, Some(&prior)),
        &[0, 6, 7],
        8,
        Extent::Full,
    );
    check(
        ask("hybrid", 0, 20, None),
        &[0, 1, 14, 15, 16, 17, 18, 19],
        20,
        Extent::Full,
    );
    check(
        ask("hybrid", 8, 8, None),
        &[0, 1, 2, 3, 4, 5, 6, 7],
        8,
        Extent::AllBlocks,
    );
    check(
        ask("hybrid", 8, 5, None),
        &[0, 1, 2, 3, 4],
        5,
        Extent::AllBlocks,
    );
    check(ask("recency", 3, 10, None), &[7, 8, 9], 10, Extent::Full);
    check(
        ask("A1R2K13", 16, 0, Some(&prior)),
        &[0, 1, 2, 3, 4, 5, 6, 7],
        8,
        Extent::AllBlocks,
    );
}

#[test]
fn evenly_spaced_middle() {
    let spread = |k, total| ask("anchor-recency-spread:1,2", k, total, None);
    // The middle is 1..13: parts of 3 blocks.
    check(spread(7, 15), &[0, 2, 5, 8, 11, 13, 14], 15, Extent::Full);
    check(spread(4, 15), &[0, 7, 13, 14], 15, Extent::Full);
    check(spread(3, 15), &[0, 13, 14], 15, Extent::Full);
    check(
        spread(15, 15),
        &(0..15).collect::<Vec<_>>(),
        15,
        Extent::AllBlocks,
    );
}

/// Computed with another implementation of the documented recipe: a client can pin the same.
#[test]
fn golden_random_middles() {
    let draw = |seed: u64, k, total| ask(&format!("random-middle:1,2,{seed}"), k, total, None);
    for (seed, k, total, expected) in GOLDEN_DRAWS {
        check(draw(*seed, *k, *total), expected, *total, Extent::Full);
    }
}

/// (seed, k, total_blocks, answer)
const GOLDEN_DRAWS: &[(u64, u32, u32, &[u32])] = &[
    (0, 8, 16, &[0, 2, 4, 8, 9, 10, 14, 15]),
    (
        0,
        16,
        128,
        &[
            0, 4, 32, 36, 50, 52, 58, 89, 96, 98, 100, 103, 104, 107, 126, 127,
        ],
    ),
    (
        42,
        16,
        128,
        &[
            0, 25, 39, 52, 61, 72, 74, 76, 83, 84, 91, 95, 100, 108, 126, 127,
        ],
    ),
    (
        u64::MAX,
        16,
        258,
        &[
            0, 15, 47, 53, 59, 81, 94, 104, 108, 111, 117, 139, 205, 214, 256, 257,
        ],
    ),
    (7, 11, 12, &[0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]),
];

#[test]
fn segments_share_the_middle_fairly() {
    // All the good blocks lie at the start; plain top-k would read nothing else.
    let scores: Vec<f32> = (0i16..20).rev().map(f32::from).collect();
    let prior = scored(&scores);
    // The middle 1..18 in four: 1..5, 5..9, 9..13, 13..18; one block each, and the best next one.
    let quota = |k| ask("segment-quota:1,2,4", k, 0, Some(&prior));
    check(quota(7), &[0, 1, 5, 9, 13, 18, 19], 20, Extent::Full);
    check(quota(8), &[0, 1, 2, 5, 9, 13, 18, 19], 20, Extent::Full);
    check(quota(9), &[0, 1, 2, 5, 6, 9, 13, 18, 19], 20, Extent::Full);
    check(quota(5), &[0, 1, 5, 18, 19], 20, Extent::Full);
    check(quota(3), &[0, 18, 19], 20, Extent::Full);
    // More segments than blocks between the ends.
    let many = ask("segment-quota:1,2,4096", 19, 0, Some(&prior));
    check(
        many,
        &[
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19,
        ],
        20,
        Extent::Full,
    );
}

#[test]
fn each_head_by_its_own_scores() {
    let packed = pack_rows(&[3, 1, 0, 2, 0, 2, 1, 3], 4);
    let heads = HeadRankings {
        layers: 2,
        kv_heads: 1,
        blocks: 4,
        packed: &packed,
    };
    let two = resolve_per_head(2, 0, &heads).unwrap();
    assert_eq!(
        (two.blocks.as_slice(), two.effective_k),
        (&[1, 3, 0, 2][..], 2)
    );
    assert_eq!((two.total_blocks, two.extent), (4, Extent::Full));
    let fewer = resolve_per_head(2, 3, &heads).unwrap();
    assert_eq!(fewer.blocks, [0, 1, 0, 2]);
    let all = resolve_per_head(9, 5, &heads).unwrap();
    assert_eq!(all.blocks, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    assert_eq!((all.effective_k, all.extent), (5, Extent::AllBlocks));
    refused(resolve_per_head(2, 6, &heads), "total_blocks", "4 blocks");
    let ranked: Vec<u32> = (0..1 << 18).collect();
    let packed = pack_rows(&ranked.repeat(8), 1 << 18);
    let large = HeadRankings {
        layers: 2,
        kv_heads: 4,
        blocks: 1 << 18,
        packed: &packed,
    };
    assert!(resolve_per_head(1 << 17, 0, &large).is_ok());
    refused(
        resolve_per_head((1 << 17) + 1, 0, &large),
        "k",
        "at most 131072",
    );
}

#[test]
fn contradictions_name_their_field() {
    let lists = listed(Some(258), &[&LISTED_4], &LEGACY);
    let scores = scored(&[1.0; 40]);
    for (tag, k, field, says) in [
        ("top-k", 0, "k", "1 to 1048576"),
        ("recency", 0, "k", "1 to 1048576"),
        ("top-k", BLOCKS_MAX + 1, "k", "at most 1048576"),
        ("recency", u32::MAX, "k", "at most 1048576"),
        ("A1R2K13", 15, "k", "0 or 16"),
        ("hybrid", 16, "k", "0 or 8"),
        ("segment-quota:2,3,4", 4, "k", "at least 5"),
        ("random-middle:2,3,4", 4, "k", "at least 5"),
        ("anchor-recency-spread:2,3", 1, "k", "at least 5"),
    ] {
        refused(ask(tag, k, 0, Some(&scores)), field, says);
    }
    for (tag, k) in [
        ("A1R2K13", 0),
        ("segment-quota:1,2,8", 300),
        ("A0R0K1000", 0),
    ] {
        refused(
            ask(tag, k, 0, Some(&lists)),
            "policy",
            "only a list of blocks",
        );
        refused(ask(tag, k, 100, None), "policy", "needs a prior");
    }
    refused(ask("top-k", 4, 100, None), "policy", "needs a prior");
    refused(ask("hybrid", 0, 0, None), "total_blocks", "without a prior");
    check(
        ask("hybrid:1,1", 0, 0, Some(&lists)),
        &[0, 257],
        258,
        Extent::Full,
    );
}

/// The obvious twin: every block written down with its score, sorted, filtered.
fn slowly(policy: &Policy, budget: u32, total: u32, scores: &[f32]) -> BTreeSet<u32> {
    if budget >= total {
        return (0..total).collect();
    }
    let mut ranked: Vec<u32> = (0..total).collect();
    let score = |block: u32| {
        scores
            .get(block as usize)
            .copied()
            .unwrap_or(f32::NEG_INFINITY)
    };
    ranked.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
    let (anchor, recent) = policy.pinned();
    let mut chosen: BTreeSet<u32> = (0..anchor).chain(total - recent..total).collect();
    let middle: Vec<u32> = (anchor..total - recent).collect();
    let wanted = budget as usize - chosen.len();
    ranked.retain(|block| middle.contains(block));
    match *policy {
        Policy::TopK | Policy::PerHead | Policy::AnchorRecentMiddle { .. } => {
            chosen.extend(&ranked[..wanted]);
        }
        Policy::Hybrid { .. } => {}
        Policy::Recency => chosen.extend(&middle[middle.len() - wanted..]),
        Policy::AnchorRecencySpread { .. } => {
            chosen.extend((0..wanted).map(|i| middle[(2 * i + 1) * middle.len() / (2 * wanted)]));
        }
        Policy::RandomMiddle { seed, .. } => {
            let (mut deck, mut state) = (middle.clone(), seed);
            for i in 0..wanted {
                let rest = deck.len() - i;
                let j = i + usize::try_from(split_mix_64(&mut state) % rest as u64).unwrap();
                deck.swap(i, j);
            }
            chosen.extend(&deck[..wanted]);
        }
        Policy::SegmentQuota { segments, .. } => {
            let (count, share) = (segments as usize, wanted / segments as usize);
            let bound = |i: usize| i * middle.len() / count;
            let mut next_best = Vec::new();
            for i in 0..count {
                let segment = &middle[bound(i)..bound(i + 1)];
                let best: Vec<u32> = ranked
                    .iter()
                    .copied()
                    .filter(|block| segment.contains(block))
                    .collect();
                chosen.extend(&best[..share]);
                next_best.extend(best.get(share).copied());
            }
            let place = |block: &u32| ranked.iter().position(|other| other == block);
            next_best.sort_by_key(place);
            chosen.extend(&next_best[..wanted % count]);
        }
    }
    chosen
}

fn few_scores() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec((-4i8..4).prop_map(f32::from), 2..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_policy_equals_its_slow_twin(
        policy in any_policy().prop_filter("resolved apart", |policy| *policy != Policy::PerHead),
        scores in few_scores(),
        k in 1u32..140,
        difference in -1i32..=1,
    ) {
        let (anchor, recent) = policy.pinned();
        let k = policy.fixed_budget().unwrap_or(k.max(anchor + recent));
        let prior = scored(&scores);
        let total = prior.total_blocks.unwrap().saturating_add_signed(difference);
        let resolved = resolve(&policy, budget(&policy, k).unwrap(), total, Some(&prior)).unwrap();

        prop_assert!(resolved.blocks.is_sorted_by(|a, b| a < b), "ascending and distinct");
        prop_assert!(resolved.blocks.iter().all(|&block| block < total));
        prop_assert_eq!(resolved.effective_k, k.min(total));
        prop_assert_eq!(resolved.effective_k as usize, resolved.blocks.len());
        prop_assert_eq!(resolved.extent == Extent::AllBlocks, k >= total);
        let pins = (0..anchor.min(total)).chain(total.saturating_sub(recent)..total);
        for pin in pins {
            prop_assert!(resolved.blocks.binary_search(&pin).is_ok(), "pin {}", pin);
        }
        let expected: Vec<u32> = slowly(&policy, k, total, &scores).into_iter().collect();
        prop_assert_eq!(resolved.blocks, expected);
    }

    #[test]
    fn no_segment_gets_two_more_than_another(
        scores in few_scores(),
        segments in 1u32..20,
        k in 1u32..120,
    ) {
        let total = u32::try_from(scores.len()).unwrap();
        prop_assume!(k < total);
        let tag = format!("segment-quota:0,0,{segments}");
        let blocks = ask(&tag, k, 0, Some(&scored(&scores))).unwrap().blocks;
        let share = |segment: u32| {
            let bound = |i: u32| i * total / segments;
            let segment = bound(segment)..bound(segment + 1);
            u32::try_from(blocks.iter().filter(|block| segment.contains(block)).count()).unwrap()
        };
        for segment in 0..segments {
            prop_assert!((k / segments..=k.div_ceil(segments)).contains(&share(segment)));
        }
    }
}
