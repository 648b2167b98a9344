//! Which blocks surely lie on a source's device: what leases rest on.
//!
//! An engine may hold several copies of a block and remove one, and it may announce a block again
//! without a copy of its own. So after the removal of one of several references nobody knows what
//! is left, and the block is in doubt until it is stored again; blocks whose hashes and tokens do
//! not pair are in doubt from the start. And where an engine has several groups a block is of use
//! only if each of them holds it.

use super::hash::OwnHash;
use super::index::{Index, Put};
use super::lanes::{LANES_MAX, Lanes, Role};
use super::node::{Holder, Seat};

/// How many blocks from a chain's start.
pub(super) fn resident(index: &Index, lanes: &Lanes, source: u32, chain: &[OwnHash]) -> usize {
    let mut blocks = 0;
    index.trace(chain, |node, range| {
        let asked = range.len();
        let sure = sure(node.holders_of(source), lanes) >> range.start;
        let there = (sure.trailing_ones() as usize).min(asked);
        blocks += there;
        there == asked
    });
    blocks
}

/// Whether a block that a seat newly holds was not there for sure before, and is now.
pub(super) fn is_newly_resident(index: &Index, lanes: &Lanes, seat: Seat, put: &Put) -> bool {
    put.is_newly_sure
        && index.see(put.place, |node| {
            let bit = 1 << put.place.offset;
            let mut holders = node.holders_of(seat.source()).to_vec();
            let after = sure(&holders, lanes) & bit;
            for holder in &mut holders {
                if holder.seat == seat {
                    holder.sure &= !bit;
                }
            }
            after != 0 && sure(&holders, lanes) & bit == 0
        })
}

/// As bits; the holders are of one source.
fn sure(holders: &[Holder], lanes: &Lanes) -> u32 {
    let mut sure_in = [0; LANES_MAX];
    for holder in holders {
        sure_in[holder.seat.lane() as usize] = holder.sure;
    }
    let in_all = |set: u16| {
        (0..LANES_MAX)
            .filter(|lane| set & 1 << lane != 0)
            .fold(u32::MAX, |all, lane| all & sure_in[lane])
    };
    holders
        .iter()
        .fold(0, |sure, holder| match lanes.role(holder.seat) {
            Role::Hidden | Role::Lower => sure,
            Role::Device(set) | Role::Peer(set) => sure | in_all(set),
        })
}
