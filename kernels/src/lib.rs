//! Kernels over block scores. Each fast version has a scalar twin that is its specification.

pub mod cuda;
mod dot8;
mod matvec;
mod pool;
pub mod prompt;
mod rank;
pub mod score;
mod scores;
pub mod screen;

pub use dot8::{DOT8_LENGTH_MAX, Dot8, dot8_scalar};
pub use matvec::{Element, Matrix, matvec, matvec_scalar};
pub use pool::{Pooling, pool, pool_scalar};
pub use rank::{Score, rank, rank_rows, rank_scalar};
pub use scores::Scores;
