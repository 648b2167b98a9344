//! The products with AVX2 and with AVX-512's multiply-add of bytes.
//!
//! A bit stays where it is in its byte and counts 2^bit; the sums of each bit are kept apart until
//! the end and then shifted down, which loses nothing.

use std::arch::x86_64::{
    __m256i, __m512i, _MM_HINT_T0, _mm_cvtsi32_si128, _mm_prefetch, _mm256_add_epi32,
    _mm256_and_si256, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_sra_epi32,
    _mm256_storeu_si256, _mm512_add_epi32, _mm512_and_si512, _mm512_dpbusd_epi32,
    _mm512_loadu_si512, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_setzero_si512,
    _mm512_sra_epi32, _mm512_storeu_si512,
};

use super::{DOT1_LANES, DOT1_WORD, Dot1Words, QUAD};

/// Bits of a byte, and this bit of every byte.
const BITS: usize = 8;
const MASKS: [i8; BITS] = [1, 2, 4, 8, 16, 32, 64, i8::MIN];
/// Half of the vectors that lie side by side.
const HALF: usize = DOT1_LANES / 2;
/// How far ahead memory is asked for, in words of all lanes: the processor itself does not look
/// beyond a page of 4 KiB. Anything from a half to four times this did as well.
const AHEAD: usize = 256;

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn panels_avx512_vnni(
    query: &[i8],
    panels: &[Dot1Words],
    out: &mut [[i32; DOT1_LANES]],
) {
    let query = quads(query);
    for (out, panel) in out.iter_mut().zip(panels.chunks_exact(query.len())) {
        let mut sums = [_mm512_setzero_si512(); BITS];
        for (word, quads) in panel.iter().zip(&query) {
            ask_for(word);
            let bits = load_512(word);
            // Zipped iterators were not inlined, and thirty times slower.
            for bit in 0..BITS {
                let one = _mm512_and_si512(bits, _mm512_set1_epi8(MASKS[bit]));
                sums[bit] = _mm512_dpbusd_epi32(sums[bit], one, _mm512_set1_epi32(quads[bit]));
            }
        }
        let mut total = _mm512_setzero_si512();
        for (bit, sum) in (0..).zip(sums) {
            total = _mm512_add_epi32(total, _mm512_sra_epi32(sum, _mm_cvtsi32_si128(bit)));
        }
        store_512(out, total);
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn panels_avx2(query: &[i8], panels: &[Dot1Words], out: &mut [[i32; DOT1_LANES]]) {
    let query = quads(query);
    for (out, panel) in out.iter_mut().zip(panels.chunks_exact(query.len())) {
        let halves = out.as_chunks_mut::<HALF>().0;
        for (half, out) in halves.iter_mut().enumerate() {
            store_256(out, half_panel_avx2(&query, panel, half));
        }
    }
}

/// A pair of products of a byte, at most 2 * 128 * 128, just fits in what they are added up in.
#[inline]
#[target_feature(enable = "avx2")]
fn half_panel_avx2(query: &[[i32; BITS]], panel: &[Dot1Words], half: usize) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    let mut sums = [_mm256_setzero_si256(); BITS];
    for (word, quads) in panel.iter().zip(query) {
        let bits = load_256(&word.as_chunks::<HALF>().0[half]);
        for bit in 0..BITS {
            let one = _mm256_and_si256(bits, _mm256_set1_epi8(MASKS[bit]));
            let pairs = _mm256_maddubs_epi16(one, _mm256_set1_epi32(quads[bit]));
            sums[bit] = _mm256_add_epi32(sums[bit], _mm256_madd_epi16(pairs, ones));
        }
    }
    let mut total = _mm256_setzero_si256();
    for (bit, sum) in (0..).zip(sums) {
        total = _mm256_add_epi32(total, _mm256_sra_epi32(sum, _mm_cvtsi32_si128(bit)));
    }
    total
}

/// The query's elements that meet each bit of a word's bytes.
fn quads(query: &[i8]) -> Vec<[i32; BITS]> {
    let quad = |quad: &[i8; QUAD]| i32::from_le_bytes(quad.map(i8::cast_unsigned));
    let words = query.as_chunks::<DOT1_WORD>().0.iter();
    words
        .map(|word| {
            let quads = word.as_chunks::<QUAD>().0;
            std::array::from_fn(|bit| quad(&quads[bit]))
        })
        .collect()
}

#[inline]
#[target_feature(enable = "avx512f")]
fn ask_for(word: &Dot1Words) {
    // To ask for memory reads none of it: any address will do.
    let ahead = std::ptr::from_ref(word).wrapping_add(AHEAD);
    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
}

#[inline]
#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_512(from: &Dot1Words) -> __m512i {
    // SAFETY: the array has the 64 bytes that are read; no alignment is asked for.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "a store through a pointer")]
fn store_512(to: &mut [i32; DOT1_LANES], sums: __m512i) {
    // SAFETY: the array has the 64 bytes that are written; no alignment is asked for.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), sums) }
}

#[inline]
#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_256(from: &[u32; HALF]) -> __m256i {
    // SAFETY: the array has the 32 bytes that are read; no alignment is asked for.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "a store through a pointer")]
fn store_256(to: &mut [i32; HALF], sums: __m256i) {
    // SAFETY: the array has the 32 bytes that are written; no alignment is asked for.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), sums) }
}
