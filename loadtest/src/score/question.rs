//! Queries without a model, as the service knows them and as the wire gives them.

use bytes::Bytes;
use half::f16;
use kvatlas::routing::{
    frame::{KeyFrame, PairLayout, RopeFrame, SummaryShape},
    query::{Calibration, OnlineQuery, QueryVectors},
};
use kvatlas_proto::v1;

use super::{Algorithm, ModelShape, keys::BLOCK_TOKENS, noise::normal};
use crate::random::Random;

const ROPE_THETA: f64 = 500_000.0;
/// How far the mean of a band's queries reaches of their mean length.
const CONCENTRATION: f32 = 0.7;

/// What a summary of so many blocks of the model is checked against.
#[must_use]
pub fn summary_shape(shape: ModelShape, blocks: usize) -> SummaryShape {
    SummaryShape {
        frame: KeyFrame {
            rope: RopeFrame::PostRope,
            layout: PairLayout::Half,
            inv_freq: inverse_frequencies(shape.head_dim).into(),
            attention_scaling: 1.0,
            block_size: BLOCK_TOKENS,
            layer_ids: (0..small(shape.layers)).collect(),
        },
        kv_heads: small(shape.kv_heads),
        head_dim: small(shape.head_dim),
        blocks: small(blocks),
        has_extremes: true,
        has_magnitudes: true,
    }
}

/// Draws a query: group means for kri-q and quest, statistics of each query head for kri-t.
#[must_use]
pub fn draw(
    algorithm: Algorithm,
    shape: ModelShape,
    blocks: usize,
    random: &mut Random,
) -> OnlineQuery {
    match algorithm {
        Algorithm::KriQ | Algorithm::Quest => OnlineQuery {
            vectors: Some(group_means(shape, random)),
            calibration: None,
        },
        Algorithm::KriT => OnlineQuery {
            vectors: None,
            calibration: Some(calibration(shape, blocks, random)),
        },
    }
}

fn group_means(shape: ModelShape, random: &mut Random) -> QueryVectors {
    QueryVectors {
        rope: RopeFrame::PostRope,
        layout: PairLayout::Half,
        layer_ids: (0..small(shape.layers)).collect(),
        heads: small(shape.kv_heads),
        head_dim: small(shape.head_dim),
        group_mean: true,
        // As f16 has them, so that the wire changes nothing.
        values: (0..shape.width())
            .map(|_| f16::from_f32(normal(random)).to_f32())
            .collect(),
    }
}

fn calibration(shape: ModelShape, blocks: usize, random: &mut Random) -> Calibration {
    let bands = shape.layers * shape.query_heads * shape.head_dim / 2;
    let mut statistics = Calibration {
        layout: PairLayout::Half,
        layer_ids: (0..small(shape.layers)).collect(),
        heads: small(shape.query_heads),
        head_dim: small(shape.head_dim),
        position: blocks as u64 * u64::from(BLOCK_TOKENS),
        mean_real: Box::default(),
        mean_imaginary: Box::default(),
        mean_absolute: Box::default(),
    };
    let mut draws = || (0..bands).map(|_| normal(random)).collect::<Box<[f32]>>();
    let (real, imaginary) = (draws(), draws());
    statistics.mean_absolute = (real.iter().zip(&imaginary))
        .map(|(real, imaginary)| real.hypot(*imaginary) / CONCENTRATION)
        .collect();
    statistics.mean_real = real;
    statistics.mean_imaginary = imaginary;
    statistics
}

/// The query as a request has it: vectors in f16, statistics in f32.
#[must_use]
pub fn on_wire(query: &OnlineQuery) -> v1::QueryVectors {
    let mut wire = v1::QueryVectors {
        frame: v1::RopeFrame::PostRope.into(),
        pair_layout: v1::PairLayout::Half.into(),
        ..v1::QueryVectors::default()
    };
    if let Some(vectors) = &query.vectors {
        wire.element_type = v1::ElementType::F16.into();
        wire.layer_ids = vectors.layer_ids.to_vec();
        wire.heads = vectors.heads;
        wire.head_dim = vectors.head_dim;
        wire.group_mean = vectors.group_mean;
        wire.vectors = little_endian(&vectors.values, |value| f16::from_f32(value).to_le_bytes());
    }
    if let Some(calibration) = &query.calibration {
        wire.frame = v1::RopeFrame::PreRope.into();
        wire.element_type = v1::ElementType::F32.into();
        wire.layer_ids = calibration.layer_ids.to_vec();
        wire.heads = calibration.heads;
        wire.head_dim = calibration.head_dim;
        wire.position = calibration.position;
        wire.mean_real = little_endian(&calibration.mean_real, f32::to_le_bytes);
        wire.mean_imaginary = little_endian(&calibration.mean_imaginary, f32::to_le_bytes);
        wire.mean_absolute = little_endian(&calibration.mean_absolute, f32::to_le_bytes);
    }
    wire
}

fn little_endian<const BYTES: usize>(values: &[f32], bytes: fn(f32) -> [u8; BYTES]) -> Bytes {
    values.iter().copied().flat_map(bytes).collect()
}

/// Rotation speeds as models of this family have them, without any scaling for length.
fn inverse_frequencies(head_dim: usize) -> Vec<f32> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "summaries hold them in f32"
    )]
    let of_band = |band: usize| ROPE_THETA.powf(-2.0 * band as f64 / head_dim as f64) as f32;
    (0..head_dim / 2).map(of_band).collect()
}

fn small(number: usize) -> u32 {
    u32::try_from(number).expect("arguments are checked")
}
