//! The products with AVX2 and with AVX-512's multiply-add of bytes.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_add_epi32, _mm_cvtsi128_si32, _mm_loadu_si128,
    _mm_shuffle_epi32, _mm256_add_epi32, _mm256_castsi256_si128, _mm256_cvtepi8_epi16,
    _mm256_extracti128_si256, _mm256_madd_epi16, _mm256_setzero_si256, _mm512_dpbusd_epi32,
    _mm512_loadu_si512, _mm512_reduce_add_epi32, _mm512_set1_epi8, _mm512_setzero_si512,
    _mm512_sub_epi32, _mm512_xor_si512,
};

use super::dot8_scalar;

/// Bytes that AVX-512 multiplies at a time.
const WIDE: usize = 64;
/// Bytes that AVX2 multiplies at a time.
const NARROW: usize = 16;

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn rows_avx512_vnni(query: &[i8], rows: &[i8], out: &mut [i32]) {
    for (out, row) in out.iter_mut().zip(rows.chunks_exact(query.len())) {
        *out = dot_avx512_vnni(query, row);
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn rows_avx2(query: &[i8], rows: &[i8], out: &mut [i32]) {
    for (out, row) in out.iter_mut().zip(rows.chunks_exact(query.len())) {
        *out = dot_avx2(query, row);
    }
}

/// The instruction multiplies unsigned with signed bytes: so `a + 128` with `b`, less 128 times
/// `b`. Either sum may wrap; their difference is right all the same.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn dot_avx512_vnni(a: &[i8], b: &[i8]) -> i32 {
    let high = _mm512_set1_epi8(-128);
    let (mut sum, mut excess) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    let (a, a_rest) = a.as_chunks::<WIDE>();
    let (b, b_rest) = b.as_chunks::<WIDE>();
    for (a, b) in a.iter().zip(b) {
        let b = load_512(b);
        sum = _mm512_dpbusd_epi32(sum, _mm512_xor_si512(load_512(a), high), b);
        excess = _mm512_dpbusd_epi32(excess, high, b);
    }
    let whole = _mm512_reduce_add_epi32(_mm512_sub_epi32(sum, excess));
    whole + dot8_scalar(a_rest, b_rest)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn dot_avx2(a: &[i8], b: &[i8]) -> i32 {
    let mut sum = _mm256_setzero_si256();
    let (a, a_rest) = a.as_chunks::<NARROW>();
    let (b, b_rest) = b.as_chunks::<NARROW>();
    for (a, b) in a.iter().zip(b) {
        let a = _mm256_cvtepi8_epi16(load_128(a));
        let b = _mm256_cvtepi8_epi16(load_128(b));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    }
    total_256(sum) + dot8_scalar(a_rest, b_rest)
}

#[inline]
#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_512(from: &[i8; WIDE]) -> __m512i {
    // SAFETY: the array has the 64 bytes that are read; no alignment is asked for.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_128(from: &[i8; NARROW]) -> __m128i {
    // SAFETY: the array has the 16 bytes that are read; no alignment is asked for.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// The sum of the i32 lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn total_256(lanes: __m256i) -> i32 {
    let upper = _mm256_extracti128_si256::<1>(lanes);
    let four = _mm_add_epi32(_mm256_castsi256_si128(lanes), upper);
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    let one = _mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
    _mm_cvtsi128_si32(one)
}
