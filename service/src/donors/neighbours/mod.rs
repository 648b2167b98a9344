//! Donors whose vectors lie near a prompt's: they share vocabulary or meaning, but no long run.

mod exact;
mod graph;
pub mod indexer;
pub mod pending;
mod room;
mod signs;
pub mod sketch;
mod store;
pub mod vector;

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use graph::Graph;
pub use graph::GraphError;
use pending::SlotSet;
use store::{Hit, Kind, Store};
pub use vector::Vector;

/// Most vectors of one donor.
pub const SEGMENTS_MAX: u32 = 64;
/// Hits of one segment of a text from which donors are nominated. Among so many, a donor with the
/// right body is found although its preamble is everybody's.
const SEGMENT_HITS: usize = 64;
/// What a segment counts at least.
const WEIGHT_LEAST: f32 = 0.01;
/// Donors of which all segments are compared.
const COMPARED_MAX: usize = 128;
/// Donors that are taken over into the next store with each update, besides the updated one: so
/// few that no update is ever long, and so many that the new store is complete before the number
/// of vectors has changed by a quarter.
const MOVES: usize = 4;

/// What the vectors of one namespace are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub dimensions: usize,
    /// Most vectors of a donor, 1 to [`SEGMENTS_MAX`].
    pub segments_max: u32,
}

impl Shape {
    /// One sketch of a donor's tokens.
    pub const SKETCH: Shape = Shape {
        dimensions: sketch::SKETCH_DIMENSIONS,
        segments_max: 1,
    };
}

/// A donor that is near.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Near {
    pub slot: u32,
    /// Of the donor whose vector it is: another donor may have the slot by now.
    pub sequence: u64,
    /// A cosine, or a mean of such: -1 to 1.
    pub score: f32,
}

/// Why an update did not take place, or only in part.
#[derive(Debug, thiserror::Error)]
pub enum RefusedVector {
    #[error("a vector has {found} dimensions, and those of this namespace {wanted}")]
    Dimensions { found: usize, wanted: usize },
    #[error("a donor has {found} vectors, and at most {most} are kept")]
    Segments { found: usize, most: u32 },
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The vectors of one namespace's donors, by slot.
///
/// Searched by looking at all of them, and through a graph when they are very many. The next store
/// is built beside the one that is searched, a few donors with each update, and takes its place
/// when it is complete. Updates wait for each other; searches wait for the change of one donor (in
/// a graph, of one vector), or for a graph to double its places. Empty ones own no memory.
#[derive(Debug)]
pub struct Neighbours {
    shape: Shape,
    thresholds: Thresholds,
    /// Held through an update. What it guards, no search looks at.
    next: Mutex<Option<Next>>,
    now: RwLock<Now>,
    /// Vectors after the last update, for those who must not wait.
    length: AtomicUsize,
}

/// Bytes of vectors that are searched by looking at all of them: 1.5 million sketches.
///
/// At every number that was measured a scan that is screened beats a graph. Among 100,000 sketches
/// it took 0.4 to 0.9 ms of a busy processor and the graph 2.1, among 200,000 the graph 4 to 5, and
/// the scan among a million 2.5 to 5. It finds more: recall@10 0.999 of 100,000 and 0.98 to 0.99 of
/// a million, where the graph had 0.90 to 0.96 of 100,000 and 0.82 to 0.92 of 200,000. A vector
/// costs it 240 bytes and 2 microseconds, the graph 450 bytes and 500 to 700 microseconds. So the
/// graph is for what would take a scan longer than a look-up may: it grows with the bytes.
const LOOKED_AT_MAX_BYTES: usize = 288_000_000;

/// At which numbers of vectors the store changes.
#[derive(Debug, Clone, Copy)]
pub struct Thresholds {
    /// More than this many are searched through a graph.
    pub exact_max: usize,
    /// Less than this many are looked at one by one again.
    pub graph_min: usize,
}

impl Thresholds {
    /// For vectors of so many dimensions. What a scan takes grows with its bytes.
    #[must_use]
    pub fn of(dimensions: usize) -> Thresholds {
        let exact_max = LOOKED_AT_MAX_BYTES / dimensions;
        Thresholds {
            exact_max,
            graph_min: exact_max / 2,
        }
    }
}

/// What is searched.
#[derive(Debug, Default)]
struct Now {
    donors: Donors,
    store: Store,
}

/// The store that is to come, and the first slot that it has not taken over.
#[derive(Debug)]
struct Next {
    store: Store,
    cursor: u32,
}

impl Neighbours {
    /// # Panics
    /// When the shape has no dimensions, or not 1 to [`SEGMENTS_MAX`] segments.
    #[must_use]
    pub fn new(shape: Shape) -> Neighbours {
        Neighbours::with_thresholds(shape, Thresholds::of(shape.dimensions.max(1)))
    }

