//! Reads token ids twelve or sixteen at a time, whatever mixture of widths they have, where the
//! processor permutes bytes among 64 (AVX-512 VBMI: Ice Lake, Zen 4 and later).
//!
//! For each of 64 bytes it works out where a value that began there would end. Following these
//! steps from the first byte on would be one step after the other again; but steps of two, four
//! and eight values come out of permuting the table of steps by itself, and with those the
//! beginnings of sixteen values are known after four permutations.

use std::arch::x86_64::*;

/// The ids that a round writes, of which some may be rubbish.
const ROUND_IDS: usize = 16;
/// The ids that a round reads at least: their five bytes each are surely within its bytes.
const ROUND_IDS_MIN: usize = 12;
const ROUND_BYTES: usize = 64;
/// The step of what would end behind the bytes of a round; it leads to itself.
const BEYOND: i8 = 63;
/// The place of each byte.
const PLACES: [u8; ROUND_BYTES] = {
    let mut places = [0; ROUND_BYTES];
    let mut place = 0;
    while (place as usize) < ROUND_BYTES {
        places[place as usize] = place;
        place += 1;
    }
    places
};

pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
}

/// Reads ids into the beginning of `ids` and returns how many they are and how many bytes they
/// take: not all of them, since the last ones have too few bytes behind them, and none from an
/// integer on that is negative or wider than four bytes, or is no integer.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn read(bytes: &[u8], ids: &mut [u32]) -> (usize, usize) {
    let (mut read, mut at) = (0, 0);
    loop {
        let round = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        let slot = ids.get_mut(read..).and_then(|ids| ids.first_chunk_mut());
        let (Some(round), Some(slot)) = (round, slot) else {
            return (read, at);
        };
        let (round_ids, round_bytes) = read_round(round, slot);
        if round_ids == 0 {
            return (read, at);
        }
        read += round_ids;
        at += round_bytes;
    }
}

/// How many ids stand at the beginning, and the bytes they take; none where one of them does not
/// fit.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
#[inline]
fn read_round(bytes: &[u8; ROUND_BYTES], ids: &mut [u32; ROUND_IDS]) -> (usize, usize) {
    let bytes = load(bytes);
    // 0xcc, 0xcd, 0xce: 2, 3, 5 bytes. Everything else counts as one byte for now.
    let class = _mm512_min_epu8(
        _mm512_sub_epi8(bytes, _mm512_set1_epi8(-0x34)),
        _mm512_set1_epi8(3),
    );
    let lengths = _mm512_shuffle_epi8(_mm512_set1_epi32(0x01_05_03_02), class);
    let one = _mm512_min_epu8(
        _mm512_add_epi8(load(&PLACES), lengths),
        _mm512_set1_epi8(BEYOND),
    );
    let two = _mm512_permutexvar_epi8(one, one);
    let four = _mm512_permutexvar_epi8(two, two);
    let eight = _mm512_permutexvar_epi8(four, four);
    let end_of = |steps| _mm_cvtsi128_si32(_mm512_castsi512_si128(steps)) & 0xff;
    let end_min = end_of(_mm512_permutexvar_epi8(four, eight));
    let end_max = end_of(_mm512_permutexvar_epi8(eight, eight));

    // Four lanes for each id. The steps to its beginning are the bits of its place.
    let none = _mm512_setzero_si512();
    let begin = _mm512_maskz_permutexvar_epi8(0xf0f0_f0f0_f0f0_f0f0, none, one);
    let begin = _mm512_mask_permutexvar_epi8(begin, 0xff00_ff00_ff00_ff00, begin, two);
    let begin = _mm512_mask_permutexvar_epi8(begin, 0xffff_0000_ffff_0000, begin, four);
    let begin = _mm512_mask_permutexvar_epi8(begin, 0xffff_ffff_0000_0000, begin, eight);
    let end = _mm512_permutexvar_epi8(begin, one);
    let length = _mm512_sub_epi8(end, begin);
    // The last byte of each is the lowest of its id; the second lowest is there from three bytes
    // of length on, and the two upper ones at five.
    let from = _mm512_sub_epi8(end, _mm512_set1_epi32(0x04_03_02_01));
    let there = _mm512_cmpgt_epi8_mask(length, _mm512_set1_epi32(0x03_03_02_00));
    let values = _mm512_maskz_permutexvar_epi8(there, from, bytes);
    store(values, ids);

    let (round_ids, end) = if end_max < i32::from(BEYOND) {
        (ROUND_IDS, end_max)
    } else {
        (ROUND_IDS_MIN, end_min)
    };
    // What is one byte long must be below 0x80.
    let single = _mm512_cmpeq_epi8_mask(length, _mm512_set1_epi8(1));
    let unfit = single & _mm512_movepi8_mask(values) & (u64::MAX >> (64 - 4 * round_ids));
    if unfit != 0 {
        return (0, 0);
    }
    (round_ids, usize::try_from(end).unwrap_or(0))
}

#[target_feature(enable = "avx512f")]
#[inline]
#[expect(unsafe_code, reason = "there is no safe load")]
fn load(bytes: &[u8; ROUND_BYTES]) -> __m512i {
    // SAFETY: the reference is to as many bytes as are read, and any alignment will do.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
#[expect(unsafe_code, reason = "there is no safe store")]
fn store(values: __m512i, ids: &mut [u32; ROUND_IDS]) {
    // SAFETY: the reference is to as many bytes as are written, and any alignment will do.
    unsafe { _mm512_storeu_si512(ids.as_mut_ptr().cast(), values) }
}
