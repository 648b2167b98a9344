//! Blocks whose tokens came with hashes that do not pair with them: they are indexed by what the
//! tokens prove, and end together with the first removal of any of those hashes. One of them ends
//! before where another group, whose hashes do pair, removes the block.

use std::collections::HashMap;

use super::LOOSE_BLOCKS_MAX;
use super::index::Place;
use super::orphans::drop_number;
use crate::event::EngineHash;

#[derive(Debug, Default)]
pub(super) struct Loose {
    sets: HashMap<u64, Set>,
    next: u64,
    by_hash: HashMap<(usize, EngineHash), Vec<u64>>,
    by_place: HashMap<Place, Vec<u64>>,
    blocks: usize,
}

#[derive(Debug)]
pub(super) struct Set {
    lane: usize,
    hashes: Vec<EngineHash>,
    pub(super) places: Vec<Place>,
    /// What it counts for, for as long as it is there.
    size: usize,
}

impl Loose {
    pub(super) fn has_room(&self, blocks: usize) -> bool {
        self.blocks + blocks <= LOOSE_BLOCKS_MAX
    }

    pub(super) fn add(&mut self, lane: usize, hashes: &[EngineHash], places: Vec<Place>) {
        let number = self.next;
        self.next += 1;
        let size = places.len().max(hashes.len());
        self.blocks += size;
        for &hash in hashes {
            self.by_hash.entry((lane, hash)).or_default().push(number);
        }
        for &place in &places {
            self.by_place.entry(place).or_default().push(number);
        }
        self.sets.insert(
            number,
            Set {
                lane,
                hashes: hashes.to_vec(),
                places,
                size,
            },
        );
    }

    /// Takes a block out of the sets of some lanes; the lanes come out, one for each.
    pub(super) fn leave(&mut self, place: Place, is_meant: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut left = Vec::new();
        let numbers = self.by_place.get(&place).cloned().unwrap_or_default();
        for number in numbers {
            if let Some(set) = self.sets.get_mut(&number).filter(|set| is_meant(set.lane)) {
                set.places.retain(|&other| other != place);
                left.push(set.lane);
                drop_number(&mut self.by_place, &place, number);
            }
        }
        left
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
        self.blocks -= set.size;
        for &hash in &set.hashes {
            drop_number(&mut self.by_hash, &(set.lane, hash), number);
        }
        for place in &set.places {
            drop_number(&mut self.by_place, place, number);
        }
        Some(set)
    }
}
