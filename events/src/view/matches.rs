//! How much of a prompt each source holds, from the start.

use super::hash::OwnHash;
use super::index::Index;
use super::lanes::{Lanes, Role, lane_of, source_of};
use super::node::{Holder, bits_to};

/// One source's part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reach {
    pub(super) source: u16,
    /// Blocks from the start that are all on the device.
    pub(super) device: u32,
    /// Blocks from the start that are each on the device or on a lower tier; at least `device`.
    pub(super) any: u32,
}

/// Every source that holds the first block, by source.
pub(super) fn reach(index: &Index, lanes: &Lanes, chain: &[OwnHash]) -> Vec<Reach> {
    let mut ended = Vec::new();
    let mut going: Vec<Reach> = Vec::new();
    let mut at = 0;
    index.walk(chain, |node, blocks| {
        let mut holders = Holders {
            left: node.holders(),
            lanes,
            bits: bits_to(blocks),
        };
        if at == 0 {
            going.reserve(holders.left.len());
            while let Some(&first) = holders.left.first() {
                let source = source_of(first.seat);
                going.push(Reach {
                    source,
                    device: 0,
                    any: 0,
                });
                going
                    .last_mut()
                    .expect("just pushed")
                    .go_on(0, holders.take(source));
            }
        } else {
            for reach in &mut going {
                reach.go_on(at, holders.take(reach.source));
            }
        }
        at += blocks;
        going.retain(|reach| {
            let goes_on = reach.any == at;
            if !goes_on && reach.any > 0 {
                ended.push(*reach);
            }
            goes_on
        });
        !going.is_empty()
    });
    ended.append(&mut going);
    ended.sort_unstable();
    ended
}

impl Reach {
    fn go_on(&mut self, at: u32, held: Held) {
        if self.device == at {
            self.device += held.device.trailing_ones();
        }
        self.any += (held.device | held.lower).trailing_ones();
    }
}

/// Which blocks of a node a source holds, as bits.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    device: u32,
    lower: u32,
}

/// The holders of a node, taken in the order of their sources.
struct Holders<'a> {
    left: &'a [Holder],
    lanes: &'a Lanes,
    /// The blocks that are asked for.
    bits: u32,
}

impl Holders<'_> {
    /// What one source holds; those before it are passed over.
    fn take(&mut self, source: u16) -> Held {
        let mut held = Held::default();
        let (mut peers, mut seen, mut all) = (0, 0, u32::MAX);
        while let Some((holder, rest)) = self.left.split_first() {
            let holds = source_of(holder.seat);
            if holds > source {
                break;
            }
            self.left = rest;
            if holds < source {
                continue;
            }
            let blocks = holder.blocks & self.bits;
            match self.lanes.role(holder.seat) {
                Role::Hidden => {}
                Role::Device => held.device |= blocks,
                Role::Lower => held.lower |= blocks,
                Role::Peer(of) => {
                    peers = of;
                    seen |= 1 << lane_of(holder.seat);
                    all &= blocks;
                }
            }
        }
        if peers != 0 && seen == peers {
            held.device |= all;
        }
        held
    }
}
