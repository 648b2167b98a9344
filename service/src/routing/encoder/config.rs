//! What a model folder's config.json says of layer 0, checked.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::rope::{RopeParameters, RopeScaling};

pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
pub const HIDDEN_SIZE_MAX: u32 = 1 << 16;
pub const HEADS_MAX: u32 = 1 << 10;
pub const HEAD_DIM_MAX: u32 = 1 << 10;
pub const VOCABULARY_MAX: u32 = 1 << 23;
const POSITIONS_MAX: f64 = 1e9;
const THETA_MAX: f64 = 1e15;
const FACTOR_MAX: f64 = 1e6;

/// Models whose layer 0 is known: rotary attention after an RMS norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

/// The numbers of layer 0.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub hidden_size: u32,
    pub heads: u32,
    pub kv_heads: u32,
    /// Even.
    pub head_dim: u32,
    pub vocabulary_size: u32,
    pub norm_epsilon: f64,
    /// Whether the query has a bias.
    pub query_bias: bool,
    pub rope: RopeParameters,
}

/// Why a config.json cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("not the JSON of a model: {0}")]
    Json(#[from] serde_json::Error),
    #[error("architectures: none is named")]
    NoArchitecture,
    #[error(
        "architectures: {found} is not supported; LlamaForCausalLM, MistralForCausalLM, \
         Qwen2ForCausalLM and Qwen3ForCausalLM are"
    )]
    Architecture { found: String },
    #[error("{field}: missing")]
    Missing { field: &'static str },
    #[error("{field}: {found}, must be {wanted}")]
    Value {
        field: &'static str,
        found: String,
        wanted: String,
    },
    #[error("{field}: the type {found} is not supported; default, linear, llama3 and yarn are")]
    RopeType { field: &'static str, found: String },
    #[error("{field}: given for each kind of layer, which is not supported")]
    RopeNested { field: &'static str },
}

impl Architecture {
    /// As config.json spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// Whether each query head is normalized before it is rotated.
    #[must_use]
    pub const fn has_query_norm(self) -> bool {
        match self {
            Self::Qwen3 => true,
            Self::Llama | Self::Mistral | Self::Qwen2 => false,
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3]
            .into_iter()
            .find(|architecture| architecture.name() == name)
    }
}

#[derive(Debug, Deserialize)]
struct Raw {
    #[serde(default)]
    architectures: Option<Vec<String>>,
    hidden_size: Option<u64>,
    num_attention_heads: Option<u64>,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    vocab_size: Option<u64>,
    rms_norm_eps: Option<f64>,
    attention_bias: Option<bool>,
    max_position_embeddings: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    rope_scaling: Option<RawRope>,
    rope_parameters: Option<RawRope>,
}

#[derive(Debug, Default, Deserialize)]
struct RawRope {
    rope_type: Option<String>,
    /// How `rope_type` was called before.
    r#type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

impl ModelConfig {
    /// Reads config.json. What it does not say is as transformers has it by default.
    ///
    /// # Errors
    /// An architecture or a kind of rotation that is not supported, and numbers that are missing,
    /// out of bounds or at odds with each other.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let raw: Raw = serde_json::from_slice(json)?;
        let architecture = architecture(&raw)?;
        let hidden_size = count("hidden_size", raw.hidden_size, HIDDEN_SIZE_MAX)?;
        let heads = count("num_attention_heads", raw.num_attention_heads, HEADS_MAX)?;
        let kv_heads = match (raw.num_key_value_heads, architecture) {
            (None, Architecture::Llama) => heads,
            (given, _) => count("num_key_value_heads", given, heads)?,
        };
        check(
            heads.is_multiple_of(kv_heads),
            "num_key_value_heads",
            &kv_heads,
            &format_args!("a divisor of the {heads} query heads"),
        )?;
        Ok(Self {
            architecture,
            hidden_size,
            heads,
            kv_heads,
            head_dim: head_dim(&raw, architecture, hidden_size, heads)?,
            vocabulary_size: count("vocab_size", raw.vocab_size, VOCABULARY_MAX)?,
            norm_epsilon: within("rms_norm_eps", raw.rms_norm_eps.unwrap_or(1e-6), 0.0, 1.0)?,
            query_bias: match architecture {
                Architecture::Qwen2 => true,
                Architecture::Mistral => false,
                Architecture::Llama | Architecture::Qwen3 => raw.attention_bias.unwrap_or(false),
            },
            rope: rope(&raw)?,
        })
    }

    /// Elements of all query heads of a position.
    #[must_use]
    pub fn query_size(&self) -> u32 {
        self.heads * self.head_dim
    }
}

fn architecture(raw: &Raw) -> Result<Architecture, ConfigError> {
    let named = raw.architectures.as_ref().and_then(|names| names.first());
    let name = named.ok_or(ConfigError::NoArchitecture)?;
    Architecture::named(name).ok_or_else(|| ConfigError::Architecture {
        found: name.chars().take(SHOWN_CHARS_MAX).collect(),
    })
}

/// How much of a name that somebody else wrote an error shows.
const SHOWN_CHARS_MAX: usize = 64;

fn head_dim(
    raw: &Raw,
    architecture: Architecture,
    hidden_size: u32,
    heads: u32,
) -> Result<u32, ConfigError> {
    let given = match architecture {
        // Its default is a number of its own.
        Architecture::Qwen3 => raw.head_dim.or(Some(128)),
        Architecture::Llama | Architecture::Mistral | Architecture::Qwen2 => raw.head_dim,
    };
    let head_dim = match given {
        Some(_) => count("head_dim", given, HEAD_DIM_MAX)?,
        None => {
            check(
                hidden_size.is_multiple_of(heads),
                "hidden_size",
                &hidden_size,
                &format_args!("a multiple of the {heads} query heads where head_dim is not given"),
            )?;
            count(
                "head_dim",
                Some(u64::from(hidden_size / heads)),
                HEAD_DIM_MAX,
            )?
        }
    };
    check(head_dim.is_multiple_of(2), "head_dim", &head_dim, &"even")?;
    Ok(head_dim)
}

// The priorities are those of transformers' standardize_rope_params.
fn rope(raw: &Raw) -> Result<RopeParameters, ConfigError> {
    let none = RawRope::default();
    let (field, rope) = match (&raw.rope_scaling, &raw.rope_parameters) {
        (Some(rope), _) => ("rope_scaling", rope),
        (None, Some(rope)) => ("rope_parameters", rope),
        (None, None) => ("rope_parameters", &none),
    };
    if rope.rest.values().any(Value::is_object) {
        return Err(ConfigError::RopeNested { field });
    }
    let partial = rope.partial_rotary_factor.or(raw.partial_rotary_factor);
    within("partial_rotary_factor", partial.unwrap_or(1.0), 1.0, 1.0)?;
    let theta = rope.rope_theta.or(raw.rope_theta).unwrap_or(10_000.0);
    let theta = within("rope_theta", theta, 1.0 + f64::EPSILON, THETA_MAX)?;
    let kind = rope.rope_type.as_deref().or(rope.r#type.as_deref());
    let scaling = match kind.unwrap_or("default") {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear {
            factor: factor(rope.factor)?,
        },
        "llama3" => llama3(raw, rope)?,
        "yarn" => yarn(raw, rope)?,
        other => {
            let found = other.chars().take(SHOWN_CHARS_MAX).collect();
            return Err(ConfigError::RopeType { field, found });
        }
    };
    Ok(RopeParameters { theta, scaling })
}

fn llama3(raw: &Raw, rope: &RawRope) -> Result<RopeScaling, ConfigError> {
    let low = required("low_freq_factor", rope.low_freq_factor)?;
    let low = within("low_freq_factor", low, f64::MIN_POSITIVE, FACTOR_MAX)?;
    let high = required("high_freq_factor", rope.high_freq_factor)?;
    // Equal ones would divide by zero.
    check(
        high > low && high <= FACTOR_MAX,
        "high_freq_factor",
        &high,
        &format_args!("above low_freq_factor and at most {FACTOR_MAX}"),
    )?;
    Ok(RopeScaling::Llama3 {
        factor: factor(rope.factor)?,
        low_frequency_factor: low,
        high_frequency_factor: high,
        original_positions: original_positions(raw, rope)?,
    })
}

fn yarn(raw: &Raw, rope: &RawRope) -> Result<RopeScaling, ConfigError> {
    let original_positions = original_positions(raw, rope)?;
    let factor = match rope.factor {
        Some(given) => factor(Some(given))?,
        None => factor(Some(positions(raw)? / original_positions))?,
    };
    // Zero means the default, as everywhere where Python says `or`.
    let given = |value: Option<f64>| value.filter(|value| *value != 0.0);
    let beta = |field, value, default| {
        within(
            field,
            given(value).unwrap_or(default),
            f64::MIN_POSITIVE,
            FACTOR_MAX,
        )
    };
    let scale = |field, value| {
        let within = |value| within(field, value, -FACTOR_MAX, FACTOR_MAX);
        given(value).map(within).transpose()
    };
    let attention = rope
        .attention_factor
        .map(|value| within("attention_factor", value, f64::MIN_POSITIVE, FACTOR_MAX));
    Ok(RopeScaling::Yarn {
        factor,
        attention_factor: attention.transpose()?,
        mscale: scale("mscale", rope.mscale)?.zip(scale("mscale_all_dim", rope.mscale_all_dim)?),
        beta_fast: beta("beta_fast", rope.beta_fast, 32.0)?,
        beta_slow: beta("beta_slow", rope.beta_slow, 1.0)?,
        original_positions,
        truncate: rope.truncate.unwrap_or(true),
    })
}

fn original_positions(raw: &Raw, rope: &RawRope) -> Result<f64, ConfigError> {
    let given = raw
        .original_max_position_embeddings
        .or(rope.original_max_position_embeddings);
    match given {
        Some(given) => within(
            "original_max_position_embeddings",
            given,
            1.0,
            POSITIONS_MAX,
        ),
        None => positions(raw),
    }
}

fn positions(raw: &Raw) -> Result<f64, ConfigError> {
    let given = required("max_position_embeddings", raw.max_position_embeddings)?;
    within("max_position_embeddings", given, 1.0, POSITIONS_MAX)
}

fn factor(given: Option<f64>) -> Result<f64, ConfigError> {
    within(
        "factor",
        required("factor", given)?,
        1.0 / FACTOR_MAX,
        FACTOR_MAX,
    )
}

fn required<T>(field: &'static str, given: Option<T>) -> Result<T, ConfigError> {
    given.ok_or(ConfigError::Missing { field })
}

/// A count from 1 to `max`.
fn count(field: &'static str, given: Option<u64>, max: u32) -> Result<u32, ConfigError> {
    let given = required(field, given)?;
    let count = u32::try_from(given).ok();
    let count = count.filter(|count| (1..=max).contains(count));
    count.ok_or_else(|| wrong(field, &given, &format_args!("1 to {max}")))
}

/// A number from `min` to `max`; NaN is in no range.
fn within(field: &'static str, value: f64, min: f64, max: f64) -> Result<f64, ConfigError> {
    let wanted = format_args!("{min} to {max}");
    check((min..=max).contains(&value), field, &value, &wanted).map(|()| value)
}

fn check(
    holds: bool,
    field: &'static str,
    found: &impl Display,
    wanted: &impl Display,
) -> Result<(), ConfigError> {
    if holds {
        return Ok(());
    }
    Err(wrong(field, found, wanted))
}

fn wrong(field: &'static str, found: &impl Display, wanted: &impl Display) -> ConfigError {
    ConfigError::Value {
        field,
        found: found.to_string(),
        wanted: wanted.to_string(),
    }
}
