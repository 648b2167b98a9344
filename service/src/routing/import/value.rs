//! What a pickle holds: an arena of plain values, where sharing is an index and costs nothing.
//!
//! A list that is referenced twice, or that holds itself, is one list with two indices to it. So
//! there is nothing to expand, nothing to recurse into and nothing to free deeply: a memo bomb
//! takes the memory of its own few bytes.

use super::tensor::Element;

/// One value; 16 bytes, copied freely. The larger ones are indices into their [`Arena`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer outside i64: little-endian two's complement.
    BigInt(Span),
    Float(f64),
    Text(Span),
    Bytes(Span),
    /// Bytes that were written as text, a byte for each char up to U+00FF.
    Latin1(Span),
    List(u32),
    Tuple(u32),
    Dict(u32),
    /// Torch's list of parameters, which is an object.
    ParameterList(u32),
    /// A set, which is only ever empty.
    Set,
    Storage(u32),
    Tensor(u32),
    NumpyType(Element),
    Global(Global),
}

/// Where a text or byte string lies in the pickle. Files have less than 4 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub start: u32,
    pub length: u32,
}

/// The allow-list: everything that a pickle may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    RebuildTensor,
    RebuildParameter,
    StorageType(Element),
    OrderedDict,
    DefaultDict,
    /// `list` and its like, which a defaultdict is made with. Never called.
    Factory,
    ParameterList,
    Set,
    NumpyScalar,
    NumpyType,
    CodecsEncode,
}

/// The values that a [`Value`] points to.
#[derive(Debug, Default)]
pub(super) struct Arena<'a> {
    /// The pickle that the spans point into.
    pub bytes: &'a [u8],
    /// Lists and tuples.
    pub lists: Vec<Vec<Value>>,
    pub dicts: Vec<Vec<(Value, Value)>>,
    /// The dict of each one's parameters, by index as text; none while it has no state.
    pub parameter_lists: Vec<Option<u32>>,
    pub storages: Vec<Storage>,
    pub tensors: Vec<Tensor>,
}

/// Names the bytes of a tensor, which lie outside the pickle.
#[derive(Debug, Clone, Copy)]
pub(super) struct Storage {
    pub element: Element,
    pub key: Span,
    pub elements: u64,
}

/// A view of a storage; offset and strides count elements.
#[derive(Debug)]
pub(super) struct Tensor {
    pub storage: u32,
    pub offset: u64,
    /// A tuple of non-negative integers.
    pub shape: u32,
    /// Another, of the same length.
    pub strides: u32,
}

impl<'a> Arena<'a> {
    pub(super) fn slice(&self, span: Span) -> &'a [u8] {
        let start = span.start as usize;
        &self.bytes[start..start + span.length as usize]
    }

    /// The text of a value that is one. Spans of texts were checked when they were read.
    pub(super) fn text(&self, value: Value) -> Option<&'a str> {
        if let Value::Text(span) = value {
            str::from_utf8(self.slice(span)).ok()
        } else {
            None
        }
    }

    /// Whether a value is the text `name`. Compares lengths first: keys may be long and many.
    pub(super) fn is_text(&self, value: Value, name: &str) -> bool {
        matches!(value, Value::Text(span) if self.slice(span) == name.as_bytes())
    }

    pub(super) fn tuple(&self, value: Value) -> Option<&[Value]> {
        if let Value::Tuple(id) = value {
            Some(&self.lists[id as usize])
        } else {
            None
        }
    }

    /// A list's or a tuple's elements.
    pub(super) fn sequence(&self, value: Value) -> Option<&[Value]> {
        if let Value::List(id) = value {
            Some(&self.lists[id as usize])
        } else {
            self.tuple(value)
        }
    }

    pub(super) fn dict(&self, value: Value) -> Option<&[(Value, Value)]> {
        if let Value::Dict(id) = value {
            Some(&self.dicts[id as usize])
        } else {
            None
        }
    }

    /// The parameters of a list of them, by index as text.
    pub(super) fn parameters(&self, value: Value) -> Option<&[(Value, Value)]> {
        if let Value::ParameterList(id) = value {
            self.parameter_lists[id as usize].and_then(|id| self.dict(Value::Dict(id)))
        } else {
            None
        }
    }

    /// The non-negative integers of a tensor's shape or strides.
    pub(super) fn sizes(&self, tuple: u32) -> Vec<u64> {
        let size = |&value: &Value| {
            if let Value::Int(size) = value {
                u64::try_from(size).ok()
            } else {
                None
            }
        };
        self.lists[tuple as usize].iter().filter_map(size).collect()
    }

    pub(super) fn containers(&self) -> usize {
        self.lists.len()
            + self.dicts.len()
            + self.parameter_lists.len()
            + self.storages.len()
            + self.tensors.len()
    }
}

impl Storage {
    /// Its size; none when that passes 64 bits.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.elements
            .checked_mul(u64::try_from(self.element.size()).ok()?)
    }
}

impl Value {
    /// What a message calls a value of this kind.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bool(_) => "a bool",
            Self::Int(_) | Self::BigInt(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "a text",
            Self::Bytes(_) | Self::Latin1(_) => "bytes",
            Self::List(_) => "a list",
            Self::Tuple(_) => "a tuple",
            Self::Dict(_) => "a dict",
            Self::ParameterList(_) => "a ParameterList",
            Self::Set => "a set",
            Self::Storage(_) => "a storage",
            Self::Tensor(_) => "a tensor",
            Self::NumpyType(_) => "a numpy dtype",
            Self::Global(_) => "a class or function",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_small() {
        assert_eq!(size_of::<Value>(), 16);
    }
}
