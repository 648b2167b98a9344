//! The donors of one namespace, found by their seeds.

use super::{
    postings::{ListRef, Postings},
    seeds::Scan,
    token_store::TokenStore,
    tokens::PackedTokens,
};

/// Donors compared token by token for [`DonorIndex::covering`].
const COVERING_TRIES_MAX: usize = 256;
/// Seeds asked for at a time there: mostly one of the first is new.
const COVERING_AHEAD: usize = 16;

/// What an insertion needs of a donor; made outside the lock.
#[derive(Debug, Clone)]
pub struct Prepared {
    pub tokens: PackedTokens,
    pub seeds: SeedKeys,
}

/// What a donor is found by: the keys of its seeds and short seeds.
#[derive(Debug, Clone)]
pub struct SeedKeys(Box<[u64]>);

/// Packs a donor's readable tokens and samples their seeds.
pub fn prepare(tokens: &[u32]) -> Prepared {
    Prepared {
        tokens: PackedTokens::pack(tokens),
        seeds: SeedKeys::of(tokens),
    }
}

impl SeedKeys {
    /// Those of a donor that is to be removed; made outside the lock, as it hashes every window.
    pub fn of(tokens: &[u32]) -> Self {
        // One of a repeated passage may come more than once.
        let mut scan = Scan::default();
        scan.scan(tokens);
        let mut keys: Vec<u64> = scan.seeds.iter().map(|seed| seed.key).collect();
        scan.use_short(tokens);
        keys.extend(scan.seeds.iter().map(|seed| seed.key));
        SeedKeys(keys.into_boxed_slice())
    }
}

/// Live donors by slot, and which of them have which seed.
#[derive(Debug, Default)]
pub struct DonorIndex {
    donors: TokenStore,
    pub(super) postings: Postings,
}

impl DonorIndex {
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the memory that putting a donor in, or taking it out, will touch. Done before the
    /// lock is taken, it shortens the time that readers wait.
    pub fn read_ahead(&self, seeds: &SeedKeys) {
        self.postings.read_ahead(&seeds.0);
    }

    /// Puts a donor into an empty slot.
    pub fn insert(&mut self, slot: u32, donor: &Prepared) {
        self.donors.put(slot, &donor.tokens);
        self.postings.insert_all(&donor.seeds.0, slot);
    }

    /// Takes a donor and all its postings out, given its own seeds; false when the slot is empty.
    pub fn remove(&mut self, slot: u32, seeds: &SeedKeys) -> bool {
        let was_held = self.donors.take(slot);
        if was_held {
            self.postings.remove_all(&seeds.0, slot);
        }
        was_held
    }