    /// # Panics
    /// As [`Neighbours::new`].
    #[must_use]
    pub fn with_thresholds(shape: Shape, thresholds: Thresholds) -> Neighbours {
        assert!((1..=vector::DIMENSIONS_MAX).contains(&shape.dimensions));
        assert!((1..=SEGMENTS_MAX).contains(&shape.segments_max));
        Neighbours {
            shape,
            thresholds,
            next: Mutex::default(),
            now: RwLock::default(),
            length: AtomicUsize::new(0),
        }
    }

    /// Vectors, not donors. Waits for nobody.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let next = self.next.lock();
        let next_bytes = next.as_ref().map_or(0, |next| next.store.memory_bytes());
        let now = self.now.read();
        now.donors.memory_bytes() + now.store.memory_bytes() + next_bytes
    }

    /// Donors by their nearest vector, nearest first.
    ///
    /// # Panics
    /// When the query has other dimensions than the vectors.
    #[must_use]
    pub fn nearest(&self, query: &Vector, wanted: usize) -> Vec<Near> {
        assert_eq!(query.dimensions(), self.shape.dimensions, "one space");
        if wanted == 0 {
            return Vec::new();
        }
        let now = self.now.read();
        let mut found: Vec<Near> = Vec::with_capacity(wanted);
        // A donor's other vectors may lie as near.
        for hit in now.store.nearest(query, wanted * self.segments_max()) {
            let slot = self.slot(hit.key);
            if found.len() < wanted && found.iter().all(|near| near.slot != slot) {
                found.extend(now.near(slot, hit.score));
            }
        }
        found
    }

