//! Why a file was not imported.

use super::{FILE_BYTES_MAX, NAMES_MAX, SAFETENSORS_HEADER_BYTES_MAX};
use super::{PickleError, SchemaError, TensorError, ZipError};

/// Why a file was not imported. Messages name the field and the limit.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("the file has {bytes} bytes; at most {FILE_BYTES_MAX} are read")]
    FileBytes { bytes: usize },
    #[error("the first bytes are neither those of a torch file (.pt) nor of safetensors")]
    UnknownFormat,
    #[error("zip: {0}")]
    Zip(#[from] ZipError),
    #[error("pickle: {0}")]
    Pickle(#[from] PickleError),
    #[error("{field}: {error}")]
    Tensor { field: String, error: TensorError },
    #[error("byteorder is {found}; only little-endian files are read")]
    ByteOrder { found: String },
    #[error("legacy stream: {what} is not what torch writes")]
    Legacy { what: &'static str },
    #[error("zip: the entry {name} is missing")]
    EntryMissing { name: &'static str },
    #[error("storage {key} is missing")]
    StorageMissing { key: String },
    #[error("storage {key} has {found} bytes where {wanted} are needed")]
    StorageBytes {
        key: String,
        found: usize,
        wanted: u64,
    },
    #[error(
        "safetensors: the header has {bytes} bytes; at most {SAFETENSORS_HEADER_BYTES_MAX} are read"
    )]
    SafetensorsHeader { bytes: u64 },
    #[error("safetensors: {0}")]
    Safetensors(#[from] ::safetensors::SafeTensorError),
    #[error("safetensors: {field} has the element type {found}")]
    ElementType { field: String, found: String },
    #[error("the file has more than {NAMES_MAX} tensors and numbers, or refers to them too often")]
    Names,
    #[error("{0}")]
    Schema(#[from] SchemaError),
}

/// Names from a file, as an error message may show them: escaped and cut.
pub(in crate::routing) fn shown(name: &str) -> String {
    const CHARS_MAX: usize = 96;
    let mut shown: String = name
        .chars()
        .take(CHARS_MAX)
        .flat_map(char::escape_debug)
        .collect();
    if name.chars().nth(CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}
