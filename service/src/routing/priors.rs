//! The stored priors: put, found, listed and deleted, each durable before it is visible.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use kvatlas_kernels::{Pooling, pool, rank, rank_rows};
use parking_lot::{Mutex, RwLock};
use thiserror::Error;

use super::import::{Affinities, Format, ImportError, ImportedPrior, import};
use super::prior::{PerHeadRanks, Prior, PriorKey, Repair};
use super::ranking::{Ranking, pack_rows};
use super::record;
use super::resolve::PriorBlocks;
use super::stored::{self, StoredError};
use crate::store::{BlobName, Change, Store, StoreError, Table};

/// Priors of one store.
pub const PRIORS_MAX: usize = 100_000;
/// Algorithms under one pair of prefix_hash and query_hash.
pub const ALGORITHMS_MAX: usize = 64;
pub const PREFIX_HASH_BYTES_MAX: usize = 512;
pub const QUERY_HASH_BYTES_MAX: usize = 512;
pub const ALGORITHM_BYTES_MAX: usize = 128;
pub const REPAIR_NAME_BYTES_MAX: usize = 64;

/// The name of a prior whose upload and file name no algorithm.
const ALGORITHM_UNKNOWN: &str = "unknown";

/// All priors, readable from any thread; a lookup takes one shared lock for a few hash probes.
#[derive(Debug)]
pub struct Priors {
    store: Arc<Store>,
    /// Writers take turns, so that what is published last is what is stored.
    writer: Mutex<()>,
    index: RwLock<Index>,
}

/// What was found at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    pub loaded: u64,
    /// Records that cannot be read. They stay on the disk and answer nothing.
    pub damaged: u64,
    /// The blobs that belong to the priors: with `damaged` at 0 and those of everybody else who
    /// keeps blobs, what [`Store::remove_unreferenced_blobs`] is to keep.
    pub blobs: HashSet<BlobName>,
}

/// A prior file and what its sender says about it.
#[derive(Clone, Debug)]
pub struct PriorUpload<'a> {
    /// 1 to 512 bytes.
    pub prefix_hash: &'a str,
    /// At most 512 bytes; empty for a prior that serves every query.
    pub query_hash: &'a str,
    /// At most 128 bytes; empty: the file's own, else "unknown".
    pub algorithm: &'a str,
    /// `None`: the file's first bytes tell.
    pub format: Option<Format>,
    pub pooling: Pooling,
    pub repair: Option<Repair>,
    pub bytes: &'a [u8],
    pub now_unix_ms: u64,
}

#[derive(Clone, Debug)]
pub struct PutOutcome {
    pub prior: Arc<Prior>,
    /// A prior under the same key was there before.
    pub replaced: bool,
}

/// The prior that answers a lookup.
#[derive(Clone, Debug)]
pub struct Found {
    pub prior: Arc<Prior>,
    /// False when a query_hash was asked for and the prior without one answers.
    pub exact_query: bool,
}

/// Why a prior was not put. Messages name the field and the limit, and no value of the request.
#[derive(Debug, Error)]
pub enum PutError {
    #[error("prefix_hash: expected 1 to {PREFIX_HASH_BYTES_MAX} bytes, got {bytes}")]
    PrefixHash { bytes: usize },
    #[error("query_hash: expected at most {QUERY_HASH_BYTES_MAX} bytes, got {bytes}")]
    QueryHash { bytes: usize },
    #[error("algorithm: expected at most {ALGORITHM_BYTES_MAX} bytes, got {bytes}")]
    Algorithm { bytes: usize },
    #[error("repair.name: expected 1 to {REPAIR_NAME_BYTES_MAX} bytes, got {bytes}")]
    RepairName { bytes: usize },
    #[error("repair.ratio: expected 0 to 1")]
    RepairRatio,
    #[error("the file: {0}")]
    Import(#[from] ImportError),
    #[error("the file: {0}")]
    Stored(#[from] StoredError),
    #[error("the file: neither scores nor a listed block")]
    NoBlocks,
    #[error("the server keeps at most {PRIORS_MAX} priors")]
    Full,
    #[error(
        "the server keeps at most {ALGORITHMS_MAX} algorithms for one prefix_hash and query_hash"
    )]
    TooManyAlgorithms,
    #[error("{0}")]
    BlocksDiffer(#[from] BlocksDiffer),
    #[error("the prior was not stored: {0}")]
    Store(#[from] StoreError),
}

/// A prefix's prior and key summary may differ by one block, the tail that one of them drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "blocks: the prefix_hash's key summary has {summary} and a prior of it {prior}; they may \
     differ by one"
)]
pub struct BlocksDiffer {
    pub summary: u32,
    pub prior: u32,
}

