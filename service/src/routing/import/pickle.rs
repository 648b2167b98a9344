//! The pickle machine: protocols 2 to 5, bounded, allow-listed, executing nothing.
//!
//! Opcodes are those of CPython's `Lib/pickletools.py`. What only an unpickler that builds foreign
//! objects needs (INST, OBJ, EXT, persistent ids as text, out-of-band buffers) is refused.

use super::call::{self, global};
use super::error::shown;
use super::value::{Arena, Span, Value};
use super::{PICKLE_CONTAINERS_MAX, PICKLE_MEMO_MAX, PICKLE_STEPS_MAX, TENSOR_RANK_MAX};

/// A pickle that was read to its STOP.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    pub arena: Arena<'a>,
    pub root: Value,
    /// Bytes up to and with STOP.
    pub length: usize,
}

/// Why a pickle was refused. `at` counts bytes from its start.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    #[error("it does not begin with a protocol")]
    NoProtocol,
    #[error("it has protocol {protocol}; 2 to 5 are read")]
    Protocol { protocol: u8 },
    #[error("it is cut off at byte {at}")]
    Truncated { at: usize },
    #[error("opcode {opcode:#04x} at byte {at} is not supported")]
    Opcode { opcode: u8, at: usize },
    #[error("{name} at byte {at} is refused: only tensors, numpy scalars and plain data are read")]
    Global { name: String, at: usize },
    #[error("{what} at byte {at} has operands of a wrong kind")]
    Operands { what: &'static str, at: usize },
    #[error("the text at byte {at} is not UTF-8")]
    Text { at: usize },
    #[error("memo {index} is read at byte {at} before it is written")]
    Memo { index: usize, at: usize },
    #[error("memo {index} is written; at most {PICKLE_MEMO_MAX} are kept")]
    MemoIndex { index: usize },
    #[error("the numpy type {name} is not supported")]
    NumpyType { name: String },
    #[error("it has more than {PICKLE_STEPS_MAX} opcodes")]
    Steps,
    #[error("it has more than {PICKLE_CONTAINERS_MAX} lists, tuples, dicts and tensors")]
    Containers,
    #[error("a tensor has {rank} dimensions; at most {TENSOR_RANK_MAX} are read")]
    Rank { rank: usize },
}

/// Reads the pickle at the start of `bytes`; what follows its STOP is left alone.
pub(super) fn read(bytes: &[u8]) -> Result<Pickle<'_>, PickleError> {
    let [PROTO, protocol, ..] = *bytes else {
        return Err(PickleError::NoProtocol);
    };
    if !(2..=5).contains(&protocol) {
        return Err(PickleError::Protocol { protocol });
    }
    let mut machine = Machine {
        arena: Arena {
            bytes,
            ..Arena::default()
        },
        at: 2,
        opcode_at: 2,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        memoized: 0,
    };
    for _ in 0..PICKLE_STEPS_MAX {
        machine.opcode_at = machine.at;
        let opcode = machine.byte()?;
        if opcode == STOP {
            let root = machine.pop("STOP")?;
            return Ok(Pickle {
                arena: machine.arena,
                root,
                length: machine.at,
            });
        }
        machine.step(opcode)?;
    }
    Err(PickleError::Steps)
}

const PROTO: u8 = 0x80;
const STOP: u8 = b'.';

struct Machine<'a> {
    arena: Arena<'a>,
    at: usize,
    opcode_at: usize,
    stack: Vec<Value>,
    /// Heights of the stack; nothing below the topmost is popped.
    marks: Vec<usize>,
    memo: Vec<Option<Value>>,
    /// Memo slots in use; MEMOIZE writes the next.
    memoized: usize,
}

impl<'a> Machine<'a> {
    fn step(&mut self, opcode: u8) -> Result<(), PickleError> {
        if let Some(value) = self.scalar(opcode)? {
            self.stack.push(value);
            return Ok(());
        }
        if self.stack_opcode(opcode)? || self.container(opcode)? || self.object(opcode)? {
            if self.arena.containers() > PICKLE_CONTAINERS_MAX {
                return Err(PickleError::Containers);
            }
            return Ok(());
        }
        Err(PickleError::Opcode {
            opcode,
            at: self.opcode_at,
        })
    }

