//! The products over the table of a 28-layer, 8-head, 8,192-block prefix, beside a plain read of
//! it.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use kvatlas_kernels::score::{
    Aggregate, Cpu, Elements, Grouping, HeadQuery, RowQuery, Table, best, group_scores, standardize,
};

const HEADS: usize = 28 * 8;
const HEAD_DIM: usize = 128;
const WIDTH: usize = HEADS * HEAD_DIM;
const BLOCKS: usize = 8192;
/// Scores that go into a manifest.
const BEST: usize = 16;

/// Small numbers that repeat with a period that no kernel does.
fn value(index: usize) -> f32 {
    f32::from(u8::try_from(index % 251).unwrap_or(0)) - 125.0
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(value).collect()
}

fn head_query(group: usize, width: usize) -> HeadQuery {
    HeadQuery {
        starts: (0..HEADS).map(|head| head * width).collect(),
        width,
        group,
        values: values(HEADS * group * width),
    }
}

fn bench(criterion: &mut Criterion) {
    let cells: Vec<f16> = (0..BLOCKS * WIDTH)
        .map(|at| f16::from_f32(value(at)))
        .collect();
    let table = Table::new(Elements::F16(&cells), WIDTH);
    let query = RowQuery::new(std::iter::once(0..WIDTH).collect(), values(WIDTH));
    let magnitudes = Table::new(Elements::F16(&cells[..BLOCKS * WIDTH / 2]), WIDTH / 2);
    let norms = values(BLOCKS * HEADS);
    let (mut scores, mut kept) = (vec![0.0; BLOCKS], Vec::new());
    for threads in [1, 2] {
        let cpu = Cpu::start(threads).expect("threads start");
        let mut group = criterion.benchmark_group(format!("score/{threads}"));
        group.sample_size(20);
        group.throughput(Throughput::Bytes(table.bytes() as u64));
        group.bench_function("plain_read", |bencher| {
            bencher.iter(|| cpu.plain_read(bytemuck::cast_slice(&cells)));
        });
        group.bench_function("row_dots", |bencher| {
            bencher.iter(|| cpu.row_dots(&table, &[&query], black_box(&mut scores)));
        });
        for heads in [3, 4, 8] {
            let query = head_query(heads, HEAD_DIM);
            let mut dots = vec![0.0; BLOCKS * query.dots()];
            group.bench_function(format!("head_dots/{heads}"), |bencher| {
                bencher.iter(|| cpu.head_dots(&table, &query, black_box(&mut dots)));
            });
            for (name, row_scales, per_head) in [
                ("max", None, false),
                ("max_per_head", None, true),
                ("cosine", Some(&norms[..]), false),
                ("cosine_per_head", Some(&norms[..]), true),
            ] {
                let grouping = Grouping {
                    aggregate: Aggregate::Max,
                    row_scales,
                    per_head,
                };
                group.bench_function(format!("head_scores/{heads}/{name}"), |bencher| {
                    bencher.iter(|| cpu.head_scores(&table, &query, &grouping));
                });
            }
            let narrow = head_query(heads, HEAD_DIM / 2);
            let products = [(&table, &query), (&magnitudes, &narrow)];
            for per_head in [false, true] {
                let name = format!("standard_head_scores/{heads}/per_head={per_head}");
                group.bench_function(name, |bencher| {
                    bencher.iter(|| cpu.standard_head_scores(products, per_head, &mut kept));
                });
            }
        }
    }
    let mut dots = values(BLOCKS * HEADS * 3);
    for wanted in [false, true] {
        criterion.bench_function(&format!("group_scores/per_head={wanted}"), |bencher| {
            bencher.iter(|| group_scores(&dots, (HEADS, 3), Aggregate::Max, None, wanted));
        });
    }
    criterion.bench_function("standardize", |bencher| {
        bencher.iter(|| standardize(black_box(&mut dots), HEADS * 3));
    });
    let scores = values(BLOCKS);
    criterion.bench_function("best", |bencher| {
        bencher.iter(|| best(black_box(&scores), 1..BLOCKS - 2, BEST));
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
