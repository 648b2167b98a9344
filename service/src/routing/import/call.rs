//! The allow-list: what each name means, and what calling it makes.

use super::error::shown;
use super::pickle::PickleError;
use super::tensor::Element;
use super::value::{Arena, Global, Span, Storage, Tensor, Value};
use super::{MODULE_FIELDS_MAX, PICKLE_CONTAINERS_MAX, STORAGE_KEY_BYTES_MAX, TENSOR_RANK_MAX};

/// The meaning of a name; none when it is not on the list.
pub(super) fn global(module: &str, name: &str) -> Option<Global> {
    Some(match (module, name) {
        ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
        ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
        ("torch", _) => Global::StorageType(storage_type(name)?),
        ("torch.nn.modules.container", "ParameterList") => Global::ParameterList,
        ("collections", "OrderedDict") => Global::OrderedDict,
        ("collections", "defaultdict") => Global::DefaultDict,
        ("builtins" | "__builtin__", "list" | "dict" | "int" | "float") => Global::Factory,
        ("builtins" | "__builtin__", "set") => Global::Set,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Global::NumpyScalar,
        ("numpy", "dtype") => Global::NumpyType,
        ("_codecs", "encode") => Global::CodecsEncode,
        (_, _) => return None,
    })
}

fn storage_type(name: &str) -> Option<Element> {
    Some(match name {
        "BoolStorage" => Element::Bool,
        "ByteStorage" => Element::U8,
        "CharStorage" => Element::I8,
        "ShortStorage" => Element::I16,
        "IntStorage" => Element::I32,
        "LongStorage" => Element::I64,
        "HalfStorage" => Element::F16,
        "BFloat16Storage" => Element::Bf16,
        "FloatStorage" => Element::F32,
        "DoubleStorage" => Element::F64,
        _ => return None,
    })
}

/// What `function(*arguments)` makes; none when it does not take such arguments.
pub(super) fn call(
    arena: &mut Arena<'_>,
    function: Value,
    arguments: Value,
) -> Result<Option<Value>, PickleError> {
    let (Value::Global(function), Some(arguments)) = (function, arena.tuple(arguments)) else {
        return Ok(None);
    };
    match (function, arguments) {
        (
            Global::RebuildTensor,
            &[
                Value::Storage(storage),
                Value::Int(offset),
                shape,
                strides,
                _,
                _,
            ]
            | &[
                Value::Storage(storage),
                Value::Int(offset),
                shape,
                strides,
                _,
                _,
                _,
            ],
        ) => tensor(arena, storage, offset, [shape, strides]),
        (Global::RebuildParameter, &[data @ Value::Tensor(_), _, _]) => Ok(Some(data)),
        (Global::OrderedDict, &[])
        | (Global::DefaultDict, &[] | &[Value::Global(Global::Factory) | Value::None]) => {
            dict(arena).map(Some)
        }
        (Global::Set, &[Value::List(id)]) => {
            let is_empty = arena.lists[id as usize].is_empty();
            Ok(is_empty.then_some(Value::Set))
        }
        (Global::NumpyScalar, &[Value::NumpyType(element), bytes]) => {
            Ok(numpy_scalar(arena, element, bytes))
        }
        (Global::NumpyType, &[name, ..]) => numpy_type(arena, name),
        (Global::CodecsEncode, &[Value::Text(text), encoding]) => {
            let latin1 = matches!(arena.text(encoding), Some("latin1" | "latin-1"));
            Ok(latin1.then_some(Value::Latin1(text)))
        }
        (_, _) => Ok(None),
    }
}

/// The object that `class.__new__(class, *arguments)` makes; none but a list of parameters is made.
pub(super) fn new(
    arena: &mut Arena<'_>,
    class: Value,
    arguments: Value,
) -> Result<Option<Value>, PickleError> {
    let (Value::Global(Global::ParameterList), Some(&[])) = (class, arena.tuple(arguments)) else {
        return Ok(None);
    };
    let id = next_id(arena.parameter_lists.len())?;
    arena.parameter_lists.push(None);
    Ok(Some(Value::ParameterList(id)))
}

/// Checks the state that BUILD gives to an object. Only a list's parameters are kept of it: an
/// OrderedDict's attributes mean nothing here, and a numpy type's state says what its name has
/// said, but for the byte order.
pub(super) fn build(
    arena: &mut Arena<'_>,
    object: Value,
    state: Value,
) -> Result<Option<()>, PickleError> {
    if let Value::Dict(_) = object {
        return Ok(Some(()));
    }
    if let Value::ParameterList(id) = object {
        let parameters = parameters(arena, state);
        arena.parameter_lists[id as usize] = parameters;
        return Ok(parameters.map(drop));
    }
    let (Value::NumpyType(_), Some(&[_, order, ..])) = (object, arena.tuple(state)) else {
        return Ok(None);
    };
    match arena.text(order) {
        Some("<" | "|" | "=") => Ok(Some(())),
        Some(">") => Err(PickleError::NumpyType {
            name: "with big-endian bytes".into(),
        }),
        _ => Ok(None),
    }
}

/// The dict of a module's parameters. It is not copied, so that a state that is given a million
/// times costs no more than one.
fn parameters(arena: &Arena<'_>, state: Value) -> Option<u32> {
    let fields = arena.dict(state)?;
    if fields.len() > MODULE_FIELDS_MAX {
        return None;
    }
    // Of two equal keys the later counts, as in Python.
    let mut fields = fields.iter().rev();
    let (_, parameters) = fields.find(|(key, _)| arena.is_text(*key, "_parameters"))?;
    if let &Value::Dict(id) = parameters {
        Some(id)
    } else {
        None
    }
}

