//! The donors that have one seed: a sorted list, or a compressed bitmap where they are many.

use roaring::RoaringBitmap;

use super::votes::gallop;

/// Slots of the longest sorted list. A seed that more donors have is one of a preamble or of a
/// popular passage: a list of them would be moved by half with every removal.
const SORTED_MAX: usize = if cfg!(test) { 6 } else { 1_024 };
/// Slots of a bitmap that become a list again.
const SORTED_AGAIN: u32 = if cfg!(test) { 3 } else { 512 };

/// Two slots or more in ascending order, while in use.
#[derive(Debug)]
pub(super) enum SlotList {
    Sorted(Vec<u32>),
    Many(Box<Many>),
}

/// A bitmap, and what is asked of it most, in one place.
#[derive(Debug)]
pub(super) struct Many {
    count: u32,
    first: u32,
    last: u32,
    slots: RoaringBitmap,
}

/// Who has a seed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Listed<'a> {
    One(u32),
    Sorted(&'a [u32]),
    Many(&'a Many),
}

impl SlotList {
    pub(super) fn of_two(one: u32, other: u32) -> Self {
        Self::Sorted(vec![one.min(other), one.max(other)])
    }

    pub(super) fn listed(&self) -> Listed<'_> {
        match self {
            Self::Sorted(slots) => Listed::Sorted(slots),
            Self::Many(many) => Listed::Many(many),
        }
    }

    /// False when the slot is there already.
    pub(super) fn insert(&mut self, slot: u32) -> bool {
        let slots = match self {
            Self::Many(many) => return many.insert(slot),
            Self::Sorted(slots) => slots,
        };
        let Err(at) = slots.binary_search(&slot) else {
            return false;
        };
        if slots.len() == slots.capacity() {
            // A quarter more: doubling would leave a third of the room unused.
            slots.reserve_exact(slots.len() / 4 + 1);
        }
        slots.insert(at, slot);
        if slots.len() > SORTED_MAX {
            *self = Self::Many(Box::new(Many::new(slots)));
        }
        true
    }

    /// False when the slot is not there.
    pub(super) fn remove(&mut self, slot: u32) -> bool {
        match self {
            Self::Many(many) => {
                let removed = many.remove(slot);
                if many.count <= SORTED_AGAIN {
                    *self = Self::Sorted(many.slots.iter().collect());
                }
                removed
            }
            Self::Sorted(slots) => {
                let Ok(at) = slots.binary_search(&slot) else {
                    return false;
                };
                slots.remove(at);
                if slots.len() < slots.capacity() / 2 {
                    slots.shrink_to_fit();
                }
                true
            }
        }
    }

    /// Heap bytes; of a bitmap an estimate.
    pub(super) fn memory_bytes(&self) -> usize {
        /// What the allocator adds.
        const OVERHEAD: usize = 16;
        match self {
            Self::Sorted(slots) => OVERHEAD + slots.capacity() * size_of::<u32>(),
            Self::Many(many) => OVERHEAD + size_of::<Many>() + many.bitmap_bytes(),
        }
    }
}

impl Many {
    fn new(ascending: &[u32]) -> Self {
        let slots: RoaringBitmap = ascending.iter().copied().collect();
        let mut many = Self {
            count: 0,
            first: 0,
            last: 0,
            slots,
        };
        many.count_anew();
        many
    }

    fn insert(&mut self, slot: u32) -> bool {
        let is_new = self.slots.insert(slot);
        self.count += u32::from(is_new);
        self.first = self.first.min(slot);
        self.last = self.last.max(slot);
        is_new
    }

    fn remove(&mut self, slot: u32) -> bool {
        let removed = self.slots.remove(slot);
        if removed && (slot == self.first || slot == self.last) {
            self.count_anew();
        } else {
            self.count -= u32::from(removed);
        }
        removed
    }

    fn count_anew(&mut self) {
        // Slots are below 2^31.
        self.count = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.first = self.slots.min().unwrap_or(0);
        self.last = self.slots.max().unwrap_or(0);
    }

    // A container for each 2^16 slots: two bytes a slot, or 8 KiB.
    fn bitmap_bytes(&self) -> usize {
        const CONTAINER: usize = 56;
        const CONTAINER_BYTES_MAX: usize = 8_192;
        let containers = ((self.last >> 16) - (self.first >> 16) + 1) as usize;
        let packed = (self.count as usize * 2).min(containers * CONTAINER_BYTES_MAX);
        packed + containers * CONTAINER
    }
}

impl<'a> Listed<'a> {
    pub(super) fn count(self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Sorted(slots) => slots.len(),
            Self::Many(many) => many.count as usize,
        }
    }

    /// The first and the last.
    pub(super) fn ends(self) -> (u32, u32) {
        match self {
            Self::One(slot) => (slot, slot),
            Self::Sorted([first, .., last]) => (*first, *last),
            Self::Sorted(slots) => slots.first().map_or((0, 0), |&slot| (slot, slot)),
            Self::Many(many) => (many.first, many.last),
        }
    }

    /// The last `max` slots, ascending, added to `out`.
    pub(super) fn last_into(self, max: usize, out: &mut Vec<u32>) {
        match self {
            Self::One(slot) => out.extend([slot].into_iter().take(max)),
            Self::Sorted(slots) => out.extend_from_slice(&slots[slots.len().saturating_sub(max)..]),
            Self::Many(many) => {
                let start = out.len();
                out.extend(many.slots.iter().rev().take(max));
                out[start..].reverse();
            }
        }
    }

    /// Answers for one slot after another, asked in ascending order.
    pub(super) fn ascending(self) -> Ascending<'a> {
        Ascending { left: self }
    }
}

/// What of a list is not passed yet.
#[derive(Debug)]
pub(super) struct Ascending<'a> {
    left: Listed<'a>,
}

impl Ascending<'_> {
    /// Whether the slot is listed. No smaller one is to be asked for after it.
    pub(super) fn has(&mut self, slot: u32) -> bool {
        match &mut self.left {
            Listed::One(only) => *only == slot,
            Listed::Sorted(slots) => {
                *slots = &slots[gallop(slots, slot)..];
                slots.first() == Some(&slot)
            }
            Listed::Many(many) => many.slots.contains(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn check(list: &SlotList, model: &BTreeSet<u32>) {
        let listed = list.listed();
        let slots: Vec<u32> = model.iter().copied().collect();
        assert_eq!(listed.count(), slots.len());
        assert_eq!(listed.ends(), (slots[0], slots[slots.len() - 1]));
        for max in [0, 1, 3, slots.len(), 99] {
            let mut out = vec![7];
            listed.last_into(max, &mut out);
            assert_eq!(out[1..], slots[slots.len().saturating_sub(max)..]);
        }
        let mut ascending = listed.ascending();
        for slot in 0..40 {
            assert_eq!(ascending.has(slot << 13), model.contains(&(slot << 13)));
        }
    }

    proptest! {
        /// From two slots to many and back, as a plain set has them.
        #[test]
        fn holds_what_a_plain_set_holds(
            steps in prop::collection::vec((any::<bool>(), 0_u32..40), 0..120)
        ) {
            let mut list = SlotList::of_two(5 << 13, 3 << 13);
            let mut model = BTreeSet::from([3 << 13, 5 << 13]);
            for (adds, slot) in steps {
                let slot = slot << 13;
                if adds {
                    prop_assert_eq!(list.insert(slot), model.insert(slot));
                } else if model.len() > 2 || !model.contains(&slot) {
                    prop_assert_eq!(list.remove(slot), model.remove(&slot));
                }
                check(&list, &model);
            }
        }
    }
}
