//! The donors: prompts of an instruction, several passages and a question, in four groups.

use std::ops::Range;

use super::{
    INSTRUCTION_TOKENS, Library, PASSAGE_TOKENS, PieceId, QUESTION_TOKENS, SEPARATOR, VOCABULARY,
};
use crate::random::Random;

/// Tokens that every donor of the preamble group begins with.
pub const PREAMBLE_TOKENS: usize = 500;
/// Donors made from one template, at most.
const TEMPLATE_DONORS_MAX: usize = 40;
/// Donors behind the shared preamble, at most.
const PREAMBLE_DONORS_MAX: usize = 1000;
/// A template has a variable of 1 to 3 tokens in every stretch of so many.
const VARIABLE_EVERY_TOKENS: usize = 60;
const VARIABLE_TOKENS: std::ops::RangeInclusive<usize> = 1..=3;
/// Sets the randomness of donors apart from everything else's.
const DONORS_PURPOSE: u64 = 0x00D0_0000;
/// Passages that the preamble takes the place of.
const PREAMBLE_PASSAGES: usize = PREAMBLE_TOKENS.div_ceil(PASSAGE_TOKENS);

/// How a donor was made, and so which classes can be made from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Instruction, passages, question.
    Plain,
    /// One text, other names and numbers.
    Template,
    /// Behind a preamble that all share.
    Preamble,
    /// Half of it is one template, half is its own.
    Crowd,
}

/// A prompt that is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Donor {
    pub group: Group,
    pub tokens: Vec<u32>,
    /// The passages in it, in order, without those of a shared preamble.
    pub pieces: Vec<PieceId>,
    /// Where the first passage begins.
    pub body_start: usize,
}

/// Every donor, as what is needed to make it: its passages, and what groups of donors share. Its
/// tokens are made whenever they are asked for, so that a million donors take little memory here.
#[derive(Debug)]
pub struct DonorSet {
    pub library: Library,
    pub count: usize,
    /// Tokens of each.
    pub tokens_each: usize,
    pub preamble: Vec<u32>,
    /// The passages that the preamble is made of.
    preamble_pieces: Vec<PieceId>,
    template: Donor,
    crowd_opening: Vec<u32>,
    crowd_head: Vec<PieceId>,
    /// Passages of each donor, as many for every one.
    pieces: Vec<PieceId>,
    random: Random,
}

impl DonorSet {
    /// `count` donors of `tokens_each` tokens.
    #[must_use]
    pub fn new(library: Library, count: usize, tokens_each: usize, random: &mut Random) -> Self {
        let passages = passages_of(tokens_each);
        let preamble_pieces = library.draw_seen(PREAMBLE_PASSAGES, random);
        let mut preamble = join(&library, &preamble_pieces, SEPARATOR);
        fit(&mut preamble, PREAMBLE_TOKENS, random);
        let template_pieces = library.draw_seen(passages, random);
        let opening = instruction(random);
        let mut template = compose(&library, opening, &template_pieces, random);
        fit(&mut template.tokens, tokens_each, random);
        let mut set = Self {
            crowd_head: library.draw_seen(passages / 2, random),
            crowd_opening: instruction(random),
            random: random.branch(DONORS_PURPOSE),
            library,
            count,
            tokens_each,
            preamble,
            preamble_pieces,
            template,
            pieces: Vec::with_capacity(count * passages),
        };
        for index in 0..count {
            let pieces = set.draw(index);
            set.pieces.extend(pieces);
        }
        set
    }

    /// The donors of a group, by index.
    #[must_use]
    pub fn members(&self, group: Group) -> Range<usize> {
        let shared = (self.count / 20).clamp(2, TEMPLATE_DONORS_MAX);
        let behind = (self.count / 10).clamp(2, PREAMBLE_DONORS_MAX);
        match group {
            Group::Template => 0..shared,
            Group::Crowd => shared..2 * shared,
            Group::Preamble => 2 * shared..2 * shared + behind,
            Group::Plain => 2 * shared + behind..self.count,
        }
    }

