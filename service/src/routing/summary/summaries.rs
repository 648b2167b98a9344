//! The stored key summaries: put, found, listed and deleted, each durable before it is visible.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use super::SUMMARIES_MAX;
use super::build::{NewBlobs, build};
use super::check::{check_frame, shape};
use super::content::{Content, find};
use super::error::{PutSummaryError, SummaryError};
use super::key_summary::KeySummary;
use super::record;
use crate::routing::frame::KeyFrame;
use crate::routing::import::{Format, TensorFile};
use crate::routing::priors::{PREFIX_HASH_BYTES_MAX, Priors};
use crate::store::{BlobName, Change, Store, StoreError, Table};

/// All key summaries, readable from any thread; a look-up takes one shared lock.
#[derive(Debug)]
pub struct Summaries {
    store: Arc<Store>,
    /// A prefix's summary and its priors must agree in their blocks.
    priors: Arc<Priors>,
    /// Writers take turns, so that what is published last is what is stored.
    writer: Mutex<()>,
    index: RwLock<Index>,
}

#[derive(Debug, Default)]
struct Index {
    by_prefix: BTreeMap<Box<str>, Arc<KeySummary>>,
    generations: HashSet<u64>,
}

/// What was found at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    pub loaded: u64,
    /// Records that cannot be read. They stay on the disk and answer nothing.
    pub damaged: u64,
    /// The blobs that belong to the summaries: with `damaged` at 0 and those of everybody else
    /// who keeps blobs, what [`Store::remove_unreferenced_blobs`] is to keep.
    pub blobs: HashSet<BlobName>,
}

/// A file and what its sender says about it.
pub struct SummaryUpload<'a> {
    /// 1 to 512 bytes.
    pub prefix_hash: &'a str,
    pub frame: KeyFrame,
    /// `None`: the names in the file tell.
    pub content: Option<Content>,
    /// `None`: the file's first bytes tell.
    pub format: Option<Format>,
    /// Mapped, since it may be larger than the memory.
    pub file: &'a [u8],
    pub now_unix_ms: u64,
    /// Whether somebody still waits for it; asked now and then.
    pub is_wanted: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for SummaryUpload<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SummaryUpload")
            .field("frame", &self.frame)
            .field("content", &self.content)
            .field("file_bytes", &self.file.len())
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
pub struct PutOutcome {
    pub summary: Arc<KeySummary>,
    /// A summary of the prefix was there before.
    pub replaced: bool,
}

impl Summaries {
    /// Reads all records and no table; a damaged record is counted and skipped.
    ///
    /// # Errors
    /// A failing disk.
    pub fn open(store: Arc<Store>, priors: Arc<Priors>) -> Result<(Self, LoadReport), StoreError> {
        let mut index = Index::default();
        let mut report = LoadReport::default();
        let scan = store.scan(Table::KeySummaries, &mut |key, payload| {
            let Some(summary) = record::decode(key, payload) else {
                report.damaged += 1;
                return;
            };
            report.loaded += 1;
            report
                .blobs
                .extend(summary.blobs.all().map(|blob| blob.name));
            priors.expect_summary(&summary.prefix_hash, summary.shape.blocks);
            index.insert(Arc::new(summary));
        })?;
        report.damaged += scan.damaged + scan.missing;
        let summaries = Self {
            store,
            priors,
            writer: Mutex::new(()),
            index: RwLock::new(index),
        };
        Ok((summaries, report))
    }

    /// Checks, builds, stores and then publishes a summary; what the prefix had is replaced.
    /// Blocks on the processor and the disk. Acknowledged means on the disk.
    ///
    /// # Errors
    /// A field or a file that is refused, a full table, a failing disk, and when nobody waits any
    /// more; readers see no change then, and nothing stays on the disk.
    pub fn put(&self, upload: SummaryUpload<'_>) -> Result<PutOutcome, PutSummaryError> {
        // Kept nowhere: the screens' bound holds for whoever does not know it.
        self.put_dithered(upload, random_seed()?)
    }

    /// The rest of [`Self::put`], with a certain seed for the dither.
    pub(super) fn put_dithered(
        &self,
        upload: SummaryUpload<'_>,
        dither_seed: u64,
    ) -> Result<PutOutcome, PutSummaryError> {
        let SummaryUpload {
            prefix_hash,
            frame,
            content,
            format,
            file,
            now_unix_ms,
            is_wanted,
        } = upload;
        let bytes = prefix_hash.len();
        if !(1..=PREFIX_HASH_BYTES_MAX).contains(&bytes) {
            return Err(PutSummaryError::PrefixHash { bytes });
        }
        check_frame(&frame)?;
        let mut file = TensorFile::open(file, format)?;
        let source = find(&mut file, content, frame.block_size as usize)?;
        let shape = shape(frame, &source)?;
        // Again once it is built, when it counts; here to spare the work.
        self.check_room(prefix_hash)?;
        self.priors.check_summary(prefix_hash, shape.blocks)?;
        let mut new = NewBlobs::new(&self.store);
        let blobs = build(&mut new, &source, &shape, dither_seed, is_wanted)?;
        let summary = KeySummary {
            prefix_hash: prefix_hash.into(),
            generation: self.store.next_sequence()?,
            shape,
            put_unix_ms: now_unix_ms,
            blobs,
            loaded: OnceLock::new(),
        };
        // Whoever asks first need not wait for it, and what was written is read once before
        // anybody relies on it.
        summary.load(&self.store).map_err(unreadable)?;
        self.publish(summary, &mut new)
    }

