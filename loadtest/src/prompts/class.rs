//! The classes of targets, each made from a donor by one change.

use super::{
    Donor, DonorSet, Group, INSTRUCTION_TOKENS, Library, PASSAGE_TOKENS, PieceId, QUESTION_TOKENS,
    SEPARATOR, VOCABULARY,
    donors::{compose, fit, instruction, join, noise, passages_of, with_variables},
};
use crate::random::Random;

/// Tokens that may come in front of a shifted prompt.
const SHIFT_TOKENS: std::ops::RangeInclusive<usize> = 1..=64;
/// One token in so many is changed, dropped or doubled.
const EDIT_ONE_IN: u32 = 40;
/// The default gate: a shorter prompt is not looked up at all.
const PROMPT_MIN_TOKENS: usize = 512;
/// What another chat template puts between passages.
const OTHER_SEPARATOR: u32 = 198;

/// What was done to a donor to make a target of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Nothing.
    Identical,
    /// Another instruction and question.
    Wrapper,
    /// 1 to 64 extra tokens in front.
    Shift,
    /// Passages shuffled, another instruction.
    Reorder,
    /// The first three quarters of the passages, the rest new ones, in another wrapper.
    Partial,
    /// Each token changed, dropped or doubled with probability 1/40.
    Edit,
    /// The two middle passages alone in a new wrapper.
    Contained,
    /// The donor, then an answer and a next question.
    MultiTurn,
    /// Another separator token between passages, another first token.
    Separator,
    /// The same long template, other variables.
    Template,
    /// A preamble that many share, then the donor's passages in another wrapper.
    Preamble,
    /// The same template as some 40 donors; the rest is one donor's.
    Crowd,
    /// Unseen passages.
    Negative,
}

impl Class {
    /// Every class, in the order they are reported.
    pub const ALL: [Self; 13] = [
        Self::Identical,
        Self::Wrapper,
        Self::Shift,
        Self::Reorder,
        Self::Partial,
        Self::Edit,
        Self::Contained,
        Self::MultiTurn,
        Self::Separator,
        Self::Template,
        Self::Preamble,
        Self::Crowd,
        Self::Negative,
    ];

    /// As reports spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identical => "identical",
            Self::Wrapper => "wrapper",
            Self::Shift => "shift",
            Self::Reorder => "reorder",
            Self::Partial => "partial",
            Self::Edit => "edit",
            Self::Contained => "contained",
            Self::MultiTurn => "multi_turn",
            Self::Separator => "separator",
            Self::Template => "template",
            Self::Preamble => "preamble",
            Self::Crowd => "crowd",
            Self::Negative => "negative",
        }
    }

    /// Donors that a target of the class is made from.
    #[must_use]
    pub const fn group(self) -> Group {
        match self {
            Self::Template => Group::Template,
            Self::Preamble => Group::Preamble,
            Self::Crowd => Group::Crowd,
            Self::Identical
            | Self::Wrapper
            | Self::Shift
            | Self::Reorder
            | Self::Partial
            | Self::Edit
            | Self::Contained
            | Self::MultiTurn
            | Self::Separator
            | Self::Negative => Group::Plain,
        }
    }
}

/// A prompt to look up.
#[derive(Debug, Clone)]
pub struct Target {
    pub class: Class,
    pub tokens: Vec<u32>,
    /// The donor it was made from, by index; absent for negatives.
    pub source: Option<usize>,
    /// The seen passages in it.
    pub pieces: Vec<PieceId>,
}

impl Target {
    /// Makes a target of `class` from the donor with the index `source`.
    #[must_use]
    pub fn new(class: Class, source: usize, set: &DonorSet, random: &mut Random) -> Self {
        let donor = &set.donor(source);
        let all = || set.pieces_of(source);
        let (tokens, pieces) = match class {
            Class::Identical => (donor.tokens.clone(), all()),
            Class::Wrapper => (rewrapped(&donor.pieces, set, random), all()),
            Class::Shift => {
                let front = random.within(&SHIFT_TOKENS);
                let moved = [noise(front, random), donor.tokens.clone()].concat();
                (moved, all())
            }
            Class::Reorder => {
                let mut order = donor.pieces.clone();
                random.shuffle(&mut order);
                (rewrapped(&order, set, random), order)
            }
            Class::Partial => partial(donor, set, random),
            Class::Edit => (edited(&donor.tokens, random), all()),
            Class::Contained => contained(donor, &set.library, random),
            Class::MultiTurn => {
                let answer = noise(PASSAGE_TOKENS, random);
                let question = noise(QUESTION_TOKENS, random);
                ([donor.tokens.clone(), answer, question].concat(), all())
            }
            Class::Separator => (separated(donor, &set.library), all()),
            Class::Template => (with_variables(&donor.tokens, random), all()),
            Class::Preamble => (behind_preamble(donor, set, random), all()),
            Class::Crowd => (crowded(donor, set, random), all()),
            Class::Negative => (unseen(set, random), Vec::new()),
        };
        Self {
            class,
            tokens,
            source: (class != Class::Negative).then_some(source),
            pieces,
        }
    }
}

