//! The stored form of a prior: one checksummed record, and for many heads one blob.
//!
//! The record is a protobuf message of its own, not of the wire contract, so that the two may
//! change apart. Its key is a hash of the prior's three names, which together may be longer than a
//! key of the store. Tags are never used again.

use std::collections::BTreeMap;

use kvatlas_kernels::Pooling;
use prost::Message;
use sha2::{Digest, Sha256};

use super::policy::BLOCKS_MAX;
use super::prior::{PerHeadRanks, Prior, PriorKey, Repair};
use super::ranking::{Ranking, packed_bytes};
use super::resolve::PriorBlocks;
use crate::store::BlobRef;

const POOLING_MEAN: u32 = 1;
const POOLING_MAX: u32 = 2;

#[derive(Clone, PartialEq, Message)]
struct PriorRecord {
    #[prost(string, tag = "1")]
    prefix_hash: String,
    #[prost(string, tag = "2")]
    query_hash: String,
    #[prost(string, tag = "3")]
    algorithm: String,
    #[prost(uint64, tag = "4")]
    generation: u64,
    #[prost(uint32, optional, tag = "5")]
    total_blocks: Option<u32>,
    #[prost(uint32, tag = "6")]
    layers: u32,
    #[prost(uint32, tag = "7")]
    kv_heads: u32,
    #[prost(uint32, tag = "8")]
    block_size: u32,
    #[prost(uint32, tag = "9")]
    pooling: u32,
    #[prost(message, optional, tag = "10")]
    repair: Option<RepairRecord>,
    #[prost(uint64, tag = "11")]
    file_bytes: u64,
    #[prost(uint64, tag = "12")]
    put_unix_ms: u64,
    #[prost(btree_map = "string, string", tag = "13")]
    metadata: BTreeMap<String, String>,
    /// The pooled ranking, packed; empty for a block list.
    #[prost(bytes = "vec", tag = "14")]
    ranking: Vec<u8>,
    #[prost(message, repeated, tag = "15")]
    per_k: Vec<ListRecord>,
    #[prost(uint32, repeated, tag = "16")]
    legacy: Vec<u32>,
    /// A [`BlobRef`]; empty without a blob.
    #[prost(bytes = "vec", tag = "17")]
    per_head: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RepairRecord {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(float, tag = "2")]
    ratio: f32,
}

#[derive(Clone, PartialEq, Message)]
struct ListRecord {
    #[prost(uint32, tag = "1")]
    k: u32,
    #[prost(uint32, repeated, tag = "2")]
    blocks: Vec<u32>,
}

/// The store's key of a prior: SHA-256 over its names, each after its length.
pub(super) fn store_key(key: &PriorKey) -> [u8; 32] {
    let mut hash = Sha256::new();
    for name in [&key.prefix_hash, &key.query_hash, &key.algorithm] {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
    }
    hash.finalize().into()
}

pub(super) fn encode(prior: &Prior) -> Vec<u8> {
    let blob = prior.blob().map(|blob| blob.to_bytes().to_vec());
    record(prior, prior.generation, blob.unwrap_or_default()).encode_to_vec()
}

/// A prior without what belongs to one store, its generation and its blob.
pub(super) fn encode_apart(prior: &Prior) -> Vec<u8> {
    record(prior, 0, Vec::new()).encode_to_vec()
}

fn record(prior: &Prior, generation: u64, per_head: Vec<u8>) -> PriorRecord {
    let blocks = &prior.blocks;
    let lists = blocks.per_k.iter().map(|(&k, list)| ListRecord {
        k,
        blocks: list.to_vec(),
    });
    let repair = |repair: &Repair| RepairRecord {
        name: repair.name.to_string(),
        ratio: repair.ratio,
    };
    PriorRecord {
        prefix_hash: prior.key.prefix_hash.to_string(),
        query_hash: prior.key.query_hash.to_string(),
        algorithm: prior.key.algorithm.to_string(),
        generation,
        total_blocks: blocks.total_blocks,
        layers: prior.layers,
        kv_heads: prior.kv_heads,
        block_size: prior.block_size,
        pooling: match prior.pooling {
            Pooling::Mean => POOLING_MEAN,
            Pooling::Max => POOLING_MAX,
        },
        repair: prior.repair.as_ref().map(repair),
        file_bytes: prior.file_bytes,
        put_unix_ms: prior.put_unix_ms,
        metadata: prior.metadata.clone(),
        ranking: blocks
            .ranking
            .as_ref()
            .map_or(Vec::new(), |r| r.as_bytes().to_vec()),
        per_k: lists.collect(),
        legacy: blocks.legacy.to_vec(),
        per_head,
    }
}

/// `None` when the bytes are no prior, or not the one that the key names.
pub(super) fn decode(key: &[u8], payload: &[u8]) -> Option<Prior> {
    let mut record = PriorRecord::decode(payload).ok()?;
    let blob = std::mem::take(&mut record.per_head);
    let mut prior = prior(record)?;
    if store_key(&prior.key) != key {
        return None;
    }
    if !blob.is_empty() && prior.blocks.ranking.is_some() {
        let heads = u64::from(prior.layers) * u64::from(prior.kv_heads);
        let blocks = prior.blocks.total_blocks.unwrap_or(0) as usize;
        let blob = BlobRef::from_bytes(&blob)?;
        let expected = heads.checked_mul(packed_bytes(blocks) as u64)?;
        prior.per_head = (blob.length == expected).then(|| PerHeadRanks::in_blob(blob))?;
    }
    Some(prior)
}

/// What [`encode_apart`] gave; `None` when it is no prior, or one that names a blob.
pub(super) fn decode_apart(payload: &[u8]) -> Option<Prior> {
    let record = PriorRecord::decode(payload).ok()?;
    if record.per_head.is_empty() {
        prior(record)
    } else {
        None
    }
}

/// The prior, as if it had one head.
fn prior(record: PriorRecord) -> Option<Prior> {
    if record
        .total_blocks
        .is_some_and(|n| n == 0 || n > BLOCKS_MAX)
    {
        return None;
    }
    let blocks = record.total_blocks.unwrap_or(0) as usize;
    let ranking = match record.ranking.as_slice() {
        [] => None,
        packed => Some(Ranking::from_bytes(packed, blocks)?),
    };
    let per_head = match ranking {
        None => PerHeadRanks::Absent,
        Some(_) => PerHeadRanks::Pooled,
    };
    let list = |list: ListRecord| (list.k, list.blocks.into());
    let repair = |repair: RepairRecord| Repair {
        name: repair.name.into(),
        ratio: repair.ratio,
    };
    Some(Prior {
        key: PriorKey {
            prefix_hash: record.prefix_hash.into(),
            query_hash: record.query_hash.into(),
            algorithm: record.algorithm.into(),
        },
        generation: record.generation,
        blocks: PriorBlocks {
            total_blocks: record.total_blocks,
            ranking,
            per_k: record.per_k.into_iter().map(list).collect(),
            legacy: record.legacy.into(),
        },
        layers: record.layers,
        kv_heads: record.kv_heads,
        block_size: record.block_size,
        pooling: match record.pooling {
            POOLING_MEAN => Pooling::Mean,
            POOLING_MAX => Pooling::Max,
            _ => return None,
        },
        repair: record.repair.map(repair),
        file_bytes: record.file_bytes,
        put_unix_ms: record.put_unix_ms,
        metadata: record.metadata,
        per_head,
    })
}
