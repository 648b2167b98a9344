//! A hash table that stays as it is under churn: linear probing, and removal by moving back.
//!
//! A removal leaves no mark behind, so a table that is filled and emptied at one rate neither
//! grows nor slows down. A slot is its own control byte, and three in eight stay vacant, so that
//! a probe costs one miss of the processor's cache and seldom a second; it grows by half, so that
//! no more than six in ten ever are.

/// An entry, or its absence.
pub(super) trait Slot: Copy {
    const VACANT: Self;

    fn is_vacant(self) -> bool;

    /// 32 well-mixed bits of the key, always the same for a key.
    fn tag(self) -> u32;
}

/// Slots of the first allocation.
const SLOTS_MIN: usize = 8;

#[derive(Debug)]
pub(super) struct Table<S> {
    slots: Vec<S>,
    len: usize,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            len: 0,
        }
    }
}

impl<S: Slot> Table<S> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where an entry is, until the next change.
    pub(super) fn find(&self, tag: u32, mut is_it: impl FnMut(S) -> bool) -> Option<usize> {
        let mut at = self.home(tag);
        loop {
            let slot = *self.slots.get(at)?;
            if slot.is_vacant() {
                return None;
            }
            if slot.tag() == tag && is_it(slot) {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    /// Reads where an entry is or would be, into the processor's cache, and says something about
    /// it so that the read is not left out. Reads of many wait for memory at once, where finding
    /// one after the other would wait for each.
    pub(super) fn touch(&self, tag: u32) -> u32 {
        self.slots.get(self.home(tag)).map_or(0, |slot| slot.tag())
    }

    pub(super) fn at(&self, at: usize) -> S {
        self.slots[at]
    }

    /// The key must stay the same.
    pub(super) fn at_mut(&mut self, at: usize) -> &mut S {
        &mut self.slots[at]
    }

    /// The key must not be there yet.
    pub(super) fn insert(&mut self, slot: S) {
        if (self.len + 1) * 8 > self.slots.len() * 5 {
            self.resize((self.slots.len() + self.slots.len() / 2).max(SLOTS_MIN));
        }
        self.len += 1;
        self.place(slot);
    }

    pub(super) fn remove(&mut self, at: usize) {
        let mut hole = at;
        let mut next = self.after(at);
        // What follows moves back over the hole, unless that is before its home.
        while !self.slots[next].is_vacant() {
            let home = self.home(self.slots[next].tag());
            if self.distance(home, next) >= self.distance(hole, next) {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = self.after(next);
        }
        self.slots[hole] = S::VACANT;
        self.len -= 1;
        if self.len * 4 < self.slots.len() {
            self.resize((self.len * 2).max(SLOTS_MIN));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = S> + '_ {
        self.slots.iter().copied().filter(|slot| !slot.is_vacant())
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = S> + use<S> {
        std::mem::take(self)
            .slots
            .into_iter()
            .filter(|slot| !slot.is_vacant())
    }

    fn resize(&mut self, slots: usize) {
        if slots == self.slots.len() {
            return;
        }
        let old = std::mem::replace(&mut self.slots, vec![S::VACANT; slots]);
        for slot in old {
            if !slot.is_vacant() {
                self.place(slot);
            }
        }
    }

    fn place(&mut self, slot: S) {
        let mut at = self.home(slot.tag());
        while !self.slots[at].is_vacant() {
            at = self.after(at);
        }
        self.slots[at] = slot;
    }

    /// Scales a tag to the slots: any number of them will do.
    fn home(&self, tag: u32) -> usize {
        (tag as usize * self.slots.len()) >> 32
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() {
            0
        } else {
            at + 1
        }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            to + self.slots.len() - from
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Few tags, so that runs of slots form and wrap around.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Few(u32);

    impl Slot for Few {
        const VACANT: Self = Self(u32::MAX);

        fn is_vacant(self) -> bool {
            self == Self::VACANT
        }

        fn tag(self) -> u32 {
            (self.0 % 5).wrapping_mul(0x3fff_ffff)
        }
    }

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(
            steps in prop::collection::vec((any::<bool>(), 0..60_u32), 0..400),
        ) {
            let (mut table, mut map) = (Table::<Few>::default(), BTreeMap::new());
            for (is_insert, key) in steps {
                let found = table.find(Few(key).tag(), |slot| slot == Few(key));
                prop_assert_eq!(found.is_some(), map.contains_key(&key));
                match (is_insert, found) {
                    (true, None) => {
                        table.insert(Few(key));
                        map.insert(key, ());
                    }
                    (false, Some(at)) => {
                        table.remove(at);
                        map.remove(&key);
                    }
                    (true, Some(_)) | (false, None) => {}
                }
                prop_assert_eq!(table.len(), map.len());
                prop_assert!(table.slots.len() <= (4 * table.len()).max(SLOTS_MIN));
            }
            let mut all: Vec<u32> = table.drain().map(|slot| slot.0).collect();
            all.sort_unstable();
            prop_assert_eq!(all, map.into_keys().collect::<Vec<_>>());
        }
    }
}
