//! Encoders against transformers, frames and tokens that do not fit, files that change.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use tempfile::TempDir;

use super::*;

mod configs;
mod folders;
mod registered;
mod rotations;

const MODELS: [&str; 8] = [
    "llama-default-bf16",
    "llama-llama3-f32",
    "llama-yarn-bf16",
    "llama-yarn-mscale-f32",
    "mistral-linear-f32",
    "qwen2-f16",
    "qwen3-bf16",
    "qwen3-yarn-f32",
];

/// The folder of the tiny models that tests/data/encoder/make_models.py wrote.
fn models() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoder");
    folder.canonicalize().unwrap()
}

fn open(model: &str) -> Encoder {
    Encoder::open(&models().join(model), &models()).unwrap()
}

/// A copy of a model's folder, to be changed.
fn copy(model: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    for entry in fs::read_dir(models().join(model)).unwrap() {
        let entry = entry.unwrap();
        // Not fs::copy: files that may not be written would stay so.
        let bytes = fs::read(entry.path()).unwrap();
        fs::write(folder.path().join(entry.file_name()), bytes).unwrap();
    }
    folder
}

fn open_copy(folder: &TempDir) -> Result<Encoder, ModelError> {
    let root = folder.path().canonicalize().unwrap();
    Encoder::open(&root, &root)
}

/// What transformers makes of a model.
struct Expected {
    /// Of keys after RoPE.
    frame: KeyFrame,
    tokens: Vec<u32>,
    starts: Vec<u64>,
    /// `[tokens]`, each `[heads, head_dim]`.
    pre_rope: Vec<Vec<f32>>,
    /// `[starts][tokens]`.
    post_rope: Vec<Vec<Vec<f32>>>,
}

impl Expected {
    fn read(model: &str, encoder: &Encoder) -> Self {
        let bytes = fs::read(models().join(model).join("expected.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let words = |name: &str| -> Vec<u32> {
            let tensor = file.tensor(name).unwrap();
            let words = tensor.data().as_chunks().0.iter();
            words.map(|&word| u32::from_le_bytes(word)).collect()
        };
        let floats = |name: &str| -> Vec<f32> {
            let words = words(name).into_iter();
            words.map(f32::from_bits).collect()
        };
        let size = encoder.config.query_size() as usize;
        let tokens = words("tokens");
        let vectors = |floats: &[f32]| -> Vec<Vec<f32>> {
            floats.chunks(size).map(<[f32]>::to_vec).collect()
        };
        let post_rope = floats("post_rope");
        let by_start = post_rope.chunks(size * tokens.len());
        Self {
            frame: KeyFrame {
                rope: RopeFrame::PostRope,
                layout: PairLayout::Half,
                inv_freq: floats("inv_freq").into(),
                attention_scaling: floats("attention_scaling")[0],
                block_size: 16,
                layer_ids: Box::new([0, 1]),
            },
            starts: words("starts").into_iter().map(u64::from).collect(),
            pre_rope: vectors(&floats("pre_rope")),
            post_rope: by_start.map(vectors).collect(),
            tokens,
        }
    }
}

/// How far a channel may be from transformers, against the largest of its head. In f16 and bf16
/// transformers itself rounds after each step.
fn tolerance(element: Element) -> f32 {
    match element {
        Element::F32 => 1e-6,
        Element::F16 => 1.5e-3,
        Element::Bf16 => 1e-2,
    }
}

fn check_query(encoder: &Encoder, query: &QueryVectors, expected: &[f32]) {
    assert_eq!(query.values.len(), expected.len());
    let head_dim = encoder.config.head_dim as usize;
    let heads = query.values.chunks(head_dim).zip(expected.chunks(head_dim));
    for (head, (found, expected)) in heads.enumerate() {
        let largest = expected.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        let bound = tolerance(encoder.element) * largest;
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() <= bound,
                "head {head}: {found}, must be {expected} within {bound}"
            );
        }
    }
}

