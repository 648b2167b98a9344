//! Torch's stream from before the zip: five pickles (a magic number, a version, the system, the
//! object, the keys of the storages), then for each key its length and its bytes.

use std::collections::HashMap;

use super::error::ImportError;
use super::pickle::{self, Pickle};
use super::torch::Storages;
use super::value::{Storage, Value};

/// Reads a legacy file.
pub(super) fn open(bytes: &[u8]) -> Result<(Pickle<'_>, Storages<'_>), ImportError> {
    let mut stream = Stream { rest: bytes };
    let magic = stream.pickle()?;
    if !matches!(magic.root, Value::BigInt(span) if magic.arena.slice(span) == MAGIC) {
        return Err(ImportError::Legacy {
            what: "the magic number",
        });
    }
    if stream.pickle()?.root != Value::Int(PROTOCOL) {
        return Err(ImportError::Legacy {
            what: "the protocol version",
        });
    }
    check_system(&stream.pickle()?)?;
    let object = stream.pickle()?;
    let keys = stream.pickle()?;
    let storages = stream.storages(&object, &keys)?;
    Ok((object, Storages::Stream(storages)))
}

/// 0x1950a86a20f9469cfc6c, little-endian.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const PROTOCOL: i64 = 1001;

fn check_system(system: &Pickle<'_>) -> Result<(), ImportError> {
    let little = system.arena.dict(system.root).and_then(|pairs| {
        pairs
            .iter()
            .rfind(|(key, _)| system.arena.is_text(*key, "little_endian"))
    });
    match little {
        Some((_, Value::Bool(true))) => Ok(()),
        Some((_, Value::Bool(false))) => Err(ImportError::ByteOrder {
            found: "big".into(),
        }),
        Some(_) | None => Err(ImportError::Legacy {
            what: "the system's byte order",
        }),
    }
}

/// What is left of the file.
struct Stream<'a> {
    rest: &'a [u8],
}

impl<'a> Stream<'a> {
    fn pickle(&mut self) -> Result<Pickle<'a>, ImportError> {
        let pickle = pickle::read(self.rest)?;
        self.rest = &self.rest[pickle.length..];
        Ok(pickle)
    }

    /// The bytes of the storages, by key. The stream counts elements, whose size only the object
    /// knows.
    fn storages(
        &mut self,
        object: &Pickle<'a>,
        keys: &Pickle<'a>,
    ) -> Result<HashMap<&'a [u8], &'a [u8]>, ImportError> {
        let wrong = |what| ImportError::Legacy { what };
        let mut types: HashMap<&[u8], Storage> = HashMap::new();
        for &storage in &object.arena.storages {
            types
                .entry(object.arena.slice(storage.key))
                .or_insert(storage);
        }
        let Some(keys_in_order) = keys.arena.sequence(keys.root) else {
            return Err(wrong("the list of storage keys"));
        };
        let mut storages = HashMap::new();
        for &key in keys_in_order {
            let Value::Text(key) = key else {
                return Err(wrong("a storage key"));
            };
            let key = keys.arena.slice(key);
            let storage = types
                .get(key)
                .ok_or(wrong("a storage key that no tensor has"))?;
            let elements = self
                .take(size_of::<u64>())
                .and_then(|bytes| bytes.try_into().ok());
            let elements = u64::from_le_bytes(elements.ok_or(wrong("a cut-off storage"))?);
            let length = Storage {
                elements,
                ..*storage
            }
            .bytes();
            let bytes = length.and_then(|length| self.take(usize::try_from(length).ok()?));
            if storages
                .insert(key, bytes.ok_or(wrong("a cut-off storage"))?)
                .is_some()
            {
                return Err(wrong("a storage key that comes twice"));
            }
        }
        Ok(storages)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }
}
