//! Any tensors of a file, by name.

use std::collections::BTreeMap;

use ::safetensors::tensor::TensorView as SafeView;

use super::error::{ImportError, shown};
use super::pickle::Pickle;
use super::torch::{self, Storages};
use super::value::{Arena, Tensor, Value};
use super::view::TensorView;
use super::{
    Format, METADATA_VALUE_BYTES_MAX, NAME_BYTES_MAX, NAME_PARTS_MAX, NAMES_MAX, format_of,
    safetensors,
};

/// The tensors and scalars of a file.
///
/// A safetensors file names its tensors itself, and its `__metadata__` are texts. In a `.pt` file
/// a name is the way from the top object, by keys of dicts and indices of lists, tuples and torch's
/// `ParameterList`s with dots between: `frozen_keys.0`, or `0.1` for the second of the first pair
/// of a list. A tensor that is the top object has the empty name. What passes [`NAME_PARTS_MAX`]
/// or [`NAME_BYTES_MAX`] has no name and cannot be read; of two with one name the later counts.
#[derive(Debug)]
pub struct TensorFile<'a> {
    tensors: BTreeMap<String, Held<'a>>,
    scalars: BTreeMap<String, Scalar>,
    /// Of a `.pt` file.
    torch: Option<(Pickle<'a>, Storages<'a>)>,
}

/// A number or text that stands beside the tensors.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

/// Visits of a pickle's values: lists can stand in lists many times over.
const VISITS_MAX: usize = 1 << 20;
/// Names in a message.
const NAMES_SHOWN_MAX: usize = 8;

/// Where a tensor is found.
#[derive(Debug)]
enum Held<'a> {
    /// In the pickle's arena.
    Torch(u32),
    Safetensors(SafeView<'a>),
}

impl<'a> TensorFile<'a> {
    /// Reads what the file says of its tensors, and none of their elements. Without a `format`,
    /// the file's first bytes tell it.
    ///
    /// # Errors
    /// When the file is damaged, passes a limit, or names anything outside the allow-list.
    pub fn open(bytes: &'a [u8], format: Option<Format>) -> Result<Self, ImportError> {
        match format.or_else(|| format_of(bytes)) {
            Some(Format::Torch) => Self::open_torch(bytes),
            Some(Format::Safetensors) => Self::open_safetensors(bytes),
            Some(Format::Stored) | None => Err(ImportError::UnknownFormat),
        }
    }

    fn open_torch(bytes: &'a [u8]) -> Result<Self, ImportError> {
        let (pickle, storages) = torch::open(bytes)?;
        let mut walk = Walk {
            arena: &pickle.arena,
            tensors: BTreeMap::new(),
            scalars: BTreeMap::new(),
            visits: 0,
        };
        walk.visit(pickle.root, &mut String::new(), 0)?;
        Ok(Self {
            tensors: walk.tensors,
            scalars: walk.scalars,
            torch: Some((pickle, storages)),
        })
    }

    fn open_safetensors(bytes: &'a [u8]) -> Result<Self, ImportError> {
        let (file, texts) = safetensors::open(bytes)?;
        if file.len() + texts.len() > NAMES_MAX {
            return Err(ImportError::Names);
        }
        let tensors = file.tensors().into_iter();
        let tensors = tensors.map(|(name, tensor)| (name, Held::Safetensors(tensor)));
        let texts = texts.into_iter();
        let scalars = texts.map(|(name, text)| (name, Scalar::Text(text)));
        Ok(Self {
            tensors: tensors.filter(|(name, _)| is_name(name)).collect(),
            scalars: scalars.filter(|(name, _)| is_name(name)).collect(),
            torch: None,
        })
    }

    /// The names of the tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    #[must_use]
    pub fn scalar(&self, name: &str) -> Option<&Scalar> {
        self.scalars.get(name)
    }

    /// What is in the file, as messages say it: the first names.
    #[must_use]
    pub fn describe(&self) -> String {
        let names: Vec<_> = self.names().take(NAMES_SHOWN_MAX).map(shown).collect();
        let more = if self.tensors.len() > NAMES_SHOWN_MAX {
            ", ..."
        } else {
            ""
        };
        let count = self.tensors.len();
        format!("{count} tensors [{}{more}]", names.join(", "))
    }