    /// Live donors.
    pub fn len(&self) -> usize {
        self.donors.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn tokens(&self, slot: u32) -> Option<PackedTokens<&[u8]>> {
        self.donors.get(slot)
    }

    /// The part of [`Self::memory_bytes`] that finds donors, without their tokens.
    pub fn postings_bytes(&self) -> usize {
        self.postings.memory_bytes()
    }

    /// An estimate of the heap in use, packed tokens included.
    pub fn memory_bytes(&self) -> usize {
        self.donors.memory_bytes() + self.postings.memory_bytes()
    }

    /// A live candidate whose tokens begin with all of `tokens`, whose seeds `prepared` holds.
    ///
    /// Looks at a bounded number of the donors that have the rarest of the seeds. Tokens without a
    /// seed (few have more than a hundred) are not looked for.
    pub fn covering(
        &self,
        prepared: &Prepared,
        tokens: &[u32],
        is_candidate: &dyn Fn(u32) -> bool,
    ) -> Option<u32> {
        let mut rarest: Option<(usize, ListRef)> = None;
        for keys in prepared.seeds.0.chunks(COVERING_AHEAD) {
            for &key in keys {
                self.postings.ask_for(key);
            }
            for &key in keys {
                let list = self.postings.find(key)?;
                let length = self.postings.listed(list).count();
                if rarest.is_none_or(|(shortest, _)| length < shortest) {
                    rarest = Some((length, list));
                }
            }
        }
        let (_, list) = rarest?;
        let mut slots = Vec::new();
        let listed = self.postings.listed(list);
        listed.last_into(COVERING_TRIES_MAX, &mut slots);
        slots.into_iter().find(|&slot| {
            is_candidate(slot)
                && self
                    .tokens(slot)
                    .is_some_and(|donor| donor.starts_with(tokens))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    /// Prompts of few passages, so that most seeds have many donors.
    fn prompt(passages: &[u32]) -> Vec<u32> {
        passages
            .iter()
            .flat_map(|p| (0..64).map(move |i| (p * 64 + i) * 26_544 % 50_021))
            .collect()
    }

    /// Who has each key, and nothing else, in both directions.
    fn check(index: &DonorIndex, model: &BTreeMap<u32, Vec<u32>>) {
        let mut having: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
        for (&slot, tokens) in model {
            for &key in &SeedKeys::of(tokens).0 {
                having.entry(key).or_default().insert(slot);
            }
        }
        assert_eq!(index.len(), model.len());
        assert_eq!(
            index.postings.len(),
            having.values().map(BTreeSet::len).sum::<usize>()
        );
        for (&key, slots) in &having {
            let list = index.postings.find(key);
            let list = list.expect("the key has donors");
            let mut listed = Vec::new();
            index
                .postings
                .listed(list)
                .last_into(usize::MAX, &mut listed);
            assert!(listed.iter().eq(slots), "{listed:?} {slots:?}");
        }
    }

    fn remove(index: &mut DonorIndex, slot: u32) -> bool {
        let mut tokens = Vec::new();
        let Some(held) = index.tokens(slot) else {
            return false;
        };
        held.unpack_into(&mut tokens);
        index.remove(slot, &SeedKeys::of(&tokens))
    }

    proptest! {
        #[test]
        fn holds_what_a_plain_map_holds(
            steps in prop::collection::vec(
                (0_u32..12, prop::option::weighted(0.6, prop::collection::vec(0_u32..6, 0..5))),
                0..60,
            )
        ) {
            let mut index = DonorIndex::new();
            let mut model = BTreeMap::new();
            for (slot, passages) in steps {
                if let Some(passages) = passages {
                    let tokens = prompt(&passages);
                    remove(&mut index, slot);
                    let prepared = prepare(&tokens);
                    index.read_ahead(&prepared.seeds);
                    index.insert(slot, &prepared);
                    model.insert(slot, tokens);
                } else {
                    prop_assert_eq!(remove(&mut index, slot), model.remove(&slot).is_some());
                }
                check(&index, &model);
            }
        }
    }

    #[test]
    fn removing_all_leaves_nothing() {
        let mut index = DonorIndex::new();
        let empty = index.memory_bytes();
        let donors: Vec<Prepared> = (0..500)
            .map(|i| prepare(&prompt(&[i % 7, i, i + 1])))
            .collect();
        for (slot, donor) in (0..).zip(&donors) {
            index.insert(slot, donor);
        }
        assert!(index.memory_bytes() > empty + 500 * 192 * 16 / 8);
        let model = (0..500).map(|i| (i, prompt(&[i % 7, i, i + 1]))).collect();
        check(&index, &model);
        for slot in 0..500 {
            assert!(remove(&mut index, slot * 7 % 500));
        }
        assert_eq!((index.len(), index.postings.len()), (0, 0));
        assert!(!remove(&mut index, 3));
        let slots = 512 * 16 + 64;
        let buckets = 256 * 32;
        assert!(
            index.memory_bytes() <= empty + slots + buckets,
            "{}",
            index.memory_bytes()
        );
    }

    #[test]
    fn a_donor_that_covers_a_prompt_is_found() {
        let mut index = DonorIndex::new();
        for (slot, passages) in [(3, vec![9, 1, 2, 3]), (4, vec![1, 2, 3]), (5, vec![1, 2])] {
            index.insert(slot, &prepare(&prompt(&passages)));
        }
        let covering = |passages: &[u32], is_candidate: &dyn Fn(u32) -> bool| {
            let tokens = prompt(passages);
            index.covering(&prepare(&tokens), &tokens, is_candidate)
        };
        assert_eq!(covering(&[1, 2, 3], &|_| true), Some(4));
        assert_eq!(covering(&[1, 2], &|slot| slot != 4), Some(5));
        assert_eq!(
            covering(&[1, 2], &|slot| slot == 3),
            None,
            "it does not begin so"
        );
        assert_eq!(covering(&[1, 2, 4], &|_| true), None);
        assert_eq!(covering(&[], &|_| true), None);
    }
}
