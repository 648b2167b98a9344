//! Torch's files: the zip archive of a pickle and its storages. The older stream is `legacy`'s.

use std::collections::HashMap;

use super::error::{ImportError, shown};
use super::pickle::{self, Pickle};
use super::schema::Fields;
use super::value::{Arena, Storage, Value};
use super::zip::{Archive, ZipError};
use super::{fields, legacy};

/// Reads a prior's `.pt` file.
pub(super) fn read(bytes: &[u8]) -> Result<Fields, ImportError> {
    let (pickle, mut storages) = open(bytes)?;
    fields::read(&pickle.arena, pickle.root, &mut storages)
}

/// Reads a `.pt` file's object, whose tensors lie in the storages.
pub(super) fn open(bytes: &[u8]) -> Result<(Pickle<'_>, Storages<'_>), ImportError> {
    if !bytes.starts_with(b"PK") {
        return legacy::open(bytes);
    }
    let archive = Archive::open(bytes)?;
    // Torch names every entry `<stem>/...`; the stem is whatever the file was first called.
    let mut directories = archive
        .names()
        .filter_map(|name| name.strip_suffix("data.pkl"))
        .filter(|directory| directory.is_empty() || directory.ends_with('/'));
    let missing = || ImportError::EntryMissing { name: "data.pkl" };
    let directory = directories.next().ok_or_else(missing)?;
    if directories.next().is_some() {
        return Err(ZipError::Twice {
            name: "data.pkl".into(),
        }
        .into());
    }
    let pickled = archive
        .read(&format!("{directory}data.pkl"))?
        .ok_or_else(missing)?;
    if let Some(order) = archive.read(&format!("{directory}byteorder"))?
        && order != b"little"
    {
        let order = String::from_utf8_lossy(&order[..order.len().min(16)]);
        return Err(ImportError::ByteOrder {
            found: shown(&order),
        });
    }
    let pickle = pickle::read(pickled)?;
    drop(directories);
    let storages = Storages::Archive {
        archive,
        directory,
        verified: HashMap::new(),
    };
    Ok((pickle, storages))
}

/// Where the bytes of storages are.
#[derive(Debug)]
pub(super) enum Storages<'a> {
    Archive {
        archive: Archive<'a>,
        directory: &'a str,
        /// By key: checksums cost a pass, and many tensors can be views of one storage.
        verified: HashMap<&'a [u8], &'a [u8]>,
    },
    /// By key.
    Stream(HashMap<&'a [u8], &'a [u8]>),
}

impl<'a> Storages<'a> {
    /// The bytes of a storage: as many as its elements take.
    pub(super) fn bytes(
        &mut self,
        arena: &Arena<'a>,
        storage: Storage,
    ) -> Result<&'a [u8], ImportError> {
        let key = arena.slice(storage.key);
        let missing = || ImportError::StorageMissing {
            key: key_shown(arena, storage),
        };
        let found = match self {
            Self::Stream(storages) => *storages.get(key).ok_or_else(missing)?,
            Self::Archive {
                archive,
                directory,
                verified,
            } => match verified.get(key) {
                Some(bytes) => bytes,
                None => {
                    let key_text = arena.text(Value::Text(storage.key)).ok_or_else(missing)?;
                    let bytes = archive.read(&format!("{directory}data/{key_text}"))?;
                    let bytes = bytes.ok_or_else(missing)?;
                    verified.insert(key, bytes);
                    bytes
                }
            },
        };
        let wanted = storage.bytes();
        let used = wanted.and_then(|wanted| found.get(..usize::try_from(wanted).ok()?));
        used.ok_or_else(|| ImportError::StorageBytes {
            key: key_shown(arena, storage),
            found: found.len(),
            wanted: wanted.unwrap_or(u64::MAX),
        })
    }
}

fn key_shown(arena: &Arena<'_>, storage: Storage) -> String {
    shown(arena.text(Value::Text(storage.key)).unwrap_or("?"))
}
