//! Real prompts: an instruction, passages of one address, and a question.

use std::io::Read;

use flate2::read::GzDecoder;
use serde::Deserialize;

use crate::cli::error::CliError;

const PASSAGES: &[u8] = include_bytes!("../../../../examples/passages.jsonl.gz");
/// More than the bundled file holds.
const PASSAGES_BYTES_MAX: u64 = 16 << 20;
/// Passages in one prompt.
const PROMPT_PASSAGES: usize = 8;
/// The last addresses make no donors, so that nobody has seen their passages.
const UNSEEN_ADDRESSES: usize = 3;
const INSTRUCTION_TOKENS: usize = 24;
const OTHER_INSTRUCTION_TOKENS: usize = 31;
const QUESTION_TOKENS: usize = 10;
const SHIFT_TOKENS: usize = 37;
/// One token in so many is edited.
const EDIT_ONE_IN: u64 = 40;
const SEED: u64 = 42;

#[derive(Debug, Deserialize)]
struct Line {
    doc: String,
    tokens: Vec<u32>,
}

/// The prompts of the tour.
#[derive(Debug)]
pub(super) struct Prompts {
    pub(super) donors: Vec<Prompt>,
    unseen: Prompt,
    other_instruction: Vec<u32>,
    other_question: Vec<u32>,
}

#[derive(Debug, Clone)]
pub(super) struct Prompt {
    /// The year of the address, and which part of it.
    pub(super) id: String,
    instruction: Vec<u32>,
    passages: Vec<Vec<u32>>,
    question: Vec<u32>,
}

/// How a new prompt differs from the donor that it was made from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    Identical,
    NextTurn,
    OtherInstruction,
    Reordered,
    Shifted,
    Edited,
    Unrelated,
}

impl Change {
    pub(super) const ALL: [Self; 7] = [
        Self::Identical,
        Self::NextTurn,
        Self::OtherInstruction,
        Self::Reordered,
        Self::Shifted,
        Self::Edited,
        Self::Unrelated,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Identical => "identical",
            Self::NextTurn => "the next turn",
            Self::OtherInstruction => "other instruction",
            Self::Reordered => "reordered",
            Self::Shifted => "shifted by 37",
            Self::Edited => "1 in 40 edited",
            Self::Unrelated => "unrelated",
        }
    }
}

/// Reads the bundled passages and builds the prompts.
pub(super) fn read() -> Result<Prompts, CliError> {
    let mut text = String::new();
    GzDecoder::new(PASSAGES)
        .take(PASSAGES_BYTES_MAX)
        .read_to_string(&mut text)?;
    let lines: Result<Vec<Line>, _> = text.lines().map(serde_json::from_str).collect();
    let lines = lines.map_err(CliError::server)?;
    let addresses: Vec<&[Line]> = lines.chunk_by(|a, b| a.doc == b.doc).collect();
    let (seen, unseen) = addresses.split_at(addresses.len().saturating_sub(UNSEEN_ADDRESSES));
    let bundled = || CliError::Server("the bundled passages are incomplete".into());
    let [for_prompt, for_words, ..] = unseen else {
        return Err(bundled());
    };
    let words = &for_words.first().ok_or_else(bundled)?.tokens;
    let mut at = 0;
    let mut take = |count: usize| {
        at += count;
        words.get(at - count..at).map(<[u32]>::to_vec)
    };
    let instruction = take(INSTRUCTION_TOKENS).ok_or_else(bundled)?;
    let other_instruction = take(OTHER_INSTRUCTION_TOKENS).ok_or_else(bundled)?;
    let other_question = take(QUESTION_TOKENS).ok_or_else(bundled)?;
    let prompts = |address: &&[Line]| prompts(address, &instruction);
    let donors: Vec<Prompt> = seen.iter().flat_map(prompts).collect();
    let unseen = prompts(for_prompt).into_iter().next();
    Ok(Prompts {
        donors,
        unseen: unseen.ok_or_else(bundled)?,
        other_instruction,
        other_question,
    })
}