/// The storage that a persistent id names: `("storage", type, key, location, elements)`, and in
/// the legacy stream a sixth value for views of storages, which only the oldest files have.
pub(super) fn storage(arena: &mut Arena<'_>, id: Value) -> Option<Value> {
    let (tag, element, key, elements) = match *arena.tuple(id)? {
        [
            tag,
            Value::Global(Global::StorageType(element)),
            Value::Text(key),
            _,
            Value::Int(n),
        ]
        | [
            tag,
            Value::Global(Global::StorageType(element)),
            Value::Text(key),
            _,
            Value::Int(n),
            Value::None,
        ] => (tag, element, key, u64::try_from(n).ok()?),
        _ => return None,
    };
    if !arena.is_text(tag, "storage") || key.length as usize > STORAGE_KEY_BYTES_MAX {
        return None;
    }
    let id = next_id(arena.storages.len()).ok()?;
    arena.storages.push(Storage {
        element,
        key,
        elements,
    });
    Some(Value::Storage(id))
}

/// The index of the next value in one of the arena's vectors.
pub(super) fn next_id(length: usize) -> Result<u32, PickleError> {
    let id = u32::try_from(length).map_err(|_| PickleError::Containers)?;
    if length < PICKLE_CONTAINERS_MAX {
        Ok(id)
    } else {
        Err(PickleError::Containers)
    }
}

/// The shape and the strides stay shared tuples: a call makes 24 bytes, however often it is made.
fn tensor(
    arena: &mut Arena<'_>,
    storage: u32,
    offset: i64,
    [shape, strides]: [Value; 2],
) -> Result<Option<Value>, PickleError> {
    let (Value::Tuple(shape), Value::Tuple(strides)) = (shape, strides) else {
        return Ok(None);
    };
    let [lengths, steps] = [shape, strides].map(|id| &arena.lists[id as usize]);
    if lengths.len() > TENSOR_RANK_MAX {
        return Err(PickleError::Rank {
            rank: lengths.len(),
        });
    }
    let unsigned = |value: &Value| matches!(value, Value::Int(0..));
    let Ok(offset) = u64::try_from(offset) else {
        return Ok(None);
    };
    if lengths.len() != steps.len() || !lengths.iter().chain(steps).all(unsigned) {
        return Ok(None);
    }
    let id = next_id(arena.tensors.len())?;
    arena.tensors.push(Tensor {
        storage,
        offset,
        shape,
        strides,
    });
    Ok(Some(Value::Tensor(id)))
}

fn dict(arena: &mut Arena<'_>) -> Result<Value, PickleError> {
    let id = next_id(arena.dicts.len())?;
    arena.dicts.push(Vec::new());
    Ok(Value::Dict(id))
}

fn numpy_type(arena: &Arena<'_>, name: Value) -> Result<Option<Value>, PickleError> {
    let Some(name) = arena.text(name) else {
        return Ok(None);
    };
    let element = match name {
        "b1" | "?" => Element::Bool,
        "u1" => Element::U8,
        "i1" => Element::I8,
        "u2" => Element::U16,
        "i2" => Element::I16,
        "u4" => Element::U32,
        "i4" => Element::I32,
        "u8" => Element::U64,
        "i8" => Element::I64,
        "f2" => Element::F16,
        "f4" => Element::F32,
        "f8" => Element::F64,
        _ => return Err(PickleError::NumpyType { name: shown(name) }),
    };
    Ok(Some(Value::NumpyType(element)))
}

/// A numpy scalar becomes a plain number.
fn numpy_scalar(arena: &Arena<'_>, element: Element, bytes: Value) -> Option<Value> {
    let mut buffer = [0_u8; 8];
    let size = element.size();
    if let Value::Bytes(span) = bytes {
        buffer[..size].copy_from_slice(exactly(arena.slice(span), size)?);
    } else if let Value::Latin1(span) = bytes {
        latin1(arena, span, &mut buffer[..size])?;
    } else {
        return None;
    }
    let [one, ..] = buffer;
    let two = [buffer[0], buffer[1]];
    let four = [buffer[0], buffer[1], buffer[2], buffer[3]];
    Some(match element {
        Element::Bool => Value::Bool(one != 0),
        Element::U8 => Value::Int(one.into()),
        Element::I8 => Value::Int(i8::from_le_bytes([one]).into()),
        Element::U16 => Value::Int(u16::from_le_bytes(two).into()),
        Element::I16 => Value::Int(i16::from_le_bytes(two).into()),
        Element::U32 => Value::Int(u32::from_le_bytes(four).into()),
        Element::I32 => Value::Int(i32::from_le_bytes(four).into()),
        Element::U64 => Value::Int(i64::try_from(u64::from_le_bytes(buffer)).ok()?),
        Element::I64 => Value::Int(i64::from_le_bytes(buffer)),
        Element::F16 => Value::Float(half::f16::from_le_bytes(two).into()),
        Element::Bf16 => Value::Float(half::bf16::from_le_bytes(two).into()),
        Element::F32 => Value::Float(f32::from_le_bytes(four).into()),
        Element::F64 => Value::Float(f64::from_le_bytes(buffer)),
    })
}

fn exactly(bytes: &[u8], size: usize) -> Option<&[u8]> {
    (bytes.len() == size).then_some(bytes)
}

/// Decodes a text of exactly as many chars, each below U+0100, as `bytes` has bytes.
fn latin1(arena: &Arena<'_>, span: Span, bytes: &mut [u8]) -> Option<()> {
    let mut chars = arena.text(Value::Text(span))?.chars();
    for byte in bytes {
        *byte = u8::try_from(chars.next()?).ok()?;
    }
    chars.next().is_none().then_some(())
}
