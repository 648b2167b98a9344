//! From JSON to an event: strict about every value that it reads, blind to fields that it does not
//! know.

use serde::Deserialize;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    isolation,
    refusal::{Fault, Problem, Refusal},
    wire::{self, Extra, Raw},
};
use crate::donors::{
    announced::{
        Announcement, Change, Event, Location, Lost, Position, Scope, Segment,
        namespace::{AnnouncedNamespace, adapter, quantization},
    },
    namespace::{BLOCK_SIZE_MAX, FIELD_BYTES_MAX},
    neighbours::{SEGMENTS_MAX, Vector, vector::DIMENSIONS_MAX},
    owners::{OwnerKey, WORKER_ID_BYTES_MAX},
};

/// Largest event, in bytes.
pub const EVENT_BYTES_MAX: usize = 4 << 20;
/// The only schema version that there is.
pub const SCHEMA_VERSION: u64 = 1;
/// Longest id of a donor, in bytes.
pub const DONOR_ID_BYTES_MAX: usize = 256;
/// Longest name of a tier or store, and longest address in a store, in bytes.
pub const PLACE_BYTES_MAX: usize = 256;
pub const LOCATOR_BYTES_MAX: usize = 4096;
/// Segments that one event evicts.
pub const EVICTED_SEGMENTS_MAX: usize = 4096;
/// Bytes of an embedding: 4 an element.
const METADATA_BYTES_MAX: usize = 4 * DIMENSIONS_MAX;
const SEGMENTS: usize = SEGMENTS_MAX as usize;

const METADATA_FIELD: &str = "data.segments.provider_metadata";
const KIND_FIELD: &str = "data.kind";
const REGISTERED: &str = "donor_registered";
const U64: &str = "a whole number below 2^64";
const U32: &str = "a whole number below 2^32";

/// Reads one event.
///
/// # Errors
/// When it is not understood: by the field and the limit, never with content.
pub fn decode(event: &[u8]) -> Result<Event, Refusal> {
    let unknown = |fault| Refusal { fault, lost: None };
    let (at, data) = head(event).map_err(unknown)?;
    let fields: Data<'_> = match wire::object(data, "data") {
        Ok(fields) => fields,
        Err(fault) => {
            let lost = Some(Lost { at, donor_id: None });
            return Err(Refusal { fault, lost });
        }
    };
    match change(&fields) {
        Ok((generation, change)) => Ok(Event {
            at: Position { generation, ..at },
            change,
        }),
        Err(fault) => Err(Refusal {
            fault,
            lost: Some(lost(at, &fields)),
        }),
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    schema_version: Raw<'a>,
    #[serde(borrow, default)]
    event_id: Raw<'a>,
    #[serde(borrow, default)]
    worker_id: Raw<'a>,
    #[serde(borrow, default)]
    dp_rank: Raw<'a>,
    #[serde(borrow, default)]
    data: Raw<'a>,
}

/// The fields of every kind of event.
#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow, default)]
    kind: Raw<'a>,
    #[serde(borrow, default)]
    donor_id: Raw<'a>,
    #[serde(borrow, default)]
    namespace: Raw<'a>,
    #[serde(borrow, default)]
    location: Raw<'a>,
    #[serde(borrow, default)]
    token_count: Raw<'a>,
    #[serde(borrow, default)]
    segments: Raw<'a>,
    #[serde(borrow, default)]
    provider_generation: Raw<'a>,
    #[serde(borrow, default)]
    generation: Raw<'a>,
    #[serde(borrow, default)]
    scope: Raw<'a>,
}

