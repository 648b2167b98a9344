//! The sources that an operator names: on the command line, and in a file that is read again.

use std::{
    collections::{HashMap, hash_map::Entry},
    path::Path,
};

use kvatlas_events::feed::{Source, SourceError};

use crate::donors::namespace::{Namespace, NamespaceFault, tenant_key};

/// Sources over ZMQ at a time, and as many owners over gRPC.
pub const SOURCES_MAX: usize = 1024;
/// The longest file of sources.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
/// The longest namespace file.
const NAMESPACE_BYTES_MAX: u64 = 64 << 10;

/// A source with what its namespace file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSource {
    pub source: Source,
    pub namespace: Option<Namespace>,
}

/// Why a source cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    #[error("{path}: {error}")]
    Unreadable { path: String, error: std::io::Error },
    #[error("{path} has more than {max} bytes")]
    TooLarge { path: String, max: u64 },
    #[error("{path}, line {line}: {error}")]
    Line {
        path: String,
        line: usize,
        error: SourceError,
    },
    #[error("{path}, line {line}: rank {rank} of that worker is on line {before} too")]
    Twice {
        path: String,
        line: usize,
        rank: u32,
        before: usize,
    },
    #[error("{path} is not a namespace file: {why}")]
    Namespace { path: String, why: String },
    #[error("{path} names more than {SOURCES_MAX} sources")]
    TooMany { path: String },
}

/// Every line of a file of sources. Empty lines and those that begin with `#` say nothing.
pub fn read(path: &Path) -> Result<Vec<NamedSource>, SourcesError> {
    let text = read_bounded(path, FILE_BYTES_MAX)?;
    let name = || path.display().to_string();
    let mut sources = Vec::new();
    let mut lines: HashMap<(String, u32), (usize, Source)> = HashMap::new();
    for (at, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if sources.len() == SOURCES_MAX {
            return Err(SourcesError::TooMany { path: name() });
        }
        let line_number = at + 1;
        let source: Source = line.parse().map_err(|error| SourcesError::Line {
            path: name(),
            line: line_number,
            error,
        })?;
        match lines.entry((source.worker.clone(), source.rank)) {
            Entry::Vacant(free) => {
                free.insert((line_number, source.clone()));
            }
            // The very same source may stand there twice.
            Entry::Occupied(known) if known.get().1 == source => {}
            Entry::Occupied(known) => {
                return Err(SourcesError::Twice {
                    path: name(),
                    line: line_number,
                    rank: source.rank,
                    before: known.get().0,
                });
            }
        }
        sources.push(named(source)?);
    }
    Ok(sources)
}

/// Reads the namespace file that a source names.
pub fn named(source: Source) -> Result<NamedSource, SourcesError> {
    let namespace = source
        .namespace
        .as_deref()
        .map(read_namespace)
        .transpose()?;
    Ok(NamedSource { source, namespace })
}

fn read_namespace(path: &Path) -> Result<Namespace, SourcesError> {
    let text = read_bounded(path, NAMESPACE_BYTES_MAX)?;
    let invalid = |why: String| SourcesError::Namespace {
        path: path.display().to_string(),
        why,
    };
    // What serde says can hold values of the file, and so a salt; where it is cannot.
    let file: crate::config::NamespaceFile = serde_json::from_str(&text).map_err(|error| {
        invalid(format!(
            "line {}, column {}: not the JSON that `kvatlas donor namespace-template` prints",
            error.line(),
            error.column()
        ))
    })?;
    let namespace = Namespace {
        model: file.model,
        model_revision: file.model_revision,
        tokenizer: file.tokenizer,
        tokenizer_revision: file.tokenizer_revision,
        tokenization: file.tokenization,
        chat_template: file.chat_template,
        dtype: file.dtype,
        kv_cache_dtype: file.kv_cache_dtype,
        block_size: file.block_size,
        kv_layout: file.kv_layout,
        attention_backend: file.attention_backend,
        tensor_parallel_size: file.tensor_parallel_size,
        pipeline_parallel_size: file.pipeline_parallel_size,
        adapter: file.adapter,
        rope_scaling: file.rope_scaling,
        multimodal_hashes: file.multimodal_hashes,
        // An engine serves all tenants; its events say whose each block is.
        tenant_key: tenant_key(None),
    };
    namespace.check().map_err(|fault| {
        invalid(match fault {
            NamespaceFault::Incomplete { field } => format!("{field} is empty"),
            NamespaceFault::Malformed { field, problem } => format!("{field}: {problem}"),
        })
    })?;
    Ok(namespace)
}

fn read_bounded(path: &Path, max: u64) -> Result<String, SourcesError> {
    use std::io::Read;
    let name = || path.display().to_string();
    let unreadable = |error| SourcesError::Unreadable {
        path: name(),
        error,
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let read = file.take(max + 1).read_to_string(&mut text);
    if read.map_err(unreadable)? as u64 > max {
        return Err(SourcesError::TooLarge { path: name(), max });
    }
    Ok(text)
}
