//! A stored prior as a file: what ReadPrior gives and PutPrior takes again, bit by bit.
//!
//! ```text
//! "kvprior" version:u8 | length of the record:u64 | record | rankings of the heads | xxh3:u64
//! ```
//!
//! The record is that of the store without what belongs to one server, its generation and its blob.
//! Scores are not in it: they were ranked when the prior was put, and not kept. Numbers are little
//! endian; the hash is over everything before it.

use std::collections::BTreeMap;

use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::import::{
    BLOCK_SIZE_MAX, BLOCKS_MAX, Format, KV_HEADS_MAX, LAYERS_MAX, LIST_ENTRIES_MAX, LIST_KEYS_MAX,
    METADATA_ENTRIES_MAX, METADATA_KEY_BYTES_MAX, METADATA_VALUE_BYTES_MAX,
};
use super::prior::{PerHead, PerHeadError, Prior, PriorKey, Repair};
use super::priors::{ALGORITHM_BYTES_MAX, PriorUpload, REPAIR_NAME_BYTES_MAX};
use super::ranking::{RankingView, packed_bytes};
use super::record;
use super::resolve::PriorBlocks;
use crate::store::Store;

const MAGIC: &[u8; 7] = b"kvprior";
const VERSION: u8 = 1;
const HASH_BYTES: usize = 8;

/// Why a file is not taken back. No message quotes the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StoredError {
    #[error("not a stored prior")]
    Unknown,
    #[error("a stored prior of format {found}; this version reads up to {VERSION}")]
    Newer { found: u8 },
    #[error("a stored prior that is damaged or cut off")]
    Damaged,
    /// The hash is right, so that somebody wrote it so.
    #[error("a stored prior with a bad {field}")]
    Field { field: &'static str },
}

/// Whether an upload is to be read here and not imported.
pub(super) fn is_meant(upload: &PriorUpload<'_>) -> bool {
    match upload.format {
        Some(Format::Stored) => true,
        Some(Format::Torch | Format::Safetensors) => false,
        None => upload.bytes.starts_with(MAGIC),
    }
}

/// The file of a prior. Blocks on the disk.
///
/// # Errors
/// When the rankings of the heads are gone (the prior was replaced or deleted meanwhile), or
/// damaged.
pub fn file(prior: &Prior, store: &Store) -> Result<Vec<u8>, PerHeadError> {
    prior.load_per_head(store)?;
    let heads = match prior.per_head() {
        // Of one head: its ranking is the prior's.
        PerHead::Ready(_) if prior.blob().is_none() => &[],
        PerHead::Ready(heads) => heads.packed,
        PerHead::Absent | PerHead::NotLoaded => &[],
    };
    let record = record::encode_apart(prior);
    let mut file = Vec::with_capacity(MAGIC.len() + 9 + record.len() + heads.len() + HASH_BYTES);
    file.extend_from_slice(MAGIC);
    file.push(VERSION);
    file.extend_from_slice(&(record.len() as u64).to_le_bytes());
    file.extend_from_slice(&record);
    file.extend_from_slice(heads);
    file.extend_from_slice(&xxh3_64(&file).to_le_bytes());
    Ok(file)
}

/// The prior of a file, without a generation and a blob, and the rankings of its heads for the
/// blob. Its names are the upload's; everything else is the file's, but for a repair that the
/// upload names.
///
/// # Errors
/// When the file is damaged or says what no import could have made.
pub(super) fn read(upload: &PriorUpload<'_>) -> Result<(Prior, Option<Vec<u8>>), StoredError> {
    let (record, heads) = parts(upload.bytes)?;
    let mut prior = record::decode_apart(record).ok_or(StoredError::Field { field: "record" })?;
    check(&prior)?;
    check_heads(&prior, heads)?;
    let algorithm = match upload.algorithm {
        "" => prior.key.algorithm,
        named => named.into(),
    };
    prior.key = PriorKey {
        prefix_hash: upload.prefix_hash.into(),
        query_hash: upload.query_hash.into(),
        algorithm,
    };
    if upload.repair.is_some() {
        prior.repair.clone_from(&upload.repair);
    }
    Ok((prior, (!heads.is_empty()).then(|| heads.to_vec())))
}

