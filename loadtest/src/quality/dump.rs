//! The donors and look-ups as JSON lines, for a comparison with other libraries.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
};

use kvatlas_proto::v1::{NamespaceSelector, namespace_selector::Selector};
use prost::Message;
use serde::Serialize;

use super::world::World;
use crate::error::LoadtestError;

#[derive(Serialize)]
struct DonorLine<'a> {
    id: &'a str,
    /// Number of the namespace, by first use.
    namespace: usize,
    tokens: &'a [u32],
    text: &'a str,
}

#[derive(Serialize)]
struct TargetLine<'a> {
    class: &'static str,
    namespace: usize,
    tokens: &'a [u32],
    text: &'a str,
    /// Tokens that the best donor covers; 0 where there is none to find.
    best: usize,
}

/// Writes `donors.jsonl` and `targets.jsonl`.
///
/// # Errors
/// When the folder cannot be made or written to.
pub fn write(folder: &Path, world: &World) -> Result<(), LoadtestError> {
    fs::create_dir_all(folder)?;
    let mut namespaces = Vec::new();
    let donors = world.donors.iter().map(|donor| DonorLine {
        id: &donor.id,
        namespace: number(&donor.namespace, &mut namespaces),
        tokens: &donor.tokens,
        text: &donor.text,
    });
    lines(&folder.join("donors.jsonl"), donors)?;
    let targets = world.questions.iter().map(|question| TargetLine {
        class: question.class.name(),
        namespace: number(&question.namespace, &mut namespaces),
        tokens: &question.tokens,
        text: &question.text,
        best: if question.class.must_miss() {
            0
        } else {
            question.best
        },
    });
    lines(&folder.join("targets.jsonl"), targets)
}

/// The number of a namespace: how many others came before it.
fn number(selector: &NamespaceSelector, seen: &mut Vec<Vec<u8>>) -> usize {
    let key = match &selector.selector {
        Some(Selector::Namespace(namespace)) => namespace.encode_to_vec(),
        Some(Selector::NamespaceId(_)) | None => Vec::new(),
    };
    seen.iter()
        .position(|known| *known == key)
        .unwrap_or_else(|| {
            seen.push(key);
            seen.len() - 1
        })
}

fn lines(path: &Path, all: impl Iterator<Item = impl Serialize>) -> Result<(), LoadtestError> {
    let mut out = BufWriter::new(File::create(path)?);
    for one in all {
        serde_json::to_writer(&mut out, &one)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}