impl Priors {
    /// Reads all records; a damaged one is counted and skipped.
    ///
    /// # Errors
    /// A failing disk.
    pub fn open(store: Arc<Store>) -> Result<(Self, LoadReport), StoreError> {
        let mut index = Index::default();
        let mut report = LoadReport::default();
        let scan = store.scan(Table::Priors, &mut |key, payload| {
            let Some(prior) = record::decode(key, payload) else {
                report.damaged += 1;
                return;
            };
            report.loaded += 1;
            report.blobs.extend(prior.blob().map(|blob| blob.name));
            index.insert(Arc::new(prior));
        })?;
        report.damaged += scan.damaged + scan.missing;
        let priors = Self {
            store,
            writer: Mutex::new(()),
            index: RwLock::new(index),
        };
        Ok((priors, report))
    }

    /// Imports, ranks, stores and then publishes a prior; what was under its key is replaced.
    /// Blocks on the processor and the disk. Acknowledged means on the disk.
    ///
    /// # Errors
    /// A field or a file that is refused, a full table, and a failing disk; readers see no
    /// change then.
    pub fn put(&self, upload: &PriorUpload<'_>) -> Result<PutOutcome, PutError> {
        check_upload(upload)?;
        if stored::is_meant(upload) {
            let (prior, heads) = stored::read(upload)?;
            return self.keep(prior, heads);
        }
        self.put_imported(upload, import(upload.bytes, upload.format)?)
    }

    /// The rest of [`Self::put`], once the file is read.
    pub(super) fn put_imported(
        &self,
        upload: &PriorUpload<'_>,
        imported: ImportedPrior,
    ) -> Result<PutOutcome, PutError> {
        let key = PriorKey {
            prefix_hash: upload.prefix_hash.into(),
            query_hash: upload.query_hash.into(),
            algorithm: algorithm_of(upload, &imported).into(),
        };
        let (prior, heads) = rank_prior(key, upload, imported)?;
        self.keep(prior, heads)
    }

    /// Stores a prior under a new generation, and the rankings of its heads beside it.
    fn keep(&self, mut prior: Prior, heads: Option<Vec<u8>>) -> Result<PutOutcome, PutError> {
        let _turn = self.writer.lock();
        self.index.read().check_room(&prior.key)?;
        self.index.read().check_prior(&prior)?;
        prior.generation = self.store.next_sequence()?;
        if let Some(packed) = heads {
            prior.per_head = PerHeadRanks::in_blob(self.store.put_blob(&packed)?);
        }
        // On a failure the blob stays: whether the record reached the disk is not known.
        self.write(&prior)?;
        let prior = Arc::new(prior);
        let old = self.index.write().insert(Arc::clone(&prior));
        if let Some(old) = &old {
            self.remove_blob(old);
        }
        Ok(PutOutcome {
            prior,
            replaced: old.is_some(),
        })
    }

    /// Deletes the prior under a key, or with an empty `algorithm` all under its two hashes.
    /// Returns how many there were. They answer nothing more from the start of this call, and are
    /// gone from the disk when it returns.
    ///
    /// # Errors
    /// A failing disk: then they may be back after a restart.
    pub fn delete(
        &self,
        prefix_hash: &str,
        query_hash: &str,
        algorithm: &str,
    ) -> Result<usize, StoreError> {
        let _turn = self.writer.lock();
        let removed = self
            .index
            .write()
            .remove(prefix_hash, query_hash, algorithm);
        if removed.is_empty() {
            return Ok(0);
        }
        let keys: Vec<_> = removed
            .iter()
            .map(|prior| record::store_key(&prior.key))
            .collect();
        let deletes: Vec<_> = keys
            .iter()
            .map(|key| Change::Delete {
                table: Table::Priors,
                key,
            })
            .collect();
        self.store.write(&deletes)?;
        self.store.commit()?;
        for prior in &removed {
            self.remove_blob(prior);
        }
        Ok(removed.len())
    }

