//! Strided views of stored elements, gathered into row-major vectors.

use half::{bf16, f16};
use kvatlas_kernels::Scores;

use super::{ELEMENTS_MAX, EXPANDED_ELEMENTS_MAX};

/// Element types of torch, numpy and safetensors; little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

/// A tensor as its file holds it. Offset and strides count elements.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub element: Element,
    pub bytes: &'a [u8],
    pub offset: u64,
    pub shape: &'a [u64],
    pub strides: &'a [u64],
}

/// Why a tensor was not read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    #[error("the tensor has more than {limit} elements")]
    Elements { limit: u64 },
    #[error("the tensor reaches beyond its storage of {stored} elements")]
    Bounds { stored: usize },
    #[error("the tensor's elements are no integers")]
    NotIntegers,
    #[error("the tensor's elements are {found:?}, not F16, Bf16, F32 or F64")]
    NotFloats { found: Element },
}

impl Element {
    pub(super) fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// Gathers scores in row-major order: f32 where that holds every value of the element type, else
/// f64 (where 64-bit integers beyond 2^53 are rounded).
pub(super) fn scores(view: &View<'_>) -> Result<Scores, TensorError> {
    let layout = Layout::of(view, ELEMENTS_MAX)?;
    Ok(match view.element {
        Element::Bool => Scores::F32(layout.gather(view, |[byte]| f32::from(u8::from(byte != 0)))),
        Element::U8 => Scores::F32(layout.gather(view, |[byte]| f32::from(byte))),
        Element::I8 => Scores::F32(layout.gather(view, |le| f32::from(i8::from_le_bytes(le)))),
        Element::U16 => Scores::F32(layout.gather(view, |le| f32::from(u16::from_le_bytes(le)))),
        Element::I16 => Scores::F32(layout.gather(view, |le| f32::from(i16::from_le_bytes(le)))),
        Element::F16 => Scores::F32(layout.gather(view, |le| f16::from_le_bytes(le).to_f32())),
        Element::Bf16 => Scores::F32(layout.gather(view, |le| bf16::from_le_bytes(le).to_f32())),
        Element::F32 => Scores::F32(layout.gather(view, f32::from_le_bytes)),
        Element::U32 => Scores::F64(layout.gather(view, |le| f64::from(u32::from_le_bytes(le)))),
        Element::I32 => Scores::F64(layout.gather(view, |le| f64::from(i32::from_le_bytes(le)))),
        #[expect(
            clippy::cast_precision_loss,
            reason = "documented: rounded beyond 2^53"
        )]
        Element::U64 => Scores::F64(layout.gather(view, |le| u64::from_le_bytes(le) as f64)),
        #[expect(
            clippy::cast_precision_loss,
            reason = "documented: rounded beyond 2^53"
        )]
        Element::I64 => Scores::F64(layout.gather(view, |le| i64::from_le_bytes(le) as f64)),
        Element::F64 => Scores::F64(layout.gather(view, f64::from_le_bytes)),
    })
}

/// Gathers integers in row-major order. Those beyond i64 become its largest, which no field takes.
pub(super) fn integers(view: &View<'_>) -> Result<Vec<i64>, TensorError> {
    let layout = Layout::of(view, ELEMENTS_MAX)?;
    Ok(match view.element {
        Element::U8 => layout.gather(view, |[byte]| i64::from(byte)),
        Element::I8 => layout.gather(view, |le| i64::from(i8::from_le_bytes(le))),
        Element::U16 => layout.gather(view, |le| i64::from(u16::from_le_bytes(le))),
        Element::I16 => layout.gather(view, |le| i64::from(i16::from_le_bytes(le))),
        Element::U32 => layout.gather(view, |le| i64::from(u32::from_le_bytes(le))),
        Element::I32 => layout.gather(view, |le| i64::from(i32::from_le_bytes(le))),
        Element::U64 => layout.gather(view, |le| {
            i64::try_from(u64::from_le_bytes(le)).unwrap_or(i64::MAX)
        }),
        Element::I64 => layout.gather(view, i64::from_le_bytes),
        Element::Bool | Element::F16 | Element::Bf16 | Element::F32 | Element::F64 => {
            return Err(TensorError::NotIntegers);
        }
    })
}

