//! Neighbours from the outside: against a map, beside other threads, and as large as a graph.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use proptest::prelude::*;

use super::{exact::Exact, *};

const SMALL: Shape = Shape {
    dimensions: 16,
    segments_max: 1,
};
const LARGE: Thresholds = Thresholds {
    exact_max: usize::MAX,
    graph_min: 0,
};
/// A graph as soon as there is anything.
const GRAPH: Thresholds = Thresholds {
    exact_max: 0,
    graph_min: 0,
};
/// A graph above a dozen, so that tests cross the thresholds both ways.
const DOZEN: Thresholds = Thresholds {
    exact_max: 12,
    graph_min: 6,
};

/// Values of a vector, told by its number.
fn values(number: u64, dimensions: usize) -> Vec<f32> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f32::from(u16::try_from(state >> 48).unwrap()) / 32_768.0 - 1.0
    };
    (0..dimensions).map(|_| draw() + draw()).collect()
}

fn vector(number: u64, dimensions: usize) -> Vector {
    Vector::new(&values(number, dimensions)).unwrap()
}

/// Slots, each with its sequence and its vectors: what is slow and obvious.
type Twin = BTreeMap<u32, (u64, Vec<Vector>)>;

fn nearest_of(twin: &Twin, query: &Vector, wanted: usize) -> Vec<Near> {
    let scored = twin.iter().map(|(&slot, (sequence, vectors))| Near {
        slot,
        sequence: *sequence,
        score: vectors.iter().map(|v| v.cosine(query)).fold(-1.0, f32::max),
    });
    let mut all: Vec<Near> = scored.collect();
    all.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.slot.cmp(&b.slot)));
    all.truncate(wanted);
    all
}

/// The right donors with the right scores; where scores are equal, any of them. A graph may miss
/// some, but never invents one.
fn check(neighbours: &Neighbours, twin: &Twin, query: &Vector) {
    let found = neighbours.nearest(query, 5);
    let wanted = nearest_of(twin, query, 5);
    let scores = |all: &[Near]| {
        all.iter()
            .map(|near| near.score.to_bits())
            .collect::<Vec<_>>()
    };
    if neighbours.now.read().store.kind() == Kind::Exact {
        assert_eq!(scores(&found), scores(&wanted));
    }
    assert!(found.len() <= 5 && found.is_sorted_by(|a, b| a.score >= b.score));
    let slots: BTreeSet<u32> = found.iter().map(|near| near.slot).collect();
    assert_eq!(slots.len(), found.len(), "a donor is found once");
    for near in found {
        let (sequence, vectors) = &twin[&near.slot];
        assert_eq!(near.sequence, *sequence);
        let best = vectors.iter().map(|v| v.cosine(query)).fold(-1.0, f32::max);
        assert!(near.score <= best);
        let cosines = vectors.iter().map(|v| v.cosine(query).to_bits());
        assert!(
            cosines
                .into_iter()
                .any(|cosine| cosine == near.score.to_bits())
        );
    }
    let vectors = twin.values().map(|(_, vectors)| vectors.len());
    assert_eq!(neighbours.len(), vectors.sum::<usize>());
}

proptest! {
    /// Whatever is put in, replaced and removed, and however the store changes meanwhile.
    #[test]
    fn what_is_found_is_what_is_there(
        steps in prop::collection::vec((0_u32..40, 0_usize..4, 0_u64..30), 1..150),
        segments_max in 1_u32..=3,
        thresholds in prop::sample::select(vec![LARGE, GRAPH, DOZEN]),
    ) {
        let shape = Shape { segments_max, ..SMALL };
        let neighbours = Neighbours::with_thresholds(shape, thresholds);
        let mut twin = Twin::new();
        for (sequence, (slot, count, number)) in (1_u64..).zip(steps) {
            let count = count.min(segments_max as usize);
            let vectors: Vec<Vector> = (number..).take(count).map(|n| vector(n, 16)).collect();
            if count == 0 {
                neighbours.remove(slot);
                twin.remove(&slot);
            } else {
                neighbours.update(slot, sequence, &vectors).unwrap();
                twin.insert(slot, (sequence, vectors));
            }
            check(&neighbours, &twin, &vector(number + 100, 16));
        }
    }
}

