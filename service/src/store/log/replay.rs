//! Reads the log back at the start: first which record holds for each key, then those records.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};

use super::frame::{Found, Kind, Walk};
use super::segment::{Segment, parse_name};
use super::{Log, LogReader, Place, SIZES, Sizes, Usage};
use crate::store::blob::sync_folder;
use crate::store::error::{StoreError, io_error};

/// Records read ahead of the one that takes them, for each thread.
const READ_AHEAD_MAX: usize = 256;

/// Makes something of the key and the payload of a record, and of its place.
pub type Decode<'a, T> = dyn Fn(&[u8], &[u8], Place) -> Option<T> + Sync + 'a;

/// What was found at the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LogReport {
    /// Stretches between whole records, and missing files: a record each, or more.
    pub damaged: u64,
    /// Bytes cut from the end of the last segment: a write that was under way at the end.
    pub torn_bytes: u64,
    pub segments: u64,
}

/// How many records a replay met.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Replayed {
    pub taken: u64,
    /// Records whose body is not what was written, or that mean nothing.
    pub damaged: u64,
}

/// The record that holds for a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest {
    pub(super) kind: Kind,
    pub(super) sequence: u64,
    pub(super) place: Place,
}

impl Newest {
    /// Takes a record that lies behind all before it.
    pub(super) fn note(newest: &mut HashMap<u64, Newest>, key_hash: u64, record: Newest) {
        let held = newest.entry(key_hash).or_insert(record);
        if record.sequence >= held.sequence {
            *held = record;
        }
    }
}

impl Log {
    /// Opens or creates the log in `folder`, cuts a torn end, and finds out what holds.
    ///
    /// # Errors
    /// A failing disk.
    pub fn open(folder: &Path, failed: Arc<AtomicBool>) -> Result<(Log, LogReport), StoreError> {
        Log::open_with(folder, failed, SIZES)
    }

    pub(super) fn open_with(
        folder: &Path,
        failed: Arc<AtomicBool>,
        sizes: Sizes,
    ) -> Result<(Log, LogReport), StoreError> {
        std::fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        let mut segments = list(folder)?;
        if segments.is_empty() {
            segments.insert(0, Arc::new(Segment::create(folder, 0)?));
        }
        let mut report = LogReport {
            segments: segments.len() as u64,
            ..LogReport::default()
        };
        let numbers: Vec<u32> = segments.keys().copied().collect();
        let gaps = numbers.windows(2).filter(|pair| pair[1] - pair[0] > 1);
        report.damaged += gaps.count() as u64;
        let (mut newest, mut usage) = (HashMap::new(), BTreeMap::new());
        let (mut durable, mut bytes) = (0, Vec::new());
        let last = segments.last_key_value().map(|(&number, _)| number);
        for (&number, segment) in &segments {
            let length = usize::try_from(segment.bytes()?).unwrap_or(usize::MAX);
            segment.read_all(length.min(u32::MAX as usize), &mut bytes)?;
            let end = if last == Some(number) {
                end_of(&bytes, segment.seed)
            } else {
                bytes.len()
            };
            if end < bytes.len() {
                report.torn_bytes = (bytes.len() - end) as u64;
                cut(segment, end)?;
                bytes.truncate(end);
            }
            report.damaged += note_all(segment, &bytes, &mut newest);
            usage.insert(
                number,
                Usage {
                    bytes: end as u64,
                    live_bytes: 0,
                },
            );
            durable = u32::try_from(end).unwrap_or(u32::MAX);
        }
        for record in newest.values().filter(|record| record.kind == Kind::Put) {
            if let Some(usage) = usage.get_mut(&record.place.segment) {
                usage.live_bytes += u64::from(record.place.length);
            }
        }
        let current = segments.last_key_value().map(|(_, last)| Arc::clone(last));
        let current = current.ok_or(StoreError::Exhausted { what: "segment" })?;
        // What a killed process had written and not synced counts from now on.
        current.sync()?;
        sync_folder(folder)?;
        let reader = LogReader::default();
        *reader.segments.write() = segments;
        let log = Log {
            folder: folder.to_owned(),
            sizes,
            reader,
            current,
            durable,
            waiting: Vec::new(),
            usage,
            last_commit_bytes: 0,
            cleaned: 0,
            moving: Vec::new(),
            is_broken: false,
            newest: Some(newest),
            failed,
        };
        Ok((log, report))
    }

    /// The sequence of the record that holds for a key, a removal included. For between opening
    /// and [`Self::replay`].
    #[must_use]
    pub fn newest(&self, key: &[u8]) -> Option<u64> {
        let newest = self.newest.as_ref()?;
        newest
            .get(&super::frame::key_hash(key))
            .map(|record| record.sequence)
    }

