//! What is read from a config.json, and what is refused.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::routing::encoder::{
    config::{Architecture, ModelConfig},
    rope::{Rope, RopeScaling},
};

/// A sound config with some fields changed; null takes a field away.
fn parse(changes: Value) -> Result<ModelConfig, String> {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 8192,
    });
    let Value::Object(changes) = changes else {
        panic!("changes are fields");
    };
    for (field, value) in changes {
        if value.is_null() {
            config.as_object_mut().unwrap().remove(&field);
        } else {
            config[field] = value;
        }
    }
    ModelConfig::parse(config.to_string().as_bytes()).map_err(|error| error.to_string())
}

fn check_refused(changes: Value, expected: &str) {
    assert_eq!(parse(changes), Err(expected.to_owned()));
}

fn scaling(changes: Value) -> RopeScaling {
    parse(changes).unwrap().rope.scaling
}

#[test]
fn what_is_not_said_is_as_transformers_has_it() {
    let config = parse(json!({"num_key_value_heads": null})).unwrap();
    assert_eq!((config.kv_heads, config.head_dim), (4, 16));
    assert_eq!(config.norm_epsilon.to_bits(), 1e-6_f64.to_bits());
    assert_eq!(config.rope.theta.to_bits(), 10_000_f64.to_bits());
    assert_eq!(config.rope.scaling, RopeScaling::None);
    assert!(!config.query_bias);
    let qwen3 = json!({"architectures": ["Qwen3ForCausalLM"]});
    assert_eq!(parse(qwen3).unwrap().head_dim, 128);
}

#[test]
fn biases_are_where_the_architecture_has_them() {
    for (name, architecture, by_default, where_said) in [
        ("LlamaForCausalLM", Architecture::Llama, false, true),
        ("MistralForCausalLM", Architecture::Mistral, false, false),
        ("Qwen2ForCausalLM", Architecture::Qwen2, true, true),
        ("Qwen3ForCausalLM", Architecture::Qwen3, false, true),
    ] {
        let config = parse(json!({"architectures": [name]})).unwrap();
        assert_eq!(
            (config.architecture, config.query_bias),
            (architecture, by_default)
        );
        let config = parse(json!({"architectures": [name], "attention_bias": true})).unwrap();
        assert_eq!(config.query_bias, where_said, "{name}");
    }
}

#[test]
fn other_architectures_are_named() {
    check_refused(
        json!({"architectures": ["GemmaForCausalLM"]}),
        "architectures: GemmaForCausalLM is not supported; LlamaForCausalLM, MistralForCausalLM, \
         Qwen2ForCausalLM and Qwen3ForCausalLM are",
    );
    for none in [json!(null), json!([])] {
        check_refused(
            json!({"architectures": none}),
            "architectures: none is named",
        );
    }
}

#[test]
fn numbers_out_of_bounds_are_named() {
    for (changes, expected) in [
        (json!({"hidden_size": null}), "hidden_size: missing"),
        (
            json!({"hidden_size": 0}),
            "hidden_size: 0, must be 1 to 65536",
        ),
        (
            json!({"hidden_size": u64::MAX}),
            "hidden_size: 18446744073709551615, must be 1 to 65536",
        ),
        (
            json!({"hidden_size": 66}),
            "hidden_size: 66, must be a multiple of the 4 query heads where head_dim is not given",
        ),
        (
            json!({"num_attention_heads": 1025}),
            "num_attention_heads: 1025, must be 1 to 1024",
        ),
        (
            json!({"num_key_value_heads": 3}),
            "num_key_value_heads: 3, must be a divisor of the 4 query heads",
        ),
        (
            json!({"num_key_value_heads": 8}),
            "num_key_value_heads: 8, must be 1 to 4",
        ),
        (
            json!({"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": null}),
            "num_key_value_heads: missing",
        ),
        (json!({"head_dim": 0}), "head_dim: 0, must be 1 to 1024"),
        (json!({"head_dim": 7}), "head_dim: 7, must be even"),
        (
            json!({"head_dim": 1024, "num_attention_heads": 256}),
            "head_dim: 1024, must be at most 131072 channels over 256 heads",
        ),
        (
            json!({"vocab_size": 8_388_609}),
            "vocab_size: 8388609, must be 1 to 8388608",
        ),
        (
            json!({"rms_norm_eps": -1e-6}),
            "rms_norm_eps: -0.000001, must be 0 to 1",
        ),
        (
            json!({"rope_theta": 1.0}),
            "rope_theta: 1, must be 1.0000000000000002 to 1000000000000000",
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            "partial_rotary_factor: 0.5, must be 1 to 1",
        ),
    ] {
        check_refused(changes, expected);
    }
    let json = ModelConfig::parse(b"[1,").unwrap_err().to_string();
    assert!(json.starts_with("not the JSON of a model: "), "{json}");
    assert!(parse(json!({"hidden_size": "64"})).is_err());
    assert!(parse(json!({"hidden_size": -64})).is_err());
}

