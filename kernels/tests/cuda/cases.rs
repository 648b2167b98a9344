//! Random tables and queries, scored on a device and by the specification.

use std::ops::Range;

use half::f16;
use kvatlas_kernels::cuda::{Cuda, CudaError, Device, Plane, Selection};
use kvatlas_kernels::score::{
    Aggregate, Elements, GroupScores, HeadQuery, RowQuery, Table, best_scalar, group_scores,
    scalar, standardize,
};

/// `Err` says what does not agree.
pub(crate) type Outcome = Result<(), String>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    pub rows: usize,
    pub width: usize,
    /// The spans of each query.
    pub queries: &'a [&'a [Range<usize>]],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads<'a> {
    pub rows: usize,
    /// Columns of a part, and parts of a row.
    pub width: usize,
    pub parts: usize,
    /// The parts that are asked about.
    pub asked: &'a [usize],
    pub group: usize,
    pub queries: usize,
}

pub(crate) fn check_rows<D: Device>(cuda: &mut Cuda<D>, seed: u64, case: Rows<'_>) -> Outcome {
    let mut random = Random(seed);
    let elements = random.elements(case.rows * case.width);
    let table = Table::new(Elements::F16(&elements), case.width);
    let queries: Vec<RowQuery> = case
        .queries
        .iter()
        .map(|spans| {
            let columns = spans.iter().map(ExactSizeIterator::len).sum();
            RowQuery::new(spans.to_vec(), random.values(columns))
        })
        .collect();

    let there = cuda.upload(&table).map_err(text)?;
    let borrowed: Vec<&RowQuery> = queries.iter().collect();
    let mut scores = cuda.row_dots(&there, &borrowed).map_err(text)?;
    for (index, query) in queries.iter().enumerate() {
        let exact = scalar::row_dots(&table, query);
        let magnitude = scalar::row_dots(
            &absolute_table(&absolute(&elements), case.width),
            &RowQuery {
                values: query.values.iter().map(|value| value.abs()).collect(),
                ..query.clone()
            },
        );
        let got = scores.plane(Plane::Pooled { query: index }).map_err(text)?;
        for (row, (got, exact)) in got.iter().zip(&exact).enumerate() {
            check_close(*got, *exact, magnitude[row])
                .map_err(|error| format!("query {index}, row {row}: {error}"))?;
        }
    }
    Ok(())
}

pub(crate) fn check_heads<D: Device>(
    cuda: &mut Cuda<D>,
    seed: u64,
    case: Heads<'_>,
    (aggregate, scaled): (Aggregate, bool),
) -> Outcome {
    let mut random = Random(seed);
    let row_width = case.width * case.parts;
    let elements = random.elements(case.rows * row_width);
    let table = Table::new(Elements::F16(&elements), row_width);
    let queries: Vec<HeadQuery> = (0..case.queries).map(|_| random.heads(case)).collect();
    let scales: Vec<f32> = (0..case.rows * case.parts)
        .map(|_| 0.5 + random.uniform())
        .collect();

    let there = cuda.upload(&table).map_err(text)?;
    let scales_there = cuda.upload_scales(&scales, case.parts).map_err(text)?;
    let asked_scales: Vec<f32> = (0..case.rows)
        .flat_map(|row| case.asked.iter().map(move |part| (row, part)))
        .map(|(row, part)| scales[row * case.parts + part])
        .collect();
    let borrowed: Vec<&HeadQuery> = queries.iter().collect();
    let mut scores = cuda
        .head_scores(
            &there,
            &borrowed,
            aggregate,
            scaled.then_some(&scales_there),
        )
        .map_err(text)?;
    for (index, query) in queries.iter().enumerate() {
        let dots: Vec<f32> = narrow(&scalar::head_dots(&table, query));
        let shape = (case.asked.len(), case.group);
        let scales = scaled.then_some(&asked_scales[..]);
        let expected = group_scores(&dots, shape, aggregate, scales, true);
        compare(&mut scores, index, &expected, &case)?;
    }
    Ok(())
}

