//! Encoders: the query of a model's layer 0 from tokens, before the engine's first forward pass.
//!
//! Pure: `config`, `rope`, `forward`. Around them: `weights` (mapped files), `registry` (which
//! folders there are).

pub mod config;
mod forward;
pub mod registry;
pub mod rope;
#[cfg(test)]
mod tests;
mod weights;

use std::path::Path;

use kvatlas_kernels::Element;
use thiserror::Error;

use self::config::ModelConfig;
use self::rope::{Rope, Rotation};
pub use self::weights::ModelError;
use self::weights::Weights;
use super::frame::{KeyFrame, PairLayout, RopeFrame};
use super::query::{ELEMENT_MAX, QueryVectors};

pub const TOKENS_MAX: usize = 4096;
/// Positions that a mean is taken over.
pub const MEAN_MAX: u32 = 64;
/// Positions are in f32 where models rotate; this is the last that f32 tells from its neighbours.
pub const POSITION_MAX: u64 = 1 << 24;
/// How far a key's frequencies and factor may be from the model's: transformers computes them in
/// f32, which is off by less, and another model's are off by more.
const RELATIVE_DIFFERENCE_MAX: f64 = 1e-5;

/// A model folder whose layer 0 is mapped.
#[derive(Debug)]
pub struct Encoder {
    pub config: ModelConfig,
    pub rope: Rope,
    /// Of the weights.
    pub element: Element,
    weights: Weights,
}

/// Why an encoder gives no query. No message carries a token.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum EncoderError {
    #[error("query_tokens.tokens: {found} tokens, must be 1 to {TOKENS_MAX}")]
    Tokens { found: usize },
    #[error("query_tokens.tokens: one is outside the encoder's vocabulary of {vocabulary_size}")]
    Vocabulary { vocabulary_size: u32 },
    #[error("query_tokens.mean_of_last: {found}, at most {MEAN_MAX}")]
    MeanOfLast { found: u32 },
    #[error("query_tokens.mean_of_last: {found}, but there are only {tokens} tokens")]
    MeanBeyondTokens { found: u32, tokens: usize },
    #[error("query_tokens.start_position: the last token's position is above {POSITION_MAX}")]
    Position,
    #[error("the key summary does not hold layer 0, which is the only one that encoders know")]
    Layer,
    #[error("the key summary's channels are interleaved, the encoder's in halves")]
    Layout,
    #[error("the key summary has {found} KV heads, the encoder {wanted}")]
    KvHeads { found: u32, wanted: u32 },
    #[error("the key summary has {found} frequencies, the encoder {wanted}")]
    Bands { found: usize, wanted: usize },
    #[error("the key summary's frequency of band {band} is {found}, the encoder's {wanted}")]
    Frequency {
        band: usize,
        found: f32,
        wanted: f32,
    },
    #[error("the key summary's attention_scaling is {found}, the encoder's {wanted}")]
    AttentionScaling { found: f32, wanted: f32 },
    #[error("the encoder's files have changed since it was put: put it again")]
    Changed,
    #[error("the encoder's weights give a query with a channel beyond {ELEMENT_MAX}")]
    OutOfBounds,
}

impl EncoderError {
    /// Whether the request is to be changed, rather than what is stored.
    #[must_use]
    pub fn is_of_request(&self) -> bool {
        match self {
            Self::Tokens { .. }
            | Self::Vocabulary { .. }
            | Self::MeanOfLast { .. }
            | Self::MeanBeyondTokens { .. }
            | Self::Position => true,
            Self::Layer
            | Self::Layout
            | Self::KvHeads { .. }
            | Self::Bands { .. }
            | Self::Frequency { .. }
            | Self::AttentionScaling { .. }
            | Self::Changed
            | Self::OutOfBounds => false,
        }
    }
}

impl Encoder {
    /// Of every model that is supported.
    pub const LAYOUT: PairLayout = PairLayout::Half;

    /// Maps a model folder. The files may be symbolic links, as long as they stay below `root`,
    /// which is canonical.
    ///
    /// # Errors
    /// Whatever is wrong with the folder, by file and field.
    pub fn open(folder: &Path, root: &Path) -> Result<Self, ModelError> {
        let config = weights::read_config(folder, root)?;
        let rope = Rope::new(&config.rope, config.head_dim);
        if !rope.is_sound() {
            return Err(ModelError::Rope);
        }
        let weights = Weights::open(folder, root, &config)?;
        Ok(Self {
            config,
            rope,
            element: weights.element(),
            weights,
        })
    }

