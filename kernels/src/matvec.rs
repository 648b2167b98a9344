//! Products of a matrix in somebody else's memory with a few vectors, in one pass over the matrix.

use half::{bf16, f16};

use crate::score::Level;

/// How the elements of a matrix are stored, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    F32,
    F16,
    Bf16,
}

/// Rows of `columns` elements in bytes of any alignment, such as a part of a mapped file.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    bytes: &'a [u8],
    element: Element,
    columns: usize,
}

/// `products[v][row]`: the dot product of each row with each of the `vectors`, which follow each
/// other. The matrix is read from memory once, whatever the number of vectors. A product has the
/// same bits whatever the number of vectors. Sums are kept in f32, a few beside each other; the
/// error is far below 1e-5 of |row| |vector| at any width that a model has.
///
/// # Panics
/// When the vectors are not whole, or `products` has another length than vectors times rows.
pub fn matvec(matrix: &Matrix<'_>, vectors: &[f32], products: &mut [f32]) {
    matvec_at(level(), matrix, vectors, products);
}

/// The specification of [`matvec`]: one sum after the other, in f64.
///
/// # Panics
/// As [`matvec`].
pub fn matvec_scalar(matrix: &Matrix<'_>, vectors: &[f32], products: &mut [f32]) {
    matrix.check(vectors, products);
    let rows = matrix.rows();
    for (index, product) in products.iter_mut().enumerate() {
        let vector = vector(matrix, vectors, index / rows);
        let row = matrix.elements(index % rows).zip(vector);
        let sum: f64 = row.map(|(a, &b)| f64::from(a) * f64::from(b)).sum();
        *product = narrow(sum);
    }
}

impl Element {
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The nearest value that can be stored so, ties to even.
    #[must_use]
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// The element that `bytes` holds.
    fn widen(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Self::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (Self::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (Self::F32 | Self::F16 | Self::Bf16, _) => unreachable!("rows are cut into elements"),
        }
    }
}

impl<'a> Matrix<'a> {
    /// # Panics
    /// When the bytes are not whole rows.
    #[must_use]
    pub fn new(bytes: &'a [u8], element: Element, columns: usize) -> Self {
        assert!(
            columns > 0 && bytes.len().is_multiple_of(columns * element.bytes()),
            "a matrix has whole rows: {} bytes, {columns} of {element:?} a row",
            bytes.len()
        );
        Self {
            bytes,
            element,
            columns,
        }
    }

    #[must_use]
    pub fn rows(&self) -> usize {
        self.bytes.len() / (self.columns * self.element.bytes())
    }

    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    #[must_use]
    pub fn element(&self) -> Element {
        self.element
    }

    /// A row in f32, which holds every element.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn elements(&self, row: usize) -> impl Iterator<Item = f32> + use<'a> {
        let element = self.element;
        let elements = self.row(row).chunks_exact(element.bytes());
        elements.map(move |bytes| element.widen(bytes))
    }

    fn row(&self, row: usize) -> &'a [u8] {
        let bytes = self.columns * self.element.bytes();
        &self.bytes[row * bytes..][..bytes]
    }

    fn check(&self, vectors: &[f32], products: &[f32]) {
        assert!(
            vectors.len().is_multiple_of(self.columns)
                && products.len() == vectors.len() / self.columns * self.rows(),
            "{} elements of vectors and {} products for {} rows of {}",
            vectors.len(),
            products.len(),
            self.rows(),
            self.columns
        );
    }
}

/// Rows taken together: as many sums run beside each other, and each vector is read once for all.
const ROWS: usize = 4;
/// Vectors taken together where there are several.
const VECTORS: usize = 4;

fn matvec_at(level: Level, matrix: &Matrix<'_>, vectors: &[f32], products: &mut [f32]) {
    matrix.check(vectors, products);
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => walk(x86::Avx512, matrix, vectors, products),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => walk(x86::Avx2, matrix, vectors, products),
        #[cfg(not(target_arch = "x86_64"))]
        Level::Avx512 | Level::Avx2 => matvec_scalar(matrix, vectors, products),
        Level::Scalar | Level::Neon => matvec_scalar(matrix, vectors, products),
    }
}

/// The best that this processor has; what is asked of it is remembered by the standard library.
fn level() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            return Level::Avx512;
        }
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Level::Avx2;
        }
    }
    Level::Scalar
}

fn vector<'a>(matrix: &Matrix<'_>, vectors: &'a [f32], index: usize) -> &'a [f32] {
    &vectors[index * matrix.columns..][..matrix.columns]
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "to the precision of the answer"
)]
fn narrow(sum: f64) -> f32 {
    sum as f32
}

/// Instructions that can make the products of a tile.
trait Dots: Copy {
    /// The product of each row with each vector.
    fn dots<const R: usize, const V: usize>(
        self,
        element: Element,
        rows: [&[u8]; R],
        vectors: [&[f32]; V],
    ) -> [[f32; V]; R];
}

fn walk(dots: impl Dots, matrix: &Matrix<'_>, vectors: &[f32], products: &mut [f32]) {
    let whole = matrix.rows() - matrix.rows() % ROWS;
    for row in (0..whole).step_by(ROWS) {
        walk_rows::<ROWS>(dots, (matrix, row), vectors, products);
    }
    for row in whole..matrix.rows() {
        walk_rows::<1>(dots, (matrix, row), vectors, products);
    }
}

fn walk_rows<const R: usize>(
    dots: impl Dots,
    (matrix, row): (&Matrix<'_>, usize),
    vectors: &[f32],
    products: &mut [f32],
) {
    let (height, element) = (matrix.rows(), matrix.element);
    let rows: [&[u8]; R] = std::array::from_fn(|r| matrix.row(row + r));
    let mut groups = vectors.chunks_exact(VECTORS * matrix.columns);
    let mut first = row;
    for group in groups.by_ref() {
        let group: [&[f32]; VECTORS] = std::array::from_fn(|v| vector(matrix, group, v));
        for (r, sums) in dots.dots(element, rows, group).iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                products[first + v * height + r] = sum;
            }
        }
        first += VECTORS * height;
    }
    for vector in groups.remainder().chunks_exact(matrix.columns) {
        for (r, &[sum]) in dots.dots(element, rows, [vector]).iter().enumerate() {
            products[first + r] = sum;
        }
        first += height;
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The tiles in AVX2 and AVX-512: a sum of lanes for each row and vector, then what is left
    //! at the end of a row, element by element.

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
}
