//! The products with AVX2 and AVX-512.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_loadu_si128, _mm256_add_epi32, _mm256_add_epi64,
    _mm256_castsi256_si128, _mm256_cvtepi32_epi64, _mm256_cvtepu8_epi16, _mm256_extract_epi64,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_setzero_si256,
    _mm512_add_epi32, _mm512_add_epi64, _mm512_castsi512_si256, _mm512_cvtepi32_epi64,
    _mm512_cvtepu8_epi16, _mm512_dpbusd_epi32, _mm512_extracti64x4_epi64, _mm512_loadu_si512,
    _mm512_madd_epi16, _mm512_reduce_add_epi64, _mm512_setzero_si512,
};

use super::Codes;
use crate::screen::vectors::vectorized;
use crate::screen::{GROUP, WIDTH_MAX};

/// Integers of a group as low + high * 2^[`WORD_BITS`].
pub(super) type Words = [[i16; GROUP]; 2];

/// Integers of a group as digits to the base 256, lowest first.
pub(super) type Bytes = [[i8; GROUP]; 3];

/// A signed low word of 15 bits: so small that a lane of AVX2 (four pairs of products a group) can
/// add those of [`WORD_GROUPS`] groups in i32.
const WORD_BITS: u32 = 15;
const WORD_GROUPS: usize = 64;
const _: () = assert!((255 * 8 * WORD_GROUPS) << (WORD_BITS - 1) < 1 << 31);

// A lane of AVX-512 (four products a group) can add digits over the widest row.
const _: () = assert!(255 * 128 * 4 * (WIDTH_MAX / GROUP) < 1 << 31);

/// One load of codes, and a multiply-add for each digit.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn bytes_avx512_vnni<const R: usize>(rows: [&[Codes]; R], query: &[Bytes]) -> [i64; R] {
    let mut sums = [[_mm512_setzero_si512(); 3]; R];
    let rows = rows.map(|row| &row[..query.len()]);
    for (at, digits) in query.iter().enumerate() {
        let digits = [
            load_512(&digits[0]),
            load_512(&digits[1]),
            load_512(&digits[2]),
        ];
        for row in 0..R {
            let codes = load_512(&rows[row][at]);
            for digit in 0..3 {
                sums[row][digit] = _mm512_dpbusd_epi32(sums[row][digit], codes, digits[digit]);
            }
        }
    }
    let mut products = [0; R];
    for row in 0..R {
        let [low, middle, high] = sums[row];
        products[row] = total_512(low) + (total_512(middle) << 8) + (total_512(high) << 16);
    }
    products
}

/// Codes widened to words, and a multiply-add of pairs for each word of the query.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn words_avx512<const R: usize>(rows: [&[Codes]; R], query: &[Words]) -> [i64; R] {
    const LANES: usize = 32;
    let mut products = [0; R];
    for (tile, query) in query.chunks(WORD_GROUPS).enumerate() {
        let rows = rows.map(|row| &row[tile * WORD_GROUPS..][..query.len()]);
        let mut sums = [[_mm512_setzero_si512(); 2]; R];
        for (at, [low, high]) in query.iter().enumerate() {
            for half in 0..2 {
                let low = load_512(&low.as_chunks::<LANES>().0[half]);
                let high = load_512(&high.as_chunks::<LANES>().0[half]);
                for row in 0..R {
                    let codes = load_256(&rows[row][at].as_chunks::<LANES>().0[half]);
                    let codes = _mm512_cvtepu8_epi16(codes);
                    let [low_sum, high_sum] = &mut sums[row];
                    *low_sum = _mm512_add_epi32(*low_sum, _mm512_madd_epi16(codes, low));
                    *high_sum = _mm512_add_epi32(*high_sum, _mm512_madd_epi16(codes, high));
                }
            }
        }
        for row in 0..R {
            let [low, high] = sums[row];
            products[row] += total_512(low) + (total_512(high) << WORD_BITS);
        }
    }
    products
}