#[test]
fn the_scan_finds_what_floats_find() {
    let neighbours = Neighbours::new(SMALL);
    for slot in 0..700 {
        neighbours
            .update(slot, 1, &[vector(u64::from(slot), 16)])
            .unwrap();
    }
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    for number in 1_000..1_050 {
        let query = values(number, 16);
        let cosine = |slot: u32| {
            let own = values(u64::from(slot), 16);
            dot(&own, &query) / (dot(&own, &own) * dot(&query, &query)).sqrt()
        };
        let best = (0..700).map(cosine).fold(-1.0, f32::max);
        let found = neighbours.nearest(&Vector::new(&query).unwrap(), 1)[0];
        assert!((cosine(found.slot) - best).abs() < 0.02, "{found:?} {best}");
        assert!((found.score - best).abs() < 0.02, "{found:?} {best}");
    }
}

#[test]
fn empty_ones_cost_nothing_and_find_nothing() {
    let neighbours = Neighbours::new(Shape::SKETCH);
    assert_eq!(neighbours.memory_bytes(), 0);
    assert!(
        size_of::<Neighbours>() <= 512,
        "{}",
        size_of::<Neighbours>()
    );
    let query = vector(1, sketch::SKETCH_DIMENSIONS);
    assert_eq!(neighbours.nearest(&query, 10), []);
    assert_eq!(neighbours.nearest_donors(&[query], 10), []);
    neighbours.remove(7);
    assert!(neighbours.is_empty());
}

#[test]
fn what_is_not_of_the_shape_is_refused_and_leaves_the_slot_empty() {
    for thresholds in [LARGE, GRAPH] {
        let neighbours = Neighbours::with_thresholds(SMALL, thresholds);
        neighbours.update(3, 1, &[vector(1, 16)]).unwrap();
        let refused = neighbours.update(3, 2, &[vector(1, 17)]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a vector has 17 dimensions, and those of this namespace 16"
        );
        assert!(neighbours.is_empty());
        let refused = neighbours.update(3, 3, &[vector(1, 16), vector(2, 16)]);
        assert!(matches!(
            refused,
            Err(RefusedVector::Segments { found: 2, most: 1 })
        ));
        assert!(neighbours.is_empty());
    }
}

/// Growth goes through many capacities, and the store changes there and back.
#[test]
fn the_store_changes_both_ways_with_hysteresis() {
    let thresholds = Thresholds {
        exact_max: 400,
        graph_min: 200,
    };
    let neighbours = Neighbours::with_thresholds(SMALL, thresholds);
    let kind = || neighbours.now.read().store.kind();
    let fill = |slots: std::ops::Range<u32>| {
        for slot in slots {
            neighbours
                .update(slot, 1, &[vector(u64::from(slot), 16)])
                .unwrap();
        }
    };
    let remove = |slots: std::ops::Range<u32>| slots.for_each(|slot| neighbours.remove(slot));
    fill(0..400);
    assert_eq!(kind(), Kind::Exact);
    fill(400..1_500);
    assert_eq!(kind(), Kind::Graph);
    assert_eq!(neighbours.len(), 1_500);
    remove(0..1_200);
    assert_eq!((kind(), neighbours.len()), (Kind::Graph, 300));
    remove(1_200..1_350);
    remove(0..50);
    assert_eq!((kind(), neighbours.len()), (Kind::Exact, 150));
    fill(0..240);
    assert_eq!((kind(), neighbours.len()), (Kind::Exact, 390));
    let query = vector(1_400, 16);
    assert_eq!(neighbours.nearest(&query, 1)[0].slot, 1_400);
}

/// Places of removed vectors would slow every search.
#[test]
fn a_graph_of_removed_vectors_is_built_anew() {
    let neighbours = Neighbours::with_thresholds(SMALL, GRAPH);
    for slot in 0..1_000 {
        neighbours
            .update(slot, 1, &[vector(u64::from(slot), 16)])
            .unwrap();
    }
    for slot in 0..750 {
        neighbours.remove(slot);
    }
    let unused = match &neighbours.now.read().store {
        Store::Graph(graph) => graph.unused(),
        Store::Exact(_) => unreachable!("the thresholds ask for a graph"),
    };
    assert!(unused < 250, "{unused}");
    assert_eq!(neighbours.len(), 250);
    for slot in 750..1_000 {
        let found = neighbours.nearest(&vector(u64::from(slot), 16), 1);
        assert_eq!(found.first().map(|near| near.slot), Some(slot));
    }
}

