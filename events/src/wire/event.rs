//! Reads one event, positional or as a map, through one table of fields for both.

use super::{
    fields::{Field, Fields},
    reader::{Head, Reader},
};
use crate::event::Event;
use crate::repeats::Repeats;

/// Why an event is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    Unknown,
    /// Blocks that are not known of, and nothing worse.
    MalformedStore,
    Malformed,
}

/// The fields of a type of event. Those at places come in that order in the positional form, which
/// engines have only ever extended at its end.
struct Layout {
    places: &'static [(&'static str, Field)],
    named_only: &'static [(&'static str, Field)],
}

const STORED: Layout = Layout {
    places: &[
        ("block_hashes", Field::Hashes),
        ("parent_block_hash", Field::Parent),
        ("token_ids", Field::Tokens),
        ("block_size", Field::BlockSize),
        ("lora_id", Field::AdapterId),
        ("medium", Field::Medium),
        ("lora_name", Field::AdapterName),
        ("extra_keys", Field::Extra),
        ("group_idx", Field::Group),
        ("kv_cache_spec_kind", Field::Kind),
        ("kv_cache_spec_sliding_window", Field::Unknown),
        ("locality", Field::Unknown),
        ("ownership", Field::Unknown),
        ("session_id", Field::Unknown),
        ("lookahead_token_ids", Field::Lookahead),
    ],
    named_only: &[("cache_salt", Field::Salt)],
};

const REMOVED: Layout = Layout {
    places: &[
        ("block_hashes", Field::Hashes),
        ("medium", Field::Medium),
        ("group_idx", Field::Group),
    ],
    named_only: &[],
};

const CLEARED: Layout = Layout {
    places: &[],
    named_only: &[],
};

impl Layout {
    fn at(&self, place: usize) -> Field {
        self.places
            .get(place)
            .map_or(Field::Unknown, |&(_, field)| field)
    }

    fn named(&self, key: Head<'_>) -> Field {
        let Head::Text(key) = key else {
            return Field::Unknown;
        };
        let mut fields = self.places.iter().chain(self.named_only);
        let field = fields.find(|(name, _)| name.as_bytes() == key);
        field.map_or(Field::Unknown, |&(_, field)| field)
    }
}

#[derive(Clone, Copy)]
enum Type {
    Stored,
    Removed,
    Cleared,
}

impl Type {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Rejection> {
        let head = reader.head().map_err(|_| Rejection::Malformed)?;
        let Head::Text(name) = head else {
            return Err(Rejection::Malformed);
        };
        match name {
            b"BlockStored" => Ok(Self::Stored),
            b"BlockRemoved" => Ok(Self::Removed),
            b"AllBlocksCleared" => Ok(Self::Cleared),
            _ => Err(Rejection::Unknown),
        }
    }

    fn layout(self) -> &'static Layout {
        match self {
            Self::Stored => &STORED,
            Self::Removed => &REMOVED,
            Self::Cleared => &CLEARED,
        }
    }
}

/// One event. Where it fails the reader stands anywhere inside the event.
pub(super) fn read<'a>(
    reader: &mut Reader<'a>,
    repeats: &mut Repeats,
) -> Result<Event<'a>, Rejection> {
    let head = reader.head().map_err(|_| Rejection::Malformed)?;
    let (event_type, form) = if let Head::Array(count) = head {
        let places = count.checked_sub(1).ok_or(Rejection::Malformed)?;
        (Type::read(reader)?, FormOf::Places(places))
    } else if let Head::Map(count) = head {
        (find_type(*reader, count)?, FormOf::Names(count))
    } else {
        return Err(Rejection::Malformed);
    };
    let fields = read_fields(reader, event_type, form);
    let event = fields.and_then(|fields| match event_type {
        Type::Stored => fields.into_stored(repeats).map(Event::Stored),
        Type::Removed => fields.into_removed().map(Event::Removed),
        Type::Cleared => Some(Event::Cleared),
    });
    event.ok_or(match event_type {
        Type::Stored => Rejection::MalformedStore,
        Type::Removed | Type::Cleared => Rejection::Malformed,
    })
}

/// How an event's fields come, and how many.
#[derive(Clone, Copy)]
enum FormOf {
    Places(usize),
    Names(usize),
}

fn read_fields<'a>(reader: &mut Reader<'a>, event_type: Type, form: FormOf) -> Option<Fields<'a>> {
    let mut fields = Fields::default();
    match form {
        FormOf::Places(count) => {
            for place in 0..count {
                fields.read(event_type.layout().at(place), reader)?;
            }
        }
        FormOf::Names(count) => {
            for _ in 0..count {
                let key = reader.head().ok()?;
                fields.read(event_type.layout().named(key), reader)?;
            }
        }
    }
    Some(fields)
}

/// Engines send the type first, but nothing makes a map keep an order.
fn find_type(mut reader: Reader<'_>, count: usize) -> Result<Type, Rejection> {
    for _ in 0..count {
        let key = reader.rest();
        reader.skip().map_err(|_| Rejection::Malformed)?;
        let key = Reader::new(key).head().map_err(|_| Rejection::Malformed)?;
        if matches!(key, Head::Text(b"type")) {
            return Type::read(&mut reader);
        }
        reader.skip().map_err(|_| Rejection::Malformed)?;
    }
    Err(Rejection::Malformed)
}
