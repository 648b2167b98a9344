//! The files of the donor log: their names, and reading from them while others are written.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Place;
use super::frame::{self, Kind};
use crate::store::error::{StoreError, io_error};

const SUFFIX: &str = ".log";
const NAME_DIGITS: usize = 8;
const SALT_DIGITS: usize = 16;

/// One file of the log. Its name holds its number and a salt, which seeds the checksums.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) seed: u64,
    pub(super) file: File,
    pub(super) path: PathBuf,
}

impl Segment {
    /// A new file. Its name is durable once the folder is synced.
    pub(super) fn create(folder: &Path, number: u32) -> Result<Segment, StoreError> {
        let salt = getrandom::u64().map_err(|_error| StoreError::NoRandomness)?;
        let path = folder.join(format!("{number:08x}-{salt:016x}{SUFFIX}"));
        let file = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(io_error("create", &path))?;
        Ok(Segment {
            number,
            seed: seed(number, salt),
            file,
            path,
        })
    }

    pub(super) fn open(path: PathBuf, (number, salt): (u32, u64)) -> Result<Segment, StoreError> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(io_error("open", &path))?;
        Ok(Segment {
            number,
            seed: seed(number, salt),
            file,
            path,
        })
    }

    pub(super) fn bytes(&self) -> Result<u64, StoreError> {
        let metadata = self.file.metadata().map_err(io_error("stat", &self.path))?;
        Ok(metadata.len())
    }

    /// Replaces what `out` holds by the first `bytes` of the file, or by all that it has.
    pub(super) fn read_all(&self, bytes: usize, out: &mut Vec<u8>) -> Result<(), StoreError> {
        out.resize(bytes, 0);
        let read = self.read_at(0, out)?;
        out.truncate(read);
        Ok(())
    }

    /// Fills `out` from an offset on as far as the file goes; returns how far.
    pub(super) fn read_at(&self, offset: u32, out: &mut [u8]) -> Result<usize, StoreError> {
        let mut done = 0;
        while done < out.len() {
            match self
                .file
                .read_at(&mut out[done..], u64::from(offset) + done as u64)
            {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => return Err(io_error("read", &self.path)(source)),
            }
        }
        Ok(done)
    }

    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_data().map_err(io_error("sync", &self.path))
    }
}

/// Number and salt of a segment's file; none for other files.
pub(super) fn parse_name(name: &str) -> Option<(u32, u64)> {
    let (number, salt) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    let is_ours = number.len() == NAME_DIGITS && salt.len() == SALT_DIGITS;
    let is_ours = is_ours
        && format!("{number}{salt}")
            .bytes()
            .all(|b| b.is_ascii_hexdigit());
    is_ours.then_some(())?;
    Some((
        u32::from_str_radix(number, 16).ok()?,
        u64::from_str_radix(salt, 16).ok()?,
    ))
}

/// A record as it was read back.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogRecord {
    pub sequence: u64,
    pub key: Vec<u8>,
    pub payload: Vec<u8>,
}

/// Reads records by their places, from any thread and while the log goes on.
#[derive(Clone, Debug, Default)]
pub struct LogReader {
    pub(super) segments: Arc<RwLock<BTreeMap<u32, Arc<Segment>>>>,
}

impl LogReader {
    /// The record at a place; none once it has gone from there, or where it is damaged.
    ///
    /// # Errors
    /// A failing disk.
    pub fn read(&self, place: Place) -> Result<Option<LogRecord>, StoreError> {
        let segment = self.segments.read().get(&place.segment).map(Arc::clone);
        let Some(segment) = segment else {
            return Ok(None);
        };
        let mut bytes = vec![0; place.length as usize];
        let read = segment.read_at(place.offset, &mut bytes)?;
        bytes.truncate(read);
        Ok(record(&bytes, segment.seed, place.offset))
    }
}

fn record(bytes: &[u8], seed: u64, offset: u32) -> Option<LogRecord> {
    let header = frame::header(bytes, seed, offset)?;
    let (key, payload) = header.split(bytes, seed)?;
    (header.kind == Kind::Put).then(|| LogRecord {
        sequence: header.sequence,
        key: key.to_vec(),
        payload: payload.to_vec(),
    })
}

fn seed(number: u32, salt: u64) -> u64 {
    xxh3_64_with_seed(&number.to_le_bytes(), salt)
}
