//! Times a query from tokens: the layer-0 query of a model of 3B parameters.
//!
//! `cargo bench -p kvatlas --bench encoder`

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use criterion::{Criterion, criterion_group, criterion_main};
use kvatlas::routing::encoder::Encoder;
use kvatlas::routing::frame::{KeyFrame, PairLayout, RopeFrame};
use safetensors::{Dtype, View, serialize_to_file};

const HIDDEN: usize = 3072;
const HEADS: usize = 24;
const HEAD_DIM: usize = 128;
/// Of no real model: only the rows of the tokens are touched.
const VOCABULARY: usize = 1000;
const TOKENS: usize = 64;

fn queries(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_model(folder.path());
    let root = folder.path().canonicalize().expect("the folder is there");
    let encoder = Encoder::open(&root, &root).expect("a sound model");
    let frame = KeyFrame {
        rope: RopeFrame::PostRope,
        layout: PairLayout::Half,
        inv_freq: encoder.rope.inv_freq.clone(),
        attention_scaling: encoder.rope.attention_scaling,
        block_size: 16,
        layer_ids: Box::new([0]),
    };
    let tokens: Vec<u32> = (0..1000).step_by(1000 / TOKENS).take(TOKENS).collect();
    for mean in [1, 4, 16, 64] {
        let name = format!("query/{HIDDEN} x {HIDDEN} bf16, mean of {mean}");
        criterion.bench_function(&name, |bencher| {
            bencher.iter(|| encoder.query(&tokens, 131_072, mean, &frame));
        });
    }
}

criterion_group!(benches, queries);
criterion_main!(benches);

/// Llama 3.2 3B's layer 0 with a small vocabulary.
fn write_model(folder: &Path) {
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 8,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("room for a config");
    let tensors = [
        (
            "model.embed_tokens.weight",
            Tensor(vec![VOCABULARY, HIDDEN]),
        ),
        (
            "model.layers.0.input_layernorm.weight",
            Tensor(vec![HIDDEN]),
        ),
        (
            "model.layers.0.self_attn.q_proj.weight",
            Tensor(vec![HEADS * HEAD_DIM, HIDDEN]),
        ),
    ];
    let file = folder.join("model.safetensors");
    serialize_to_file(tensors, None, &file).expect("room for the weights");
}

/// Numbers near 1 / 64 of changing sign, in bf16.
struct Tensor(Vec<usize>);

impl View for Tensor {
    fn dtype(&self) -> Dtype {
        Dtype::BF16
    }

    fn shape(&self) -> &[usize] {
        &self.0
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut state = 1_u64;
        let element = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let [.., mantissa, sign] = state.to_le_bytes();
            [mantissa & 0x7f | 0x80, sign & 0x80 | 0x3c]
        };
        let count = self.0.iter().product();
        std::iter::repeat_with(element)
            .take(count)
            .flatten()
            .collect()
    }

    fn data_len(&self) -> usize {
        self.0.iter().product::<usize>() * 2
    }
}
