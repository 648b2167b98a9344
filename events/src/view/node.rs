//! A few consecutive blocks of one chain, and who holds them.

use super::hash::OwnHash;
use super::index::NODE_BLOCKS;

/// Who holds: one lane of one source, see [`super::lanes`].
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat(pub(super) u32);

impl Seat {
    /// Lanes of one source lie together, those of another one apart.
    #[must_use]
    pub fn new(source: u16, lane: u8) -> Self {
        Self(u32::from(source) * SEATS_EACH + u32::from(lane) % SEATS_EACH)
    }

    pub(super) fn source(self) -> u32 {
        self.0 / SEATS_EACH
    }

    pub(super) fn lane(self) -> u32 {
        self.0 % SEATS_EACH
    }
}

/// Lanes of a source.
const SEATS_EACH: u32 = 16;

/// A seat with one bit for each block of the node that it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) seat: Seat,
    pub(super) blocks: u32,
    /// Of those the ones that are beyond doubt.
    pub(super) sure: u32,
}

/// A seat that holds a block from now on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) seat: Seat,
    /// The block is there, whatever became of copies of it before.
    pub(super) is_sure: bool,
}

/// What a claim was to a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// It did not hold the block before.
    pub(super) is_new: bool,
    /// It did not surely hold it before, and does now.
    pub(super) is_newly_sure: bool,
}

/// One line of the processor's cache.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Node {
    /// Consecutive: each the parent of the next.
    pub(super) hashes: Vec<OwnHash>,
    holders: Holders,
    /// One more than the number of the node that the first block continues; 0 for none.
    parent: u32,
    /// Of the first block, from the start of its chain.
    pub(super) depth: u32,
    /// Nodes that continue one of the blocks here.
    children: u32,
    /// Which block of the parent the first one here continues.
    parent_offset: u8,
    /// No child continues a block after this one.
    last_child: u8,
}

/// Sorted by seat. Most blocks have one holder, and need no heap for it.
#[derive(Debug, Default)]
enum Holders {
    #[default]
    None,
    One(Holder),
    Many(Vec<Holder>),
}

impl Node {
    /// With its first block, and room for some.
    pub(super) fn new(
        parent: Option<(u32, u8)>,
        depth: u32,
        own: OwnHash,
        room_blocks: usize,
    ) -> Self {
        let (parent, parent_offset) = parent.map_or((0, 0), |(node, offset)| (node + 1, offset));
        let mut hashes = Vec::with_capacity(room_blocks);
        hashes.push(own);
        Self {
            hashes,
            parent,
            parent_offset,
            depth,
            ..Self::default()
        }
    }

    pub(super) fn parent(&self) -> Option<(u32, u8)> {
        Some((self.parent.checked_sub(1)?, self.parent_offset))
    }

    /// By doubling from one: a vector's own first step is to four.
    pub(super) fn push(&mut self, own: OwnHash) {
        if self.hashes.len() == self.hashes.capacity() {
            self.hashes.reserve_exact(self.hashes.len().max(1));
        }
        self.hashes.push(own);
    }

    pub(super) fn holders(&self) -> &[Holder] {
        match &self.holders {
            Holders::None => &[],
            Holders::One(holder) => std::slice::from_ref(holder),
            Holders::Many(holders) => holders,
        }
    }

    /// Those of one source.
    pub(super) fn holders_of(&self, source: u32) -> &[Holder] {
        let all = self.holders();
        let first = all.partition_point(|holder| holder.seat.source() < source);
        let behind = all.partition_point(|holder| holder.seat.source() <= source);
        &all[first..behind]
    }

    pub(super) fn adopt(&mut self, offset: u8) {
        self.last_child = if self.children == 0 {
            offset
        } else {
            self.last_child.max(offset)
        };
        self.children += 1;
    }

    pub(super) fn disown(&mut self) {
        self.children -= 1;
    }

    pub(super) fn hold(&mut self, claim: Claim, offset: u8) -> Held {
        let seat = claim.seat;
        let blocks = 1 << offset;
        let new = Holder {
            seat,
            blocks,
            sure: if claim.is_sure { blocks } else { 0 },
        };
        match &mut self.holders {
            Holders::None => self.holders = Holders::One(new),
            Holders::One(one) if one.seat == seat => return one.add(new),
            Holders::One(one) => {
                let mut both = vec![*one, new];
                both.sort_unstable_by_key(|holder| holder.seat);
                self.holders = Holders::Many(both);
            }
            Holders::Many(many) => match many.binary_search_by_key(&seat, |holder| holder.seat) {
                Ok(at) => return many[at].add(new),
                Err(at) => many.insert(at, new),
            },
        }
        Held {
            is_new: true,
            is_newly_sure: claim.is_sure,
        }
    }

    /// The seat holds the block still, but perhaps without a copy.
    pub(super) fn doubt(&mut self, seat: Seat, offset: u8) {
        let holder = match &mut self.holders {
            Holders::None => None,
            Holders::One(one) => Some(one).filter(|one| one.seat == seat),
            Holders::Many(many) => many.iter_mut().find(|holder| holder.seat == seat),
        };
        if let Some(holder) = holder {
            holder.sure &= !(1 << offset);
        }
    }

    pub(super) fn release(&mut self, seat: Seat, offset: u8) {
        let blocks = !(1 << offset);
        match &mut self.holders {
            Holders::None => {}
            Holders::One(one) => {
                if one.seat == seat {
                    one.blocks &= blocks;
                    one.sure &= blocks;
                    if one.blocks == 0 {
                        self.holders = Holders::None;
                    }
                }
            }
            Holders::Many(many) => {
                let Ok(at) = many.binary_search_by_key(&seat, |holder| holder.seat) else {
                    return;
                };
                many[at].blocks &= blocks;
                many[at].sure &= blocks;
                if many[at].blocks == 0 {
                    many.remove(at);
                }
                if let [one] = many[..] {
                    self.holders = Holders::One(one);
                } else if many.len() * 4 <= many.capacity() {
                    many.shrink_to(many.len() * 2);
                }
            }
        }
    }

    /// How many blocks, from the first, must stay: those held, and those that something after
    /// them continues.
    pub(super) fn needed(&self) -> usize {
        let continued = if self.children == 0 {
            0
        } else {
            usize::from(self.last_child) + 1
        };
        let mut needed = continued;
        for holder in self.holders() {
            needed = needed.max((u32::BITS - holder.blocks.leading_zeros()) as usize);
            if needed == self.hashes.len() {
                break;
            }
        }
        needed
    }
}

impl Holder {
    fn add(&mut self, new: Self) -> Held {
        let held = Held {
            is_new: self.blocks & new.blocks == 0,
            is_newly_sure: new.sure & !self.sure != 0,
        };
        self.blocks |= new.blocks;
        self.sure |= new.sure;
        held
    }
}

/// The bits of a node's first blocks.
pub(super) fn bits_to(blocks: u32) -> u32 {
    u32::MAX.checked_shr(NODE_BLOCKS - blocks).unwrap_or(0)
}