    /// Donors by the mean, over the segments of a text, of the cosine with the nearest of the
    /// donor's segments.
    ///
    /// A segment counts by how far its nearest stands out from the [`SEGMENT_HITS`]th: one that
    /// very many donors have, as a preamble, tells none of them from the others.
    ///
    /// # Panics
    /// When a segment has other dimensions than the vectors.
    #[must_use]
    pub fn nearest_donors(&self, segments: &[Vector], wanted: usize) -> Vec<Near> {
        let now = self.now.read();
        let mut nominated: HashMap<u32, f32> = HashMap::new();
        let mut weighted = Vec::with_capacity(segments.len());
        for segment in segments {
            assert_eq!(segment.dimensions(), self.shape.dimensions, "one space");
            let hits = now.store.nearest(segment, SEGMENT_HITS);
            let weight = rarity(&hits).max(WEIGHT_LEAST);
            weighted.push((segment, weight));
            for hit in hits {
                *nominated.entry(self.slot(hit.key)).or_default() += weight * hit.score;
            }
        }
        let mut ranked: Vec<(u32, f32)> = nominated.into_iter().collect();
        ranked.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        ranked.truncate(COMPARED_MAX);
        let compared = ranked.into_iter().filter_map(|(slot, _)| {
            let keys = self.keys(slot, now.donors.segments(slot));
            let own: Vec<Vector> = keys.filter_map(|key| now.store.get(key)).collect();
            now.near(slot, mean_of_best(&weighted, &own))
        });
        let mut found: Vec<Near> = compared.collect();
        found.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.slot.cmp(&b.slot)));
        found.truncate(wanted);
        found
    }

    /// The vectors in a slot, in the order in which they were put there.
    #[must_use]
    pub fn vectors(&self, slot: u32) -> Vec<Vector> {
        let now = self.now.read();
        let keys = self.keys(slot, now.donors.segments(slot));
        keys.filter_map(|key| now.store.get(key)).collect()
    }

    /// Puts a donor's vectors into a slot, in place of what is there.
    ///
    /// # Errors
    /// When the vectors are not of this shape: then the slot is empty. Or when there is no memory
    /// for them: then some are missing.
    pub fn update(
        &self,
        slot: u32,
        sequence: u64,
        vectors: &[Vector],
    ) -> Result<(), RefusedVector> {
        let checked = self.check(vectors);
        let mut next = self.next.lock();
        let mut now = self.now.write();
        self.clear(slot, &mut now, &mut next);
        let filled = checked.and_then(|()| Ok(self.fill(slot, sequence, vectors, &mut now)?));
        RwLockWriteGuard::unlock_fair(now);
        if filled.is_ok() {
            self.catch_up(slot, &mut next);
        }
        self.change_store(&mut next);
        filled
    }

    /// Empties a slot.
    pub fn remove(&self, slot: u32) {
        let mut next = self.next.lock();
        let mut now = self.now.write();
        self.clear(slot, &mut now, &mut next);
        RwLockWriteGuard::unlock_fair(now);
        self.change_store(&mut next);
    }

    fn check(&self, vectors: &[Vector]) -> Result<(), RefusedVector> {
        let (found, most) = (vectors.len(), self.shape.segments_max);
        if found > self.segments_max() {
            return Err(RefusedVector::Segments { found, most });
        }
        let wanted = self.shape.dimensions;
        let other = vectors.iter().find(|v| v.dimensions() != wanted);
        other.map_or(Ok(()), |other| {
            let found = other.dimensions();
            Err(RefusedVector::Dimensions { found, wanted })
        })
    }

    fn clear(&self, slot: u32, now: &mut Now, next: &mut Option<Next>) {
        let segments = now.donors.take(slot);
        for key in self.keys(slot, segments) {
            now.store.remove(key);
            if let Some(next) = next {
                next.store.remove(key);
            }
        }
        self.length.store(now.store.len(), Ordering::Relaxed);
    }

    /// Fills an empty slot.
    fn fill(
        &self,
        slot: u32,
        sequence: u64,
        vectors: &[Vector],
        now: &mut RwLockWriteGuard<'_, Now>,
    ) -> Result<(), GraphError> {
        let segments = u8::try_from(vectors.len()).expect("at most SEGMENTS_MAX");
        now.donors.put(slot, sequence, segments);
        for (key, vector) in self.keys(slot, segments).zip(vectors) {
            if now.store.kind() == Kind::Graph {
                // A vector takes it long: whoever waits goes first.
                RwLockWriteGuard::bump(now);
            }
            now.store.add(key, vector)?;
            self.length.store(now.store.len(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes a slot that was just filled over into the next store, if that is past it.
    fn catch_up(&self, slot: u32, next: &mut Option<Next>) {
        let past = next.as_mut().filter(|next| slot < next.cursor);
        if past.is_some_and(|next| self.take_over(slot, next).is_err()) {
            *next = None;
        }
    }

    /// Begins, continues or ends the change to another store. Where there is no memory for it, it
    /// is begun again with a later update: what is searched stays as it is.
    fn change_store(&self, next: &mut Option<Next>) {
        let wanted = self.wanted();
        if next.as_ref().map(|next| next.store.kind()) != wanted {
            *next = wanted.and_then(|kind| Next::new(kind, self.shape.dimensions).ok());
        }
        let Some(coming) = next else { return };
        match self.take_over_some(coming) {
            Err(_) => *next = None,
            Ok(false) => {}
            Ok(true) => {
                if let Some(mut complete) = next.take() {
                    let mut now = self.now.write();
                    std::mem::swap(&mut now.store, &mut complete.store);
                    RwLockWriteGuard::unlock_fair(now);
                }
            }
        }
    }

    /// The store that is to come, if another is better than what is searched.
    fn wanted(&self) -> Option<Kind> {
        let now = self.now.read();
        let length = now.store.len();
        match &now.store {
            Store::Exact(_) => (length > self.thresholds.exact_max).then_some(Kind::Graph),
            Store::Graph(_) if length < self.thresholds.graph_min => Some(Kind::Exact),
            // Searches would pass through more removed vectors than there are others.
            Store::Graph(graph) => (graph.unused() > length).then_some(Kind::Graph),
        }
    }

    /// Takes over the next few donors; true when there are no more.
    fn take_over_some(&self, next: &mut Next) -> Result<bool, GraphError> {
        for _ in 0..MOVES {
            let Some(slot) = self.now.read().donors.next_from(next.cursor) else {
                return Ok(true);
            };
            next.cursor = slot + 1;
            self.take_over(slot, next)?;
        }
        Ok(false)
    }

    fn take_over(&self, slot: u32, next: &mut Next) -> Result<(), GraphError> {
        let segments = self.now.read().donors.segments(slot);
        for key in self.keys(slot, segments) {
            let vector = self.now.read().store.get(key);
            if let Some(vector) = vector {
                next.store.add(key, &vector)?;
            }
        }
        Ok(())
    }

    fn segments_max(&self) -> usize {
        self.shape.segments_max as usize
    }

    fn keys(&self, slot: u32, segments: u8) -> impl Iterator<Item = u64> + use<> {
        let first = u64::from(slot) * u64::from(self.shape.segments_max);
        (0..u64::from(segments)).map(move |segment| first + segment)
    }

    fn slot(&self, key: u64) -> u32 {
        let slot = key / u64::from(self.shape.segments_max);
        u32::try_from(slot).expect("keys are made of slots")
    }
}

impl Now {
    fn near(&self, slot: u32, score: f32) -> Option<Near> {
        let sequence = self.donors.sequence(slot)?;
        Some(Near {
            slot,
            sequence,
            score,
        })
    }
}

impl Next {
    fn new(kind: Kind, dimensions: usize) -> Result<Next, GraphError> {
        let store = match kind {
            Kind::Exact => Store::default(),
            Kind::Graph => Store::Graph(Graph::new(dimensions)?),
        };
        Ok(Next { store, cursor: 0 })
    }
}

/// Which donor is in a slot, and how many vectors it has.
#[derive(Debug, Default)]
struct Donors {
    sequences: Vec<u64>,
    /// 0 where the slot is empty.
    segments: Vec<u8>,
    filled: SlotSet,
}

impl Donors {
    fn put(&mut self, slot: u32, sequence: u64, segments: u8) {
        let place = slot as usize;
        if place >= self.segments.len() {
            self.sequences.resize(place + 1, 0);
            self.segments.resize(place + 1, 0);
        }
        self.sequences[place] = sequence;
        self.segments[place] = segments;
        if segments > 0 {
            self.filled.insert(slot);
        }
    }

    /// Empties a slot; the number of vectors that it had.
    fn take(&mut self, slot: u32) -> u8 {
        self.filled.remove(slot);
        let segments = self.segments.get_mut(slot as usize);
        segments.map_or(0, std::mem::take)
    }

    fn segments(&self, slot: u32) -> u8 {
        self.segments.get(slot as usize).copied().unwrap_or(0)
    }

    fn sequence(&self, slot: u32) -> Option<u64> {
        let is_filled = self.segments(slot) > 0;
        is_filled.then(|| self.sequences[slot as usize])
    }

    fn next_from(&self, slot: u32) -> Option<u32> {
        self.filled.next_from(slot).filter(|&next| next >= slot)
    }

    fn memory_bytes(&self) -> usize {
        self.sequences.capacity() * size_of::<u64>()
            + self.segments.capacity()
            + self.filled.memory_bytes()
    }
}

/// How much a segment of a text counts whose hits have these cosines, nearest first: the less, the
/// nearer the last of a full list still is.
fn rarity(hits: &[Hit]) -> f32 {
    let last = hits.get(SEGMENT_HITS - 1);
    last.map_or(1.0, |last| 1.0 - last.score.clamp(0.0, 1.0))
}

/// The weighted mean, over a text's segments, of the best cosine with one of a donor's own.
fn mean_of_best(segments: &[(&Vector, f32)], own: &[Vector]) -> f32 {
    let total: f32 = segments.iter().map(|(_, weight)| weight).sum();
    let best = |segment: &Vector| {
        let cosines = own.iter().map(|own| own.cosine(segment));
        cosines.fold(-1.0, f32::max)
    };
    let sum: f32 = segments
        .iter()
        .map(|(segment, weight)| weight * best(segment))
        .sum();
    sum / total
}

#[cfg(test)]
mod tests;
