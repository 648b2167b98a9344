//! Times what an online query costs before it is scored: from the wire, and into products.
//!
//! `cargo bench -p kvatlas --bench query`

use std::{hint::black_box, time::Duration};

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use half::f16;
use kvatlas::{
    routing::{
        frame::{KeyFrame, PairLayout, RopeFrame, SummaryShape},
        query::{Algorithm, Similarity, plan},
    },
    rpc::convert::queries::online_query,
};
use kvatlas_kernels::score::Aggregate;
use kvatlas_proto::v1;

// Llama-3.2-3B.
const LAYERS: u32 = 28;
const QUERY_HEADS: u32 = 24;
const KV_HEADS: u32 = 8;
const HEAD_DIM: u32 = 128;

fn queries(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("query");
    group
        .measurement_time(Duration::from_secs(2))
        .sample_size(20);
    let all = wire(QUERY_HEADS, v1::ElementType::F16);
    let means = wire(KV_HEADS, v1::ElementType::F16);
    for (name, wire) in [
        ("all heads in f16", &all),
        ("group means in f16", &means),
        ("all heads in f32", &wire(QUERY_HEADS, v1::ElementType::F32)),
        ("statistics", &statistics()),
    ] {
        let bytes = wire.vectors.len() + 3 * wire.mean_real.len();
        let name = format!("from the wire/{name}, {} KiB", bytes >> 10);
        group.bench_function(name, |bencher| {
            bencher.iter(|| online_query(black_box(wire)));
        });
    }
    let read = |wire| online_query(wire).expect("a sound query");
    let kri_q = |similarity, aggregate| Algorithm::KriQ {
        similarity,
        aggregate,
    };
    let dot = kri_q(Similarity::Dot, Aggregate::Mean);
    for (name, query, algorithm) in [
        ("kri-q of group means", read(&means), dot),
        ("kri-q of all heads", read(&all), dot),
        (
            "kri-q cosine max",
            read(&all),
            kri_q(Similarity::Cosine, Aggregate::Max),
        ),
        (
            "quest mean",
            read(&all),
            Algorithm::Quest {
                aggregate: Aggregate::Mean,
            },
        ),
        ("kri-t", read(&statistics()), Algorithm::KriT),
    ] {
        let shape = shape();
        group.bench_function(format!("plan/{name}"), |bencher| {
            bencher.iter(|| plan(algorithm, black_box(&query), &shape, false));
        });
    }
    group.finish();
}

fn wire(heads: u32, element_type: v1::ElementType) -> v1::QueryVectors {
    let count = LAYERS * heads * HEAD_DIM;
    let values = (0..count).map(|n| f16::from_f32((n as f32).sin()));
    let vectors: Bytes = match element_type {
        v1::ElementType::F32 => values.flat_map(|x| x.to_f32().to_le_bytes()).collect(),
        v1::ElementType::F16 | v1::ElementType::Bf16 | v1::ElementType::Unspecified => {
            values.flat_map(f16::to_le_bytes).collect()
        }
    };
    v1::QueryVectors {
        frame: v1::RopeFrame::PostRope.into(),
        element_type: element_type.into(),
        layer_ids: (0..LAYERS).collect(),
        heads,
        head_dim: HEAD_DIM,
        group_mean: heads == KV_HEADS,
        vectors,
        ..v1::QueryVectors::default()
    }
}

fn statistics() -> v1::QueryVectors {
    let count = (LAYERS * QUERY_HEADS * HEAD_DIM / 2) as usize;
    let numbers = |number: f32| Bytes::from(number.to_le_bytes().repeat(count));
    v1::QueryVectors {
        layer_ids: (0..LAYERS).collect(),
        heads: QUERY_HEADS,
        head_dim: HEAD_DIM,
        position: 100_000,
        mean_real: numbers(0.3),
        mean_imaginary: numbers(0.4),
        mean_absolute: numbers(0.7),
        ..v1::QueryVectors::default()
    }
}

fn shape() -> SummaryShape {
    let bands = HEAD_DIM / 2;
    let frequency = |band: u32| 500_000_f32.powf(-(band as f32) / bands as f32);
    SummaryShape {
        frame: KeyFrame {
            rope: RopeFrame::PostRope,
            layout: PairLayout::Half,
            inv_freq: (0..bands).map(frequency).collect(),
            attention_scaling: 1.0,
            block_size: 16,
            layer_ids: (0..LAYERS).collect(),
        },
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        blocks: 521,
        has_extremes: true,
        has_magnitudes: true,
    }
}

criterion_group!(benches, queries);
criterion_main!(benches);