pub(crate) fn check_calibrated<D: Device>(
    cuda: &mut Cuda<D>,
    seed: u64,
    case: Heads<'_>,
) -> Outcome {
    let mut random = Random(seed);
    let bands = Heads {
        width: case.width / 2,
        ..case
    };
    let mut sides = [case, bands].map(|side| {
        let row_width = side.width * side.parts;
        let elements = random.elements(side.rows * row_width);
        let queries: Vec<HeadQuery> = (0..side.queries).map(|_| random.heads(side)).collect();
        (elements, row_width, queries)
    });
    // Magnitudes are positive.
    sides[1].0 = absolute(&sides[1].0);
    let [means, magnitudes] = &sides;
    let tables = [means, magnitudes].map(|side| Table::new(Elements::F16(&side.0), side.1));
    let there = [
        cuda.upload(&tables[0]).map_err(text)?,
        cuda.upload(&tables[1]).map_err(text)?,
    ];
    let borrowed = [means, magnitudes].map(|side| side.2.iter().collect::<Vec<_>>());
    let mut scores = cuda
        .calibrated_scores((&there[0], &borrowed[0]), (&there[1], &borrowed[1]))
        .map_err(text)?;
    for index in 0..case.queries {
        let dots = scalar::head_dots(&tables[0], &means.2[index]);
        let more = scalar::head_dots(&tables[1], &magnitudes.2[index]);
        let sums: Vec<f64> = dots
            .iter()
            .zip(&more)
            .map(|(dot, more)| dot + more)
            .collect();
        let mut sums = narrow(&sums);
        let shape = (case.asked.len(), case.group);
        standardize(&mut sums, shape.0 * shape.1);
        let expected = group_scores(&sums, shape, Aggregate::Max, None, true);
        compare(&mut scores, index, &expected, &case)?;
    }
    Ok(())
}

/// Selections of all kinds over scores with ties, infinities and NaN.
pub(crate) fn check_best<D: Device>(
    cuda: &mut Cuda<D>,
    seed: u64,
    rows: usize,
    wanted: &[(Range<usize>, usize)],
) -> Outcome {
    let mut random = Random(seed);
    // The first query's scores are whole numbers of few values; the second's overflow, to an
    // infinity or, as its columns are different lanes', to two and so to NaN. The third's are
    // nearly all different.
    const WIDTH: usize = 9;
    let elements: Vec<f16> = (0..rows)
        .flat_map(|row| {
            let few = (random.uniform() * 9.0).floor() - 4.0;
            let (high, low) = match row % 7 {
                0 => (60_000.0, 0.0),
                1 => (0.0, -60_000.0),
                2 => (60_000.0, -60_000.0),
                _ => (random.uniform(), 0.0),
            };
            let (fine, finer) = (random.uniform() - 0.5, random.uniform());
            let columns: [f32; WIDTH] = [few, high, fine, finer, 0.0, 0.0, 0.0, 0.0, low];
            columns.map(f16::from_f32)
        })
        .collect();
    let table = Table::new(Elements::F16(&elements), WIDTH);
    let (few, fine) = (0..1, 2..4);
    let queries = [
        RowQuery::new(vec![few], vec![1.0]),
        RowQuery::new(vec![1..2, 8..9], vec![f32::MAX; 2]),
        RowQuery::new(vec![fine], vec![1.0, 1e-3]),
    ];
    let there = cuda.upload(&table).map_err(text)?;
    let borrowed: Vec<&RowQuery> = queries.iter().collect();
    let mut scores = cuda.row_dots(&there, &borrowed).map_err(text)?;
    let selections: Vec<Selection> = wanted
        .iter()
        .flat_map(|(among, k)| {
            (0..queries.len()).map(|query| Selection {
                plane: Plane::Pooled { query },
                among: among.clone(),
                k: *k,
            })
        })
        .collect();
    let overflown = scores.plane(Plane::Pooled { query: 1 }).map_err(text)?;
    let kinds: [fn(f32) -> bool; 4] = [
        f32::is_nan,
        f32::is_finite,
        |score| score == f32::INFINITY,
        |score| score == f32::NEG_INFINITY,
    ];
    for kind in kinds {
        assert!(overflown.iter().any(|&score| kind(score)), "all kinds");
    }
    let chosen = scores.best(&selections).map_err(text)?;
    for (selection, chosen) in selections.iter().zip(&chosen) {
        let plane = scores.plane(selection.plane).map_err(text)?;
        let expected = best_scalar(&plane, selection.among.clone(), selection.k);
        if *chosen != expected {
            let at = chosen
                .iter()
                .zip(&expected)
                .position(|(got, wanted)| got != wanted);
            return Err(format!(
                "{selection:?}: {} of {} chosen, first difference at {at:?}",
                chosen.len(),
                expected.len()
            ));
        }
    }
    Ok(())
}

