//! The donors that have one seed: a sorted list, or pages of lists and bitmaps where they are many.

use kvatlas_kernels::prefetch;

/// Slots of the longest sorted list. A seed that more donors have is one of a preamble or of a
/// popular passage: a list of them would be moved by half with every removal.
const SORTED_MAX: usize = if cfg!(test) { 6 } else { 1_024 };
/// Slots in pages that become a list again.
const SORTED_AGAIN: u32 = if cfg!(test) { 3 } else { 512 };
/// Slots of the longest list in a page, from where on a bitmap is smaller.
const PAGE_SORTED_MAX: usize = if cfg!(test) { 4 } else { 4_096 };
/// Slots of a bitmap that become a list again.
const PAGE_SORTED_AGAIN: u32 = if cfg!(test) { 2 } else { 2_048 };
/// Numbers of a page, by the first half of a slot.
const PAGE_BITS: u32 = u16::BITS;
const PAGE_WORDS: usize = (1 << PAGE_BITS) / 64;

/// Two slots or more in ascending order, while in use.
#[derive(Debug)]
pub(super) enum SlotList {
    Sorted(Vec<u32>),
    Many(Box<Many>),
}

/// Pages of slots, and what is asked of them most, in one place.
#[derive(Debug, Default)]
pub(super) struct Many {
    count: u32,
    first: u32,
    last: u32,
    pages: Vec<Page>,
    page_bytes: usize,
}

/// The second halves of slots that share the first.
#[derive(Debug)]
enum Page {
    Sorted(Vec<u16>),
    Bits { count: u32, words: Box<[u64]> },
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
        // Slots are given out in ascending order for as long as none is free.
        let at = match slots.last() {
            Some(&last) if last < slot => slots.len(),
            _ => match slots.binary_search(&slot) {
                Ok(_) => return false,
                Err(at) => at,
            },
        };
        make_room(slots);
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
                    let mut slots = Vec::new();
                    many.last_into(many.count as usize, &mut slots);
                    *self = Self::Sorted(slots);
                }
                removed
            }
            Self::Sorted(slots) => take_from(slots, slot),
        }
    }

    /// Asks for what its ends, an insertion or a removal read first.
    pub(super) fn ask_for_slots(&self) {
        match self {
            Self::Sorted(slots) => {
                if let [first, .., last] = slots.as_slice() {
                    prefetch(first);
                    prefetch(last);
                    prefetch(&slots[slots.len() / 2]);
                }
            }
            Self::Many(many) => prefetch(&**many),
        }
    }

    /// Heap bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        /// What the allocator adds.
        const OVERHEAD: usize = 16;
        match self {
            Self::Sorted(slots) => OVERHEAD + slots.capacity() * size_of::<u32>(),
            Self::Many(many) => OVERHEAD + many.memory_bytes(),
        }
    }
}

impl Many {
    fn new(ascending: &[u32]) -> Self {
        let mut many = Self {
            first: u32::MAX,
            ..Self::default()
        };
        for &slot in ascending {
            many.insert(slot);
        }
        many
    }

    fn insert(&mut self, slot: u32) -> bool {
        let (page, low) = parts_of(slot);
        if page >= self.pages.len() {
            let more = page + 1 - self.pages.len();
            self.pages.reserve_exact(more);
            self.pages.resize_with(page + 1, Page::default);
        }
        let before = self.pages[page].memory_bytes();
        let is_new = self.pages[page].insert(low);
        self.page_bytes = self.page_bytes + self.pages[page].memory_bytes() - before;
        self.count += u32::from(is_new);
        self.first = self.first.min(slot);
        self.last = self.last.max(slot);
        is_new
    }

    fn remove(&mut self, slot: u32) -> bool {
        let (page, low) = parts_of(slot);
        let Some(at) = self.pages.get_mut(page) else {
            return false;
        };
        let before = at.memory_bytes();
        let removed = at.remove(low);
        self.page_bytes = self.page_bytes + at.memory_bytes() - before;
        self.count -= u32::from(removed);
        if removed && slot == self.first {
            let mut pages = self.pages.iter().enumerate();
            let first = pages.find_map(|(page, slots)| Some(slot_of(page, slots.first()?)));
            self.first = first.unwrap_or(u32::MAX);
        }
        if removed && slot == self.last {
            let mut last = Vec::new();
            self.last_into(1, &mut last);
            self.last = last.first().copied().unwrap_or(0);
        }
        removed
    }

    /// The last `max` slots, ascending, added to `out`.
    fn last_into(&self, max: usize, out: &mut Vec<u32>) {
        let start = out.len();
        for (page, slots) in self.pages.iter().enumerate().rev() {
            let left = max - (out.len() - start);
            if left == 0 {
                break;
            }
            let slot = |low: u16| slot_of(page, low);
            match slots {
                Page::Sorted(slots) => {
                    out.extend(slots.iter().rev().take(left).map(|&low| slot(low)));
                }
                Page::Bits { words, .. } => out.extend(descending(words).take(left).map(slot)),
            }
        }
        out[start..].reverse();
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.pages.capacity() * size_of::<Page>() + self.page_bytes
    }
}

impl Default for Page {
    fn default() -> Self {
        Self::Sorted(Vec::new())
    }
}

