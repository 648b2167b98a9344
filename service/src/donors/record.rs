//! How donors, namespaces and settings lie on the disk.
//!
//! Each record is self-contained and idempotent: writing it twice, or on another machine, leaves
//! the same state. The encoding is protobuf, so that fields can be added.

use prost::Message;

use super::{
    gate::GateOverrides,
    namespace::{Namespace, NamespaceId},
    tokens::PackedTokens,
    vocabulary::{Medium, Mode},
};

const HEAD_LENGTH_BYTES: usize = 4;

/// A donor as it is stored, its tokens and its text apart. Only the captured tokens are kept: the
/// others serve nobody.
#[derive(Clone, PartialEq, Message)]
pub struct DonorRecord {
    #[prost(string, tag = "1")]
    pub worker_id: String,
    #[prost(uint32, tag = "2")]
    pub data_parallel_rank: u32,
    #[prost(uint64, tag = "3")]
    pub owner_generation: u64,
    #[prost(uint32, tag = "4")]
    pub exact_tokens: u32,
    #[prost(uint32, tag = "5")]
    pub medium: u32,
    #[prost(string, tag = "6")]
    pub store_id: String,
    #[prost(string, tag = "7")]
    pub source_request_id: String,
    /// The service's restart counter when it was registered.
    #[prost(uint64, tag = "8")]
    pub epoch: u64,
    /// Order of registration, over all donors.
    #[prost(uint64, tag = "9")]
    pub sequence: u64,
    /// The tokens themselves, in a record from before the donor log.
    #[prost(uint32, repeated, tag = "10")]
    pub captured: Vec<u32>,
    #[prost(uint32, tag = "11")]
    pub token_count: u32,
    /// Bits of a packed token.
    #[prost(uint32, tag = "12")]
    pub token_width: u32,
    /// Bytes of the packed tokens. What follows them is the text.
    #[prost(uint32, tag = "13")]
    pub token_bytes: u32,
    /// The engine's names of the captured blocks, where it gave them.
    #[prost(fixed64, repeated, tag = "14")]
    pub block_names: Vec<u64>,
}

/// A donor's record in the log: the length of its [`DonorRecord`] in four bytes, that record, the
/// packed tokens, the text.
#[derive(Debug)]
pub struct LoggedDonor<'a> {
    pub record: DonorRecord,
    pub tokens: PackedTokens,
    pub text: &'a str,
}

impl LoggedDonor<'_> {
    /// The bytes that come before the packed tokens.
    #[must_use]
    pub fn head(record: DonorRecord, tokens: &PackedTokens) -> Vec<u8> {
        let record = DonorRecord {
            captured: Vec::new(),
            token_count: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
            token_width: u32::from(tokens.width()),
            token_bytes: u32::try_from(tokens.as_bytes().len()).unwrap_or(u32::MAX),
            ..record
        };
        let length = record.encoded_len();
        let mut head = Vec::with_capacity(HEAD_LENGTH_BYTES + length);
        head.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        head.extend_from_slice(&record.encode_to_vec());
        head
    }

    /// None where the bytes are not a donor's.
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<LoggedDonor<'_>> {
        let (length, rest) = payload.split_first_chunk::<HEAD_LENGTH_BYTES>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (record, rest) = rest.split_at_checked(length)?;
        let record = DonorRecord::decode(record).ok()?;
        let (tokens, text) = rest.split_at_checked(usize::try_from(record.token_bytes).ok()?)?;
        let count = usize::try_from(record.token_count).ok()?;
        let width = u8::try_from(record.token_width).ok()?;
        Some(LoggedDonor {
            tokens: PackedTokens::from_bytes(tokens, count, width)?,
            text: std::str::from_utf8(text).ok()?,
            record,
        })
    }
}