    /// A tensor, whose bytes have the checksum that the file gives them (a zip archive does; the
    /// first call pays for it with a pass over the bytes); `None` when none has the name.
    ///
    /// # Errors
    /// When its bytes are missing or damaged, or it reaches beyond them.
    pub fn tensor(&mut self, name: &str) -> Result<Option<TensorView<'a>>, ImportError> {
        let Some(held) = self.tensors.get(name) else {
            return Ok(None);
        };
        let view = match (held, &mut self.torch) {
            (Held::Safetensors(tensor), _) => {
                let shape = safetensors::shape(tensor);
                let strides = safetensors::packed_strides(&shape);
                let element = safetensors::element(name, tensor)?;
                TensorView::new(element, tensor.data(), 0, [&shape, &strides])
            }
            (&Held::Torch(id), Some((pickle, storages))) => {
                let arena = &pickle.arena;
                let Tensor {
                    storage,
                    offset,
                    shape,
                    strides,
                } = arena.tensors[id as usize];
                let storage = arena.storages[storage as usize];
                let bytes = storages.bytes(arena, storage)?;
                let sizes = [shape, strides].map(|tuple| arena.sizes(tuple));
                TensorView::new(storage.element, bytes, offset, [&sizes[0], &sizes[1]])
            }
            (Held::Torch(_), None) => return Ok(None),
        };
        view.map(Some).map_err(|error| ImportError::Tensor {
            field: shown(name),
            error,
        })
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX
}

/// Names what a pickle holds.
struct Walk<'r, 'a> {
    arena: &'r Arena<'a>,
    tensors: BTreeMap<String, Held<'a>>,
    scalars: BTreeMap<String, Scalar>,
    visits: usize,
}

impl Walk<'_, '_> {
    /// Visits a value that is `parts` lists and dicts deep; `name` is as it was afterwards.
    fn visit(&mut self, value: Value, name: &mut String, parts: usize) -> Result<(), ImportError> {
        self.visits += 1;
        if self.visits > VISITS_MAX || self.tensors.len() + self.scalars.len() > NAMES_MAX {
            return Err(ImportError::Names);
        }
        if let Value::Tensor(id) = value {
            self.tensors.insert(name.clone(), Held::Torch(id));
            return Ok(());
        }
        if let Some(scalar) = self.scalar(value) {
            self.scalars.insert(name.clone(), scalar);
            return Ok(());
        }
        if parts == NAME_PARTS_MAX {
            return Ok(());
        }
        let arena = self.arena;
        if let Some(items) = arena.sequence(value) {
            for (index, &item) in items.iter().enumerate() {
                self.visit_part(&index.to_string(), item, name, parts)?;
            }
        } else if let Some(pairs) = arena.dict(value).or_else(|| arena.parameters(value)) {
            for &(key, item) in pairs {
                if let Value::Int(key) = key {
                    self.visit_part(&key.to_string(), item, name, parts)?;
                } else if let Some(key) = arena.text(key) {
                    self.visit_part(key, item, name, parts)?;
                }
            }
        }
        Ok(())
    }

    fn visit_part(
        &mut self,
        part: &str,
        value: Value,
        name: &mut String,
        parts: usize,
    ) -> Result<(), ImportError> {
        let length = name.len();
        if length + 1 + part.len() > NAME_BYTES_MAX {
            return Ok(());
        }
        if parts > 0 {
            name.push('.');
        }
        name.push_str(part);
        let visited = self.visit(value, name, parts + 1);
        name.truncate(length);
        visited
    }

    fn scalar(&self, value: Value) -> Option<Scalar> {
        match value {
            Value::Bool(value) => Some(Scalar::Bool(value)),
            Value::Int(value) => Some(Scalar::Integer(value)),
            Value::Float(value) => Some(Scalar::Float(value)),
            // Long texts are dropped: the same one may stand here many times.
            Value::Text(span) if span.length as usize <= METADATA_VALUE_BYTES_MAX => {
                self.arena.text(value).map(|text| Scalar::Text(text.into()))
            }
            Value::None
            | Value::BigInt(_)
            | Value::Text(_)
            | Value::Bytes(_)
            | Value::Latin1(_)
            | Value::List(_)
            | Value::Tuple(_)
            | Value::Dict(_)
            | Value::ParameterList(_)
            | Value::Set
            | Value::Storage(_)
            | Value::Tensor(_)
            | Value::NumpyType(_)
            | Value::Global(_) => None,
        }
    }
}