fn compare<D: Device>(
    scores: &mut kvatlas_kernels::cuda::DeviceScores<'_, D>,
    query: usize,
    expected: &GroupScores,
    case: &Heads<'_>,
) -> Outcome {
    let pooled = scores.plane(Plane::Pooled { query }).map_err(text)?;
    let per_head = scores.per_head(query).map_err(text)?;
    let head = case.asked.len() - 1;
    let last = scores.plane(Plane::Head { query, head }).map_err(text)?;
    if !per_head.ends_with(&last) {
        return Err(format!("query {query}: head {head} is not the last"));
    }
    let got = pooled.into_iter().chain(per_head);
    let expected = expected.pooled.iter().chain(&expected.per_head);
    // Products of unit-sized vectors: their size is that of a random walk.
    #[expect(clippy::cast_precision_loss, reason = "a width is small")]
    let magnitude = (case.width as f64).sqrt() * 8.0;
    for (at, (got, expected)) in got.zip(expected).enumerate() {
        check_close(got, f64::from(*expected), magnitude)
            .map_err(|error| format!("query {query}, plane and row {at}: {error}"))?;
    }
    Ok(())
}

fn check_close(got: f32, exact: f64, magnitude: f64) -> Outcome {
    const RELATIVE_MAX: f64 = 2e-6;
    let error = (f64::from(got) - exact).abs();
    // NaN is not close.
    if error <= RELATIVE_MAX * magnitude + 1e-30 {
        return Ok(());
    }
    Err(format!("{got} is not {exact}"))
}

fn absolute(elements: &[f16]) -> Vec<f16> {
    elements
        .iter()
        .map(|element| f16::from_f32(element.to_f32().abs()))
        .collect()
}

fn absolute_table(elements: &[f16], width: usize) -> Table<'_> {
    Table::new(Elements::F16(elements), width)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "to the precision of the answer"
)]
fn narrow(dots: &[f64]) -> Vec<f32> {
    dots.iter().map(|&dot| dot as f32).collect()
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn text(error: CudaError) -> String {
    error.to_string()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    /// 0 to 1.
    fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        f32::from(u16::try_from((mixed ^ (mixed >> 31)) >> 48).unwrap()) / 65536.0
    }

    fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.uniform() * 2.0 - 1.0).collect()
    }

    fn element(&mut self) -> f16 {
        f16::from_f32(self.uniform() * 2.0 - 1.0)
    }

    fn elements(&mut self, count: usize) -> Vec<f16> {
        (0..count).map(|_| self.element()).collect()
    }

    fn heads(&mut self, case: Heads<'_>) -> HeadQuery {
        HeadQuery {
            starts: case.asked.iter().map(|part| part * case.width).collect(),
            width: case.width,
            group: case.group,
            values: self.values(case.asked.len() * case.group * case.width),
        }
    }
}
