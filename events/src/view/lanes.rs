//! What readers must know of a source's lanes: one word each, read without a lock.
//!
//! A lane is a (medium, group) of a source. Where an engine has several attention groups a block
//! is a hit only if each of them holds it, so such lanes are peers, and a reader takes the blocks
//! that all peers hold. Lanes whose kind nobody said, and those without a group, stand for
//! themselves; but a lease rests on such a block only where all of the former hold it, as which
//! of them is attention nobody knows.

use std::sync::atomic::{AtomicU32, Ordering};

use super::node::Seat;

/// A source's lanes at once.
pub(super) const LANES_MAX: usize = 16;

/// How a lane counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Not at all: the lane is empty or being emptied.
    Hidden,
    /// A block held here is on the device; surely so when all lanes of this set hold it.
    Device(u16),
    /// A block is on the device when all lanes of this set hold it; the set has this one.
    Peer(u16),
    /// A block held here is on a lower tier.
    Lower,
}

/// The lanes of all sources, by seat.
#[derive(Debug)]
pub(super) struct Lanes(Box<[AtomicU32]>);

impl Lanes {
    pub(super) fn new(sources: usize) -> Self {
        Self(
            (0..sources * LANES_MAX)
                .map(|_| AtomicU32::new(0))
                .collect(),
        )
    }

    pub(super) fn role(&self, seat: Seat) -> Role {
        let word = self.0[seat.0 as usize].load(Ordering::Relaxed);
        let set = u16::try_from(word & SET).expect("16 bits are left");
        match word & !SET {
            DEVICE => Role::Device(set),
            PEER => Role::Peer(set),
            LOWER => Role::Lower,
            _ => Role::Hidden,
        }
    }

    pub(super) fn set(&self, seat: Seat, role: Role) {
        let word = match role {
            Role::Hidden => 0,
            Role::Device(set) => DEVICE | u32::from(set),
            Role::Peer(set) => PEER | u32::from(set),
            Role::Lower => LOWER,
        };
        self.0[seat.0 as usize].store(word, Ordering::Relaxed);
    }
}

/// The lanes of a set, a bit each.
const SET: u32 = 0xffff;
const DEVICE: u32 = 1 << 16;
const PEER: u32 = 2 << 16;
const LOWER: u32 = 3 << 16;
