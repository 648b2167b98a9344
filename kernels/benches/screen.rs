//! The screened best of a 28-layer, 8-head, 8,192-block prefix, beside the full pass.

use std::hint::black_box;
use std::iter::once;

use criterion::{Criterion, criterion_group, criterion_main};
use half::f16;
use kvatlas_kernels::score::{Cpu, Elements, RowQuery, Table, best};
use kvatlas_kernels::screen::{FAILURE_PROBABILITY, OwnedScreen, Wanted};

const WIDTH: usize = 28 * 8 * 128;
const BLOCKS: usize = 8192;
const BEST: usize = 16;

/// SplitMix64 to something like a normal number: the screen lives on scores that differ.
fn values(seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let parts = (mixed ^ (mixed >> 31)).to_le_bytes();
        let (parts, _) = parts.as_chunks();
        let parts = parts.iter().map(|&part| i16::from_le_bytes(part));
        parts.map(f32::from).sum::<f32>() / 32768.0
    })
}

fn bench(criterion: &mut Criterion) {
    let keys: Vec<f16> = values(1).take(BLOCKS * WIDTH).map(f16::from_f32).collect();
    let table = Table::new(Elements::F16(&keys), WIDTH);
    let screen = OwnedScreen::new(&table, 7);
    let query = RowQuery::new(once(0..WIDTH).collect(), values(2).take(WIDTH).collect());
    let wanted = Wanted {
        among: 0..BLOCKS,
        k: BEST,
        failure_probability: FAILURE_PROBABILITY,
    };
    let mut scores = vec![0.0; BLOCKS];
    for threads in [1, 2] {
        let cpu = Cpu::start(threads).expect("threads start");
        let mut group = criterion.benchmark_group(format!("screen/{threads}"));
        group.sample_size(20);
        group.bench_function("full", |bencher| {
            bencher.iter(|| {
                cpu.row_dots(&table, &[&query], &mut scores);
                black_box(best(&scores, 0..BLOCKS, BEST))
            });
        });
        group.bench_function("screened", |bencher| {
            bencher.iter(|| screen.view().best(&cpu, &table, &query, &wanted));
        });
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
