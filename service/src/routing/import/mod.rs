//! Reading `.pt` and safetensors files, bounded and without executing anything.
//!
//! A `.pt` file is a pickle, and a pickle is a program. This reader never runs it: an allow-listed
//! machine ([`pickle`]) turns it into an arena of plain values ([`value`]), the few callables that
//! torch and numpy need are understood by name ([`call`]), and anything else is refused by name. Of
//! torch's modules, `ParameterList` alone is read, as the parameters that it lists.
//!
//! ```text
//! bytes -> zip or legacy stream -> pickle -> value arena \   / fields -> schema -> ImportedPrior
//!                                                         ---
//! bytes -> safetensors header ---------------------------/   \ TensorFile -> TensorView
//! ```
//!
//! A prior is read whole ([`import`]). Everything else that is made of tensors is read by name,
//! piece by piece ([`TensorFile`]), from bytes that may be a mapped file.
//!
//! Everything a file can ask for has a limit below, and all arithmetic on numbers from a file is
//! checked, so that no bytes make the reader panic or take memory without bound: a pickle's values
//! take less than 200 MiB however it is made, and nothing is copied from the file but the tensor
//! and the lists that the prior consists of.

mod call;
mod error;
mod fields;
mod legacy;
mod pickle;
mod safetensors;
mod schema;
mod tensor;
mod tensors;
mod torch;
mod value;
mod view;
mod zip;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use kvatlas_kernels::Scores;

pub use self::error::ImportError;
pub(super) use self::error::shown;
pub use self::pickle::PickleError;
pub use self::schema::{ListName, SchemaError};
pub use self::tensor::{Element, TensorError};
pub use self::tensors::{Scalar, TensorFile};
pub use self::view::TensorView;
pub use self::zip::ZipError;

/// Longest file that is read, in bytes.
pub const FILE_BYTES_MAX: usize = 256 << 20;
/// Blocks of one prior.
pub const BLOCKS_MAX: u32 = 1 << 20;
/// Layers of a score tensor.
pub const LAYERS_MAX: u32 = 512;
/// KV heads of a score tensor.
pub const KV_HEADS_MAX: u32 = 1024;
/// Elements of a tensor: 512 MiB as f64. A prior of 128 layers, 8 heads and 65,536 blocks fits.
pub const ELEMENTS_MAX: u64 = 1 << 26;
/// Elements of a tensor that reads some stored element more than once (torch's `expand`): there
/// the file's size no longer bounds the tensor's.
pub const EXPANDED_ELEMENTS_MAX: u64 = 1 << 24;
/// Elements of a tensor that is read piece by piece, not gathered: 128 GiB as f16.
pub const VIEW_ELEMENTS_MAX: u64 = 1 << 36;
/// Tensors and scalars of a [`TensorFile`].
pub const NAMES_MAX: usize = 1 << 16;
/// Length of the name of a tensor or scalar, in bytes; those with longer ones are dropped.
pub const NAME_BYTES_MAX: usize = 512;
/// Lists and dicts within each other that a [`TensorFile`] looks into.
pub const NAME_PARTS_MAX: usize = 6;
/// Dimensions of any tensor in a file.
pub const TENSOR_RANK_MAX: usize = 16;
/// Tokens per block.
pub const BLOCK_SIZE_MAX: u32 = 1 << 20;
/// Values of k that a file lists blocks for.
pub const LIST_KEYS_MAX: usize = 4096;
/// Entries of all block lists together, each list counted as often as it is used.
pub const LIST_ENTRIES_MAX: usize = 1 << 22;
/// Length of a prior's type, in bytes.
pub const PRIOR_TYPE_BYTES_MAX: usize = 128;
/// Metadata entries kept of a file; further ones are dropped.
pub const METADATA_ENTRIES_MAX: usize = 16;
/// Length of a metadata key, in bytes; entries with longer ones are dropped.
pub const METADATA_KEY_BYTES_MAX: usize = 64;
/// Length at which a metadata value is cut, in bytes.
pub const METADATA_VALUE_BYTES_MAX: usize = 256;
/// Opcodes of one pickle. Each pushes at most one value of 16 bytes.
pub const PICKLE_STEPS_MAX: u32 = 1 << 21;
/// Memo slots of one pickle.
pub const PICKLE_MEMO_MAX: usize = 1 << 20;
/// Lists, tuples, dicts, storages and tensors of one pickle.
pub const PICKLE_CONTAINERS_MAX: usize = 1 << 20;
/// Fields of a module's state; torch 2 writes 17.
pub const MODULE_FIELDS_MAX: usize = 64;
/// Name of a storage, in bytes.
pub const STORAGE_KEY_BYTES_MAX: usize = 256;
/// Entries of a zip archive.
pub const ZIP_ENTRIES_MAX: usize = 1 << 15;
/// Header of a safetensors file, in bytes.
pub const SAFETENSORS_HEADER_BYTES_MAX: u64 = 4 << 20;

/// How a prior file is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `torch.save`: a zip archive, or the older stream of five pickles.
    Torch,
    Safetensors,
    /// What was read back from a server: no tensors, and not read here.
    Stored,
}

/// What a prior file holds. At least one of the three schemas is there.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedPrior {
    pub affinities: Option<Affinities>,
    /// The block list for each k, in the file's order; distinct entries, at most k of them.
    pub lists_by_k: BTreeMap<u32, Vec<u32>>,
    /// The legacy list, in the file's order; distinct entries.
    pub legacy_list: Option<Vec<u32>>,
    /// From the tensor, else from `num_blocks`. When known, every list entry is below it.
    pub total_blocks: Option<u32>,
    /// Tokens per block.
    pub block_size: Option<u32>,
    /// The algorithm that the file says it was made by.
    pub prior_type: Option<String>,
    /// The file's other scalars, as text; and under `dropped <field>` why block lists were dropped
    /// that do not fit the tensor.
    pub metadata: BTreeMap<String, String>,
}

/// Block scores of shape `[layers, kv_heads, blocks]`, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Affinities {
    pub layers: u32,
    pub kv_heads: u32,
    pub blocks: u32,
    pub scores: Scores,
}

/// Reads a prior file. Without a `format`, the file's first bytes tell it.
///
/// # Errors
/// When the file is no prior, is damaged, passes a limit, or names anything outside the
/// allow-list; the message says which.
pub fn import(bytes: &[u8], format: Option<Format>) -> Result<ImportedPrior, ImportError> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(ImportError::FileBytes { bytes: bytes.len() });
    }
    let fields = match format.or_else(|| format_of(bytes)) {
        Some(Format::Torch) => torch::read(bytes)?,
        Some(Format::Safetensors) => safetensors::read(bytes)?,
        Some(Format::Stored) | None => return Err(ImportError::UnknownFormat),
    };
    Ok(fields.check()?)
}

/// A zip archive or a pickle is torch's; a length and then JSON is safetensors'.
fn format_of(bytes: &[u8]) -> Option<Format> {
    match bytes {
        [b'P', b'K', ..] | [0x80, ..] if bytes.get(8) != Some(&b'{') => Some(Format::Torch),
        [_, _, _, _, _, _, _, _, b'{', ..] => Some(Format::Safetensors),
        _ => None,
    }
}
