//! How much of a prompt each worker holds: matches in several block sizes become one row each.

use std::collections::HashMap;

use kvatlas_events::{
    pick::{Candidate, SourceState},
    view::{Match, Shape, SourceId},
};

/// What a worker holds of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holding {
    /// Blocks from the start that are all on the device.
    pub device_blocks: u32,
    /// Blocks that follow those and are each on the device or on a lower tier.
    pub lower_blocks: u32,
    /// Tokens a block; 0 where nothing is held.
    pub block_size: u32,
}

impl Holding {
    #[must_use]
    pub fn device_tokens(&self) -> u32 {
        self.device_blocks.saturating_mul(self.block_size)
    }

    #[must_use]
    pub fn lower_tokens(&self) -> u32 {
        self.lower_blocks.saturating_mul(self.block_size)
    }

    fn tokens(&self) -> u32 {
        self.device_tokens().saturating_add(self.lower_tokens())
    }

    fn of(found: &Match) -> Holding {
        Holding {
            device_blocks: found.device_blocks,
            lower_blocks: found.lower_blocks,
            block_size: found.shape.block_size,
        }
    }

    fn rank(&self) -> (u32, u32, std::cmp::Reverse<u32>) {
        let size = std::cmp::Reverse(self.block_size);
        (self.device_tokens(), self.lower_tokens(), size)
    }

    /// The same in blocks of another size, rounded down.
    #[must_use]
    pub fn candidate(&self, source: SourceId, state: SourceState, block_size: u32) -> Candidate {
        let blocks = |tokens: u32| tokens.checked_div(block_size).unwrap_or(0);
        let all = blocks(self.tokens());
        let device_blocks = blocks(self.device_tokens());
        Candidate {
            source,
            device_blocks,
            lower_blocks: all - device_blocks,
            state,
        }
    }
}

/// What each source holds, by matches in each shape in the order of the sources. Most cut tokens
/// in one way: of the others it is the best match, most tokens on the device, then on lower tiers,
/// then the smaller blocks. Where only what is there in each shape is of use, `several` names
/// those, and the least counts.
#[must_use]
pub(super) fn held(
    matches: &[(Shape, Vec<Match>)],
    several: impl Fn(SourceId) -> Vec<Shape>,
) -> HashMap<SourceId, Holding> {
    let mut held: HashMap<SourceId, Holding> = HashMap::new();
    for found in matches.iter().flat_map(|(_, found)| found) {
        let holding = Holding::of(found);
        let kept = held.entry(found.source).or_insert(holding);
        if holding.rank() > kept.rank() {
            *kept = holding;
        }
    }
    if matches.len() > 1 {
        for (source, holding) in &mut held {
            let shapes = several(*source);
            if !shapes.is_empty() {
                *holding = least(&shapes, *source, matches).unwrap_or_default();
            }
        }
    }
    held
}

/// What is there in each shape, in blocks of the one that has least on the device.
fn least(shapes: &[Shape], source: SourceId, matches: &[(Shape, Vec<Match>)]) -> Option<Holding> {
    let of = |shape: &Shape| {
        let (_, found) = matches.iter().find(|(other, _)| other == shape)?;
        let at = found.binary_search_by_key(&source, |found| found.source);
        at.ok().map(|at| Holding::of(&found[at]))
    };
    let all: Vec<Holding> = shapes.iter().map(of).collect::<Option<_>>()?;
    let tokens = all.iter().map(Holding::tokens).min()?;
    let mut least = *all.iter().min_by_key(|held| held.device_tokens())?;
    let lower_tokens = tokens.saturating_sub(least.device_tokens());
    least.lower_blocks = lower_tokens.checked_div(least.block_size)?;
    Some(least)
}
