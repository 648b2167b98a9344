//! Scores made where the products are, against the steps one after the other, at every level.

#[cfg(test)]
mod head_scores {
    use half::f16;
    use kvatlas_kernels::score::{
        Aggregate, Cpu, Elements, GroupScores, Grouping, HeadQuery, Level, Table, group_scores,
        scalar, standardize,
    };
    use proptest::prelude::*;

    fn levels(threads: usize) -> impl Iterator<Item = Cpu> {
        let start = move |level| Cpu::start_at(level, threads).unwrap();
        Level::ALL.into_iter().filter_map(start)
    }

    /// Numbers in (-1, 1) that come again far later than any table is long.
    fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut state = seed;
        let number = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let bits = i16::try_from(state >> 49).unwrap();
            f32::from(bits - 16_384) / 16_384.0
        };
        std::iter::repeat_with(number).take(count).collect()
    }

    /// A table whose parts are all asked about but the first, and the query.
    struct Case {
        cells: Vec<f16>,
        parts: usize,
        query: HeadQuery,
    }

    impl Case {
        fn new((rows, heads): (usize, usize), (width, group): (usize, usize), seed: u64) -> Self {
            let parts = heads + 1;
            let cells = numbers(seed, rows * parts * width);
            Self {
                cells: cells.into_iter().map(f16::from_f32).collect(),
                parts,
                query: HeadQuery {
                    starts: (1..parts).map(|part| part * width).collect(),
                    width,
                    group,
                    values: numbers(!seed, heads * group * width),
                },
            }
        }

        fn table(&self) -> Table<'_> {
            Table::new(Elements::F16(&self.cells), self.parts * self.query.width)
        }

        fn shape(&self) -> (usize, usize) {
            (self.query.starts.len(), self.query.group)
        }
    }

    fn bits(scores: &GroupScores) -> Vec<u32> {
        // One NaN is as good as another.
        let canonical = |score: &f32| if score.is_nan() { f32::NAN } else { *score };
        let all = scores.pooled.iter().chain(&scores.per_head);
        all.map(|score| canonical(score).to_bits()).collect()
    }

    /// The bits of products first and groups then, whatever the level, threads and wishes.
    fn check(case: &Case, aggregate: Aggregate, scales: Option<&[f32]>) {
        let (table, query) = (case.table(), &case.query);
        let asked = scales.map(|scales| {
            let rows = scales.chunks(case.parts);
            rows.flat_map(|row| &row[1..]).copied().collect::<Vec<_>>()
        });
        for threads in [1, 3] {
            for cpu in levels(threads) {
                let mut dots = vec![f32::NAN; table.rows() * query.dots()];
                cpu.head_dots(&table, query, &mut dots);
                for per_head in [false, true] {
                    let expected =
                        group_scores(&dots, case.shape(), aggregate, asked.as_deref(), per_head);
                    let grouping = Grouping {
                        aggregate,
                        row_scales: scales,
                        per_head,
                    };
                    let scores = cpu.head_scores(&table, query, &grouping);
                    assert_eq!(bits(&scores), bits(&expected), "{:?}", cpu.level());
                }
            }
        }
    }

    fn check_near(scores: &[f32], expected: &[f32]) {
        assert_eq!(scores.len(), expected.len());
        for (index, (score, expected)) in scores.iter().zip(expected).enumerate() {
            assert!(
                (score - expected).abs() < 2e-4 * (1.0 + expected.abs()),
                "{index}: {score} {expected}"
            );
        }
    }

    /// The z-scores of the specification, and the same bits whatever the number of threads.
    fn check_standard(means: &Case, magnitudes: &Case) {
        let products = [means, magnitudes].map(|case| (case.table(), &case.query));
        let [left, right] = products.map(|(table, query)| scalar::head_dots(&table, query));
        let sums = left.iter().zip(&right).map(|(left, right)| left + right);
        #[expect(clippy::cast_possible_truncation, reason = "as the kernels do")]
        let mut sums: Vec<f32> = sums.map(|sum| sum as f32).collect();
        standardize(&mut sums, means.query.dots());
        let expected = group_scores(&sums, means.shape(), Aggregate::Max, None, true);
        let products = [
            (&products[0].0, products[0].1),
            (&products[1].0, products[1].1),
        ];
        for (cpu, alone) in levels(3).zip(levels(1)) {
            // What was there before is of no use.
            let mut kept = vec![f32::NAN; 7];
            let scores = cpu.standard_head_scores(products, true, &mut kept);
            check_near(&scores.pooled, &expected.pooled);
            check_near(&scores.per_head, &expected.per_head);
            let again = alone.standard_head_scores(products, true, &mut kept);
            assert_eq!(bits(&again), bits(&scores), "{:?}", cpu.level());
            let pooled = alone.standard_head_scores(products, false, &mut kept);
            assert!(pooled.per_head.is_empty());
            assert_eq!(pooled.pooled, scores.pooled);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn groups_are_taken_together(
            rows in 0_usize..40,
            heads in 1_usize..4,
            width in prop_oneof![1_usize..40, Just(64_usize), Just(128)],
            group in 1_usize..10,
            seed in any::<u64>(),
            max in any::<bool>(),
            scaled in any::<bool>(),
        ) {
            let case = Case::new((rows, heads), (width, group), seed);
            let aggregate = if max { Aggregate::Max } else { Aggregate::Mean };
            let scales = scaled.then(|| numbers(seed ^ 1, rows * case.parts));
            check(&case, aggregate, scales.as_deref());
        }

        #[test]
        fn products_become_z_scores(
            rows in 0_usize..40,
            heads in 1_usize..4,
            bands in 1_usize..40,
            group in 1_usize..10,
            seed in any::<u64>(),
        ) {
            let means = Case::new((rows, heads), (2 * bands, group), seed);
            check_standard(&means, &Case::new((rows, heads), (bands, group), seed ^ 1));
        }
    }

    /// Rows that make many tasks, the last one neither a whole task nor whole panels.
    #[test]
    fn large_tables_are_shared_out() {
        let case = Case::new((203, 70), (128, 3), 5);
        check(&case, Aggregate::Max, Some(&numbers(6, 203 * case.parts)));
        check_standard(&case, &Case::new((203, 70), (64, 3), 7));
    }

    /// Products that overflow make a NaN, which the greatest does not hide.
    #[test]
    fn a_nan_stays() {
        let mut case = Case::new((9, 2), (3, 3), 8);
        case.cells.fill(f16::from_f32(2.0));
        for at in [0, 4, 5] {
            case.query.values[3 * at..][..3].copy_from_slice(&[f32::MAX, -f32::MAX, -f32::MAX]);
        }
        check(&case, Aggregate::Max, None);
        check(&case, Aggregate::Mean, None);
    }

    /// The mean is large beside the deviation; then the first row is far from all others, as that
    /// of an attention sink is.
    #[test]
    fn a_large_mean_costs_no_precision() {
        let mut means = Case::new((203, 1), (2, 1), 9);
        let mut magnitudes = Case::new((203, 1), (1, 1), 10);
        magnitudes.query.values.fill(0.0);
        // Products of 16,384,000 or one more: exact, at any level.
        means.query.values = vec![16_384.0, 1.0];
        for row in means.cells.chunks_mut(4) {
            row[2] = f16::from_f32(1000.0);
            row[3] = f16::from_f32(f32::from(u8::from(row[3] > f16::ZERO)));
        }
        check_standard(&means, &magnitudes);
        means.cells[2] = f16::from_f32(-1000.0);
        check_standard(&means, &magnitudes);
    }

    #[test]
    #[should_panic(expected = "a scale for each part")]
    fn scales_of_another_table_are_a_bug_of_the_caller() {
        let case = Case::new((3, 2), (4, 1), 11);
        check(&case, Aggregate::Max, Some(&[1.0; 6]));
    }
}
