//! What it costs to embed text with the model of KVATLAS_TEST_EMBEDDING_MODEL, one thread.

use std::{hint::black_box, io::Write, path::PathBuf};

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use kvatlas::donors::text::{
    Embed, ModelFiles, TextModel,
    segments::{SEGMENT_BYTES_MAX, segments},
};

const WORDS: &str = "and it came to pass in those days that there went out a decree from the king, \
    that all the people of the land should be counted, every one in his own city; ";

fn embed(criterion: &mut Criterion) {
    let Some(mut model) = model() else {
        return;
    };
    let text: String = WORDS.repeat(100);
    let cut = segments(&text, 0.0, 16);
    let mut group = criterion.benchmark_group("text");
    group.sample_size(20);
    for count in [1, 2, 4, 8, 16] {
        group.bench_function(
            format!("{count} segments of {SEGMENT_BYTES_MAX} bytes"),
            |b| {
                b.iter(|| black_box(model.embed(&cut[..count])));
            },
        );
    }
    let long = WORDS.repeat(4 << 20 >> 7);
    group.bench_function("cutting 5 MB", |b| {
        b.iter_batched(
            || &long,
            |long| segments(long, 0.3, 16).len(),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn model() -> Option<TextModel> {
    let given = ["KVATLAS_TEST_EMBEDDING_MODEL", "KVATLAS_TEST_ONNXRUNTIME"];
    let [Some(folder), Some(onnxruntime)] = given.map(path) else {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no {}", given.join(" and "));
        return None;
    };
    let files = ModelFiles {
        folder,
        onnxruntime,
        threads: 1,
    };
    Some(TextModel::open(&files).expect("the model that was named can be used"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "benches are told about the machine by its environment"
)]
fn path(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}

criterion_group!(benches, embed);
criterion_main!(benches);
