//! The weights of layer 0, mapped from a model folder's safetensors files.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kvatlas_kernels::{Element, Matrix};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;
use thiserror::Error;

use super::config::{CONFIG_BYTES_MAX, ConfigError, ModelConfig};
use super::forward::Layer;

const INDEX_BYTES_MAX: u64 = 16 << 20;
/// A file of the largest models names a few hundred tensors, of about 100 bytes each.
pub(super) const HEADER_BYTES_MAX: u64 = 8 << 20;
const SHARD_NAME_BYTES_MAX: usize = 255;

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

const EMBEDDING: &str = "model.embed_tokens.weight";
const NORM: &str = "model.layers.0.input_layernorm.weight";
const QUERY: &str = "model.layers.0.self_attn.q_proj.weight";
const QUERY_BIAS: &str = "model.layers.0.self_attn.q_proj.bias";
const QUERY_NORM: &str = "model.layers.0.self_attn.q_norm.weight";

/// Why a model folder cannot be used. Messages name files by their place in the folder.
#[derive(Debug, Error)]
pub enum ModelError {
    #[error("{file}: cannot {action}: {source}")]
    Io {
        file: String,
        action: &'static str,
        source: io::Error,
    },
    #[error("{file}: leads out of the models folder")]
    Outside { file: String },
    #[error("{file}: not a regular file")]
    NotAFile { file: String },
    #[error("{file}: {bytes} bytes, at most {max}")]
    TooLarge { file: String, bytes: u64, max: u64 },
    #[error("config.json: {0}")]
    Config(#[from] ConfigError),
    #[error("config.json: its numbers give a rotation that is not finite")]
    Rope,
    #[error("model.safetensors.index.json: {0}")]
    Index(serde_json::Error),
    #[error(
        "model.safetensors.index.json: the file of {tensor} must be a name that ends in \
         .safetensors"
    )]
    ShardName { tensor: &'static str },
    #[error("neither model.safetensors nor model.safetensors.index.json is there")]
    NoWeights,
    #[error("{file}: not whole safetensors: {source}")]
    Safetensors {
        file: String,
        source: SafeTensorError,
    },
    #[error("{tensor}: missing")]
    TensorMissing { tensor: &'static str },
    #[error("{tensor}: of shape {found:?}, must be {wanted:?} by config.json")]
    Shape {
        tensor: &'static str,
        found: Vec<usize>,
        wanted: Vec<usize>,
    },
    #[error("{tensor}: of type {found:?}; F32, F16 and BF16 are supported")]
    ElementType { tensor: &'static str, found: Dtype },
}

/// The weights of layer 0, as they lie on the disk.
#[derive(Debug)]
pub(super) struct Weights {
    shards: Vec<Shard>,
    embedding: Tensor,
    norm: Tensor,
    query: Tensor,
    query_bias: Option<Tensor>,
    query_norm: Option<Tensor>,
}

/// A mapped file. Whoever replaces it by renaming changes nothing here; whoever writes into it
/// changes what is read, and whoever cuts it off kills the process at the next touch of the lost
/// part, so that [`Weights::are_unchanged`] is asked before each use.
#[derive(Debug)]
struct Shard {
    map: Mmap,
    file: File,
    length: u64,
    modified: Option<SystemTime>,
}

#[derive(Clone, Debug)]
struct Tensor {
    shard: usize,
    bytes: Range<usize>,
    element: Element,
    columns: usize,
}

/// Reads a folder's config.json, from below `root`.
pub(super) fn read_config(folder: &Path, root: &Path) -> Result<ModelConfig, ModelError> {
    let json = read(folder, CONFIG, root, CONFIG_BYTES_MAX)?;
    Ok(ModelConfig::parse(&json)?)
}

impl Weights {
    /// Maps the files that hold layer 0, and checks the shapes. Only their headers are read.
    pub(super) fn open(
        folder: &Path,
        root: &Path,
        config: &ModelConfig,
    ) -> Result<Self, ModelError> {
        let mut shards = Shards {
            folder,
            root,
            index: read_index(folder, root)?,
            opened: HashMap::new(),
            shards: Vec::new(),
        };
        let (hidden, query) = (config.hidden_size as usize, config.query_size() as usize);
        let head = config.head_dim as usize;
        let vocabulary = config.vocabulary_size as usize;
        let norm = config.architecture.has_query_norm();
        Ok(Self {
            embedding: shards.tensor(EMBEDDING, &[vocabulary, hidden])?,
            norm: shards.tensor(NORM, &[hidden])?,
            query: shards.tensor(QUERY, &[query, hidden])?,
            query_bias: optional(config.query_bias, || shards.tensor(QUERY_BIAS, &[query]))?,
            query_norm: optional(norm, || shards.tensor(QUERY_NORM, &[head]))?,
            shards: shards.shards,
        })
    }

    /// Whether every file has the length and the time of its last change that it had.
    pub(super) fn are_unchanged(&self) -> bool {
        let unchanged = |shard: &Shard| {
            let metadata = shard.file.metadata();
            metadata
                .is_ok_and(|now| now.len() == shard.length && now.modified().ok() == shard.modified)
        };
        self.shards.iter().all(unchanged)
    }

    /// How the query's weights are stored, which is how the model computes.
    pub(super) fn element(&self) -> Element {
        self.query.element
    }

    pub(super) fn layer(&self) -> Layer<'_> {
        let matrix = |tensor: &Tensor| {
            let bytes = &self.shards[tensor.shard].map[tensor.bytes.clone()];
            Matrix::new(bytes, tensor.element, tensor.columns)
        };
        Layer {
            embedding: matrix(&self.embedding),
            norm: matrix(&self.norm),
            query: matrix(&self.query),
            query_bias: self.query_bias.as_ref().map(matrix),
            query_norm: self.query_norm.as_ref().map(matrix),
        }
    }
}

fn optional<T, E>(wanted: bool, make: impl FnOnce() -> Result<T, E>) -> Result<Option<T>, E> {
    wanted.then(make).transpose()
}

#[derive(Debug, Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

// Where both are there, transformers takes the single file.
fn read_index(folder: &Path, root: &Path) -> Result<Option<Index>, ModelError> {
    if folder.join(SINGLE).exists() {
        return Ok(None);
    }
    if !folder.join(INDEX).exists() {
        return Err(ModelError::NoWeights);
    }
    let json = read(folder, INDEX, root, INDEX_BYTES_MAX)?;
    serde_json::from_slice(&json).map_err(ModelError::Index)
}

/// The files of a folder, each opened when a tensor is first found in it.
struct Shards<'a> {
    folder: &'a Path,
    root: &'a Path,
    /// None where one file holds everything.
    index: Option<Index>,
    opened: HashMap<String, usize>,
    shards: Vec<Shard>,
}