    /// Opcodes that only push a value without parts.
    fn scalar(&mut self, opcode: u8) -> Result<Option<Value>, PickleError> {
        Ok(Some(match opcode {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'J' => Value::Int(i32::from_le_bytes(self.array()?).into()),
            b'K' => Value::Int(self.byte()?.into()),
            b'M' => Value::Int(u16::from_le_bytes(self.array()?).into()),
            0x8a => self.length_u8().and_then(|length| self.long(length))?,
            0x8b => self.length_u32().and_then(|length| self.long(length))?,
            b'G' => Value::Float(f64::from_be_bytes(self.array()?)),
            b'X' => self.length_u32().and_then(|length| self.text(length))?,
            0x8c => self.length_u8().and_then(|length| self.text(length))?,
            0x8d => self.length_u64().and_then(|length| self.text(length))?,
            // What Python 2 called a string: text where it can be.
            b'T' => self
                .length_u32()
                .and_then(|length| self.text_or_bytes(length))?,
            b'U' => self
                .length_u8()
                .and_then(|length| self.text_or_bytes(length))?,
            b'B' => Value::Bytes(self.length_u32().and_then(|length| self.span(length))?),
            b'C' => Value::Bytes(self.length_u8().and_then(|length| self.span(length))?),
            // Always stays empty: ADDITEMS is refused.
            0x8f => Value::Set,
            0x8e | 0x96 => Value::Bytes(self.length_u64().and_then(|length| self.span(length))?),
            _ => return Ok(None),
        }))
    }

