//! AVX-512: sixteen lanes.

use std::arch::x86_64::{
    __m128, __m256, __m512, __m512i, _mm_add_ps, _mm_storeu_ps, _mm256_add_ps, _mm256_castpd_ps,
    _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_loadu_si256, _mm512_add_ps,
    _mm512_castpd_ps, _mm512_castps_pd, _mm512_castps512_ps256, _mm512_cvtph_ps,
    _mm512_extractf64x4_pd, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_si512, _mm512_unpackhi_pd,
    _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps, _mm512_xor_si512,
};

use half::f16;

pub(super) const LANES: usize = 16;
pub(super) const CHAINS: usize = 2;

type Floats = __m512;
type Words = __m512i;

super::kernels::kernels! {
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
}

#[target_feature(enable = "avx512f")]
fn zero() -> Floats {
    _mm512_setzero_ps()
}

#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load(from: &[f32; LANES]) -> Floats {
    // SAFETY: the array has the 64 bytes that are read; no alignment is asked for.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_f16(from: &[f16; LANES]) -> Floats {
    // SAFETY: the array has the 32 bytes that are read; no alignment is asked for.
    let halves = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
    _mm512_cvtph_ps(halves)
}

#[target_feature(enable = "avx512f")]
fn mul_add(left: Floats, right: Floats, sum: Floats) -> Floats {
    _mm512_fmadd_ps(left, right, sum)
}

#[target_feature(enable = "avx512f")]
fn total([first, second]: [Floats; CHAINS]) -> Floats {
    _mm512_add_ps(first, second)
}

/// Four sums over sixteen lanes each: a transposition that adds on its way.
#[target_feature(enable = "avx512f")]
fn lane_sums([a, b, c, d]: [Floats; 4]) -> [f32; 4] {
    let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
    let high = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
    // Each quarter now holds a part of [a, b, c, d].
    let quarters = _mm512_add_ps(low, high);
    let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(quarters)));
    let halves: __m256 = _mm256_add_ps(_mm512_castps512_ps256(quarters), upper);
    let upper = _mm256_extractf128_ps::<1>(halves);
    stored(_mm_add_ps(_mm256_castps256_ps128(halves), upper))
}

#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "a store through a pointer")]
fn stored(lanes: __m128) -> [f32; 4] {
    let mut floats = [0.0; 4];
    // SAFETY: the array has the 16 bytes that are written; no alignment is asked for.
    unsafe { _mm_storeu_ps(floats.as_mut_ptr(), lanes) };
    floats
}

#[target_feature(enable = "avx512f")]
fn no_words() -> Words {
    _mm512_setzero_si512()
}

#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_words(from: &[u8; 64]) -> Words {
    // SAFETY: the array has the 64 bytes that are read; no alignment is asked for.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn xor(left: Words, right: Words) -> Words {
    _mm512_xor_si512(left, right)
}

#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "a store through a pointer")]
fn fold(words: Words) -> u64 {
    let mut lanes = [0_u64; 8];
    // SAFETY: the array has the 64 bytes that are written; no alignment is asked for.
    unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), words) };
    lanes.into_iter().fold(0, |all, word| all ^ word)
}
