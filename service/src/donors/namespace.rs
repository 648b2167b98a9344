//! Namespaces: a donor serves a target only if every field of the two is equal.

use std::fmt::{self, Write as _};

use kvatlas_events::view;
use sha2::{Digest, Sha256};

/// Longest string field, in bytes.
pub const FIELD_BYTES_MAX: usize = 512;
/// Most multimodal feature hashes of one namespace.
pub const MULTIMODAL_HASHES_MAX: usize = 64;
/// Longest multimodal feature hash, in bytes.
pub const MULTIMODAL_HASH_BYTES_MAX: usize = 128;
/// Largest block, in tokens.
pub const BLOCK_SIZE_MAX: u32 = 4096;
/// Largest parallel size.
pub const PARALLEL_SIZE_MAX: u32 = 65_536;

const CANONICAL_TAG: &[u8] = b"kvatlas namespace v1";
/// What a namespace without an adapter says.
pub const NO_ADAPTER: &str = "none";

/// Fields that differ between blocks of one engine.
const OF_BLOCKS: [&str; 2] = ["namespace.adapter", "namespace.tenant_key"];
const TENANT_KEY_PREFIX: &str = "semblend:tenant:v1:";
const TENANT_KEY_DIGITS: usize = 32;

/// Everything that must be equal for KV to be exchangeable.
///
/// "none" is a value to be said; an empty required field makes the namespace incomplete.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Namespace {
    pub model: String,
    pub model_revision: String,
    pub tokenizer: String,
    pub tokenizer_revision: String,
    pub tokenization: String,
    pub chat_template: String,
    pub dtype: String,
    pub kv_cache_dtype: String,
    /// Tokens per block.
    pub block_size: u32,
    pub kv_layout: String,
    pub attention_backend: String,
    pub tensor_parallel_size: u32,
    pub pipeline_parallel_size: u32,
    pub adapter: String,
    pub rope_scaling: String,
    /// The only field that may be empty.
    pub multimodal_hashes: Vec<String>,
    pub tenant_key: String,
}

/// Why a namespace cannot be searched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamespaceFault {
    /// A required field is empty or blank: a miss, never a wildcard.
    Incomplete { field: &'static str },
    /// A field breaks its limit or its form.
    Malformed {
        field: &'static str,
        problem: String,
    },
}

impl Namespace {
    /// Checks every field against its limits, and that no required one is blank.
    pub fn check(&self) -> Result<(), NamespaceFault> {
        for (field, value) in self.strings() {
            if value.len() > FIELD_BYTES_MAX {
                let problem = format!("{} bytes, at most {FIELD_BYTES_MAX}", value.len());
                return Err(NamespaceFault::Malformed { field, problem });
            }
            if value.trim().is_empty() {
                return Err(NamespaceFault::Incomplete { field });
            }
        }
        for (field, value, max) in self.numbers() {
            if value == 0 {
                return Err(NamespaceFault::Incomplete { field });
            }
            if value > max {
                let problem = format!("{value}, at most {max}");
                return Err(NamespaceFault::Malformed { field, problem });
            }
        }
        self.check_multimodal()?;
        if !is_tenant_key(&self.tenant_key) {
            return Err(NamespaceFault::Malformed {
                field: "namespace.tenant_key",
                problem: format!(
                    "must be {TENANT_KEY_PREFIX} followed by none or {TENANT_KEY_DIGITS} \
                     lower-case hexadecimal digits"
                ),
            });
        }
        Ok(())
    }

    /// The id under which answers name this namespace: SHA-256 of the canonical encoding.
    #[must_use]
    pub fn id(&self) -> NamespaceId {
        let mut hash = Sha256::new();
        hash.update(CANONICAL_TAG);
        for (_, value) in self.strings() {
            hash_string(&mut hash, value);
        }
        for (_, value, _) in self.numbers() {
            hash.update(value.to_le_bytes());
        }
        for value in &self.multimodal_hashes {
            hash_string(&mut hash, value);
        }
        NamespaceId(hash.finalize().into())
    }

    /// The canonical encoding without what an engine's blocks carry themselves: the adapter, the
    /// tenant, the items of other media. Equal for two namespaces that one engine can serve.
    #[must_use]
    pub fn engine_encoding(&self) -> Vec<u8> {
        let mut encoding = CANONICAL_TAG.to_vec();
        for (field, value) in self.strings() {
            if !OF_BLOCKS.contains(&field) {
                let length = value.len() as u64;
                encoding.extend_from_slice(&length.to_le_bytes());
                encoding.extend_from_slice(value.as_bytes());
            }
        }
        for (_, value, _) in self.numbers() {
            encoding.extend_from_slice(&value.to_le_bytes());
        }
        encoding
    }

