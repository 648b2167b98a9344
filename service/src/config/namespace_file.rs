//! A namespace as a file spells it, for the commands and for the sources of events.

use serde::{Deserialize, Serialize};

/// Every field of a namespace. `kvatlas donor namespace-template` prints one to fill in.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceFile {
    pub model: String,
    pub model_revision: String,
    pub tokenizer: String,
    pub tokenizer_revision: String,
    pub tokenization: String,
    pub chat_template: String,
    pub dtype: String,
    pub kv_cache_dtype: String,
    pub block_size: u32,
    pub kv_layout: String,
    pub attention_backend: String,
    pub tensor_parallel_size: u32,
    pub pipeline_parallel_size: u32,
    pub adapter: String,
    pub rope_scaling: String,
    #[serde(default)]
    pub multimodal_hashes: Vec<String>,
    /// Hashed where it is read; only the tenant key goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<String>,
    #[serde(default)]
    pub tenant_key: Option<String>,
}

impl std::fmt::Debug for NamespaceFile {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("NamespaceFile")
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}
