//! What every engine's cache holds, by content.
//!
//! ```text
//! events -> Source: which of them count, engine hash -> place, per (medium, group)
//!        -> Index:  own hash -> place -> who holds it
//! prompt -> chain of own hashes -> Index -> how much each source holds from the start
//! ```
//!
//! Each source has one writer at a time; sources are written side by side. Readers take one
//! shard of the index for the microseconds that a look-up lasts.

mod counts;
mod groups;
mod hash;
mod index;
mod lane;
mod lanes;
mod loose;
mod matches;
mod node;
mod orphans;
mod removal;
mod resident;
mod run;
mod source;
mod table;
mod tenants;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

pub use self::counts::{Counts, Outcome};
pub use self::hash::{Item, Namespace, OwnHash, Prompt, Shape, chain, tenant_key};
pub use self::index::{Index, Place, Put, Start};
use self::lanes::Lanes;
pub use self::node::Seat;
use self::source::{Around, Source};
use crate::event::{EngineHash, Event};

/// Sources at once.
pub const SOURCES_MAX: usize = 4096;
/// Blocks that one source may hold, over all media and groups.
pub const BLOCKS_MAX: usize = 16_000_000;
/// Blocks that all sources may hold together: some 9 GB.
pub const VIEW_BLOCKS_MAX: usize = 128_000_000;
/// Blocks of one source that wait for their parent.
pub const ORPHAN_BLOCKS_MAX: usize = 4096;
/// Blocks of one source that are indexed without a hash of their own.
pub const LOOSE_BLOCKS_MAX: usize = 65_536;
/// Groups of one source that are known to hold no prefixes.
pub const GROUPS_MAX: usize = 64;
/// Shapes that a prompt is hashed in.
pub const SHAPES_MAX: usize = 4;
/// Tokens beyond a block that its hash may cover.
pub const LOOKAHEAD_TOKENS_MAX: usize = 64;

/// A (worker, rank) whose events are followed. It is never given to a second one.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceId {
    number: u16,
    generation: u16,
}

/// What an event did to the blocks on a source's device: to end leases, and to confirm donors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The block is surely there now (see [`View::resident`]), and was not, or was in doubt. Not
    /// told of blocks that become so, or cease to be, because a group shows what it is or that it
    /// exists: groups do that in their first events.
    Stored(OwnHash),
    /// A copy was removed. Whoever relies on the block can do so no longer, even where it is
    /// not gone: which copy is left, nobody says.
    Removed { own: OwnHash, is_gone: bool },
    /// Everything went.
    Cleared,
}

/// How much of a prompt a source holds, from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    pub source: SourceId,
    pub shape: Shape,
    /// Blocks from the start that are all on the device.
    pub device_blocks: u32,
    /// Blocks that follow those and are each on the device or on a lower tier.
    pub lower_blocks: u32,
}

type SharedSource = Arc<Mutex<Source>>;

#[derive(Debug)]
pub struct View {
    index: Index,
    lanes: Lanes,
    generations: Box<[AtomicU16]>,
    /// How many blocks each source holds: read without waiting for whoever writes.
    blocks: Box<[AtomicUsize]>,
    /// How many all hold together, and may.
    held: AtomicUsize,
    blocks_max: usize,
    sources: RwLock<Vec<Option<SharedSource>>>,
    /// Of the sources whose attention groups cut tokens in several.
    several: RwLock<BTreeMap<SourceId, Vec<Shape>>>,
    /// How many lanes have a shape.
    shapes: RwLock<BTreeMap<Namespace, BTreeMap<Shape, usize>>>,
}

impl Default for View {
    fn default() -> Self {
        Self::new(VIEW_BLOCKS_MAX)
    }
}

impl View {
    /// Of so many blocks at most.
    #[must_use]
    pub fn new(blocks_max: usize) -> Self {
        Self {
            index: Index::default(),
            lanes: Lanes::new(SOURCES_MAX),
            generations: (0..SOURCES_MAX).map(|_| AtomicU16::new(0)).collect(),
            blocks: (0..SOURCES_MAX).map(|_| AtomicUsize::new(0)).collect(),
            held: AtomicUsize::new(0),
            blocks_max,
            sources: RwLock::default(),
            several: RwLock::default(),
            shapes: RwLock::default(),
        }
    }

