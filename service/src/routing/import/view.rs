//! One tensor of a file, read piece by piece from where it lies.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::tensor::{self, Element, TensorError, View};
use super::{ELEMENTS_MAX, VIEW_ELEMENTS_MAX};

/// A tensor whose every index was found to lie inside its bytes. Nothing of it is copied.
#[derive(Debug, Clone)]
pub struct TensorView<'a> {
    pub element: Element,
    pub shape: Box<[usize]>,
    bytes: &'a [u8],
    /// In elements, as the strides.
    offset: usize,
    strides: Box<[usize]>,
    count: usize,
}

/// Elements converted at a time.
const CHUNK: usize = 256;

impl<'a> TensorView<'a> {
    pub(super) fn new(
        element: Element,
        bytes: &'a [u8],
        offset: u64,
        [shape, strides]: [&[u64]; 2],
    ) -> Result<Self, TensorError> {
        let view = View {
            element,
            bytes,
            offset,
            shape,
            strides,
        };
        let count = tensor::check(&view, VIEW_ELEMENTS_MAX)?;
        // Strides of dimensions of length one may be anything, and are never multiplied but by 0.
        let size = |number: &u64| usize::try_from(*number).unwrap_or(usize::MAX);
        Ok(Self {
            element,
            shape: shape.iter().map(size).collect(),
            bytes,
            offset: size(&offset),
            strides: strides.iter().map(size).collect(),
            count,
        })
    }

    /// How many elements it has.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.count
    }

    /// The same elements without the first dimension, when that has the length 1.
    #[must_use]
    pub fn without_batch(mut self) -> Self {
        if let [1, rest @ ..] = &*self.shape {
            self.shape = rest.into();
            self.strides = self.strides[1..].into();
        }
        self
    }

    /// # Errors
    /// When the elements are no floating-point numbers.
    pub fn check_floats(&self) -> Result<(), TensorError> {
        match self.element {
            Element::F16 | Element::Bf16 | Element::F32 | Element::F64 => Ok(()),
            Element::Bool
            | Element::U8
            | Element::I8
            | Element::U16
            | Element::I16
            | Element::U32
            | Element::I32
            | Element::U64
            | Element::I64 => Err(TensorError::NotFloats {
                found: self.element,
            }),
        }
    }

    /// All elements in row-major order; f64 is rounded.
    ///
    /// # Errors
    /// When there are more than `elements_max` (at most [`ELEMENTS_MAX`]), or they are no
    /// floating-point numbers.
    pub fn to_f32(&self, elements_max: usize) -> Result<Vec<f32>, TensorError> {
        self.check_floats()?;
        let most = usize::try_from(ELEMENTS_MAX).unwrap_or(usize::MAX);
        let limit = elements_max.min(most);
        if self.count > limit {
            let limit = u64::try_from(limit).unwrap_or(u64::MAX);
            return Err(TensorError::Elements { limit });
        }
        let mut values = vec![0.0; self.count];
        let Some((&width, outer)) = self.shape.split_last() else {
            self.read_row(&[], &mut values);
            return Ok(values);
        };
        let mut place = vec![0; outer.len()];
        for row in values.chunks_exact_mut(width.max(1)) {
            self.read_row(&place, row);
            for (index, &length) in place.iter_mut().zip(outer).rev() {
                *index += 1;
                if *index < length {
                    break;
                }
                *index = 0;
            }
        }
        Ok(values)
    }

    /// The first elements of the last dimension, as many as `row` has, at a place of the others.
    /// A tensor without dimensions is read as one of one.
    ///
    /// # Panics
    /// Outside the shape, and when the elements are no floating-point numbers.
    pub fn read_row(&self, place: &[usize], row: &mut [f32]) {
        let (&length, outer) = self.shape.split_last().unwrap_or((&1, &[]));
        assert!(row.len() <= length && place.len() == outer.len());
        let mut base = self.offset;
        for ((&index, &length), &stride) in place.iter().zip(outer).zip(&self.strides) {
            assert!(index < length, "inside the shape");
            // Checked when the view was made: the last element's index is below the bytes' length.
            base += if index == 0 { 0 } else { index * stride };
        }
        let stride = self.strides.last().copied().unwrap_or(1);
        match self.element {
            Element::F16 => self.half_row(base, stride, row, |halves: &[f16], row| {
                halves.convert_to_f32_slice(row);
            }),
            Element::Bf16 => self.half_row(base, stride, row, |halves: &[bf16], row| {
                halves.convert_to_f32_slice(row);
            }),
            Element::F32 => self.row_of(base, stride, row, f32::from_le_bytes),
            #[expect(clippy::cast_possible_truncation, reason = "documented: rounded")]
            Element::F64 => self.row_of(base, stride, row, |le| f64::from_le_bytes(le) as f32),
            Element::Bool
            | Element::U8
            | Element::I8
            | Element::U16
            | Element::I16
            | Element::U32
            | Element::I32
            | Element::U64
            | Element::I64 => unreachable!("callers check that the elements are floats"),
        }
    }

    /// Copies halves to where they are aligned and converts them many at a time.
    fn half_row<H: bytemuck::Pod>(
        &self,
        base: usize,
        stride: usize,
        row: &mut [f32],
        convert: impl Fn(&[H], &mut [f32]),
    ) {
        let (halves, _) = self.bytes.as_chunks::<2>();
        let mut aligned = [H::zeroed(); CHUNK];
        for (chunk, row) in row.chunks_mut(CHUNK).enumerate() {
            let aligned = &mut aligned[..row.len()];
            let first = chunk * CHUNK;
            if stride == 1 {
                let from = &halves[base + first..][..row.len()];
                bytemuck::cast_slice_mut(aligned).copy_from_slice(from.as_flattened());
            } else {
                for (index, half) in aligned.iter_mut().enumerate() {
                    *half = bytemuck::pod_read_unaligned(&halves[base + (first + index) * stride]);
                }
            }
            convert(aligned, row);
        }
    }

    fn row_of<const N: usize>(
        &self,
        base: usize,
        stride: usize,
        row: &mut [f32],
        convert: impl Fn([u8; N]) -> f32,
    ) {
        let (elements, _) = self.bytes.as_chunks::<N>();
        if stride == 1 {
            let from = &elements[base..][..row.len()];
            for (value, &element) in row.iter_mut().zip(from) {
                *value = convert(element);
            }
        } else {
            for (index, value) in row.iter_mut().enumerate() {
                *value = convert(elements[base + index * stride]);
            }
        }
    }
}