    /// The prior under exactly this key; with an empty `algorithm` the newest under its hashes.
    #[must_use]
    pub fn get(&self, prefix_hash: &str, query_hash: &str, algorithm: &str) -> Option<Arc<Prior>> {
        self.index
            .read()
            .newest(prefix_hash, query_hash, algorithm)
            .cloned()
    }

    /// The prior that serves a request: the one under the query_hash, else the one without.
    #[must_use]
    pub fn find(&self, prefix_hash: &str, query_hash: &str, algorithm: &str) -> Option<Found> {
        let index = self.index.read();
        if let Some(prior) = index.newest(prefix_hash, query_hash, algorithm) {
            return Some(Found {
                prior: Arc::clone(prior),
                exact_query: true,
            });
        }
        let prior = Arc::clone(index.newest(prefix_hash, "", algorithm)?);
        Some(Found {
            prior,
            exact_query: false,
        })
    }

    /// At most `limit` priors after the key `after`, sorted by key, whose prefix_hash begins so.
    #[must_use]
    pub fn list(&self, begins: &str, after: Option<&PriorKey>, limit: usize) -> Vec<Arc<Prior>> {
        let first = PriorKey {
            prefix_hash: begins.into(),
            query_hash: "".into(),
            algorithm: "".into(),
        };
        let start = match after {
            Some(after) if *after >= first => Bound::Excluded(after),
            Some(_) | None => Bound::Included(&first),
        };
        let index = self.index.read();
        let priors = index.by_key.range::<PriorKey, _>((start, Bound::Unbounded));
        let priors = priors.take_while(|(key, _)| key.prefix_hash.starts_with(begins));
        priors
            .take(limit)
            .map(|(_, prior)| Arc::clone(prior))
            .collect()
    }

    /// Whether a manifest of this generation still says what a new one would be made from.
    #[must_use]
    pub fn is_current_generation(&self, generation: u64) -> bool {
        self.index.read().generations.contains(&generation)
    }

    /// Whether a key summary of so many blocks could be put beside the prefix's priors.
    ///
    /// # Errors
    /// When one of them has another number of blocks.
    pub(super) fn check_summary(&self, prefix_hash: &str, blocks: u32) -> Result<(), BlocksDiffer> {
        self.index.read().check_summary(prefix_hash, blocks)
    }

    /// Puts a key summary, while no prior is put, once it is found to agree with the prefix's
    /// priors; from then on they have to agree with it.
    ///
    /// # Errors
    /// When they do not, and what `put` returns.
    pub(super) fn admit_summary<T, E: From<BlocksDiffer>>(
        &self,
        prefix_hash: &str,
        blocks: u32,
        put: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let _turn = self.writer.lock();
        self.check_summary(prefix_hash, blocks)?;
        let admitted = put()?;
        self.expect_summary(prefix_hash, blocks);
        Ok(admitted)
    }

    /// From now on the prefix's priors have to agree with a key summary of so many blocks.
    pub(super) fn expect_summary(&self, prefix_hash: &str, blocks: u32) {
        let mut index = self.index.write();
        index.summary_blocks.insert(prefix_hash.into(), blocks);
    }

