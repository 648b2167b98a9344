//! From the bytes of a 7 MB prior (28 layers, 8 heads, 8,192 blocks, f32) to its rankings.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kvatlas::routing::import::import;
use kvatlas_kernels::{Pooling, pool, rank, rank_rows};

#[path = "../src/routing/import/tests/build.rs"]
#[expect(dead_code, reason = "the tests write more kinds of archives")]
mod build;

const SHAPE: [u32; 3] = [28, 8, 8192];

fn file() -> Vec<u8> {
    let mut state = 1_u32;
    let scores = (0..SHAPE.iter().product()).flat_map(|_| {
        // A linear congruential generator's upper bits: enough disorder for a sort.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let [.., low, high] = state.to_le_bytes();
        (f32::from(u16::from_le_bytes([low, high])) / 1024.0 - 32.0)
            .sin()
            .to_le_bytes()
    });
    let scores: Vec<u8> = scores.collect();
    let [layers, heads, blocks] = SHAPE;
    let dimensions = [(layers, heads * blocks), (heads, blocks), (blocks, 1)];
    let tensor = build::tensor("FloatStorage", SHAPE.iter().product(), 0, &dimensions);
    build::torch(
        &build::dict(&[("block_affinities", &tensor)]),
        &[("0", &scores)],
    )
}

fn bench(criterion: &mut Criterion) {
    let file = file();
    criterion.bench_function("import/28x8x8192", |bencher| {
        bencher.iter(|| import(black_box(&file), None).expect("the file is a prior"));
    });
    criterion.bench_function("import+pool+rank/28x8x8192", |bencher| {
        bencher.iter(|| {
            let prior = import(black_box(&file), None).expect("the file is a prior");
            let tensor = prior.affinities.expect("the file has a tensor");
            let blocks = tensor.blocks as usize;
            let pooled = rank(&pool(&tensor.scores, blocks, Pooling::Mean));
            (pooled, rank_rows(&tensor.scores, blocks))
        });
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