/// The record and the heads, once the hash is right.
fn parts(file: &[u8]) -> Result<(&[u8], &[u8]), StoredError> {
    let rest = file.strip_prefix(MAGIC).ok_or(StoredError::Unknown)?;
    match rest.first() {
        Some(&VERSION) => {}
        Some(&found) if found > VERSION => return Err(StoredError::Newer { found }),
        Some(_) | None => return Err(StoredError::Damaged),
    }
    let (body, hash) = file
        .split_last_chunk::<HASH_BYTES>()
        .ok_or(StoredError::Damaged)?;
    if xxh3_64(body).to_le_bytes() != *hash {
        return Err(StoredError::Damaged);
    }
    let body = body.get(MAGIC.len() + 1..).ok_or(StoredError::Damaged)?;
    let (length, body) = body.split_first_chunk::<8>().ok_or(StoredError::Damaged)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| StoredError::Damaged)?;
    body.split_at_checked(length).ok_or(StoredError::Damaged)
}

/// What an import would have refused. That the ranking ranks is known already.
fn check(prior: &Prior) -> Result<(), StoredError> {
    let Prior {
        key,
        generation: _,
        blocks,
        layers,
        kv_heads,
        block_size,
        pooling: _,
        repair,
        file_bytes: _,
        put_unix_ms: _,
        metadata,
        per_head: _,
    } = prior;
    let is_ranked = blocks.ranking.is_some();
    let shape = |found: u32, max| match is_ranked {
        true => (1..=max).contains(&found),
        false => found == 0,
    };
    let repair_is_good = |repair: &Repair| {
        (1..=REPAIR_NAME_BYTES_MAX).contains(&repair.name.len())
            && (0.0..=1.0).contains(&repair.ratio)
    };
    let all = [
        ("shape", shape(*layers, LAYERS_MAX)),
        ("shape", shape(*kv_heads, KV_HEADS_MAX)),
        ("block_size", *block_size <= BLOCK_SIZE_MAX),
        (
            "algorithm",
            (1..=ALGORITHM_BYTES_MAX).contains(&key.algorithm.len()),
        ),
        ("repair", repair.as_ref().is_none_or(repair_is_good)),
        ("metadata", metadata_is_good(metadata)),
        ("block list", lists_are_good(blocks)),
        (
            "block list",
            blocks.known_or_listed_blocks() > 0 && blocks.has_any(),
        ),
    ];
    match all.iter().find(|(_, is_good)| !is_good) {
        Some(&(field, _)) => Err(StoredError::Field { field }),
        None => Ok(()),
    }
}

fn metadata_is_good(metadata: &BTreeMap<String, String>) -> bool {
    metadata.len() <= METADATA_ENTRIES_MAX
        && metadata.iter().all(|(name, value)| {
            name.len() <= METADATA_KEY_BYTES_MAX && value.len() <= METADATA_VALUE_BYTES_MAX
        })
}

fn lists_are_good(blocks: &PriorBlocks) -> bool {
    let end = blocks.total_blocks.unwrap_or(BLOCKS_MAX);
    let is_good = |list: &[u32]| {
        let mut sorted = list.to_vec();
        sorted.sort_unstable();
        sorted.last().is_none_or(|last| *last < end)
            && sorted.windows(2).all(|pair| pair[0] != pair[1])
    };
    let by_k = &blocks.per_k;
    let entries: usize = by_k.values().map(|list| list.len()).sum();
    by_k.len() <= LIST_KEYS_MAX
        && entries.saturating_add(blocks.legacy.len()) <= LIST_ENTRIES_MAX
        && is_good(&blocks.legacy)
        && by_k.iter().all(|(&k, list)| {
            (1..=BLOCKS_MAX).contains(&k) && (1..=k as usize).contains(&list.len()) && is_good(list)
        })
}

/// One ranking for each head, where there are more than one.
fn check_heads(prior: &Prior, packed: &[u8]) -> Result<(), StoredError> {
    let blocks = prior.blocks.total_blocks.unwrap_or(0) as usize;
    let heads = u64::from(prior.layers) * u64::from(prior.kv_heads);
    let expected = match heads {
        0 | 1 => Some(0),
        heads => heads.checked_mul(packed_bytes(blocks) as u64),
    };
    let ranks =
        |head| RankingView::new(head, blocks).is_some_and(|ranking| ranking.is_permutation());
    let all_rank = expected == Some(packed.len() as u64)
        && packed.chunks(packed_bytes(blocks).max(1)).all(ranks);
    match all_rank {
        true => Ok(()),
        false => Err(StoredError::Field { field: "head" }),
    }
}

#[cfg(test)]
mod tests;
