//! One (medium, group) of a source: which block an engine's hash names there, and how often.

use std::collections::HashMap;
use std::hint::black_box;

use super::hash::Shape;
use super::index::{Place, Put};
use super::table::{Slot, Table};
use crate::event::{EngineHash, Medium};

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) medium: Medium,
    pub(super) group: Option<u32>,
    pub(super) shape: Shape,
    /// The engine said that this is attention; else it said nothing.
    pub(super) is_proven: bool,
    /// Its hashes have paired with blocks.
    pub(super) is_paired: bool,
    held: Table<Held>,
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
    /// The hash named another block until now, which is to be released if it is gone.
    Moved {
        old: Place,
        is_gone: bool,
    },
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
            is_paired: false,
            held: Table::default(),
            aliases: HashMap::new(),
        }
    }

    pub(super) fn place(&self, hash: EngineHash) -> Option<Place> {
        self.find(hash).map(|at| self.held.at(at).place())
    }

    /// Reads where names are or will be, all at once.
    pub(super) fn touch(&self, hashes: &[EngineHash]) {
        let touch = |&hash| self.held.touch(tag(hash));
        black_box(hashes.iter().map(touch).fold(0, u32::wrapping_add));
    }

    pub(super) fn learn(&mut self, hash: EngineHash, put: Put) -> Learned {
        let new = Held::new(hash, put.place);
        let learned = match self.find(hash) {
            None => {
                self.held.insert(new);
                Learned::New
            }
            Some(at) => {
                let old = self.held.at(at).place();
                if old == put.place {
                    self.held.at_mut(at).again();
                    return Learned::Again;
                }
                *self.held.at_mut(at) = new;
                Learned::Moved {
                    old,
                    is_gone: self.unshare(old),
                }
            }
        };
        self.share(put);
        learned
    }

    /// One reference more to a block that is known.
    pub(super) fn again(&mut self, hash: EngineHash) {
        if let Some(at) = self.find(hash) {
            self.held.at_mut(at).again();
        }
    }

    pub(super) fn forget(&mut self, hash: EngineHash) -> Option<Forgotten> {
        let at = self.find(hash)?;
        let held = self.held.at_mut(at);
        held.references -= 1;
        let (place, is_kept) = (held.place(), held.references > 0);
        if is_kept {
            return Some(Forgotten::Kept(place));
        }
        self.held.remove(at);
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

    /// Every block that has a name, as often as it has one.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.held.iter().map(Held::place)
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    fn find(&self, hash: EngineHash) -> Option<usize> {
        self.held.find(tag(hash), |held| held.hash == hash)
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

    fn place(self) -> Place {
        Place {
            node: self.node,
            shard: self.shard,
            offset: self.offset,
        }
    }

    fn again(&mut self) {
        self.references = self.references.saturating_add(1);
    }
}

impl Slot for Held {
    const VACANT: Self = Self {
        hash: EngineHash(0),
        node: 0,
        shard: 0,
        offset: 0,
        references: 0,
    };

    fn is_vacant(self) -> bool {
        self.references == 0
    }

    fn tag(self) -> u32 {
        tag(self.hash)
    }
}

/// Engines differ in which bits of their hashes vary.
fn tag(hash: EngineHash) -> u32 {
    let stirred = (hash.0 ^ hash.0 >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    u32::try_from(stirred).expect("32 bits are left")
}
