//! What is noted elsewhere of the log's newest segment, so that a log that is gone is missed.

use super::Log;

/// A segment that was the newest. The newest one is never given back, and numbers only grow: so a
/// log that is whole has this segment as its newest, or a later one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogMark {
    number: u32,
    /// Of its name: two segments of one number differ in it.
    seed: u64,
}

const NUMBER_BYTES: usize = 4;
const SEED_BYTES: usize = 8;

impl LogMark {
    #[must_use]
    pub fn to_bytes(self) -> [u8; NUMBER_BYTES + SEED_BYTES] {
        let mut bytes = [0; NUMBER_BYTES + SEED_BYTES];
        bytes[..NUMBER_BYTES].copy_from_slice(&self.number.to_le_bytes());
        bytes[NUMBER_BYTES..].copy_from_slice(&self.seed.to_le_bytes());
        bytes
    }

    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<LogMark> {
        let (number, seed) = bytes.split_first_chunk()?;
        Some(LogMark {
            number: u32::from_le_bytes(*number),
            seed: u64::from_le_bytes(seed.try_into().ok()?),
        })
    }

    /// Whether a log whose newest segment was this one has lost it, with `newest` as its newest.
    #[must_use]
    pub fn is_missing(self, newest: LogMark) -> bool {
        newest.number < self.number || (newest.number == self.number && newest.seed != self.seed)
    }
}

impl Log {
    #[must_use]
    pub fn newest_mark(&self) -> LogMark {
        LogMark {
            number: self.current.number,
            seed: self.current.seed,
        }
    }
}
