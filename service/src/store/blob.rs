//! Large values: one file each, written whole and durable before anything refers to it, mapped
//! and checked when read.

use std::collections::HashSet;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use xxhash_rust::xxh3::xxh3_64;

use super::error::{Damage, StoreError, at_most, io_error};
use super::writer::Scratch;

/// The largest prior in the field has some hundred MiB.
pub const BLOB_BYTES_MAX: usize = 8 << 30;
const TEMPORARY_SUFFIX: &str = ".new";

/// The name of a blob, never used twice in the life of a store.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct BlobName(pub(super) u64);

impl std::fmt::Display for BlobName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// What a record keeps of a blob, so that a cut or altered file is found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlobRef {
    pub name: BlobName,
    pub length: u64,
    pub checksum: u64,
}

impl BlobRef {
    pub const BYTES: usize = 24;

    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.name.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// None where `bytes` has another length than [`Self::BYTES`].
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (name, rest) = bytes.split_first_chunk()?;
        let (length, checksum) = rest.split_first_chunk()?;
        Some(Self {
            name: BlobName(u64::from_le_bytes(*name)),
            length: u64::from_le_bytes(*length),
            checksum: u64::from_le_bytes(checksum.try_into().ok()?),
        })
    }
}

/// The bytes of a blob. They stay readable when the blob is removed.
#[derive(Debug)]
pub struct Blob {
    /// None where the blob is empty: nothing cannot be mapped.
    map: Option<Mmap>,
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

impl Blob {
    pub(super) fn of(file: &File) -> std::io::Result<Self> {
        let is_empty = file.metadata()?.len() == 0;
        let map = (!is_empty).then(|| map_file(file)).transpose()?;
        Ok(Self { map })
    }
}

/// A folder of blobs that belongs to one process.
#[derive(Debug)]
pub(super) struct BlobFolder {
    path: PathBuf,
}

impl BlobFolder {
    pub(super) fn open(path: PathBuf) -> Result<Self, StoreError> {
        std::fs::create_dir_all(&path).map_err(io_error("create", &path))?;
        Ok(Self { path })
    }

    /// Writes a blob. It is durable after [`Self::sync`].
    pub(super) fn write(&self, name: BlobName, bytes: &[u8]) -> Result<BlobRef, StoreError> {
        at_most("blob length in bytes", bytes.len(), BLOB_BYTES_MAX)?;
        replace_file(&self.path, &name.to_string(), bytes)?;
        Ok(BlobRef {
            name,
            length: bytes.len() as u64,
            checksum: xxh3_64(bytes),
        })
    }

    pub(super) fn sync(&self) -> Result<(), StoreError> {
        sync_folder(&self.path)
    }

    pub(super) fn map(&self, blob: &BlobRef) -> Result<Blob, StoreError> {
        let damaged = |damage| StoreError::Blob {
            name: blob.name,
            damage,
        };
        let path = self.path.join(blob.name.to_string());
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(damaged(Damage::Missing));
            }
            Err(source) => return Err(io_error("open", &path)(source)),
        };
        if file.metadata().map_err(io_error("stat", &path))?.len() != blob.length {
            return Err(damaged(Damage::Length));
        }
        let blob_bytes = Blob::of(&file).map_err(io_error("map", &path))?;
        if xxh3_64(&blob_bytes) != blob.checksum {
            return Err(damaged(Damage::Checksum));
        }
        Ok(blob_bytes)
    }

    /// Where a blob lies while it is written.
    pub(super) fn temporary(&self, name: BlobName) -> PathBuf {
        self.path.join(format!("{name}{TEMPORARY_SUFFIX}"))
    }

    /// Gives a written file its name, durable after [`Self::sync`].
    pub(super) fn rename(&self, temporary: &Path, name: BlobName) -> Result<(), StoreError> {
        std::fs::rename(temporary, self.path.join(name.to_string()))
            .map_err(io_error("rename", temporary))
    }

    pub(super) fn scratch(&self) -> Result<Scratch, StoreError> {
        let file = tempfile::tempfile_in(&self.path)
            .map_err(io_error("create a scratch file in", &self.path))?;
        Ok(Scratch {
            file,
            folder: self.path.clone(),
            length: 0,
        })
    }

    /// Removing what is not there is no error: a removal may be repeated after a crash.
    pub(super) fn remove(&self, name: BlobName) -> Result<(), StoreError> {
        remove_file(&self.path.join(name.to_string())).map(|_removed| ())
    }

    /// Removes every file but the referenced blobs, half-written ones included; returns how many.
    pub(super) fn remove_all_but(&self, referenced: &HashSet<BlobName>) -> Result<u64, StoreError> {
        let kept: HashSet<String> = referenced.iter().map(ToString::to_string).collect();
        let mut removed = 0;
        for entry in std::fs::read_dir(&self.path).map_err(io_error("list", &self.path))? {
            let entry = entry.map_err(io_error("list", &self.path))?;
            let is_kept = entry
                .file_name()
                .to_str()
                .is_some_and(|name| kept.contains(name));
            if !is_kept {
                removed += u64::from(remove_file(&entry.path())?);
            }
        }
        Ok(removed)
    }
}

pub(super) fn remove_file(path: &Path) -> Result<bool, StoreError> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(io_error("remove", path)(source)),
    }
}

/// Writes a whole file or nothing. The name is durable after [`sync_folder`].
pub(super) fn replace_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let path = folder.join(name);
    let temporary = folder.join(format!("{name}{TEMPORARY_SUFFIX}"));
    let mut file = File::create(&temporary).map_err(io_error("create", &temporary))?;
    file.write_all(bytes)
        .map_err(io_error("write", &temporary))?;
    file.sync_data().map_err(io_error("sync", &temporary))?;
    std::fs::rename(&temporary, &path).map_err(io_error("rename", &temporary))
}

pub(super) fn sync_folder(path: &Path) -> Result<(), StoreError> {
    let folder = File::open(path).map_err(io_error("open", path))?;
    folder.sync_all().map_err(io_error("sync", path))
}

#[expect(
    unsafe_code,
    reason = "mapping a file is unsafe as long as others may write it"
)]
fn map_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the folder is locked by this process, which never writes to a blob again once it
    // has its name, only unlinks it, and an unlinked file stays whole while it is mapped. A
    // scratch file has no name that others could open it by, and is closed to writing by then.
    unsafe { Mmap::map(file) }
}
