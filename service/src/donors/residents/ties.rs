//! One owner's donors in device memory, and the blocks that each hangs on.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Weak};

use kvatlas_events::event::{Adapter, EngineHash};
use kvatlas_events::view::{self, OwnHash, Prompt, Shape, SourceId, View, chain};

use super::super::{
    catalog::{Donor, Shard},
    namespace::{NO_ADAPTER, Namespace},
    slots::Slots,
};
use super::Names;
use super::blocks::{Blocks, Chain};
use crate::leases::Claim;

/// What donors are asked after.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub(super) view: &'a View,
    pub(super) names: &'a Names,
}

/// One donor.
#[derive(Debug)]
pub(super) struct Tied {
    pub(super) claim: Arc<Claim>,
    /// Where its tokens are, as long as the donor of this sequence is there.
    slot: u32,
    sequence: u64,
    pub(super) shard: Weak<Shard>,
    /// Of its namespace.
    pub(super) block_size: u32,
    /// The engine's names of its full blocks, or none.
    pub(super) names: Box<[EngineHash]>,
    /// One for each shape that its blocks may have.
    chains: Vec<u32>,
    /// Waits to have its names looked at again.
    is_unread: bool,
}

impl Tied {
    pub(super) fn new(
        shard: &Arc<Shard>,
        donor: &Donor,
        slot: u32,
        names: Vec<EngineHash>,
    ) -> Self {
        Self {
            claim: Arc::clone(&donor.claim),
            slot,
            sequence: donor.sequence,
            shard: Arc::downgrade(shard),
            block_size: shard.namespace.block_size,
            names: names.into_boxed_slice(),
            chains: Vec::new(),
            is_unread: false,
        }
    }

    // None where the donor has gone, and its ties are about to go too.
    fn tokens(&self, shard: &Shard) -> Option<Vec<u32>> {
        let donors = shard.read();
        donors
            .at(self.slot)
            .filter(|donor| donor.sequence == self.sequence)?;
        let mut tokens = Vec::new();
        donors.index.tokens(self.slot)?.unpack_into(&mut tokens);
        Some(tokens)
    }

    fn names_in(&self, shape: Shape) -> &[EngineHash] {
        if shape.block_size == self.block_size {
            &self.names
        } else {
            &[]
        }
    }
}

/// Who tells what becomes of the owner's blocks.
#[derive(Debug)]
struct Followed {
    source: SourceId,
    name: view::Namespace,
    /// Shapes of the blocks on its device. A token is there where it is in each of them: they are
    /// those of groups of layers.
    shapes: Vec<Shape>,
    /// Some donors have no chains of these shapes yet.
    is_behind: bool,
}

/// An owner's donors in device memory.
#[derive(Debug, Default)]
pub(in super::super) struct Ties {
    tied: Slots<Tied>,
    by_sequence: HashMap<u64, u32>,
    blocks: Blocks,
    followed: Option<Followed>,
    /// Donors whose blocks' names the view did not know yet when they were looked at.
    unread: VecDeque<u32>,
    /// The number of the latest turn; chains know in which they were seen to.
    turn: u64,
}

impl Ties {
    pub(super) fn is_empty(&self) -> bool {
        self.by_sequence.is_empty()
    }

    pub(super) fn follows(&self, source: SourceId) -> bool {
        self.followed
            .as_ref()
            .is_some_and(|followed| followed.source == source)
    }

    pub(super) fn follow(&mut self, source: SourceId, name: view::Namespace) {
        self.unfollow();
        self.followed = Some(Followed {
            source,
            name,
            shapes: Vec::new(),
            is_behind: false,
        });
    }

    /// Nothing is known of any donor from now on.
    pub(super) fn unfollow(&mut self) {
        self.followed = None;
        self.blocks = Blocks::default();
        self.unread = VecDeque::new();
        for id in 0..self.tied.end() {
            if let Some(tied) = self.tied.get_mut(id) {
                tied.chains = Vec::new();
                tied.is_unread = false;
                tied.claim.residency.doubt();
            }
        }
    }

