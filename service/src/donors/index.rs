//! The donors of one namespace, found by their seeds.

use std::sync::Arc;

use super::{
    postings::{ListRef, Postings},
    seeds::{self, Seed},
    tokens::PackedTokens,
};

/// Donors compared token by token for [`DonorIndex::covering`].
const COVERING_TRIES_MAX: usize = 256;

/// What an insertion needs of a donor; made outside the lock.
#[derive(Debug, Clone)]
pub struct Prepared {
    pub tokens: Arc<PackedTokens>,
    /// Keys of the seeds and short seeds, ascending, each once.
    keys: Box<[u64]>,
}

/// Packs a donor's readable tokens and samples their seeds.
pub fn prepare(tokens: &[u32]) -> Prepared {
    Prepared {
        tokens: Arc::new(PackedTokens::pack(tokens)),
        keys: keys_of(tokens).into_boxed_slice(),
    }
}

/// Live donors by slot, and which of them have which seed.
#[derive(Debug)]
pub struct DonorIndex {
    donors: Vec<Option<Arc<PackedTokens>>>,
    live: usize,
    token_bytes: usize,
    pub(super) postings: Postings,
}

impl Default for DonorIndex {
    fn default() -> Self {
        Self::new()
    }
}

impl DonorIndex {
    pub fn new() -> Self {
        Self {
            donors: Vec::new(),
            live: 0,
            token_bytes: 0,
            postings: Postings::new(),
        }
    }

    /// Puts a donor into a slot. Whoever held the slot is removed first.
    pub fn insert(&mut self, slot: u32, donor: &Prepared) {
        self.remove(slot);
        let at = slot as usize;
        if at >= self.donors.len() {
            self.donors.resize(at + 1, None);
        }
        self.donors[at] = Some(Arc::clone(&donor.tokens));
        self.live += 1;
        self.token_bytes += donor.tokens.memory_bytes();
        for &key in &donor.keys {
            self.postings.insert(key, slot);
        }
    }

    /// Takes a donor and all its postings out; false when the slot is empty.
    pub fn remove(&mut self, slot: u32) -> bool {
        let Some(packed) = self.donors.get_mut(slot as usize).and_then(Option::take) else {
            return false;
        };
        let mut tokens = Vec::new();
        packed.unpack_into(&mut tokens);
        for key in keys_of(&tokens) {
            self.postings.remove(key, slot);
        }
        self.live -= 1;
        self.token_bytes -= packed.memory_bytes();
        true
    }

    /// Live donors.
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub fn tokens(&self, slot: u32) -> Option<&Arc<PackedTokens>> {
        self.donors.get(slot as usize)?.as_ref()
    }

    /// An estimate of the heap in use, packed tokens included.
    pub fn memory_bytes(&self) -> usize {
        self.token_bytes
            + self.donors.capacity() * size_of::<Option<Arc<PackedTokens>>>()
            + self.postings.memory_bytes()
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
        for &key in &prepared.keys {
            let list = self.postings.find(key, self.postings.home_cell(key))?;
            let length = self.postings.slots(list, &mut [0]).len();
            if rarest.is_none_or(|(shortest, _)| length < shortest) {
                rarest = Some((length, list));
            }
        }
        let (_, list) = rarest?;
        self.postings
            .slots(list, &mut [0])
            .iter()
            .copied()
            .take(COVERING_TRIES_MAX)
            .find(|&slot| {
                is_candidate(slot)
                    && self
                        .tokens(slot)
                        .is_some_and(|donor| donor.starts_with(tokens))
            })
    }
}

fn keys_of(tokens: &[u32]) -> Vec<u64> {
    let mut sampled: Vec<Seed> = Vec::new();
    seeds::sample(tokens, &mut sampled);
    let mut keys: Vec<u64> = sampled.iter().map(|seed| seed.key).collect();
    seeds::sample_short(tokens, &mut sampled);
    keys.extend(sampled.iter().map(|seed| seed.key));
    keys.sort_unstable();
    keys.dedup();
    keys
}
