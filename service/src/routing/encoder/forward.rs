//! The query of layer 0: q = RoPE(W_q norm(embed(token))).

use kvatlas_kernels::{Element, Matrix, matvec};

use super::config::ModelConfig;
use super::rope::Rotation;

/// The weights of layer 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer<'a> {
    /// `[vocabulary, hidden]`.
    pub(super) embedding: Matrix<'a>,
    /// `[hidden]`.
    pub(super) norm: Matrix<'a>,
    /// W_q: `[heads, head_dim, hidden]`.
    pub(super) query: Matrix<'a>,
    /// `[heads, head_dim]`.
    pub(super) query_bias: Option<Matrix<'a>>,
    /// `[head_dim]`.
    pub(super) query_norm: Option<Matrix<'a>>,
}

/// The query vectors `[heads, head_dim]` of the tokens, the mean over them. Each token is rotated
/// by its rotation; without rotations none is.
///
/// W_q is read once for all tokens. Its input is rounded as transformers rounds it, to the type of
/// the weights; everything after it stays in f32, where transformers rounds on.
///
/// # Panics
/// Without tokens, with one that is no row of the embedding, and with other than as many rotations.
pub(super) fn mean_query(
    layer: &Layer<'_>,
    config: &ModelConfig,
    tokens: &[u32],
    rotations: Option<&[Rotation]>,
) -> Box<[f32]> {
    let normed: Vec<f32> = tokens
        .iter()
        .flat_map(|&token| input(layer, config, token))
        .collect();
    let size = layer.query.rows();
    let mut queries = vec![0.0; tokens.len() * size];
    matvec(&layer.query, &normed, &mut queries);

    let bias: Option<Vec<f32>> = layer.query_bias.map(|bias| bias.elements(0).collect());
    let norm: Option<Vec<f32>> = layer.query_norm.map(|norm| norm.elements(0).collect());
    let mut sum = vec![0.0_f32; size];
    for (position, query) in queries.chunks_exact_mut(size).enumerate() {
        for (value, bias) in query.iter_mut().zip(bias.iter().flatten()) {
            *value += bias;
        }
        for head in query.chunks_exact_mut(config.head_dim as usize) {
            if let Some(norm) = &norm {
                let factor = norm_factor(head, config.norm_epsilon);
                for (value, weight) in head.iter_mut().zip(norm) {
                    *value *= factor * weight;
                }
            }
            if let Some(rotations) = rotations {
                rotations[position].apply(head);
            }
        }
        for (sum, value) in sum.iter_mut().zip(query) {
            *sum += *value;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a few tokens")]
    let count = tokens.len() as f32;
    sum.into_iter().map(|sum| sum / count).collect()
}

/// The token's embedding after the first norm, rounded where the model's own type rounds.
fn input(layer: &Layer<'_>, config: &ModelConfig, token: u32) -> Vec<f32> {
    let element: Element = layer.query.element();
    let embedding: Vec<f32> = layer.embedding.elements(token as usize).collect();
    let factor = norm_factor(&embedding, config.norm_epsilon);
    let weighted = embedding.iter().zip(layer.norm.elements(0));
    weighted
        .map(|(value, weight)| element.round(weight * element.round(value * factor)))
        .collect()
}

/// What an RMS norm multiplies by: 1 / sqrt(mean of squares + epsilon).
fn norm_factor(values: &[f32], epsilon: f64) -> f32 {
    let squares: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
    #[expect(clippy::cast_precision_loss, reason = "a width, far below 2^52")]
    let mean = squares / values.len() as f64;
    #[expect(clippy::cast_possible_truncation, reason = "the norm is in f32")]
    let factor = (mean + epsilon).sqrt().recip() as f32;
    factor
}