    /// Enters a donor, then asks what of it is there.
    pub(super) fn add(&mut self, ask: &Ask<'_>, sequence: u64, tied: Tied) {
        let id = self.tied.put(tied);
        self.by_sequence.insert(sequence, id);
        // The first donor may be the first to ask; of others, those before it are behind then.
        if let Some(source) = self.followed.as_ref().map(|followed| followed.source) {
            self.learn_shapes(ask, source);
        }
        self.chain(ask, id);
    }

    pub(super) fn remove(&mut self, sequence: u64) {
        let Some(id) = self.by_sequence.remove(&sequence) else {
            return;
        };
        let Some(tied) = self.tied.take(id) else {
            return;
        };
        for chain in tied.chains {
            self.blocks.remove(chain);
        }
        if tied.is_unread {
            self.unread.retain(|&unread| unread != id);
        }
    }

    /// Takes up shapes that have changed; true where donors are to get chains of them. A source
    /// without any has no block on its device, which its changes have told.
    pub(super) fn learn_shapes(&mut self, ask: &Ask<'_>, source: SourceId) -> bool {
        let Some(followed) = self.followed.as_mut() else {
            return false;
        };
        if followed.source != source {
            return false;
        }
        let shapes = ask.view.shapes_of(source);
        if !shapes.is_empty() && shapes != followed.shapes {
            followed.shapes = shapes;
            followed.is_behind = true;
        }
        followed.is_behind
    }

    /// Gives some donors the chains that they lack; where to go on, or none at the end.
    pub(super) fn chain_some(&mut self, ask: &Ask<'_>, ids: Range<u32>) -> Option<u32> {
        let end = self.tied.end().min(ids.end);
        for id in ids.start..end {
            self.chain(ask, id);
        }
        if end < self.tied.end() {
            return Some(end);
        }
        if let Some(followed) = &mut self.followed {
            followed.is_behind = false;
        }
        None
    }

    /// The place of a block in the donors that have it; None where none has.
    pub(super) fn place(&self, own: OwnHash) -> Option<u32> {
        self.blocks.place(own)
    }

    /// A number that no turn had before.
    pub(super) fn begin_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    /// A block is there. In one turn those before it come first: whoever waited for one of them
    /// was asked after as a whole.
    pub(super) fn stored(&mut self, ask: &Ask<'_>, own: OwnHash, turn: u64) {
        if self.blocks.are_done(own, turn) {
            return;
        }
        let mut waiting = Vec::new();
        self.blocks.holding(own, |blocks, id, place| {
            if let Some(chain) = blocks.get_mut(id)
                && chain.live == place
            {
                chain.turn = turn;
                waiting.push(id);
            }
        });
        for id in waiting {
            self.look(ask, id);
        }
    }

    /// A copy of a block was removed: of every donor that has it only what comes before is left. In
    /// one turn those before it come first: whoever has one of them has less left already.
    pub(super) fn removed(&mut self, own: OwnHash, turn: u64) {
        if self.blocks.are_done(own, turn) {
            return;
        }
        let mut hit = Vec::new();
        self.blocks.holding(own, |blocks, id, place| {
            if let Some(chain) = blocks.get_mut(id) {
                chain.turn = turn;
                if chain.live > place || !chain.by_tokens {
                    chain.live = chain.live.min(place);
                    hit.push((id, chain.tied, place));
                }
            }
        });
        for (id, tied, place) in hit {
            self.forget_names(id, place);
            self.settle(tied);
        }
    }

    /// All blocks went.
    pub(super) fn cleared(&mut self) {
        for id in 0..self.tied.end() {
            let Some(tied) = self.tied.get(id) else {
                continue;
            };
            #[cfg(test)]
            {
                self.blocks.visits += 1;
            }
            for chain in tied.chains.clone() {
                if let Some(chain) = self.blocks.get_mut(chain) {
                    chain.live = 0;
                }
                self.forget_names(chain, 0);
            }
            self.settle(id);
        }
    }

