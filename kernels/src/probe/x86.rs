//! Probes with AVX2 and AVX-512. One less than a cell, an empty one is the largest number.

use std::arch::x86_64::*;

use super::probe_scalar;

const LANES_512: usize = 8;
const LANES_256: usize = 4;

#[target_feature(enable = "avx512f")]
pub(super) fn probe_avx512(cells: &[u64], least: u64) -> usize {
    // A cell of `least` or more is one less than itself at `least - 1` or more.
    let Some(last_below) = least.checked_sub(1) else {
        return 0;
    };
    let one = _mm512_set1_epi64(1);
    let end = _mm512_set1_epi64(last_below.cast_signed());
    let (lines, rest) = cells.as_chunks::<LANES_512>();
    for (at, line) in lines.iter().enumerate() {
        let ends = _mm512_cmpge_epu64_mask(_mm512_sub_epi64(load_512(line), one), end);
        if ends != 0 {
            return at * LANES_512 + ends.trailing_zeros() as usize;
        }
    }
    lines.len() * LANES_512 + probe_scalar(rest, least)
}

#[target_feature(enable = "avx2")]
pub(super) fn probe_avx2(cells: &[u64], least: u64) -> usize {
    let Some(last_below) = least.checked_sub(1) else {
        return 0;
    };
    // Only signed numbers are compared: the top bit is turned over in both.
    let turned = _mm256_set1_epi64x(i64::MAX);
    let end = _mm256_set1_epi64x((last_below ^ 1 << 63).cast_signed());
    let (lines, rest) = cells.as_chunks::<LANES_256>();
    for (at, line) in lines.iter().enumerate() {
        // Adding 2^63 - 1 is taking one away and turning the top bit over.
        let below = _mm256_cmpgt_epi64(end, _mm256_add_epi64(load_256(line), turned));
        let ends = !_mm256_movemask_pd(_mm256_castsi256_pd(below)).cast_unsigned();
        let first = ends.trailing_zeros() as usize;
        if first < LANES_256 {
            return at * LANES_256 + first;
        }
    }
    lines.len() * LANES_256 + probe_scalar(rest, least)
}

#[target_feature(enable = "avx512f")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_512(cells: &[u64; LANES_512]) -> __m512i {
    // SAFETY: 64 bytes are there, and the load asks for no alignment.
    unsafe { _mm512_loadu_si512(cells.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_256(cells: &[u64; LANES_256]) -> __m256i {
    // SAFETY: 32 bytes are there, and the load asks for no alignment.
    unsafe { _mm256_loadu_si256(cells.as_ptr().cast()) }
}