    /// The query of the last position, or the mean over the last `mean_of_last` ones (0 counts as
    /// 1), in the frame of the keys. Reads W_q once, so it takes as long as that takes.
    ///
    /// # Errors
    /// Tokens or positions outside their limits, keys of another model or without layer 0, and
    /// files that have changed.
    pub fn query(
        &self,
        tokens: &[u32],
        start_position: u64,
        mean_of_last: u32,
        frame: &KeyFrame,
    ) -> Result<QueryVectors, EncoderError> {
        self.check_frame(frame)?;
        let tokens = self.check_tokens(tokens, start_position, mean_of_last)?;
        if !self.weights.are_unchanged() {
            return Err(EncoderError::Changed);
        }
        // By the keys' own numbers, once it is known that they are the model's: what differs in the
        // last bits is a whole turn at a late position.
        let rotation = |position| Rotation::at(position, &frame.inv_freq, frame.attention_scaling);
        let rotations: Option<Vec<_>> = match frame.rope {
            RopeFrame::PreRope => None,
            RopeFrame::PostRope => Some(tokens.positions.clone().map(rotation).collect()),
        };
        let layer = self.weights.layer();
        let values = forward::mean_query(&layer, &self.config, tokens.ids, rotations.as_deref());
        // A NaN is not below it either.
        if !values.iter().all(|value| value.abs() <= ELEMENT_MAX) {
            return Err(EncoderError::OutOfBounds);
        }
        Ok(QueryVectors {
            rope: frame.rope,
            layout: Self::LAYOUT,
            layer_ids: Box::new([0]),
            heads: self.config.heads,
            head_dim: self.config.head_dim,
            group_mean: false,
            values,
        })
    }

    fn check_tokens<'a>(
        &self,
        tokens: &'a [u32],
        start_position: u64,
        mean_of_last: u32,
    ) -> Result<LastTokens<'a>, EncoderError> {
        let found = tokens.len();
        if !(1..=TOKENS_MAX).contains(&found) {
            return Err(EncoderError::Tokens { found });
        }
        let vocabulary_size = self.config.vocabulary_size;
        if tokens.iter().any(|&token| token >= vocabulary_size) {
            return Err(EncoderError::Vocabulary { vocabulary_size });
        }
        if mean_of_last > MEAN_MAX {
            let found = mean_of_last;
            return Err(EncoderError::MeanOfLast { found });
        }
        let count = mean_of_last.max(1) as usize;
        let first = found.checked_sub(count);
        let first = first.ok_or(EncoderError::MeanBeyondTokens {
            found: mean_of_last,
            tokens: found,
        })?;
        let end = start_position.checked_add(found as u64);
        let end = end.filter(|end| *end <= POSITION_MAX + 1);
        let end = end.and_then(|end| u32::try_from(end).ok());
        let end = end.ok_or(EncoderError::Position)?;
        Ok(LastTokens {
            ids: &tokens[first..],
            positions: end - mean_of_last.max(1)..end,
        })
    }

    // What disagrees here would score garbage without a word.
    fn check_frame(&self, frame: &KeyFrame) -> Result<(), EncoderError> {
        if !frame.layer_ids.contains(&0) {
            return Err(EncoderError::Layer);
        }
        match frame.layout {
            PairLayout::Half => {}
            PairLayout::Interleaved => return Err(EncoderError::Layout),
        }
        let wanted = self.rope.inv_freq.len();
        if frame.inv_freq.len() != wanted {
            let found = frame.inv_freq.len();
            return Err(EncoderError::Bands { found, wanted });
        }
        let frequencies = frame.inv_freq.iter().zip(&self.rope.inv_freq);
        for (band, (&found, &wanted)) in frequencies.enumerate() {
            if !is_close(found, wanted) {
                return Err(EncoderError::Frequency {
                    band,
                    found,
                    wanted,
                });
            }
        }
        let (found, wanted) = (frame.attention_scaling, self.rope.attention_scaling);
        if !is_close(found, wanted) {
            return Err(EncoderError::AttentionScaling { found, wanted });
        }
        Ok(())
    }
}

/// The tokens that a query is taken from, and where they are.
struct LastTokens<'a> {
    ids: &'a [u32],
    positions: std::ops::Range<u32>,
}

fn is_close(found: f32, wanted: f32) -> bool {
    let (found, wanted) = (f64::from(found), f64::from(wanted));
    (found - wanted).abs() <= RELATIVE_DIFFERENCE_MAX * wanted.abs()
}
