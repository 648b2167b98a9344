//! The engine workers that hold donors: which generation of each lives, and until when.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};

use super::residents::Ties;
use crate::leases::OwnerLife;

/// Most owners that are known at a time.
pub const OWNERS_MAX: usize = 65_536;
/// Longest worker id, in bytes.
pub const WORKER_ID_BYTES_MAX: usize = 256;

/// An engine worker and one of its data-parallel ranks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerKey {
    pub worker_id: Box<str>,
    pub data_parallel_rank: u32,
}

/// One owner, shared by its donors.
#[derive(Debug)]
pub struct Owner {
    pub key: OwnerKey,
    /// What leases are checked by.
    pub life: Arc<OwnerLife>,
    /// Donors that the catalog holds of it.
    pub donors: AtomicU64,
    /// Donors of generations below this one have been dropped.
    pub swept_below: AtomicU64,
    /// Its donors in device memory. No lock but the view's is taken while this one is held.
    pub(super) ties: Mutex<Ties>,
}

/// What an announcement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// The same generation lives on.
    Renewed,
    /// A newer one: donors of older ones must go.
    Began,
}

/// Why an announcement was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OwnerRefusal {
    #[error("owner_generation {given} is older than the announced {announced}")]
    OldGeneration { given: u64, announced: u64 },
    #[error("{OWNERS_MAX} owners are known, no more can be")]
    TooMany,
}

#[derive(Debug, Default)]
pub struct Owners {
    known: RwLock<HashMap<OwnerKey, Arc<Owner>>>,
}

impl Owners {
    /// The owner of that name, made known when it was not.
    pub fn get_or_add(&self, key: &OwnerKey, now_ms: u64) -> Result<Arc<Owner>, OwnerRefusal> {
        if let Some(owner) = self.known.read().get(key) {
            return Ok(Arc::clone(owner));
        }
        let mut known = self.known.write();
        if !known.contains_key(key) && known.len() >= OWNERS_MAX {
            known.retain(|_, owner| {
                // Whoever follows its events has it in hand.
                owner.life.is_announced(now_ms)
                    || owner.donors.load(Ordering::Relaxed) > 0
                    || Arc::strong_count(owner) > 1
            });
            if known.len() >= OWNERS_MAX {
                return Err(OwnerRefusal::TooMany);
            }
        }
        let owner = known.entry(key.clone()).or_insert_with(|| {
            Arc::new(Owner {
                key: key.clone(),
                life: Arc::new(OwnerLife::default()),
                donors: AtomicU64::new(0),
                swept_below: AtomicU64::new(0),
                ties: Mutex::default(),
            })
        });
        Ok(Arc::clone(owner))
    }

    /// The owner of that name, if it is known.
    #[must_use]
    pub fn get(&self, key: &OwnerKey) -> Option<Arc<Owner>> {
        self.known.read().get(key).map(Arc::clone)
    }

    /// Takes an announcement: a higher generation begins, a lower one is refused.
    pub fn announce(
        &self,
        key: &OwnerKey,
        generation: u64,
        deadline_ms: u64,
        now_ms: u64,
    ) -> Result<(Arc<Owner>, Announced), OwnerRefusal> {
        let owner = self.get_or_add(key, now_ms)?;
        // Two announcements of one owner must not pass each other between check and store.
        let _alone = self.known.write();
        let announced = owner.life.generation();
        if !owner.life.announce(generation, deadline_ms) {
            return Err(OwnerRefusal::OldGeneration {
                given: generation,
                announced,
            });
        }
        let is_swept = owner.swept_below.load(Ordering::Acquire) >= generation;
        let what = if is_swept {
            Announced::Renewed
        } else {
            Announced::Began
        };
        Ok((owner, what))
    }

    /// Owners whose announcement lasts.
    #[must_use]
    pub fn live(&self, now_ms: u64) -> usize {
        self.known
            .read()
            .values()
            .filter(|owner| owner.life.is_announced(now_ms))
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_somebody_follows_is_not_forgotten() {
        let owners = Owners::default();
        let key = |number: usize| OwnerKey {
            worker_id: format!("worker-{number}").into(),
            data_parallel_rank: 0,
        };
        let followed = owners.get_or_add(&key(0), 0).unwrap();
        for number in 1..=OWNERS_MAX {
            owners.get_or_add(&key(number), 0).unwrap();
        }
        assert!(owners.get(&key(1)).is_none(), "idle ones made room");
        let again = owners.get_or_add(&key(0), 0).unwrap();
        assert!(Arc::ptr_eq(&followed, &again));
    }
}
