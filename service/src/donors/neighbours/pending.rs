//! Slots whose vectors are not up to date: a set that is walked by a roving cursor.

const BITS: usize = 64;

/// A set of slots, one bit each, with a second level of bits over the words that are not empty:
/// finding the next of a million looks at 250 words at most.
#[derive(Debug, Default, Clone)]
pub struct SlotSet {
    words: Vec<u64>,
    summary: Vec<u64>,
    length: usize,
}

impl SlotSet {
    /// True when it was not in the set.
    pub fn insert(&mut self, slot: u32) -> bool {
        let (word, bit) = place(slot);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
            self.summary.resize(word / BITS + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.summary[word / BITS] |= 1 << (word % BITS);
        self.length += usize::from(is_new);
        is_new
    }

    /// True when it was in the set.
    pub fn remove(&mut self, slot: u32) -> bool {
        let (word, bit) = place(slot);
        let was_there = self.words.get(word).is_some_and(|there| there & bit != 0);
        if was_there {
            self.words[word] &= !bit;
            if self.words[word] == 0 {
                self.summary[word / BITS] &= !(1 << (word % BITS));
            }
            self.length -= 1;
        }
        was_there
    }

    /// The first slot at or after this one; behind the last, the first of all.
    #[must_use]
    pub fn next_from(&self, slot: u32) -> Option<u32> {
        self.at_or_after(slot).or_else(|| self.at_or_after(0))
    }

    /// How many slots wait: the lag.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        (self.words.capacity() + self.summary.capacity()) * size_of::<u64>()
    }

    fn at_or_after(&self, slot: u32) -> Option<u32> {
        let (word, bit) = place(slot);
        let here = self.words.get(word)? & !(bit - 1);
        let (word, bits) = if here != 0 {
            (word, here)
        } else {
            let word = first_bit(&self.summary, word + 1)?;
            (word, self.words[word])
        };
        u32::try_from(word * BITS + lowest(bits)).ok()
    }
}

/// The first set bit at or after this one.
fn first_bit(words: &[u64], bit: usize) -> Option<usize> {
    let start = bit / BITS;
    let first = words.get(start)? & (u64::MAX << (bit % BITS));
    let rest = words[start + 1..].iter().copied();
    let mut all = (start..).zip(std::iter::once(first).chain(rest));
    let (word, bits) = all.find(|&(_, bits)| bits != 0)?;
    Some(word * BITS + lowest(bits))
}

fn place(slot: u32) -> (usize, u64) {
    let slot = slot as usize;
    (slot / BITS, 1 << (slot % BITS))
}

fn lowest(bits: u64) -> usize {
    bits.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn check(set: &SlotSet, twin: &BTreeSet<u32>, from: u32) {
        assert_eq!(set.len(), twin.len());
        assert_eq!(set.is_empty(), twin.is_empty());
        let next = twin.range(from..).next().or_else(|| twin.first());
        assert_eq!(set.next_from(from), next.copied(), "from {from}");
    }

    proptest! {
        #[test]
        fn it_is_the_set_of_what_was_put_in(
            steps in prop::collection::vec((any::<bool>(), 0_u32..20_000, 0_u32..30_000), 1..200),
            near in prop::collection::vec((any::<bool>(), 0_u32..140, 0_u32..140), 1..200),
        ) {
            let (mut set, mut twin) = (SlotSet::default(), BTreeSet::new());
            for (is_insert, slot, from) in steps.into_iter().chain(near) {
                if is_insert {
                    prop_assert_eq!(set.insert(slot), twin.insert(slot));
                } else {
                    prop_assert_eq!(set.remove(slot), twin.remove(&slot));
                }
                check(&set, &twin, from);
                check(&set, &twin, slot);
                check(&set, &twin, slot.saturating_add(1));
            }
        }
    }

    #[test]
    fn a_walk_by_cursor_meets_every_slot_once() {
        let mut set = SlotSet::default();
        let slots = [0, 1, 63, 64, 4_095, 4_096, 999_999];
        for slot in slots {
            assert!(set.insert(slot));
        }
        let mut met = Vec::new();
        let mut cursor = 64;
        while let Some(slot) = set.next_from(cursor) {
            assert!(set.remove(slot));
            met.push(slot);
            cursor = slot + 1;
        }
        assert_eq!(met, [64, 4_095, 4_096, 999_999, 0, 1, 63]);
        assert!(set.is_empty());
    }

    #[test]
    fn an_empty_set_holds_nothing_and_a_million_slots_take_a_bit_each() {
        let mut set = SlotSet::default();
        assert_eq!((set.next_from(7), set.memory_bytes()), (None, 0));
        set.insert(999_999);
        assert!(set.memory_bytes() < 300_000);
    }
}
