//! What a track is told of its source, and what it says is to be done.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// One batch as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<P> {
    pub sequence: u64,
    /// Of the payload; two batches with one digest are the same batch.
    pub digest: u64,
    pub payload: P,
}

impl Frame<Bytes> {
    #[must_use]
    pub fn new(sequence: u64, payload: Bytes) -> Self {
        Self {
            sequence,
            digest: xxh3_64(&payload),
            payload,
        }
    }
}

/// How far a source's blocks can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Not connected, or not yet sure to be connected to the engine that the blocks are from.
    Stale,
    /// That engine's, but batches are missing or were not understood; or nothing is known yet.
    Degraded,
    /// All that the engine published, from the first batch of the epoch to the last one applied.
    Exact,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<P> {
    /// The subscription is up, to one process until it is lost.
    Connected,
    /// Handed in before whatever a later process answers.
    Lost,
    Live(Frame<P>),
    Replayed {
        ask: u32,
        frame: Frame<P>,
    },
    /// The marker that ends a replay.
    Ended {
        ask: u32,
    },
    /// A replay cannot be had, or was cut off.
    Failed {
        ask: u32,
    },
    /// Time went by, see [`Track::deadline_ms`](super::track::Track::deadline_ms).
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<P> {
    Apply(P),
    /// Ask for all batches from this one on, over a connection of its own, and give up the replay
    /// before. What comes is handed in under the number of the ask.
    Ask {
        ask: u32,
        from: u64,
    },
    /// A new epoch: everything applied is void, and so is every lease on it.
    Begin,
    /// The subscription is dead though it looks alive: drop it and connect again.
    Reconnect,
}
