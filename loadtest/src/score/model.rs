//! Models whose keys are measured, and the algorithms.

use clap::ValueEnum;
use kvatlas::routing::query;
use kvatlas_kernels::score::Aggregate;

/// A model whose keys have a well-known shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Model {
    #[value(name = "llama-3.2-3b")]
    Llama32_3b,
    #[value(name = "llama-3.1-8b")]
    Llama31_8b,
    #[value(name = "llama-3.1-70b")]
    Llama31_70b,
    #[value(name = "qwen3-8b")]
    Qwen3_8b,
}

/// Numbers of layers and heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    pub layers: usize,
    pub query_heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl Model {
    #[must_use]
    pub const fn shape(self) -> ModelShape {
        let (layers, query_heads) = match self {
            Self::Llama32_3b => (28, 24),
            Self::Llama31_8b => (32, 32),
            Self::Llama31_70b => (80, 64),
            Self::Qwen3_8b => (36, 32),
        };
        ModelShape {
            layers,
            query_heads,
            kv_heads: 8,
            head_dim: 128,
        }
    }
}

impl ModelShape {
    /// All (layer, KV head).
    #[must_use]
    pub const fn parts(&self) -> usize {
        self.layers * self.kv_heads
    }

    /// Columns of a row of key means.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.parts() * self.head_dim
    }

    /// Query heads that share a KV head.
    #[must_use]
    pub const fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }
}

/// What a block's score is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Algorithm {
    /// The dot product with the block's mean key.
    KriQ,
    /// The bound from the block's smallest and largest keys.
    Quest,
    /// From calibration statistics and the position.
    KriT,
}

impl Algorithm {
    /// As the service knows it, with means over the query heads of a group.
    #[must_use]
    pub const fn of_service(self) -> query::Algorithm {
        let aggregate = Aggregate::Mean;
        match self {
            Self::KriQ => query::Algorithm::KriQ {
                similarity: query::Similarity::Dot,
                aggregate,
            },
            Self::Quest => query::Algorithm::Quest { aggregate },
            Self::KriT => query::Algorithm::KriT,
        }
    }
}
