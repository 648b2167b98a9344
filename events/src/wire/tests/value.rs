//! Writes msgpack values, with the shortest headers or with the longest.

/// A value to write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Nil,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Headers {
    Shortest,
    Longest,
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Nil, Into::into)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Integer(value.into())
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Integer(value.into())
    }
}

/// A list of what can be written.
pub(crate) fn list<T: Into<Value>>(values: impl IntoIterator<Item = T>) -> Value {
    Value::List(values.into_iter().map(Into::into).collect())
}

/// A map with names for keys.
pub(crate) fn map(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::Map(
        fields
            .into_iter()
            .map(|(name, value)| (name.into(), value))
            .collect(),
    )
}

pub(crate) fn encode(value: &Value, headers: Headers) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(value, headers, &mut bytes);
    bytes
}

fn write(value: &Value, headers: Headers, out: &mut Vec<u8>) {
    match value {
        Value::Nil => out.push(0xc0),
        Value::Bool(value) => out.push(0xc2 + u8::from(*value)),
        Value::Integer(value) => write_integer(*value, headers, out),
        Value::Float(value) => {
            out.push(0xcb);
            out.extend(value.to_bits().to_be_bytes());
        }
        Value::Text(text) => {
            write_length(
                text.len(),
                headers,
                [Some((0xa0, 31)), Some((0xd9, 0))],
                out,
            );
            out.extend(text.as_bytes());
        }
        Value::Bytes(bytes) => {
            write_length(bytes.len(), headers, [None, Some((0xc4, 0))], out);
            out.extend(bytes);
        }
        Value::List(values) => {
            write_length(
                values.len(),
                headers,
                [Some((0x90, 15)), Some((0xdb, 1))],
                out,
            );
            values.iter().for_each(|value| write(value, headers, out));
        }
        Value::Map(fields) => {
            write_length(
                fields.len(),
                headers,
                [Some((0x80, 15)), Some((0xdd, 1))],
                out,
            );
            for (key, value) in fields {
                write(key, headers, out);
                write(value, headers, out);
            }
        }
    }
}

/// `forms`: the marker that holds a length up to a bound itself, and the marker that would stand
/// before one byte of length, with the shortest power of two of bytes that there is.
fn write_length(
    length: usize,
    headers: Headers,
    forms: [Option<(u8, usize)>; 2],
    out: &mut Vec<u8>,
) {
    let [within, before] = forms;
    if let Some((marker, max)) = within
        && length <= max
        && headers == Headers::Shortest
    {
        out.push(marker + u8::try_from(length).unwrap());
        return;
    }
    let (marker, shortest) = before.unwrap();
    let needed = match (headers, length) {
        (Headers::Shortest, 0..=0xff) => 0,
        (Headers::Shortest, 0x100..=0xffff) => 1,
        _ => 2,
    };
    let power = needed.max(shortest);
    out.push(marker + u8::try_from(power).unwrap());
    let bytes = u32::try_from(length).unwrap().to_be_bytes();
    out.extend(&bytes[4 - (1 << power)..]);
}

fn write_integer(value: i128, headers: Headers, out: &mut Vec<u8>) {
    let powers = if headers == Headers::Longest {
        3..4
    } else {
        0..4
    };
    if headers == Headers::Shortest && (-32..128).contains(&value) {
        out.push(value.to_be_bytes()[15]);
        return;
    }
    for power in powers {
        let bits = 8_u32 << power;
        let (marker, fits) = if value < 0 {
            (0xd0, value >= -(1_i128 << (bits - 1)))
        } else {
            (0xcc, value < 1_i128 << bits)
        };
        if fits {
            out.push(marker + power);
            out.extend(&value.to_be_bytes()[16 - (1 << power)..]);
            return;
        }
    }
    panic!("no integer of msgpack");
}
