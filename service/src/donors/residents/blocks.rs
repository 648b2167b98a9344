//! Chains of blocks, found by any block that they hold.

use hashbrown::{HashTable, hash_table::Entry};
use kvatlas_events::view::{OwnHash, Shape};

use super::super::slots::Slots;

/// Blocks that may be listed before the table is made smaller when few are left.
const SLACK: usize = 1024;

/// The blocks of one donor in one shape, from its start.
#[derive(Debug)]
pub(super) struct Chain {
    /// Whose it is.
    pub(super) tied: u32,
    pub(super) shape: Shape,
    pub(super) blocks: Vec<OwnHash>,
    /// Made of the donor's tokens; else of what the engine's names mean, as far as that is known.
    pub(super) by_tokens: bool,
    /// Blocks from the start that are there.
    pub(super) live: u32,
    /// The latest turn in which it was seen to.
    pub(super) turn: u64,
    /// Its neighbours among the chains that hold the same block, by place.
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

const NONE: u32 = u32::MAX;

/// A place in a chain. A block names all blocks before it, so that it has the same place in each.
#[derive(Clone, Copy, Debug)]
struct Spot {
    chain: u32,
    place: u32,
}

/// All chains of an owner.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    chains: Slots<Chain>,
    /// The first chain that holds a block; the links tell the others. The block itself is read in
    /// the chain.
    heads: HashTable<Spot>,
    /// How often a chain was gone to for one of its blocks.
    #[cfg(test)]
    pub(super) visits: usize,
}

impl Blocks {
    pub(super) fn get(&self, chain: u32) -> Option<&Chain> {
        self.chains.get(chain)
    }

    pub(super) fn get_mut(&mut self, chain: u32) -> Option<&mut Chain> {
        self.chains.get_mut(chain)
    }

    pub(super) fn add(
        &mut self,
        tied: u32,
        shape: Shape,
        blocks: Vec<OwnHash>,
        by_tokens: bool,
    ) -> u32 {
        let links = Vec::with_capacity(blocks.len());
        let id = self.chains.put(Chain {
            tied,
            shape,
            blocks,
            by_tokens,
            live: 0,
            turn: 0,
            links,
        });
        while self.link_next(id) {}
        id
    }

    /// Adds a block at a chain's end; false where it cannot be one that follows.
    pub(super) fn push(&mut self, id: u32, own: OwnHash) -> bool {
        let Some(chain) = self.chains.get_mut(id) else {
            return false;
        };
        chain.blocks.push(own);
        self.link_next(id)
    }

    /// Lets all blocks from `length` on go.
    pub(super) fn truncate(&mut self, id: u32, length: u32) {
        while let Some(chain) = self.chains.get_mut(id)
            && chain.blocks.len() > length as usize
        {
            let place = count(chain.blocks.len() - 1);
            let Some(link) = chain.links.pop() else {
                break;
            };
            let own = chain.blocks[place as usize];
            self.unlink(Spot { chain: id, place }, own, link);
            if let Some(chain) = self.chains.get_mut(id) {
                chain.blocks.pop();
                chain.live = chain.live.min(place);
            }
        }
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.truncate(id, 0);
        self.chains.take(id);
        let listed = self.heads.len() + SLACK;
        if self.heads.capacity() > 4 * listed {
            let chains = &self.chains;
            self.heads
                .shrink_to(2 * listed, |&spot| hash_at(chains, spot));
        }
    }

    /// The place of a block in the chains that hold it; None where none does.
    pub(super) fn place(&self, own: OwnHash) -> Option<u32> {
        self.head(own).map(|head| head.place)
    }

    /// Whether the chains that hold a block were seen to in this turn for a block before it, as all
    /// of them hold that one too. Blocks are to come in the order of their places.
    pub(super) fn are_done(&self, own: OwnHash, turn: u64) -> bool {
        let first = self.head(own).and_then(|head| self.chains.get(head.chain));
        first.is_some_and(|chain| chain.turn == turn)
    }

    /// The chains that hold a block, and its place in them. `act` may truncate the chain that it
    /// is given.
    pub(super) fn holding(&mut self, own: OwnHash, mut act: impl FnMut(&mut Self, u32, u32)) {
        let Some(Spot { chain, place }) = self.head(own) else {
            return;
        };
        let mut next = chain;
        while let Some(chain) = self.chains.get(next) {
            #[cfg(test)]
            {
                self.visits += 1;
            }
            let after = chain.links[place as usize].after;
            act(self, next, place);
            next = after;
        }
    }

