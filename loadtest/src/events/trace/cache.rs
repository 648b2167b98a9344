//! The blocks of one worker, of which the least recently used goes first.

use std::collections::{BTreeMap, HashMap};

/// Blocks by how lately they were used. A block's parents are always used after it, as engines
/// free a request's blocks from its end: what is held is whole from the start.
#[derive(Debug)]
pub(super) struct Cache {
    blocks_max: usize,
    uses: u64,
    used: HashMap<u32, u64>,
    by_use: BTreeMap<u64, u32>,
}

impl Cache {
    pub(super) fn new(blocks_max: usize) -> Self {
        Self {
            blocks_max,
            uses: 0,
            used: HashMap::new(),
            by_use: BTreeMap::new(),
        }
    }

    /// How many blocks it holds from the start.
    pub(super) fn prefix(&self, blocks: &[u32]) -> usize {
        let held = blocks
            .iter()
            .take_while(|block| self.used.contains_key(block));
        held.count()
    }

    /// Uses blocks, and says which went for them.
    pub(super) fn keep(&mut self, blocks: &[u32]) -> Vec<u32> {
        for &block in blocks.iter().rev() {
            self.uses += 1;
            if let Some(before) = self.used.insert(block, self.uses) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.uses, block);
        }
        let mut gone = Vec::new();
        while self.used.len() > self.blocks_max
            && let Some((_, block)) = self.by_use.pop_first()
        {
            self.used.remove(&block);
            gone.push(block);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_what_was_used_first_go_first() {
        let mut cache = Cache::new(5);
        assert!(cache.keep(&[1, 2, 3]).is_empty());
        assert!(cache.keep(&[1, 4, 5]).is_empty());
        assert_eq!(cache.prefix(&[1, 2, 3]), 3);
        assert_eq!(cache.keep(&[6]), [3]);
        assert_eq!(cache.prefix(&[1, 2, 3]), 2);
        assert!(cache.keep(&[1, 2]).is_empty());
        assert_eq!(cache.keep(&[7, 8]), [5, 4]);
        assert_eq!(cache.prefix(&[1, 4, 5]), 1);
    }
}
