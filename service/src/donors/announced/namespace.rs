//! What an announced donor says of its namespace, and which look-ups that is equal to.

use crate::donors::namespace::Namespace;

/// No adapter.
const NONE: &str = "none";
/// A KV cache in the model's own dtype.
const AUTO: &str = "auto";

/// The part of a namespace that an event carries. A donor serves a look-up only where all of it is
/// equal; the rest of the look-up's namespace cannot be compared, so that such a donor is a hint
/// and nothing more.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AnnouncedNamespace {
    pub model: Box<str>,
    pub tokenizer: Box<str>,
    pub kv_layout: Box<str>,
    /// Tokens per block.
    pub block_size: u32,
    /// "none" where the event names no LoRA.
    pub adapter: Box<str>,
    /// None: the KV is not quantized. That is an event without `quant`, or with "auto", and a
    /// look-up whose KV-cache dtype is "auto" or the model's own.
    pub quantization: Option<Box<str>>,
    pub tenant_key: Box<str>,
}

impl AnnouncedNamespace {
    /// What a look-up's donors are announced under. None where events cannot say what its donors
    /// must share: multimodal features.
    #[must_use]
    pub fn of(namespace: &Namespace) -> Option<AnnouncedNamespace> {
        if !namespace.multimodal_hashes.is_empty() {
            return None;
        }
        let is_own = namespace.kv_cache_dtype == namespace.dtype;
        let quant = (!is_own).then_some(namespace.kv_cache_dtype.as_str());
        Some(AnnouncedNamespace {
            model: namespace.model.as_str().into(),
            tokenizer: namespace.tokenizer.as_str().into(),
            kv_layout: namespace.kv_layout.as_str().into(),
            block_size: namespace.block_size,
            adapter: namespace.adapter.as_str().into(),
            quantization: quantization(quant),
            tenant_key: namespace.tenant_key.as_str().into(),
        })
    }

    /// Bytes that its texts take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let texts = [
            &self.model,
            &self.tokenizer,
            &self.kv_layout,
            &self.adapter,
            &self.tenant_key,
        ];
        let texts: usize = texts.iter().map(|text| text.len()).sum();
        texts + self.quantization.as_ref().map_or(0, |text| text.len())
    }
}

/// The adapter of an event's `lora`.
#[must_use]
pub fn adapter(lora: Option<&str>) -> Box<str> {
    lora.unwrap_or(NONE).into()
}

/// The quantization of an event's `quant`.
#[must_use]
pub fn quantization(quant: Option<&str>) -> Option<Box<str>> {
    quant.filter(|quant| *quant != AUTO).map(Box::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
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

    #[test]
    fn every_part_that_an_event_carries_tells_namespaces_apart() {
        let plain = AnnouncedNamespace::of(&namespace());
        let edits: [fn(&mut Namespace); 7] = [
            |n| n.model = "other".into(),
            |n| n.tokenizer = "other".into(),
            |n| n.kv_layout = "other".into(),
            |n| n.block_size = 32,
            |n| n.adapter = "other".into(),
            |n| n.kv_cache_dtype = "fp8".into(),
            |n| n.tenant_key = "other".into(),
        ];
        for edit in edits {
            let mut other = namespace();
            edit(&mut other);
            assert_ne!(AnnouncedNamespace::of(&other), plain, "{other:?}");
        }
        let mut pictures = namespace();
        pictures.multimodal_hashes.push("hash".into());
        assert_eq!(AnnouncedNamespace::of(&pictures), None);
    }

    #[test]
    fn what_an_event_leaves_out_means_none_and_not_quantized() {
        assert_eq!(&*adapter(None), "none");
        assert_eq!(&*adapter(Some("a")), "a");
        assert_eq!(quantization(None), None);
        assert_eq!(quantization(Some("auto")), None);
        assert_eq!(quantization(Some("fp8")).as_deref(), Some("fp8"));
        for (cache, expected) in [("auto", None), ("bfloat16", None), ("fp8", Some("fp8"))] {
            let mut own = namespace();
            own.kv_cache_dtype = cache.into();
            let announced = AnnouncedNamespace::of(&own).unwrap();
            assert_eq!(announced.quantization.as_deref(), expected, "{cache}");
        }
    }
}
