//! All vectors are looked at: what a namespace is searched with up to a million of them and more.
//!
//! Many are screened: the signs of all are looked at, and the vectors of those that agree best. A
//! sign for each element is an eighth of a vector, and memory is what a scan waits for.

use std::{cmp::Reverse, collections::BinaryHeap};

use kvatlas_kernels::Dot8;

use super::{
    room,
    signs::Signs,
    store::Hit,
    vector::{Vector, cosine},
};

/// Rows whose products are made before they are looked at.
const BLOCK_ROWS: usize = 256;
/// More than so many vectors are screened.
const SCREENED_MIN: usize = 32_768;
/// How many pass the screen; and at least, for each that is wanted. Among a million sketches of
/// real passages the ten nearest are among the best 8,192 by sign in 98 % of the cases, and among
/// the best 16,384 in 99 %.
const PASSED: usize = 8_192;
const PASSED_PER_WANTED: usize = 32;
/// The place of a key that is not there.
const NOWHERE: u32 = u32::MAX;

/// Vectors of one length, one behind another, and whose they are.
#[derive(Debug, Default)]
pub(super) struct Exact {
    rows: Vec<i8>,
    signs: Signs,
    keys: Vec<u64>,
    /// By key: keys are dense, being made of slots.
    places: Vec<u32>,
}

impl Exact {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Adds the vector of a key that is not there.
    pub(super) fn add(&mut self, key: u64, vector: &Vector) {
        assert!(self.place(key).is_none(), "a key has one vector");
        let at = index(key);
        if at >= self.places.len() {
            let more = at + 1 - self.places.len();
            room::make(&mut self.places, more);
            self.places.resize(at + 1, NOWHERE);
        }
        self.places[at] = u32::try_from(self.keys.len()).expect("fewer vectors than keys");
        room::make(&mut self.rows, vector.dimensions());
        self.rows.extend_from_slice(vector.bytes());
        self.signs.push(vector.bytes());
        room::make(&mut self.keys, 1);
        self.keys.push(key);
    }

    /// True when the key was there.
    pub(super) fn remove(&mut self, key: u64) -> bool {
        let Some(place) = self.place(key) else {
            return false;
        };
        self.places[index(key)] = NOWHERE;
        let width = self.width();
        let last = self.keys.len() - 1;
        self.rows.copy_within(last * width.., place * width);
        self.rows.truncate(last * width);
        self.signs.swap_remove(place, width);
        self.keys.swap_remove(place);
        if let Some(&moved) = self.keys.get(place) {
            self.places[index(moved)] = u32::try_from(place).expect("it was one");
        }
        room::give_back(&mut self.rows);
        room::give_back(&mut self.keys);
        if self.keys.is_empty() {
            self.places = Vec::new();
        }
        true
    }

    pub(super) fn get(&self, key: u64) -> Option<Vector> {
        let place = self.place(key)?;
        Some(Vector::stored(self.row(place, self.width())))
    }

    /// The nearest, nearest first; of equals the lower key. Of many, most of the nearest.
    pub(super) fn nearest(&self, query: &Vector, wanted: usize) -> Vec<Hit> {
        let mut best = Best::new(wanted);
        if self.len() <= SCREENED_MIN {
            self.look_at_all(query, &mut best);
        } else {
            let passed = PASSED.max(wanted * PASSED_PER_WANTED);
            self.look_at(&self.signs.best(query, passed), query, &mut best);
        }
        best.hits(query.dimensions())
    }

    fn look_at_all(&self, query: &Vector, best: &mut Best) {
        let (dot8, width) = (Dot8::best(), query.dimensions());
        let mut products = [0; BLOCK_ROWS];
        let blocks = self.rows.chunks(BLOCK_ROWS * width);
        for (rows, keys) in blocks.zip(self.keys.chunks(BLOCK_ROWS)) {
            let products = &mut products[..keys.len()];
            dot8.rows(query.bytes(), rows, products);
            for (&product, &key) in products.iter().zip(keys) {
                best.offer(product, key);
            }
        }
    }

    fn look_at(&self, places: &[usize], query: &Vector, best: &mut Best) {
        let (dot8, width) = (Dot8::best(), query.dimensions());
        for &place in places {
            let product = dot8.dot(query.bytes(), self.row(place, width));
            best.offer(product, self.keys[place]);
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.rows.capacity()
            + self.signs.memory_bytes()
            + self.keys.capacity() * size_of::<u64>()
            + self.places.capacity() * size_of::<u32>()
    }

    fn place(&self, key: u64) -> Option<usize> {
        let &place = self.places.get(index(key))?;
        (place != NOWHERE).then_some(place as usize)
    }

    fn width(&self) -> usize {
        self.rows.len() / self.keys.len()
    }

    fn row(&self, place: usize, width: usize) -> &[i8] {
        &self.rows[place * width..][..width]
    }
}

fn index(key: u64) -> usize {
    usize::try_from(key).expect("as many keys as fit into memory")
}

/// The largest products so far, the least of them on top; of equals the lower key is better.
struct Best {
    heap: BinaryHeap<Reverse<(i32, Reverse<u64>)>>,
    wanted: usize,
}

impl Best {
    fn new(wanted: usize) -> Best {
        let heap = BinaryHeap::with_capacity(wanted + 1);
        Best { heap, wanted }
    }

    #[inline]
    fn offer(&mut self, product: i32, key: u64) {
        let candidate = Reverse((product, Reverse(key)));
        if self.heap.len() < self.wanted {
            self.heap.push(candidate);
        } else if self.heap.peek().is_some_and(|worst| candidate < *worst) {
            self.heap.pop();
            self.heap.push(candidate);
        }
    }

    fn hits(self, dimensions: usize) -> Vec<Hit> {
        let ranked = self.heap.into_sorted_vec().into_iter();
        ranked
            .map(|Reverse((product, Reverse(key)))| Hit {
                key,
                score: cosine(product, dimensions),
            })
            .collect()
    }
}
