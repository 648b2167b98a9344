//! The bytes of one record of the donor log, and how whole records are found among damaged ones.
//!
//! A frame is a header, a key, a payload, and zeros up to a multiple of eight. The header has a
//! checksum of its own, so that a length is trusted only once it is known to be the one written.
//! Checksums are seeded by a number that no client can know: no payload can pass for a frame.

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

pub(super) const HEADER_BYTES: usize = 48;
pub(super) const ALIGNMENT: usize = 8;
const BODY_CHECKSUM_AT: usize = 8;
const SEQUENCE_AT: usize = 16;
const KEY_HASH_AT: usize = 24;
const PAYLOAD_BYTES_AT: usize = 32;
const DURABLE_AT: usize = 36;
const KEY_BYTES_AT: usize = 40;
const KIND_AT: usize = 42;

/// What a record says of its key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Put = 1,
    Delete = 2,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Of two records of one key the one with the higher number holds.
    pub(super) sequence: u64,
    /// [`key_hash`], so that a record whose body is damaged still replaces what came before it.
    pub(super) key_hash: u64,
    pub(super) key_bytes: u16,
    pub(super) payload_bytes: u32,
    /// So many bytes of the segment were durable when this frame was written.
    pub(super) durable: u32,
    body_checksum: u64,
}

impl Header {
    /// Bytes of the whole frame.
    pub(super) fn frame_bytes(&self) -> usize {
        frame_bytes(usize::from(self.key_bytes), self.payload_bytes as usize)
    }

    /// Key and payload, when they are what was written.
    pub(super) fn split<'a>(&self, frame: &'a [u8], seed: u64) -> Option<(&'a [u8], &'a [u8])> {
        let body = frame.get(HEADER_BYTES..)?;
        let (key, rest) = body.split_at_checked(usize::from(self.key_bytes))?;
        let payload = rest.get(..self.payload_bytes as usize)?;
        (body_checksum(seed, key, &[payload]) == self.body_checksum).then_some((key, payload))
    }
}

/// What a record is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content<'a> {
    pub(super) kind: Kind,
    pub(super) sequence: u64,
    pub(super) key: &'a [u8],
    /// One after the other they are the payload.
    pub(super) parts: &'a [&'a [u8]],
}

/// Where a frame goes: the seed of its segment, its offset there, and what is durable before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) seed: u64,
    pub(super) offset: u32,
    pub(super) durable: u32,
}

/// Bytes of a frame.
pub(super) fn frame_bytes(key_bytes: usize, payload_bytes: usize) -> usize {
    (HEADER_BYTES + key_bytes + payload_bytes).next_multiple_of(ALIGNMENT)
}

/// Which key a record is of, in 64 bits of its SHA-256: nobody can make up a key that passes for
/// another's.
pub(super) fn key_hash(key: &[u8]) -> u64 {
    let digest = Sha256::digest(key);
    digest
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Appends a frame. Its key and payload are within their limits.
pub(super) fn write(out: &mut Vec<u8>, content: &Content<'_>, spot: Spot) {
    let Content {
        kind,
        sequence,
        key,
        parts,
    } = *content;
    let payload_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let header = Header {
        kind,
        sequence,
        key_hash: key_hash(key),
        key_bytes: u16::try_from(key.len()).expect("the log checks the limit of a key"),
        payload_bytes: u32::try_from(payload_bytes).expect("the log checks the limit of a record"),
        durable: spot.durable,
        body_checksum: body_checksum(spot.seed, key, parts),
    };
    let end = out.len() + header.frame_bytes();
    out.extend_from_slice(&header_bytes(&header, spot));
    out.extend_from_slice(key);
    for part in parts {
        out.extend_from_slice(part);
    }
    out.resize(end, 0);
}

/// The header at the start of `bytes`, if one was written for that offset.
pub(super) fn header(bytes: &[u8], seed: u64, offset: u32) -> Option<Header> {
    let bytes = bytes.first_chunk::<HEADER_BYTES>()?;
    if number(bytes, 0) != header_checksum(bytes, seed, offset) {
        return None;
    }
    let kind = match bytes[KIND_AT] {
        1 => Kind::Put,
        2 => Kind::Delete,
        _ => return None,
    };
    let half =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Some(Header {
        kind,
        sequence: number(bytes, SEQUENCE_AT),
        key_hash: number(bytes, KEY_HASH_AT),
        key_bytes: u16::from_le_bytes([bytes[KEY_BYTES_AT], bytes[KEY_BYTES_AT + 1]]),
        payload_bytes: half(PAYLOAD_BYTES_AT),
        durable: half(DURABLE_AT),
        body_checksum: number(bytes, BODY_CHECKSUM_AT),
    })
}

/// What lies at a place of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'a> {
    /// A header and the bytes of its frame, whose body is not checked yet.
    Frame {
        offset: u32,
        header: Header,
        bytes: &'a [u8],
    },
    /// Bytes that nothing can be read from.
    Gap { offset: u32 },
}

impl Found<'_> {
    pub(super) fn offset(&self) -> u32 {
        match self {
            Found::Frame { offset, .. } | Found::Gap { offset } => *offset,
        }
    }
}

