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

use std::hint::black_box;
use std::ops::Range;

use parking_lot::{RwLock, RwLockWriteGuard};

use super::hash::{OwnHash, link};
use super::node::{Claim, Held, Node, Seat};
use super::table::{Slot, Table};

/// Blocks a node at most, and the depth at whose multiples a new node begins.
pub(super) const NODE_BLOCKS: u32 = 32;
/// Nodes that a look-up probes for before it reads them.
const GROUPS_AT_ONCE: usize = 16;
const SHARDS: usize = 64;
const PARTS: usize = 16;
/// An entry packs its node into 27 bits; the highest number would look like a vacant slot.
const NODES_MAX: usize = (1 << 27) - 1;

/// Where a block lies, for as long as a seat holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub(super) node: u32,
    pub(super) shard: u8,
    pub(super) offset: u8,
}

/// A block of a stored run, and where it is.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    pub place: Place,
    pub own: OwnHash,
    /// The seat did not hold it before.
    pub is_new: bool,
    /// The seat did not surely hold it before, and does now.
    pub is_newly_sure: bool,
}

impl Put {
    /// Not put yet.
    fn of(own: OwnHash) -> Self {
        let nowhere = Place {
            node: 0,
            shard: 0,
            offset: 0,
        };
        let held = Held {
            is_new: false,
            is_newly_sure: false,
        };
        Self::new(nowhere, own, held)
    }

    pub(super) fn new(place: Place, own: OwnHash, held: Held) -> Self {
        let Held {
            is_new,
            is_newly_sure,
        } = held;
        Self {
            place,
            own,
            is_new,
            is_newly_sure,
        }
    }
}

/// What a chain goes on from.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    Root(OwnHash),
    After(Place),
}

#[derive(Debug)]
pub struct Index {
    shards: Box<[RwLock<Shard>]>,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
        }
    }
}

impl Index {
    /// Lets `seat` hold the blocks with `contents` one after the other, and says where they are.
    /// Fewer come out than went in when the index is full.
    pub fn put(&self, seat: Seat, start: Start, contents: &[u64], puts: &mut Vec<Put>) {
        let claim = Claim {
            seat,
            is_sure: true,
        };
        self.put_as(claim, start, contents, puts);
    }

    pub(super) fn put_as(&self, claim: Claim, start: Start, contents: &[u64], puts: &mut Vec<Put>) {
        puts.clear();
        let Some(&first) = contents.first() else {
            return;
        };
        let (number, mut guard) = match start {
            Start::Root(root) => self.write_shard(shard_of(link(root, first))),
            Start::After(place) => self.write_shard(usize::from(place.shard)),
        };
        let shard = &mut *guard;
        let (mut parent, mut own) = match start {
            Start::Root(root) => (None, root),
            Start::After(place) => (Some(Spot::of(place)), shard.own(Spot::of(place))),
        };
        puts.extend(contents.iter().map(|&content| {
            own = link(own, content);
            Put::of(own)
        }));
        shard.touch(puts);
        for at in 0..puts.len() {
            let Some(spot) = shard.spot(parent, &puts[at..]) else {
                puts.truncate(at);
                return;
            };
            let held = shard.nodes[spot.node as usize].hold(claim, spot.offset);
            puts[at] = Put::new(spot.place(number), puts[at].own, held);
            parent = Some(spot);
        }
    }

    /// Lets another seat hold a block that is held already.
    pub(super) fn hold(&self, claim: Claim, place: Place) -> Put {
        let (_, mut shard) = self.write_shard(usize::from(place.shard));
        let held = shard.nodes[place.node as usize].hold(claim, place.offset);
        Put::new(place, shard.own(Spot::of(place)), held)
    }

    /// Casts doubt on a seat's hold of a block.
    pub(super) fn doubt(&self, seat: Seat, place: Place) -> OwnHash {
        let (_, mut shard) = self.write_shard(usize::from(place.shard));
        shard.nodes[place.node as usize].doubt(seat, place.offset);
        shard.own(Spot::of(place))
    }