    /// From now on they need not.
    pub(super) fn forget_summary(&self, prefix_hash: &str) {
        self.index.write().summary_blocks.remove(prefix_hash);
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.index.read().by_key.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn write(&self, prior: &Prior) -> Result<(), StoreError> {
        let (key, payload) = (record::store_key(&prior.key), record::encode(prior));
        self.store.write(&[Change::Put {
            table: Table::Priors,
            key: &key,
            payload: &payload,
        }])?;
        self.store.commit()
    }

    /// What cannot be removed now goes with the sweep of the next start.
    fn remove_blob(&self, prior: &Prior) {
        if let Some(blob) = prior.blob()
            && let Err(error) = self.store.remove_blob(blob)
        {
            tracing::warn!(%error, blob = %blob.name, "a blob without a prior is left");
        }
    }
}

fn check_upload(upload: &PriorUpload<'_>) -> Result<(), PutError> {
    let PriorUpload {
        prefix_hash,
        query_hash,
        algorithm,
        repair,
        ..
    } = upload;
    if !(1..=PREFIX_HASH_BYTES_MAX).contains(&prefix_hash.len()) {
        return Err(PutError::PrefixHash {
            bytes: prefix_hash.len(),
        });
    }
    if query_hash.len() > QUERY_HASH_BYTES_MAX {
        return Err(PutError::QueryHash {
            bytes: query_hash.len(),
        });
    }
    if algorithm.len() > ALGORITHM_BYTES_MAX {
        return Err(PutError::Algorithm {
            bytes: algorithm.len(),
        });
    }
    let Some(Repair { name, ratio }) = repair else {
        return Ok(());
    };
    if !(1..=REPAIR_NAME_BYTES_MAX).contains(&name.len()) {
        return Err(PutError::RepairName { bytes: name.len() });
    }
    if !(0.0..=1.0).contains(ratio) {
        return Err(PutError::RepairRatio);
    }
    Ok(())
}

fn algorithm_of<'a>(upload: &PriorUpload<'a>, imported: &'a ImportedPrior) -> &'a str {
    let of_file = imported.prior_type.as_deref().unwrap_or_default();
    let named = [upload.algorithm, of_file]
        .into_iter()
        .find(|name| !name.is_empty());
    named.unwrap_or(ALGORITHM_UNKNOWN)
}

/// The prior without its generation and blob, and the packed rankings of its heads for the blob.
fn rank_prior(
    key: PriorKey,
    upload: &PriorUpload<'_>,
    imported: ImportedPrior,
) -> Result<(Prior, Option<Vec<u8>>), PutError> {
    let ImportedPrior {
        affinities,
        lists_by_k,
        legacy_list,
        total_blocks,
        block_size,
        prior_type: _,
        metadata,
    } = imported;
    let list = |(k, list): (u32, Vec<u32>)| (k, list.into());
    let mut blocks = PriorBlocks {
        total_blocks,
        ranking: None,
        per_k: lists_by_k.into_iter().map(list).collect(),
        legacy: legacy_list.unwrap_or_default().into(),
    };
    let (mut layers, mut kv_heads) = (0, 0);
    let (mut per_head, mut heads) = (PerHeadRanks::Absent, None);
    if let Some(affinities) = affinities {
        (layers, kv_heads) = (affinities.layers, affinities.kv_heads);
        blocks.total_blocks = Some(affinities.blocks);
        blocks.ranking = Some(rank_pooled(&affinities, upload.pooling));
        per_head = PerHeadRanks::Pooled;
        heads = (u64::from(layers) * u64::from(kv_heads) > 1).then(|| {
            let count = affinities.blocks as usize;
            pack_rows(&rank_rows(&affinities.scores, count), count)
        });
    }
    if blocks.known_or_listed_blocks() == 0 || !blocks.has_any() {
        return Err(PutError::NoBlocks);
    }
    let prior = Prior {
        key,
        generation: 0,
        blocks,
        layers,
        kv_heads,
        block_size: block_size.unwrap_or(0),
        pooling: upload.pooling,
        repair: upload.repair.clone(),
        file_bytes: upload.bytes.len() as u64,
        put_unix_ms: upload.now_unix_ms,
        metadata,
        per_head,
    };
    Ok((prior, heads))
}

fn rank_pooled(affinities: &Affinities, pooling: Pooling) -> Ranking {
    let pooled = pool(&affinities.scores, affinities.blocks as usize, pooling);
    Ranking::pack(&rank(&pooled))
}

/// A prior that only lists blocks may not know how many there are.
fn check_blocks(summary: u32, prior: &Prior) -> Result<(), BlocksDiffer> {
    match prior.blocks.total_blocks {
        Some(prior) if prior.abs_diff(summary) > 1 => Err(BlocksDiffer { summary, prior }),
        Some(_) | None => Ok(()),
    }
}

/// By query_hash the priors of one prefix, the newest last.
type ByQuery = HashMap<Box<str>, Vec<Arc<Prior>>>;

/// Two ways to the same priors: by hash for requests, by key for pages.
#[derive(Debug, Default)]
struct Index {
    /// By prefix_hash.
    by_hash: HashMap<Box<str>, ByQuery>,
    by_key: BTreeMap<PriorKey, Arc<Prior>>,
    generations: HashSet<u64>,
    /// Blocks of the key summaries, by prefix_hash.
    summary_blocks: HashMap<Box<str>, u32>,
}

impl Index {
    fn check_summary(&self, prefix_hash: &str, summary: u32) -> Result<(), BlocksDiffer> {
        let queries = self.by_hash.get(prefix_hash).into_iter();
        let mut priors = queries.flat_map(HashMap::values).flatten();
        priors.try_for_each(|prior| check_blocks(summary, prior))
    }

