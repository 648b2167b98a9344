//! The donors: prompts of an instruction, several passages and a question, in four groups.

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
#[derive(Debug, Clone)]
pub struct Donor {
    pub group: Group,
    pub tokens: Vec<u32>,
    /// The passages in it, in order.
    pub pieces: Vec<PieceId>,
    /// Where the first passage begins.
    pub body_start: usize,
}

/// Every donor, and the parts that groups of them share.
#[derive(Debug)]
pub struct DonorSet {
    pub donors: Vec<Donor>,
    /// Tokens of each.
    pub tokens_each: usize,
    pub preamble: Vec<u32>,
    /// The passages that the preamble is made of.
    pub preamble_pieces: Vec<PieceId>,
}

impl DonorSet {
    /// `count` donors of `tokens_each` tokens.
    #[must_use]
    pub fn new(library: &Library, count: usize, tokens_each: usize, random: &mut Random) -> Self {
        let passages = passages_of(tokens_each);
        let shared = (count / 20).clamp(2, TEMPLATE_DONORS_MAX);
        let behind = (count / 10).clamp(2, PREAMBLE_DONORS_MAX);
        let preamble_pieces = library.draw_seen(PREAMBLE_PASSAGES, random);
        let mut preamble = join(library, &preamble_pieces, SEPARATOR);
        fit(&mut preamble, PREAMBLE_TOKENS, random);
        let template = plain(
            library,
            &library.draw_seen(passages, random),
            tokens_each,
            random,
        );
        let crowd_head = library.draw_seen(passages / 2, random);
        let crowd_instruction = instruction(random);

        let mut donors = Vec::with_capacity(count);
        for _ in 0..shared {
            donors.push(Donor {
                group: Group::Template,
                tokens: with_variables(&template.tokens, random),
                ..template.clone()
            });
        }
        for _ in 0..shared {
            let pieces = crowd_body(library, &crowd_head, passages, random);
            let mut donor = Donor {
                group: Group::Crowd,
                ..compose(library, crowd_instruction.clone(), &pieces, random)
            };
            fit(&mut donor.tokens, tokens_each, random);
            donors.push(donor);
        }
        for _ in 0..behind {
            let pieces = library.draw_seen(passages - PREAMBLE_PASSAGES, random);
            let opening = [preamble.clone(), instruction(random)].concat();
            let mut donor = Donor {
                group: Group::Preamble,
                ..compose(library, opening, &pieces, random)
            };
            fit(&mut donor.tokens, tokens_each, random);
            donors.push(donor);
        }
        while donors.len() < count {
            let pieces = library.draw_seen(passages, random);
            donors.push(plain(library, &pieces, tokens_each, random));
        }
        donors.truncate(count);
        Self {
            donors,
            tokens_each,
            preamble,
            preamble_pieces,
        }
    }

    /// Every passage in a donor, also those of a preamble.
    pub fn pieces_of<'a>(&'a self, donor: &'a Donor) -> impl Iterator<Item = PieceId> + 'a {
        let shared = match donor.group {
            Group::Preamble => self.preamble_pieces.as_slice(),
            Group::Plain | Group::Template | Group::Crowd => &[],
        };
        shared.iter().chain(&donor.pieces).copied()
    }
}

/// Passages of a prompt of about so many tokens.
#[must_use]
pub const fn passages_of(tokens: usize) -> usize {
    tokens / PASSAGE_TOKENS
}

fn plain(library: &Library, pieces: &[PieceId], tokens: usize, random: &mut Random) -> Donor {
    let opening = instruction(random);
    let mut donor = compose(library, opening, pieces, random);
    fit(&mut donor.tokens, tokens, random);
    donor
}

fn crowd_body(
    library: &Library,
    head: &[PieceId],
    passages: usize,
    random: &mut Random,
) -> Vec<PieceId> {
    let mut pieces = head.to_vec();
    while pieces.len() < passages {
        let [piece] = library.draw_seen(1, random)[..] else {
            continue;
        };
        if !pieces.contains(&piece) {
            pieces.push(piece);
        }
    }
    pieces
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
        tokens.extend_from_slice(library.tokens(piece));
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
