//! An index of a zip archive of stored entries, with zip64: as much of zip as torch writes.
//!
//! Entries are slices of the file, so that nothing is ever inflated. Offsets count from the file's
//! first byte; a reader that guesses a prefix before the archive trips over some file names.

use super::ZIP_ENTRIES_MAX;
use super::error::shown;

/// The entries of an archive, by their names.
#[derive(Debug)]
pub(super) struct Archive<'a> {
    bytes: &'a [u8],
    /// Sorted by name; no name twice.
    entries: Vec<Entry<'a>>,
}

#[derive(Debug)]
struct Entry<'a> {
    name: &'a str,
    method: u16,
    flags: u16,
    crc: u32,
    stored_bytes: u64,
    bytes: u64,
    header_at: u64,
}

/// Why an archive, or an entry of it, was not read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZipError {
    #[error("the end of the central directory is missing: the file is cut off or no archive")]
    NoEnd,
    #[error("{record} at byte {at} is damaged or cut off")]
    Record { record: &'static str, at: u64 },
    #[error("the archive is split over several disks")]
    Split,
    #[error("the archive has {entries} entries; at most {ZIP_ENTRIES_MAX} are read")]
    Entries { entries: u64 },
    #[error("two entries are named {name}")]
    Twice { name: String },
    #[error("entry {name} is compressed (method {method}); only stored entries are read")]
    Compressed { name: String, method: u16 },
    #[error("entry {name} is encrypted")]
    Encrypted { name: String },
    #[error("entry {name} lies outside the file or does not match its header")]
    Entry { name: String },
    #[error("entry {name} does not have its checksum (CRC-32)")]
    Checksum { name: String },
}

impl<'a> Archive<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, ZipError> {
        let directory = Directory::find(bytes)?;
        let limit = u64::try_from(ZIP_ENTRIES_MAX).unwrap_or(u64::MAX);
        if directory.entries > limit {
            return Err(ZipError::Entries {
                entries: directory.entries,
            });
        }
        let mut at = directory.at;
        let mut entries = Vec::new();
        for _ in 0..directory.entries {
            let (entry, next) = Entry::read(bytes, at)?;
            entries.push(entry);
            at = next;
        }
        if directory.at.checked_add(directory.bytes) != Some(at) {
            return Err(ZipError::Record {
                record: "the central directory",
                at: directory.at,
            });
        }
        entries.sort_unstable_by_key(|entry| entry.name);
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(ZipError::Twice {
                name: shown(pair[0].name),
            });
        }
        Ok(Self { bytes, entries })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.entries.iter().map(|entry| entry.name)
    }

    /// The bytes of an entry, with their checksum verified; none when there is no such entry.
    pub(super) fn read(&self, name: &str) -> Result<Option<&'a [u8]>, ZipError> {
        let Ok(index) = self.entries.binary_search_by_key(&name, |entry| entry.name) else {
            return Ok(None);
        };
        let entry = &self.entries[index];
        const ENCRYPTED: u16 = 1;
        if entry.flags & ENCRYPTED != 0 {
            return Err(ZipError::Encrypted { name: shown(name) });
        }
        if entry.method != 0 {
            return Err(ZipError::Compressed {
                name: shown(name),
                method: entry.method,
            });
        }
        let data = entry
            .data(self.bytes)
            .ok_or_else(|| ZipError::Entry { name: shown(name) })?;
        let mut crc = flate2::Crc::new();
        crc.update(data);
        if crc.sum() == entry.crc {
            Ok(Some(data))
        } else {
            Err(ZipError::Checksum { name: shown(name) })
        }
    }
}

/// Where the central directory lies.
struct Directory {
    entries: u64,
    bytes: u64,
    at: u64,
}

const END: [u8; 4] = *b"PK\x05\x06";
const END_BYTES: usize = 22;
const END64_LOCATOR: [u8; 4] = *b"PK\x06\x07";
const END64_LOCATOR_BYTES: usize = 20;
const END64: [u8; 4] = *b"PK\x06\x06";
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";

impl Directory {
    /// The last end record whose comment reaches exactly to the end of the file, and zip64's end
    /// record where a locator stands before it.
    fn find(bytes: &[u8]) -> Result<Self, ZipError> {
        let last = bytes.len().checked_sub(END_BYTES).ok_or(ZipError::NoEnd)?;
        let first = last.saturating_sub(usize::from(u16::MAX));
        let end_at = (first..=last).rev().find(|&at| {
            bytes[at..].starts_with(&END)
                && Cursor::new(bytes, at + 20)
                    .and_then(|mut end| end.u16())
                    .is_some_and(|comment| at + END_BYTES + usize::from(comment) == bytes.len())
        });
        let end_at = end_at.ok_or(ZipError::NoEnd)?;
        let locator_at = end_at
            .checked_sub(END64_LOCATOR_BYTES)
            .filter(|&at| bytes[at..].starts_with(&END64_LOCATOR));
        let record = "the end of the central directory";
        let at = to_u64(end_at);
        let directory = match locator_at {
            Some(at) => return Self::zip64(bytes, at),
            None => Self::plain(bytes, end_at).ok_or(ZipError::Record { record, at })?,
        };
        directory.ok_or(ZipError::Split)
    }

