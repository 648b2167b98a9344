//! The prefix index: which seats hold which blocks, by own hash.
//!
//! An own hash names a whole prefix, so a flat table from it to its place says all that a tree
//! would. Places lie side by side along a chain: a node has up to 32 consecutive blocks of one
//! chain and, for each seat that holds any of them, one word with a bit a block. Blocks stay in
//! the index while a seat holds them or a block after them, so what is there is closed towards
//! the root: if the last of 32 blocks is found, the 31 before it are as well, and a look-up
//! probes once in 32.
//!
//! Chains are spread over shards by their first block, so that a look-up reads one shard and
//! never sees half of an event. A shard's table is cut into parts, so that none grows for long.

use hashbrown::HashTable;
use parking_lot::{RwLock, RwLockWriteGuard};

use super::hash::{OwnHash, link};
use super::node::{Node, Seat};

/// Blocks a node at most, and the depth at whose multiples a new node begins.
pub(super) const NODE_BLOCKS: u32 = 32;
const SHARDS: usize = 64;
const PARTS: usize = 16;
/// A place packs its node into 27 bits.
const NODES_MAX: usize = 1 << 27;

/// Where a block lies, for as long as a seat holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) node: u32,
    pub(super) shard: u8,
    pub(super) offset: u8,
}

/// A block of a stored run: its place, and whether the seat did not hold it before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Put {
    pub(super) place: Place,
    pub(super) own: OwnHash,
    pub(super) is_new: bool,
}

/// What a chain goes on from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    Root(OwnHash),
    After(Place),
}

#[derive(Debug)]
pub(super) struct Index {
    shards: Box<[RwLock<Shard>]>,
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
        }
    }

    /// Lets `seat` hold the blocks with `contents` one after the other, and says where they are.
    /// Fewer come out than went in when the index is full.
    pub(super) fn put(&self, seat: Seat, start: Start, contents: &[u64], puts: &mut Vec<Put>) {
        puts.clear();
        let Some(&first) = contents.first() else {
            return;
        };
        let (number, mut guard) = match start {
            Start::Root(root) => self.write_shard(shard_of(link(root, first))),
            Start::After(place) => self.write_shard(usize::from(place.shard)),
        };
        let shard = &mut *guard;
        let (mut parent, mut last) = match start {
            Start::Root(root) => (None, root),
            Start::After(place) => (Some(Spot::of(place)), shard.own(Spot::of(place))),
        };
        for &content in contents {
            let own = link(last, content);
            let Some(spot) = shard.spot(parent, own) else {
                return;
            };
            let is_new = shard.nodes[spot.node as usize].hold(seat, spot.offset);
            puts.push(Put {
                place: spot.place(number),
                own,
                is_new,
            });
            (parent, last) = (Some(spot), own);
        }
    }

    /// Lets another seat hold a block that is held already. True when it did not before.
    pub(super) fn hold(&self, seat: Seat, place: Place) -> bool {
        let (_, mut shard) = self.write_shard(usize::from(place.shard));
        shard.nodes[place.node as usize].hold(seat, place.offset)
    }

    /// Ends a seat's hold of a block.
    pub(super) fn release(&self, seat: Seat, place: Place) -> OwnHash {
        let (_, mut shard) = self.write_shard(usize::from(place.shard));
        shard.release(seat, Spot::of(place))
    }

    pub(super) fn own(&self, place: Place) -> OwnHash {
        self.shards[usize::from(place.shard)]
            .read()
            .own(Spot::of(place))
    }

    /// The nodes along a chain for as far as it is in the index, in order: each with the depth
    /// that it begins at and how many of its blocks lie on the chain. Ends when `visit` is false.
    pub(super) fn walk(&self, chain: &[OwnHash], visit: impl FnMut(&Node, u32) -> bool) {
        if let Some(&first) = chain.first() {
            self.shards[shard_of(first)].read().walk(chain, visit);
        }
    }

    /// Blocks in the index, whoever holds them.
    #[cfg(test)]
    pub(super) fn blocks(&self) -> usize {
        self.shards
            .iter()
            .flat_map(|shard| shard.read().parts.each_ref().map(HashTable::len))
            .sum()
    }

    fn write_shard(&self, number: usize) -> (u8, RwLockWriteGuard<'_, Shard>) {
        let small = u8::try_from(number).expect("fewer than 256 shards");
        (small, self.shards[number].write())
    }
}

fn shard_of(first: OwnHash) -> usize {
    usize::from(first.0.to_le_bytes()[1]) % SHARDS
}

/// A place inside its shard.
#[derive(Clone, Copy, Debug)]
struct Spot {
    node: u32,
    offset: u8,
}

impl Spot {
    fn of(place: Place) -> Self {
        Self {
            node: place.node,
            offset: place.offset,
        }
    }

    fn place(self, shard: u8) -> Place {
        Place {
            node: self.node,
            shard,
            offset: self.offset,
        }
    }
}

/// A table entry: the upper half of an own hash, a node and an offset. The node has the whole
/// hash, so the table needs eight bytes a block instead of sixteen.
#[derive(Clone, Copy, Debug)]
struct Entry(u64);

impl Entry {
    fn new(own: OwnHash, spot: Spot) -> Self {
        Self(own.0 >> 32 << 32 | u64::from(spot.node) << 5 | u64::from(spot.offset))
    }

    fn spot(self) -> Spot {
        let low = u32::try_from(self.0 & u64::from(u32::MAX)).expect("masked to 32 bits");
        let offset = u8::try_from(low % NODE_BLOCKS).expect("below 32");
        Spot {
            node: low / NODE_BLOCKS,
            offset,
        }
    }