    /// Looks again at donors whose blocks' names were not all known, each in its turn.
    pub(super) fn read_names(&mut self, ask: &Ask<'_>, most: usize) {
        for _ in 0..most.min(self.unread.len()) {
            let Some(id) = self.unread.pop_front() else {
                return;
            };
            let Some(tied) = self.tied.get_mut(id) else {
                continue;
            };
            tied.is_unread = false;
            for chain in tied.chains.clone() {
                self.read(ask, chain);
            }
        }
    }

    /// How often donors were gone to since it was asked last.
    #[cfg(test)]
    pub(super) fn visits(&mut self) -> usize {
        std::mem::take(&mut self.blocks.visits)
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> Counts {
        let (chains, blocks) = self.blocks.counts();
        Counts {
            donors: self.by_sequence.len(),
            chains,
            blocks,
            unread: self.unread.len(),
        }
    }

    // Makes the chains of a donor that the source's shapes ask for and it lacks.
    fn chain(&mut self, ask: &Ask<'_>, id: u32) {
        let (Some(followed), Some(tied)) = (&self.followed, self.tied.get(id)) else {
            return;
        };
        let Some(shard) = tied.shard.upgrade() else {
            return;
        };
        let (name, namespace) = (followed.name, &shard.namespace);
        // What an image is hashed by is not known: only the engine's own names tell those blocks.
        let by_tokens = namespace.multimodal_hashes.is_empty();
        if !ask.names.can_hold(name, namespace) || (!by_tokens && tied.names.is_empty()) {
            return;
        }
        for other in self.other_chains(followed, tied) {
            self.blocks.remove(other);
            if let Some(tied) = self.tied.get_mut(id) {
                tied.chains.retain(|&chain| chain != other);
            }
        }
        for shape in self.lacking(id) {
            let Some(tied) = self.tied.get_mut(id) else {
                return;
            };
            // Names are of blocks of the size that the namespace says.
            let own = match by_tokens {
                true => match tied.tokens(&shard) {
                    Some(tokens) => blocks_of(&tokens, name, namespace, shape),
                    None => return,
                },
                false if shape.block_size == tied.block_size => Vec::new(),
                false => continue,
            };
            let chain = self.blocks.add(id, shape, own, by_tokens);
            tied.chains.push(chain);
            self.read(ask, chain);
        }
        self.settle(id);
    }

    fn other_chains(&self, followed: &Followed, tied: &Tied) -> Vec<u32> {
        let is_other = |id: &u32| {
            let chain = self.blocks.get(*id);
            chain.is_none_or(|chain| !followed.shapes.contains(&chain.shape))
        };
        tied.chains.iter().copied().filter(is_other).collect()
    }

    fn lacking(&self, id: u32) -> Vec<Shape> {
        let (Some(followed), Some(tied)) = (&self.followed, self.tied.get(id)) else {
            return Vec::new();
        };
        let is_lacking = |shape: &Shape| self.chain_of(tied, *shape).is_none();
        let shapes = followed.shapes.iter().copied();
        shapes.filter(is_lacking).collect()
    }

    fn chain_of(&self, tied: &Tied, shape: Shape) -> Option<&Chain> {
        let mut chains = tied.chains.iter().filter_map(|&id| self.blocks.get(id));
        chains.find(|chain| chain.shape == shape)
    }

    // Reads on in the names of a donor whose blocks only they tell, and looks.
    fn read(&mut self, ask: &Ask<'_>, id: u32) {
        while let (Some(followed), Some(chain)) = (&self.followed, self.blocks.get(id)) {
            let tied = self.tied.get(chain.tied);
            let next = tied.and_then(|tied| tied.names.get(chain.blocks.len()));
            let Some(&next) = next.filter(|_| !chain.by_tokens) else {
                break;
            };
            let own = ask.view.own_of(followed.source, next);
            if !own.is_some_and(|own| self.blocks.push(id, own)) {
                self.wait_for_names(id);
                break;
            }
        }
        self.look(ask, id);
    }

    // Asks how much of a chain is there, which may be more than before.
    fn look(&mut self, ask: &Ask<'_>, id: u32) {
        let (Some(followed), Some(chain)) = (&self.followed, self.blocks.get(id)) else {
            return;
        };
        let Some(tied) = self.tied.get(chain.tied) else {
            return;
        };
        let (source, tied_id) = (followed.source, chain.tied);
        let there = ask.view.resident(source, chain.shape, &chain.blocks);
        let there = u32::try_from(there).unwrap_or(u32::MAX);
        let own_of = |name| ask.view.own_of(source, name);
        let live = match named(own_of, (chain, tied.names_in(chain.shape)), there) {
            Named::So(live) => live,
            Named::Unknown(live) => {
                self.wait_for_names(id);
                live
            }
            Named::Otherwise => {
                tied.claim.residency.doubt();
                0
            }
        };
        if let Some(chain) = self.blocks.get_mut(id) {
            chain.live = live;
            self.settle(tied_id);
        }
    }

    fn wait_for_names(&mut self, chain: u32) {
        let Some(id) = self.blocks.get(chain).map(|chain| chain.tied) else {
            return;
        };
        if let Some(tied) = self.tied.get_mut(id)
            && !std::mem::replace(&mut tied.is_unread, true)
        {
            self.unread.push_back(id);
        }
    }

    // A name may come to mean another block once its own went.
    fn forget_names(&mut self, chain: u32, from: u32) {
        if self.blocks.get(chain).is_some_and(|chain| !chain.by_tokens) {
            self.blocks.truncate(chain, from);
            self.wait_for_names(chain);
        }
    }

    // Tells readers how much of a donor is there. Where that is less than before, leases end.
    fn settle(&self, id: u32) {
        let Some(tied) = self.tied.get(id) else {
            return;
        };
        let (residency, live) = (&tied.claim.residency, self.live_tokens(tied));
        match residency.live_tokens() {
            None if live == 0 => {}
            Some(before) if before > live => residency.shrink(live),
            None | Some(_) => residency.grow(live),
        }
    }

    // What is there in every shape. Where the donor has names, a shape must be theirs.
    fn live_tokens(&self, tied: &Tied) -> u32 {
        let Some(followed) = &self.followed else {
            return 0;
        };
        let shapes = &followed.shapes;
        let is_said = |shape: &Shape| shape.block_size == tied.block_size;
        if !tied.names.is_empty() && !shapes.iter().any(is_said) {
            return 0;
        }
        let live = shapes.iter().map(|&shape| {
            let chain = self.chain_of(tied, shape);
            chain.map_or(0, |chain| chain.live.saturating_mul(shape.block_size))
        });
        live.min().unwrap_or(0)
    }
}

fn blocks_of(
    tokens: &[u32],
    name: view::Namespace,
    namespace: &Namespace,
    shape: Shape,
) -> Vec<OwnHash> {
    let prompt = Prompt {
        namespace: name,
        adapter: (namespace.adapter != NO_ADAPTER).then_some(Adapter::Name(&namespace.adapter)),
        tenant: Some(&namespace.tenant_key),
        items: &[],
        tokens,
    };
    chain(&prompt, shape)
}

/// What the engine's own names say of blocks that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// So many are the donor's.
    So(u32),
    /// So many are; the next one's name is not known.
    Unknown(u32),
    /// A name means another block: the donor is not what it was said to be.
    Otherwise,
}

// Of `there` blocks of a chain. Those that are live were asked before.
fn named(
    own_of: impl Fn(EngineHash) -> Option<OwnHash>,
    (chain, names): (&Chain, &[EngineHash]),
    there: u32,
) -> Named {
    if names.is_empty() {
        return Named::So(there);
    }
    for at in chain.live..there {
        let place = at as usize;
        let own = names.get(place).map(|&name| own_of(name));
        match own {
            Some(Some(own)) if chain.blocks.get(place) == Some(&own) => {}
            Some(Some(_)) => return Named::Otherwise,
            Some(None) | None => return Named::Unknown(at),
        }
    }
    Named::So(there)
}

#[cfg(test)]
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) donors: usize,
    pub(super) chains: usize,
    pub(super) blocks: usize,
    pub(super) unread: usize,
}