/// A namespace with its own settings.
#[derive(Clone, PartialEq, Message)]
pub struct NamespaceRecord {
    #[prost(string, repeated, tag = "1")]
    pub strings: Vec<String>,
    #[prost(uint32, repeated, tag = "2")]
    pub numbers: Vec<u32>,
    #[prost(string, repeated, tag = "3")]
    pub multimodal_hashes: Vec<String>,
    #[prost(message, optional, tag = "4")]
    pub settings: Option<SettingsRecord>,
}

/// A mode and thresholds that somebody set.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct SettingsRecord {
    /// 0: not set.
    #[prost(uint32, tag = "1")]
    pub mode: u32,
    #[prost(uint32, optional, tag = "2")]
    pub min_prompt_tokens: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub min_reuse_tokens: Option<u32>,
    #[prost(float, optional, tag = "4")]
    pub min_similarity: Option<f32>,
    #[prost(float, optional, tag = "5")]
    pub min_reuse_ratio: Option<f32>,
    #[prost(float, optional, tag = "6")]
    pub exact_prefix_skip_ratio: Option<f32>,
}

/// What an operator set for the server or for a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Settings {
    /// None: as the server, or as it was started.
    pub mode: Option<Mode>,
    pub gates: GateOverrides,
}

/// The key of a donor's record.
#[must_use]
pub fn donor_key(namespace: NamespaceId, donor_id: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(32 + donor_id.len());
    key.extend_from_slice(&namespace.0);
    key.extend_from_slice(donor_id.as_bytes());
    key
}

/// The parts of a donor's key.
#[must_use]
pub fn split_donor_key(key: &[u8]) -> Option<(NamespaceId, &str)> {
    let (id, donor_id) = key.split_first_chunk::<32>()?;
    let donor_id = std::str::from_utf8(donor_id).ok()?;
    (!donor_id.is_empty()).then_some((NamespaceId(*id), donor_id))
}

impl Settings {
    #[must_use]
    pub fn to_record(self) -> SettingsRecord {
        let GateOverrides {
            min_prompt_tokens,
            min_reuse_tokens,
            min_similarity,
            min_reuse_ratio,
            exact_prefix_skip_ratio,
        } = self.gates;
        let mode = match self.mode {
            None => 0,
            Some(Mode::Disabled) => 1,
            Some(Mode::DiscoveryOnly) => 2,
            Some(Mode::Materialize) => 3,
        };
        SettingsRecord {
            mode,
            min_prompt_tokens,
            min_reuse_tokens,
            min_similarity,
            min_reuse_ratio,
            exact_prefix_skip_ratio,
        }
    }

    /// A mode that this version does not know is as good as disabled.
    #[must_use]
    pub fn from_record(record: &SettingsRecord) -> Settings {
        let mode = match record.mode {
            0 => None,
            2 => Some(Mode::DiscoveryOnly),
            3 => Some(Mode::Materialize),
            _ => Some(Mode::Disabled),
        };
        let gates = GateOverrides {
            min_prompt_tokens: record.min_prompt_tokens,
            min_reuse_tokens: record.min_reuse_tokens,
            min_similarity: record.min_similarity,
            min_reuse_ratio: record.min_reuse_ratio,
            exact_prefix_skip_ratio: record.exact_prefix_skip_ratio,
        };
        Settings { mode, gates }
    }
}

impl NamespaceRecord {
    #[must_use]
    pub fn new(namespace: &Namespace, settings: &Settings) -> NamespaceRecord {
        let n = namespace.clone();
        NamespaceRecord {
            strings: vec![
                n.model,
                n.model_revision,
                n.tokenizer,
                n.tokenizer_revision,
                n.tokenization,
                n.chat_template,
                n.dtype,
                n.kv_cache_dtype,
                n.kv_layout,
                n.attention_backend,
                n.adapter,
                n.rope_scaling,
                n.tenant_key,
            ],
            numbers: vec![
                n.block_size,
                n.tensor_parallel_size,
                n.pipeline_parallel_size,
            ],
            multimodal_hashes: n.multimodal_hashes,
            settings: Some(settings.to_record()),
        }
    }

