//! Turns a payload as engines publish it (msgpack) into a [`Batch`]: permissive about whole events,
//! strict about every value in them.
//!
//! An event that is malformed or of an unknown type costs itself and is counted; a payload whose
//! structure breaks off, or that holds no batch, is an error as a whole. An event is read in one
//! go; only when that fails are its bytes passed over by their structure alone, which counts the
//! values that are still to come instead of descending into them, so no depth of nesting costs
//! stack or needs a limit.
//!
//! The reader is our own. `rmp` 0.8 reads one value a call: over batches of 128 blocks of 16
//! tokens, with ids spread over a vocabulary of 151,936, that passes 0.6 GB/s with nothing done to
//! what is read, and leaves no room for more. `rmpv` 1.3 builds a tree of all values first, at
//! 0.2 GB/s and many times the payload's size.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod encode;
mod event;
mod extra;
mod fields;
mod reader;
mod tokens;

pub use encode::{Form, encode};

use crate::event::{Batch, Event, Rejected};
use crate::repeats::Repeats;
use event::Rejection;
use reader::{Head, Reader};

/// The longest payload that is read.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;
/// The most events of a batch, rejected ones included.
pub const BATCH_EVENTS_MAX: usize = 1 << 18;
/// The most hashes of an event.
pub const EVENT_HASHES_MAX: usize = 1 << 18;
/// The most tokens of an event.
pub const EVENT_TOKENS_MAX: usize = 1 << 22;

/// The shortest event that is well formed: an empty list behind the name of its type.
const EVENT_BYTES_MIN: usize = 15;

/// Why a payload gives no batch. Positions are bytes from the payload's start; nothing of what the
/// payload says is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the payload has {bytes} bytes, more than {PAYLOAD_BYTES_MAX}")]
    TooLong { bytes: usize },
    #[error("the payload ends before what byte {at} announces")]
    Truncated { at: usize },
    #[error("no value begins with what stands at byte {at}")]
    Reserved { at: usize },
    #[error("byte {at} does not begin {wanted}")]
    NotBatch { at: usize, wanted: &'static str },
    #[error("the batch has {count} events, more than {BATCH_EVENTS_MAX}")]
    TooManyEvents { count: usize },
    #[error("the batch ends at byte {at}, and the payload goes on")]
    Trailing { at: usize },
}

/// Reads one payload: the batch as an array (`[time, events, rank]`, two elements or more) or as a
/// map, each event as a positional array or as a map. What it allocates is bounded by a small
/// multiple of the payload; strings are borrowed from it.
///
/// # Errors
/// [`DecodeError`] where the payload breaks off, is not one batch, or is beyond a limit.
pub fn decode(payload: &[u8]) -> Result<Batch<'_>, DecodeError> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(DecodeError::TooLong {
            bytes: payload.len(),
        });
    }
    let mut reader = Reader::new(payload);
    let mut batch = Batch::default();
    let head = reader.head()?;
    if let Head::Array(count) = head {
        if count < 2 {
            return Err(DecodeError::NotBatch {
                at: 0,
                wanted: "a batch",
            });
        }
        for place in 0..count {
            read_part(&mut reader, Part::at(place), &mut batch)?;
        }
    } else if let Head::Map(count) = head {
        let mut lists = 0;
        for _ in 0..count {
            let part = Part::named(reader.head()?);
            lists += usize::from(part == Part::Events);
            read_part(&mut reader, part, &mut batch)?;
        }
        if lists != 1 {
            return Err(DecodeError::NotBatch {
                at: 0,
                wanted: "a batch",
            });
        }
    } else {
        return Err(DecodeError::NotBatch {
            at: 0,
            wanted: "a batch",
        });
    }
    if reader.at() < payload.len() {
        return Err(DecodeError::Trailing { at: reader.at() });
    }
    Ok(batch)
}

/// What an element or a field of a batch is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Time,
    Events,
    Rank,
    Unknown,
}

impl Part {
    fn at(place: usize) -> Self {
        match place {
            0 => Self::Time,
            1 => Self::Events,
            2 => Self::Rank,
            _ => Self::Unknown,
        }
    }

    fn named(key: Head<'_>) -> Self {
        let Head::Text(name) = key else {
            return Self::Unknown;
        };
        match name {
            b"ts" => Self::Time,
            b"events" => Self::Events,
            b"data_parallel_rank" | b"attn_dp_rank" => Self::Rank,
            _ => Self::Unknown,
        }
    }
}

fn read_part<'a>(
    reader: &mut Reader<'a>,
    part: Part,
    batch: &mut Batch<'a>,
) -> Result<(), DecodeError> {
    let start = *reader;
    let wanted = match part {
        Part::Time => match reader.seconds() {
            Some(seconds) => {
                batch.sent_at_s = seconds;
                return Ok(());
            }
            None => "a time",
        },
        Part::Rank => match reader.optional(Reader::unsigned) {
            Some(rank) => {
                batch.rank = rank;
                return Ok(());
            }
            None => "a rank",
        },
        Part::Events => return read_events(reader, batch),
        Part::Unknown => return reader.skip(),
    };
    *reader = start;
    reader.skip()?;
    Err(DecodeError::NotBatch {
        at: start.at(),
        wanted,
    })
}

fn read_events<'a>(reader: &mut Reader<'a>, batch: &mut Batch<'a>) -> Result<(), DecodeError> {
    let at = reader.at();
    let Head::Array(count) = reader.head()? else {
        return Err(DecodeError::NotBatch {
            at,
            wanted: "a list of events",
        });
    };
    if count > BATCH_EVENTS_MAX {
        return Err(DecodeError::TooManyEvents { count });
    }
    batch
        .events
        .reserve(count.min(reader.rest().len() / EVENT_BYTES_MIN));
    let mut repeats = Repeats::default();
    let Rejected {
        unknown,
        malformed,
        may_hide_removal,
    } = &mut batch.rejected;
    for _ in 0..count {
        let start = *reader;
        match event::read(reader, &mut repeats) {
            Ok(event) => {
                *may_hide_removal &= !matches!(event, Event::Cleared);
                batch.events.push(event);
                continue;
            }
            Err(Rejection::Unknown) => *unknown += 1,
            Err(Rejection::MalformedStore) => *malformed += 1,
            Err(Rejection::Malformed) => {
                *malformed += 1;
                *may_hide_removal = true;
            }
        }
        *reader = start;
        reader.skip()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
