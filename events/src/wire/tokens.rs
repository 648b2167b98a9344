//! Reads token ids: lists of integers many at a time, pairs one by one.
//!
//! This is where a payload's bytes are. Read one after the other, each id waits for the length of
//! the one before, or for a branch on it that mixed lengths make hard to predict. Where the
//! processor can, sixteen are found at once (`avx512.rs`); elsewhere, ids between 256 and 65,535
//! come in runs, and eight in a run are told by one comparison, while of mixed ones the length is
//! worked out of the first byte without a branch.

#[cfg(target_arch = "x86_64")]
use super::avx512;
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
    let mut ids = vec![0; count];
    let mut first = *reader;
    let pairs = count > 0 && matches!(first.head(), Ok(Head::Array(_)));
    let bigram_end = if pairs {
        read_pairs(reader, &mut ids)?
    } else {
        read_integers(reader, &mut ids)?;
        None
    };
    Some(Tokens { ids, bigram_end })
}

/// What the last block's hash covers beyond its tokens. Of the other blocks it is the tokens of
/// the block that follows.
pub(super) fn read_lookahead(reader: &mut Reader<'_>) -> Option<Vec<u32>> {
    let blocks = reader.list().filter(|&count| count <= EVENT_TOKENS_MAX)?;
    let mut last = Vec::new();
    for _ in 0..blocks {
        let count = reader.optional(Reader::list)?.unwrap_or(0);
        if count > EVENT_TOKENS_MAX {
            return None;
        }
        last.resize(count, 0);
        read_integers(reader, &mut last)?;
    }
    Some(last)
}

/// Each pair begins with what the one before ended with, or they are no text.
fn read_pairs(reader: &mut Reader<'_>, ids: &mut [u32]) -> Option<Option<u32>> {
    let mut end = None;
    for id in ids {
        if reader.list()? != 2 {
            return None;
        }
        let first = reader.unsigned()?;
        if end.is_some_and(|end| end != first) {
            return None;
        }
        *id = first;
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

fn read_integers(reader: &mut Reader<'_>, ids: &mut [u32]) -> Option<()> {
    let mut left = ids;
    while !left.is_empty() {
        let (read, bytes) = read_wide(reader.rest(), left);
        reader.advance(bytes);
        left = left.get_mut(read..)?;
        let some = left.len().min(RUN);
        let (next, behind) = left.split_at_mut(some);
        read_each(reader, next)?;
        left = behind;
    }
    Some(())
}

#[cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "only a check at run time tells what the processor has"
    )
)]
fn read_wide(bytes: &[u8], ids: &mut [u32]) -> (usize, usize) {
    #[cfg(target_arch = "x86_64")]
    if avx512::is_supported() {
        // SAFETY: the processor has the instructions.
        return unsafe { avx512::read(bytes, ids) };
    }
    read_portable(bytes, ids)
}

/// What a processor without wide permutations does instead, by the same contract.
fn read_portable(bytes: &[u8], ids: &mut [u32]) -> (usize, usize) {
    let (mut read, mut at) = (0, 0);
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let slot = ids.get_mut(read..).and_then(|ids| ids.first_chunk_mut());
        let Some(slot) = slot else { return (read, at) };
        if let Some(run) = rest.first_chunk().and_then(read_run) {
            *slot = run;
            at += RUN_BYTES;
        } else if let Some((mixed, bytes)) = rest.first_chunk().and_then(read_mixed) {
            *slot = mixed;
            at += bytes;
        } else {
            return (read, at);
        }
        read += RUN;
    }
}

/// The plain way, which the others agree with in all that they read.
fn read_each(reader: &mut Reader<'_>, ids: &mut [u32]) -> Option<()> {
    for id in ids {
        *id = reader.unsigned()?;
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
        // The next id waits for this byte and three cheap operations on it, no more.
        let marker = *bytes.get(at)?;
        // 0 for a value that is its own marker, else 1: the markers 0xcc to 0xce stand before
        // 1, 2 or 4 bytes.
        let marked = marker >> 7;
        let behind = u32::from(marked) << (marker & 3);
        let word = u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?);
        all &= marker < 0x80 || marker.wrapping_sub(0xcc) < 3;
        let bits = 8 * (behind + u32::from(1 - marked));
        *id = low_32((word << (8 * marked)).wrapping_shr(64 - bits));
        at += behind as usize + 1;
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

    /// Each way reads what the plain one reads, to the same byte, or stops before what it leaves
    /// to it.
    fn check(forms: &[u8], mut values: impl FnMut() -> u64, behind: usize) {
        let mut bytes = Vec::new();
        for &form in forms {
            write(values(), form, &mut bytes);
        }
        bytes.extend(vec![0xc1; behind]);
        let [mut all, mut plain] = [Reader::new(&bytes); 2];
        let [mut ids, mut expected] = [vec![0; forms.len()], vec![0; forms.len()]];
        let read = read_integers(&mut all, &mut ids);
        assert_eq!(read, read_each(&mut plain, &mut expected));
        if read.is_some() {
            assert_eq!((all.at(), ids), (plain.at(), expected));
        }
        for way in [read_wide, read_portable] {
            let mut ids = vec![0; forms.len()];
            let (read, at) = way(&bytes, &mut ids);
            let mut expected = vec![0; read];
            let mut plain = Reader::new(&bytes);
            assert_eq!(read_each(&mut plain, &mut expected), Some(()));
            assert_eq!((at, &ids[..read]), (plain.at(), &expected[..]));
            // Nothing is left to the plain way that need not be.
            let fit = forms.iter().all(|form| matches!(form, 0 | 0xcc..=0xce));
            if fit && behind >= MIXED_BYTES {
                assert!(read + 16 > forms.len(), "{read} of {}", forms.len());
            }
        }
    }

    proptest! {
        #[test]
        fn every_way_is_as_one_by_one(
            forms in forms(),
            values in prop::collection::vec(any::<u64>(), 1..50),
            narrow in 0_u32..60,
            behind in 0_usize..100,
        ) {
            let mut values = values.into_iter().cycle();
            check(&forms, || values.next().unwrap() >> narrow, behind);
        }
    }

    /// Mostly as token ids are: mixed, and in runs; rarely as they must not be.
    fn forms() -> impl Strategy<Value = Vec<u8>> {
        let mut run = vec![0xcd; 40];
        run.push(0xce);
        let mut rare = run.clone();
        rare.extend([0xcf, 0xd1, 0xff, 0xc0]);
        prop_oneof![
            prop::collection::vec(select(vec![0, 0xcc, 0xcd, 0xcd, 0xcd, 0xce]), 0..200),
            prop::collection::vec(select(vec![0, 0xcc]), 0..200),
            prop::collection::vec(select(vec![0, 0xcd, 0xce, 0xce]), 0..200),
            prop::collection::vec(select(run), 0..200),
            prop::collection::vec(select(rare), 0..100),
            prop::collection::vec(select((0xcc..0xd4).collect::<Vec<_>>()), 0..20),
            prop::collection::vec(any::<u8>(), 0..20),
        ]
    }

    #[test]
    fn the_largest_and_the_smallest_of_each_form_are_read() {
        for form in [0, 0xcc, 0xcd, 0xce] {
            for value in [0, u64::MAX] {
                check(&[form; 40], || value, 100);
            }
        }
    }
}
