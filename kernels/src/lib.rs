//! Kernels over block scores. Each fast version has a scalar twin that is its specification.

pub mod cuda;
mod dot1;
mod dot8;
mod matvec;
mod pool;
mod prefetch;
mod probe;
pub mod prompt;
mod rank;
pub mod score;
mod scores;
pub mod screen;
mod signs;

pub use dot1::{DOT1_LANES, DOT1_WORD, Dot1, Dot1Words, dot1_place, dot1_scalar};
pub use dot8::{DOT8_LENGTH_MAX, Dot8, dot8_scalar};
pub use matvec::{Element, Matrix, matvec, matvec_scalar};
pub use pool::{Pooling, pool, pool_scalar};
pub use prefetch::prefetch;
pub use probe::{probe, probe_scalar};
pub use rank::{Score, rank, rank_rows, rank_scalar};
pub use scores::Scores;
pub use signs::{SIGNS_LANES, Signed, add_signed, add_signed_scalar};
