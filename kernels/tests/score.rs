//! Every level that this machine has, against the specification and against golden scores.

#[cfg(test)]
mod score {
    use std::collections::HashMap;
    use std::ops::Range;

    use half::f16;
    use kvatlas_kernels::score::{
        Aggregate, Cpu, Elements, HeadQuery, Level, ROW_DOT_UNDERFLOW, RowQuery, Table,
        group_scores, row_dot_error, scalar,
    };
    use proptest::prelude::*;

    fn levels(threads: usize) -> Vec<Cpu> {
        let start = |level| Cpu::start_at(level, threads).unwrap();
        Level::ALL.into_iter().filter_map(start).collect()
    }

    fn bits(scores: &[f32]) -> Vec<u32> {
        scores.iter().map(|score| score.to_bits()).collect()
    }

    /// How far a product of these factors may be off.
    fn slack(factors: impl Iterator<Item = (f32, f32)>) -> f64 {
        let (mut width, mut left_square, mut right_square) = (0_u32, 0.0, 0.0);
        for (left, right) in factors {
            width += 1;
            left_square += f64::from(left).powi(2);
            right_square += f64::from(right).powi(2);
        }
        let norms = f64::sqrt(left_square) * f64::sqrt(right_square);
        row_dot_error(width as usize) * norms + f64::from(width) * ROW_DOT_UNDERFLOW
    }

    /// Products are as near to the exact ones as is promised, and a row's bits do not depend on
    /// threads, on other queries, or on where in the table the row is.
    fn check_rows(table: &Table<'_>, queries: &[&RowQuery]) {
        let rows = table.rows();
        for (cpu, alone) in levels(3).iter().zip(levels(1)) {
            let mut scores = vec![f32::NAN; queries.len() * rows];
            cpu.row_dots(table, queries, &mut scores);
            for (query, scores) in queries.iter().zip(scores.chunks(rows)) {
                let exact = scalar::row_dots(table, query);
                for (row, (&score, exact)) in scores.iter().zip(exact).enumerate() {
                    let cells = query.parts().flat_map(|(span, values)| span.zip(values));
                    let factors = cells.map(|(column, &value)| (table.get(row, column), value));
                    let error = (f64::from(score) - exact).abs();
                    let level = cpu.level();
                    assert!(error <= slack(factors), "{level:?} {row}: {score} {exact}");
                    assert_eq!(cpu.row_dot(table, row, query).to_bits(), score.to_bits());
                }
                let mut again = vec![f32::NAN; rows];
                alone.row_dots(table, &[query], &mut again);
                assert_eq!(bits(&again), bits(scores), "{:?}", cpu.level());
            }
        }
    }

    fn check_heads(table: &Table<'_>, query: &HeadQuery) {
        let exact = scalar::head_dots(table, query);
        for (cpu, alone) in levels(3).iter().zip(levels(1)) {
            let mut dots = vec![f32::NAN; exact.len()];
            cpu.head_dots(table, query, &mut dots);
            for (index, (&dot, &exact)) in dots.iter().zip(&exact).enumerate() {
                let (row, head) = (index / query.dots(), index % query.dots());
                let start = query.starts[head / query.group];
                let values = query.values[head * query.width..][..query.width].iter();
                let factors = (start..).zip(values);
                let factors = factors.map(|(column, &value)| (table.get(row, column), value));
                let error = (f64::from(dot) - exact).abs();
                assert!(
                    error <= slack(factors),
                    "{:?} {index}: {dot} {exact}",
                    cpu.level()
                );
            }
            let mut again = vec![f32::NAN; dots.len()];
            for (row, again) in again.chunks_mut(query.dots()).enumerate() {
                alone.head_dots(&one_row(table, row), query, again);
            }
            assert_eq!(bits(&again), bits(&dots), "{:?}", cpu.level());
        }
    }