/// Walks the frames of a segment. After damage it goes on at the next header that is whole.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    bytes: &'a [u8],
    seed: u64,
    at: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(bytes: &'a [u8], seed: u64) -> Self {
        Self { bytes, seed, at: 0 }
    }

    fn frame(&self, at: usize) -> Option<(u32, Header, &'a [u8])> {
        let rest = self.bytes.get(at..)?;
        let offset = u32::try_from(at).ok()?;
        let header = header(rest, self.seed, offset)?;
        Some((offset, header, rest.get(..header.frame_bytes())?))
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Found<'a>;

    fn next(&mut self) -> Option<Found<'a>> {
        if self.at >= self.bytes.len() {
            return None;
        }
        if let Some((offset, header, bytes)) = self.frame(self.at) {
            self.at += bytes.len();
            return Some(Found::Frame {
                offset,
                header,
                bytes,
            });
        }
        let offset = u32::try_from(self.at).ok()?;
        let mut at = self.at + ALIGNMENT;
        while at < self.bytes.len() && self.frame(at).is_none() {
            at += ALIGNMENT;
        }
        self.at = at;
        Some(Found::Gap { offset })
    }
}

fn header_bytes(header: &Header, spot: Spot) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(BODY_CHECKSUM_AT, &header.body_checksum.to_le_bytes());
    put(SEQUENCE_AT, &header.sequence.to_le_bytes());
    put(KEY_HASH_AT, &header.key_hash.to_le_bytes());
    put(PAYLOAD_BYTES_AT, &header.payload_bytes.to_le_bytes());
    put(DURABLE_AT, &header.durable.to_le_bytes());
    put(KEY_BYTES_AT, &header.key_bytes.to_le_bytes());
    put(KIND_AT, &[header.kind as u8]);
    let checksum = header_checksum(&bytes, spot.seed, spot.offset);
    bytes[..BODY_CHECKSUM_AT].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

// The offset is part of it: a frame that lies where it was not written is none.
fn header_checksum(bytes: &[u8; HEADER_BYTES], seed: u64, offset: u32) -> u64 {
    let seed =
        seed ^ (u64::from(offset) << 32 | u64::from(offset)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    xxh3_64_with_seed(&bytes[BODY_CHECKSUM_AT..], seed)
}

fn body_checksum(seed: u64, key: &[u8], parts: &[&[u8]]) -> u64 {
    let mut hash = Xxh3::with_seed(seed);
    hash.update(key);
    for part in parts {
        hash.update(part);
    }
    hash.digest()
}

fn number(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEED: u64 = 77;

    fn segment(records: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (sequence, (key, payload)) in (0..).zip(records) {
            let content = Content {
                kind: Kind::Put,
                sequence,
                key,
                parts: &[payload],
            };
            let offset = u32::try_from(bytes.len()).unwrap();
            let spot = Spot {
                seed: SEED,
                offset,
                durable: 0,
            };
            write(&mut bytes, &content, spot);
        }
        bytes
    }

    /// Sequence and payload.
    type Record = (u64, Vec<u8>);

    /// The records that are whole, and how often something was not.
    fn read(bytes: &[u8]) -> (Vec<Record>, usize) {
        let mut whole = Vec::new();
        let mut damaged = 0;
        for found in Walk::new(bytes, SEED) {
            let payload = match found {
                Found::Frame { header, bytes, .. } => header
                    .split(bytes, SEED)
                    .map(|(_, payload)| (header.sequence, payload.to_vec())),
                Found::Gap { .. } => None,
            };
            match payload {
                Some(record) => whole.push(record),
                None => damaged += 1,
            }
        }
        (whole, damaged)
    }

    fn three() -> [(&'static [u8], &'static [u8]); 3] {
        [
            (b"key", b"payload"),
            (b"other", b""),
            (b"third", b"0123456789"),
        ]
    }

    #[test]
    fn a_flipped_bit_loses_the_record_it_is_in_and_no_other() {
        let bytes = segment(&three());
        let (expected, damaged) = read(&bytes);
        assert_eq!((expected.len(), damaged), (3, 0));
        let ends: Vec<usize> = three()
            .iter()
            .scan(0, |end, (key, payload)| {
                *end += frame_bytes(key.len(), payload.len());
                Some(*end)
            })
            .collect();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let hit = ends.iter().position(|&end| bit / 8 < end).unwrap();
            let mut rest = expected.clone();
            rest.remove(hit);
            let (found, damaged) = read(&flipped);
            // Padding bears nothing.
            let is_padding = found == expected;
            assert!(
                is_padding || (found == rest && damaged == 1),
                "bit {bit}: {found:?}"
            );
        }
    }

    #[test]
    fn a_frame_inside_a_payload_is_not_read() {
        let inner = segment(&[(b"forged", b"forged")]);
        let mut bytes = segment(&[(b"key", &inner)]);
        bytes[0] ^= 1;
        assert_eq!(
            read(&bytes),
            (Vec::new(), 1),
            "it was written for another offset"
        );
    }

    #[test]
    fn a_frame_is_read_with_its_own_seed_alone() {
        let bytes = segment(&three());
        assert!(Walk::new(&bytes, SEED + 1).all(|found| matches!(found, Found::Gap { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            noise in prop::collection::vec(any::<u8>(), 0..200),
            cut in any::<prop::sample::Index>(),
            at in any::<prop::sample::Index>(),
        ) {
            let mut bytes = segment(&three());
            let whole = read(&bytes).0;
            bytes.truncate(cut.index(bytes.len() + 1));
            let at = at.index(bytes.len() + 1);
            let rest = bytes.split_off(at);
            bytes.extend(&noise);
            bytes.extend(rest);
            for record in read(&bytes).0 {
                prop_assert!(whole.contains(&record));
            }
        }
    }
}
