//! Blocks whose tokens came with hashes that do not pair with them: they are indexed by what the
//! tokens prove, and end together with the first removal of any of those hashes.

use std::collections::HashMap;

use super::LOOSE_BLOCKS_MAX;
use super::index::Place;
use crate::event::EngineHash;

#[derive(Debug, Default)]
pub(super) struct Loose {
    sets: HashMap<u64, Set>,
    next: u64,
    by_hash: HashMap<(usize, EngineHash), Vec<u64>>,
    blocks: usize,
}

#[derive(Debug)]
pub(super) struct Set {
    lane: usize,
    hashes: Vec<EngineHash>,
    pub(super) places: Vec<Place>,
}

impl Loose {
    pub(super) fn has_room(&self, blocks: usize) -> bool {
        self.blocks + blocks <= LOOSE_BLOCKS_MAX
    }

    pub(super) fn add(&mut self, lane: usize, hashes: &[EngineHash], places: Vec<Place>) {
        let number = self.next;
        self.next += 1;
        self.blocks += places.len().max(hashes.len());
        for &hash in hashes {
            self.by_hash.entry((lane, hash)).or_default().push(number);
        }
        self.sets.insert(
            number,
            Set {
                lane,
                hashes: hashes.to_vec(),
                places,
            },
        );
    }

    pub(super) fn has(&self, lane: usize, hash: EngineHash) -> bool {
        self.by_hash.contains_key(&(lane, hash))
    }

    /// The sets that end when a hash is removed.
    pub(super) fn take(&mut self, lane: usize, hash: EngineHash) -> Vec<Set> {
        let Some(numbers) = self.by_hash.get(&(lane, hash)).cloned() else {
            return Vec::new();
        };
        numbers
            .into_iter()
            .filter_map(|number| self.let_go(number))
            .collect()
    }

    pub(super) fn take_lane(&mut self, lane: usize) -> Vec<Set> {
        let numbers: Vec<u64> = self
            .sets
            .iter()
            .filter(|(_, set)| set.lane == lane)
            .map(|(&number, _)| number)
            .collect();
        numbers
            .into_iter()
            .filter_map(|number| self.let_go(number))
            .collect()
    }

    fn let_go(&mut self, number: u64) -> Option<Set> {
        let set = self.sets.remove(&number)?;
        self.blocks -= set.places.len().max(set.hashes.len());
        for &hash in &set.hashes {
            if let Some(numbers) = self.by_hash.get_mut(&(set.lane, hash)) {
                numbers.retain(|&other| other != number);
                if numbers.is_empty() {
                    self.by_hash.remove(&(set.lane, hash));
                }
            }
        }
        Some(set)
    }
}