    fn one_row<'a>(table: &Table<'a>, row: usize) -> Table<'a> {
        let cells = row * table.width..(row + 1) * table.width;
        let elements = match table.elements {
            Elements::F16(elements) => Elements::F16(&elements[cells]),
            Elements::F32(elements) => Elements::F32(&elements[cells]),
        };
        Table::new(elements, table.width)
    }

    /// SplitMix64.
    struct Random(u64);

    impl Random {
        fn bits(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }

        fn below(&mut self, bound: usize) -> usize {
            usize::try_from(self.bits() % bound as u64).unwrap()
        }

        /// Any finite one: subnormal, zero of either sign, up to 65,504.
        fn f16(&mut self) -> f16 {
            let bits = u16::try_from(self.bits() >> 48).unwrap();
            let number = f16::from_bits(bits);
            if number.is_finite() {
                number
            } else {
                f16::from_bits(bits & 0x83ff)
            }
        }

        /// Mostly near one, sometimes very small or as large as sums of products allow.
        fn f32(&mut self) -> f32 {
            let number = f32::from(self.f16()) / 1024.0;
            match self.below(16) {
                0 => number * 1e-42,
                1 => number * 1e29,
                2 => -0.0,
                _ => number,
            }
        }

        /// So small that even the largest products stay finite.
        fn cell(&mut self) -> f32 {
            let number = f32::from(self.f16());
            if self.below(16) == 0 {
                number * 1e-42
            } else {
                number
            }
        }

        fn many<T>(&mut self, count: usize, one: fn(&mut Self) -> T) -> Vec<T> {
            (0..count).map(|_| one(self)).collect()
        }

        /// Ascending, disjoint, within the width.
        fn spans(&mut self, width: usize) -> Vec<Range<usize>> {
            let mut spans = Vec::new();
            let mut end = 0;
            while end < width {
                let start = end + self.below(width - end);
                end = start + 1 + self.below(width - start);
                spans.push(start..end);
                end += self.below(40);
            }
            spans
        }

        fn row_query(&mut self, width: usize) -> RowQuery {
            let spans = self.spans(width);
            let columns = spans.iter().map(ExactSizeIterator::len).sum();
            RowQuery::new(spans, self.many(columns, Self::f32))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn row_dots_keep_their_promises(
            rows in 1_usize..30,
            width in prop_oneof![1_usize..70, 1000_usize..2100],
            queries in 1_usize..4,
            seed in any::<u64>(),
        ) {
            let mut random = Random(seed);
            let queries = random_queries(&mut random, queries, width);
            let queries: Vec<_> = queries.iter().collect();
            // One more, so that the table does not start where an allocation does.
            let cells = random.many(rows * width + 1, Random::f16);
            check_rows(&Table::new(Elements::F16(&cells[1..]), width), &queries);
            let cells = random.many(rows * width + 1, Random::cell);
            check_rows(&Table::new(Elements::F32(&cells[1..]), width), &queries);
        }

        #[test]
        fn head_dots_keep_their_promises(
            rows in 1_usize..12,
            width in prop_oneof![1_usize..40, Just(64_usize), Just(128), Just(256)],
            parts in 1_usize..4,
            group in 1_usize..10,
            seed in any::<u64>(),
        ) {
            let mut random = Random(seed);
            let starts: Vec<usize> = (0..parts).map(|part| part * (width + 3) + 1).collect();
            let row_width = parts * (width + 3) + 1;
            let values = random.many(parts * group * width, Random::f32);
            let query = HeadQuery { starts, width, group, values };
            let cells = random.many(rows * row_width + 1, Random::f16);
            check_heads(&Table::new(Elements::F16(&cells[1..]), row_width), &query);
            let cells = random.many(rows * row_width + 1, Random::cell);
            check_heads(&Table::new(Elements::F32(&cells[1..]), row_width), &query);
        }

        #[test]
        fn a_plain_read_sees_every_byte(len in 0_usize..1000, seed in any::<u64>()) {
            let mut random = Random(seed);
            let bytes = random.many(len, |random| random.bits().to_le_bytes()[0]);
            let words = bytes.chunks(8).map(|bytes| {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                u64::from_ne_bytes(word)
            });
            let expected = words.fold(0, |all, word| all ^ word);
            for cpu in levels(2) {
                prop_assert_eq!(cpu.plain_read(&bytes), expected, "{:?}", cpu.level());
            }
        }
    }

    fn one_span(span: Range<usize>, values: Vec<f32>) -> RowQuery {
        RowQuery::new(vec![span], values)
    }

    fn random_queries(random: &mut Random, count: usize, width: usize) -> Vec<RowQuery> {
        (0..count).map(|_| random.row_query(width)).collect()
    }

    /// Several tasks, several panels of rows, and rows left over.
    #[test]
    fn large_tables_are_shared_out() {
        let mut random = Random(11);
        let (rows, width) = (203, 9000);
        let cells = random.many(rows * width, Random::f16);
        let table = Table::new(Elements::F16(&cells), width);
        let query = one_span(5..8990, random.many(8985, Random::f32));
        let mut expected = vec![0.0; rows];
        for cpu in levels(1) {
            cpu.row_dots(&table, &[&query], &mut expected);
            let threads = Cpu::start_at(cpu.level(), 4).unwrap().unwrap();
            let mut scores = vec![0.0; 2 * rows];
            threads.row_dots(&table, &[&query, &query], &mut scores);
            assert_eq!(bits(&scores), bits(&expected.repeat(2)));
            for row in [0, 3, 100, 201, 202] {
                assert_eq!(
                    cpu.row_dot(&table, row, &query).to_bits(),
                    expected[row].to_bits()
                );
            }
        }
    }

    /// At the width of the largest model, and all of one sign, so that errors could add up.
    #[test]
    fn wide_rows_stay_exact() {
        let mut random = Random(3);
        let width = 81_920;
        let near_one = |random: &mut Random| 1.0 + f32::from(random.f16()) / 131_072.0;
        let values = random.many(width, near_one);
        let cells = random.many(width, near_one);
        let narrow: Vec<f16> = cells.iter().copied().map(f16::from_f32).collect();
        let query = one_span(0..width, values);
        for elements in [Elements::F16(&narrow), Elements::F32(&cells)] {
            let table = Table::new(elements, width);
            let exact = scalar::row_dots(&table, &query)[0];
            for cpu in levels(1) {
                let error = (f64::from(cpu.row_dot(&table, 0, &query)) / exact - 1.0).abs();
                assert!(error < 1e-6, "{:?}: {error}", cpu.level());
            }
        }
        assert!(row_dot_error(width) < 1e-5);
    }

    #[test]
    fn every_f16_is_converted() {
        let cells: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let cells: Vec<f16> = cells.into_iter().filter(|cell| cell.is_finite()).collect();
        let expected: Vec<f32> = cells.iter().map(|cell| cell.to_f32() + 0.0).collect();
        let one = one_span(0..1, vec![1.0]);
        for cpu in levels(2) {
            let mut scores = vec![f32::NAN; cells.len()];
            cpu.row_dots(&Table::new(Elements::F16(&cells), 1), &[&one], &mut scores);
            assert_eq!(bits(&scores), bits(&expected), "{:?}", cpu.level());
        }
    }

    #[test]
    fn nothing_asked_nothing_done() {
        let empty = Table::new(Elements::F16(&[]), 4);
        let query = one_span(0..4, vec![1.0; 4]);
        for cpu in levels(2) {
            cpu.row_dots(&empty, &[&query], &mut []);
            cpu.row_dots(&Table::new(Elements::F32(&[1.0; 8]), 4), &[], &mut []);
            let heads = HeadQuery {
                starts: vec![0],
                width: 4,
                group: 1,
                values: vec![1.0; 4],
            };
            cpu.head_dots(&empty, &heads, &mut []);
        }
    }

    #[test]
    fn the_best_level_is_taken() {
        let best = levels(1).iter().map(Cpu::level).max();
        assert_eq!(
            Cpu::start(2).ok().map(|cpu| (cpu.level(), cpu.threads())),
            best.zip(Some(2))
        );
        #[cfg(target_arch = "x86_64")]
        assert!(Cpu::start_at(Level::Neon, 1).unwrap().is_none());
    }

    fn check_panic(query: &RowQuery, rows: usize) {
        let table = Table::new(Elements::F32(&[1.0; 24]), 8);
        Cpu::start(1)
            .unwrap()
            .row_dots(&table, &[query], &mut vec![0.0; rows]);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn columns_that_are_not_there_are_a_bug_of_the_caller() {
        check_panic(&one_span(3..9, vec![1.0; 6]), 3);
    }

    #[test]
    #[should_panic(expected = "a score each")]
    fn too_few_scores_are_a_bug_of_the_caller() {
        check_panic(&one_span(3..8, vec![1.0; 5]), 2);
    }

    const LAYER_HEADS: usize = 4;
    const GROUP: usize = 3;
    const DIM: usize = 18;
    const BLOCKS: usize = 5;

    fn golden() -> HashMap<&'static str, Vec<f32>> {
        let lines = include_str!("data/score.txt").lines();
        let entry = |line: &'static str| {
            let (name, numbers) = line.split_once(' ').unwrap();
            (
                name,
                numbers
                    .split(' ')
                    .map(|number| number.parse().unwrap())
                    .collect(),
            )
        };
        lines.map(entry).collect()
    }

    fn check_near(scores: &[f32], expected: &[f32], name: &str) {
        assert_eq!(scores.len(), expected.len());
        for (score, expected) in scores.iter().zip(expected) {
            assert!(
                (score - expected).abs() < 1e-5,
                "{name}: {score} {expected}"
            );
        }
    }

    #[test]
    fn scores_are_those_of_the_formulas() {
        let golden = golden();
        let stored = |name| golden[name].iter().copied().map(f16::from_f32).collect();
        let (means, extremes): (Vec<f16>, Vec<f16>) = (stored("means"), stored("extremes"));
        let means = Table::new(Elements::F16(&means), LAYER_HEADS * DIM);
        let extremes = Table::new(Elements::F16(&extremes), LAYER_HEADS * 2 * DIM);
        let norm = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        let vectors = golden["query"].chunks(DIM);
        let scaled = |scale: &dyn Fn(&[f32]) -> f32| {
            let each = |vector: &[f32]| {
                let scale = scale(vector);
                vector
                    .iter()
                    .map(|value| value * scale)
                    .collect::<Vec<f32>>()
            };
            vectors.clone().flat_map(each).collect::<Vec<f32>>()
        };
        // Quest: the smallest keys count where the query is negative, else the largest.
        let signs = vectors.clone().flat_map(|vector| {
            let negative = vector.iter().map(|value| value.min(0.0));
            negative.chain(vector.iter().map(|value| value.max(0.0)))
        });
        let root = f32::sqrt(18.0);
        let row_norm = |row: usize, part: usize| {
            norm(&Vec::from_iter(
                (0..DIM).map(|at| means.get(row, part * DIM + at)),
            ))
        };
        let scales = (0..BLOCKS).flat_map(|row| (0..LAYER_HEADS).map(move |part| (row, part)));
        let scales: Vec<f32> = scales
            .map(|(row, part)| 1.0 / row_norm(row, part))
            .collect();
        let cases = [
            ("dot", &means, scaled(&|_| 1.0 / root), None),
            (
                "cosine",
                &means,
                scaled(&|vector| 1.0 / norm(vector)),
                Some(&scales[..]),
            ),
            ("quest", &extremes, signs.collect(), None),
        ];
        for (name, table, values, scales) in cases {
            let width = table.width / LAYER_HEADS;
            let starts = (0..LAYER_HEADS).map(|part| part * width).collect();
            let query = HeadQuery {
                starts,
                width,
                group: GROUP,
                values,
            };
            for cpu in levels(2) {
                let mut dots = vec![0.0; BLOCKS * query.dots()];
                cpu.head_dots(table, &query, &mut dots);
                for (suffix, aggregate) in [("mean", Aggregate::Mean), ("max", Aggregate::Max)] {
                    let name = format!("{name}_{suffix}");
                    let shape = (LAYER_HEADS, GROUP);
                    let scores = group_scores(&dots, shape, aggregate, scales, true);
                    check_near(&scores.per_head, &golden[&*name], &name);
                }
            }
        }
    }

    #[test]
    fn one_pass_is_the_mean_of_all_heads() {
        let golden = golden();
        let means: Vec<f16> = golden["means"].iter().copied().map(f16::from_f32).collect();
        let table = Table::new(Elements::F16(&means), LAYER_HEADS * DIM);
        let group_mean = |vectors: &[f32]| {
            let value = |at| vectors.iter().skip(at).step_by(DIM).sum::<f32>() / 3.0;
            Vec::from_iter((0..DIM).map(value))
        };
        let values = golden["query"].chunks(GROUP * DIM).flat_map(group_mean);
        let values = values.map(|value| value / f32::sqrt(18.0) / 4.0).collect();
        let query = one_span(0..LAYER_HEADS * DIM, values);
        for cpu in levels(2) {
            let mut scores = vec![0.0; BLOCKS];
            cpu.row_dots(&table, &[&query], &mut scores);
            check_near(&scores, &golden["uniform"], "uniform");
        }
    }
}
