//! Takes a prior's fields out of an unpickled object.

use super::error::{ImportError, shown};
use super::schema::{
    self, AFFINITIES, Count, Fields, LEGACY_LIST, LISTS_BY_K, ListName, PRIOR_TYPE, SchemaError,
};
use super::tensor::{self, View};
use super::torch::Storages;
use super::value::{Arena, Tensor, Value};
use super::{METADATA_KEY_BYTES_MAX, METADATA_VALUE_BYTES_MAX};

/// The fields of a file's top object: a dict, or the affinities themselves. A field that is None
/// is absent.
pub(super) fn read<'a>(
    arena: &Arena<'a>,
    root: Value,
    storages: &mut Storages<'a>,
) -> Result<Fields, ImportError> {
    let mut reader = Reader {
        arena,
        storages,
        fields: Fields::default(),
    };
    reader.fields.found(reader.describe(root));
    if let Value::Tensor(_) = root {
        reader.affinities(root)?;
    } else if let Some(pairs) = arena.dict(root) {
        reader.top_dict(pairs)?;
    }
    Ok(reader.fields)
}

struct Reader<'r, 'a> {
    arena: &'r Arena<'a>,
    storages: &'r mut Storages<'a>,
    fields: Fields,
}

impl Reader<'_, '_> {
    fn top_dict(&mut self, pairs: &[(Value, Value)]) -> Result<(), ImportError> {
        let arena = self.arena;
        // Of two equal keys the later counts, as in Python.
        let field = |name: &str| {
            let pair = pairs.iter().rfind(|(key, _)| arena.is_text(*key, name));
            pair.map(|&(_, value)| value)
                .filter(|&value| value != Value::None)
        };
        for count in Count::ALL {
            if let Some(value) = field(count.field()) {
                let number = self.integer(count.field(), value)?;
                self.fields.count(count, number)?;
            }
        }
        if let Some(value) = field(PRIOR_TYPE) {
            let text = arena
                .text(value)
                .ok_or_else(|| kind(PRIOR_TYPE, value, "a text"))?;
            self.fields.prior_type(text)?;
        }
        if let Some(value) = field(LISTS_BY_K) {
            self.lists_by_k(value)?;
        }
        if let Some(value) = field(LEGACY_LIST) {
            self.list(ListName::Legacy, value)?;
        }
        if let Some(value) = field(AFFINITIES) {
            self.affinities(value)?;
        }
        self.metadata(pairs);
        Ok(())
    }

    fn affinities(&mut self, value: Value) -> Result<(), ImportError> {
        let Value::Tensor(id) = value else {
            return Err(kind(AFFINITIES, value, "a tensor"));
        };
        let shape = self.arena.sizes(self.arena.tensors[id as usize].shape);
        let dimensions = schema::affinity_shape(&shape)?;
        let scores = self.view(AFFINITIES, id, tensor::scores)?;
        self.fields.affinities(dimensions, scores);
        Ok(())
    }

    fn lists_by_k(&mut self, value: Value) -> Result<(), ImportError> {
        let arena = self.arena;
        let pairs = arena
            .dict(value)
            .ok_or_else(|| kind(LISTS_BY_K, value, "a dict"))?;
        for &(key, list) in pairs {
            let Value::Int(k) = key else {
                return Err(kind(&format!("a key of {LISTS_BY_K}"), key, "an integer"));
            };
            let name = self.fields.list_key(k)?;
            if list != Value::None {
                self.list(name, list)?;
            }
        }
        Ok(())
    }

    /// A block list: a list or tuple of integers or of one-element tensors, or a tensor of at most
    /// one dimension.
    fn list(&mut self, name: ListName, value: Value) -> Result<(), ImportError> {
        let arena = self.arena;
        if let Some(values) = arena.sequence(value) {
            self.fields.reserve(values.len())?;
            let field = name.to_string();
            let entries: Vec<i64> = values
                .iter()
                .map(|&value| self.integer(&field, value))
                .collect::<Result<_, _>>()?;
            return Ok(self.fields.list(name, &entries)?);
        }
        let wanted = "a list of integers";
        let Value::Tensor(id) = value else {
            return Err(kind(&name.to_string(), value, wanted));
        };
        let shape = arena.sizes(arena.tensors[id as usize].shape);
        let entries = match *shape.as_slice() {
            [] => 1,
            [entries] => entries,
            [_, _, ..] => {
                let (field, found) = (name.to_string(), "a tensor of several dimensions");
                return Err(SchemaError::Kind {
                    field,
                    found,
                    wanted,
                }
                .into());
            }
        };
        self.fields
            .reserve(usize::try_from(entries).unwrap_or(usize::MAX))?;
        let entries = self.view(&name.to_string(), id, tensor::integers)?;
        Ok(self.fields.list(name, &entries)?)
    }

