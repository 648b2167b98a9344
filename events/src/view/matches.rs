//! How much of a prompt each source holds, from the start.

use super::hash::OwnHash;
use super::index::Index;
use super::lanes::{Lanes, Role};
use super::node::{Holder, Seat, bits_to};

/// One source's part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reach {
    pub(super) source: u32,
    /// Blocks from the start that are all on the device.
    pub(super) device: u32,
    /// Blocks from the start that are each on the device or on a lower tier; at least `device`.
    pub(super) any: u32,
}

/// Every source that holds the first block, by source.
pub(super) fn reach(index: &Index, lanes: &Lanes, chain: &[OwnHash]) -> Vec<Reach> {
    let (mut ended, mut going) = (Vec::new(), Vec::new());
    let mut at = 0;
    index.walk(chain, |node, blocks| {
        let mut holders = Holders {
            left: node.holders(),
            lanes,
            bits: bits_to(blocks),
        };
        if at == 0 {
            going = begin(node.holders(), lanes);
        }
        let mut has_ended = false;
        for one in &mut going {
            one.go_on(at, &mut holders);
            has_ended |= one.reach.any < at + blocks;
        }
        at += blocks;
        if has_ended {
            going.retain(|one: &Going| {
                let goes_on = one.reach.any == at;
                if !goes_on && one.reach.any > 0 {
                    ended.push(one.reach);
                }
                goes_on
            });
        }
        !going.is_empty()
    });
    ended.extend(going.iter().map(|one| one.reach));
    ended.sort_unstable();
    ended
}

/// A source that holds everything so far.
#[derive(Clone, Copy, Debug)]
struct Going {
    reach: Reach,
    /// The first of its seats.
    seat: Seat,
    /// A block that this seat holds is on the device, whatever others hold.
    is_alone: bool,
}

fn begin(holders: &[Holder], lanes: &Lanes) -> Vec<Going> {
    let mut going: Vec<Going> = Vec::with_capacity(holders.len());
    for &Holder { seat, .. } in holders {
        let source = seat.source();
        if going.last().is_none_or(|last| last.reach.source != source) {
            let is_alone = match lanes.role(seat) {
                Role::Device(_) => true,
                Role::Peer(peers) => peers == 1 << seat.lane(),
                Role::Hidden | Role::Lower => false,
            };
            going.push(Going {
                reach: Reach {
                    source,
                    device: 0,
                    any: 0,
                },
                seat,
                is_alone,
            });
        }
    }
    going
}

impl Going {
    fn go_on(&mut self, at: u32, holders: &mut Holders<'_>) {
        let alone = if self.is_alone {
            holders.take_alone(self.seat)
        } else {
            None
        };
        let held = match alone {
            Some(device) => Held { device, lower: 0 },
            None => holders.take(self.reach.source),
        };
        if self.reach.device == at {
            self.reach.device += held.device.trailing_ones();
        }
        self.reach.any += (held.device | held.lower).trailing_ones();
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
    /// What a seat holds where it is the next, and the only one of its source. Most are, and
    /// where a prompt is popular there are many.
    fn take_alone(&mut self, seat: Seat) -> Option<u32> {
        let source = seat.source();
        self.pass_over(source);
        let (holder, rest) = self.left.split_first()?;
        let is_alone = rest.first().is_none_or(|next| next.seat.source() != source);
        (holder.seat == seat && is_alone).then(|| {
            self.left = rest;
            holder.blocks & self.bits
        })
    }

    fn pass_over(&mut self, source: u32) {
        while let Some((holder, rest)) = self.left.split_first()
            && holder.seat.source() < source
        {
            self.left = rest;
        }
    }

    /// What one source holds on the device and on lower tiers.
    fn take(&mut self, source: u32) -> Held {
        self.pass_over(source);
        let mut held = Held::default();
        let (mut peers, mut seen, mut all) = (0, 0, u32::MAX);
        while let Some((holder, rest)) = self.left.split_first()
            && holder.seat.source() == source
        {
            self.left = rest;
            let blocks = holder.blocks & self.bits;
            match self.lanes.role(holder.seat) {
                Role::Hidden => {}
                Role::Device(_) => held.device |= blocks,
                Role::Lower => held.lower |= blocks,
                Role::Peer(of) => {
                    peers = of;
                    seen |= 1 << holder.seat.lane();
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