#[test]
fn queries_are_those_of_transformers() {
    for model in MODELS {
        let encoder = open(model);
        let expected = Expected::read(model, &encoder);
        let pre_rope = KeyFrame {
            rope: RopeFrame::PreRope,
            ..expected.frame.clone()
        };
        for (&start, post_rope) in expected.starts.iter().zip(&expected.post_rope) {
            for end in 1..=expected.tokens.len() {
                let tokens = &expected.tokens[..end];
                let query = encoder.query(tokens, start, 0, &expected.frame).unwrap();
                check_query(&encoder, &query, &post_rope[end - 1]);
                assert_eq!(
                    query,
                    encoder.query(tokens, start, 1, &expected.frame).unwrap()
                );
                let query = encoder.query(tokens, start, 0, &pre_rope).unwrap();
                check_query(&encoder, &query, &expected.pre_rope[end - 1]);
                assert_eq!(query.rope, RopeFrame::PreRope);
            }
        }
    }
}

#[test]
fn a_mean_is_over_the_last_positions() {
    for model in MODELS {
        let encoder = open(model);
        let Expected {
            frame,
            tokens,
            starts,
            post_rope,
            ..
        } = Expected::read(model, &encoder);
        for count in 1..=tokens.len() {
            let last = &post_rope[1][tokens.len() - count..];
            let mut mean = vec![0.0; last[0].len()];
            for vector in last {
                for (mean, value) in mean.iter_mut().zip(vector) {
                    *mean += value / f32::from(u8::try_from(count).unwrap());
                }
            }
            let wanted = u32::try_from(count).unwrap();
            let query = encoder.query(&tokens, starts[1], wanted, &frame).unwrap();
            check_query(&encoder, &query, &mean);
        }
    }
}

#[test]
fn what_is_known_of_a_model_is_what_its_config_says() {
    let encoder = open("llama-yarn-bf16");
    let config = &encoder.config;
    assert_eq!(config.architecture.name(), "LlamaForCausalLM");
    assert_eq!(
        [config.hidden_size, config.heads, config.kv_heads],
        [48, 4, 2]
    );
    assert_eq!([config.head_dim, config.vocabulary_size], [16, 42]);
    assert_eq!(encoder.element, Element::Bf16);
    let expected = Expected::read("llama-yarn-bf16", &encoder);
    let query = encoder.query(&expected.tokens, 0, 0, &expected.frame);
    let QueryVectors {
        rope,
        layout,
        layer_ids,
        heads,
        head_dim,
        group_mean,
        values: _,
    } = query.unwrap();
    assert_eq!((rope, layout), (RopeFrame::PostRope, PairLayout::Half));
    assert_eq!(
        (&*layer_ids, heads, head_dim, group_mean),
        (&[0][..], 4, 16, false)
    );
}

#[test]
fn frequencies_have_the_bits_of_transformers_up_to_the_last() {
    for model in MODELS {
        let encoder = open(model);
        let Expected { frame, .. } = Expected::read(model, &encoder);
        for (found, expected) in encoder.rope.inv_freq.iter().zip(&frame.inv_freq) {
            assert!(
                found.to_bits().abs_diff(expected.to_bits()) <= 1,
                "{model}: {found}, must be {expected}"
            );
        }
        let (found, expected) = (encoder.rope.attention_scaling, frame.attention_scaling);
        assert_eq!(found.to_bits(), expected.to_bits(), "{model}");
    }
}

fn check_frame(change: impl FnOnce(&mut KeyFrame), expected: &str) {
    let encoder = open("llama-yarn-mscale-f32");
    let Expected { mut frame, .. } = Expected::read("llama-yarn-mscale-f32", &encoder);
    change(&mut frame);
    let refused = encoder.query(&[1], 0, 0, &frame).unwrap_err();
    assert_eq!(refused.to_string(), expected);
}

