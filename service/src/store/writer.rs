//! Large values that come piece by piece: blobs on their way to the disk, and unnamed files.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use xxhash_rust::xxh3::Xxh3;

use super::blob::{BLOB_BYTES_MAX, Blob, BlobFolder, BlobName, BlobRef, remove_file};
use super::error::{StoreError, at_most, io_error};

/// A blob that is being written. Unless it is finished, nothing of it stays.
pub struct BlobWriter<'a> {
    folder: &'a BlobFolder,
    name: BlobName,
    temporary: PathBuf,
    file: File,
    hash: Xxh3,
    length: usize,
}

impl std::fmt::Debug for BlobWriter<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("BlobWriter")
            .field("name", &self.name)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl<'a> BlobWriter<'a> {
    pub(super) fn create(folder: &'a BlobFolder, name: BlobName) -> Result<Self, StoreError> {
        let temporary = folder.temporary(name);
        let file = File::create(&temporary).map_err(io_error("create", &temporary))?;
        Ok(Self {
            folder,
            name,
            temporary,
            file,
            hash: Xxh3::new(),
            length: 0,
        })
    }

    /// Appends bytes. Every call is a write of its own, so give many at a time.
    ///
    /// # Errors
    /// Over [`BLOB_BYTES_MAX`] in all, and a failing disk.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let length = self.length.saturating_add(bytes.len());
        at_most("blob length in bytes", length, BLOB_BYTES_MAX)?;
        self.file
            .write_all(bytes)
            .map_err(io_error("write", &self.temporary))?;
        self.hash.update(bytes);
        self.length = length;
        Ok(())
    }

    /// Makes the blob durable and gives it its name.
    ///
    /// # Errors
    /// A failing disk.
    pub fn finish(self) -> Result<BlobRef, StoreError> {
        self.file
            .sync_data()
            .map_err(io_error("sync", &self.temporary))?;
        self.folder.rename(&self.temporary, self.name)?;
        if let Err(error) = self.folder.sync() {
            self.folder.remove(self.name)?;
            return Err(error);
        }
        Ok(BlobRef {
            name: self.name,
            length: self.length as u64,
            checksum: self.hash.digest(),
        })
    }
}

impl Drop for BlobWriter<'_> {
    fn drop(&mut self) {
        // A finished blob has another name. What cannot be removed goes at the next start.
        if let Err(error) = remove_file(&self.temporary) {
            tracing::warn!(%error, blob = %self.name, "a half-written blob is left");
        }
    }
}

/// A file without a name: it is gone with its last user, whatever ends that.
#[derive(Debug)]
pub struct Scratch {
    pub(super) file: File,
    /// For messages.
    pub(super) folder: PathBuf,
    pub length: u64,
}

impl Scratch {
    /// # Errors
    /// A failing disk.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file
            .write_all(bytes)
            .map_err(io_error("write to a scratch file in", &self.folder))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Maps what was written. The map keeps the file.
    ///
    /// # Errors
    /// When the system cannot map it.
    pub fn into_map(self) -> Result<Blob, StoreError> {
        Blob::of(&self.file).map_err(io_error("map a scratch file in", &self.folder))
    }
}
