//! One (medium, group) of a source: which block an engine's hash names there, and how often.

use std::collections::HashMap;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::hash::Shape;
use super::index::{Place, Put};
use crate::event::{EngineHash, Medium};

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) medium: Medium,
    pub(super) group: Option<u32>,
    pub(super) shape: Shape,
    /// The engine said that this is attention; else it said nothing.
    pub(super) is_proven: bool,
    held: HashTable<Held>,
    /// How many names beyond the first a block has here; most have one.
    aliases: HashMap<Place, u32>,
}

/// Sixteen bytes.
#[derive(Clone, Copy, Debug)]
struct Held {
    hash: EngineHash,
    node: u32,
    shard: u8,
    offset: u8,
    references: u16,
}

/// What a stored block was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learned {
    New,
    Again,
    /// The hash named another block until now, whose place is to be released if it is given.
    Moved(Option<Place>),
}

/// What a removed block was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgotten {
    /// The block is still held, by this name or by another.
    Kept(Place),
    /// It is to be released.
    Gone(Place),
}

impl Lane {
    pub(super) fn new(medium: Medium, group: Option<u32>, shape: Shape) -> Self {
        Self {
            medium,
            group,
            shape,
            is_proven: false,
            held: HashTable::new(),
            aliases: HashMap::new(),
        }
    }

    pub(super) fn place(&self, hash: EngineHash) -> Option<Place> {
        self.held
            .find(table_hash(hash), |held| held.hash == hash)
            .map(Held::place)
    }

    pub(super) fn learn(&mut self, hash: EngineHash, put: Put) -> Learned {
        let new = Held::new(hash, put.place);
        let is_it = |held: &Held| held.hash == hash;
        let learned = match self
            .held
            .entry(table_hash(hash), is_it, |held| table_hash(held.hash))
        {
            Entry::Vacant(vacant) => {
                vacant.insert(new);
                Learned::New
            }
            Entry::Occupied(mut known) if known.get().place() == put.place => {
                let references = &mut known.get_mut().references;
                *references = references.saturating_add(1);
                return Learned::Again;
            }
            Entry::Occupied(mut other) => {
                let old = other.get().place();
                *other.get_mut() = new;
                Learned::Moved(self.unshare(old).then_some(old))
            }
        };
        self.share(put);
        learned
    }

    /// One reference more to a block that is known.
    pub(super) fn again(&mut self, hash: EngineHash) {
        if let Some(held) = self
            .held
            .find_mut(table_hash(hash), |held| held.hash == hash)
        {
            held.references = held.references.saturating_add(1);
        }
    }

    pub(super) fn forget(&mut self, hash: EngineHash) -> Option<Forgotten> {
        let mut entry = self
            .held
            .find_entry(table_hash(hash), |held| held.hash == hash)
            .ok()?;
        let place = entry.get().place();
        entry.get_mut().references -= 1;
        if entry.get().references > 0 {
            return Some(Forgotten::Kept(place));
        }
        entry.remove();
        Some(if self.unshare(place) {
            Forgotten::Gone(place)
        } else {
            Forgotten::Kept(place)
        })
    }

    /// One name more for a block, unless it is the first.
    pub(super) fn share(&mut self, put: Put) {
        if !put.is_new {
            *self.aliases.entry(put.place).or_default() += 1;
        }
    }

    /// One name less. True when it was the last.
    pub(super) fn unshare(&mut self, place: Place) -> bool {
        let Some(names) = self.aliases.get_mut(&place) else {
            return true;
        };
        *names -= 1;
        if *names == 0 {
            self.aliases.remove(&place);
        }
        false
    }

    /// Takes every name away; the places come out as often as they had one.
    pub(super) fn drain(&mut self) -> Vec<Place> {
        self.held.drain().map(|held| held.place()).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}

impl Held {
    fn new(hash: EngineHash, place: Place) -> Self {
        let Place {
            node,
            shard,
            offset,
        } = place;
        Self {
            hash,
            node,
            shard,
            offset,
            references: 1,
        }
    }

    fn place(&self) -> Place {
        Place {
            node: self.node,
            shard: self.shard,
            offset: self.offset,
        }
    }
}

/// Engines differ in which bits of their hashes vary.
fn table_hash(hash: EngineHash) -> u64 {
    let stirred = (hash.0 ^ hash.0 >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    stirred ^ stirred >> 32
}