    /// Only from the upper half, so that a table can grow without reading a node.
    fn hash(self) -> u64 {
        table_hash(OwnHash(self.0))
    }
}

fn table_hash(own: OwnHash) -> u64 {
    (own.0 >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ own.0 >> 32
}

#[derive(Debug, Default)]
struct Shard {
    parts: [HashTable<Entry>; PARTS],
    nodes: Vec<Node>,
    free: Vec<u32>,
}

impl Shard {
    fn own(&self, spot: Spot) -> OwnHash {
        self.nodes[spot.node as usize].hashes[usize::from(spot.offset)]
    }

    fn find(&self, own: OwnHash) -> Option<Spot> {
        let is_it = |entry: &Entry| entry.0 >> 32 == own.0 >> 32 && self.own(entry.spot()) == own;
        self.parts[part_of(own)]
            .find(table_hash(own), is_it)
            .map(|entry| entry.spot())
    }

    /// Where a block is, or is now put: in its parent's node where it is the next one there.
    fn spot(&mut self, parent: Option<Spot>, own: OwnHash) -> Option<Spot> {
        if let Some(parent) = parent {
            let next = Spot {
                node: parent.node,
                offset: parent.offset + 1,
            };
            let hashes = &self.nodes[parent.node as usize].hashes;
            if hashes.get(usize::from(next.offset)) == Some(&own) {
                return Some(next);
            }
        }
        if let Some(spot) = self.find(own) {
            return Some(spot);
        }
        let spot = match parent.and_then(|parent| self.append(parent, own)) {
            Some(spot) => spot,
            None => self.begin(parent, own)?,
        };
        self.parts[part_of(own)]
            .insert_unique(table_hash(own), Entry::new(own, spot), |entry| entry.hash());
        Some(spot)
    }

    fn append(&mut self, parent: Spot, own: OwnHash) -> Option<Spot> {
        let node = &mut self.nodes[parent.node as usize];
        let offset = parent.offset + 1;
        let is_next = usize::from(offset) == node.hashes.len();
        let has_room = !(node.depth + u32::from(offset)).is_multiple_of(NODE_BLOCKS);
        (is_next && has_room).then(|| {
            node.push(own);
            Spot {
                node: parent.node,
                offset,
            }
        })
    }

    fn begin(&mut self, parent: Option<Spot>, own: OwnHash) -> Option<Spot> {
        let parent_link = parent.map(|parent| (parent.node, parent.offset));
        let depth = parent.map_or(0, |parent| {
            let node = &mut self.nodes[parent.node as usize];
            node.adopt(parent.offset);
            node.depth + u32::from(parent.offset) + 1
        });
        let new = Node::new(parent_link, depth, own);
        let node = match self.free.pop() {
            Some(node) => {
                self.nodes[node as usize] = new;
                node
            }
            None if self.nodes.len() < NODES_MAX => {
                self.nodes.push(new);
                u32::try_from(self.nodes.len() - 1).expect("at most NODES_MAX")
            }
            None => {
                if let Some(parent) = parent {
                    self.nodes[parent.node as usize].disown();
                }
                return None;
            }
        };
        Some(Spot { node, offset: 0 })
    }

    fn release(&mut self, seat: Seat, spot: Spot) -> OwnHash {
        let own = self.own(spot);
        self.nodes[spot.node as usize].release(seat, spot.offset);
        let mut at = spot.node;
        loop {
            let node = &mut self.nodes[at as usize];
            let keep = node.needed();
            for own in node.hashes.drain(keep..) {
                let is_it = |entry: &Entry| {
                    let spot = entry.spot();
                    entry.0 >> 32 == own.0 >> 32
                        && spot.node == at
                        && usize::from(spot.offset) >= keep
                };
                if let Ok(entry) = self.parts[part_of(own)].find_entry(table_hash(own), is_it) {
                    entry.remove();
                }
            }
            if keep > 0 {
                return own;
            }
            let parent = node.parent;
            *node = Node::default();
            self.free.push(at);
            let Some((parent, _)) = parent else {
                return own;
            };
            self.nodes[parent as usize].disown();
            at = parent;
        }
    }

    fn walk(&self, chain: &[OwnHash], mut visit: impl FnMut(&Node, u32) -> bool) {
        let groups = chain.chunks(NODE_BLOCKS as usize);
        for (group, start) in groups.zip((0..).step_by(NODE_BLOCKS as usize)) {
            let last = self.find(group[group.len() - 1]);
            let is_whole = last.is_some();
            let Some(last) = last.or_else(|| self.deepest(group)) else {
                return;
            };
            let mut path = [last; NODE_BLOCKS as usize];
            let mut length = 1;
            while let Some((node, offset)) =
                self.nodes[path[length - 1].node as usize].parent_from(start)
            {
                path[length] = Spot { node, offset };
                length += 1;
            }
            for spot in path[..length].iter().rev() {
                let node = &self.nodes[spot.node as usize];
                if !visit(node, u32::from(spot.offset) + 1) {
                    return;
                }
            }
            if !is_whole {
                return;
            }
        }
    }

    /// The last block of a group that is in the index; its last one is not.
    fn deepest(&self, group: &[OwnHash]) -> Option<Spot> {
        let (mut found, mut missing, mut deepest) = (0, group.len() - 1, None);
        while found < missing {
            let middle = usize::midpoint(found, missing);
            match self.find(group[middle]) {
                Some(spot) => (found, deepest) = (middle + 1, Some(spot)),
                None => missing = middle,
            }
        }
        deepest
    }
}

fn part_of(own: OwnHash) -> usize {
    usize::from(own.0.to_le_bytes()[0]) % PARTS
}
