//! The classes that discovery is judged on: those of tokens, and those that need text or a second
//! namespace.

use crate::prompts::Class;

/// What was done to a donor to make a target of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QualityClass {
    /// As the load test has it.
    Tokens(Class),
    /// The same verses in another translation; to be nominated, not verified.
    Paraphrase,
    /// One fact changed.
    FactFlip,
    /// Punctuation, space or a synonym changed.
    Benign,
    /// The donor is in a namespace that differs in one field.
    CrossNamespace,
}

impl QualityClass {
    /// Every class, in the order they are reported.
    pub fn all() -> impl Iterator<Item = Self> {
        let shared = Class::ALL
            .into_iter()
            .filter(|&class| class != Class::Negative);
        shared.map(Self::Tokens).chain([
            Self::Paraphrase,
            Self::FactFlip,
            Self::Benign,
            Self::CrossNamespace,
            Self::Tokens(Class::Negative),
        ])
    }

    /// As reports spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tokens(class) => class.name(),
            Self::Paraphrase => "paraphrase",
            Self::FactFlip => "fact_flip",
            Self::Benign => "benign",
            Self::CrossNamespace => "cross_namespace",
        }
    }

    /// Whether any donor found is a fault.
    #[must_use]
    pub const fn must_miss(self) -> bool {
        matches!(self, Self::CrossNamespace | Self::Tokens(Class::Negative))
    }
}
