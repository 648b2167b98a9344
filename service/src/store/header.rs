//! The folder's own file: format version and restart counter, apart from the record log so that
//! no damage to the log can turn the counter back.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::blob::{replace_file, sync_folder};
use super::error::{StoreError, io_error};

const MAGIC: &[u8; 8] = b"kvatlas\0";
/// The first twelve bytes (magic, version) mean the same in every version to come.
/// Since version 2 the donors lie in a log of their own. An older program would not see them, and
/// what it removed would come back.
const FORMAT_VERSION: u32 = 2;
const FORMAT_VERSION_MIN: u32 = 1;
const HEADER_BYTES: usize = 28;
const HEADER_FILE: &str = "header";
/// Sequences keep 40 bits for themselves.
pub(super) const EPOCH_MAX: u64 = (1 << 24) - 1;

const LOCK_FILE: &str = "lock";
const LOCK_RETRY_MS: u64 = 20;
/// How long [`super::Store::open`] waits for another process to end.
pub(super) const WAIT_MS_MAX: u64 = 5_000;

/// Takes the folder for this process. A killed process holds its lock until the kernel has
/// closed its files, hence the wait.
pub(super) fn lock(directory: &Path, wait_ms_max: u64) -> Result<File, StoreError> {
    let path = directory.join(LOCK_FILE);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(io_error("open", &path))?;
    retry_while_in_use(directory, wait_ms_max, || match file.try_lock() {
        Ok(()) => Ok(Some(())),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(io_error("lock", &path)(source)),
    })?;
    Ok(file)
}

/// Calls `attempt` until it has something to give, with a bound.
pub(super) fn retry_while_in_use<T>(
    directory: &Path,
    wait_ms_max: u64,
    mut attempt: impl FnMut() -> Result<Option<T>, StoreError>,
) -> Result<T, StoreError> {
    for _ in 0..=wait_ms_max / LOCK_RETRY_MS {
        if let Some(taken) = attempt()? {
            return Ok(taken);
        }
        // Nobody unparks this thread, so that this waits its time, or less after a stray unpark.
        std::thread::park_timeout(Duration::from_millis(LOCK_RETRY_MS));
    }
    Err(StoreError::InUse {
        path: directory.to_owned(),
        waited_ms: wait_ms_max,
    })
}

/// The epoch of the last start, none where the folder is new.
pub(super) fn read_epoch(directory: &Path, is_new: bool) -> Result<Option<u64>, StoreError> {
    let path = directory.join(HEADER_FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && is_new => return Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(StoreError::Header { path });
        }
        Err(source) => return Err(io_error("read", &path)(source)),
    };
    match parse(&bytes) {
        Parsed::Epoch(epoch) => Ok(Some(epoch)),
        Parsed::Newer(found) => Err(StoreError::NewerFormat {
            path,
            found,
            supported: FORMAT_VERSION,
        }),
        Parsed::Damaged => Err(StoreError::Header { path }),
    }
}

/// Makes `epoch` durable.
pub(super) fn write_epoch(directory: &Path, epoch: u64) -> Result<(), StoreError> {
    replace_file(directory, HEADER_FILE, &serialize(FORMAT_VERSION, epoch))?;
    sync_folder(directory)
}

fn serialize(version: u32, epoch: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&epoch.to_le_bytes());
    bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
    bytes
}

#[derive(Debug, Eq, PartialEq)]
enum Parsed {
    Epoch(u64),
    Newer(u32),
    Damaged,
}

fn parse(bytes: &[u8]) -> Parsed {
    let Some((magic, rest)) = bytes.split_first_chunk::<8>() else {
        return Parsed::Damaged;
    };
    let Some((version, rest)) = rest.split_first_chunk::<4>() else {
        return Parsed::Damaged;
    };
    let version = u32::from_le_bytes(*version);
    if magic != MAGIC {
        return Parsed::Damaged;
    }
    if version > FORMAT_VERSION {
        return Parsed::Newer(version);
    }
    let Some((epoch, checksum)) = rest.split_first_chunk::<8>() else {
        return Parsed::Damaged;
    };
    let epoch = u64::from_le_bytes(*epoch);
    let is_whole =
        *checksum == xxh3_64(&serialize(version, epoch)[..HEADER_BYTES - 8]).to_le_bytes();
    if version >= FORMAT_VERSION_MIN && is_whole {
        Parsed::Epoch(epoch)
    } else {
        Parsed::Damaged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_found() {
        let bytes = serialize(FORMAT_VERSION, 41);
        assert_eq!(parse(&bytes), Parsed::Epoch(41));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !matches!(parse(&flipped), Parsed::Epoch(_)),
                "bit {bit} went unnoticed"
            );
        }
        for length in 0..bytes.len() {
            assert_eq!(parse(&bytes[..length]), Parsed::Damaged, "cut to {length}");
        }
    }

    #[test]
    fn the_version_before_is_read_as_well() {
        assert_eq!(parse(&serialize(1, 41)), Parsed::Epoch(41));
        assert_eq!(parse(&serialize(0, 41)), Parsed::Damaged);
    }

    #[test]
    fn a_newer_version_is_named_whatever_follows() {
        assert_eq!(parse(b"kvatlas\0\x03\0\0\0???"), Parsed::Newer(3));
    }
}
