//! What engines publish in the scenarios: fixtures as they are, parts of them, and their like.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

/// A fixture, byte by byte.
pub(crate) fn fixture(name: &str) -> Vec<u8> {
    fs::read(path(&format!("payloads/{name}.msgpack"))).unwrap()
}

/// Some of a fixture's events, in one batch.
pub(crate) fn part(name: &str, events: &[usize]) -> Vec<u8> {
    let decoded = decoded(name);
    let all = &decoded[1];
    let some: Vec<_> = events.iter().map(|&at| all[at].clone()).collect();
    batch(&some)
}

/// A fixture's batch with its first event, or itself, changed.
pub(crate) fn changed(name: &str, change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut decoded = decoded(name);
    change(&mut decoded);
    write(&decoded)
}

pub(crate) fn batch(events: &[Value]) -> Vec<u8> {
    write(&json!([1.5, events, 0]))
}

/// Blocks of 16 tokens on the device.
pub(crate) fn stored(hashes: &[u64], parent: Option<u64>, first_token: u32) -> Value {
    let tokens = u32::try_from(hashes.len()).unwrap() * 16;
    json!({
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": (first_token..first_token + tokens).collect::<Vec<_>>(),
        "block_size": 16,
        "lora_id": null,
        "medium": "GPU",
        "lora_name": null,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    })
}

pub(crate) fn removed(hashes: &[u64]) -> Value {
    json!({"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0})
}

pub(crate) fn event(name: &str, at: usize) -> Value {
    decoded(name)[1][at].clone()
}

fn decoded(name: &str) -> Value {
    let text = fs::read_to_string(path(&format!("decoded/{name}.json"))).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["decoded"].take()
}

fn path(name: &str) -> PathBuf {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../events/tests/fixtures");
    tests.join(name)
}

/// The value in msgpack; `{"$bytes": hex}` is bytes.
fn write(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    put(value, &mut out);
    out
}

fn put(value: &Value, out: &mut Vec<u8>) {
    let long = |length: usize| u32::try_from(length).unwrap().to_be_bytes();
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(is) => out.push(0xc2 + u8::from(*is)),
        Value::Number(number) => {
            if let Some(number) = number.as_u64() {
                out.push(0xcf);
                out.extend(number.to_be_bytes());
            } else if let Some(number) = number.as_i64() {
                out.push(0xd3);
                out.extend(number.to_be_bytes());
            } else {
                out.push(0xcb);
                out.extend(number.as_f64().unwrap().to_be_bytes());
            }
        }
        Value::String(text) => {
            out.push(0xdb);
            out.extend(long(text.len()));
            out.extend(text.as_bytes());
        }
        Value::Array(values) => {
            out.push(0xdd);
            out.extend(long(values.len()));
            values.iter().for_each(|value| put(value, out));
        }
        Value::Object(fields) => {
            if let Some(hex) = fields.get("$bytes").and_then(Value::as_str) {
                out.push(0xc6);
                out.extend(long(hex.len() / 2));
                let digits = hex.as_bytes().chunks(2);
                out.extend(digits.map(|pair| {
                    u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()
                }));
                return;
            }
            out.push(0xdf);
            out.extend(long(fields.len()));
            for (name, value) in fields {
                put(&Value::from(name.as_str()), out);
                put(value, out);
            }
        }
    }
}