    /// Chains, and blocks that are listed.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.chains.iter().count(), self.heads.len())
    }

    /// Without what an allocator adds.
    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        let of = |chain: &Chain| {
            size_of::<Option<Chain>>()
                + chain.blocks.capacity() * size_of::<OwnHash>()
                + chain.links.capacity() * size_of::<Link>()
        };
        self.heads.allocation_size() + self.chains.iter().map(of).sum::<usize>()
    }

    // Links the first block that is not linked yet. A block that is known at another place is
    // another block of the same name: the chain ends before it.
    fn link_next(&mut self, id: u32) -> bool {
        let Some(chain) = self.chains.get(id) else {
            return false;
        };
        let place = chain.links.len();
        let Some(&own) = chain.blocks.get(place) else {
            return false;
        };
        let place = count(place);
        let (chains, is_it) = (&self.chains, |spot: &Spot| {
            own_at(&self.chains, *spot) == own
        });
        let after = match self
            .heads
            .entry(own.0, is_it, |&spot| hash_at(chains, spot))
        {
            Entry::Vacant(free) => {
                free.insert(Spot { chain: id, place });
                NONE
            }
            Entry::Occupied(mut held) if held.get().place == place => {
                std::mem::replace(&mut held.get_mut().chain, id)
            }
            Entry::Occupied(_) => {
                if let Some(chain) = self.chains.get_mut(id) {
                    chain.blocks.truncate(place as usize);
                }
                return false;
            }
        };
        if let Some(chain) = self.chains.get_mut(id) {
            let before = NONE;
            chain.links.push(Link { before, after });
        }
        if let Some(link) = self.link(after, place) {
            link.before = id;
        }
        true
    }

    fn unlink(&mut self, spot: Spot, own: OwnHash, Link { before, after }: Link) {
        if let Some(link) = self.link(after, spot.place) {
            link.before = before;
        }
        if let Some(link) = self.link(before, spot.place) {
            link.after = after;
        } else if let Ok(mut head) = {
            let is_it = |held: &Spot| own_at(&self.chains, *held) == own;
            self.heads.find_entry(own.0, is_it)
        } {
            if after == NONE {
                head.remove();
            } else {
                head.get_mut().chain = after;
            }
        }
    }

    fn link(&mut self, chain: u32, place: u32) -> Option<&mut Link> {
        self.chains.get_mut(chain)?.links.get_mut(place as usize)
    }

    fn head(&self, own: OwnHash) -> Option<Spot> {
        let is_it = |spot: &Spot| own_at(&self.chains, *spot) == own;
        self.heads.find(own.0, is_it).copied()
    }
}

fn own_at(chains: &Slots<Chain>, spot: Spot) -> OwnHash {
    let own = chains
        .get(spot.chain)
        .and_then(|chain| chain.blocks.get(spot.place as usize));
    *own.expect("a listed block is in its chain")
}

// An own hash is one already.
fn hash_at(chains: &Slots<Chain>, spot: Spot) -> u64 {
    own_at(chains, spot).0
}

fn count(blocks: usize) -> u32 {
    u32::try_from(blocks).expect("a prompt has fewer than 2^32 blocks")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const SHAPE: Shape = Shape {
        block_size: 16,
        lookahead: 0,
    };

    /// Chains over few prefixes, so that most blocks lie in several.
    fn chain(choices: &[u64]) -> Vec<OwnHash> {
        let mut last = 0;
        choices
            .iter()
            .map(|choice| {
                last = xxhash_rust::xxh3::xxh3_64_with_seed(&choice.to_le_bytes(), last);
                OwnHash(last)
            })
            .collect()
    }

    fn check(blocks: &mut Blocks, model: &BTreeMap<u32, Vec<OwnHash>>) {
        let mut holding: BTreeMap<OwnHash, BTreeSet<(u32, u32)>> = BTreeMap::new();
        for (&id, chain) in model {
            for (place, &own) in (0..).zip(chain) {
                holding.entry(own).or_default().insert((id, place));
            }
        }
        assert_eq!(blocks.counts(), (model.len(), holding.len()));
        for (own, expected) in holding {
            let mut found = BTreeSet::new();
            blocks.holding(own, |_, id, place| assert!(found.insert((id, place))));
            assert_eq!(found, expected);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn every_block_leads_to_the_chains_that_hold_it(
            steps in prop::collection::vec(
                (0..3_u8, any::<prop::sample::Index>(), prop::collection::vec(0..2_u64, 0..6)),
                1..60,
            ),
        ) {
            let (mut blocks, mut model) = (Blocks::default(), BTreeMap::new());
            for (step, which, choices) in steps {
                let ids: Vec<u32> = model.keys().copied().collect();
                let chosen = (!ids.is_empty()).then(|| *which.get(&ids));
                match (step, chosen) {
                    (0, _) | (_, None) => {
                        let chain = chain(&choices);
                        model.insert(blocks.add(0, SHAPE, chain.clone(), true), chain);
                    }
                    (1, Some(id)) => {
                        blocks.remove(id);
                        model.remove(&id);
                    }
                    (_, Some(id)) => {
                        let length = choices.len();
                        blocks.truncate(id, count(length));
                        model.get_mut(&id).unwrap().truncate(length);
                    }
                }
                check(&mut blocks, &model);
            }
            for id in model.into_keys() {
                blocks.remove(id);
            }
            prop_assert_eq!(blocks.counts(), (0, 0));
        }
    }

    #[test]
    fn a_block_takes_forty_bytes_at_most() {
        const CHAIN_BLOCKS: u64 = 128;
        let mut blocks = Blocks::default();
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for number in 0..4_000_u64 {
            let own = (0..CHAIN_BLOCKS).map(|at| chain(&[number, at])[1]);
            blocks.add(0, SHAPE, own.collect(), true);
            let bytes = u32::try_from(blocks.memory_bytes()).unwrap();
            let each = f64::from(bytes) / f64::from(count(blocks.heads.len()));
            if number > 1_000 {
                (least, most) = (least.min(each), most.max(each));
            }
        }
        assert!(most < 40.0 && least < 28.0, "{least:.1} to {most:.1} bytes");
    }

    #[test]
    fn a_block_at_another_place_is_another() {
        let mut blocks = Blocks::default();
        let whole = chain(&[1, 2, 3]);
        let first = blocks.add(0, SHAPE, whole.clone(), true);
        let other = blocks.add(1, SHAPE, vec![OwnHash(9), whole[0]], true);
        assert_eq!(blocks.get(other).unwrap().blocks, [OwnHash(9)]);
        assert!(!blocks.push(first, whole[0]));
        assert!(blocks.push(other, OwnHash(8)));
        check(
            &mut blocks,
            &[(first, whole), (other, vec![OwnHash(9), OwnHash(8)])].into(),
        );
    }
}