    /// None when the record does not hold a whole namespace.
    #[must_use]
    pub fn into_parts(self) -> Option<(Namespace, Settings)> {
        let settings = self
            .settings
            .as_ref()
            .map(Settings::from_record)
            .unwrap_or_default();
        let [
            model,
            model_revision,
            tokenizer,
            tokenizer_revision,
            tokenization,
            chat_template,
            dtype,
            kv_cache_dtype,
            kv_layout,
            attention_backend,
            adapter,
            rope_scaling,
            tenant_key,
        ] = <[String; 13]>::try_from(self.strings).ok()?;
        let [block_size, tensor_parallel_size, pipeline_parallel_size] =
            <[u32; 3]>::try_from(self.numbers).ok()?;
        let namespace = Namespace {
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
            multimodal_hashes: self.multimodal_hashes,
            tenant_key,
        };
        Some((namespace, settings))
    }
}

/// The number that stands for a medium on the disk.
#[must_use]
pub fn medium_to_number(medium: Medium) -> u32 {
    match medium {
        Medium::Device => 1,
        Medium::Host => 2,
        Medium::Disk => 3,
    }
}

/// None for a number that this version does not know.
#[must_use]
pub fn medium_from_number(number: u32) -> Option<Medium> {
    match number {
        1 => Some(Medium::Device),
        2 => Some(Medium::Host),
        3 => Some(Medium::Disk),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_and_its_settings_read_back_as_written() {
        let namespace = Namespace {
            model: "a".into(),
            tenant_key: "z".into(),
            rope_scaling: "y".into(),
            block_size: 16,
            tensor_parallel_size: 2,
            pipeline_parallel_size: 3,
            multimodal_hashes: vec!["m".into()],
            ..Namespace::default()
        };
        for mode in [
            None,
            Some(Mode::Disabled),
            Some(Mode::DiscoveryOnly),
            Some(Mode::Materialize),
        ] {
            let gates = GateOverrides {
                min_similarity: Some(0.25),
                ..GateOverrides::default()
            };
            let settings = Settings { mode, gates };
            let bytes = NamespaceRecord::new(&namespace, &settings).encode_to_vec();
            let back = NamespaceRecord::decode(&bytes[..]).unwrap().into_parts();
            assert_eq!(back, Some((namespace.clone(), settings)));
        }
    }

    #[test]
    fn a_logged_donor_reads_back_and_a_cut_one_does_not() {
        let tokens = PackedTokens::pack(&[7, 151_935, 0]);
        let record = DonorRecord {
            worker_id: "worker".into(),
            sequence: 9,
            captured: vec![7, 151_935, 0],
            ..DonorRecord::default()
        };
        let mut bytes = LoggedDonor::head(record, &tokens);
        bytes.extend_from_slice(tokens.as_bytes());
        let without_text = bytes.len();
        bytes.extend_from_slice("näher".as_bytes());
        let back = LoggedDonor::decode(&bytes).unwrap();
        assert_eq!((back.tokens, back.text), (tokens, "näher"));
        assert_eq!(
            (&*back.record.worker_id, back.record.sequence),
            ("worker", 9)
        );
        assert!(back.record.captured.is_empty());
        for cut in 0..without_text {
            assert!(LoggedDonor::decode(&bytes[..cut]).is_none(), "cut to {cut}");
        }
        assert!(
            LoggedDonor::decode(&bytes[..without_text + 2]).is_none(),
            "half a letter"
        );
    }

    #[test]
    fn a_donor_key_reads_back_and_a_damaged_one_does_not() {
        let id = NamespaceId([7; 32]);
        let key = donor_key(id, "request-1");
        assert_eq!(split_donor_key(&key), Some((id, "request-1")));
        for cut in [0, 31, 32] {
            assert_eq!(split_donor_key(&key[..cut]), None);
        }
    }
}
