//! The passes with AVX2 and AVX-512.

use std::arch::x86_64::*;

use super::{
    unpack::{GROUP, PADDING_BYTES, check},
    windows,
};

/// Widths that AVX2 unpacks: four numbers of fewer bits would need bytes past the padding, and one
/// of more bits, with the bits before it in its byte, more than 32.
const WIDTHS: std::ops::RangeInclusive<usize> = 15..=25;

/// False, with nothing done, on a processor without the instructions.
#[expect(unsafe_code, reason = "instructions that not every processor has")]
pub(super) fn window_hashes(
    tokens: &[u32],
    sample_bits: u32,
    short_hashes: &mut Vec<u32>,
    sample: &mut Vec<u32>,
) -> bool {
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("bmi1")
    {
        // SAFETY: the processor has what was just asked for.
        unsafe { window_hashes_avx512(tokens, sample_bits, short_hashes, sample) };
        true
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") {
        // SAFETY: the processor has what was just asked for.
        unsafe { window_hashes_avx2(tokens, sample_bits, short_hashes, sample) };
        true
    } else {
        false
    }
}

/// False, with nothing done, on a processor without the instructions.
#[expect(unsafe_code, reason = "instructions that not every processor has")]
pub(super) fn pick(hashes: &[u32], sample_bits: u32, sample: &mut Vec<u32>) -> bool {
    let can = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1");
    if can {
        // SAFETY: the processor has what was just asked for.
        unsafe { pick_avx2(hashes, sample_bits, sample) };
    }
    can
}

/// False, with nothing done, on a processor without the instructions, or for another width.
#[expect(unsafe_code, reason = "instructions that not every processor has")]
pub(super) fn unpack(bytes: &[u8], width: usize, out: &mut [u32]) -> bool {
    let can = WIDTHS.contains(&width) && is_x86_feature_detected!("avx2");
    if can {
        // SAFETY: the processor has AVX2.
        unsafe { unpack_avx2(bytes, width, out) };
    }
    can
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,bmi1")]
pub(super) fn window_hashes_avx512(
    tokens: &[u32],
    sample_bits: u32,
    short_hashes: &mut Vec<u32>,
    sample: &mut Vec<u32>,
) {
    windows::in_blocks(tokens, sample_bits, short_hashes, sample);
}

#[target_feature(enable = "avx2,bmi1")]
pub(super) fn window_hashes_avx2(
    tokens: &[u32],
    sample_bits: u32,
    short_hashes: &mut Vec<u32>,
    sample: &mut Vec<u32>,
) {
    windows::in_blocks(tokens, sample_bits, short_hashes, sample);
}

#[target_feature(enable = "avx2,bmi1")]
fn pick_avx2(hashes: &[u32], sample_bits: u32, sample: &mut Vec<u32>) {
    windows::pick(hashes, 0, sample_bits, sample);
}

/// Four numbers come from the bytes at a group's start, four from those at its middle; a shuffle
/// takes each number's bytes to a lane, and a shift drops the bits before it.
#[target_feature(enable = "avx2")]
fn unpack_avx2(bytes: &[u8], width: usize, out: &mut [u32]) {
    check(bytes, width, out);
    let middle = GROUP / 2 * width / 8;
    let (mut from, mut shifts) = ([0; 32], [0_u32; GROUP]);
    for (i, shift) in shifts.iter_mut().enumerate() {
        let half_start = if i < GROUP / 2 { 0 } else { middle };
        let bit = i * width;
        let byte = bit / 8 - half_start;
        for at in 0..4 {
            from[i * 4 + at] = u8::try_from(byte + at).expect("four numbers span 16 bytes");
        }
        *shift = u32::try_from(bit % 8).expect("bits of a byte");
    }
    let from = load(&from);
    let shifts = load(bytemuck::cast_ref(&shifts));
    let mask = _mm256_set1_epi32((u32::MAX >> (32 - width)).cast_signed());
    let (groups, _) = out.as_chunks_mut::<GROUP>();
    for (i, group) in groups.iter_mut().enumerate() {
        let source = &bytes[i * width..][..width + PADDING_BYTES];
        let (Some(low), Some(high)) = (source.first_chunk(), source[middle..].first_chunk()) else {
            unreachable!("widths are such that both halves have 16 bytes");
        };
        let halves = _mm256_set_m128i(load_half(high), load_half(low));
        let numbers = _mm256_srlv_epi32(_mm256_shuffle_epi8(halves, from), shifts);
        store(group, _mm256_and_si256(numbers, mask));
    }
}

#[target_feature(enable = "avx2")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 bytes are there, and the load asks for no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_half(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes are there, and the load asks for no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
#[expect(unsafe_code, reason = "a store through a pointer")]
fn store(out: &mut [u32; GROUP], numbers: __m256i) {
    // SAFETY: 32 bytes are there, and the store asks for no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), numbers) };
}
