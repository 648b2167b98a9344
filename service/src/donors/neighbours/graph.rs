//! A graph over the vectors: what a namespace is searched with once a scan would take too long.
//!
//! It is usearch's. What that asks of its caller is kept here by type: what changes the graph
//! takes it exclusively (so neither growth nor a removal runs beside a search, a free place is
//! never seen half filled, and no key is added twice), a search waits for one of the graph's
//! places for threads, and only a [`Vector`], which is finite and not zero, gets in. There are no
//! filters: a graph holds one namespace. Nothing is saved: after a start the vectors are made
//! again, which for 100,000 donors takes a thread a minute beside its other work.

use std::fmt;

use kvatlas_kernels::Dot8;
use parking_lot::{Condvar, Mutex};
use usearch::{Index, IndexOptions, MetricKind, ScalarKind};

use super::{
    store::Hit,
    vector::{Vector, cosine},
};

/// Neighbours of a vector in the upper layers; in the lowest, twice as many. The most for which a
/// vertex still takes 192 bytes.
const CONNECTIVITY: usize = 22;
/// Candidates that are kept while a place for a new vector is looked for.
const EXPANSION_ADD: usize = 128;
/// Candidates that are kept while the nearest are looked for. Measured on sketches of real
/// passages, with queries of which every twelfth token was replaced (and, of which moreover half
/// the passages were new and all words shuffled). At 50,000, recall@10 was with 16 neighbours a
/// vector 0.92 (0.74) at 128 candidates, 0.98 (0.88) at 300 and 0.99 (0.93) at 450; with 24
/// neighbours and 200 candidates for an add 0.96 (0.86), 0.99 (0.95) and 1.00 (0.98). With the
/// numbers chosen here and 448 candidates it was 0.991 (0.941) at 100,000, and 0.976 (0.891) after
/// all had been replaced by others: hence some more, and more again in a larger graph.
const EXPANSION_SEARCH: usize = 512;
/// Candidates that are kept besides for each time that the places have doubled beyond these.
const EXPANSION_MORE: usize = 32;
const EXPANSION_PLACES: usize = 1 << 17;
/// Searches at a time; further ones wait.
pub(super) const SEARCHES_MAX: usize = 16;
/// Places that a new graph has; it doubles them when they are full.
const CAPACITY_LEAST: usize = 1 << 10;

/// The library refused: it is out of memory.
#[derive(Debug, thiserror::Error)]
#[error("the graph of neighbours cannot take another vector: {0}")]
pub struct GraphError(String);

pub(super) struct Graph {
    index: Index,
    turns: Turns,
    /// Places of vectors, and how many of them were ever used.
    capacity: usize,
    used: usize,
}

impl Graph {
    pub(super) fn new(dimensions: usize) -> Result<Graph, GraphError> {
        let mut index = Index::new(&IndexOptions {
            dimensions,
            metric: MetricKind::IP,
            quantization: ScalarKind::I8,
            connectivity: CONNECTIVITY,
            expansion_add: EXPANSION_ADD,
            expansion_search: EXPANSION_SEARCH,
            multi: false,
        })
        .map_err(refused)?;
        index.change_metric(distance(dimensions));
        let mut graph = Graph {
            index,
            turns: Turns::new(SEARCHES_MAX),
            capacity: 0,
            used: 0,
        };
        graph.grow(CAPACITY_LEAST)?;
        Ok(graph)
    }

    pub(super) fn len(&self) -> usize {
        self.index.size()
    }

    /// Places of removed vectors that no other has taken. A search passes through them.
    pub(super) fn unused(&self) -> usize {
        self.used - self.index.size()
    }

    /// Adds the vector of a key that is not there.
    pub(super) fn add(&mut self, key: u64, vector: &Vector) -> Result<(), GraphError> {
        if self.index.size() == self.capacity {
            self.grow(self.capacity * 2)?;
        }
        self.index.add(key, vector.bytes()).map_err(refused)?;
        self.used = self.used.max(self.index.size());
        Ok(())
    }

    /// True when the key was there.
    pub(super) fn remove(&mut self, key: u64) -> bool {
        self.index.remove(key).is_ok_and(|removed| removed > 0)
    }

    pub(super) fn get(&self, key: u64) -> Option<Vector> {
        let mut bytes = vec![0; self.index.dimensions()];
        let found = self.index.get(key, &mut bytes).ok()?;
        (found > 0).then(|| Vector::stored(&bytes))
    }

    /// Most of the nearest, nearest first; of equals the lower key.
    pub(super) fn nearest(&self, query: &Vector, wanted: usize) -> Vec<Hit> {
        let turn = self.turns.take();
        let found = self.index.search(query.bytes(), wanted);
        drop(turn);
        let keys = found.map(|found| found.keys).unwrap_or_default();
        let scored = keys.into_iter().filter_map(|key| {
            let score = self.get(key)?.cosine(query);
            Some(Hit { key, score })
        });
        let mut hits: Vec<Hit> = scored.collect();
        hits.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.key.cmp(&b.key)));
        hits
    }

    pub(super) fn memory_bytes(&self) -> usize {
        /// A pointer to the vertex, one to the vector, and two entries of the table of keys.
        const PLACE_BYTES: usize = 2 * size_of::<usize>() + 2 * 16;
        let stats = self.index.memory_stats();
        // What is reserved has not been touched yet.
        let graph = stats.graph_allocated.saturating_sub(stats.graph_reserved);
        let vectors = stats
            .vectors_allocated
            .saturating_sub(stats.vectors_reserved);
        graph + vectors + self.capacity * PLACE_BYTES
    }

    fn grow(&mut self, capacity: usize) -> Result<(), GraphError> {
        let places = self
            .index
            .reserve_capacity_and_threads(capacity, SEARCHES_MAX);
        places.map_err(refused)?;
        let doublings = (capacity / EXPANSION_PLACES).max(1).ilog2() as usize;
        let expansion = EXPANSION_SEARCH + EXPANSION_MORE * doublings;
        self.index.change_expansion_search(expansion);
        self.capacity = capacity;
        Ok(())
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Graph");
        shown
            .field("len", &self.len())
            .field("capacity", &self.capacity);
        shown.finish_non_exhaustive()
    }
}

/// The graph's distance of two vectors: our own product, with the instructions found at run time.
/// The library's own would be compiled for the oldest processor, or with a library of such
/// products that takes minutes to compile.
#[expect(unsafe_code, reason = "the library passes vectors as pointers")]
fn distance(dimensions: usize) -> Box<dyn Fn(*const i8, *const i8) -> f32 + Send + Sync> {
    let dot8 = Dot8::best();
    Box::new(move |a, b| {
        // SAFETY: the library passes what it took from `add` and `search`, where it compares the
        // length with the dimensions that it was made with: these.
        let a = unsafe { std::slice::from_raw_parts(a, dimensions) };
        // SAFETY: as above.
        let b = unsafe { std::slice::from_raw_parts(b, dimensions) };
        1.0 - cosine(dot8.dot(a, b), dimensions)
    })
}

fn refused(error: impl fmt::Display) -> GraphError {
    GraphError(error.to_string())
}

/// A number of turns that can be had at a time.
#[derive(Debug)]
struct Turns {
    free: Mutex<usize>,
    freed: Condvar,
}

struct Turn<'a>(&'a Turns);

impl Turns {
    fn new(count: usize) -> Turns {
        Turns {
            free: Mutex::new(count),
            freed: Condvar::new(),
        }
    }

    /// Waits for a turn.
    fn take(&self) -> Turn<'_> {
        let mut free = self.free.lock();
        self.freed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}