fn head(event: &[u8]) -> Result<(Position, Raw<'_>), Fault> {
    if event.len() > EVENT_BYTES_MAX {
        let (found, most) = (event.len(), EVENT_BYTES_MAX);
        let unit = "bytes";
        return Err(Fault::new("event", Problem::TooMuch { found, most, unit }));
    }
    let not_json = Fault::form("event", "a JSON object in UTF-8");
    let text = std::str::from_utf8(event).map_err(|_| not_json)?;
    let envelope: Envelope<'_> = wire::object_of(text).ok_or(not_json)?;
    let version: u64 = wire::value(envelope.schema_version, "schema_version", U64)?;
    if version != SCHEMA_VERSION {
        return Err(Fault::form("schema_version", "1"));
    }
    let at = Position {
        stream: OwnerKey {
            worker_id: worker_id(envelope.worker_id, "worker_id")?,
            data_parallel_rank: wire::value(envelope.dp_rank, "dp_rank", U32)?,
        },
        event_id: wire::value(envelope.event_id, "event_id", U64)?,
        generation: None,
    };
    Ok((at, envelope.data))
}

// What is left of an event that has a head.
fn lost(at: Position, data: &Data<'_>) -> Lost {
    let generation = generation(data.provider_generation).ok().flatten();
    let generation = generation.or_else(|| wire::value(data.generation, "", U64).ok());
    let is_registration = wire::value::<String>(data.kind, KIND_FIELD, "a string")
        .is_ok_and(|kind| kind == REGISTERED);
    // A registration takes nothing away but what it replaces.
    let donor_id = is_registration.then(|| donor_id(data.donor_id).ok());
    Lost {
        at: Position { generation, ..at },
        donor_id: donor_id.flatten(),
    }
}

fn change(data: &Data<'_>) -> Result<(Option<u64>, Change), Fault> {
    let kind: String = wire::value(data.kind, KIND_FIELD, "a string")?;
    let change = match kind.as_str() {
        REGISTERED => {
            let announcement = Box::new(announcement(data)?);
            let generation = wire::value(data.provider_generation, GENERATION_FIELD, U64)?;
            return Ok((Some(generation), Change::Registered(announcement)));
        }
        "provider_generation_reset" => {
            let generation = wire::value(data.generation, "data.generation", U64)?;
            return Ok((Some(generation), Change::Reset));
        }
        "donor_evicted" => Change::Evicted {
            donor_id: donor_id(data.donor_id)?,
            segments: evicted_segments(data.segments)?,
        },
        "donors_purged" => Change::Purged(scope(data.scope)?),
        _ => {
            let kinds = "donor_registered, donor_evicted, donors_purged or \
                         provider_generation_reset";
            return Err(Fault::form(KIND_FIELD, kinds));
        }
    };
    Ok((generation(data.provider_generation)?, change))
}

const GENERATION_FIELD: &str = "data.provider_generation";

fn generation(raw: Raw<'_>) -> Result<Option<u64>, Fault> {
    wire::optional(raw, GENERATION_FIELD, U64)
}

fn donor_id(raw: Raw<'_>) -> Result<Box<str>, Fault> {
    wire::text(raw, "data.donor_id", DONOR_ID_BYTES_MAX)
}

// Some name workers by numbers, others by texts.
fn worker_id(raw: Raw<'_>, field: &'static str) -> Result<Box<str>, Fault> {
    if raw.is_some_and(|raw| raw.get().starts_with('"')) {
        return wire::text(raw, field, WORKER_ID_BYTES_MAX);
    }
    let number: u64 = wire::value(raw, field, "a string, or a whole number below 2^64")?;
    Ok(number.to_string().into())
}

fn announcement(data: &Data<'_>) -> Result<Announcement, Fault> {
    let token_count = wire::value(data.token_count, "data.token_count", U32)?;
    Ok(Announcement {
        donor_id: donor_id(data.donor_id)?,
        namespace: namespace(data.namespace)?,
        location: location(data.location)?,
        segments: segments(data.segments, token_count)?,
    })
}

