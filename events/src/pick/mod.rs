//! Which source a prompt is sent to: the one where what is missing and what is going on already
//! cost least.
//!
//! ```text
//! cost = missing blocks + LOWER_TIER_SHARE of the blocks on lower tiers + load (see [`Load`])
//! ```
//!
//! Blocks are those of the prompt's shape: one fleet, one block size. Whoever has several counts
//! all of them in blocks of one of them.

mod load;

use std::hash::{DefaultHasher, Hash, Hasher};

pub use self::load::{
    EXPIRED_AT_ONCE_MAX, IN_FLIGHT_BLOCKS, Load, LoadError, RECENT_HALF_LIFE_MS, RECENT_SHARE,
    REQUEST_ID_BYTES_MAX, REQUESTS_MAX, SOURCES_MAX,
};
use crate::view::SourceId;

/// What a block on a lower tier costs, of what a missing one does. A block of 512 tokens takes
/// 50 ms to compute at 10,000 tokens/s. At 128 KiB a token its 64 MiB take 3 ms to come from the
/// host over `PCIe`, 6 %, and 20 ms to come from a disk, 40 %. A quarter lies between the two,
/// as nobody says which it will be.
pub const LOWER_TIER_SHARE: f64 = LOWER_TIER_PARTS as f64 / PARTS_PER_BLOCK as f64;
const LOWER_TIER_PARTS: u64 = PARTS_PER_BLOCK / 4;

/// Costs are whole numbers of parts of a block, so that equal costs are equal, and the charge of
/// a single block is nothing after eight half-lives.
const PARTS_PER_BLOCK: u64 = 256;

/// How far the claims about a source's cache are to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    Exact,
    /// Some events may be missing: a wrong claim costs a computation, never a wrong answer, so
    /// that all of it counts here.
    Degraded,
    /// Nothing is known any more: its claims count for nothing. It is still a candidate, since
    /// the engine behind a silent stream may well serve, and a fleet whose events all fail must
    /// not stand still.
    Stale,
}

/// A source that may be picked. Those that hold nothing of the prompt are candidates too, and
/// [`View::matches`](crate::view::View::matches) does not name them.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub source: SourceId,
    /// Blocks from the start that are all on the device.
    pub device_blocks: u32,
    /// Blocks that follow those and are each on the device or on a lower tier.
    pub lower_blocks: u32,
    pub state: SourceState,
}

/// The source that was picked, and what to charge it with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    pub source: SourceId,
    /// What the prompt adds to do there, for [`Load::start`]: what is missing, rounded up. A
    /// prompt that is too short for a block counts as one, or else nothing but chance would
    /// spread such prompts.
    pub charge_blocks: u32,
}

/// The cheapest candidate; of those the one of least load; of those the one that `spread` says.
/// Nothing when there are none.
///
/// The order of the candidates means nothing. `spread` is to differ from pick to pick, and from
/// one picker to the next: a seed plus a counter will do.
#[must_use]
pub fn pick(
    candidates: &[Candidate],
    total_blocks: u32,
    load: &Load,
    now_ms: u64,
    spread: u64,
) -> Option<Picked> {
    let (missing, _, source) = candidates
        .iter()
        .map(|candidate| {
            let load = load.parts(candidate.source, now_ms);
            (
                missing_parts(candidate, total_blocks),
                load,
                candidate.source,
            )
        })
        .min_by(
            |(missing, load, source), (other_missing, other_load, other)| {
                (missing + load)
                    .cmp(&(other_missing + other_load))
                    .then_with(|| load.cmp(other_load))
                    .then_with(|| turn(*source, spread).cmp(&turn(*other, spread)))
                    .then_with(|| source.cmp(other))
            },
        )?;
    let charge_blocks = match total_blocks {
        0 => 1,
        _ => u32::try_from(missing.div_ceil(PARTS_PER_BLOCK)).expect("at most total_blocks"),
    };
    Some(Picked {
        source,
        charge_blocks,
    })
}

/// What a candidate has to compute or to fetch, in parts.
fn missing_parts(candidate: &Candidate, total_blocks: u32) -> u64 {
    let (device, lower) = match candidate.state {
        SourceState::Exact | SourceState::Degraded => {
            (candidate.device_blocks, candidate.lower_blocks)
        }
        SourceState::Stale => (0, 0),
    };
    let beyond_device = total_blocks.saturating_sub(device);
    let fetched = lower.min(beyond_device);
    let missing = beyond_device - fetched;
    u64::from(missing) * PARTS_PER_BLOCK + u64::from(fetched) * LOWER_TIER_PARTS
}

/// The source's place in the line of one pick: any two are as often before as behind each other.
fn turn(source: SourceId, spread: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (source, spread).hash(&mut hasher);
    hasher.finish()
}
