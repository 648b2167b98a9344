//! Blocks whose parent is not known: held back for a while, in case it comes.
//!
//! A block's content needs no parent, so a run waits as two words a block, its tokens gone.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use super::ORPHAN_BLOCKS_MAX;
use crate::event::EngineHash;

/// Consecutive blocks that go on from `parent`.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) lane: usize,
    pub(super) parent: EngineHash,
    pub(super) hashes: Vec<EngineHash>,
    pub(super) contents: Vec<u64>,
}

/// What became of a block while it waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waited {
    /// How often it was stored and not removed.
    pub(super) references: u16,
    /// A copy was removed after it was last stored.
    is_doubted: bool,
}

impl Waited {
    /// It is there, as far as anybody knows.
    pub(super) fn is_sure(self) -> bool {
        self.references > 0 && !self.is_doubted
    }
}

/// The oldest leave first.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    runs: BTreeMap<u64, Run>,
    next: u64,
    waiting_for: HashMap<EngineHash, Vec<u64>>,
    waited: HashMap<(usize, EngineHash), Waited>,
    /// The runs that end with a hash: they do not pair with theirs.
    ends: HashMap<(usize, EngineHash), Vec<u64>>,
    blocks: usize,
}

impl Orphans {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many blocks were given up to make room.
    pub(super) fn hold(&mut self, run: Run) -> usize {
        if run.size() > ORPHAN_BLOCKS_MAX {
            return run.size();
        }
        if run.is_paired() {
            for &hash in &run.hashes {
                let waited = self.waited.entry((run.lane, hash)).or_default();
                waited.references = waited.references.saturating_add(1);
                waited.is_doubted = false;
            }
            let siblings = self.waiting_for.get(&run.parent).into_iter().flatten();
            let mut waiting = siblings.filter_map(|sibling| self.runs.get(sibling));
            if waiting.any(|other| other.lane == run.lane && other.hashes == run.hashes) {
                return 0;
            }
        }
        self.blocks += run.size();
        for hash in run.waits_for() {
            self.waiting_for.entry(hash).or_default().push(self.next);
        }
        for key in run.ends() {
            self.ends.entry(key).or_default().push(self.next);
        }
        self.runs.insert(self.next, run);
        self.next += 1;
        let mut dropped = 0;
        while self.blocks > ORPHAN_BLOCKS_MAX {
            let Some((&oldest, _)) = self.runs.first_key_value() else {
                break;
            };
            dropped += self.let_go(oldest).map_or(0, |(run, _)| run.size());
        }
        dropped
    }

    /// A removal of a block that waits. False when none does. Blocks that do not pair with their
    /// hashes go with the first of them.
    pub(super) fn remove(&mut self, lane: usize, hash: EngineHash) -> bool {
        let ended = self.ends.get(&(lane, hash)).cloned().unwrap_or_default();
        for &number in &ended {
            self.let_go(number);
        }
        match self.waited.get_mut(&(lane, hash)) {
            Some(waited) if waited.references > 0 => {
                waited.references -= 1;
                waited.is_doubted = true;
                true
            }
            Some(_) | None => !ended.is_empty(),
        }
    }

    pub(super) fn has(&self, lane: usize, hash: EngineHash) -> bool {
        let key = (lane, hash);
        self.waited.contains_key(&key) || self.ends.contains_key(&key)
    }

    /// The runs that waited for a hash and can be placed now, each with what became of its blocks
    /// where they have names.
    pub(super) fn take(
        &mut self,
        hash: EngineHash,
        can_be_placed: impl Fn(&Run) -> bool,
    ) -> Vec<(Run, Vec<Waited>)> {
        let mut numbers = self.waiting_for.get(&hash).cloned().unwrap_or_default();
        numbers.retain(|number| self.runs.get(number).is_some_and(&can_be_placed));
        numbers
            .into_iter()
            .filter_map(|number| self.let_go(number))
            .collect()
    }

    /// Drops everything, or one lane's. How many blocks those were.
    pub(super) fn clear(&mut self, only: Option<usize>) -> usize {
        let before = self.blocks;
        let is_meant = |run: &Run| only.is_none_or(|lane| lane == run.lane);
        let meant: Vec<u64> = self
            .runs
            .iter()
            .filter(|(_, run)| is_meant(run))
            .map(|(&number, _)| number)
            .collect();
        for number in meant {
            self.let_go(number);
        }
        before - self.blocks
    }

    fn let_go(&mut self, number: u64) -> Option<(Run, Vec<Waited>)> {
        let run = self.runs.remove(&number)?;
        self.blocks -= run.size();
        for hash in run.waits_for() {
            drop_number(&mut self.waiting_for, &hash, number);
        }
        for key in run.ends() {
            drop_number(&mut self.ends, &key, number);
        }
        let waited = if run.is_paired() {
            let waited = |&hash| self.waited.remove(&(run.lane, hash)).unwrap_or_default();
            run.hashes.iter().map(waited).collect()
        } else {
            Vec::new()
        };
        Some((run, waited))
    }
}

pub(super) fn drop_number<K: Eq + Hash>(lists: &mut HashMap<K, Vec<u64>>, key: &K, number: u64) {
    if let Some(numbers) = lists.get_mut(key) {
        numbers.retain(|&other| other != number);
        if numbers.is_empty() {
            lists.remove(key);
        }
    }
}

impl Run {
    /// One hash for each block.
    pub(super) fn is_paired(&self) -> bool {
        self.hashes.len() == self.contents.len()
    }

    /// Its first block, where that has a name.
    pub(super) fn first(&self) -> Option<EngineHash> {
        self.hashes.first().copied().filter(|_| self.is_paired())
    }

    /// Its parent, or its own first block: that is enough to know what follows.
    fn waits_for(&self) -> impl Iterator<Item = EngineHash> + use<> {
        [Some(self.parent), self.first()].into_iter().flatten()
    }

    /// The hashes that each end it as a whole.
    fn ends(&self) -> impl Iterator<Item = (usize, EngineHash)> + '_ {
        let hashes: &[EngineHash] = match self.is_paired() {
            true => &[],
            false => &self.hashes,
        };
        hashes.iter().map(|&hash| (self.lane, hash))
    }

    fn size(&self) -> usize {
        self.hashes.len().max(self.contents.len())
    }
}