#[test]
fn scalings_that_are_not_supported_are_named() {
    for kind in ["dynamic", "longrope", "mrope"] {
        check_refused(
            json!({"rope_scaling": {"type": kind, "factor": 2.0}}),
            &format!(
                "rope_scaling: the type {kind} is not supported; default, linear, llama3 and yarn \
                 are"
            ),
        );
    }
    check_refused(
        json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
        "rope_parameters: given for each kind of layer, which is not supported",
    );
    check_refused(
        json!({"rope_scaling": {"type": "linear"}}),
        "factor: missing",
    );
    check_refused(
        json!({"rope_scaling": {"type": "linear", "factor": 0}}),
        "factor: 0, must be 0.000001 to 1000000",
    );
    let llama3 = |low: f64, high: f64| {
        json!({"rope_scaling": {
            "rope_type": "llama3", "factor": 8, "low_freq_factor": low, "high_freq_factor": high,
        }})
    };
    check_refused(
        llama3(4.0, 4.0),
        "high_freq_factor: 4, must be above low_freq_factor and at most 1000000",
    );
    check_refused(
        json!({"rope_scaling": {"rope_type": "yarn", "factor": 2}, "max_position_embeddings": null}),
        "max_position_embeddings: missing",
    );
}

#[test]
fn both_spellings_of_a_scaling_mean_the_same() {
    let linear = RopeScaling::Linear { factor: 2.0 };
    for spelling in [
        json!({"rope_scaling": {"type": "linear", "factor": 2}}),
        json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        json!({"rope_parameters": {"rope_type": "linear", "factor": 2}}),
        // rope_type is the newer name, and rope_scaling what transformers takes first.
        json!({"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2}}),
        json!({
            "rope_scaling": {"type": "linear", "factor": 2},
            "rope_parameters": {"rope_type": "dynamic"},
        }),
    ] {
        assert_eq!(scaling(spelling), linear);
    }
    let theta = |changes| parse(changes).unwrap().rope.theta.to_bits();
    assert_eq!(theta(json!({"rope_theta": 5e5})), 5e5_f64.to_bits());
    let both = json!({"rope_theta": 2.0, "rope_parameters": {"rope_theta": 5e5}});
    assert_eq!(theta(both), 5e5_f64.to_bits());
}

#[test]
fn yarn_finds_its_factor_and_its_positions_where_transformers_does() {
    let of = |changes| {
        let RopeScaling::Yarn {
            factor,
            original_positions,
            ..
        } = scaling(changes)
        else {
            panic!("not yarn");
        };
        (factor, original_positions)
    };
    let yarn = |original: Value| {
        json!({"rope_scaling": {"type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": original}})
    };
    assert_eq!(of(yarn(json!(2048))), (4.0, 2048.0));
    assert_eq!(of(yarn(json!(null))), (4.0, 8192.0));
    let mut above = yarn(json!(2048));
    above["original_max_position_embeddings"] = 1024.into();
    assert_eq!(of(above), (4.0, 1024.0));
    let mut no_factor = yarn(json!(2048));
    no_factor["rope_scaling"]["factor"] = Value::Null;
    assert_eq!(of(no_factor), (4.0, 2048.0));
}

#[test]
fn yarn_has_the_attention_factor_of_transformers() {
    let factor = |rope: Value| {
        let mut scaling = json!({"type": "yarn", "factor": 4.0});
        for (field, value) in rope.as_object().unwrap() {
            scaling[field] = value.clone();
        }
        let config = parse(json!({"rope_scaling": scaling})).unwrap();
        f64::from(Rope::new(&config.rope, config.head_dim).attention_scaling)
    };
    let log = 4_f64.ln();
    for (rope, expected) in [
        (json!({}), 0.1 * log + 1.0),
        (json!({"factor": 0.5}), 1.0),
        (json!({"attention_factor": 1.25}), 1.25),
        (json!({"mscale": 2.0}), 0.1 * log + 1.0),
        (
            json!({"mscale": 2.0, "mscale_all_dim": 0.0}),
            0.1 * log + 1.0,
        ),
        (
            json!({"mscale": 2.0, "mscale_all_dim": 0.5}),
            (0.2 * log + 1.0) / (0.05 * log + 1.0),
        ),
    ] {
        let found = factor(rope.clone());
        assert!(
            (found - expected).abs() < 1e-7,
            "{rope}: {found}, must be {expected}"
        );
    }
}

/// Numbers as they are, and as nobody would write them.
fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        (0..200_u64).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-30.0_f64..30.0).prop_map(|power| 10_f64.powf(power).into()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_number_makes_it_panic(
        kind in prop::sample::select(vec!["default", "linear", "llama3", "yarn"]),
        numbers in prop::collection::vec(number(), 17),
        truncate: bool,
    ) {
        let fields = [
            "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
            "rms_norm_eps", "max_position_embeddings",
        ];
        let scaling = [
            "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "beta_fast",
            "beta_slow", "mscale", "mscale_all_dim", "attention_factor",
            "original_max_position_embeddings",
        ];
        // A few at a time, so that something is left to compute with.
        let (of_model, of_scaling) = numbers.split_at(fields.len());
        let mut rope = json!({"rope_type": kind, "truncate": truncate});
        for (field, value) in scaling.iter().zip(of_scaling) {
            rope[*field] = value.clone();
        }
        for (field, value) in fields.iter().zip(of_model) {
            let changes = json!({"rope_parameters": rope, *field: value});
            if let Ok(config) = parse(changes) {
                let rope = Rope::new(&config.rope, config.head_dim);
                prop_assert_eq!(rope.inv_freq.len() * 2, config.head_dim as usize);
            }
        }
    }
}
