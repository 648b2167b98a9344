//! The kernels' source on the processor, in several orders of threads, and whether a barrier too
//! few or too many is seen.

use std::fs;
use std::ops::Range;

use kvatlas_kernels::cuda::{BEST_MAX, BEST_TILE, Cuda, Device};
use kvatlas_kernels::score::Aggregate;
use proptest::prelude::*;
use proptest::{collection, test_runner::TestCaseError};

use crate::cases::{Heads, Outcome, Rows, check_best, check_calibrated, check_heads, check_rows};
use crate::shim::{self, Sabotage, Shim};

/// Ascending, descending, shuffled.
const SCHEDULES: [u64; 4] = [0, 1, 2, 3];

/// Runs a case in every schedule, each on a device of its own, whose buffers are then as small as
/// the case lets them be.
fn check(case: impl Fn(&mut Cuda<Shim>) -> Outcome) {
    for seed in SCHEDULES {
        if let Err(error) = case(&mut shim::open(seed, None)) {
            panic!("schedule {seed}: {error}");
        }
    }
}

#[test]
fn row_products_agree_in_awkward_shapes() {
    let whole = |width| vec![vec![0..width]];
    let cases = [
        (1, 8, whole(8)),
        (1, 1, whole(1)),
        (
            31,
            100,
            vec![
                vec![3..9, 11..71, 73..100],
                vec![0..100],
                vec![3..9, 11..71, 73..100],
            ],
        ),
        (33, 16, vec![vec![9..10], vec![0..1], vec![15..16]]),
        (67, 2304, vec![vec![128..256, 2000..2304]]),
        (40, 2056, vec![vec![0..2056]; 5]),
        (5, 4104, whole(4104)),
    ];
    for (rows, width, queries) in &cases {
        let queries: Vec<_> = queries.iter().map(Vec::as_slice).collect();
        check(|cuda| {
            check_rows(
                cuda,
                1,
                Rows {
                    rows: *rows,
                    width: *width,
                    queries: &queries,
                },
            )
        });
    }
}

#[test]
fn a_score_has_the_same_bits_in_any_company() {
    use half::f16;
    use kvatlas_kernels::cuda::Plane;
    use kvatlas_kernels::score::{Elements, RowQuery, Table};

    let elements: Vec<f16> = (0..40_u16 * 100)
        .map(|at| f16::from_bits(0x3000 + at))
        .collect();
    let table = Table::new(Elements::F16(&elements), 100);
    let query = |scale: f32| {
        let values = (0..80_u8).map(|at| (f32::from(at) - 37.3) * scale);
        let span = 5..85;
        RowQuery::new(vec![span], values.collect())
    };
    let queries = [
        query(0.37),
        query(1.1),
        query(-0.9),
        query(7.7),
        query(0.013),
    ];
    let mut cuda = shim::open(0, None);
    let there = cuda.upload(&table).unwrap();
    let company: Vec<&RowQuery> = queries.iter().collect();
    let mut together = cuda.row_dots(&there, &company).unwrap();
    let together: Vec<Vec<f32>> = (0..5)
        .map(|query| together.plane(Plane::Pooled { query }).unwrap())
        .collect();
    for (query, together) in queries.iter().zip(&together) {
        let alone = cuda
            .row_dots(&there, &[query])
            .unwrap()
            .plane(Plane::Pooled { query: 0 });
        let bits = |scores: &[f32]| {
            scores
                .iter()
                .map(|score| score.to_bits())
                .collect::<Vec<_>>()
        };
        assert_eq!(bits(&alone.unwrap()), bits(together));
    }
}

