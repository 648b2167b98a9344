//! Which donor makes room: one that is hit seldom, and long ago, and that nobody has leased.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::{Arc, Weak, atomic::Ordering},
};

use super::catalog::{Catalog, Donor, Shard};

/// Entries beyond a quarter more than the donors before those that have gone are dropped.
const SLACK: usize = 1024;
/// Of so many entries one at least is on probation, so that new donors get a chance, and last as
/// long as half of the room allows where others were hit once each.
const PROBATION_SHARE: usize = 2;
/// Looks without a hit between them that an entry survives when it is first protected.
const CREDIT_AT_FIRST: u8 = 2;
/// Further ones that each look gives which finds it hit.
const CREDIT_PER_HIT: u8 = 3;
/// The most it can have.
const CREDIT_MAX: u8 = 7;
const CREDIT_BITS: u32 = 3;
const _: () = assert!(CREDIT_MAX == (1 << CREDIT_BITS) - 1);

/// Who is next, told from one number on each donor that readers raise when they hit it.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    segments: Segments<(Weak<Donor>, Weak<Shard>)>,
}

impl Eviction {
    /// Notes a donor that has become visible.
    pub(super) fn add(&mut self, shard: &Arc<Shard>, donor: &Arc<Donor>) {
        let last_hit = donor.last_hit.load(Ordering::Relaxed);
        let item = (Arc::downgrade(donor), Arc::downgrade(shard));
        self.segments.add(item, last_hit);
    }

    /// Retires the next donor to go and returns it, or nothing when all are leased.
    pub(super) fn next(&mut self) -> Option<(Arc<Shard>, Arc<Donor>)> {
        self.segments.next(&last_hit, |(donor, shard)| {
            let (donor, shard) = (donor.upgrade()?, shard.upgrade()?);
            donor.claim.retire_if_unleased().then_some((shard, donor))
        })
    }

    /// Drops entries of donors that have gone, once they are many.
    pub(super) fn compact(&mut self, catalog: &Catalog) {
        let donors = usize::try_from(catalog.donors()).unwrap_or(usize::MAX);
        let most = donors.saturating_add(donors / 4).saturating_add(SLACK);
        if self.segments.len() > most {
            self.segments.retain(|item| last_hit(item).is_some());
        }
    }
}

/// When a donor was last hit; none where it has gone.
fn last_hit((donor, shard): &(Weak<Donor>, Weak<Shard>)) -> Option<u64> {
    let donor = donor.upgrade()?;
    let is_there = shard.strong_count() > 0 && !donor.claim.is_retired();
    is_there.then(|| donor.last_hit.load(Ordering::Relaxed))
}

/// Items on probation go by their last hit; those that were hit are protected.
///
/// So many one-off items pass through probation without touching what is protected. A protected
/// item is looked at in turn. With every look that finds it hit it gains some further looks, and
/// when it has none left it goes back on probation: what was hit once soon stands where its last
/// hit puts it, what was hit often stays longer, and old hits fade. Whoever hits an item only
/// raises its number; that is noticed when the item comes up.
#[derive(Debug)]
struct Segments<T> {
    /// The one with the oldest hit that was seen comes up first.
    probation: BinaryHeap<Reverse<Entry<T>>>,
    /// Looked at from the front.
    protected: VecDeque<Entry<T>>,
    /// Looks that are due, times the number of entries.
    due: usize,
}

#[derive(Debug)]
struct Entry<T> {
    /// The last hit that was seen, and in the lowest bits the looks that are left.
    seen: u64,
    item: T,
}

impl<T> Entry<T> {
    fn new(item: T, last_hit: u64, credit: u8) -> Self {
        let seen = last_hit << CREDIT_BITS | u64::from(credit);
        Self { seen, item }
    }

    fn last_hit(&self) -> u64 {
        self.seen >> CREDIT_BITS
    }

    fn credit(&self) -> u8 {
        u8::try_from(self.seen & u64::from(CREDIT_MAX)).unwrap_or(0)
    }
}

impl<T> Default for Segments<T> {
    fn default() -> Self {
        Self {
            probation: BinaryHeap::new(),
            protected: VecDeque::new(),
            due: 0,
        }
    }
}

impl<T> Segments<T> {
    fn len(&self) -> usize {
        self.probation.len() + self.protected.len()
    }

    fn add(&mut self, item: T, last_hit: u64) {
        self.put_on_probation(Entry::new(item, last_hit, 0));
    }

    /// The next item that `take` takes. `last_hit` gives none for items that have gone.
    fn next<V>(
        &mut self,
        last_hit: &impl Fn(&T) -> Option<u64>,
        mut take: impl FnMut(&T) -> Option<V>,
    ) -> Option<V> {
        // Each is looked at once while as many are evicted as there are.
        self.due += self.protected.len();
        while self.due > self.len() {
            self.due -= self.len();
            self.look(last_hit);
        }
        let mut refused = Vec::new();
        let mut taken = None;
        while taken.is_none() {
            let on_probation = self.probation.len() + refused.len();
            let is_short = on_probation * PROBATION_SHARE <= self.len() + refused.len();
            if (is_short || self.probation.is_empty()) && !self.protected.is_empty() {
                self.look(last_hit);
                continue;
            }
            let Some(Reverse(entry)) = self.probation.pop() else {
                break;
            };
            let Some(hit) = last_hit(&entry.item) else {
                continue;
            };
            if hit > entry.last_hit() {
                self.protect(Entry::new(entry.item, hit, CREDIT_AT_FIRST));
            } else {
                taken = take(&entry.item);
                if taken.is_none() {
                    refused.push(entry);
                }
            }
        }
        for entry in refused {
            self.put_on_probation(entry);
        }
        taken
    }

    fn retain(&mut self, is_there: impl Fn(&T) -> bool) {
        self.probation
            .retain(|Reverse(entry)| is_there(&entry.item));
        self.protected.retain(|entry| is_there(&entry.item));
        self.probation.shrink_to_fit();
        self.protected.shrink_to_fit();
    }

    /// Looks at the protected entry whose turn it is.
    fn look(&mut self, last_hit: &impl Fn(&T) -> Option<u64>) {
        let Some(entry) = self.protected.pop_front() else {
            return;
        };
        let Some(hit) = last_hit(&entry.item) else {
            return;
        };
        let credit = entry.credit();
        if hit > entry.last_hit() {
            let credit = CREDIT_MAX.min(credit + CREDIT_PER_HIT);
            self.protect(Entry::new(entry.item, hit, credit));
        } else if credit > 0 {
            self.protect(Entry::new(entry.item, hit, credit - 1));
        } else {
            self.put_on_probation(entry);
        }
    }

    fn protect(&mut self, entry: Entry<T>) {
        if self.protected.len() == self.protected.capacity() {
            self.protected.reserve_exact(room(self.protected.len()));
        }
        self.protected.push_back(entry);
    }

    fn put_on_probation(&mut self, entry: Entry<T>) {
        if self.probation.len() == self.probation.capacity() {
            self.probation.reserve_exact(room(self.probation.len()));
        }
        self.probation.push(Reverse(entry));
    }
}

// Doubling would leave half of the room empty.
fn room(length: usize) -> usize {
    length / 8 + 64
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.seen == other.seen
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.seen.cmp(&other.seen)
    }
}

#[cfg(test)]
mod tests;