    /// An integer, or a tensor of one.
    fn integer(&mut self, field: &str, value: Value) -> Result<i64, ImportError> {
        if let Value::Int(number) = value {
            return Ok(number);
        }
        let wrong = || kind(field, value, "an integer");
        let Value::Tensor(id) = value else {
            return Err(wrong());
        };
        let shape = self.arena.sizes(self.arena.tensors[id as usize].shape);
        if shape.iter().any(|&length| length != 1) {
            return Err(wrong());
        }
        self.view(field, id, tensor::integers)?
            .first()
            .copied()
            .ok_or_else(wrong)
    }

    /// Gathers a tensor's elements.
    fn view<T>(
        &mut self,
        field: &str,
        id: u32,
        gather: impl Fn(&View<'_>) -> Result<T, tensor::TensorError>,
    ) -> Result<T, ImportError> {
        let arena = self.arena;
        let Tensor {
            storage,
            offset,
            shape,
            strides,
        } = arena.tensors[id as usize];
        let storage = arena.storages[storage as usize];
        let view = View {
            element: storage.element,
            bytes: self.storages.bytes(arena, storage)?,
            offset,
            shape: &arena.sizes(shape),
            strides: &arena.sizes(strides),
        };
        gather(&view).map_err(|error| ImportError::Tensor {
            field: field.to_owned(),
            error,
        })
    }

    /// The scalars of the dict that belong to no schema.
    fn metadata(&mut self, pairs: &[(Value, Value)]) {
        for &(key, value) in pairs {
            // Long keys are not even looked at: the same one may stand here a million times.
            let Value::Text(span) = key else { continue };
            if span.length as usize > METADATA_KEY_BYTES_MAX {
                continue;
            }
            let Some(name) = self.arena.text(key) else {
                continue;
            };
            if schema::is_schema_field(name) {
                continue;
            }
            if let Some(text) = self.scalar(value) {
                self.fields.metadata(name, &text);
            }
        }
    }

    /// A scalar as text, cut; none for everything else and for integers beyond 128 bits.
    fn scalar(&self, value: Value) -> Option<String> {
        match value {
            Value::Bool(value) => Some(value.to_string()),
            Value::Int(value) => Some(value.to_string()),
            Value::Float(value) => Some(value.to_string()),
            Value::BigInt(span) => {
                let bytes = self.arena.slice(span);
                let sign = if bytes.last().is_some_and(|&byte| byte >= 0x80) {
                    0xff
                } else {
                    0
                };
                let mut wide = [sign; size_of::<i128>()];
                wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
                Some(i128::from_le_bytes(wide).to_string())
            }
            Value::Text(span) => {
                let bytes = self.arena.slice(span);
                let bytes = &bytes[..bytes.len().min(METADATA_VALUE_BYTES_MAX)];
                // The cut may go through a char.
                let valid = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
                Some(valid.to_owned())
            }
            Value::None
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

    /// What the top object is, for the message that it is no prior: a cartridge shows itself by
    /// its keys.
    fn describe(&self, root: Value) -> String {
        const KEYS_MAX: usize = 8;
        if let Some(items) = self.arena.sequence(root) {
            return format!("{} of {}", root.kind(), items.len());
        }
        let Some(pairs) = self.arena.dict(root) else {
            return root.kind().to_owned();
        };
        let keys = pairs
            .iter()
            .take(KEYS_MAX)
            .map(|&(key, _)| match self.arena.text(key) {
                Some(key) => shown(key),
                None => key.kind().to_owned(),
            });
        let more = if pairs.len() > KEYS_MAX { ", ..." } else { "" };
        format!(
            "a dict with the keys [{}{more}]",
            keys.collect::<Vec<_>>().join(", ")
        )
    }
}

fn kind(field: &str, found: Value, wanted: &'static str) -> ImportError {
    SchemaError::Kind {
        field: field.to_owned(),
        found: found.kind(),
        wanted,
    }
    .into()
}