fn rewrapped(pieces: &[PieceId], set: &DonorSet, random: &mut Random) -> Vec<u32> {
    let opening = instruction(random);
    let mut tokens = compose(&set.library, opening, pieces, random).tokens;
    fit(&mut tokens, set.tokens_each, random);
    tokens
}

fn partial(donor: &Donor, set: &DonorSet, random: &mut Random) -> (Vec<u32>, Vec<PieceId>) {
    let kept = donor.pieces[..donor.pieces.len() * 3 / 4].to_vec();
    let mut tokens = instruction(random);
    tokens.extend(join(&set.library, &kept, SEPARATOR));
    for new in set
        .library
        .draw_unseen(donor.pieces.len() - kept.len(), random)
    {
        tokens.push(SEPARATOR);
        tokens.extend_from_slice(new);
    }
    tokens.extend(noise(QUESTION_TOKENS, random));
    fit(&mut tokens, set.tokens_each, random);
    (tokens, kept)
}

fn edited(tokens: &[u32], random: &mut Random) -> Vec<u32> {
    let mut out = Vec::with_capacity(tokens.len() + tokens.len() / 16);
    for &token in tokens {
        if random.below_u32(EDIT_ONE_IN) > 0 {
            out.push(token);
            continue;
        }
        match random.below_u32(3) {
            0 => out.push(random.below_u32(VOCABULARY)),
            1 => {}
            _ => out.extend([token, token]),
        }
    }
    out
}

fn contained(donor: &Donor, library: &Library, random: &mut Random) -> (Vec<u32>, Vec<PieceId>) {
    let middle = donor.pieces.len() / 2;
    let pieces = donor.pieces[middle - 1..=middle].to_vec();
    let body = join(library, &pieces, SEPARATOR);
    // Long enough to be looked up at the default gates.
    let needed = PROMPT_MIN_TOKENS.saturating_sub(body.len() + QUESTION_TOKENS);
    let opening = random.within(&INSTRUCTION_TOKENS).max(needed);
    let tokens = [noise(opening, random), body, noise(QUESTION_TOKENS, random)].concat();
    (tokens, pieces)
}

fn separated(donor: &Donor, library: &Library) -> Vec<u32> {
    let mut tokens = donor.tokens.clone();
    tokens[0] = (tokens[0] + 1) % VOCABULARY;
    let mut at = donor.body_start;
    for &piece in &donor.pieces[..donor.pieces.len() - 1] {
        at += library.length(piece);
        if let Some(separator) = tokens.get_mut(at) {
            *separator = OTHER_SEPARATOR;
        }
        at += 1;
    }
    tokens
}

fn behind_preamble(donor: &Donor, set: &DonorSet, random: &mut Random) -> Vec<u32> {
    let opening = [set.preamble.clone(), instruction(random)].concat();
    let mut tokens = compose(&set.library, opening, &donor.pieces, random).tokens;
    fit(&mut tokens, set.tokens_each, random);
    tokens
}

fn crowded(donor: &Donor, set: &DonorSet, random: &mut Random) -> Vec<u32> {
    let opening = donor.tokens[..donor.body_start].to_vec();
    let mut tokens = compose(&set.library, opening, &donor.pieces, random).tokens;
    fit(&mut tokens, set.tokens_each, random);
    tokens
}

fn unseen(set: &DonorSet, random: &mut Random) -> Vec<u32> {
    let mut tokens = instruction(random);
    for passage in set
        .library
        .draw_unseen(passages_of(set.tokens_each), random)
    {
        tokens.extend_from_slice(passage);
        tokens.push(SEPARATOR);
    }
    tokens.extend(noise(QUESTION_TOKENS, random));
    fit(&mut tokens, set.tokens_each, random);
    tokens
}