impl Shards<'_> {
    fn tensor(&mut self, name: &'static str, wanted: &[usize]) -> Result<Tensor, ModelError> {
        let file = self.file_of(name)?;
        let shard = self.open(&file)?;
        let map = &self.shards[shard].map;
        let damaged = |source| ModelError::Safetensors {
            file: file.clone(),
            source,
        };
        let tensors = SafeTensors::deserialize(map).map_err(damaged)?;
        let missing = ModelError::TensorMissing { tensor: name };
        let view = tensors.tensor(name).map_err(|_| missing)?;
        if view.shape() != wanted {
            return Err(ModelError::Shape {
                tensor: name,
                found: view.shape().to_vec(),
                wanted: wanted.to_vec(),
            });
        }
        let element = element(view.dtype());
        let element = element.ok_or(ModelError::ElementType {
            tensor: name,
            found: view.dtype(),
        })?;
        let data = view.data();
        let start = data.as_ptr().addr() - map.as_ptr().addr();
        let columns = wanted.last().copied();
        Ok(Tensor {
            shard,
            bytes: start..start + data.len(),
            element,
            columns: columns.expect("every tensor has a dimension"),
        })
    }

    fn file_of(&self, tensor: &'static str) -> Result<String, ModelError> {
        let Some(index) = &self.index else {
            return Ok(SINGLE.to_owned());
        };
        let name = index.weight_map.get(tensor);
        let name = name.ok_or(ModelError::TensorMissing { tensor })?;
        if !is_shard_name(name) {
            return Err(ModelError::ShardName { tensor });
        }
        Ok(name.clone())
    }

    fn open(&mut self, name: &str) -> Result<usize, ModelError> {
        if let Some(&shard) = self.opened.get(name) {
            return Ok(shard);
        }
        let shard = Shard::open(self.folder, name, self.root)?;
        self.shards.push(shard);
        self.opened.insert(name.to_owned(), self.shards.len() - 1);
        Ok(self.shards.len() - 1)
    }
}

