//! The donor log: records appended to segment files, one sync a batch, space given back in order.
//!
//! Segments are given back oldest first and never out of turn. So when a record of a removal goes,
//! every older record that it removed is gone already, and no removal has to be remembered beyond
//! its segment. What still holds in the oldest segment is copied to the end before it goes.

mod clean;
mod frame;
mod mark;
mod replay;
mod segment;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

pub use self::clean::Moved;
pub use self::frame::Kind;
use self::frame::{Content, Spot};
pub use self::mark::LogMark;
use self::replay::Newest;
pub use self::replay::{Decode, LogReport, Replayed};
use self::segment::Segment;
pub use self::segment::{LogReader, LogRecord};
use super::blob::sync_folder;
use super::error::{StoreError, at_most, io_error};

/// Longest segment; a record lies in one as a whole.
pub const SEGMENT_BYTES_MAX: usize = 64 << 20;
/// Longest payload of a record: the longest prompt at 32 bits a token, and its text.
pub const RECORD_BYTES_MAX: usize = 32 << 20;
const KEY_BYTES_MAX: usize = super::KEY_BYTES_MAX;
/// Bytes of the oldest segment that are looked through at a time, at least.
const CLEANED_BYTES_MIN: usize = 256 << 10;

/// Where a record lies. Good until the log moves it, which [`Moved`] tells.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Place {
    pub segment: u32,
    pub offset: u32,
    pub length: u32,
}

/// A place that is read while the log moves the record. The length never changes.
#[derive(Debug, Default)]
pub struct PlaceCell {
    at: AtomicU64,
    length: u32,
}

impl PlaceCell {
    #[must_use]
    pub fn new(place: Place) -> PlaceCell {
        PlaceCell {
            at: AtomicU64::new(packed(place)),
            length: place.length,
        }
    }

    #[must_use]
    pub fn get(&self) -> Place {
        let at = self.at.load(Relaxed);
        let low = at & u64::from(u32::MAX);
        let half = |half: u64| u32::try_from(half).expect("half of 64 bits");
        Place {
            segment: half(at >> 32),
            offset: half(low),
            length: self.length,
        }
    }

    pub fn set(&self, place: Place) {
        self.at.store(packed(place), Relaxed);
    }
}

fn packed(place: Place) -> u64 {
    u64::from(place.segment) << 32 | u64::from(place.offset)
}

/// One change, under the number that orders it among those of its key.
#[derive(Clone, Copy, Debug)]
pub struct LogChange<'a> {
    pub kind: Kind,
    pub sequence: u64,
    pub key: &'a [u8],
    /// One after the other they are the payload; empty for a removal.
    pub parts: &'a [&'a [u8]],
}

/// What the log holds on the disk.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LogUsage {
    pub segments: u64,
    pub bytes: u64,
    /// Bytes of records that hold.
    pub live_bytes: u64,
}

/// The log's one writer.
#[derive(Debug)]
pub struct Log {
    folder: PathBuf,
    sizes: Sizes,
    reader: LogReader,
    /// The last segment, which is written to.
    current: Arc<Segment>,
    /// Bytes of it that are on the disk.
    durable: u32,
    /// What comes after those with the next commit.
    waiting: Vec<u8>,
    usage: BTreeMap<u32, Usage>,
    last_commit_bytes: usize,
    /// Up to where the oldest segment has been copied.
    cleaned: u32,
    /// What was copied since the last commit.
    moving: Vec<Moved>,
    /// A part of the batch is lost: the whole is to fail.
    is_broken: bool,
    /// What holds for each key, from opening to [`Self::replay`].
    newest: Option<HashMap<u64, Newest>>,
    /// Set for good by a failed sync: the kernel may have dropped what it could not write.
    failed: Arc<AtomicBool>,
}

/// Smaller ones in tests.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    segment_bytes_max: usize,
    cleaned_bytes_min: usize,
}

const SIZES: Sizes = Sizes {
    segment_bytes_max: SEGMENT_BYTES_MAX,
    cleaned_bytes_min: CLEANED_BYTES_MIN,
};

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    bytes: u64,
    live_bytes: u64,
}

impl Log {
    /// Notes a change, to be written with the next commit. Returns where it will lie.
    ///
    /// # Errors
    /// What is over a limit; a failing disk where a new segment is begun.
    pub fn append(&mut self, change: &LogChange<'_>) -> Result<Place, StoreError> {
        let LogChange {
            kind,
            sequence,
            key,
            parts,
        } = *change;
        let payload_bytes = parts.iter().map(|part| part.len()).sum();
        at_most("key length in bytes", key.len(), KEY_BYTES_MAX)?;
        at_most("payload length in bytes", payload_bytes, RECORD_BYTES_MAX)?;
        let spot = self.room_for(frame::frame_bytes(key.len(), payload_bytes))?;
        let content = Content {
            kind,
            sequence,
            key,
            parts,
        };
        let before = self.waiting.len();
        frame::write(&mut self.waiting, &content, spot);
        let place = self.note(spot, self.waiting.len() - before, kind);
        if let Some(newest) = &mut self.newest {
            Newest::note(
                newest,
                frame::key_hash(key),
                Newest {
                    kind,
                    sequence,
                    place,
                },
            );
        }
        Ok(place)
    }

