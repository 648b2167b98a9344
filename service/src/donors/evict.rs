//! Which donor makes room: the least recently hit one that nobody has leased.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Arc, Weak, atomic::Ordering},
};

use super::catalog::{Catalog, Donor, Shard};

/// Entries beyond twice the donors before the heap is made anew.
const SLACK: usize = 1024;

/// A heap by the last hit that was seen. Readers only raise a number on the donor; an entry that
/// is out of date is put back under its true number when it comes up.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    heap: BinaryHeap<Reverse<Entry>>,
}

#[derive(Debug)]
struct Entry {
    last_hit: u64,
    donor: Weak<Donor>,
    shard: Weak<Shard>,
}

impl Eviction {
    /// Notes a donor that has become visible.
    pub(super) fn add(&mut self, shard: &Arc<Shard>, donor: &Arc<Donor>) {
        self.heap.push(Reverse(Entry {
            last_hit: donor.last_hit.load(Ordering::Relaxed),
            donor: Arc::downgrade(donor),
            shard: Arc::downgrade(shard),
        }));
    }

    /// Retires the next donor to go and returns it, or nothing when all are leased.
    pub(super) fn next(&mut self) -> Option<(Arc<Shard>, Arc<Donor>)> {
        let mut leased = Vec::new();
        let mut victim = None;
        while let Some(Reverse(mut entry)) = self.heap.pop() {
            let (Some(donor), Some(shard)) = (entry.donor.upgrade(), entry.shard.upgrade()) else {
                continue;
            };
            if donor.claim.is_retired() {
                continue;
            }
            let last_hit = donor.last_hit.load(Ordering::Relaxed);
            if last_hit > entry.last_hit {
                entry.last_hit = last_hit;
                self.heap.push(Reverse(entry));
            } else if donor.claim.retire_if_unleased() {
                victim = Some((shard, donor));
                break;
            } else {
                leased.push(Reverse(entry));
            }
        }
        self.heap.extend(leased);
        victim
    }

    /// Drops entries of donors that have gone, once they are many.
    pub(super) fn compact(&mut self, catalog: &Catalog) {
        let donors = usize::try_from(catalog.donors()).unwrap_or(usize::MAX);
        if self.heap.len() > donors.saturating_mul(2).saturating_add(SLACK) {
            self.heap.retain(|Reverse(entry)| {
                entry
                    .donor
                    .upgrade()
                    .is_some_and(|donor| !donor.claim.is_retired())
            });
        }
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.last_hit == other.last_hit
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        self.last_hit.cmp(&other.last_hit)
    }
}
