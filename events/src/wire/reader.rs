//! Reads msgpack values one after the other: the head of any value, typed values, and past a value
//! by its structure alone.

use super::DecodeError;
use crate::event::EngineHash;

/// A position in a payload. Typed reads give `None` where the value is not of the type; the
/// position is then anywhere inside it.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    payload: &'a [u8],
    at: usize,
}

/// The first part of a value: all of it, but for arrays and maps, whose elements (or keys and
/// values) follow.
#[derive(Clone, Copy)]
pub(super) enum Head<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    /// Elements that follow, never more than bytes that follow.
    Array(usize),
    /// Pairs that follow, never more than half the bytes that follow.
    Map(usize),
    Extension,
}

const NIL: u8 = 0xc0;
const UNSIGNED_64: u8 = 0xcf;

impl<'a> Reader<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Self {
        Self { payload, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// What has not been read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.payload.get(self.at..).unwrap_or_default()
    }

    /// Goes on behind `bytes` bytes that [`Self::rest`] has.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.at += bytes;
        debug_assert!(self.at <= self.payload.len());
    }

    pub(super) fn head(&mut self) -> Result<Head<'a>, DecodeError> {
        let at = self.at;
        let [marker] = self.take(at, 1)? else {
            return Err(DecodeError::Truncated { at });
        };
        let marker = *marker;
        Ok(match marker {
            0x00..=0x7f => Head::Unsigned(marker.into()),
            0x80..=0x8f => self.map(at, u64::from(marker & 0x0f))?,
            0x90..=0x9f => self.array(at, u64::from(marker & 0x0f))?,
            0xa0..=0xbf => Head::Text(self.take(at, u64::from(marker & 0x1f))?),
            NIL => Head::Nil,
            0xc1 => return Err(DecodeError::Reserved { at }),
            0xc2..=0xc3 => Head::Bool,
            0xc4..=0xc6 => {
                let length = self.integer(at, 1 << (marker - 0xc4))?;
                Head::Bytes(self.take(at, length)?)
            }
            0xc7..=0xc9 => {
                let length = self.integer(at, 1 << (marker - 0xc7))?;
                self.take(at, length + 1)?;
                Head::Extension
            }
            0xca => Head::Float(f32::from_bits(self.low_bits(at)?).into()),
            0xcb => Head::Float(f64::from_bits(self.integer(at, 8)?)),
            0xcc..=0xcf => Head::Unsigned(self.integer(at, 1 << (marker - 0xcc))?),
            0xd0..=0xd3 => self.signed(at, 1 << (marker - 0xd0))?,
            0xd4..=0xd8 => {
                self.take(at, 1 + (1 << (marker - 0xd4)))?;
                Head::Extension
            }
            0xd9..=0xdb => {
                let length = self.integer(at, 1 << (marker - 0xd9))?;
                Head::Text(self.take(at, length)?)
            }
            0xdc..=0xdd => {
                let count = self.integer(at, 2 << (marker - 0xdc))?;
                self.array(at, count)?
            }
            0xde..=0xdf => {
                let count = self.integer(at, 2 << (marker - 0xde))?;
                self.map(at, count)?
            }
            0xe0..=0xff => Head::Negative(i64::from(marker) - 0x100),
        })
    }

    /// Past one value, however deep: a count of the values still to come stands for a stack. Each
    /// head adds at most the bytes that are left, so that the count stays below their square.
    pub(super) fn skip(&mut self) -> Result<(), DecodeError> {
        let mut pending = 1_u64;
        while pending > 0 {
            pending -= 1;
            pending += match self.head()? {
                Head::Array(count) => count as u64,
                Head::Map(count) => 2 * count as u64,
                Head::Nil
                | Head::Bool
                | Head::Unsigned(_)
                | Head::Negative(_)
                | Head::Float(_)
                | Head::Text(_)
                | Head::Bytes(_)
                | Head::Extension => 0,
            };
        }
        Ok(())
    }

    /// `None` inside where the value is nil.
    pub(super) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        if self.rest().first() == Some(&NIL) {
            self.advance(1);
            return Some(None);
        }
        read(self).map(Some)
    }

    pub(super) fn unsigned(&mut self) -> Option<u32> {
        let Head::Unsigned(value) = self.head().ok()? else {
            return None;
        };
        u32::try_from(value).ok()
    }

    pub(super) fn signed_64(&mut self) -> Option<i64> {
        let head = self.head().ok()?;
        if let Head::Negative(value) = head {
            return Some(value);
        }
        let Head::Unsigned(value) = head else {
            return None;
        };
        i64::try_from(value).ok()
    }

    pub(super) fn seconds(&mut self) -> Option<f64> {
        let head = self.head().ok()?;
        if let Head::Float(seconds) = head {
            return Some(seconds);
        }
        let Head::Unsigned(seconds) = head else {
            return None;
        };
        u32::try_from(seconds).ok().map(f64::from)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        let Head::Text(text) = self.head().ok()? else {
            return None;
        };
        str::from_utf8(text).ok()
    }

    /// The number of elements that follow.
    pub(super) fn list(&mut self) -> Option<usize> {
        let Head::Array(count) = self.head().ok()? else {
            return None;
        };
        Some(count)
    }

    pub(super) fn hash(&mut self) -> Option<EngineHash> {
        // Nearly all have this form: without this look each would go through all of `head`.
        if let Some(&[UNSIGNED_64, ref digest @ ..]) = self.rest().first_chunk::<9>() {
            self.advance(9);
            return Some(EngineHash(u64::from_be_bytes(*digest)));
        }
        let head = self.head().ok()?;
        if let Head::Bytes(digest) = head {
            let known = matches!(digest.len(), 8 | 16 | 32);
            let last = digest.last_chunk().filter(|_| known)?;
            return Some(EngineHash(u64::from_be_bytes(*last)));
        }
        if let Head::Negative(value) = head {
            return Some(EngineHash(value.cast_unsigned()));
        }
        let Head::Unsigned(value) = head else {
            return None;
        };
        Some(EngineHash(value))
    }

    fn array(&self, at: usize, count: u64) -> Result<Head<'a>, DecodeError> {
        let count = usize::try_from(count)
            .ok()
            .filter(|&count| count <= self.rest().len());
        count.map(Head::Array).ok_or(DecodeError::Truncated { at })
    }

    fn map(&self, at: usize, count: u64) -> Result<Head<'a>, DecodeError> {
        let count = usize::try_from(count)
            .ok()
            .filter(|&count| count <= self.rest().len() / 2);
        count.map(Head::Map).ok_or(DecodeError::Truncated { at })
    }

    fn signed(&mut self, at: usize, bytes: u32) -> Result<Head<'a>, DecodeError> {
        let unused = 64 - 8 * bytes;
        let value = (self.integer(at, bytes.into())? << unused).cast_signed() >> unused;
        Ok(u64::try_from(value).map_or(Head::Negative(value), Head::Unsigned))
    }

    fn low_bits(&mut self, at: usize) -> Result<u32, DecodeError> {
        let bytes = self
            .take(at, 4)?
            .first_chunk()
            .ok_or(DecodeError::Truncated { at })?;
        Ok(u32::from_be_bytes(*bytes))
    }

    /// Big endian, of at most eight bytes.
    fn integer(&mut self, at: usize, bytes: u64) -> Result<u64, DecodeError> {
        let bytes = self.take(at, bytes)?;
        Ok(bytes
            .iter()
            .fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn take(&mut self, at: usize, bytes: u64) -> Result<&'a [u8], DecodeError> {
        let taken = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| self.rest().get(..bytes));
        let taken = taken.ok_or(DecodeError::Truncated { at })?;
        self.at += taken.len();
        Ok(taken)
    }
}
