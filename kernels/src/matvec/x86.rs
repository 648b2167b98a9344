//! Products in AVX2 and AVX-512: lanes of sums for each row and vector, then what is left at the end
//! of a row, element by element.

use std::arch::x86_64::*;

use super::{Dots, Element};

#[derive(Clone, Copy)]
pub(super) struct Avx2;
#[derive(Clone, Copy)]
pub(super) struct Avx512;

impl Dots for Avx2 {
    #[expect(unsafe_code, reason = "instructions that not every processor has")]
    fn dots<const R: usize, const V: usize>(
        self,
        element: Element,
        rows: [&[u8]; R],
        vectors: [&[f32]; V],
    ) -> [[f32; V]; R] {
        // SAFETY: `level` has found AVX2, FMA and F16C.
        unsafe { avx2(element, rows, vectors) }
    }
}

impl Dots for Avx512 {
    #[expect(unsafe_code, reason = "instructions that not every processor has")]
    fn dots<const R: usize, const V: usize>(
        self,
        element: Element,
        rows: [&[u8]; R],
        vectors: [&[f32]; V],
    ) -> [[f32; V]; R] {
        // SAFETY: `level` has found AVX-512F.
        unsafe { avx512(element, rows, vectors) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn avx2<const R: usize, const V: usize>(
    element: Element,
    rows: [&[u8]; R],
    vectors: [&[f32]; V],
) -> [[f32; V]; R] {
    match element {
        Element::F32 => avx2_sums(element, rows, vectors, |bytes: &[u8; 32]| {
            _mm256_castsi256_ps(load_256(bytes))
        }),
        Element::F16 => avx2_sums(element, rows, vectors, |bytes: &[u8; 16]| {
            _mm256_cvtph_ps(load_128(bytes))
        }),
        Element::Bf16 => avx2_sums(element, rows, vectors, |bytes: &[u8; 16]| {
            let wide = _mm256_cvtepu16_epi32(load_128(bytes));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }),
    }
}

#[target_feature(enable = "avx512f")]
fn avx512<const R: usize, const V: usize>(
    element: Element,
    rows: [&[u8]; R],
    vectors: [&[f32]; V],
) -> [[f32; V]; R] {
    match element {
        Element::F32 => avx512_sums(element, rows, vectors, |bytes: &[u8; 64]| {
            _mm512_castsi512_ps(load_512(bytes))
        }),
        Element::F16 => avx512_sums(element, rows, vectors, |bytes: &[u8; 32]| {
            _mm512_cvtph_ps(load_256(bytes))
        }),
        Element::Bf16 => avx512_sums(element, rows, vectors, |bytes: &[u8; 32]| {
            let wide = _mm512_cvtepu16_epi32(load_256(bytes));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn avx2_sums<const R: usize, const V: usize, const BYTES: usize>(
    element: Element,
    rows: [&[u8]; R],
    vectors: [&[f32]; V],
    widen: impl Fn(&[u8; BYTES]) -> __m256,
) -> [[f32; V]; R] {
    let blocks = vectors[0].len() / 8;
    let row_blocks = rows.map(|row| &row.as_chunks::<BYTES>().0[..blocks]);
    let vector_blocks = vectors.map(|vector| &vector.as_chunks::<8>().0[..blocks]);
    let mut sums = [[_mm256_setzero_ps(); V]; R];
    for block in 0..blocks {
        let parts: [__m256; V] = std::array::from_fn(|v| load_8(&vector_blocks[v][block]));
        for r in 0..R {
            let row = widen(&row_blocks[r][block]);
            for v in 0..V {
                sums[r][v] = _mm256_fmadd_ps(row, parts[v], sums[r][v]);
            }
        }
    }
    std::array::from_fn(|r| {
        std::array::from_fn(|v| {
            let sum = lanes_8(sums[r][v]).iter().sum();
            with_rest(sum, element, rows[r], &vectors[v][blocks * 8..])
        })
    })
}

#[target_feature(enable = "avx512f")]
#[inline]
fn avx512_sums<const R: usize, const V: usize, const BYTES: usize>(
    element: Element,
    rows: [&[u8]; R],
    vectors: [&[f32]; V],
    widen: impl Fn(&[u8; BYTES]) -> __m512,
) -> [[f32; V]; R] {
    let blocks = vectors[0].len() / 16;
    let row_blocks = rows.map(|row| &row.as_chunks::<BYTES>().0[..blocks]);
    let vector_blocks = vectors.map(|vector| &vector.as_chunks::<16>().0[..blocks]);
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    for block in 0..blocks {
        let parts: [__m512; V] = std::array::from_fn(|v| load_16(&vector_blocks[v][block]));
        for r in 0..R {
            let row = widen(&row_blocks[r][block]);
            for v in 0..V {
                sums[r][v] = _mm512_fmadd_ps(row, parts[v], sums[r][v]);
            }
        }
    }
    std::array::from_fn(|r| {
        std::array::from_fn(|v| {
            let sum = _mm512_reduce_add_ps(sums[r][v]);
            with_rest(sum, element, rows[r], &vectors[v][blocks * 16..])
        })
    })
}

/// Adds what no whole block holds: the products with the row's last elements.
fn with_rest(sum: f32, element: Element, row: &[u8], rest: &[f32]) -> f32 {
    let bytes = &row[row.len() - rest.len() * element.bytes()..];
    let elements = bytes.chunks_exact(element.bytes());
    let pairs = elements.zip(rest);
    pairs.fold(sum, |sum, (bytes, b)| element.widen(bytes).mul_add(*b, sum))
}

#[target_feature(enable = "avx2")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_128(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes are there, and the load asks for no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_256(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 bytes are there, and the load asks for no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_512(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 bytes are there, and the load asks for no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_8(elements: &[f32; 8]) -> __m256 {
    // SAFETY: 8 elements are there, and the load asks for no alignment.
    unsafe { _mm256_loadu_ps(elements.as_ptr()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
#[expect(unsafe_code, reason = "a load through a pointer")]
fn load_16(elements: &[f32; 16]) -> __m512 {
    // SAFETY: 16 elements are there, and the load asks for no alignment.
    unsafe { _mm512_loadu_ps(elements.as_ptr()) }
}

#[target_feature(enable = "avx2")]
#[inline]
#[expect(unsafe_code, reason = "a store through a pointer")]
fn lanes_8(lanes: __m256) -> [f32; 8] {
    let mut elements = [0.0; 8];
    // SAFETY: there is room for 8 elements, and the store asks for no alignment.
    unsafe { _mm256_storeu_ps(elements.as_mut_ptr(), lanes) };
    elements
}
