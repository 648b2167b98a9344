//! The sums with AVX2 and AVX-512: what the set bits add up to, twice, less the sum of all weights.

use std::arch::x86_64::*;

use super::{BLOCK, SIGNS_LANES, Signed};

/// Numbers in a register, and registers for the bits of a word.
const LANES_512: usize = 32;
const PARTS_512: usize = SIGNS_LANES / LANES_512;
const LANES_256: usize = 16;
const PARTS_256: usize = SIGNS_LANES / LANES_256;
/// The bit of each number.
const OWN_BIT: [u16; LANES_256] = {
    let mut bits = [1; LANES_256];
    let mut lane = 1;
    while lane < LANES_256 {
        bits[lane] = bits[lane - 1] << 1;
        lane += 1;
    }
    bits
};

#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn add_signed_avx512<const WORDS: usize>(
    terms: &[Signed<WORDS>],
    sums: &mut [[i32; SIGNS_LANES]; WORDS],
) {
    for block in terms.chunks(BLOCK) {
        let mut set = [[_mm512_setzero_si512(); PARTS_512]; WORDS];
        for (words, weight) in block {
            let weight = _mm512_set1_epi16(i16::from(*weight));
            for word in 0..WORDS {
                let masks: [__mmask32; PARTS_512] = bytemuck::cast(words[word]);
                for (sum, mask) in set[word].iter_mut().zip(masks) {
                    *sum = _mm512_mask_add_epi16(*sum, mask, *sum, weight);
                }
            }
        }
        let mut stored = [[[0; LANES_512]; PARTS_512]; WORDS];
        for word in 0..WORDS {
            for part in 0..PARTS_512 {
                store_512(&mut stored[word][part], set[word][part]);
            }
        }
        settle(block, stored.as_flattened().as_flattened(), sums);
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn add_signed_avx2<const WORDS: usize>(
    terms: &[Signed<WORDS>],
    sums: &mut [[i32; SIGNS_LANES]; WORDS],
) {
    let own_bit = load_256(&OWN_BIT);
    for block in terms.chunks(BLOCK) {
        let mut set = [[_mm256_setzero_si256(); PARTS_256]; WORDS];
        for (words, weight) in block {
            let weight = _mm256_set1_epi16(i16::from(*weight));
            for word in 0..WORDS {
                let parts: [i16; PARTS_256] = bytemuck::cast(words[word]);
                for (sum, bits) in set[word].iter_mut().zip(parts) {
                    let own = _mm256_and_si256(_mm256_set1_epi16(bits), own_bit);
                    let is_set = _mm256_cmpeq_epi16(own, own_bit);
                    *sum = _mm256_add_epi16(*sum, _mm256_and_si256(is_set, weight));
                }
            }
        }
        let mut stored = [[[0; LANES_256]; PARTS_256]; WORDS];
        for word in 0..WORDS {
            for part in 0..PARTS_256 {
                store_256(&mut stored[word][part], set[word][part]);
            }
        }
        settle(block, stored.as_flattened().as_flattened(), sums);
    }
}

/// Adds a block's sums over set bits.
fn settle<const WORDS: usize>(
    block: &[Signed<WORDS>],
    set: &[i16],
    sums: &mut [[i32; SIGNS_LANES]; WORDS],
) {
    let total: i32 = block.iter().map(|(_, weight)| i32::from(*weight)).sum();
    for (sum, &set) in sums.as_flattened_mut().iter_mut().zip(set) {
        *sum += 2 * i32::from(set) - total;
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
#[expect(unsafe_code, reason = "a store through a pointer")]
fn store_512(out: &mut [i16; LANES_512], numbers: __m512i) {
    // SAFETY: 64 bytes are there, and the store asks for no alignment.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), numbers) };
}

#[target_feature(enable = "avx2")]
#[inline]
#[expect(unsafe_code, reason = "a store through a pointer")]
fn store_256(out: &mut [i16; LANES_256], numbers: __m256i) {
    // SAFETY: 32 bytes are there, and the store asks for no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), numbers) };
}

#[target_feature(enable = "avx2")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_256(numbers: &[u16; LANES_256]) -> __m256i {
    // SAFETY: 32 bytes are there, and the load asks for no alignment.
    unsafe { _mm256_loadu_si256(numbers.as_ptr().cast()) }
}