impl Page {
    fn insert(&mut self, low: u16) -> bool {
        match self {
            Self::Bits { count, words } => {
                let (word, bit) = place_of(low);
                let is_new = words[word] & bit == 0;
                words[word] |= bit;
                *count += u32::from(is_new);
                is_new
            }
            Self::Sorted(slots) => {
                let Err(at) = slots.binary_search(&low) else {
                    return false;
                };
                make_room(slots);
                slots.insert(at, low);
                if slots.len() > PAGE_SORTED_MAX {
                    let mut words = vec![0; PAGE_WORDS].into_boxed_slice();
                    for (word, bit) in slots.iter().copied().map(place_of) {
                        words[word] |= bit;
                    }
                    let count = super::seeds::count_u32(slots.len());
                    *self = Self::Bits { count, words };
                }
                true
            }
        }
    }

    fn remove(&mut self, low: u16) -> bool {
        match self {
            Self::Bits { count, words } => {
                let (word, bit) = place_of(low);
                let removed = words[word] & bit != 0;
                words[word] &= !bit;
                *count -= u32::from(removed);
                if *count <= PAGE_SORTED_AGAIN {
                    let mut slots: Vec<u16> = descending(words).collect();
                    slots.reverse();
                    *self = Self::Sorted(slots);
                }
                removed
            }
            Self::Sorted(slots) => take_from(slots, low),
        }
    }

    fn first(&self) -> Option<u16> {
        match self {
            Self::Sorted(slots) => slots.first().copied(),
            Self::Bits { words, .. } => {
                let mut filled = words.iter().enumerate().filter(|&(_, &word)| word != 0);
                let (at, word) = filled.next()?;
                Some(low_of(at, word.trailing_zeros()))
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Self::Sorted(slots) => slots.capacity() * size_of::<u16>(),
            Self::Bits { .. } => PAGE_WORDS * size_of::<u64>(),
        }
    }
}

/// Page, and what is left of the slot.
fn parts_of(slot: u32) -> (usize, u16) {
    let [low, low_high, page, page_high] = slot.to_le_bytes();
    let page = u16::from_le_bytes([page, page_high]);
    (page.into(), u16::from_le_bytes([low, low_high]))
}

fn slot_of(page: usize, low: u16) -> u32 {
    super::seeds::count_u32(page) << PAGE_BITS | u32::from(low)
}

/// Word, and the bit in it.
fn place_of(low: u16) -> (usize, u64) {
    (usize::from(low / 64), 1 << (low % 64))
}

fn low_of(word: usize, bit: u32) -> u16 {
    u16::try_from(word * 64 + bit as usize).expect("a page has 2^16 slots")
}

fn descending(words: &[u64]) -> impl Iterator<Item = u16> {
    let bits = |word: u64| {
        let mut left = word;
        std::iter::from_fn(move || {
            let bit = left.checked_ilog2()?;
            left ^= 1 << bit;
            Some(bit)
        })
    };
    let words = words.iter().enumerate().rev();
    words.flat_map(move |(at, &word)| bits(word).map(move |bit| low_of(at, bit)))
}

// A quarter more: doubling would leave a third of the room unused.
fn make_room<T>(slots: &mut Vec<T>) {
    if slots.len() == slots.capacity() {
        slots.reserve_exact(slots.len() / 4 + 1);
    }
}

fn take_from<T: Ord + Copy>(slots: &mut Vec<T>, slot: T) -> bool {
    let Ok(at) = slots.binary_search(&slot) else {
        return false;
    };
    slots.remove(at);
    if slots.len() < slots.capacity() / 2 {
        slots.shrink_to_fit();
    }
    true
}

/// The index of the first slot that is not smaller than `wanted`; quick when that is near.
fn gallop<T: Ord + Copy>(slots: &[T], wanted: T) -> usize {
    let mut step = 1;
    while step < slots.len() && slots[step] < wanted {
        step *= 2;
    }
    let low = step / 2;
    let high = (step + 1).min(slots.len());
    low + slots[low..high].partition_point(|&slot| slot < wanted)
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
            Self::Many(many) => many.last_into(max, out),
        }
    }

    /// Answers for one slot after another, asked in ascending order.
    pub(super) fn ascending(self) -> Ascending<'a> {
        let mut pages: &[Page] = &[];
        if let Self::Many(many) = self {
            pages = &many.pages;
        }
        Ascending {
            left: self,
            pages,
            page: 0,
            passed: 0,
        }
    }
}

/// What of a list is not passed yet.
#[derive(Debug)]
pub(super) struct Ascending<'a> {
    left: Listed<'a>,
    pages: &'a [Page],
    page: usize,
    /// Slots of the page, where it is a list.
    passed: usize,
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
            Listed::Many(_) => {
                let (page, low) = parts_of(slot);
                if page != self.page {
                    (self.page, self.passed) = (page, 0);
                }
                match self.pages.get(page) {
                    None => false,
                    Some(Page::Bits { words, .. }) => {
                        let (word, bit) = place_of(low);
                        words[word] & bit != 0
                    }
                    Some(Page::Sorted(slots)) => {
                        self.passed += gallop(&slots[self.passed..], low);
                        slots.get(self.passed) == Some(&low)
                    }
                }
            }
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
        if let Listed::Many(many) = listed {
            let bytes: usize = many.pages.iter().map(Page::memory_bytes).sum();
            assert_eq!(many.page_bytes, bytes);
        }
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