    fn check_prior(&self, prior: &Prior) -> Result<(), BlocksDiffer> {
        let summary = self.summary_blocks.get(&prior.key.prefix_hash);
        summary.map_or(Ok(()), |&summary| check_blocks(summary, prior))
    }

    fn newest(&self, prefix_hash: &str, query_hash: &str, algorithm: &str) -> Option<&Arc<Prior>> {
        let priors = self.by_hash.get(prefix_hash)?.get(query_hash)?;
        let mut newest_first = priors.iter().rev();
        newest_first.find(|prior| algorithm.is_empty() || *prior.key.algorithm == *algorithm)
    }

    fn check_room(&self, key: &PriorKey) -> Result<(), PutError> {
        if self.by_key.contains_key(key) {
            return Ok(());
        }
        if self.by_key.len() >= PRIORS_MAX {
            return Err(PutError::Full);
        }
        let siblings = self
            .by_hash
            .get(&key.prefix_hash)
            .and_then(|by| by.get(&key.query_hash));
        if siblings.is_some_and(|priors| priors.len() >= ALGORITHMS_MAX) {
            return Err(PutError::TooManyAlgorithms);
        }
        Ok(())
    }

    /// Returns the prior that was under the same key.
    fn insert(&mut self, prior: Arc<Prior>) -> Option<Arc<Prior>> {
        let key = prior.key.clone();
        let queries = self.by_hash.entry(key.prefix_hash.clone()).or_default();
        let priors = queries.entry(key.query_hash.clone()).or_default();
        priors.retain(|other| other.key.algorithm != key.algorithm);
        let place = priors.partition_point(|other| other.generation < prior.generation);
        priors.insert(place, Arc::clone(&prior));
        self.generations.insert(prior.generation);
        let old = self.by_key.insert(key, prior);
        if let Some(old) = &old {
            self.generations.remove(&old.generation);
        }
        old
    }

    /// Returns what was removed.
    fn remove(&mut self, prefix_hash: &str, query_hash: &str, algorithm: &str) -> Vec<Arc<Prior>> {
        let Some(queries) = self.by_hash.get_mut(prefix_hash) else {
            return Vec::new();
        };
        let Some(priors) = queries.get_mut(query_hash) else {
            return Vec::new();
        };
        let is_meant =
            |prior: &mut Arc<Prior>| algorithm.is_empty() || *prior.key.algorithm == *algorithm;
        let removed: Vec<_> = priors.extract_if(.., is_meant).collect();
        if priors.is_empty() {
            queries.remove(query_hash);
        }
        if queries.is_empty() {
            self.by_hash.remove(prefix_hash);
        }
        for prior in &removed {
            self.by_key.remove(&prior.key);
            self.generations.remove(&prior.generation);
        }
        removed
    }
}

#[cfg(test)]
pub(crate) mod tests;