/// As [`words_avx512`], half as wide.
#[target_feature(enable = "avx2")]
pub(super) fn words_avx2<const R: usize>(rows: [&[Codes]; R], query: &[Words]) -> [i64; R] {
    const LANES: usize = 16;
    let mut products = [0; R];
    for (tile, query) in query.chunks(WORD_GROUPS).enumerate() {
        let rows = rows.map(|row| &row[tile * WORD_GROUPS..][..query.len()]);
        let mut sums = [[_mm256_setzero_si256(); 2]; R];
        for (at, [low, high]) in query.iter().enumerate() {
            for quarter in 0..4 {
                let low = load_256(&low.as_chunks::<LANES>().0[quarter]);
                let high = load_256(&high.as_chunks::<LANES>().0[quarter]);
                for row in 0..R {
                    let codes = load_128(&rows[row][at].as_chunks::<LANES>().0[quarter]);
                    let codes = _mm256_cvtepu8_epi16(codes);
                    let [low_sum, high_sum] = &mut sums[row];
                    *low_sum = _mm256_add_epi32(*low_sum, _mm256_madd_epi16(codes, low));
                    *high_sum = _mm256_add_epi32(*high_sum, _mm256_madd_epi16(codes, high));
                }
            }
        }
        for row in 0..R {
            let [low, high] = sums[row];
            products[row] += total_256(low) + (total_256(high) << WORD_BITS);
        }
    }
    products
}

vectorized! {
    /// The integers as words.
    pub(super) fn words(groups: &[[i32; GROUP]]) -> Vec<Words> {
        let mut all = vec![[[0; GROUP]; 2]; groups.len()];
        for (words, integers) in all.iter_mut().zip(groups) {
            for (column, &integer) in integers.iter().enumerate() {
                let low = lowest(integer, WORD_BITS);
                words[0][column] = word(low);
                words[1][column] = word((integer - low) >> WORD_BITS);
            }
        }
        all
    }
}

vectorized! {
    /// The integers as bytes.
    pub(super) fn bytes(groups: &[[i32; GROUP]]) -> Vec<Bytes> {
        let mut all = vec![[[0; GROUP]; 3]; groups.len()];
        for (bytes, integers) in all.iter_mut().zip(groups) {
            for (column, &integer) in integers.iter().enumerate() {
                let low = lowest(integer, u8::BITS);
                let rest = (integer - low) >> u8::BITS;
                let middle = lowest(rest, u8::BITS);
                bytes[0][column] = byte(low);
                bytes[1][column] = byte(middle);
                bytes[2][column] = byte((rest - middle) >> u8::BITS);
            }
        }
        all
    }
}

/// The number's lowest bits as a signed digit.
#[inline(always)]
fn lowest(number: i32, bits: u32) -> i32 {
    let unused = i32::BITS - bits;
    number << unused >> unused
}

#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "a digit of at most 15 bits"
)]
fn word(digit: i32) -> i16 {
    digit as i16
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a digit of at most 8 bits")]
fn byte(digit: i32) -> i8 {
    digit as i8
}

#[target_feature(enable = "avx512f")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_512<T: Number, const LANES: usize>(from: &[T; LANES]) -> __m512i {
    const { assert!(size_of::<[T; LANES]>() == size_of::<__m512i>()) };
    // SAFETY: the array has the 64 bytes that are read; no alignment is asked for.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_256<T: Number, const LANES: usize>(from: &[T; LANES]) -> __m256i {
    const { assert!(size_of::<[T; LANES]>() == size_of::<__m256i>()) };
    // SAFETY: the array has the 32 bytes that are read; no alignment is asked for.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_128<T: Number, const LANES: usize>(from: &[T; LANES]) -> __m128i {
    const { assert!(size_of::<[T; LANES]>() == size_of::<__m128i>()) };
    // SAFETY: the array has the 16 bytes that are read; no alignment is asked for.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// What fills its bytes, so that they may be loaded.
trait Number {}
impl Number for u8 {}
impl Number for i8 {}
impl Number for i16 {}

/// The sum of the i32 lanes.
#[target_feature(enable = "avx512f")]
fn total_512(lanes: __m512i) -> i64 {
    let upper = _mm512_extracti64x4_epi64::<1>(lanes);
    let lower = _mm512_castsi512_si256(lanes);
    _mm512_reduce_add_epi64(_mm512_add_epi64(
        _mm512_cvtepi32_epi64(lower),
        _mm512_cvtepi32_epi64(upper),
    ))
}

/// As [`total_512`].
#[target_feature(enable = "avx2")]
fn total_256(lanes: __m256i) -> i64 {
    let upper = _mm256_extracti128_si256::<1>(lanes);
    let lower = _mm256_castsi256_si128(lanes);
    let sums = _mm256_add_epi64(_mm256_cvtepi32_epi64(lower), _mm256_cvtepi32_epi64(upper));
    _mm256_extract_epi64::<0>(sums)
        + _mm256_extract_epi64::<1>(sums)
        + _mm256_extract_epi64::<2>(sums)
        + _mm256_extract_epi64::<3>(sums)
}
