//! Encoders to the wire.

use kvatlas_kernels::Element;
use kvatlas_proto::v1;

use crate::routing::{
    encoder::{
        Encoder,
        registry::{Registered, State},
    },
    frame::PairLayout,
};

/// What is known of an encoder. One that is broken has only its names and its problem.
#[must_use]
pub fn encoder(registered: &Registered) -> v1::Encoder {
    let named = v1::Encoder {
        name: registered.name.to_string(),
        model_dir: registered.model_dir.to_string(),
        ..v1::Encoder::default()
    };
    let encoder: &Encoder = match &registered.state {
        State::Works(encoder) => encoder,
        State::Broken(problem) => {
            return v1::Encoder {
                problem: problem.clone(),
                ..named
            };
        }
    };
    let element = match encoder.element {
        Element::F32 => v1::ElementType::F32,
        Element::F16 => v1::ElementType::F16,
        Element::Bf16 => v1::ElementType::Bf16,
    };
    let layout = match Encoder::LAYOUT {
        PairLayout::Half => v1::PairLayout::Half,
        PairLayout::Interleaved => v1::PairLayout::Interleaved,
    };
    v1::Encoder {
        architecture: encoder.config.architecture.name().to_owned(),
        query_heads: encoder.config.heads,
        kv_heads: encoder.config.kv_heads,
        head_dim: encoder.config.head_dim,
        hidden_size: encoder.config.hidden_size,
        vocabulary_size: encoder.config.vocabulary_size,
        element_type: element.into(),
        pair_layout: layout.into(),
        inv_freq: encoder.rope.inv_freq.to_vec(),
        attention_scaling: encoder.rope.attention_scaling,
        ..named
    }
}