/// Searches, replacements and removals at once, with more searches than a graph has places for:
/// nothing fails, and no donor is found that was not there, or with another's score.
#[test]
fn threads_find_only_what_was_there() {
    const SLOTS: u64 = 120;
    const ROUNDS: u64 = 2;
    const SEARCHERS: usize = graph::SEARCHES_MAX + 4;
    for thresholds in [LARGE, GRAPH, DOZEN] {
        let neighbours = Neighbours::with_thresholds(SMALL, thresholds);
        // A slot's sequences rise; up to `begun` may be found, from `ended` on those before not.
        let begun: Vec<AtomicU64> = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        let ended: Vec<AtomicU64> = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        // Some are never removed, so that there is always something to be found.
        for number in SLOTS..SLOTS + 50 {
            let slot = u32::try_from(number).unwrap();
            neighbours
                .update(slot, number, &[vector(number, 16)])
                .unwrap();
        }
        let is_over = AtomicBool::new(false);
        let search = || {
            let mut number = 0;
            while !is_over.load(Ordering::Acquire) {
                number += 1;
                let query = vector(number % 5_000, 16);
                let before: Vec<u64> = ended.iter().map(|e| e.load(Ordering::Acquire)).collect();
                let found = neighbours.nearest(&query, 10);
                assert!(!found.is_empty(), "a search found nothing");
                for near in found {
                    let slot = near.slot as usize;
                    if slot < before.len() {
                        assert!(near.sequence > before[slot], "a removed donor");
                        assert!(near.sequence <= begun[slot].load(Ordering::Acquire));
                    }
                    let cosine = vector(near.sequence, 16).cosine(&query);
                    assert_eq!(near.score.to_bits(), cosine.to_bits());
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..SEARCHERS {
                scope.spawn(search);
            }
            for round in 0..ROUNDS * 2 {
                for slot in 0..SLOTS {
                    let sequence = 1_000 * (round + 1) + slot;
                    let place = usize::try_from(slot).unwrap();
                    let key = u32::try_from(slot).unwrap();
                    begun[place].store(sequence, Ordering::Release);
                    if (slot + round) % 3 == 0 {
                        neighbours.remove(key);
                    } else {
                        neighbours
                            .update(key, sequence, &[vector(sequence, 16)])
                            .unwrap();
                    }
                    ended[place].store(sequence - 1, Ordering::Release);
                }
            }
            is_over.store(true, Ordering::Release);
        });
    }
}

/// Of a vector with noise on it, those that are nearest by a scan.
fn recall(neighbours: &Neighbours, twin: &Twin, dimensions: usize) -> f64 {
    let (mut met, mut asked) = (0, 0);
    for (&slot, (_, vectors)) in twin.iter().step_by(twin.len() / 30) {
        let noise = values(u64::from(slot) + 1_000_000, dimensions);
        let own = vectors[0].bytes().iter().zip(&noise);
        let query: Vec<f32> = own.map(|(&v, n)| f32::from(v) / 25.0 + n / 2.0).collect();
        let query = Vector::new(&query).unwrap();
        let wanted = nearest_of(twin, &query, 10);
        let found = neighbours.nearest(&query, 10);
        asked += 10;
        met += wanted
            .iter()
            .filter(|w| found.iter().any(|f| f.slot == w.slot))
            .count();
    }
    f64::from(u32::try_from(met).unwrap()) / f64::from(asked)
}

#[test]
fn a_graph_finds_most_and_still_after_all_was_replaced() {
    const DIMENSIONS: usize = 32;
    let shape = Shape {
        dimensions: DIMENSIONS,
        segments_max: 1,
    };
    let neighbours = Neighbours::with_thresholds(shape, GRAPH);
    let mut twin = Twin::new();
    for sequence in 0..2 {
        for slot in 0..1_200 {
            let own = vector(u64::from(slot) + sequence * 10_000_000, DIMENSIONS);
            neighbours
                .update(slot, sequence, std::slice::from_ref(&own))
                .unwrap();
            twin.insert(slot, (sequence, vec![own]));
        }
        let share = recall(&neighbours, &twin, DIMENSIONS);
        assert!(share >= 0.97, "{share} after {sequence}");
    }
}

/// Of so many that their signs are looked at first: removals move the last into the gap, and what
/// is found has the scores of its own vectors.
#[test]
fn a_screened_scan_finds_most_and_still_after_all_was_replaced() {
    const DIMENSIONS: usize = 40;
    const SLOTS: u32 = 33_000;
    let mut exact = Exact::default();
    let mut rows = BTreeMap::new();
    for round in 0..2 {
        for slot in 0..SLOTS {
            let key = u64::from(slot * 7 % SLOTS);
            assert_eq!(exact.remove(key), rows.remove(&key).is_some());
            let own = vector(key + round * 10_000_000, DIMENSIONS);
            exact.add(key, &own);
            rows.insert(key, own);
        }
        let (mut met, mut asked) = (0, 0);
        for number in 0..20 {
            let query = vector(number + 500_000, DIMENSIONS);
            let cosines = rows.values().map(|own| own.cosine(&query));
            let mut wanted: Vec<f32> = cosines.collect();
            wanted.sort_unstable_by(|a, b| b.total_cmp(a));
            let found = exact.nearest(&query, 10);
            assert_eq!(found.len(), 10);
            assert!(found.is_sorted_by(|a, b| a.score >= b.score));
            for hit in &found {
                let own = rows[&hit.key].cosine(&query);
                assert_eq!(hit.score.to_bits(), own.to_bits());
            }
            asked += 10;
            met += found.iter().filter(|hit| hit.score >= wanted[9]).count();
        }
        assert!(met * 100 >= asked * 98, "{met} of {asked} in round {round}");
    }
    let full_bytes = exact.memory_bytes();
    assert!(full_bytes < 33_000 * 80, "{full_bytes}");
    for key in 0..u64::from(SLOTS) - 1 {
        assert!(exact.remove(key));
    }
    assert!(exact.memory_bytes() < full_bytes / 10, "room is given back");
    assert!(exact.remove(u64::from(SLOTS) - 1) && !exact.remove(7));
    assert_eq!(exact.memory_bytes(), 0);
}

/// A sample cannot tell what the best reach where all are equal, or where the best lie together.
#[test]
fn a_screen_that_misjudges_still_finds() {
    let equal = vector(1, 16);
    let mut exact = Exact::default();
    for key in 0..40_000 {
        exact.add(key, &equal);
    }
    assert_eq!(exact.nearest(&equal, 10).len(), 10);
    for key in 0..40_000 {
        assert!(exact.remove(key));
        let is_near = (20_000..20_005).contains(&key);
        let other = if is_near { 1 } else { 2 + key % 3 };
        exact.add(key, &vector(other, 16));
    }
    let mut keys: Vec<u64> = exact.nearest(&equal, 5).iter().map(|hit| hit.key).collect();
    keys.sort_unstable();
    assert_eq!(keys, [20_000, 20_001, 20_002, 20_003, 20_004]);
}

/// Everybody has the preamble; only one donor has the body.
#[test]
fn a_shared_segment_does_not_decide() {
    const DIMENSIONS: usize = 64;
    let shape = Shape {
        dimensions: DIMENSIONS,
        segments_max: 4,
    };
    for thresholds in [LARGE, GRAPH] {
        let neighbours = Neighbours::with_thresholds(shape, thresholds);
        let preamble = vector(1, DIMENSIONS);
        for slot in 0..500_u32 {
            let body = vector(100 + u64::from(slot), DIMENSIONS);
            let own = [preamble.clone(), body];
            // The right donor lacks the preamble, and the last it has twice.
            let own = match slot {
                77 => &own[1..],
                _ => &own[..],
            };
            neighbours.update(slot, 9, own).unwrap();
        }
        let target = [preamble.clone(), preamble.clone(), vector(177, DIMENSIONS)];
        let found = neighbours.nearest_donors(&target, 3);
        assert_eq!(found.len(), 3);
        assert_eq!(
            (found[0].slot, found[0].sequence),
            (77, 9),
            "{thresholds:?}"
        );
        assert!(found[0].score > 0.9 && found[1].score < 0.6, "{found:?}");
    }
}