/// Counts the elements of a view of which every index was found to lie inside its storage.
pub(super) fn check(view: &View<'_>, elements_max: u64) -> Result<usize, TensorError> {
    Layout::of(view, elements_max).map(|layout| layout.count)
}

/// A view whose every index was found to lie inside its storage.
struct Layout {
    /// Elements of the tensor.
    count: usize,
    offset: usize,
    /// Length and stride of each dimension that is longer than one, outermost first.
    dimensions: Vec<(usize, usize)>,
    /// The elements follow each other in the storage.
    contiguous: bool,
}

impl Layout {
    fn of(view: &View<'_>, elements_max: u64) -> Result<Self, TensorError> {
        let stored = view.bytes.len() / view.element.size();
        let too_many = |limit| TensorError::Elements { limit };
        let bounds = TensorError::Bounds { stored };
        // A dimension of length zero makes the product zero, wherever it stands.
        let count = if view.shape.contains(&0) {
            0
        } else {
            let product = view
                .shape
                .iter()
                .try_fold(1_u64, |count, &n| count.checked_mul(n));
            product
                .filter(|&count| count <= elements_max)
                .ok_or(too_many(elements_max))?
        };
        if count == 0 {
            return Ok(Self {
                count: 0,
                offset: 0,
                dimensions: Vec::new(),
                contiguous: true,
            });
        }
        let span = view
            .shape
            .iter()
            .zip(view.strides)
            .try_fold(0_u64, |span, (&n, &stride)| {
                stride
                    .checked_mul(n - 1)
                    .and_then(|reach| span.checked_add(reach))
            });
        let last = span.and_then(|span| span.checked_add(view.offset));
        let (Some(span), Some(last)) = (span, last) else {
            return Err(bounds);
        };
        if usize::try_from(last).map_or(true, |last| last >= stored) {
            return Err(bounds);
        }
        if count > span + 1 && count > EXPANDED_ELEMENTS_MAX {
            return Err(too_many(EXPANDED_ELEMENTS_MAX));
        }
        // From here on every number is known to be smaller than `stored` or than the limit,
        // except for the strides of dimensions of length one, which are dropped.
        let size = |number: u64| usize::try_from(number).map_err(|_| bounds_of(stored));
        let mut dimensions = Vec::with_capacity(view.shape.len());
        for (&length, &stride) in view.shape.iter().zip(view.strides) {
            if length > 1 {
                dimensions.push((size(length)?, size(stride)?));
            }
        }
        let mut packed = 1;
        let contiguous = dimensions.iter().rev().all(|&(length, stride)| {
            let expected = packed;
            packed *= length;
            stride == expected
        });
        Ok(Self {
            count: size(count)?,
            offset: size(view.offset)?,
            dimensions,
            contiguous,
        })
    }

    /// Converts the elements in row-major order. `N` is the element's size.
    fn gather<const N: usize, T>(
        &self,
        view: &View<'_>,
        convert: impl Fn([u8; N]) -> T + Copy,
    ) -> Vec<T> {
        let (elements, _) = view.bytes.as_chunks::<N>();
        if self.contiguous {
            let range = self.offset..self.offset + self.count;
            return elements[range]
                .iter()
                .map(|&element| convert(element))
                .collect();
        }
        let mut gathered = Vec::with_capacity(self.count);
        let (&(row, stride), outer) = self
            .dimensions
            .split_last()
            .expect("no dimension would be contiguous");
        let mut position = vec![0_usize; outer.len()];
        let mut base = self.offset;
        loop {
            gathered.extend((0..row).map(|index| convert(elements[base + index * stride])));
            // Step like an odometer: the innermost wheel first, a full turn moves the next.
            let Some(wheel) = (0..outer.len()).rev().find(|&wheel| {
                let (length, stride) = outer[wheel];
                position[wheel] += 1;
                base += stride;
                if position[wheel] < length {
                    return true;
                }
                position[wheel] = 0;
                base -= length * stride;
                false
            }) else {
                return gathered;
            };
            debug_assert!(position[wheel] > 0, "the wheel that stopped has moved");
        }
    }
}

fn bounds_of(stored: usize) -> TensorError {
    TensorError::Bounds { stored }
}
