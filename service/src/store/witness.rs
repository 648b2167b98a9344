//! A note beside the log of how many writes are durable. sled cuts a damaged log at the damage
//! without a word: then the log knows of fewer writes than the note.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::error::{StoreError, io_error};

const FILE: &str = "committed";

#[derive(Debug)]
pub(super) struct Witness {
    file: File,
    path: PathBuf,
}

impl Witness {
    pub(super) fn open(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(io_error("open", &path))?;
        Ok(Self { file, path })
    }

    /// So many writes were durable, or more; 0 where the note is missing or torn.
    pub(super) fn read(&self) -> u64 {
        let mut bytes = [0; 16];
        if self.file.read_exact_at(&mut bytes, 0).is_err() {
            return 0;
        }
        let [w0, w1, w2, w3, w4, w5, w6, w7, checksum @ ..] = bytes;
        let writes = [w0, w1, w2, w3, w4, w5, w6, w7];
        let is_whole = xxh3_64(&writes).to_le_bytes() == checksum;
        if is_whole {
            u64::from_le_bytes(writes)
        } else {
            0
        }
    }

    /// Notes it after the sync that made it true, and needs no sync of its own: an older note
    /// is true as well.
    pub(super) fn note(&self, writes: u64) -> Result<(), StoreError> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&writes.to_le_bytes());
        bytes[8..].copy_from_slice(&xxh3_64(&writes.to_le_bytes()).to_le_bytes());
        self.file
            .write_all_at(&bytes, 0)
            .map_err(io_error("write", &self.path))
    }
}
