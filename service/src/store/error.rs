//! What can go wrong with the store. No message carries a key or a payload.

use std::io;
use std::path::{Path, PathBuf};

use super::{BlobName, Table};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("the record log failed to {action}")]
    Log {
        action: &'static str,
        source: sled::Error,
    },
    #[error("the record log in {} is damaged beyond reading", path.display())]
    LogDamaged { path: PathBuf },
    #[error("{} is in use by another process (waited {waited_ms} ms)", path.display())]
    InUse { path: PathBuf, waited_ms: u64 },
    #[error(
        "{} was written in format {found}, this version reads up to {supported}: \
         start the newer version, or give another folder",
        path.display()
    )]
    NewerFormat {
        path: PathBuf,
        found: u32,
        supported: u32,
    },
    #[error("{} is missing or damaged, so that the restart counter is unknown", path.display())]
    Header { path: PathBuf },
    #[error("a record of {table:?} is damaged: {damage}")]
    Record { table: Table, damage: Damage },
    #[error("blob {name} is damaged: {damage}")]
    Blob { name: BlobName, damage: Damage },
    #[error("{field} is {length}, the limit is {limit}")]
    TooLarge {
        field: &'static str,
        length: u64,
        limit: u64,
    },
    #[error("earlier writes may be lost, so that nothing more is committed: {cause}")]
    SyncFailed { cause: String },
    #[error("the system gives no random bytes")]
    NoRandomness,
    #[error("no {what} is left in this store")]
    Exhausted { what: &'static str },
}

/// How a record or a blob differs from what was written.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Damage {
    #[error("checksum differs")]
    Checksum,
    #[error("length differs")]
    Length,
    #[error("written in a newer format")]
    Newer,
    #[error("its file is missing")]
    Missing,
}

/// Gives an I/O error the action and the path that it lacks.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

pub(super) fn log_error(action: &'static str) -> impl FnOnce(sled::Error) -> StoreError {
    move |source| StoreError::Log { action, source }
}

/// Refuses what is over its limit.
pub(super) fn at_most(field: &'static str, length: usize, limit: usize) -> Result<(), StoreError> {
    if length <= limit {
        return Ok(());
    }
    Err(StoreError::TooLarge {
        field,
        length: length as u64,
        limit: limit as u64,
    })
}