    /// Opcodes that move values between the stack and the memo. False when it is none of them.
    fn stack_opcode(&mut self, opcode: u8) -> Result<bool, PickleError> {
        match opcode {
            // A frame only says how much could be read ahead.
            0x95 => {
                let length = self.length_u64()?;
                if length > self.arena.bytes.len() - self.at {
                    return Err(PickleError::Truncated {
                        at: self.arena.bytes.len(),
                    });
                }
            }
            b'(' => self.marks.push(self.stack.len()),
            // POP removes a mark where that is on top.
            b'0' => {
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.pop("POP")?;
                }
            }
            b'1' => drop(self.pop_mark("POP_MARK")?),
            b'2' => {
                let top = self.top("DUP")?;
                self.stack.push(top);
            }
            b'h' => self.length_u8().and_then(|index| self.get(index))?,
            b'j' => self.length_u32().and_then(|index| self.get(index))?,
            b'q' => self.length_u8().and_then(|index| self.put(index))?,
            b'r' => self.length_u32().and_then(|index| self.put(index))?,
            0x94 => self.put(self.memoized)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Opcodes that make or fill lists, tuples and dicts. False when it is none of them.
    fn container(&mut self, opcode: u8) -> Result<bool, PickleError> {
        match opcode {
            b']' => self.push_list(Vec::new(), Value::List)?,
            b'l' => self
                .pop_mark("LIST")
                .and_then(|items| self.push_list(items, Value::List))?,
            b'a' => self
                .pop("APPEND")
                .and_then(|item| self.append("APPEND", &[item]))?,
            b'e' => self
                .pop_mark("APPENDS")
                .and_then(|items| self.append("APPENDS", &items))?,
            b')' => self.push_list(Vec::new(), Value::Tuple)?,
            b't' => self
                .pop_mark("TUPLE")
                .and_then(|items| self.push_list(items, Value::Tuple))?,
            0x85..=0x87 => {
                let mut items = vec![Value::None; usize::from(opcode - 0x84)];
                for item in items.iter_mut().rev() {
                    *item = self.pop("TUPLE")?;
                }
                self.push_list(items, Value::Tuple)?;
            }
            b'}' => self.push_dict()?,
            b'd' => {
                let items = self.pop_mark("DICT")?;
                self.push_dict()?;
                self.set_items("DICT", &items)?;
            }
            b's' => {
                let (value, key) = (self.pop("SETITEM")?, self.pop("SETITEM")?);
                self.set_items("SETITEM", &[key, value])?;
            }
            b'u' => {
                self.pop_mark("SETITEMS")
                    .and_then(|items| self.set_items("SETITEMS", &items))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Opcodes about names and what stands behind them. False when it is none of them.
    fn object(&mut self, opcode: u8) -> Result<bool, PickleError> {
        match opcode {
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push_global(module, name)?;
            }
            0x93 => {
                let (name, module) = (self.pop("STACK_GLOBAL")?, self.pop("STACK_GLOBAL")?);
                match (self.arena.text(module), self.arena.text(name)) {
                    (Some(module), Some(name)) => self.push_global(module, name)?,
                    (_, _) => return Err(self.operands("STACK_GLOBAL")),
                }
            }
            b'R' => {
                let (arguments, function) = (self.pop("REDUCE")?, self.pop("REDUCE")?);
                let made = call::call(&mut self.arena, function, arguments)?;
                self.stack
                    .push(made.ok_or_else(|| self.operands("REDUCE"))?);
            }
            0x81 => {
                let (arguments, class) = (self.pop("NEWOBJ")?, self.pop("NEWOBJ")?);
                let made = call::new(&mut self.arena, class, arguments)?;
                self.stack
                    .push(made.ok_or_else(|| self.operands("NEWOBJ"))?);
            }
            b'b' => {
                let (state, object) = (self.pop("BUILD")?, self.top("BUILD")?);
                call::build(&mut self.arena, object, state)?
                    .ok_or_else(|| self.operands("BUILD"))?;
            }
            b'Q' => {
                let id = self.pop("BINPERSID")?;
                let storage = call::storage(&mut self.arena, id);
                self.stack
                    .push(storage.ok_or_else(|| self.operands("BINPERSID"))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn push_global(&mut self, module: &str, name: &str) -> Result<(), PickleError> {
        let known = global(module, name).ok_or_else(|| PickleError::Global {
            name: shown(&format!("{module}.{name}")),
            at: self.opcode_at,
        })?;
        self.stack.push(Value::Global(known));
        Ok(())
    }

    fn push_list(&mut self, items: Vec<Value>, kind: fn(u32) -> Value) -> Result<(), PickleError> {
        let id = call::next_id(self.arena.lists.len())?;
        self.arena.lists.push(items);
        self.stack.push(kind(id));
        Ok(())
    }

    fn push_dict(&mut self) -> Result<(), PickleError> {
        let id = call::next_id(self.arena.dicts.len())?;
        self.arena.dicts.push(Vec::new());
        self.stack.push(Value::Dict(id));
        Ok(())
    }

    /// Appends to the list on top of the stack.
    fn append(&mut self, what: &'static str, items: &[Value]) -> Result<(), PickleError> {
        let Value::List(id) = self.top(what)? else {
            return Err(self.operands(what));
        };
        self.arena.lists[id as usize].extend_from_slice(items);
        Ok(())
    }

    /// Adds keys and values in turn to the dict on top of the stack.
    fn set_items(&mut self, what: &'static str, items: &[Value]) -> Result<(), PickleError> {
        let (pairs, rest) = items.as_chunks::<2>();
        let Value::Dict(id) = self.top(what)? else {
            return Err(self.operands(what));
        };
        if !rest.is_empty() {
            return Err(self.operands(what));
        }
        self.arena.dicts[id as usize].extend(pairs.iter().map(|&[key, value]| (key, value)));
        Ok(())
    }

    fn get(&mut self, index: usize) -> Result<(), PickleError> {
        let value = self.memo.get(index).copied().flatten();
        self.stack.push(value.ok_or(PickleError::Memo {
            index,
            at: self.opcode_at,
        })?);
        Ok(())
    }

    fn put(&mut self, index: usize) -> Result<(), PickleError> {
        if index >= PICKLE_MEMO_MAX {
            return Err(PickleError::MemoIndex { index });
        }
        let top = self.top("PUT")?;
        if index >= self.memo.len() {
            self.memo.resize(index + 1, None);
        }
        if self.memo[index].replace(top).is_none() {
            self.memoized += 1;
        }
        Ok(())
    }

    fn top(&self, what: &'static str) -> Result<Value, PickleError> {
        let mark = self.marks.last().copied().unwrap_or(0);
        self.stack[mark..]
            .last()
            .copied()
            .ok_or_else(|| self.operands(what))
    }

    fn pop(&mut self, what: &'static str) -> Result<Value, PickleError> {
        let top = self.top(what)?;
        self.stack.pop();
        Ok(top)
    }

    /// Takes everything above the topmost mark, and the mark.
    fn pop_mark(&mut self, what: &'static str) -> Result<Vec<Value>, PickleError> {
        let mark = self.marks.pop().ok_or_else(|| self.operands(what))?;
        Ok(self.stack.split_off(mark))
    }

    fn operands(&self, what: &'static str) -> PickleError {
        PickleError::Operands {
            what,
            at: self.opcode_at,
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], PickleError> {
        let rest = &self.arena.bytes[self.at..];
        let taken = rest
            .get(..length)
            .ok_or(PickleError::Truncated { at: self.at })?;
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let at = self.at;
        self.take(N)?
            .try_into()
            .map_err(|_| PickleError::Truncated { at })
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        self.array().map(|[byte]| byte)
    }

    fn length_u8(&mut self) -> Result<usize, PickleError> {
        self.byte().map(usize::from)
    }

    fn length_u32(&mut self) -> Result<usize, PickleError> {
        let length = u32::from_le_bytes(self.array()?);
        usize::try_from(length).map_err(|_| PickleError::Truncated { at: self.at })
    }

    fn length_u64(&mut self) -> Result<usize, PickleError> {
        let length = u64::from_le_bytes(self.array()?);
        usize::try_from(length).map_err(|_| PickleError::Truncated { at: self.at })
    }

    fn span(&mut self, length: usize) -> Result<Span, PickleError> {
        let at = self.at;
        self.take(length)?;
        match (u32::try_from(at), u32::try_from(length)) {
            (Ok(start), Ok(length)) => Ok(Span { start, length }),
            (_, _) => Err(PickleError::Truncated { at }),
        }
    }

    fn text(&mut self, length: usize) -> Result<Value, PickleError> {
        let span = self.span(length)?;
        match str::from_utf8(self.arena.slice(span)) {
            Ok(_) => Ok(Value::Text(span)),
            Err(_) => Err(PickleError::Text { at: self.opcode_at }),
        }
    }

    fn text_or_bytes(&mut self, length: usize) -> Result<Value, PickleError> {
        let span = self.span(length)?;
        let is_text = str::from_utf8(self.arena.slice(span)).is_ok();
        Ok(if is_text {
            Value::Text(span)
        } else {
            Value::Bytes(span)
        })
    }

    /// A little-endian two's complement integer of any length.
    fn long(&mut self, length: usize) -> Result<Value, PickleError> {
        let span = self.span(length)?;
        let bytes = self.arena.slice(span);
        let Some(sign) = bytes.last().map(|&byte| if byte < 0x80 { 0 } else { 0xff }) else {
            return Ok(Value::Int(0));
        };
        if length > size_of::<i64>() {
            return Ok(Value::BigInt(span));
        }
        let mut wide = [sign; size_of::<i64>()];
        wide[..length].copy_from_slice(bytes);
        Ok(Value::Int(i64::from_le_bytes(wide)))
    }

    /// Text up to a line feed, which GLOBAL ends its two names with.
    fn line(&mut self) -> Result<&'a str, PickleError> {
        const LINE_BYTES_MAX: usize = 256;
        let at = self.at;
        let rest = &self.arena.bytes[at..];
        let window = &rest[..rest.len().min(LINE_BYTES_MAX)];
        let end = window.iter().position(|&byte| byte == b'\n');
        let line = self.take(end.ok_or(PickleError::Truncated { at })? + 1)?;
        str::from_utf8(&line[..line.len() - 1]).map_err(|_| PickleError::Text { at })
    }
}
