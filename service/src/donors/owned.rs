//! Which donors an owner has, so that their removal need not look at all others.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use super::{
    catalog::{Donor, Shard},
    owners::{OWNERS_MAX, OwnerKey},
};

/// Entries beyond twice the donors of an owner before its list is made anew.
const SLACK: usize = 64;

/// Slots by owner. A slot stays listed when its donor goes, until the list is made anew; whoever
/// reads the list looks at who is in the slot now.
#[derive(Debug, Default)]
pub(super) struct Owned {
    by_owner: HashMap<OwnerKey, Vec<Listed>>,
}

/// An owner's slots in one namespace.
#[derive(Debug)]
struct Listed {
    shard: Weak<Shard>,
    slots: Vec<u32>,
    /// Slots that make it worth while to look which still count.
    sweep_at: usize,
}

impl Owned {
    /// Notes a donor that has become visible.
    pub(super) fn add(&mut self, shard: &Arc<Shard>, donor: &Donor, slot: u32) {
        let owner = &donor.owner.key;
        if !self.by_owner.contains_key(owner) {
            self.forget_idle();
            self.by_owner.insert(owner.clone(), Vec::new());
        }
        let Some(lists) = self.by_owner.get_mut(owner) else {
            return;
        };
        let is_it = |listed: &Listed| Weak::as_ptr(&listed.shard) == Arc::as_ptr(shard);
        let at = lists.iter().position(is_it).unwrap_or_else(|| {
            lists.retain(|listed| listed.shard.strong_count() > 0);
            lists.push(Listed {
                shard: Arc::downgrade(shard),
                slots: Vec::new(),
                sweep_at: SLACK,
            });
            lists.len() - 1
        });
        let listed = &mut lists[at];
        if listed.slots.len() >= listed.sweep_at {
            listed.sweep(shard, owner);
        }
        listed.slots.push(slot);
    }

    /// The donors of an owner, wherever they are.
    pub(super) fn of(&mut self, owner: &OwnerKey) -> Vec<(Arc<Shard>, Arc<Donor>)> {
        let mut found = Vec::new();
        for listed in self.by_owner.get_mut(owner).into_iter().flatten() {
            let Some(shard) = listed.shard.upgrade() else {
                continue;
            };
            listed.sweep(&shard, owner);
            let donors = shard.read();
            let held = listed.slots.iter().filter_map(|&slot| donors.at(slot));
            found.extend(held.map(|donor| (Arc::clone(&shard), Arc::clone(donor))));
        }
        found
    }

    // Owners come and go without a word: no more lists than owners that can be known.
    fn forget_idle(&mut self) {
        if self.by_owner.len() < OWNERS_MAX {
            return;
        }
        self.by_owner.retain(|owner, lists| {
            lists.retain_mut(|listed| {
                let shard = listed.shard.upgrade();
                shard.is_some_and(|shard| {
                    listed.sweep(&shard, owner);
                    !listed.slots.is_empty()
                })
            });
            !lists.is_empty()
        });
    }
}

impl Listed {
    fn sweep(&mut self, shard: &Shard, owner: &OwnerKey) {
        let donors = shard.read();
        self.slots.sort_unstable();
        self.slots.dedup();
        self.slots.retain(|&slot| {
            donors
                .at(slot)
                .is_some_and(|donor| donor.owner.key == *owner)
        });
        self.sweep_at = self.slots.len() * 2 + SLACK;
    }
}