    /// Begins to follow a source, whose cache is empty. Nothing when there are [`SOURCES_MAX`].
    #[must_use]
    pub fn add(&self, namespace: Namespace) -> Option<SourceId> {
        let mut sources = self.sources.write();
        let number = match sources.iter().position(Option::is_none) {
            Some(free) => free,
            None if sources.len() < SOURCES_MAX => {
                sources.push(None);
                sources.len() - 1
            }
            None => return None,
        };
        let small = u16::try_from(number).expect("fewer than SOURCES_MAX");
        sources[number] = Some(Arc::new(Mutex::new(Source::new(small, namespace))));
        Some(self.id(small))
    }

    /// Says how many tokens the blocks of a source have. Blocks of a size that engines do not use
    /// are taken for short last pages ([`Outcome::OddSize`]) unless it is this one.
    pub fn set_block_size(&self, source: SourceId, block_size: u32) {
        if let Some(source) = self.source(source) {
            source.lock().block_size = Some(block_size);
        }
    }

    /// Applies the events of one batch. Nothing when the source was removed: late events of a
    /// worker that is gone change nothing. What became of the device's blocks is added to
    /// `changes`, in order.
    pub fn apply(
        &self,
        source: SourceId,
        events: &[Event<'_>],
        changes: &mut Vec<Change>,
    ) -> Option<Counts> {
        self.write(source, changes, |source, around| {
            source.apply(events, around);
        })
    }

    /// Empties a source whose engine began anew or whose events are not to be trusted.
    pub fn reset(&self, source: SourceId, changes: &mut Vec<Change>) -> Option<Counts> {
        self.write(source, changes, Source::reset)
    }

    /// Forgets a source.
    pub fn remove(&self, source: SourceId, changes: &mut Vec<Change>) -> Option<Counts> {
        let counts = self.write(source, changes, |source, around| {
            source.reset(around);
            source.is_removed = true;
        })?;
        let number = usize::from(source.number);
        let mut sources = self.sources.write();
        self.generations[number].fetch_add(1, Ordering::Relaxed);
        sources[number] = None;
        Some(counts)
    }

    /// Blocks that a source holds, over all media and groups.
    #[must_use]
    pub fn blocks(&self, source: SourceId) -> usize {
        let blocks = self.blocks[usize::from(source.number)].load(Ordering::Relaxed);
        // Looked at last: the number may have become another source's meanwhile.
        match self.id(source.number) == source {
            true => blocks,
            false => 0,
        }
    }

    /// The shapes that the blocks of a namespace have, at most [`SHAPES_MAX`], those of most
    /// sources first.
    #[must_use]
    pub fn shapes(&self, namespace: Namespace) -> Vec<Shape> {
        let shapes = self.shapes.read();
        let mut shapes: Vec<(usize, Shape)> = shapes
            .get(&namespace)
            .into_iter()
            .flatten()
            .map(|(&shape, &lanes)| (lanes, shape))
            .collect();
        shapes.sort_unstable_by(|one, other| other.cmp(one));
        shapes
            .into_iter()
            .take(SHAPES_MAX)
            .map(|(_, shape)| shape)
            .collect()
    }

    /// How much of a chain (see [`chain`]) of this shape each source holds, in the order of the
    /// sources; those that hold nothing of it are left out.
    #[must_use]
    pub fn matches(&self, shape: Shape, chain: &[OwnHash]) -> Vec<Match> {
        matches::reach(&self.index, &self.lanes, chain)
            .into_iter()
            .map(|reach| Match {
                source: self
                    .id(u16::try_from(reach.source).expect("seats have a source of 16 bits")),
                shape,
                device_blocks: reach.device,
                lower_blocks: reach.any - reach.device,
            })
            .collect()
    }

    /// How many blocks of a chain, from its start, surely lie on the source's device: what leases
    /// rest on, where the source is exact. Less than [`Self::matches`] says where a copy of a block
    /// was removed and it was not stored again since, where hashes and tokens did not pair, and
    /// where one of several groups without a kind lacks a block. The chain may be anything: it is
    /// followed for as long as each block continues the one before.
    ///
    /// Groups may cut tokens in several shapes (see [`Self::shapes_of`]); then only what is
    /// resident in each of them can be used.
    #[must_use]
    pub fn resident(&self, source: SourceId, shape: Shape, chain: &[OwnHash]) -> usize {
        // An own hash says its shape.
        let _ = shape;
        let number = u32::from(source.number);
        let resident = resident::resident(&self.index, &self.lanes, number, chain);
        // Looked at last: the number may have become another source's meanwhile.
        if self.id(source.number) == source {
            resident
        } else {
            0
        }
    }

    /// The block that an engine names so, where it is on the source's device, surely or not. None
    /// where its groups name different blocks so.
    #[must_use]
    pub fn own_of(&self, source: SourceId, hash: EngineHash) -> Option<OwnHash> {
        let source = self.source(source)?;
        let source = source.lock();
        let place = source.place_of(hash)?;
        Some(self.index.own(place))
    }

    /// The shapes of the blocks on a source's device, in their order.
    #[must_use]
    pub fn shapes_of(&self, source: SourceId) -> Vec<Shape> {
        self.source(source)
            .map_or_else(Vec::new, |source| source.lock().device_shapes())
    }

    /// The shapes of the attention groups on a source's device, where there are several: what of a
    /// prompt is there is there in each of them. Empty where there is one, or no group said what
    /// it is. Does not wait for whoever writes.
    #[must_use]
    pub fn several_shapes(&self, source: SourceId) -> Vec<Shape> {
        let several = self.several.read();
        several.get(&source).cloned().unwrap_or_default()
    }

    fn write(
        &self,
        id: SourceId,
        changes: &mut Vec<Change>,
        act: impl FnOnce(&mut Source, &mut Around<'_>),
    ) -> Option<Counts> {
        self.write_to(&self.source(id)?, changes, act)
    }

    /// Nothing when the source was removed since it was looked up.
    fn write_to(
        &self,
        source: &SharedSource,
        changes: &mut Vec<Change>,
        act: impl FnOnce(&mut Source, &mut Around<'_>),
    ) -> Option<Counts> {
        let mut source = source.lock();
        if source.is_removed {
            return None;
        }
        let mut around = Around {
            index: &self.index,
            lanes: &self.lanes,
            changes,
            counts: Counts::default(),
            blocks_max: self.share(source.blocks()),
        };
        act(&mut source, &mut around);
        let counts = around.counts;
        let (now, of) = (source.blocks(), &self.blocks[source.number()]);
        let before = of.swap(now, Ordering::Relaxed);
        self.held
            .fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        self.announce(&mut source);
        self.announce_several(&mut source);
        Some(counts)
    }

    /// How many blocks a source may hold that has so many: no more than it leaves to others, so
    /// that one more source finds as much room as any other has.
    fn share(&self, has: usize) -> usize {
        let left = self
            .blocks_max
            .saturating_sub(self.held.load(Ordering::Relaxed));
        BLOCKS_MAX.min(has.max(usize::midpoint(has, left)))
    }

    fn announce_several(&self, source: &mut Source) {
        let mut shapes = source.proven_shapes();
        if shapes.len() < 2 {
            shapes.clear();
        }
        if shapes == source.several {
            return;
        }
        source.several.clone_from(&shapes);
        let id = self.id(u16::try_from(source.number()).expect("below SOURCES_MAX"));
        let mut several = self.several.write();
        match shapes.is_empty() {
            true => several.remove(&id),
            false => several.insert(id, shapes),
        };
    }

    fn announce(&self, source: &mut Source) {
        if source.shapes().eq(source.announced.iter().copied()) {
            return;
        }
        let mut shapes = self.shapes.write();
        let of = shapes.entry(source.namespace).or_default();
        for shape in source.shapes() {
            *of.entry(shape).or_default() += 1;
        }
        for shape in &source.announced {
            if let Some(lanes) = of.get_mut(shape) {
                *lanes -= 1;
            }
        }
        of.retain(|_, lanes| *lanes > 0);
        if of.is_empty() {
            shapes.remove(&source.namespace);
        }
        source.announced = source.shapes().collect();
    }

    fn source(&self, id: SourceId) -> Option<SharedSource> {
        let sources = self.sources.read();
        let source = sources.get(usize::from(id.number))?.as_ref()?;
        (self.id(id.number) == id).then(|| Arc::clone(source))
    }

    fn id(&self, number: u16) -> SourceId {
        let generation = self.generations[usize::from(number)].load(Ordering::Relaxed);
        SourceId { number, generation }
    }
}