    fn check_multimodal(&self) -> Result<(), NamespaceFault> {
        let field = "namespace.multimodal_hashes";
        let count = self.multimodal_hashes.len();
        if count > MULTIMODAL_HASHES_MAX {
            let problem = format!("{count} hashes, at most {MULTIMODAL_HASHES_MAX}");
            return Err(NamespaceFault::Malformed { field, problem });
        }
        for hash in &self.multimodal_hashes {
            if hash.is_empty() || hash.len() > MULTIMODAL_HASH_BYTES_MAX {
                let size = hash.len();
                let problem =
                    format!("a hash of {size} bytes, must be 1 to {MULTIMODAL_HASH_BYTES_MAX}");
                return Err(NamespaceFault::Malformed { field, problem });
            }
        }
        Ok(())
    }

    fn strings(&self) -> [(&'static str, &str); 13] {
        [
            ("namespace.model", &self.model),
            ("namespace.model_revision", &self.model_revision),
            ("namespace.tokenizer", &self.tokenizer),
            ("namespace.tokenizer_revision", &self.tokenizer_revision),
            ("namespace.tokenization", &self.tokenization),
            ("namespace.chat_template", &self.chat_template),
            ("namespace.dtype", &self.dtype),
            ("namespace.kv_cache_dtype", &self.kv_cache_dtype),
            ("namespace.kv_layout", &self.kv_layout),
            ("namespace.attention_backend", &self.attention_backend),
            ("namespace.adapter", &self.adapter),
            ("namespace.rope_scaling", &self.rope_scaling),
            ("namespace.tenant_key", &self.tenant_key),
        ]
    }

    fn numbers(&self) -> [(&'static str, u32, u32); 3] {
        [
            ("namespace.block_size", self.block_size, BLOCK_SIZE_MAX),
            (
                "namespace.tensor_parallel_size",
                self.tensor_parallel_size,
                PARALLEL_SIZE_MAX,
            ),
            (
                "namespace.pipeline_parallel_size",
                self.pipeline_parallel_size,
                PARALLEL_SIZE_MAX,
            ),
        ]
    }
}

/// SHA-256 of a namespace's canonical encoding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceId(pub [u8; 32]);

impl NamespaceId {
    /// From 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<NamespaceId> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut id = [0_u8; 32];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = hex_value(pair[0])? << 4 | hex_value(pair[1])?;
        }
        Some(NamespaceId(id))
    }
}

impl fmt::Display for NamespaceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for byte in self.0 {
            out.write_char(char::from(DIGITS[usize::from(byte >> 4)]))?;
            out.write_char(char::from(DIGITS[usize::from(byte & 15)]))?;
        }
        Ok(())
    }
}

impl fmt::Debug for NamespaceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

// A length before every string: no two different lists of fields give the same bytes.
fn hash_string(hash: &mut Sha256, value: &str) {
    hash.update((value.len() as u64).to_le_bytes());
    hash.update(value.as_bytes());
}

/// Tenant key v1: of a cache salt, taken as it is, or of none. Events have their salts turned into
/// the same.
#[must_use]
pub fn tenant_key(salt: Option<&str>) -> String {
    view::tenant_key(salt.unwrap_or_default())
}

/// Whether a text has the form of a tenant key v1.
#[must_use]
pub fn is_tenant_key(key: &str) -> bool {
    let Some(rest) = key.strip_prefix(TENANT_KEY_PREFIX) else {
        return false;
    };
    rest == "none"
        || (rest.len() == TENANT_KEY_DIGITS && rest.bytes().all(|digit| hex_value(digit).is_some()))
}

fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_adapters_and_images_of_one_engine_are_the_same_engine() {
        let sound = Namespace {
            block_size: 16,
            ..Namespace::default()
        };
        let check = |edit: &dyn Fn(&mut Namespace), is_same: bool| {
            let mut other = sound.clone();
            edit(&mut other);
            assert_ne!(other, sound);
            let is_equal = other.engine_encoding() == sound.engine_encoding();
            assert_eq!(is_equal, is_same, "{other:?}");
        };
        check(&|it| it.adapter = "x".into(), true);
        check(&|it| it.tenant_key = "x".into(), true);
        check(&|it| it.multimodal_hashes = vec!["x".into()], true);
        check(&|it| it.model = "x".into(), false);
        check(&|it| it.model_revision = "x".into(), false);
        check(&|it| it.rope_scaling = "x".into(), false);
        check(&|it| it.block_size = 32, false);
        check(&|it| it.pipeline_parallel_size = 2, false);
    }

    fn complete() -> Namespace {
        let text = |value: &str| value.to_owned();
        Namespace {
            model: text("m"),
            model_revision: text("r"),
            tokenizer: text("t"),
            tokenizer_revision: text("tr"),
            tokenization: text("default"),
            chat_template: text("none"),
            dtype: text("bfloat16"),
            kv_cache_dtype: text("auto"),
            block_size: 16,
            kv_layout: text("NHD"),
            attention_backend: text("flash_attn"),
            tensor_parallel_size: 1,
            pipeline_parallel_size: 1,
            adapter: text("none"),
            rope_scaling: text("none"),
            multimodal_hashes: vec![],
            tenant_key: text("semblend:tenant:v1:none"),
        }
    }

    type Edit = fn(&mut Namespace, &str);
    const EDITS: [Edit; 13] = [
        |n, v| n.model = v.into(),
        |n, v| n.model_revision = v.into(),
        |n, v| n.tokenizer = v.into(),
        |n, v| n.tokenizer_revision = v.into(),
        |n, v| n.tokenization = v.into(),
        |n, v| n.chat_template = v.into(),
        |n, v| n.dtype = v.into(),
        |n, v| n.kv_cache_dtype = v.into(),
        |n, v| n.kv_layout = v.into(),
        |n, v| n.attention_backend = v.into(),
        |n, v| n.adapter = v.into(),
        |n, v| n.rope_scaling = v.into(),
        |n, v| n.tenant_key = v.into(),
    ];

    #[test]
    fn every_blank_required_field_is_incomplete() {
        assert_eq!(complete().check(), Ok(()));
        for edit in EDITS {
            for blank in ["", " \t"] {
                let mut namespace = complete();
                edit(&mut namespace, blank);
                let fault = namespace.check();
                assert!(
                    matches!(fault, Err(NamespaceFault::Incomplete { .. })),
                    "{fault:?}"
                );
            }
        }
        let numbers: [fn(&mut Namespace); 3] = [
            |n| n.block_size = 0,
            |n| n.tensor_parallel_size = 0,
            |n| n.pipeline_parallel_size = 0,
        ];
        for edit in numbers {
            let mut namespace = complete();
            edit(&mut namespace);
            assert!(matches!(
                namespace.check(),
                Err(NamespaceFault::Incomplete { .. })
            ));
        }
    }

    #[test]
    fn every_field_changes_the_id() {
        let mut ids = vec![complete().id()];
        for edit in EDITS {
            let mut namespace = complete();
            edit(&mut namespace, "another");
            ids.push(namespace.id());
        }
        let others: [fn(&mut Namespace); 5] = [
            |n| n.block_size = 32,
            |n| n.tensor_parallel_size = 2,
            |n| n.pipeline_parallel_size = 2,
            |n| n.multimodal_hashes = vec!["a".into(), "b".into()],
            |n| n.multimodal_hashes = vec!["ab".into()],
        ];
        for edit in others {
            let mut namespace = complete();
            edit(&mut namespace);
            ids.push(namespace.id());
        }
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn moving_a_byte_between_neighbouring_fields_changes_the_id() {
        let mut left = complete();
        left.model = "ab".into();
        left.model_revision = "c".into();
        let mut right = complete();
        right.model = "a".into();
        right.model_revision = "bc".into();
        assert_ne!(left.id(), right.id());
    }

    #[test]
    fn tenant_keys_have_one_form() {
        let digits = "9332cc3fc0ec09d0f04fa8e1e08637b5";
        for (key, good) in [
            (format!("semblend:tenant:v1:{digits}"), true),
            ("semblend:tenant:v1:none".into(), true),
            (
                format!("semblend:tenant:v1:{}", digits.to_uppercase()),
                false,
            ),
            ("semblend:tenant:v1:".into(), false),
            ("tenant-acme".into(), false),
            (format!("semblend:tenant:v2:{digits}"), false),
        ] {
            let mut namespace = complete();
            namespace.tenant_key = key;
            assert_eq!(namespace.check().is_ok(), good, "{}", namespace.tenant_key);
        }
    }

    #[test]
    fn a_salt_has_the_tenant_key_of_the_contract() {
        let digits = "9332cc3fc0ec09d0f04fa8e1e08637b5";
        let key = format!("semblend:tenant:v1:{digits}");
        assert_eq!(tenant_key(Some("tenant-acme")), key);
        assert_ne!(tenant_key(Some(" tenant-acme")), key, "no byte is dropped");
        assert_eq!(tenant_key(None), "semblend:tenant:v1:none");
    }

    #[test]
    fn an_id_reads_back_what_it_prints() {
        let id = complete().id();
        assert_eq!(NamespaceId::parse(&id.to_string()), Some(id));
        for text in ["", "00", &"g".repeat(64), &"A".repeat(64)] {
            assert_eq!(NamespaceId::parse(text), None);
        }
    }
}