/// The prompts over one address: each has the next passages, and asks with its own question.
fn prompts(address: &[Line], instruction: &[u32]) -> Vec<Prompt> {
    let parts = address.chunks_exact(PROMPT_PASSAGES).enumerate();
    parts
        .map(|(part, lines)| {
            let year: String = lines[0]
                .doc
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            let passages: Vec<Vec<u32>> = lines.iter().map(|line| line.tokens.clone()).collect();
            // Words of the address itself stand in for a question about it.
            let question = passages[0].iter().rev().take(QUESTION_TOKENS);
            Prompt {
                id: format!("{year}-{}", part + 1),
                instruction: instruction.to_vec(),
                question: question.copied().collect(),
                passages,
            }
        })
        .collect()
}

impl Prompt {
    pub(super) fn tokens(&self) -> Vec<u32> {
        let parts = [&self.instruction]
            .into_iter()
            .chain(&self.passages)
            .chain([&self.question]);
        parts.flatten().copied().collect()
    }
}

impl Prompts {
    /// The donor that new prompts are made from.
    pub(super) fn subject(&self) -> Option<&Prompt> {
        self.donors.get(self.donors.len() / 2)
    }

    /// The subject under a change.
    pub(super) fn changed(&self, change: Change) -> Vec<u32> {
        let Some(subject) = self.subject() else {
            return Vec::new();
        };
        let mut prompt = subject.clone();
        match change {
            Change::Identical => prompt.tokens(),
            Change::NextTurn => {
                let turn = [self.other_instruction.as_slice(), &self.other_question];
                [prompt.tokens(), turn.concat()].concat()
            }
            Change::OtherInstruction => self.rewrapped(prompt).tokens(),
            Change::Reordered => {
                prompt.passages.reverse();
                prompt.passages.swap(0, PROMPT_PASSAGES / 2);
                self.rewrapped(prompt).tokens()
            }
            Change::Shifted => {
                let tokens = prompt.tokens();
                let front = self.unseen.tokens();
                [&front[..SHIFT_TOKENS.min(front.len())], tokens.as_slice()].concat()
            }
            Change::Edited => edited(&prompt.tokens()),
            Change::Unrelated => self.unseen.tokens(),
        }
    }

    fn rewrapped(&self, prompt: Prompt) -> Prompt {
        Prompt {
            instruction: self.other_instruction.clone(),
            question: self.other_question.clone(),
            ..prompt
        }
    }
}

/// Tokens changed, dropped and doubled in turn.
fn edited(tokens: &[u32]) -> Vec<u32> {
    let mut state = SEED;
    let mut edited = Vec::with_capacity(tokens.len());
    for &token in tokens {
        let random = split_mix(&mut state);
        if !random.is_multiple_of(EDIT_ONE_IN) {
            edited.push(token);
            continue;
        }
        match random / EDIT_ONE_IN % 3 {
            0 => {}
            1 => edited.extend([token, token]),
            _ => edited.push(token ^ 1),
        }
    }
    edited
}

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn prompts_are_whole_and_their_ids_unique() {
        let prompts = read().unwrap();
        let ids: HashSet<&str> = prompts
            .donors
            .iter()
            .map(|donor| donor.id.as_str())
            .collect();
        assert_eq!(ids.len(), prompts.donors.len());
        assert!(ids.len() > 40, "{}", ids.len());
        for donor in &prompts.donors {
            assert!(donor.tokens().len() > 1_500, "{}", donor.id);
        }
    }

    #[test]
    fn every_change_but_identical_changes_the_prompt() {
        let prompts = read().unwrap();
        let subject = prompts.subject().unwrap().tokens();
        assert_eq!(prompts.changed(Change::Identical), subject);
        for change in &Change::ALL[1..] {
            assert_ne!(prompts.changed(*change), subject, "{change:?}");
        }
        let edits = prompts.changed(Change::Edited);
        let same = edits.iter().zip(&subject).take_while(|(a, b)| a == b);
        assert!(same.count() < 200, "an edit comes early");
    }
}
