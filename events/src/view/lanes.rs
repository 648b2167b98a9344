//! What readers must know of a source's lanes: one word each, read without a lock.
//!
//! A lane is a (medium, group) of a source. Where an engine has several attention groups a block
//! is a hit only if each of them holds it, so such lanes are peers, and a reader takes the blocks
//! that all peers hold. Lanes whose kind nobody said, and those without a group, stand for
//! themselves.

use std::sync::atomic::{AtomicU32, Ordering};

use super::node::Seat;

/// A source's lanes at once.
pub(super) const LANES_MAX: usize = 16;

/// How a lane counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Not at all: the lane is empty or being emptied.
    Hidden,
    /// A block held here is on the device.
    Device,
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
                .map(|_| AtomicU32::new(HIDDEN))
                .collect(),
        )
    }

    pub(super) fn role(&self, seat: Seat) -> Role {
        match self.0[seat.0 as usize].load(Ordering::Relaxed) {
            HIDDEN => Role::Hidden,
            DEVICE => Role::Device,
            LOWER => Role::Lower,
            peers => Role::Peer(u16::try_from(peers - PEERS).unwrap_or(0)),
        }
    }

    pub(super) fn set(&self, seat: Seat, role: Role) {
        let word = match role {
            Role::Hidden => HIDDEN,
            Role::Device => DEVICE,
            Role::Lower => LOWER,
            Role::Peer(peers) => PEERS + u32::from(peers),
        };
        self.0[seat.0 as usize].store(word, Ordering::Relaxed);
    }
}

const HIDDEN: u32 = 0;
const DEVICE: u32 = 1;
const LOWER: u32 = 2;
const PEERS: u32 = 1 << 16;
