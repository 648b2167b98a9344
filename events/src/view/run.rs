//! What a stored event says about content, before it is known where its blocks belong.

use super::hash::{self, Shape};
use super::{LOOKAHEAD_TOKENS_MAX, Outcome};
use crate::event::{Extra, Stored};
use crate::repeats::Repeats;

/// Consecutive blocks, cut and hashed.
#[derive(Debug)]
pub(super) struct Stretch {
    pub(super) shape: Shape,
    pub(super) contents: Vec<u64>,
    /// One hash for each block; else the two do not pair.
    pub(super) is_paired: bool,
}

/// Why an event says nothing.
#[derive(Debug)]
pub(super) struct Refused(pub(super) Outcome);

/// Named by hash alone.
pub(super) fn is_bare(stored: &Stored<'_>) -> bool {
    stored.tokens.is_empty() && !stored.hashes.is_empty()
}

/// `block_size` is what the blocks are known to have, if anything is.
pub(super) fn read(
    stored: &Stored<'_>,
    block_size: Option<u32>,
    repeats: &mut Repeats,
) -> Result<Stretch, Refused> {
    let refuse = |outcome| Err(Refused(outcome));
    let Stored {
        hashes,
        tokens,
        extra,
        ..
    } = stored;
    let lookahead = stored.lookahead.len() + usize::from(stored.bigram_end.is_some());
    if hashes.is_empty() {
        return refuse(Outcome::Empty);
    }
    if stored.block_size == 0
        || lookahead > LOOKAHEAD_TOKENS_MAX
        || (!extra.is_empty() && extra.len() != hashes.len())
    {
        return refuse(Outcome::Malformed);
    }
    if stored.parent.is_some_and(|parent| hashes.contains(&parent)) {
        return refuse(Outcome::SelfParent);
    }
    if repeats.any(hashes) {
        return refuse(Outcome::DuplicateHash);
    }
    if !is_usual(stored.block_size) && block_size != Some(stored.block_size) {
        return refuse(Outcome::OddSize);
    }
    let shape = Shape {
        block_size: stored.block_size,
        lookahead: u32::try_from(lookahead).unwrap_or(u32::MAX),
    };
    let is_paired = hashes.len().checked_mul(shape.block_size as usize) == Some(tokens.len());
    Ok(Stretch {
        shape,
        contents: contents(stored, shape, is_paired),
        is_paired,
    })
}

/// Sizes that engines use: powers of two and multiples of eight. Another one is a last page that
/// is shorter than the rest, unless somebody says that it is not.
fn is_usual(block_size: u32) -> bool {
    block_size.is_power_of_two() || block_size.is_multiple_of(8)
}

/// Nothing where it is not known which extras belong to which block.
fn contents(stored: &Stored<'_>, shape: Shape, is_paired: bool) -> Vec<u64> {
    if !is_paired && stored.extra.iter().any(|extra| *extra != Extra::default()) {
        return Vec::new();
    }
    let (size, lookahead) = (shape.block_size as usize, shape.lookahead as usize);
    let mut extended = Vec::new();
    let tokens = if lookahead == 0 {
        &stored.tokens
    } else {
        extended.extend_from_slice(&stored.tokens);
        if is_paired {
            extended.extend(stored.bigram_end);
            extended.extend_from_slice(&stored.lookahead);
        }
        &extended
    };
    let blocks = tokens.len().saturating_sub(lookahead) / size;
    let none = Extra::default();
    (0..blocks)
        .map(|block| {
            let window = &tokens[block * size..][..size + lookahead];
            let extra = stored.extra.get(block).unwrap_or(&none);
            match (block, stored.parent) {
                (0, None) => hash::content_at_root(window, extra),
                _ => hash::content(window, extra),
            }
        })
        .collect()
}