/// A plain file name: nothing that leads to another folder.
fn is_shard_name(name: &str) -> bool {
    name.len() <= SHARD_NAME_BYTES_MAX
        && name.ends_with(".safetensors")
        && !name.contains(['/', '\\', '\0'])
}

impl Shard {
    fn open(folder: &Path, name: &str, root: &Path) -> Result<Self, ModelError> {
        let path = locate(folder, name, root)?;
        let file = File::open(&path).map_err(io_error(name, "open"))?;
        let metadata = file.metadata().map_err(io_error(name, "look at"))?;
        let map = map_file(&file).map_err(io_error(name, "map"))?;
        // The header becomes a tree, so that it is limited before it is read.
        let header = map.first_chunk().map(|&bytes| u64::from_le_bytes(bytes));
        let header = header.unwrap_or(0);
        if header > HEADER_BYTES_MAX {
            return Err(ModelError::TooLarge {
                file: format!("{name} (its header)"),
                bytes: header,
                max: HEADER_BYTES_MAX,
            });
        }
        Ok(Self {
            length: map.len() as u64,
            map,
            file,
            modified: metadata.modified().ok(),
        })
    }
}

/// Reads a small file whole.
fn read(folder: &Path, name: &str, root: &Path, max: u64) -> Result<Vec<u8>, ModelError> {
    let path = locate(folder, name, root)?;
    let file = File::open(&path).map_err(io_error(name, "open"))?;
    let mut bytes = Vec::new();
    let read = file.take(max + 1).read_to_end(&mut bytes);
    read.map_err(io_error(name, "read"))?;
    let size = bytes.len() as u64;
    if size > max {
        return Err(ModelError::TooLarge {
            file: name.to_owned(),
            bytes: size,
            max,
        });
    }
    Ok(bytes)
}

/// Where a file of the folder really is. Folders as hubs lay them out are full of symbolic links,
/// so that these are followed, but not out of `root`.
fn locate(folder: &Path, name: &str, root: &Path) -> Result<PathBuf, ModelError> {
    let path = folder.join(name);
    let path = path.canonicalize().map_err(io_error(name, "find"))?;
    if !path.starts_with(root) {
        return Err(ModelError::Outside {
            file: name.to_owned(),
        });
    }
    let metadata = path.metadata().map_err(io_error(name, "look at"))?;
    // Opening a pipe would wait for its other end.
    if !metadata.is_file() {
        return Err(ModelError::NotAFile {
            file: name.to_owned(),
        });
    }
    Ok(path)
}

fn io_error(file: &str, action: &'static str) -> impl FnOnce(io::Error) -> ModelError {
    move |source| ModelError::Io {
        file: file.to_owned(),
        action,
        source,
    }
}

#[expect(
    unsafe_code,
    reason = "mapping a file is unsafe as long as others may write it"
)]
fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the file lies in a folder that the operator gave for models, which nobody writes to
    // while they are served; that is what `--models-dir` asks for. It is looked at before each use
    // whether somebody did. Every bit pattern is a number, so that a change gives other numbers at
    // worst, and cutting the file off ends the process.
    unsafe { Mmap::map(file) }
}

fn element(dtype: Dtype) -> Option<Element> {
    const ELEMENTS: [(Dtype, Element); 3] = [
        (Dtype::F32, Element::F32),
        (Dtype::F16, Element::F16),
        (Dtype::BF16, Element::Bf16),
    ];
    let found = ELEMENTS.iter().find(|(known, _)| *known == dtype);
    found.map(|&(_, element)| element)
}
