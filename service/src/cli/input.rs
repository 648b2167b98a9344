//! What commands take from files and arguments: namespaces, tokens, owners, lease ids.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::error::CliError;
use crate::config::NamespaceFile;
use bytes::Bytes;
use kvatlas_client::{Namespace, NamespaceRef, Tokens, tenant_key, v1};
use serde_json::{Value, json};

/// A namespace file to fill in, with its fields in their order, and as a value.
pub(super) fn namespace_template() -> (String, Value) {
    let file = NamespaceFile {
        model: "meta-llama/Llama-3.1-8B-Instruct".into(),
        model_revision: "main".into(),
        tokenizer: "meta-llama/Llama-3.1-8B-Instruct".into(),
        tokenizer_revision: "main".into(),
        tokenization: "default".into(),
        chat_template: "default".into(),
        dtype: "bfloat16".into(),
        kv_cache_dtype: "auto".into(),
        block_size: 16,
        kv_layout: "NHD".into(),
        attention_backend: "flash_attn".into(),
        tensor_parallel_size: 1,
        pipeline_parallel_size: 1,
        adapter: "none".into(),
        rope_scaling: "none".into(),
        multimodal_hashes: Vec::new(),
        cache_salt: None,
        tenant_key: Some("semblend:tenant:v1:none".into()),
    };
    let text = serde_json::to_string_pretty(&file);
    let text = text.expect("a struct of strings and numbers is always JSON");
    (text + "\n", json!(file))
}

/// A prompt's text.
pub(super) fn text(path: &Path) -> Result<String, CliError> {
    fs::read_to_string(path).map_err(|source| CliError::File {
        path: path.into(),
        source,
    })
}

/// A namespace by its file, or by the id that an earlier answer showed.
pub(super) fn namespace(file_or_id: &str) -> Result<NamespaceRef, CliError> {
    if let Ok(id) = NamespaceRef::id(file_or_id) {
        return Ok(id);
    }
    whole_namespace(Path::new(file_or_id)).map(NamespaceRef::Full)
}

/// A namespace by its file.
pub(super) fn whole_namespace(path: &Path) -> Result<Namespace, CliError> {
    let text = text(path)?;
    let invalid = |why: String| {
        CliError::Usage(format!(
            "{} is not a namespace: {why}\n\
             `kvatlas donor namespace-template` prints one to fill in.",
            path.display()
        ))
    };
    let file = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    complete(file).map_err(|error| invalid(error.to_string()))
}

fn complete(file: NamespaceFile) -> Result<Namespace, kvatlas_client::NamespaceError> {
    let tenant_key = match file.tenant_key {
        Some(key) if file.cache_salt.is_none() => key,
        Some(_) | None => tenant_key(file.cache_salt.as_deref())?,
    };
    Namespace::try_from(v1::Namespace {
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
        tenant_key,
    })
}

/// A prompt's token ids from a JSON array, in a file or, for `-`, on the standard input.
pub(super) fn tokens(path: &Path) -> Result<Tokens, CliError> {
    let unreadable = |source| CliError::File {
        path: PathBuf::from(path),
        source,
    };
    let text = if path == Path::new("-") {
        io::read_to_string(io::stdin()).map_err(unreadable)?
    } else {
        fs::read_to_string(path).map_err(unreadable)?
    };
    // The parser's own message could quote the prompt; its position cannot.
    let ids: Vec<u32> = serde_json::from_str(&text).map_err(|error| {
        CliError::Usage(format!(
            "{} is not a JSON array of token ids, such as [1, 2, 3]: see line {}, column {}",
            path.display(),
            error.line(),
            error.column()
        ))
    })?;
    Ok(Tokens::new(&ids))
}

/// `WORKER` or `WORKER:RANK`.
pub(super) fn parse_owner(text: &str) -> Result<v1::Owner, String> {
    let (worker_id, rank) = match text.rsplit_once(':') {
        Some((worker_id, rank)) => (worker_id, rank.parse().map_err(|_| "RANK is a number")?),
        None => (text, 0),
    };
    if worker_id.is_empty() {
        return Err("WORKER is empty".into());
    }
    Ok(v1::Owner {
        worker_id: worker_id.to_owned(),
        data_parallel_rank: rank,
    })
}

/// A lease id in hexadecimal digits, as answers show it.
pub(super) fn parse_lease_id(text: &str) -> Result<Bytes, String> {
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| match *pair {
        [high, low] => u8::try_from(nibble(high)? * 16 + nibble(low)?).ok(),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    match bytes {
        Some(bytes) if !bytes.is_empty() => Ok(bytes.into()),
        Some(_) | None => Err("a lease id is pairs of hexadecimal digits".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_a_namespace() {
        let file: NamespaceFile = serde_json::from_str(&namespace_template().0).unwrap();
        assert!(complete(file).is_ok());
    }

    #[test]
    fn a_salt_becomes_a_tenant_key_and_a_blank_one_is_refused() {
        let mut file: NamespaceFile = serde_json::from_str(&namespace_template().0).unwrap();
        file.cache_salt = Some("tenant-acme".into());
        let key = complete(file).unwrap().wire().tenant_key.clone();
        assert_eq!(key, "semblend:tenant:v1:9332cc3fc0ec09d0f04fa8e1e08637b5");
        let mut file: NamespaceFile = serde_json::from_str(&namespace_template().0).unwrap();
        file.cache_salt = Some(" ".into());
        assert!(complete(file).is_err());
    }

    #[test]
    fn owners_are_a_worker_and_a_rank() {
        let rank = |text| parse_owner(text).map(|owner| owner.data_parallel_rank);
        assert_eq!(rank("w"), Ok(0));
        assert_eq!(rank("w:3"), Ok(3));
        for text in ["", ":1", "w:x"] {
            assert!(rank(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lease_ids_are_pairs_of_digits() {
        assert_eq!(parse_lease_id("00fF"), Ok(Bytes::from_static(&[0, 255])));
        for text in ["", "0", "0g", "+1"] {
            assert!(parse_lease_id(text).is_err(), "{text}");
        }
    }
}