#[derive(Deserialize)]
struct NamespaceFields<'a> {
    #[serde(borrow, default)]
    model: Raw<'a>,
    #[serde(borrow, default)]
    tokenizer: Raw<'a>,
    #[serde(borrow, default)]
    kv_layout: Raw<'a>,
    #[serde(borrow, default)]
    block_size: Raw<'a>,
    #[serde(borrow, default)]
    lora: Raw<'a>,
    #[serde(borrow, default)]
    quant: Raw<'a>,
    #[serde(borrow, default)]
    extra: Raw<'a>,
}

type Comparable = Result<AnnouncedNamespace, crate::donors::vocabulary::Unfindable>;

fn namespace(raw: Raw<'_>) -> Result<Comparable, Fault> {
    let fields: NamespaceFields<'_> = wire::object(raw, "data.namespace")?;
    let text = |raw, field| wire::text(raw, field, FIELD_BYTES_MAX);
    let optional = |raw, field| wire::optional_text(raw, field, FIELD_BYTES_MAX);
    let block_size: u32 = wire::value(fields.block_size, "data.namespace.block_size", U32)?;
    if !(1..=BLOCK_SIZE_MAX).contains(&block_size) {
        return Err(Fault::form("data.namespace.block_size", "1 to 4096"));
    }
    let extra = match fields.extra {
        None => Extra::default(),
        raw => wire::object(raw, "data.namespace.extra")?,
    };
    let (model, tokenizer, kv_layout, lora, quant) = (
        text(fields.model, "data.namespace.model")?,
        text(fields.tokenizer, "data.namespace.tokenizer")?,
        text(fields.kv_layout, "data.namespace.kv_layout")?,
        optional(fields.lora, "data.namespace.lora")?,
        optional(fields.quant, "data.namespace.quant")?,
    );
    Ok(
        isolation::tenant(&extra)?.map(|tenant_key| AnnouncedNamespace {
            model,
            tokenizer,
            kv_layout,
            block_size,
            adapter: adapter(lora.as_deref()),
            quantization: quantization(quant.as_deref()),
            tenant_key,
        }),
    )
}

#[derive(Deserialize)]
struct LocationFields<'a> {
    #[serde(borrow, default)]
    kind: Raw<'a>,
    #[serde(borrow, default)]
    worker_id: Raw<'a>,
    #[serde(borrow, default)]
    dp_rank: Raw<'a>,
    #[serde(borrow, default)]
    tier: Raw<'a>,
    #[serde(borrow, default)]
    backend: Raw<'a>,
    #[serde(borrow, default)]
    locator: Raw<'a>,
}

fn location(raw: Raw<'_>) -> Result<Location, Fault> {
    let fields: LocationFields<'_> = wire::object(raw, "data.location")?;
    let kind: String = wire::value(fields.kind, "data.location.kind", "a string")?;
    let tier = wire::text(fields.tier, "data.location.tier", PLACE_BYTES_MAX)?;
    match kind.as_str() {
        "worker" => {
            let holder = OwnerKey {
                worker_id: worker_id(fields.worker_id, "data.location.worker_id")?,
                data_parallel_rank: wire::value(fields.dp_rank, "data.location.dp_rank", U32)?,
            };
            let rank = holder.data_parallel_rank.to_le_bytes();
            let parts = [
                &b"worker"[..],
                holder.worker_id.as_bytes(),
                &rank,
                tier.as_bytes(),
            ];
            Ok(Location {
                fingerprint: fingerprint(&parts),
                holder: Some(holder),
            })
        }
        "shared" => {
            let backend = wire::text(fields.backend, "data.location.backend", PLACE_BYTES_MAX)?;
            let locator = match fields.locator {
                None => Vec::new(),
                raw => wire::list::<u8, LOCATOR_BYTES_MAX>(
                    raw,
                    "data.location.locator",
                    "a list of bytes",
                )?,
            };
            let parts = [
                &b"shared"[..],
                backend.as_bytes(),
                &locator,
                tier.as_bytes(),
            ];
            Ok(Location {
                fingerprint: fingerprint(&parts),
                holder: None,
            })
        }
        _ => Err(Fault::form("data.location.kind", "worker or shared")),
    }
}

