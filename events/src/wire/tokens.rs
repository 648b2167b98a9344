//! Reads token ids: lists of integers many at a time, pairs one by one.
//!
//! This is where a payload's bytes are. One id after the other, each waits for the length of the
//! one before, through a branch that real ids make hard to predict. Two things help: ids between
//! 256 and 65,535 come in runs, and eight in a run are told by one comparison; and where they are
//! mixed, the length is worked out of the first byte without a branch.

use super::{
    EVENT_TOKENS_MAX,
    reader::{Head, Reader},
};

#[derive(Debug, PartialEq)]
pub(super) struct Tokens {
    pub(super) ids: Vec<u32>,
    /// The second element of the last pair, where they are pairs.
    pub(super) bigram_end: Option<u32>,
}

pub(super) fn read_tokens(reader: &mut Reader<'_>) -> Option<Tokens> {
    let count = reader.list().filter(|&count| count <= EVENT_TOKENS_MAX)?;
    let mut ids = Vec::with_capacity(count);
    let mut first = *reader;
    if count > 0 && matches!(first.head(), Ok(Head::Array(_))) {
        let bigram_end = read_pairs(reader, count, &mut ids)?;
        return Some(Tokens { ids, bigram_end });
    }
    read_integers(reader, count, &mut ids)?;
    Some(Tokens {
        ids,
        bigram_end: None,
    })
}

/// What the last block's hash covers beyond its tokens. Of the other blocks it is the tokens of
/// the block that follows.
pub(super) fn read_lookahead(reader: &mut Reader<'_>) -> Option<Vec<u32>> {
    let blocks = reader.list().filter(|&count| count <= EVENT_TOKENS_MAX)?;
    let mut last = Vec::new();
    for _ in 0..blocks {
        last.clear();
        if let Some(count) = reader.optional(Reader::list)? {
            read_integers(reader, count, &mut last)?;
        }
    }
    Some(last)
}

/// Each pair begins with what the one before ended with, or they are no text.
fn read_pairs(reader: &mut Reader<'_>, count: usize, ids: &mut Vec<u32>) -> Option<Option<u32>> {
    let mut end = None;
    for _ in 0..count {
        if reader.list()? != 2 {
            return None;
        }
        let first = reader.unsigned()?;
        if end.is_some_and(|end| end != first) {
            return None;
        }
        ids.push(first);
        end = Some(reader.unsigned()?);
    }
    Some(end)
}

/// How many are read at a time.
const RUN: usize = 8;
/// Eight of three bytes.
const RUN_BYTES: usize = 3 * RUN;
/// Eight of any length, and what is looked at behind the start of the last.
const MIXED_BYTES: usize = 9 * (RUN - 1) + 8;

const UNSIGNED_16: u8 = 0xcd;

fn read_integers(reader: &mut Reader<'_>, count: usize, ids: &mut Vec<u32>) -> Option<()> {
    let mut left = count;
    while left >= RUN {
        if let Some(run) = reader.rest().first_chunk().and_then(read_run) {
            ids.extend_from_slice(&run);
            reader.advance(RUN_BYTES);
        } else if let Some((mixed, bytes)) = reader.rest().first_chunk().and_then(read_mixed) {
            ids.extend_from_slice(&mixed);
            reader.advance(bytes);
        } else {
            read_each(reader, RUN, ids)?;
        }
        left -= RUN;
    }
    read_each(reader, left, ids)
}

/// The plain way, which the others agree with wherever they give an answer.
fn read_each(reader: &mut Reader<'_>, count: usize, ids: &mut Vec<u32>) -> Option<()> {
    for _ in 0..count {
        ids.push(reader.unsigned()?);
    }
    Some(())
}

/// Eight ids of two bytes each.
fn read_run(bytes: &[u8; RUN_BYTES]) -> Option<[u32; RUN]> {
    let (values, _) = bytes.as_chunks::<3>();
    let mut all = true;
    let mut run = [0; RUN];
    for (id, &[marker, high, low]) in run.iter_mut().zip(values) {
        all &= marker == UNSIGNED_16;
        *id = u32::from(u16::from_be_bytes([high, low]));
    }
    all.then_some(run)
}

/// Eight ids of up to four bytes each, and the bytes they take.
fn read_mixed(bytes: &[u8; MIXED_BYTES]) -> Option<([u32; RUN], usize)> {
    let mut mixed = [0; RUN];
    let mut at = 0;
    let mut all = true;
    for id in &mut mixed {
        let word = u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?);
        let marker = word >> 56;
        // 0 for a value that is its own marker, else 1: the markers 0xcc to 0xce stand before
        // 1, 2 or 4 bytes.
        let marked = marker >> 7;
        let behind = marked << (marker & 3);
        let bits = 8 * (behind + 1 - marked);
        all &= marker < 0x80 || marker.wrapping_sub(0xcc) < 3;
        *id = low_32((word << (8 * marked)).wrapping_shr(low_32(64 - bits)));
        at += usize::try_from(behind).ok()? + 1;
    }
    all.then_some((mixed, at))
}

fn low_32(value: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the upper half is zero")]
    let low = value as u32;
    low
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, sample::select};

    use super::*;

    /// An integer as wide as `form` says: fitting or not, signed or not, or no integer at all.
    fn write(value: u64, form: u8, out: &mut Vec<u8>) {
        let bytes = value.to_be_bytes();
        match form {
            0 => out.push(bytes[7] & 0x7f),
            0xcc..=0xcf => {
                out.push(form);
                out.extend(&bytes[8 - (1 << (form - 0xcc))..]);
            }
            0xd0..=0xd3 => {
                out.push(form);
                out.extend(&bytes[8 - (1 << (form - 0xd0))..]);
            }
            marker => out.push(marker),
        }
    }

    fn check(forms: Vec<u8>, mut values: impl FnMut() -> u64, behind: usize) {
        let mut bytes = Vec::new();
        for &form in &forms {
            write(values(), form, &mut bytes);
        }
        bytes.extend(vec![0; behind]);
        let [mut fast, mut plain] = [Reader::new(&bytes); 2];
        let [mut ids, mut expected] = [Vec::new(), Vec::new()];
        let read = read_integers(&mut fast, forms.len(), &mut ids);
        assert_eq!(read, read_each(&mut plain, forms.len(), &mut expected));
        if read.is_some() {
            assert_eq!((fast.at(), ids), (plain.at(), expected));
        }
    }

    proptest! {
        /// Mostly such as token ids are; rarely such as they must not be.
        #[test]
        fn many_at_a_time_is_as_one_by_one(
            forms in prop_oneof![
                prop::collection::vec(select(vec![0, 0xcc, 0xcd, 0xcd, 0xcd, 0xce]), 0..200),
                prop::collection::vec(select(vec![0xcd; 40].into_iter().chain([0xce]).collect::<Vec<_>>()), 0..200),
                prop::collection::vec(select((0xcc..0xd4).collect::<Vec<_>>()), 0..20),
                prop::collection::vec(any::<u8>(), 0..20),
            ],
            values in prop::collection::vec(any::<u64>(), 1..50),
            narrow in 0_u32..60,
            behind in 0_usize..100,
        ) {
            let mut values = values.into_iter().cycle();
            check(forms, || values.next().unwrap() >> narrow, behind);
        }
    }

    #[test]
    fn the_largest_and_the_smallest_of_each_form_are_read() {
        for form in [0, 0xcc, 0xcd, 0xce] {
            for value in [0, u64::MAX] {
                check(vec![form; 24], || value, 100);
            }
        }
    }
}