    /// Ends a seat's hold of a block.
    pub fn release(&self, seat: Seat, place: Place) -> OwnHash {
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

    /// The same for what may be no chain at all: each block is looked at, and the end is where one
    /// does not follow the one before. `visit` gets a node and which of its blocks follow.
    pub(super) fn trace(&self, chain: &[OwnHash], visit: impl FnMut(&Node, Range<usize>) -> bool) {
        if let Some(&first) = chain.first() {
            self.shards[shard_of(first)].read().trace(chain, visit);
        }
    }

    /// A look at one node.
    pub(super) fn see<T>(&self, place: Place, see: impl FnOnce(&Node) -> T) -> T {
        let shard = self.shards[usize::from(place.shard)].read();
        see(&shard.nodes[place.node as usize])
    }

    /// Blocks in the index, whoever holds them.
    #[cfg(test)]
    pub(super) fn blocks(&self) -> usize {
        self.shards
            .iter()
            .flat_map(|shard| shard.read().parts.each_ref().map(Table::len))
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    fn new(own: OwnHash, spot: Spot) -> Self {
        let packed = u64::from(spot.node) * u64::from(NODE_BLOCKS) + u64::from(spot.offset);
        Self(own.0 >> 32 << 32 | packed)
    }

    fn spot(self) -> Spot {
        let packed = self.0 & u64::from(u32::MAX);
        let node = u32::try_from(packed / u64::from(NODE_BLOCKS)).expect("27 bits are left");
        let offset = u8::try_from(packed % u64::from(NODE_BLOCKS)).expect("below 32");
        Spot { node, offset }
    }
}

impl Slot for Entry {
    const VACANT: Self = Self(u64::MAX);

    fn is_vacant(self) -> bool {
        self == Self::VACANT
    }

    fn tag(self) -> u32 {
        tag(OwnHash(self.0))
    }
}

/// The upper half: the lower bytes choose the shard and the part.
fn tag(own: OwnHash) -> u32 {
    u32::try_from(own.0 >> 32).expect("32 bits are left")
}

#[derive(Debug, Default)]
struct Shard {
    parts: [Table<Entry>; PARTS],
    nodes: Vec<Node>,
    free: Vec<u32>,
}

impl Shard {
    fn own(&self, spot: Spot) -> OwnHash {
        self.nodes[spot.node as usize].hashes[usize::from(spot.offset)]
    }

    fn find(&self, own: OwnHash) -> Option<Spot> {
        let part = &self.parts[part_of(own)];
        part.find(tag(own), |entry| self.own(entry.spot()) == own)
            .map(|at| part.at(at).spot())
    }

    fn touch(&self, puts: &[Put]) {
        let touch = |put: &Put| self.parts[part_of(put.own)].touch(tag(put.own));
        black_box(puts.iter().map(touch).fold(0, u32::wrapping_add));
    }

    /// Where the first of consecutive blocks is, or is now put: in its parent's node where it is
    /// the next one there.
    fn spot(&mut self, parent: Option<Spot>, blocks: &[Put]) -> Option<Spot> {
        let own = blocks.first()?.own;
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
            None => self.begin(parent, own, blocks.len())?,
        };
        self.parts[part_of(own)].insert(Entry::new(own, spot));
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

    /// A node of its own, for as many blocks as are known to follow.
    fn begin(&mut self, parent: Option<Spot>, own: OwnHash, blocks: usize) -> Option<Spot> {
        let parent_link = parent.map(|parent| (parent.node, parent.offset));
        let depth = parent.map_or(0, |parent| {
            let node = &mut self.nodes[parent.node as usize];
            node.adopt(parent.offset);
            node.depth + u32::from(parent.offset) + 1
        });
        let room = (NODE_BLOCKS - depth % NODE_BLOCKS) as usize;
        let new = Node::new(parent_link, depth, own, blocks.min(room));
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
        let node = &mut self.nodes[spot.node as usize];
        node.release(seat, spot.offset);
        if usize::from(spot.offset) + 1 == node.hashes.len() {
            self.trim(spot.node);
        }
        own
    }

    /// Takes out the blocks at the end of a node that nobody needs any more, and the node with
    /// the last of them, and then those before it in the same way.
    fn trim(&mut self, mut at: u32) {
        loop {
            let node = &mut self.nodes[at as usize];
            let needed = node.needed();
            while let Some(offset) = node.hashes.len().checked_sub(1).filter(|at| *at >= needed) {
                let own = node.hashes.pop().expect("longer than needed");
                let offset = u8::try_from(offset).expect("below 32");
                let entry = Entry::new(own, Spot { node: at, offset });
                let part = &mut self.parts[part_of(own)];
                let found = part.find(tag(own), |slot| slot == entry);
                part.remove(found.expect("every block of a node is in the table"));
            }
            if needed > 0 {
                return;
            }
            let parent = node.parent();
            *node = Node::default();
            self.free.push(at);
            let Some((parent, _)) = parent else { return };
            self.nodes[parent as usize].disown();
            at = parent;
        }
    }

    fn walk(&self, chain: &[OwnHash], mut visit: impl FnMut(&Node, u32) -> bool) {
        let mut start = 0;
        let mut before = None;
        for some in chain.chunks(GROUPS_AT_ONCE * NODE_BLOCKS as usize) {
            let lasts = self.lasts(some, before, start);
            for (last, group) in lasts.iter().zip(some.chunks(NODE_BLOCKS as usize)) {
                let Some(deepest) = last.or_else(|| self.deepest(group)) else {
                    return;
                };
                if !self.follow(deepest, start, &mut visit) || last.is_none() {
                    return;
                }
                start += NODE_BLOCKS;
            }
            before = lasts[GROUPS_AT_ONCE - 1];
        }
    }

    fn trace(&self, chain: &[OwnHash], mut visit: impl FnMut(&Node, Range<usize>) -> bool) {
        let (mut before, mut at) = (None, 0);
        while let Some(spot) = chain.get(at).and_then(|&own| self.find(own)) {
            let node = &self.nodes[spot.node as usize];
            let offset = usize::from(spot.offset);
            let parent = match spot.offset.checked_sub(1) {
                Some(offset) => Some((spot.node, offset)),
                None => node.parent(),
            };
            let follow = node.hashes[offset..].iter().zip(&chain[at..]);
            let end = offset + follow.take_while(|(here, asked)| here == asked).count();
            if parent != before || !visit(node, offset..end) {
                return;
            }
            at += end - offset;
            let last = u8::try_from(end - 1).expect("at most NODE_BLOCKS");
            before = Some((spot.node, last));
        }
    }

    /// Where the last block of each group is, as far as it is known. All probes come first, as
    /// they need not wait for one another, and trust half a hash: a block's parents are what its
    /// node says, so it is enough to compare the last one's whole hash, and that each goes on
    /// from the one before. In the odd case each is found by its whole hash.
    fn lasts(
        &self,
        chain: &[OwnHash],
        mut before: Option<Spot>,
        mut start: u32,
    ) -> [Option<Spot>; GROUPS_AT_ONCE] {
        let mut lasts = [None; GROUPS_AT_ONCE];
        let groups = || {
            chain
                .chunks(NODE_BLOCKS as usize)
                .map(|group| group[group.len() - 1])
        };
        let mut deepest = None;
        for (last, own) in lasts.iter_mut().zip(groups()) {
            let Some(spot) = self.probe(own) else { break };
            *last = Some(spot);
            deepest = Some((spot, own));
        }
        let mut is_right = deepest.is_none_or(|(spot, own)| self.own(spot) == own);
        for last in lasts.into_iter().flatten() {
            let mut first = last;
            while let Some(parent) = self.before(first, start) {
                first = parent;
            }
            let node = &self.nodes[first.node as usize];
            let parent = before.map(|spot: Spot| (spot.node, spot.offset));
            is_right &= node.depth == start && node.parent() == parent;
            (before, start) = (Some(last), start + NODE_BLOCKS);
        }
        if !is_right {
            lasts = [None; GROUPS_AT_ONCE];
            for (last, own) in lasts.iter_mut().zip(groups()) {
                *last = self.find(own);
            }
        }
        lasts
    }

    /// By half of its hash.
    fn probe(&self, own: OwnHash) -> Option<Spot> {
        let part = &self.parts[part_of(own)];
        part.find(tag(own), |_| true).map(|at| part.at(at).spot())
    }

    /// The nodes from a depth up to a block, in order. False when `visit` has enough.
    fn follow(&self, deepest: Spot, start: u32, mut visit: impl FnMut(&Node, u32) -> bool) -> bool {
        let mut path = [deepest; NODE_BLOCKS as usize];
        let mut length = 1;
        while let Some(spot) = self.before(path[length - 1], start) {
            let Some(next) = path.get_mut(length) else {
                return false;
            };
            *next = spot;
            length += 1;
        }
        path[..length]
            .iter()
            .rev()
            .all(|spot| visit(&self.nodes[spot.node as usize], u32::from(spot.offset) + 1))
    }

    /// The block that a node goes on from, unless it begins at or before a depth.
    fn before(&self, spot: Spot, start: u32) -> Option<Spot> {
        let node = &self.nodes[spot.node as usize];
        let (parent, offset) = node.parent().filter(|_| node.depth > start)?;
        Some(Spot {
            node: parent,
            offset,
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that all have the upper half and the part of `like` where they end a first node.
    fn names(of: u64, like: u64) -> Vec<OwnHash> {
        let name = |at: u64| match at {
            31 => like + (of << 24),
            _ => (of << 48) + (at << 32),
        };
        (0..64).map(|at| OwnHash(name(at))).collect()
    }

    fn shard_of_chains(chains: &[Vec<OwnHash>]) -> Shard {
        let mut shard = Shard::default();
        for chain in chains {
            let mut parent = None;
            for &own in chain {
                parent = shard.spot(parent, &[Put::of(own)]);
                let spot = parent.expect("room");
                let claim = Claim {
                    seat: Seat::new(0, 0),
                    is_sure: true,
                };
                shard.nodes[spot.node as usize].hold(claim, spot.offset);
            }
        }
        shard
    }

    #[test]
    fn half_a_hash_is_not_taken_for_a_whole_one() {
        let chains: Vec<Vec<OwnHash>> = (1..9).map(|of| names(of, 7 << 40)).collect();
        let shard = shard_of_chains(&chains);
        for chain in &chains {
            let mut walked = Vec::new();
            shard.walk(chain, |node, blocks| {
                walked.extend_from_slice(&node.hashes[..blocks as usize]);
                true
            });
            assert_eq!(&walked, chain);
        }
        let unknown = names(9, 7 << 40);
        shard.walk(&unknown[..32], |_, _| panic!("nobody holds it"));
        let mut branch = chains[0].clone();
        branch[40..].copy_from_slice(&unknown[40..]);
        let mut walked = 0;
        shard.walk(&branch, |_, blocks| {
            walked += blocks;
            true
        });
        assert_eq!(walked, 40);
    }
}
