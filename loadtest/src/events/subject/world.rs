//! Prompts of blocks, and who holds them: what every index is filled with.
//!
//! Prompts have 512 blocks. Each worker's have every second time the same first half
//! as others', one of a few; a worker never has the same twice, so that every store is an entry.
//! Prompts are renewed round by round, behind the same first halves.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64_with_seed;

pub const PROMPT_BLOCKS: usize = 512;
const SHARED_BLOCKS: usize = 256;
const SHARED_PROMPTS_MIN: usize = 16;
const ENGINE_SEED: u64 = 1337;

/// A block as engines tell of it, and as indexes take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Of the block's tokens alone.
    pub content: u64,
    /// The engine's name of the block and of all before it.
    pub engine: u64,
    /// Its number among all blocks of a round.
    pub number: usize,
}

/// How much there is.
#[derive(Debug, Clone, Copy)]
pub struct World {
    pub workers: usize,
    pub prompts: usize,
}

/// One prompt, which one worker holds.
#[derive(Debug, Clone, Copy)]
pub struct Prompt {
    /// In `0..World::prompts`.
    pub number: usize,
    pub round: usize,
}

impl World {
    /// As many prompts as it takes to have so many blocks.
    #[must_use]
    pub const fn of(blocks: usize, workers: usize) -> Self {
        Self {
            workers,
            prompts: blocks.div_ceil(PROMPT_BLOCKS),
        }
    }

    /// Pairs of a worker and a block.
    #[must_use]
    pub const fn entries(self) -> usize {
        self.prompts * PROMPT_BLOCKS
    }

    #[must_use]
    pub const fn worker(self, prompt: Prompt) -> usize {
        prompt.number % self.workers
    }

    /// Which prompt's first half it has in common with others, if it has.
    fn shared(self, prompt: Prompt) -> Option<usize> {
        let each = self.prompts.div_ceil(self.workers);
        let which = prompt.number / self.workers;
        let heads = SHARED_PROMPTS_MIN.max(each);
        let is_shared = self.workers > 1 && which.is_multiple_of(2);
        is_shared.then(|| (which / 2 + self.worker(prompt)) % heads)
    }

    /// All blocks of a prompt.
    #[must_use]
    pub fn blocks(self, prompt: Prompt) -> Vec<Block> {
        let own = (prompt.round + 1) * self.prompts + prompt.number;
        let own = SHARED_PROMPTS_MIN.max(self.prompts) + own;
        let shared = self.shared(prompt);
        let mut engine = None;
        let block = |number: usize| {
            let from = match shared {
                Some(head) if number < SHARED_BLOCKS => head,
                Some(_) | None => own,
            };
            let content = mix((from as u64) << 16 | number as u64 | 1 << 60);
            let name = engine.map_or(content, |parent| chained(parent, content));
            engine = Some(name);
            Block {
                content,
                engine: name,
                number: prompt.number * PROMPT_BLOCKS + number,
            }
        };
        (0..PROMPT_BLOCKS).map(block).collect()
    }

    /// The prompts of a round, one of each worker at a time.
    pub fn groups(self, round: usize) -> impl Iterator<Item = Range<Prompt>> {
        let first = move |number| Prompt { number, round };
        (0..self.prompts)
            .step_by(self.workers)
            .map(move |from| first(from)..first((from + self.workers).min(self.prompts)))
    }
}

/// The prompts from one to another of the same round.
pub fn each(prompts: &Range<Prompt>) -> impl Iterator<Item = Prompt> + use<> {
    let round = prompts.start.round;
    (prompts.start.number..prompts.end.number).map(move |number| Prompt { number, round })
}

/// How the engines here name a block. Dynamo's positional index computes the same, and finds
/// nothing where an engine does otherwise.
fn chained(parent: u64, content: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&parent.to_le_bytes());
    bytes[8..].copy_from_slice(&content.to_le_bytes());
    xxh3_64_with_seed(&bytes, ENGINE_SEED)
}

/// The finalizer of `SplitMix64`.
#[must_use]
pub const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    #[test]
    fn every_store_is_an_entry_and_half_the_heads_are_shared() {
        let world = World::of(100_000, 10);
        let mut held = HashSet::new();
        let mut holders: HashMap<u64, HashSet<usize>> = HashMap::new();
        for prompt in world.groups(3).flat_map(|some| each(&some)) {
            for block in world.blocks(prompt) {
                let worker = world.worker(prompt);
                assert!(held.insert((worker, block.engine)), "{prompt:?}");
                holders.entry(block.engine).or_default().insert(worker);
            }
        }
        assert_eq!(held.len(), world.entries());
        let shared = holders.values().filter(|of| of.len() > 1).count();
        assert!(shared > 10 * SHARED_BLOCKS, "{shared}");
    }

    #[test]
    fn rounds_share_heads_alone() {
        let world = World::of(10_000, 4);
        let prompt = |round| Prompt { number: 0, round };
        let [one, next] = [0, 1].map(|round| world.blocks(prompt(round)));
        assert_eq!(one[..SHARED_BLOCKS], next[..SHARED_BLOCKS]);
        let all: HashSet<_> = one.iter().chain(&next).map(|block| block.content).collect();
        assert_eq!(all.len(), 2 * PROMPT_BLOCKS - SHARED_BLOCKS);
    }
}