// A length before every part: no two different places give the same bytes.
fn fingerprint(parts: &[&[u8]]) -> u64 {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    xxh3_64(&bytes)
}

#[derive(Deserialize)]
struct SegmentFields<'a> {
    #[serde(borrow, default)]
    segment_id: Raw<'a>,
    #[serde(borrow, default)]
    token_range: Raw<'a>,
    #[serde(borrow, default)]
    provider_metadata: Raw<'a>,
}

fn segments(raw: Raw<'_>, token_count: u32) -> Result<Vec<Segment>, Fault> {
    let raws: Vec<&RawValue> = wire::list::<_, SEGMENTS>(raw, "data.segments", "a list")?;
    if raws.is_empty() {
        return Err(Fault::new("data.segments", Problem::Missing));
    }
    let mut segments: Vec<Segment> = Vec::with_capacity(raws.len());
    for raw in raws {
        let segment = segment(raw, token_count)?;
        if segments.iter().any(|other| other.id == segment.id) {
            return Err(Fault::new("data.segments.segment_id", Problem::Twice));
        }
        segments.push(segment);
    }
    Ok(segments)
}

fn segment(raw: &RawValue, token_count: u32) -> Result<Segment, Fault> {
    let fields: SegmentFields<'_> = wire::object(Some(raw), "data.segments")?;
    let range = "data.segments.token_range";
    let (start, end): (u32, u32) = wire::value(fields.token_range, range, "two whole numbers")?;
    if start >= end || end > token_count {
        return Err(Fault::form(range, "a range within token_count"));
    }
    Ok(Segment {
        id: wire::value(fields.segment_id, "data.segments.segment_id", U32)?,
        vector: match fields.provider_metadata {
            None => None,
            raw => vector(raw)?,
        },
    })
}

// None where all elements are zero: that is no direction.
fn vector(raw: Raw<'_>) -> Result<Option<Vector>, Fault> {
    let wanted = "a list of bytes, four to a number";
    let bytes = wire::list::<u8, METADATA_BYTES_MAX>(raw, METADATA_FIELD, wanted)?;
    let (numbers, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(Fault::form(METADATA_FIELD, wanted));
    }
    let numbers: Vec<f32> = numbers
        .iter()
        .map(|&four| f32::from_le_bytes(four))
        .collect();
    if numbers.iter().any(|number| !number.is_finite()) {
        return Err(Fault::form(METADATA_FIELD, "finite numbers"));
    }
    Ok(Vector::new(&numbers))
}

fn evicted_segments(raw: Raw<'_>) -> Result<Option<Vec<u32>>, Fault> {
    let list = |raw| {
        let wanted = "a list of whole numbers";
        wire::list::<u32, EVICTED_SEGMENTS_MAX>(Some(raw), "data.segments", wanted)
    };
    raw.map(list).transpose()
}

#[derive(Deserialize)]
struct ScopeFields<'a> {
    #[serde(borrow, default)]
    kind: Raw<'a>,
    #[serde(borrow, default)]
    worker_id: Raw<'a>,
    #[serde(borrow, default)]
    location: Raw<'a>,
}

// None: all of the emitter.
fn scope(raw: Raw<'_>) -> Result<Scope, Fault> {
    if raw.is_none() {
        return Ok(Scope::Stream);
    }
    let fields: ScopeFields<'_> = wire::object(raw, "data.scope")?;
    let kind: String = wire::value(fields.kind, "data.scope.kind", "a string")?;
    match kind.as_str() {
        "all" => Ok(Scope::Stream),
        "worker" => Ok(Scope::Worker(worker_id(
            fields.worker_id,
            "data.scope.worker_id",
        )?)),
        "location" => Ok(Scope::Location(location(fields.location)?.fingerprint)),
        _ => Err(Fault::form("data.scope.kind", "worker, location or all")),
    }
}

#[cfg(test)]
mod tests;
