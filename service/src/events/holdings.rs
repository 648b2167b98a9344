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

    /// The same in blocks of another size, rounded down.
    #[must_use]
    pub fn candidate(&self, source: SourceId, state: SourceState, block_size: u32) -> Candidate {
        let blocks = |tokens: u32| tokens.checked_div(block_size).unwrap_or(0);
        let all = blocks(self.device_tokens().saturating_add(self.lower_tokens()));
        let device_blocks = blocks(self.device_tokens());
        Candidate {
            source,
            device_blocks,
            lower_blocks: all - device_blocks,
            state,
        }
    }
}

/// The best of each source's matches: most tokens on the device, then on lower tiers, then the
/// smaller blocks.
#[must_use]
pub(super) fn best_of(matches: impl IntoIterator<Item = Match>) -> HashMap<SourceId, Holding> {
    let mut best: HashMap<SourceId, Holding> = HashMap::new();
    for found in matches {
        let Shape { block_size, .. } = found.shape;
        let holding = Holding {
            device_blocks: found.device_blocks,
            lower_blocks: found.lower_blocks,
            block_size,
        };
        let rank = |holding: &Holding| {
            let size = std::cmp::Reverse(holding.block_size);
            (holding.device_tokens(), holding.lower_tokens(), size)
        };
        let kept = best.entry(found.source).or_insert(holding);
        if rank(&holding) > rank(kept) {
            *kept = holding;
        }
    }
    best
}
