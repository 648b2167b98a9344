//! Prompts that carry text: one token for each word and each punctuation mark.
//!
//! A changed word changes one token and leaves all others as they are, so that what a changed
//! text shares with its original is known by construction.

use crate::prompts::VOCABULARY;

/// A prompt's text and its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub text: String,
    pub tokens: Vec<u32>,
}

impl Prompt {
    /// The text with its tokens.
    #[must_use]
    pub fn new(text: String) -> Self {
        let tokens = tokenize(&text);
        Self { text, tokens }
    }
}

/// The token ids of a text: each is a hash of the word alone, whatever stands around it. Space
/// between words has no token.
#[must_use]
pub fn tokenize(text: &str) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(text.len() / 4);
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = if is_word(first) {
            rest.find(|letter| !is_word(letter)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (word, behind) = rest.split_at(end);
        tokens.push(token(word));
        rest = behind.trim_start();
    }
    tokens
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_' || letter == '\''
}

/// FNV-1a, folded into the vocabulary.
fn token(word: &str) -> u32 {
    let hash = word.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    u32::try_from((hash ^ (hash >> 32)) % u64::from(VOCABULARY)).expect("below the vocabulary")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_word_changes_its_token_alone() {
        let before = tokenize("The Senate did not approve 12 bills.");
        let after = tokenize("The Senate did not approve 13 bills.");
        assert_eq!(before.len(), 8);
        let changed: Vec<usize> = (0..8).filter(|&at| before[at] != after[at]).collect();
        assert_eq!(changed, [5]);
    }

    #[test]
    fn space_has_no_token_and_punctuation_has() {
        assert_eq!(tokenize(" a  b\nc "), tokenize("a b c"));
        assert_eq!(tokenize("a, b").len(), 3);
        assert_eq!(tokenize("user_7 don't").len(), 2);
        assert!(tokenize(" ").is_empty());
    }
}
