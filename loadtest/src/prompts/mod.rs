//! Prompts as retrieval makes them, and the classes of targets that discovery is judged on.

pub mod class;
pub mod donors;
pub mod library;

pub use class::{Class, Target};
pub use donors::{Donor, DonorSet, Group, passages_of};
pub use library::{Library, PieceId};

/// Token ids are drawn below this, the vocabulary of the tokenizer the sample was made with.
pub const VOCABULARY: u32 = 151_936;
/// Tokens of an instruction.
pub const INSTRUCTION_TOKENS: std::ops::RangeInclusive<usize> = 10..=40;
/// Tokens of a question.
pub const QUESTION_TOKENS: usize = 10;
/// Tokens per passage that a prompt of a given length is planned with.
pub const PASSAGE_TOKENS: usize = 256;
/// What stands between the passages of a prompt.
pub const SEPARATOR: u32 = 271;

#[cfg(test)]
mod tests;