    /// One write and one sync: what was appended is durable when this returns.
    ///
    /// # Errors
    /// A failing disk: then nothing that was appended since the last commit is to be relied on,
    /// and [`Self::forget`] is to be told of it. After a failed sync every later call fails.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        let bytes = self.waiting.len();
        let outcome = self.write();
        self.is_broken = false;
        self.waiting.clear();
        match &outcome {
            // The limit of a segment is far below 2^32.
            Ok(()) => self.durable += u32::try_from(bytes).unwrap_or(u32::MAX),
            Err(_) => {
                let usage = self.usage.entry(self.current.number).or_default();
                usage.bytes = u64::from(self.durable);
                self.unclean();
            }
        }
        self.last_commit_bytes = bytes;
        outcome
    }

    fn write(&mut self) -> Result<(), StoreError> {
        self.check()?;
        if self.is_broken {
            return Err(StoreError::SyncFailed {
                cause: "a part of the batch was not written".to_owned(),
            });
        }
        if self.waiting.is_empty() {
            return Ok(());
        }
        let (file, offset) = (&self.current.file, u64::from(self.durable));
        if let Err(source) = file.write_all_at(&self.waiting, offset) {
            // A full disk may have room again later; what was written halfway must not stay.
            if file.set_len(offset).is_err() {
                self.failed.store(true, Relaxed);
            }
            return Err(io_error("write", &self.current.path)(source));
        }
        self.synced(self.current.sync())
    }

    /// The record at a place no longer holds: it was replaced or removed.
    pub fn forget(&mut self, place: Place) {
        if let Some(usage) = self.usage.get_mut(&place.segment) {
            usage.live_bytes = usage.live_bytes.saturating_sub(u64::from(place.length));
        }
    }

    /// Whether anything was appended that no commit has written yet.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Reads records while this one writes.
    #[must_use]
    pub fn reader(&self) -> LogReader {
        self.reader.clone()
    }

    #[must_use]
    pub fn usage(&self) -> LogUsage {
        let mut all = LogUsage::default();
        for usage in self.usage.values() {
            all.segments += 1;
            all.bytes += usage.bytes;
            all.live_bytes += usage.live_bytes;
        }
        all
    }

    // Where the next frame goes; begins a segment when this one has no room.
    fn room_for(&mut self, frame_bytes: usize) -> Result<Spot, StoreError> {
        self.check()?;
        let used = self.durable as usize + self.waiting.len();
        let is_full = used > 0 && used + frame_bytes > self.sizes.segment_bytes_max;
        if is_full {
            let begun = self.commit().and_then(|()| self.begin_segment());
            self.is_broken = begun.is_err();
            begun?;
        }
        let used = self.durable as usize + self.waiting.len();
        let offset = u32::try_from(used).map_err(|_| StoreError::Exhausted { what: "offset" })?;
        Ok(Spot {
            seed: self.current.seed,
            offset,
            durable: self.durable,
        })
    }

    fn begin_segment(&mut self) -> Result<(), StoreError> {
        let number = self.current.number.checked_add(1);
        let number = number.ok_or(StoreError::Exhausted { what: "segment" })?;
        let segment = Arc::new(Segment::create(&self.folder, number)?);
        self.synced(sync_folder(&self.folder))?;
        self.reader
            .segments
            .write()
            .insert(number, Arc::clone(&segment));
        self.usage.insert(number, Usage::default());
        self.current = segment;
        self.durable = 0;
        Ok(())
    }

    // Counts a frame that was added to what waits.
    fn note(&mut self, spot: Spot, frame_bytes: usize, kind: Kind) -> Place {
        let place = Place {
            segment: self.current.number,
            offset: spot.offset,
            length: u32::try_from(frame_bytes).unwrap_or(u32::MAX),
        };
        let usage = self.usage.entry(place.segment).or_default();
        usage.bytes += u64::from(place.length);
        if kind == Kind::Put {
            usage.live_bytes += u64::from(place.length);
        }
        place
    }

    fn check(&self) -> Result<(), StoreError> {
        if !self.failed.load(Relaxed) {
            return Ok(());
        }
        Err(StoreError::SyncFailed {
            cause: "a sync of the donor log failed".to_owned(),
        })
    }

    fn synced<T>(&self, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        if outcome.is_err() {
            self.failed.store(true, Relaxed);
        }
        outcome
    }
}
