//! Products of a matrix in somebody else's memory with a few vectors, in one pass over the matrix.

#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

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
/// Rows that stay in the cache while all vectors pass over them: 384 KiB of a 3B model's W_q.
const ROWS_NEAR: usize = 64;

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

/// Takes a few rows at a time, which stay in the cache while all vectors pass over them.
fn walk(dots: impl Dots, matrix: &Matrix<'_>, vectors: &[f32], products: &mut [f32]) {
    let mut walk = Walk {
        dots,
        matrix,
        vectors,
        products,
    };
    let (height, count) = (matrix.rows(), vectors.len() / matrix.columns);
    for start in (0..height).step_by(ROWS_NEAR) {
        let rows = start..height.min(start + ROWS_NEAR);
        let whole = count - count % VECTORS;
        for first in (0..whole).step_by(VECTORS) {
            walk.rows::<VECTORS>(rows.clone(), first);
        }
        for vector in whole..count {
            walk.rows::<1>(rows.clone(), vector);
        }
    }
}

struct Walk<'a, D> {
    dots: D,
    matrix: &'a Matrix<'a>,
    vectors: &'a [f32],
    products: &'a mut [f32],
}

impl<D: Dots> Walk<'_, D> {
    fn rows<const V: usize>(&mut self, rows: Range<usize>, first_vector: usize) {
        let whole = rows.end - rows.len() % ROWS;
        for row in (rows.start..whole).step_by(ROWS) {
            self.tile::<ROWS, V>(row, first_vector);
        }
        for row in whole..rows.end {
            self.tile::<1, V>(row, first_vector);
        }
    }

    fn tile<const R: usize, const V: usize>(&mut self, first_row: usize, first_vector: usize) {
        let (matrix, height) = (self.matrix, self.matrix.rows());
        let rows: [&[u8]; R] = std::array::from_fn(|r| matrix.row(first_row + r));
        let vectors: [&[f32]; V] =
            std::array::from_fn(|v| vector(matrix, self.vectors, first_vector + v));
        let tile = self.dots.dots(matrix.element, rows, vectors);
        for (r, sums) in tile.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                self.products[(first_vector + v) * height + first_row + r] = sum;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ELEMENTS: [Element; 3] = [Element::F32, Element::F16, Element::Bf16];

    /// What this processor has.
    fn levels() -> Vec<Level> {
        let all = [Level::Scalar, Level::Avx2, Level::Avx512];
        all.into_iter().filter(|&known| known <= level()).collect()
    }

    fn bytes(element: Element, value: f32) -> Vec<u8> {
        match element {
            Element::F32 => value.to_le_bytes().to_vec(),
            Element::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            Element::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// Every level against the specification. The bytes begin at an odd address or not.
    fn check(element: Element, columns: usize, rows: &[f32], vectors: &[f32]) {
        for offset in [0, 1] {
            let mut stored = vec![0xff; offset];
            stored.extend(rows.iter().flat_map(|&value| bytes(element, value)));
            let matrix = Matrix::new(&stored[offset..], element, columns);
            let mut expected = vec![f32::NAN; rows.len() / columns * vectors.len() / columns];
            matvec_scalar(&matrix, vectors, &mut expected);
            let row = |row| length(&matrix.elements(row).collect::<Vec<_>>());
            let row_lengths: Vec<f64> = (0..matrix.rows()).map(row).collect();
            let vector_lengths: Vec<f64> = vectors.chunks(columns).map(length).collect();
            for level in levels() {
                let mut products = vec![f32::NAN; expected.len()];
                matvec_at(level, &matrix, vectors, &mut products);
                for (index, (product, expected)) in products.iter().zip(&expected).enumerate() {
                    let (vector, row) = (index / matrix.rows(), index % matrix.rows());
                    let bound = 1e-6 * row_lengths[row] * vector_lengths[vector] + 1e-38;
                    let error = f64::from((product - expected).abs());
                    assert!(
                        error <= bound,
                        "{level:?} {element:?} row {row} of {columns}, vector {vector}: \
                         {product}, must be {expected}"
                    );
                }
            }
        }
    }

    fn length(vector: &[f32]) -> f64 {
        let squares = vector.iter().map(|&value| f64::from(value).powi(2));
        squares.sum::<f64>().sqrt()
    }

    /// Numbers that differ, from 1 to -1.
    fn wave(length: u16, phase: f32) -> Vec<f32> {
        (0..length)
            .map(|at| (f32::from(at) * 0.7 + phase).sin())
            .collect()
    }

    #[test]
    fn products_are_of_each_row_with_each_vector() {
        let stored: Vec<u8> = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0_f32]
            .iter()
            .flat_map(|&value| bytes(Element::Bf16, value))
            .collect();
        let matrix = Matrix::new(&stored, Element::Bf16, 3);
        let mut products = [0.0; 4];
        matvec(&matrix, &[1.0, 0.0, 0.0, 0.0, 1.0, 10.0], &mut products);
        assert_eq!(bits(&products), bits(&[1.0, 4.0, 32.0, 65.0]));
        let row: Vec<f32> = matrix.elements(1).collect();
        assert_eq!(bits(&row), bits(&[4.0, 5.0, 6.0]));
    }

    #[test]
    fn widths_and_numbers_of_vectors_that_fill_no_tile() {
        for element in ELEMENTS {
            for columns in [1, 2, 7, 8, 15, 16, 17, 31, 33, 100, 530] {
                for (rows, count) in [(1, 1), (3, 2), (4, 4), (5, 3), (9, 5), (67, 8)] {
                    let matrix = wave(rows * columns, 0.3);
                    check(
                        element,
                        columns.into(),
                        &matrix,
                        &wave(count * columns, 1.9),
                    );
                }
            }
        }
    }

    #[test]
    fn a_product_has_the_same_bits_beside_others() {
        let stored: Vec<u8> = wave(70 * 9, 0.1)
            .iter()
            .flat_map(|&value| bytes(Element::F16, value))
            .collect();
        let matrix = Matrix::new(&stored, Element::F16, 70);
        let vectors = wave(70 * 7, 0.2);
        for level in levels() {
            let mut together = [0.0; 9 * 7];
            matvec_at(level, &matrix, &vectors, &mut together);
            let mut alone = [0.0; 9];
            for (vector, together) in vectors.chunks(70).zip(together.chunks(9)) {
                matvec_at(level, &matrix, vector, &mut alone);
                assert_eq!(bits(&alone), bits(together));
            }
        }
    }

    #[test]
    fn rounding_is_to_the_nearest() {
        for (element, value, rounded) in [
            (Element::F32, 1.000_000_1, 1.000_000_1),
            (Element::Bf16, 1.003, 1.0),
            (Element::Bf16, 1.005, 1.007_812_5),
            (Element::F16, 1.0006, 1.000_976_6),
        ] {
            assert_eq!(bits(&[element.round(value)]), bits(&[rounded]));
        }
    }

    #[test]
    #[should_panic(expected = "whole rows")]
    fn a_matrix_that_is_cut_off_is_refused() {
        let _matrix = Matrix::new(&[0; 7], Element::F16, 2);
    }

    fn case() -> impl Strategy<Value = (usize, Vec<f32>, Vec<f32>)> {
        // Large and tiny ones side by side, within what f16 holds.
        let number = || (-1.0_f32..1.0, -10_i32..10).prop_map(|(x, power)| x * 2_f32.powi(power));
        (1_usize..80, 1_usize..10, 0_usize..10).prop_flat_map(move |(columns, rows, count)| {
            (
                Just(columns),
                prop::collection::vec(number(), rows * columns),
                prop::collection::vec(number(), count * columns),
            )
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn agrees_with_its_twin(
            (columns, rows, vectors) in case(),
            element in prop::sample::select(ELEMENTS.to_vec()),
        ) {
            check(element, columns, &rows, &vectors);
        }
    }
}