    /// The donor with an index. One past the last is a further plain one, that no target is made
    /// from.
    #[must_use]
    pub fn donor(&self, index: usize) -> Donor {
        let random = &mut self.random.branch(2 * index as u64);
        let group = self.group(index);
        let pieces = self.pieces_of(index);
        let library = &self.library;
        let mut donor = match group {
            Group::Template => Donor {
                tokens: with_variables(&self.template.tokens, random),
                ..self.template.clone()
            },
            Group::Crowd => compose(library, self.crowd_opening.clone(), &pieces, random),
            Group::Preamble => {
                let opening = [self.preamble.clone(), instruction(random)].concat();
                compose(library, opening, &pieces[PREAMBLE_PASSAGES..], random)
            }
            Group::Plain => compose(library, instruction(random), &pieces, random),
        };
        donor.group = group;
        fit(&mut donor.tokens, self.tokens_each, random);
        donor
    }

    /// Every passage in a donor, also those of a preamble.
    #[must_use]
    pub fn pieces_of(&self, index: usize) -> Vec<PieceId> {
        let passages = passages_of(self.tokens_each);
        match self.pieces.get(index * passages..(index + 1) * passages) {
            Some(pieces) => pieces.to_vec(),
            None => self.draw(index),
        }
    }

    /// What [`DonorSet::pieces_of`] gives for each donor in turn.
    pub fn pieces_of_each(&self) -> impl Iterator<Item = &[PieceId]> {
        self.pieces.chunks_exact(passages_of(self.tokens_each))
    }

    fn group(&self, index: usize) -> Group {
        [Group::Template, Group::Crowd, Group::Preamble]
            .into_iter()
            .find(|&group| self.members(group).contains(&index))
            .unwrap_or(Group::Plain)
    }

    fn draw(&self, index: usize) -> Vec<PieceId> {
        let random = &mut self.random.branch(2 * index as u64 + 1);
        let passages = passages_of(self.tokens_each);
        let mut pieces = match self.group(index) {
            Group::Template => return self.template.pieces.clone(),
            Group::Preamble => {
                let own = passages - PREAMBLE_PASSAGES;
                let mut pieces = self.preamble_pieces.clone();
                pieces.extend(self.library.draw_seen(own, random));
                return pieces;
            }
            Group::Crowd => self.crowd_head.clone(),
            Group::Plain => Vec::with_capacity(passages),
        };
        while pieces.len() < passages {
            let drawn = self.library.draw_seen(1, random);
            if !pieces.contains(&drawn[0]) {
                pieces.extend(drawn);
            }
        }
        pieces
    }
}

/// Passages of a prompt of about so many tokens.
#[must_use]
pub const fn passages_of(tokens: usize) -> usize {
    tokens / PASSAGE_TOKENS
}

/// Opening, passages, question.
pub(super) fn compose(
    library: &Library,
    opening: Vec<u32>,
    pieces: &[PieceId],
    random: &mut Random,
) -> Donor {
    let body_start = opening.len();
    let mut tokens = opening;
    tokens.extend(join(library, pieces, SEPARATOR));
    tokens.extend(noise(QUESTION_TOKENS, random));
    Donor {
        group: Group::Plain,
        tokens,
        pieces: pieces.to_vec(),
        body_start,
    }
}

/// Cuts to `length`, or adds what stands for the beginning of an answer.
pub(super) fn fit(tokens: &mut Vec<u32>, length: usize, random: &mut Random) {
    let missing = length.saturating_sub(tokens.len());
    tokens.extend(noise(missing, random));
    tokens.truncate(length);
}

/// The passages with a separator between each two.
pub(super) fn join(library: &Library, pieces: &[PieceId], separator: u32) -> Vec<u32> {
    let mut tokens = Vec::new();
    for (at, &piece) in pieces.iter().enumerate() {
        if at > 0 {
            tokens.push(separator);
        }
        library.put(piece, &mut tokens);
    }
    tokens
}

/// The same text with other names and numbers.
pub(super) fn with_variables(template: &[u32], random: &mut Random) -> Vec<u32> {
    let mut tokens = template.to_vec();
    for stretch in tokens.chunks_mut(VARIABLE_EVERY_TOKENS) {
        let length = random.within(&VARIABLE_TOKENS).min(stretch.len());
        // At one place in all copies: that is what makes it a template.
        for token in stretch.iter_mut().rev().take(length) {
            *token = random.below_u32(VOCABULARY);
        }
    }
    tokens
}

pub(super) fn instruction(random: &mut Random) -> Vec<u32> {
    let length = random.within(&INSTRUCTION_TOKENS);
    noise(length, random)
}

/// Random token ids: no two of these share a run, so what is shared is known by construction.
pub(super) fn noise(length: usize, random: &mut Random) -> Vec<u32> {
    (0..length).map(|_| random.below_u32(VOCABULARY)).collect()
}
