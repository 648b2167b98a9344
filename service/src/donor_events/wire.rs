//! The JSON of an event, one value at a time: each is read as what it must be, or refused by name.
//!
//! Values are kept as the text that they are until somebody asks for them. The parser's own
//! messages may quote what they complain of, so none of them is passed on.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::refusal::{Fault, Problem};

/// A value that was not looked at yet; absent also where it is null.
pub(super) type Raw<'a> = Option<&'a RawValue>;

/// An object of known fields. Others are ignored; one that is given twice is a fault.
pub(super) fn object<'a, T: Deserialize<'a>>(
    raw: Raw<'a>,
    field: &'static str,
) -> Result<T, Fault> {
    let raw = raw.ok_or(Fault::new(field, Problem::Missing))?;
    object_of(raw.get()).ok_or(Fault::form(field, "an object"))
}

/// As [`object()`], from its text. A list of the fields' values would be taken as well.
pub(super) fn object_of<'a, T: Deserialize<'a>>(text: &'a str) -> Option<T> {
    let is_object = text.trim_start().starts_with('{');
    serde_json::from_str(text).ok().filter(|_| is_object)
}

/// A number, a pair of numbers, or the like.
pub(super) fn value<T: DeserializeOwned>(
    raw: Raw<'_>,
    field: &'static str,
    wanted: &'static str,
) -> Result<T, Fault> {
    let raw = raw.ok_or(Fault::new(field, Problem::Missing))?;
    serde_json::from_str(raw.get()).map_err(|_| Fault::form(field, wanted))
}

/// As [`value`], for what may be absent.
pub(super) fn optional<T: DeserializeOwned>(
    raw: Raw<'_>,
    field: &'static str,
    wanted: &'static str,
) -> Result<Option<T>, Fault> {
    raw.map(|raw| value(Some(raw), field, wanted)).transpose()
}

/// A text of 1 to `most` bytes that is not blank.
pub(super) fn text(raw: Raw<'_>, field: &'static str, most: usize) -> Result<Box<str>, Fault> {
    let text: String = value(raw, field, "a string")?;
    if text.trim().is_empty() {
        return Err(Fault::new(field, Problem::Blank));
    }
    check_count(field, text.len(), most, "bytes")?;
    Ok(text.into())
}

/// As [`text`], for what may be absent.
pub(super) fn optional_text(
    raw: Raw<'_>,
    field: &'static str,
    most: usize,
) -> Result<Option<Box<str>>, Fault> {
    raw.map(|raw| text(Some(raw), field, most)).transpose()
}

/// The first `MOST` elements of a list, and how many it has.
pub(super) fn list<'a, T: Deserialize<'a>, const MOST: usize>(
    raw: Raw<'a>,
    field: &'static str,
    wanted: &'static str,
) -> Result<Vec<T>, Fault> {
    let raw = raw.ok_or(Fault::new(field, Problem::Missing))?;
    let list: List<T, MOST> =
        serde_json::from_str(raw.get()).map_err(|_| Fault::form(field, wanted))?;
    check_count(field, list.length, MOST, "elements")?;
    Ok(list.kept)
}

fn check_count(
    field: &'static str,
    found: usize,
    most: usize,
    unit: &'static str,
) -> Result<(), Fault> {
    if found > most {
        return Err(Fault::new(field, Problem::TooMuch { found, most, unit }));
    }
    Ok(())
}

struct List<T, const MOST: usize> {
    kept: Vec<T>,
    length: usize,
}

impl<'a, T: Deserialize<'a>, const MOST: usize> Deserialize<'a> for List<T, MOST> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Elements(List {
            kept: Vec::new(),
            length: 0,
        }))
    }
}

struct Elements<T, const MOST: usize>(List<T, MOST>);

impl<'a, T: Deserialize<'a>, const MOST: usize> Visitor<'a> for Elements<T, MOST> {
    type Value = List<T, MOST>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let Elements(mut list) = self;
        while list.kept.len() < MOST {
            let Some(element) = elements.next_element()? else {
                list.length = list.kept.len();
                return Ok(list);
            };
            list.kept.push(element);
        }
        list.length = list.kept.len();
        while elements.next_element::<IgnoredAny>()?.is_some() {
            list.length += 1;
        }
        Ok(list)
    }
}

/// An open map of which two keys are known.
#[derive(Debug, Default)]
pub(super) struct Extra<'a> {
    pub(super) cache_salt: Raw<'a>,
    pub(super) tenant_key: Raw<'a>,
    pub(super) has_other_keys: bool,
    pub(super) has_twice: bool,
}

impl<'a> Deserialize<'a> for Extra<'a> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Keys)
    }
}

struct Keys;

impl<'a> Visitor<'a> for Keys {
    type Value = Extra<'a>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a map")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut entries: A) -> Result<Extra<'a>, A::Error> {
        let mut extra = Extra::default();
        // A key may be written with escapes, so that it is not borrowed.
        while let Some(key) = entries.next_key::<String>()? {
            let known = match key.as_str() {
                "cache_salt" => &mut extra.cache_salt,
                "tenant_key" => &mut extra.tenant_key,
                _ => {
                    extra.has_other_keys = true;
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            extra.has_twice |= known.is_some();
            // A null is kept: here it is no absence.
            *known = Some(entries.next_value()?);
        }
        Ok(extra)
    }
}
