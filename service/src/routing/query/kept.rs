//! Queries that were put before they are used: kept under their query_hash until a deadline.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use super::OnlineQuery;

/// Longest time that a query is kept, in milliseconds.
pub const TTL_MS_MAX: u32 = 3_600_000;
/// What an entry takes beside its query and its hash, about, in bytes.
const ENTRY_BYTES: usize = 256;

/// Queries by query_hash, within limits of number and memory. Time comes in as milliseconds of
/// any clock, always of the same one.
#[derive(Debug)]
pub struct Queries {
    queries_max: usize,
    bytes_max: usize,
    kept: Mutex<Kept>,
}

/// There is no room: the caller must wait for others to run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueriesFull {
    #[error("{queries_max} queries are kept, no more are taken")]
    Number { queries_max: usize },
    #[error("the kept queries would take {bytes} bytes, at most {bytes_max}")]
    Bytes { bytes: usize, bytes_max: usize },
}

/// What is kept now, entries that have run out but were not swept included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptCounts {
    pub queries: usize,
    pub bytes: usize,
}

#[derive(Debug, Default)]
struct Kept {
    by_hash: HashMap<Arc<str>, Entry>,
    /// The same entries by deadline, so that sweeping looks at no other.
    by_deadline: BTreeSet<(u64, Arc<str>)>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    query: Arc<OnlineQuery>,
    deadline_ms: u64,
    bytes: usize,
}

impl Queries {
    #[must_use]
    pub fn new(queries_max: usize, bytes_max: usize) -> Self {
        Self {
            queries_max,
            bytes_max,
            kept: Mutex::default(),
        }
    }

    /// Keeps a query until `deadline_ms`, in place of the one of that hash.
    ///
    /// # Errors
    /// When there is no room; what was kept stays.
    pub fn put(
        &self,
        query_hash: &str,
        query: Arc<OnlineQuery>,
        now_ms: u64,
        deadline_ms: u64,
    ) -> Result<(), QueriesFull> {
        let entry = Entry {
            bytes: query.bytes() + 2 * query_hash.len() + ENTRY_BYTES,
            query,
            deadline_ms,
        };
        let mut kept = self.kept.lock();
        kept.sweep(now_ms);
        let replaced = kept.by_hash.get(query_hash).map(|entry| entry.bytes);
        if replaced.is_none() && kept.by_hash.len() >= self.queries_max {
            return Err(QueriesFull::Number {
                queries_max: self.queries_max,
            });
        }
        let bytes = kept.bytes - replaced.unwrap_or(0) + entry.bytes;
        if bytes > self.bytes_max {
            return Err(QueriesFull::Bytes {
                bytes,
                bytes_max: self.bytes_max,
            });
        }
        kept.remove(query_hash);
        kept.insert(query_hash.into(), entry);
        Ok(())
    }

    /// The query of that hash, unless its deadline has passed.
    #[must_use]
    pub fn find(&self, query_hash: &str, now_ms: u64) -> Option<Arc<OnlineQuery>> {
        let kept = self.kept.lock();
        let entry = kept.by_hash.get(query_hash)?;
        (now_ms < entry.deadline_ms).then(|| Arc::clone(&entry.query))
    }

    /// Lets go of the queries whose deadline has passed.
    pub fn sweep(&self, now_ms: u64) {
        self.kept.lock().sweep(now_ms);
    }

    #[must_use]
    pub fn counts(&self) -> KeptCounts {
        let kept = self.kept.lock();
        KeptCounts {
            queries: kept.by_hash.len(),
            bytes: kept.bytes,
        }
    }
}

impl Kept {
    fn insert(&mut self, query_hash: Arc<str>, entry: Entry) {
        self.bytes += entry.bytes;
        self.by_deadline
            .insert((entry.deadline_ms, Arc::clone(&query_hash)));
        self.by_hash.insert(query_hash, entry);
    }

    fn remove(&mut self, query_hash: &str) {
        if let Some((query_hash, entry)) = self.by_hash.remove_entry(query_hash) {
            self.bytes -= entry.bytes;
            self.by_deadline.remove(&(entry.deadline_ms, query_hash));
        }
    }

    fn sweep(&mut self, now_ms: u64) {
        while let Some((deadline_ms, query_hash)) = self.by_deadline.first()
            && *deadline_ms <= now_ms
        {
            let query_hash = Arc::clone(query_hash);
            self.remove(&query_hash);
        }
    }
}

#[cfg(test)]
mod tests;