    /// None inside when the archive is split.
    fn plain(bytes: &[u8], at: usize) -> Option<Option<Self>> {
        let mut end = Cursor::new(bytes, at + END.len())?;
        let disks = [end.u16()?, end.u16()?];
        let entries_here = end.u16()?;
        let entries = end.u16()?;
        let (size, offset) = (end.u32()?, end.u32()?);
        let whole = disks == [0, 0] && entries_here == entries;
        Some(whole.then_some(Self {
            entries: entries.into(),
            bytes: size.into(),
            at: offset.into(),
        }))
    }

    fn zip64(bytes: &[u8], locator_at: usize) -> Result<Self, ZipError> {
        let damaged = |record, at| ZipError::Record { record, at };
        let locator = || -> Option<(u32, u64, u32)> {
            let mut locator = Cursor::new(bytes, locator_at + END64_LOCATOR.len())?;
            Some((locator.u32()?, locator.u64()?, locator.u32()?))
        };
        let (disk, at, disks) =
            locator().ok_or(damaged("the zip64 locator", to_u64(locator_at)))?;
        let end = || -> Option<(u32, u32, u64, Self)> {
            let mut end = Cursor::new(bytes, usize::try_from(at).ok()?)?;
            end.signature(END64)?;
            // Size of the record, version made by, version needed.
            end.skip(8 + 2 + 2)?;
            let disks = (end.u32()?, end.u32()?);
            let entries_here = end.u64()?;
            let directory = Self {
                entries: end.u64()?,
                bytes: end.u64()?,
                at: end.u64()?,
            };
            Some((disks.0, disks.1, entries_here, directory))
        };
        let (this_disk, directory_disk, entries_here, directory) =
            end().ok_or(damaged("the zip64 end of the central directory", at))?;
        let whole = disk == 0 && disks <= 1 && this_disk == 0 && directory_disk == 0;
        if whole && entries_here == directory.entries {
            Ok(directory)
        } else {
            Err(ZipError::Split)
        }
    }
}

impl<'a> Entry<'a> {
    /// The entry whose record in the central directory is at `at`, and where the next begins.
    fn read(bytes: &'a [u8], at: u64) -> Result<(Self, u64), ZipError> {
        let entry = || -> Option<(Self, u64)> {
            let mut record = Cursor::new(bytes, usize::try_from(at).ok()?)?;
            record.signature(CENTRAL)?;
            record.skip(4)?;
            let (flags, method) = (record.u16()?, record.u16()?);
            record.skip(4)?;
            let crc = record.u32()?;
            let (stored_bytes, entry_bytes) = (record.u32()?, record.u32()?);
            let [name, extra, comment] = [record.u16()?, record.u16()?, record.u16()?];
            record.skip(8)?;
            let header_at = record.u32()?;
            let name = str::from_utf8(record.take(name.into())?).ok()?;
            let mut wide = Zip64Extra::find(record.take(extra.into())?);
            record.skip(comment.into())?;
            let entry = Self {
                name,
                method,
                flags,
                crc,
                // In this order: the extra field holds only what did not fit.
                bytes: wide.widen(entry_bytes)?,
                stored_bytes: wide.widen(stored_bytes)?,
                header_at: wide.widen(header_at)?,
            };
            Some((entry, to_u64(record.at)))
        };
        entry().ok_or(ZipError::Record {
            record: "a central directory entry",
            at,
        })
    }

    /// The entry's bytes; none when they or the local header do not lie in the file. The local
    /// header's own sizes and checksum are zero in files that were written as a stream, so that
    /// the central directory's count.
    fn data(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let mut header = Cursor::new(bytes, usize::try_from(self.header_at).ok()?)?;
        header.signature(LOCAL)?;
        header.skip(22)?;
        let (name, extra) = (header.u16()?, header.u16()?);
        if header.take(name.into())? != self.name.as_bytes() || self.stored_bytes != self.bytes {
            return None;
        }
        header.skip(extra.into())?;
        header.take(usize::try_from(self.bytes).ok()?)
    }
}

/// The 64-bit values of an entry, in zip64's fixed order.
struct Zip64Extra<'a>(Option<Cursor<'a>>);

impl<'a> Zip64Extra<'a> {
    fn find(extra: &'a [u8]) -> Self {
        const ZIP64: u16 = 1;
        let mut fields = Cursor {
            bytes: extra,
            at: 0,
        };
        loop {
            let field = || -> Option<(u16, &'a [u8])> {
                let (id, length) = (fields.u16()?, fields.u16()?);
                Some((id, fields.take(length.into())?))
            };
            let mut field = field;
            match field() {
                Some((ZIP64, bytes)) => return Self(Some(Cursor { bytes, at: 0 })),
                Some(_) => {}
                None => return Self(None),
            }
        }
    }

    /// A value of the record: the next 64-bit one where the record has all ones.
    fn widen(&mut self, value: u32) -> Option<u64> {
        match &mut self.0 {
            Some(wide) if value == u32::MAX => wide.u64(),
            _ => Some(value.into()),
        }
    }
}

/// Reads little-endian numbers; none at the end of the bytes.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(bytes: &'a [u8], at: usize) -> Option<Self> {
        (at <= bytes.len()).then_some(Self { bytes, at })
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.take(length).map(|_| ())
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn signature(&mut self, signature: [u8; 4]) -> Option<()> {
        (self.array()? == signature).then_some(())
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

fn to_u64(at: usize) -> u64 {
    u64::try_from(at).expect("an offset in memory fits into 64 bits")
}