    /// Hands every record that holds to `decode`, on `threads` threads, and what it made of them
    /// to `take`, on this one. What `decode` makes nothing of is counted as damaged.
    ///
    /// # Errors
    /// A failing disk.
    pub fn replay<T: Send>(
        &mut self,
        threads: usize,
        decode: &Decode<'_, T>,
        take: &mut dyn FnMut(T),
    ) -> Result<Replayed, StoreError> {
        let newest = self.newest.take().unwrap_or_default();
        let segments: Vec<_> = self
            .reader
            .segments
            .read()
            .values()
            .map(Arc::clone)
            .collect();
        let reading = Reading {
            newest: &newest,
            segments: &segments,
            next: AtomicUsize::new(0),
            decode,
        };
        let threads = threads.clamp(1, segments.len().max(1));
        let mut replayed = Replayed::default();
        let mut lost = Vec::new();
        let failure = std::thread::scope(|scope| {
            let (send, receive) = sync_channel(threads * READ_AHEAD_MAX);
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    let (send, reading) = (send.clone(), &reading);
                    scope.spawn(move || reading.run(&send))
                })
                .collect();
            drop(send);
            for decoded in receive {
                match decoded {
                    Ok(decoded) => {
                        take(decoded);
                        replayed.taken += 1;
                    }
                    Err(place) => lost.push(place),
                }
            }
            let ends = workers.into_iter().map(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            ends.filter_map(Result::err).next()
        });
        replayed.damaged = lost.len() as u64;
        lost.into_iter().for_each(|place| self.forget(place));
        failure.map_or(Ok(replayed), Err)
    }
}

struct Reading<'a, T> {
    newest: &'a HashMap<u64, Newest>,
    segments: &'a [Arc<Segment>],
    /// The next segment that nobody reads yet.
    next: AtomicUsize,
    decode: &'a Decode<'a, T>,
}

impl<T> Reading<'_, T> {
    fn run(&self, send: &SyncSender<Result<T, Place>>) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        while let Some(segment) = self.segments.get(self.next.fetch_add(1, Relaxed)) {
            let length = usize::try_from(segment.bytes()?).unwrap_or(usize::MAX);
            segment.read_all(length, &mut bytes)?;
            for found in Walk::new(&bytes, segment.seed) {
                let Some((place, decoded)) = self.look(&found, segment) else {
                    continue;
                };
                if send.send(decoded.ok_or(place)).is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    // A record that holds, and what was made of it.
    fn look(&self, found: &Found<'_>, segment: &Segment) -> Option<(Place, Option<T>)> {
        let Found::Frame {
            offset,
            header,
            bytes,
        } = *found
        else {
            return None;
        };
        let held = self.newest.get(&header.key_hash)?;
        let place = held.place;
        let is_held = (place.segment, place.offset) == (segment.number, offset);
        (is_held && held.kind == Kind::Put).then(|| {
            let content = header.split(bytes, segment.seed);
            (
                place,
                content.and_then(|(key, payload)| (self.decode)(key, payload, place)),
            )
        })
    }
}

fn list(folder: &Path) -> Result<BTreeMap<u32, Arc<Segment>>, StoreError> {
    let mut segments = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(io_error("list", folder))? {
        let path = entry.map_err(io_error("list", folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(named) = name.and_then(parse_name) else {
            continue;
        };
        segments.insert(named.0, Arc::new(Segment::open(path, named)?));
    }
    Ok(segments)
}

/// Where the last segment ends. The frames tell up to where the file was durable when they were
/// written; before that anything unreadable is damage, and behind it the first is the torn end.
fn end_of(bytes: &[u8], seed: u64) -> usize {
    let durable = Walk::new(bytes, seed)
        .filter_map(|found| match found {
            Found::Frame { header, .. } => Some(header.durable),
            Found::Gap { .. } => None,
        })
        .max();
    let is_whole = |found: &Found<'_>| match found {
        Found::Frame { header, bytes, .. } => header.split(bytes, seed).is_some(),
        Found::Gap { .. } => false,
    };
    Walk::new(bytes, seed)
        .filter(|found| found.offset() >= durable.unwrap_or(0))
        .find(|found| !is_whole(found))
        .map_or(bytes.len(), |torn| torn.offset() as usize)
}

fn cut(segment: &Segment, end: usize) -> Result<(), StoreError> {
    segment
        .file
        .set_len(end as u64)
        .map_err(io_error("cut", &segment.path))
}

// Returns how many stretches are damaged.
fn note_all(segment: &Segment, bytes: &[u8], newest: &mut HashMap<u64, Newest>) -> u64 {
    let mut damaged = 0;
    for found in Walk::new(bytes, segment.seed) {
        match found {
            Found::Gap { .. } => damaged += 1,
            Found::Frame { offset, header, .. } => {
                let length = header.frame_bytes();
                let record = Newest {
                    kind: header.kind,
                    sequence: header.sequence,
                    place: Place {
                        segment: segment.number,
                        offset,
                        length: u32::try_from(length).unwrap_or(u32::MAX),
                    },
                };
                Newest::note(newest, header.key_hash, record);
            }
        }
    }
    damaged
}
