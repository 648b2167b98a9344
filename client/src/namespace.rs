//! What a donor serves a target under, checked before it is sent.

use std::sync::Arc;

use kvatlas_proto::v1;
use sha2::{Digest, Sha256};

/// Bytes that a field may have.
const FIELD_BYTES_MAX: usize = 512;
const BLOCK_SIZE_MAX: u32 = 4_096;
const PARALLEL_SIZE_MAX: u32 = 65_536;
const MULTIMODAL_HASHES_MAX: usize = 64;
const MULTIMODAL_HASH_BYTES_MAX: usize = 128;
const TENANT_KEY_PREFIX: &str = "semblend:tenant:v1:";
/// Hexadecimal digits of the salt's SHA-256 that the tenant key keeps.
const TENANT_KEY_DIGITS: usize = 32;
const NAMESPACE_ID_DIGITS: usize = 64;

/// A complete namespace. Cloning is cheap.
#[derive(Debug, Clone, PartialEq)]
pub struct Namespace {
    wire: Arc<v1::Namespace>,
}

/// A namespace, in full or by the id that an earlier answer returned. The id is the cheaper way on
/// a hot path.
#[derive(Debug, Clone, PartialEq)]
pub enum NamespaceRef {
    Full(Namespace),
    Id(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    #[error("{field} is empty; where it does not apply, say \"none\"")]
    Empty { field: &'static str },
    #[error("{field} holds {bytes} bytes, more than {max}")]
    TooLong {
        field: &'static str,
        bytes: usize,
        max: usize,
    },
    #[error("{field} is {value}, not between 1 and {max}")]
    OutOfRange {
        field: &'static str,
        value: u32,
        max: u32,
    },
    #[error("multimodal_hashes has {count} entries, more than {MULTIMODAL_HASHES_MAX}")]
    TooManyHashes { count: usize },
    /// A blank salt would put everybody who forgot theirs into one tenant.
    #[error("the cache salt is blank; give none at all, or one that names a tenant")]
    BlankSalt,
    #[error("tenant_key is not of the form semblend:tenant:v1:<32 hexadecimal digits or none>")]
    TenantKey,
    #[error("a namespace id is 64 lower-case hexadecimal digits")]
    Id,
}

/// The tenant key v1 of a cache salt: `semblend:tenant:v1:` and the first 32 hexadecimal digits of
/// its SHA-256, or `none` without a salt. The salt itself never leaves the client.
///
/// # Errors
/// When the salt is empty or white space only.
pub fn tenant_key(salt: Option<&str>) -> Result<String, NamespaceError> {
    let Some(salt) = salt else {
        return Ok(format!("{TENANT_KEY_PREFIX}none"));
    };
    if salt.trim().is_empty() {
        return Err(NamespaceError::BlankSalt);
    }
    let digest = format!("{:x}", Sha256::digest(salt.as_bytes()));
    Ok(format!(
        "{TENANT_KEY_PREFIX}{}",
        &digest[..TENANT_KEY_DIGITS]
    ))
}

impl Namespace {
    pub fn builder() -> NamespaceBuilder {
        NamespaceBuilder::default()
    }

    /// The message that it is sent as.
    pub fn wire(&self) -> &v1::Namespace {
        &self.wire
    }
}

impl TryFrom<v1::Namespace> for Namespace {
    type Error = NamespaceError;

    /// # Errors
    /// Names the first field that is missing or out of its range.
    fn try_from(wire: v1::Namespace) -> Result<Self, NamespaceError> {
        check(&wire)?;
        Ok(Self {
            wire: Arc::new(wire),
        })
    }
}

impl From<Namespace> for NamespaceRef {
    fn from(namespace: Namespace) -> Self {
        Self::Full(namespace)
    }
}

impl NamespaceRef {
    /// The namespace that an earlier answer called `id`.
    ///
    /// # Errors
    /// When it is not 64 lower-case hexadecimal digits.
    pub fn id(id: &str) -> Result<Self, NamespaceError> {
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if id.len() == NAMESPACE_ID_DIGITS && id.bytes().all(digit) {
            Ok(Self::Id(id.to_owned()))
        } else {
            Err(NamespaceError::Id)
        }
    }

    pub(crate) fn to_wire(&self) -> v1::NamespaceSelector {
        use v1::namespace_selector::Selector;
        let selector = match self {
            Self::Full(namespace) => Selector::Namespace(v1::Namespace::clone(&namespace.wire)),
            Self::Id(id) => Selector::NamespaceId(id.clone()),
        };
        v1::NamespaceSelector {
            selector: Some(selector),
        }
    }
}

/// Collects the fields of a [`Namespace`]; [`build`](Self::build) says which is missing.
#[derive(Debug, Clone, Default)]
pub struct NamespaceBuilder {
    wire: v1::Namespace,
    salt_is_blank: bool,
}

impl NamespaceBuilder {
    #[must_use]
    pub fn model(mut self, model: &str, revision: &str) -> Self {
        model.clone_into(&mut self.wire.model);
        revision.clone_into(&mut self.wire.model_revision);
        self
    }

    #[must_use]
    pub fn tokenizer(mut self, tokenizer: &str, revision: &str) -> Self {
        tokenizer.clone_into(&mut self.wire.tokenizer);
        revision.clone_into(&mut self.wire.tokenizer_revision);
        self
    }

    /// Settings that change token ids: special tokens, truncation side, and so on.
    #[must_use]
    pub fn tokenization(mut self, settings: &str) -> Self {
        settings.clone_into(&mut self.wire.tokenization);
        self
    }

    #[must_use]
    pub fn chat_template(mut self, name_or_digest: &str) -> Self {
        name_or_digest.clone_into(&mut self.wire.chat_template);
        self
    }

    /// The compute type of the model, and the type of its KV cache.
    #[must_use]
    pub fn dtypes(mut self, dtype: &str, kv_cache_dtype: &str) -> Self {
        dtype.clone_into(&mut self.wire.dtype);
        kv_cache_dtype.clone_into(&mut self.wire.kv_cache_dtype);
        self
    }

    /// Tokens per block, the KV layout, and the layout of the attention backend.
    #[must_use]
    pub fn kv_layout(mut self, block_size: u32, layout: &str, attention_backend: &str) -> Self {
        self.wire.block_size = block_size;
        layout.clone_into(&mut self.wire.kv_layout);
        attention_backend.clone_into(&mut self.wire.attention_backend);
        self
    }

    #[must_use]
    pub fn parallel_sizes(mut self, tensor: u32, pipeline: u32) -> Self {
        self.wire.tensor_parallel_size = tensor;
        self.wire.pipeline_parallel_size = pipeline;
        self
    }

    /// The adapter's identity; "none" without one.
    #[must_use]
    pub fn adapter(mut self, identity: &str) -> Self {
        identity.clone_into(&mut self.wire.adapter);
        self
    }

    /// "none" without one.
    #[must_use]
    pub fn rope_scaling(mut self, scaling: &str) -> Self {
        scaling.clone_into(&mut self.wire.rope_scaling);
        self
    }

    /// Feature hashes of the multimodal inputs, in prompt order.
    #[must_use]
    pub fn multimodal_hashes(mut self, hashes: Vec<String>) -> Self {
        self.wire.multimodal_hashes = hashes;
        self
    }

    /// The tenant, by its cache salt; a blank salt is refused when the namespace is built.
    #[must_use]
    pub fn tenant_key(mut self, salt: Option<&str>) -> Self {
        let key = tenant_key(salt);
        self.salt_is_blank = key.is_err();
        self.wire.tenant_key = key.unwrap_or_default();
        self
    }

    /// # Errors
    /// Names the first field that is missing or out of its range.
    pub fn build(self) -> Result<Namespace, NamespaceError> {
        if self.salt_is_blank {
            return Err(NamespaceError::BlankSalt);
        }
        self.wire.try_into()
    }
}

fn check(wire: &v1::Namespace) -> Result<(), NamespaceError> {
    let v1::Namespace {
        model,
        model_revision,
        tokenizer,
        tokenizer_revision,
        tokenization,
        chat_template,
        dtype,
        kv_cache_dtype,
        block_size,
        kv_layout,
        attention_backend,
        tensor_parallel_size,
        pipeline_parallel_size,
        adapter,
        rope_scaling,
        multimodal_hashes,
        tenant_key,
    } = wire;
    let texts = [
        ("model", model),
        ("model_revision", model_revision),
        ("tokenizer", tokenizer),
        ("tokenizer_revision", tokenizer_revision),
        ("tokenization", tokenization),
        ("chat_template", chat_template),
        ("dtype", dtype),
        ("kv_cache_dtype", kv_cache_dtype),
        ("kv_layout", kv_layout),
        ("attention_backend", attention_backend),
        ("adapter", adapter),
        ("rope_scaling", rope_scaling),
        ("tenant_key", tenant_key),
    ];
    for (field, text) in texts {
        check_text(field, text, FIELD_BYTES_MAX)?;
    }
    check_number("block_size", *block_size, BLOCK_SIZE_MAX)?;
    check_number(
        "tensor_parallel_size",
        *tensor_parallel_size,
        PARALLEL_SIZE_MAX,
    )?;
    check_number(
        "pipeline_parallel_size",
        *pipeline_parallel_size,
        PARALLEL_SIZE_MAX,
    )?;
    if multimodal_hashes.len() > MULTIMODAL_HASHES_MAX {
        return Err(NamespaceError::TooManyHashes {
            count: multimodal_hashes.len(),
        });
    }
    for hash in multimodal_hashes {
        check_text("multimodal_hashes", hash, MULTIMODAL_HASH_BYTES_MAX)?;
    }
    check_tenant_key(tenant_key)
}

fn check_text(field: &'static str, text: &str, max: usize) -> Result<(), NamespaceError> {
    match text.len() {
        0 => Err(NamespaceError::Empty { field }),
        bytes if bytes > max => Err(NamespaceError::TooLong { field, bytes, max }),
        _ => Ok(()),
    }
}

fn check_number(field: &'static str, value: u32, max: u32) -> Result<(), NamespaceError> {
    if (1..=max).contains(&value) {
        Ok(())
    } else {
        Err(NamespaceError::OutOfRange { field, value, max })
    }
}

/// A raw salt put into the field by mistake must not leave the client.
fn check_tenant_key(key: &str) -> Result<(), NamespaceError> {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let tail = key
        .strip_prefix(TENANT_KEY_PREFIX)
        .ok_or(NamespaceError::TenantKey)?;
    if tail == "none" || (tail.len() == TENANT_KEY_DIGITS && tail.bytes().all(digit)) {
        Ok(())
    } else {
        Err(NamespaceError::TenantKey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete() -> NamespaceBuilder {
        Namespace::builder()
            .model("m", "1")
            .tokenizer("t", "1")
            .tokenization("default")
            .chat_template("none")
            .dtypes("bfloat16", "auto")
            .kv_layout(16, "NHD", "flash_attn")
            .parallel_sizes(1, 1)
            .adapter("none")
            .rope_scaling("none")
            .tenant_key(None)
    }

    #[track_caller]
    fn check_refused(builder: NamespaceBuilder, field: &str) {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains(field), "{error} does not name {field}");
    }

    #[test]
    fn the_tenant_key_is_version_one() {
        assert_eq!(
            tenant_key(Some("tenant-acme")).as_deref(),
            Ok("semblend:tenant:v1:9332cc3fc0ec09d0f04fa8e1e08637b5")
        );
        assert_eq!(tenant_key(None).as_deref(), Ok("semblend:tenant:v1:none"));
    }

    #[test]
    fn a_blank_salt_is_refused() {
        for salt in ["", " ", "\t\n", "\u{a0}"] {
            assert_eq!(tenant_key(Some(salt)), Err(NamespaceError::BlankSalt));
            let built = complete().tenant_key(Some(salt)).build();
            assert_eq!(built, Err(NamespaceError::BlankSalt));
        }
    }

    #[test]
    fn a_raw_salt_in_the_tenant_key_is_refused_and_not_shown() {
        let mut wire = complete().build().unwrap().wire().clone();
        wire.tenant_key = "my-secret-salt".to_owned();
        let error = Namespace::try_from(wire).unwrap_err();
        assert_eq!(error, NamespaceError::TenantKey);
        assert!(!error.to_string().contains("secret"));
    }

    #[test]
    fn every_missing_or_oversized_field_is_named() {
        assert!(complete().build().is_ok());
        check_refused(complete().model("", "1"), "model is empty");
        check_refused(complete().model("m", ""), "model_revision");
        check_refused(complete().tokenizer("", "1"), "tokenizer is empty");
        check_refused(complete().tokenizer("t", ""), "tokenizer_revision");
        check_refused(complete().tokenization(""), "tokenization");
        check_refused(complete().chat_template(""), "chat_template");
        check_refused(complete().dtypes("", "auto"), "dtype is empty");
        check_refused(complete().dtypes("bfloat16", ""), "kv_cache_dtype");
        check_refused(complete().kv_layout(0, "NHD", "x"), "block_size");
        check_refused(complete().kv_layout(4097, "NHD", "x"), "block_size");
        check_refused(complete().kv_layout(16, "", "x"), "kv_layout");
        check_refused(complete().kv_layout(16, "NHD", ""), "attention_backend");
        check_refused(complete().parallel_sizes(0, 1), "tensor_parallel_size");
        check_refused(
            complete().parallel_sizes(1, 65_537),
            "pipeline_parallel_size",
        );
        check_refused(complete().adapter(""), "adapter");
        check_refused(complete().rope_scaling(""), "rope_scaling");
        check_refused(complete().adapter(&"a".repeat(513)), "adapter holds 513");
        check_refused(
            complete().multimodal_hashes(vec![String::new()]),
            "multimodal",
        );
        check_refused(complete().multimodal_hashes(vec!["h".into(); 65]), "65");
    }

    #[test]
    fn an_id_is_64_lower_case_digits() {
        assert!(NamespaceRef::id(&"0a".repeat(32)).is_ok());
        for id in [
            String::new(),
            "0a".repeat(31),
            "0A".repeat(32),
            "zz".repeat(32),
        ] {
            assert_eq!(NamespaceRef::id(&id), Err(NamespaceError::Id), "{id}");
        }
    }
}
