//! Safetensors files: the same fields as tensors and `__metadata__`.
//!
//! | name | content |
//! |---|---|
//! | `block_affinities` | `[layers, kv_heads, blocks]`, any float or integer type |
//! | `kmeans_blocks_perK.<k>` | the block list for k, integers, at most one dimension |
//! | `kmeans_blocks` | the legacy list, likewise |
//! | `__metadata__` | numbers in decimal, others as they are |
//!
//! The numbers are `num_layers`, `num_kv_heads`, `num_blocks` and `block_size`.

use std::collections::BTreeMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::SAFETENSORS_HEADER_BYTES_MAX;
use super::error::{ImportError, shown};
use super::schema::{
    self, AFFINITIES, Count, Fields, LEGACY_LIST, LISTS_BY_K, ListName, PRIOR_TYPE, SchemaError,
};
use super::tensor::{self, Element, TensorError, View};

/// Reads a prior's safetensors file.
pub(super) fn read(bytes: &[u8]) -> Result<Fields, ImportError> {
    let (file, texts) = open(bytes)?;
    let mut fields = Fields::default();
    fields.found(format!("{} tensors", file.len()));
    // In one order: room for metadata is limited.
    for (key, text) in &texts {
        field(&mut fields, key, text)?;
    }
    let mut names = file.names();
    names.sort_unstable();
    for name in names {
        let list = match name {
            AFFINITIES => {
                let dimensions = schema::affinity_shape(&shape(&file.tensor(name)?))?;
                let scores = view(name, &file.tensor(name)?, tensor::scores)?;
                fields.affinities(dimensions, scores);
                continue;
            }
            LEGACY_LIST => ListName::Legacy,
            other => match other
                .strip_prefix(LISTS_BY_K)
                .and_then(|k| k.strip_prefix('.'))
            {
                Some(k) => {
                    let found = || SchemaError::ListKey { found: shown(k) };
                    fields.list_key(k.parse().map_err(|_| found())?)?
                }
                None => continue,
            },
        };
        let tensor = file.tensor(name)?;
        if tensor.shape().len() > 1 {
            let found = "a tensor of several dimensions";
            let (field, wanted) = (list.to_string(), "a list of integers");
            return Err(SchemaError::Kind {
                field,
                found,
                wanted,
            }
            .into());
        }
        fields.reserve(tensor.shape().iter().product())?;
        let entries = view(name, &tensor, tensor::integers)?;
        fields.list(list, &entries)?;
    }
    Ok(fields)
}

/// The tensors of a file, and the texts of its `__metadata__`.
pub(super) fn open(
    bytes: &[u8],
) -> Result<(SafeTensors<'_>, BTreeMap<String, String>), ImportError> {
    // The header is parsed into a tree, so that it is limited before it is read.
    if let Some(length) = bytes
        .first_chunk()
        .map(|&length| u64::from_le_bytes(length))
        && length > SAFETENSORS_HEADER_BYTES_MAX
    {
        return Err(ImportError::SafetensorsHeader { bytes: length });
    }
    let file = SafeTensors::deserialize(bytes)?;
    let (_, header) = SafeTensors::read_metadata(bytes)?;
    let texts = header.metadata().iter().flatten();
    let texts = texts.map(|(key, text)| (key.clone(), text.clone()));
    Ok((file, texts.collect()))
}

fn field(fields: &mut Fields, key: &str, text: &str) -> Result<(), SchemaError> {
    if let Some(count) = Count::ALL.into_iter().find(|count| count.field() == key) {
        let number = text.trim().parse();
        let (field, found, wanted) = (key.to_owned(), "a text", "a decimal integer");
        return fields.count(
            count,
            number.map_err(|_| SchemaError::Kind {
                field,
                found,
                wanted,
            })?,
        );
    }
    if key == PRIOR_TYPE {
        return fields.prior_type(text);
    }
    if !schema::is_schema_field(key) {
        fields.metadata(key, text);
    }
    Ok(())
}

const ELEMENTS: [(Dtype, Element); 13] = [
    (Dtype::BOOL, Element::Bool),
    (Dtype::U8, Element::U8),
    (Dtype::I8, Element::I8),
    (Dtype::U16, Element::U16),
    (Dtype::I16, Element::I16),
    (Dtype::U32, Element::U32),
    (Dtype::I32, Element::I32),
    (Dtype::U64, Element::U64),
    (Dtype::I64, Element::I64),
    (Dtype::F16, Element::F16),
    (Dtype::BF16, Element::Bf16),
    (Dtype::F32, Element::F32),
    (Dtype::F64, Element::F64),
];

/// Gathers a tensor's elements, which follow each other without gaps.
fn view<T>(
    name: &str,
    tensor: &TensorView<'_>,
    gather: impl Fn(&View<'_>) -> Result<T, TensorError>,
) -> Result<T, ImportError> {
    let shape = shape(tensor);
    let view = View {
        element: element(name, tensor)?,
        bytes: tensor.data(),
        offset: 0,
        shape: &shape,
        strides: &packed_strides(&shape),
    };
    gather(&view).map_err(|error| ImportError::Tensor {
        field: shown(name),
        error,
    })
}

pub(super) fn element(name: &str, tensor: &TensorView<'_>) -> Result<Element, ImportError> {
    let found = ELEMENTS.iter().find(|(dtype, _)| *dtype == tensor.dtype());
    let Some(&(_, element)) = found else {
        let found = format!("{:?}", tensor.dtype());
        return Err(ImportError::ElementType {
            field: shown(name),
            found,
        });
    };
    Ok(element)
}

/// Strides of elements that follow each other in row-major order.
pub(super) fn packed_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1_u64; shape.len()];
    for inner in (1..shape.len()).rev() {
        strides[inner - 1] = strides[inner].saturating_mul(shape[inner]);
    }
    strides
}

pub(super) fn shape(tensor: &TensorView<'_>) -> Vec<u64> {
    tensor
        .shape()
        .iter()
        .map(|&length| u64::try_from(length).unwrap_or(u64::MAX))
        .collect()
}