#[test]
fn head_products_agree_in_awkward_shapes() {
    let case = |rows, (width, parts), asked, group, queries| Heads {
        rows,
        width,
        parts,
        asked,
        group,
        queries,
    };
    let cases = [
        // Llama's heads, a subset of the layers.
        case(521, (128, 6), &[0_usize, 1, 4][..], 3, 1),
        case(70, (64, 4), &[0, 1, 2, 3], 4, 2),
        // Quest's extremes: twice the width.
        case(33, (256, 2), &[1], 8, 1),
        case(9, (20, 3), &[0, 1, 2], 5, 1),
        // Groups of two tiles, parts of two strips, over more than one batch of rows.
        case(140, (40, 2), &[0, 1], 9, 3),
        case(150, (300, 1), &[0], 2, 1),
        case(1, (7, 1), &[0], 1, 1),
    ];
    for (index, heads) in cases.into_iter().enumerate() {
        let aggregate = [Aggregate::Max, Aggregate::Mean];
        for how in [
            (aggregate[0], index % 2 == 0),
            (aggregate[1], index % 2 == 1),
        ] {
            check(|cuda| check_heads(cuda, 2, heads, how));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn products_agree_in_any_shape(
        seed in any::<u64>(),
        (rows, queries, group) in (1..160_usize, 1..6_usize, 1..11_usize),
        (width, parts) in (1..140_usize, 1..4_usize),
        cuts in collection::btree_set(0..420_usize, 2..8),
    ) {
        let mut cuda = shim::open(seed % 16, None);
        // Every other stretch between the cuts; one span at least.
        let cuts: Vec<usize> = cuts.into_iter().collect();
        let spans: Vec<Range<usize>> = cuts.chunks_exact(2).map(|ends| ends[0]..ends[1]).collect();
        let spans = vec![&spans[..]; queries];
        let shape = Rows { rows, width: 420, queries: &spans };
        check_rows(&mut cuda, seed, shape).map_err(TestCaseError::fail)?;

        let asked: Vec<usize> = (0..parts).filter(|part| parts == 1 || part % 2 == 1).collect();
        let heads = Heads { rows, width, parts, asked: &asked, group, queries };
        for how in [(Aggregate::Max, seed % 2 == 0), (Aggregate::Mean, seed % 2 == 1)] {
            check_heads(&mut cuda, seed, heads, how).map_err(TestCaseError::fail)?;
        }
    }
}

#[test]
fn calibrated_scores_agree_in_awkward_shapes() {
    let case = |rows, (width, parts), asked, group, queries| Heads {
        rows,
        width,
        parts,
        asked,
        group,
        queries,
    };
    check(|cuda| check_calibrated(cuda, 3, case(300, (128, 4), &[0, 2, 3], 3, 2)));
    check(|cuda| check_calibrated(cuda, 4, case(5, (36, 1), &[0], 9, 1)));
}

#[test]
fn selections_agree_with_ties_infinities_and_nan() {
    let wanted = [
        (0..1000, 16),
        (1..998, 13),
        (0..1000, 1000),
        (0..1000, 2000),
        (500..501, 3),
        (7..7, 3),
        (0..1000, 0),
        (0..1000, 1),
        (0..7, 6),
    ];
    check(|cuda| check_best(cuda, 5, 1000, &wanted));
}

#[test]
fn selections_agree_over_several_rounds() {
    let rows = 5 * BEST_TILE - 3;
    let wanted = [
        (0..rows, 16),
        (BEST_TILE + 5..rows, 1024),
        (3..rows, BEST_MAX),
    ];
    let outcome = check_best(&mut shim::open(2, None), 6, rows, &wanted);
    outcome.unwrap();
}

#[test]
fn a_selection_too_large_for_the_device_is_made_here() {
    let rows = BEST_MAX + 100;
    let outcome = check_best(
        &mut shim::open(0, None),
        7,
        rows,
        &[(0..rows, rows - 1), (0..9, 4)],
    );
    outcome.unwrap();
}

/// Small cases that between them pass every barrier.
fn every_barrier<D: Device>(cuda: &mut Cuda<D>) -> Outcome {
    let whole = [0..300, 300..600];
    let heads = Heads {
        rows: 300,
        width: 16,
        parts: 1,
        asked: &[0],
        group: 2,
        queries: 1,
    };
    check_rows(
        cuda,
        8,
        Rows {
            rows: 64,
            width: 600,
            queries: &[&whole],
        },
    )?;
    check_calibrated(cuda, 9, heads)?;
    check_best(cuda, 10, 3000, &[(0..3000, 100)])
}

#[test]
fn each_barrier_is_missed_when_it_is_missing() {
    for seed in SCHEDULES {
        every_barrier(&mut shim::open(seed, None)).unwrap();
    }
    for line in barriers() {
        let missed = SCHEDULES.iter().any(|&seed| {
            let broken = Some(Sabotage::Omit { line });
            every_barrier(&mut shim::open(seed, broken)).is_err()
        });
        assert!(missed, "nobody missed the barrier in line {line}");
    }
}

#[test]
fn a_divergent_barrier_is_reported() {
    for line in barriers() {
        let outcome = every_barrier(&mut shim::open(0, Some(Sabotage::Stray { line })));
        let error = outcome.expect_err("half of the last warp strayed");
        assert!(error.contains("divergent"), "line {line}: {error}");
    }
}

/// Lines of the source with a barrier.
fn barriers() -> Vec<usize> {
    let text = fs::read_to_string(shim::source()).unwrap();
    let lines = text.lines().zip(1..);
    let barriers: Vec<usize> = lines
        .filter(|(line, _)| line.trim() == "__syncthreads();")
        .map(|(_, number)| number)
        .collect();
    assert_eq!(barriers.len(), text.matches("__syncthreads").count());
    barriers
}