    fn publish(
        &self,
        summary: KeySummary,
        new: &mut NewBlobs<'_>,
    ) -> Result<PutOutcome, PutSummaryError> {
        let _turn = self.writer.lock();
        self.check_room(&summary.prefix_hash)?;
        let (prefix_hash, blocks) = (summary.prefix_hash.clone(), summary.shape.blocks);
        self.priors.admit_summary(&prefix_hash, blocks, || {
            // On a failure the blobs stay: whether the record reached the disk is not known.
            new.keep();
            self.write(&summary)?;
            let summary = Arc::new(summary);
            let old = self.index.write().insert(Arc::clone(&summary));
            if let Some(old) = &old {
                self.remove_blobs(old);
            }
            Ok(PutOutcome {
                summary,
                replaced: old.is_some(),
            })
        })
    }

    /// Deletes the summary of a prefix; false when there is none. It answers nothing more from
    /// the start of this call, and is gone from the disk when it returns.
    ///
    /// # Errors
    /// A failing disk: then it may be back after a restart.
    pub fn delete(&self, prefix_hash: &str) -> Result<bool, StoreError> {
        let _turn = self.writer.lock();
        let Some(removed) = self.index.write().remove(prefix_hash) else {
            return Ok(false);
        };
        self.store.write(&[Change::Delete {
            table: Table::KeySummaries,
            key: prefix_hash.as_bytes(),
        }])?;
        self.store.commit()?;
        self.priors.forget_summary(prefix_hash);
        self.remove_blobs(&removed);
        Ok(true)
    }

    /// The summary of a prefix.
    #[must_use]
    pub fn find(&self, prefix_hash: &str) -> Option<Arc<KeySummary>> {
        self.index.read().by_prefix.get(prefix_hash).cloned()
    }

    /// At most `limit` summaries after the prefix `after`, sorted by prefix_hash, whose
    /// prefix_hash begins so.
    #[must_use]
    pub fn list(&self, begins: &str, after: Option<&str>, limit: usize) -> Vec<Arc<KeySummary>> {
        let start = match after {
            Some(after) if after >= begins => Bound::Excluded(after),
            Some(_) | None => Bound::Included(begins),
        };
        let index = self.index.read();
        let summaries = index.by_prefix.range::<str, _>((start, Bound::Unbounded));
        let summaries = summaries.take_while(|(prefix_hash, _)| prefix_hash.starts_with(begins));
        summaries
            .take(limit)
            .map(|(_, summary)| Arc::clone(summary))
            .collect()
    }

    /// Whether a manifest of this generation still says what a new one would be made from.
    #[must_use]
    pub fn is_current_generation(&self, generation: u64) -> bool {
        self.index.read().generations.contains(&generation)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.index.read().by_prefix.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn check_room(&self, prefix_hash: &str) -> Result<(), PutSummaryError> {
        let index = self.index.read();
        if index.by_prefix.len() >= SUMMARIES_MAX && !index.by_prefix.contains_key(prefix_hash) {
            return Err(PutSummaryError::Full);
        }
        Ok(())
    }

    fn write(&self, summary: &KeySummary) -> Result<(), StoreError> {
        self.store.write(&[Change::Put {
            table: Table::KeySummaries,
            key: summary.prefix_hash.as_bytes(),
            payload: &record::encode(summary),
        }])?;
        self.store.commit()
    }

    /// What cannot be removed now goes with the sweep of the next start.
    fn remove_blobs(&self, summary: &KeySummary) {
        for blob in summary.blobs.all() {
            if let Err(error) = self.store.remove_blob(blob) {
                tracing::warn!(%error, blob = %blob.name, "a blob without a key summary is left");
            }
        }
    }
}

impl Index {
    /// Returns the summary that the prefix had.
    fn insert(&mut self, summary: Arc<KeySummary>) -> Option<Arc<KeySummary>> {
        self.generations.insert(summary.generation);
        let old = self.by_prefix.insert(summary.prefix_hash.clone(), summary);
        if let Some(old) = &old {
            self.generations.remove(&old.generation);
        }
        old
    }

    fn remove(&mut self, prefix_hash: &str) -> Option<Arc<KeySummary>> {
        let removed = self.by_prefix.remove(prefix_hash)?;
        self.generations.remove(&removed.generation);
        Some(removed)
    }
}

fn random_seed() -> Result<u64, PutSummaryError> {
    let mut seed = [0_u8; 8];
    getrandom::fill(&mut seed).map_err(|_| PutSummaryError::NoRandomness)?;
    Ok(u64::from_le_bytes(seed))
}

/// What was written a moment ago is damaged: the disk fails.
fn unreadable(error: SummaryError) -> PutSummaryError {
    match error {
        SummaryError::Store(error) => PutSummaryError::Store(error),
        damaged @ SummaryError::Damaged { .. } => PutSummaryError::Unreadable(damaged),
    }
}
