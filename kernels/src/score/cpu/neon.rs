//! NEON: two registers make eight lanes.

use std::arch::aarch64::{
    float32x4_t, uint64x2_t, vaddq_f32, vcvt_f32_f16, vdupq_n_f32, vdupq_n_u64, veorq_u64,
    vfmaq_f32, vgetq_lane_u64, vld1_u16, vld1q_f32, vld1q_u8, vpaddq_f32, vreinterpret_f16_u16,
    vreinterpretq_u64_u8, vst1q_f32,
};

use half::f16;

pub(super) const LANES: usize = 8;
pub(super) const CHAINS: usize = 2;

type Floats = [float32x4_t; 2];
type Words = [uint64x2_t; 4];

super::kernels::kernels! {
    #[target_feature(enable = "neon")]
}

#[target_feature(enable = "neon")]
fn zero() -> Floats {
    [vdupq_n_f32(0.0); 2]
}

#[target_feature(enable = "neon")]
fn load(from: &[f32; LANES]) -> Floats {
    let (halves, _) = from.as_chunks::<4>();
    [load_four(&halves[0]), load_four(&halves[1])]
}

#[target_feature(enable = "neon")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_four(from: &[f32; 4]) -> float32x4_t {
    // SAFETY: the array has the 16 bytes that are read; no alignment is asked for.
    unsafe { vld1q_f32(from.as_ptr()) }
}

#[target_feature(enable = "neon")]
fn load_f16(from: &[f16; LANES]) -> Floats {
    let (halves, _) = from.as_chunks::<4>();
    [load_four_f16(&halves[0]), load_four_f16(&halves[1])]
}

#[target_feature(enable = "neon")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_four_f16(from: &[f16; 4]) -> float32x4_t {
    // SAFETY: the array has the 8 bytes that are read; no alignment is asked for.
    let bits = unsafe { vld1_u16(from.as_ptr().cast()) };
    vcvt_f32_f16(vreinterpret_f16_u16(bits))
}

#[target_feature(enable = "neon")]
fn mul_add(left: Floats, right: Floats, sum: Floats) -> Floats {
    [
        vfmaq_f32(sum[0], left[0], right[0]),
        vfmaq_f32(sum[1], left[1], right[1]),
    ]
}

#[target_feature(enable = "neon")]
fn total([first, second]: [Floats; CHAINS]) -> Floats {
    [
        vaddq_f32(first[0], second[0]),
        vaddq_f32(first[1], second[1]),
    ]
}

/// Four sums over eight lanes each.
#[target_feature(enable = "neon")]
fn lane_sums([a, b, c, d]: [Floats; 4]) -> [f32; 4] {
    let ab = vpaddq_f32(vaddq_f32(a[0], a[1]), vaddq_f32(b[0], b[1]));
    let cd = vpaddq_f32(vaddq_f32(c[0], c[1]), vaddq_f32(d[0], d[1]));
    stored(vpaddq_f32(ab, cd))
}

#[target_feature(enable = "neon")]
#[expect(unsafe_code, reason = "a store through a pointer")]
fn stored(lanes: float32x4_t) -> [f32; 4] {
    let mut floats = [0.0; 4];
    // SAFETY: the array has the 16 bytes that are written; no alignment is asked for.
    unsafe { vst1q_f32(floats.as_mut_ptr(), lanes) };
    floats
}

#[target_feature(enable = "neon")]
fn no_words() -> Words {
    [vdupq_n_u64(0); 4]
}

#[target_feature(enable = "neon")]
fn load_words(from: &[u8; 64]) -> Words {
    let (quarters, _) = from.as_chunks::<16>();
    let mut words = no_words();
    for (word, quarter) in words.iter_mut().zip(quarters) {
        *word = load_quarter(quarter);
    }
    words
}

#[target_feature(enable = "neon")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_quarter(from: &[u8; 16]) -> uint64x2_t {
    // SAFETY: the array has the 16 bytes that are read; no alignment is asked for.
    vreinterpretq_u64_u8(unsafe { vld1q_u8(from.as_ptr()) })
}

#[target_feature(enable = "neon")]
fn xor(left: Words, right: Words) -> Words {
    let mut words = left;
    for (word, right) in words.iter_mut().zip(right) {
        *word = veorq_u64(*word, right);
    }
    words
}

#[target_feature(enable = "neon")]
fn fold([a, b, c, d]: Words) -> u64 {
    let words = veorq_u64(veorq_u64(a, b), veorq_u64(c, d));
    vgetq_lane_u64::<0>(words) ^ vgetq_lane_u64::<1>(words)
}
