//! Embeddings of prompt text, where the operator has enabled text and given a model: they may
//! nominate a donor, and never accept one.

pub mod embedder;
pub mod model;
mod runtime;
pub mod segments;

pub use embedder::{EmbedRefusal, Embedder, EmbedderWorker};
pub use model::{ModelFiles, OpenError, TextModel};
pub use segments::segments;

/// Turns texts into vectors of unit length, in order. The whole of a queue's logic is tested with
/// a fake one.
pub trait Embed: Send {
    /// Elements of each vector.
    fn dimensions(&self) -> usize;

    /// One vector for each text.
    ///
    /// # Errors
    /// When the model fails; never says anything about the texts.
    fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelFailure>;
}

/// What is wrong with what a model made of texts. The texts themselves may stand in the model's
/// own messages, so that these are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ModelFailure {
    #[error("it could not be run")]
    Run,
    #[error("it panicked")]
    Panicked,
    #[error("it made another number of vectors than there were texts")]
    Count,
    #[error("a vector has other dimensions than the model")]
    Dimensions,
    #[error("a vector does not have unit length")]
    Length,
}

/// How far a vector's squared length may be from 1.
const LENGTH_TOLERANCE: f32 = 1e-3;

// What is not finite has no unit length either.
fn check(vectors: &[Vec<f32>], texts: usize, dimensions: usize) -> Result<(), ModelFailure> {
    if vectors.len() != texts {
        return Err(ModelFailure::Count);
    }
    for vector in vectors {
        if vector.len() != dimensions {
            return Err(ModelFailure::Dimensions);
        }
        let square: f32 = vector.iter().map(|value| value * value).sum();
        let is_unit = (square - 1.0).abs() <= LENGTH_TOLERANCE;
        if !is_unit {
            return Err(ModelFailure::Length);
        }
    }
    Ok(())
}
