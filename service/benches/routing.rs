//! Times what routing promises: a manifest, an import of a large prior, a start with many priors.
//!
//! `cargo bench -p kvatlas --bench routing`

use std::collections::HashMap;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use kvatlas::routing::manifest::{ManifestQuery, get_manifest};
use kvatlas::routing::priors::{PriorUpload, Priors};
use kvatlas::store::Store;
use kvatlas_kernels::Pooling;
use safetensors::{Dtype, serialize, tensor::TensorView};

const LAYERS: usize = 28;
const KV_HEADS: usize = 8;
const BLOCKS: usize = 8192;
const PRIORS: usize = 1000;

fn manifests(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let priors = open(folder.path());
    let file = file([1, 1, BLOCKS]);
    for prefix in 0..PRIORS {
        put(&priors, &prefix.to_string(), &file);
    }
    for (policy, k) in [
        ("top-k", 16),
        ("top-k", 1024),
        ("A1R2K13", 16),
        ("segment-quota:1,2,8", 16),
        ("random-middle:1,2,7", 16),
        ("anchor-recency-spread:1,2", 16),
    ] {
        let query = ManifestQuery {
            prefix_hash: "500",
            k,
            policy,
            ..ManifestQuery::default()
        };
        criterion.bench_function(&format!("manifest/{policy} k={k} of {BLOCKS}"), |bencher| {
            bencher.iter(|| get_manifest(&priors, black_box(&query)));
        });
    }

    drop(priors);
    let mut group = criterion.benchmark_group("start");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(10));
    group.bench_function(format!("{PRIORS} priors of {BLOCKS} blocks"), |bencher| {
        bencher.iter(|| assert_eq!(open(folder.path()).len(), PRIORS));
    });
    group.finish();
}

fn imports(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let priors = open(folder.path());
    let file = file([LAYERS, KV_HEADS, BLOCKS]);
    let mut group = criterion.benchmark_group("put");
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(10));
    group.bench_function(format!("{LAYERS} x {KV_HEADS} x {BLOCKS} f32"), |bencher| {
        bencher.iter(|| put(&priors, "large", &file));
    });
    group.finish();
}

fn open(folder: &Path) -> Priors {
    let (store, _) = Store::open(folder).expect("a store");
    Priors::open(Arc::new(store)).expect("readable priors").0
}

fn put(priors: &Priors, prefix_hash: &str, bytes: &[u8]) {
    let upload = PriorUpload {
        prefix_hash,
        query_hash: "",
        algorithm: "kri-d",
        format: None,
        pooling: Pooling::Mean,
        repair: None,
        bytes,
        now_unix_ms: 0,
    };
    priors.put(&upload).expect("a prior");
}

/// A safetensors file with scores that look random.
fn file(shape: [usize; 3]) -> Vec<u8> {
    let mut state = 1_u32;
    let mut score = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from_bits(0x3f80_0000 | state >> 9)
    };
    let bytes: Vec<u8> = (0..shape.iter().product())
        .flat_map(|_: usize| score().to_le_bytes())
        .collect();
    let view = TensorView::new(Dtype::F32, shape.to_vec(), &bytes).expect("as many bytes");
    serialize(HashMap::from([("block_affinities", view)]), None).expect("a file")
}

criterion_group!(benches, manifests, imports);
criterion_main!(benches);
