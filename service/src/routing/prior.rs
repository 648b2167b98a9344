//! A prior as it is served: ranked once, immutable, shared.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use kvatlas_kernels::Pooling;
use thiserror::Error;

use super::ranking::{RankingView, packed_bytes};
use super::resolve::{HeadRankings, PriorBlocks};
use crate::store::{Blob, BlobRef, Store, StoreError};

/// What a prior is stored under. Sorts by prefix, query, algorithm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PriorKey {
    pub prefix_hash: Box<str>,
    /// Empty for a prior that serves every query.
    pub query_hash: Box<str>,
    pub algorithm: Box<str>,
}

/// What engines should recompute after injection.
#[derive(Clone, Debug, PartialEq)]
pub struct Repair {
    pub name: Box<str>,
    /// Share of the positions, 0 to 1.
    pub ratio: f32,
}

/// One stored prior. Nothing of it changes; a put makes a new one.
#[derive(Debug)]
pub struct Prior {
    pub key: PriorKey,
    /// New with every put, never used again.
    pub generation: u64,
    pub blocks: PriorBlocks,
    /// Of the score tensor; 0 when the prior is a block list.
    pub layers: u32,
    pub kv_heads: u32,
    /// Tokens per block; 0 when the file does not say.
    pub block_size: u32,
    pub pooling: Pooling,
    pub repair: Option<Repair>,
    /// Size of the imported file.
    pub file_bytes: u64,
    pub put_unix_ms: u64,
    pub metadata: BTreeMap<String, String>,
    pub(super) per_head: PerHeadRanks,
}

/// Whether the rankings of the single heads can be read now.
#[derive(Clone, Copy, Debug)]
pub enum PerHead<'a> {
    /// The prior is only a list of blocks.
    Absent,
    Ready(HeadRankings<'a>),
    /// [`Prior::load_per_head`] must run first, where blocking is allowed.
    NotLoaded,
}

/// Why the rankings of the single heads cannot be read.
#[derive(Debug, Error)]
pub enum PerHeadError {
    #[error("the stored rankings of the single heads cannot be read; put the prior again")]
    Store(#[from] StoreError),
    #[error("the stored rankings of the single heads rank nothing; put the prior again")]
    NoRanking,
}

impl Prior {
    #[must_use]
    pub fn per_head(&self) -> PerHead<'_> {
        let packed = match (&self.per_head, &self.blocks.ranking) {
            (PerHeadRanks::Absent, _) | (_, None) => return PerHead::Absent,
            (PerHeadRanks::Pooled, Some(ranking)) => ranking.as_bytes(),
            (PerHeadRanks::InBlob { mapped, .. }, Some(_)) => match mapped.get() {
                Some(blob) => blob,
                None => return PerHead::NotLoaded,
            },
        };
        PerHead::Ready(HeadRankings {
            layers: self.layers,
            kv_heads: self.kv_heads,
            blocks: self.blocks.total_blocks.unwrap_or(0),
            packed,
        })
    }

    /// Maps and checks the rankings of the single heads, once; blocks on the disk.
    ///
    /// # Errors
    /// When the blob is gone (the prior was replaced or deleted meanwhile) or damaged.
    pub fn load_per_head(&self, store: &Store) -> Result<(), PerHeadError> {
        let PerHeadRanks::InBlob { blob, mapped } = &self.per_head else {
            return Ok(());
        };
        if mapped.get().is_some() {
            return Ok(());
        }
        let bytes = store.map_blob(blob)?;
        let blocks = self.blocks.total_blocks.unwrap_or(0) as usize;
        let ranks_all = bytes
            .chunks_exact(packed_bytes(blocks).max(1))
            .all(|packed| {
                RankingView::new(packed, blocks).is_some_and(|ranking| ranking.is_permutation())
            });
        if !ranks_all {
            return Err(PerHeadError::NoRanking);
        }
        // Two loaders at once map the same bytes: either map will do.
        let _ = mapped.set(bytes);
        Ok(())
    }

    /// The file that belongs to this prior alone.
    pub(super) fn blob(&self) -> Option<&BlobRef> {
        match &self.per_head {
            PerHeadRanks::InBlob { blob, .. } => Some(blob),
            PerHeadRanks::Absent | PerHeadRanks::Pooled => None,
        }
    }
}

/// Where the rankings of the single heads are.
#[derive(Debug)]
pub(super) enum PerHeadRanks {
    Absent,
    /// One head: its ranking is the pooled one.
    Pooled,
    /// Mapped on first use: most priors are never asked for it, and a start would read them all.
    InBlob {
        blob: BlobRef,
        mapped: OnceLock<Blob>,
    },
}

impl PerHeadRanks {
    pub(super) fn in_blob(blob: BlobRef) -> Self {
        Self::InBlob {
            blob,
            mapped: OnceLock::new(),
        }
    }
}
