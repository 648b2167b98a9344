//! Pooling and ranking of a 28-layer, 8-head, 8,192-block prior on one thread.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kvatlas_kernels::{Pooling, Scores, pool, rank, rank_rows, rank_scalar};

const ROWS: usize = 28 * 8;
const BLOCKS: usize = 8192;

/// SplitMix64, so that every run sorts the same numbers.
fn scores() -> Vec<f32> {
    let mut state = 7_u64;
    (0..ROWS * BLOCKS)
        .map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let uniform = u16::try_from((mixed ^ (mixed >> 31)) >> 48).unwrap_or(0);
            (f32::from(uniform) - 32768.0) * f32::from(u8::try_from(mixed & 0xff).unwrap_or(0))
        })
        .collect()
}

fn bench(criterion: &mut Criterion) {
    let row = scores()[..BLOCKS].to_vec();
    let wide: Vec<f64> = row.iter().copied().map(f64::from).collect();
    let scores = Scores::F32(scores());
    criterion.bench_function("rank_rows/224x8192", |bencher| {
        bencher.iter(|| rank_rows(black_box(&scores), BLOCKS));
    });
    criterion.bench_function("rank/f32/8192", |bencher| {
        bencher.iter(|| rank(black_box(&row)));
    });
    criterion.bench_function("rank/f64/8192", |bencher| {
        bencher.iter(|| rank(black_box(&wide)));
    });
    criterion.bench_function("rank_scalar/f32/8192", |bencher| {
        bencher.iter(|| rank_scalar(black_box(&row)));
    });
    for (name, pooling) in [("mean", Pooling::Mean), ("max", Pooling::Max)] {
        criterion.bench_function(&format!("pool/{name}/224x8192"), |bencher| {
            bencher.iter(|| pool(black_box(&scores), BLOCKS, pooling));
        });
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
