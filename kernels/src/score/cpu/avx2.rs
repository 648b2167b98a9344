//! AVX2 with F16C and FMA: eight lanes.

use std::arch::x86_64::{
    __m128, __m256, __m256i, _mm_add_ps, _mm_loadu_si128, _mm_storeu_ps, _mm256_add_ps,
    _mm256_castpd_ps, _mm256_castps_pd, _mm256_castps256_ps128, _mm256_cvtph_ps,
    _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_storeu_si256, _mm256_unpackhi_pd, _mm256_unpackhi_ps,
    _mm256_unpacklo_pd, _mm256_unpacklo_ps, _mm256_xor_si256,
};

use half::f16;

pub(super) const LANES: usize = 8;
pub(super) const CHAINS: usize = 2;

type Floats = __m256;
type Words = [__m256i; 2];

super::kernels::kernels! {
    #[target_feature(enable = "avx2,fma,f16c")]
}

#[target_feature(enable = "avx2")]
fn zero() -> Floats {
    _mm256_setzero_ps()
}

#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load(from: &[f32; LANES]) -> Floats {
    // SAFETY: the array has the 32 bytes that are read; no alignment is asked for.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx2,f16c")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_f16(from: &[f16; LANES]) -> Floats {
    // SAFETY: the array has the 16 bytes that are read; no alignment is asked for.
    let halves = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
    _mm256_cvtph_ps(halves)
}

#[target_feature(enable = "avx2,fma")]
fn mul_add(left: Floats, right: Floats, sum: Floats) -> Floats {
    _mm256_fmadd_ps(left, right, sum)
}

#[target_feature(enable = "avx2")]
fn total([first, second]: [Floats; CHAINS]) -> Floats {
    _mm256_add_ps(first, second)
}

/// Four sums over eight lanes each: a transposition that adds on its way.
#[target_feature(enable = "avx2")]
fn lane_sums([a, b, c, d]: [Floats; 4]) -> [f32; 4] {
    let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
    let low = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd));
    let high = _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd));
    // Each half now holds a part of [a, b, c, d].
    let halves = _mm256_add_ps(low, high);
    let upper = _mm256_extractf128_ps::<1>(halves);
    stored(_mm_add_ps(_mm256_castps256_ps128(halves), upper))
}

#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "a store through a pointer")]
fn stored(lanes: __m128) -> [f32; 4] {
    let mut floats = [0.0; 4];
    // SAFETY: the array has the 16 bytes that are written; no alignment is asked for.
    unsafe { _mm_storeu_ps(floats.as_mut_ptr(), lanes) };
    floats
}

#[target_feature(enable = "avx2")]
fn no_words() -> Words {
    [_mm256_setzero_si256(); 2]
}

#[target_feature(enable = "avx2")]
fn load_words(from: &[u8; 64]) -> Words {
    let (halves, _) = from.as_chunks::<32>();
    [load_half(&halves[0]), load_half(&halves[1])]
}

#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_half(from: &[u8; 32]) -> __m256i {
    // SAFETY: the array has the 32 bytes that are read; no alignment is asked for.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
fn xor(left: Words, right: Words) -> Words {
    [
        _mm256_xor_si256(left[0], right[0]),
        _mm256_xor_si256(left[1], right[1]),
    ]
}

#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "a store through a pointer")]
fn fold([left, right]: Words) -> u64 {
    let mut lanes = [0_u64; 4];
    let words = _mm256_xor_si256(left, right);
    // SAFETY: the array has the 32 bytes that are written; no alignment is asked for.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), words) };
    lanes.into_iter().fold(0, |all, word| all ^ word)
}