#[test]
fn keys_of_another_model_are_refused() {
    check_frame(
        |frame| frame.layer_ids = Box::new([1, 2]),
        "the key summary does not hold layer 0, which is the only one that encoders know",
    );
    check_frame(
        |frame| frame.layout = PairLayout::Interleaved,
        "the key summary's channels are interleaved, the encoder's in halves",
    );
    check_frame(
        |frame| frame.inv_freq = frame.inv_freq[1..].into(),
        "the key summary has 7 frequencies, the encoder 8",
    );
    check_frame(
        |frame| frame.inv_freq[0] = 1.0001,
        "the key summary's frequency of band 0 is 1.0001, the encoder's 1",
    );
    check_frame(
        |frame| frame.inv_freq[0] = f32::NAN,
        "the key summary's frequency of band 0 is NaN, the encoder's 1",
    );
    check_frame(
        |frame| frame.attention_scaling = 1.0,
        "the key summary's attention_scaling is 1, the encoder's 1.0627867",
    );
}

#[test]
fn keys_whose_frequencies_differ_in_the_last_bits_are_rotated_by_their_own() {
    let encoder = open("llama-llama3-f32");
    let Expected { frame, .. } = Expected::read("llama-llama3-f32", &encoder);
    let mut near = frame.clone();
    near.inv_freq[1] *= 1.000_002;
    let query = |frame| encoder.query(&[1], 1 << 20, 0, frame).unwrap().values;
    assert_ne!(query(&frame), query(&near));
}

fn check_tokens(tokens: &[u32], start: u64, mean: u32, expected: &str) {
    let encoder = open("qwen2-f16");
    let Expected { frame, .. } = Expected::read("qwen2-f16", &encoder);
    let refused = encoder.query(tokens, start, mean, &frame).unwrap_err();
    assert_eq!(refused.to_string(), expected);
}

#[test]
fn tokens_and_positions_outside_their_limits_are_refused() {
    let none = "query_tokens.tokens: 0 tokens, must be 1 to 4096";
    check_tokens(&[], 0, 0, none);
    let many = "query_tokens.tokens: 4097 tokens, must be 1 to 4096";
    check_tokens(&[1; TOKENS_MAX + 1], 0, 0, many);
    let outside = "query_tokens.tokens: one is outside the encoder's vocabulary of 42";
    check_tokens(&[42, 0], 0, 0, outside);
    check_tokens(&[0, u32::MAX], 0, 0, outside);
    let mean = "query_tokens.mean_of_last: 65, at most 64";
    check_tokens(&[1; 65], 0, 65, mean);
    let beyond = "query_tokens.mean_of_last: 3, but there are only 2 tokens";
    check_tokens(&[1, 2], 0, 3, beyond);
    let position = "query_tokens.start_position: the last token's position is above 16777216";
    for start in [POSITION_MAX, u64::MAX, u64::MAX - 1] {
        check_tokens(&[1, 2], start, 0, position);
    }
}

#[test]
fn the_limits_themselves_are_served() {
    let encoder = open("qwen2-f16");
    let Expected { frame, .. } = Expected::read("qwen2-f16", &encoder);
    let last = POSITION_MAX - TOKENS_MAX as u64 + 1;
    assert!(
        encoder
            .query(&[41; TOKENS_MAX], last, MEAN_MAX, &frame)
            .is_ok()
    );
    assert!(encoder.query(&[0; 64], 0, 64, &frame).is_ok());
}

#[test]
fn files_that_somebody_writes_to_are_read_no_more() {
    let folder = copy("qwen2-f16");
    let encoder = open_copy(&folder).unwrap();
    let Expected { frame, .. } = Expected::read("qwen2-f16", &encoder);
    let before = encoder.query(&[1], 0, 0, &frame).unwrap();

    // Replaced by renaming, as downloads are: the old file stays mapped.
    let path = folder.path().join("model.safetensors");
    let other = folder.path().join("other");
    fs::write(&other, b"something else").unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(encoder.query(&[1], 0, 0, &frame), Ok(before));

    let folder = copy("qwen2-f16");
    let encoder = open_copy(&folder).unwrap();
    let path = folder.path().join("model.safetensors");
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(9)
        .unwrap();
    assert_eq!(
        encoder.query(&[1], 0, 0, &frame),
        Err(EncoderError::Changed)
    );
}
