//! Key summaries: what online scoring reads of a prefix's keys, put once and mapped.
//!
//! A file comes in one of two contents, as `.pt` or safetensors, in f16, bf16, f32 or f64. Names
//! are those of [`TensorFile`](super::import::TensorFile); L layers, H KV heads, N blocks, T
//! tokens, D head_dim.
//!
//! | a summary | shape | |
//! |---|---|---|
//! | `key_means` | `[L, H, N, D]` | means of the blocks' keys |
//! | `key_min`, `key_max` | `[L, H, N, D]` | smallest, largest of each channel; both or neither |
//! | `key_magnitudes` | `[L, H, N, D / 2]` | mean length of each band's pair, optional |
//!
//! | a cartridge | shape | |
//! |---|---|---|
//! | `frozen_keys.<l>`, `trainable_keys.<l>` | `[1, H, T, D]` or `[H, T, D]` | in this order |
//! | `fixed_keys.<l>`, `trainable_keys.<l>` | likewise | as older files call the frozen ones |
//! | `<l>.0` | likewise | a list of (keys, values) |
//! | `layers.<l>.keys` | likewise | |
//!
//! The trained and the frozen ones are lists or torch's `ParameterList`s. Any other `<x>_keys`
//! beside them is refused: it would move the tokens. The values of a cartridge are not looked at.
//! Its summary has everything that there is to have.
//!
//! ```text
//! mapped file -> content (names, shapes) -> block (one block of one head) -> build (rows, tiles)
//!                                                   -> blobs, one a table -> record -> published
//! ```
//!
//! Each table is a blob of its own, so that each is written in one go and hashed as it goes,
//! without a second pass over a file of several sections. Blobs are mapped, so that every table
//! begins on a page.

mod block;
mod build;
mod check;
mod content;
mod error;
mod key_summary;
mod record;
mod summaries;
mod tables;
#[cfg(test)]
mod tests;

pub use self::check::check_frame;
pub use self::content::Content;
pub use self::error::{FrameError, PutSummaryError, SummaryError, ValueProblem};
pub use self::key_summary::KeySummary;
pub use self::summaries::{LoadReport, PutOutcome, Summaries, SummaryUpload};
pub use self::tables::Tables;

/// Key summaries of one store. Each maps up to eight files, of some 65,000 that a process may map.
pub const SUMMARIES_MAX: usize = 4096;
pub const HEAD_DIM_MAX: usize = 1024;
/// Elements of a row of means, layers x KV heads x head_dim: twelve times Llama-3.1-70B's. A put
/// holds a few rows in memory.
pub const ROW_ELEMENTS_MAX: usize = 1 << 20;
