//! Every vector is looked at: what a namespace is searched with while it is small.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use kvatlas_kernels::Dot8;

use super::{
    store::Hit,
    vector::{Vector, cosine},
};

/// Rows whose products are made before they are looked at.
const BLOCK_ROWS: usize = 256;

/// Vectors of one length, one behind another, and whose they are.
#[derive(Debug, Default)]
pub(super) struct Exact {
    rows: Vec<i8>,
    keys: Vec<u64>,
    places: HashMap<u64, usize>,
}

impl Exact {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Adds the vector of a key that is not there.
    pub(super) fn add(&mut self, key: u64, vector: &Vector) {
        self.rows.extend_from_slice(vector.bytes());
        let before = self.places.insert(key, self.keys.len());
        assert!(before.is_none(), "a key has one vector");
        self.keys.push(key);
    }

    /// True when the key was there.
    pub(super) fn remove(&mut self, key: u64) -> bool {
        let Some(place) = self.places.remove(&key) else {
            return false;
        };
        let width = self.rows.len() / self.keys.len();
        let last = self.keys.len() - 1;
        self.rows.copy_within(last * width.., place * width);
        self.rows.truncate(last * width);
        self.keys.swap_remove(place);
        if let Some(&moved) = self.keys.get(place) {
            self.places.insert(moved, place);
        }
        true
    }

    pub(super) fn get(&self, key: u64) -> Option<Vector> {
        let width = self.rows.len().checked_div(self.keys.len())?;
        let place = *self.places.get(&key)?;
        Some(Vector::stored(&self.rows[place * width..][..width]))
    }

    /// The nearest, nearest first; of equals the lower key.
    pub(super) fn nearest(&self, query: &Vector, wanted: usize) -> Vec<Hit> {
        let (dot8, width) = (Dot8::best(), query.dimensions());
        // The worst of the best on top.
        let mut best = BinaryHeap::with_capacity(wanted + 1);
        let mut products = [0; BLOCK_ROWS];
        let blocks = self.rows.chunks(BLOCK_ROWS * width);
        for (rows, keys) in blocks.zip(self.keys.chunks(BLOCK_ROWS)) {
            let products = &mut products[..keys.len()];
            dot8.rows(query.bytes(), rows, products);
            for (&product, &key) in products.iter().zip(keys) {
                let candidate = Reverse((product, Reverse(key)));
                if best.len() < wanted {
                    best.push(candidate);
                } else if best.peek().is_some_and(|worst| candidate < *worst) {
                    best.pop();
                    best.push(candidate);
                }
            }
        }
        let ranked = best.into_sorted_vec().into_iter();
        ranked
            .map(|Reverse((product, Reverse(key)))| Hit {
                key,
                score: cosine(product, width),
            })
            .collect()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let place_bytes = size_of::<(u64, usize)>() + 1;
        self.rows.capacity()
            + self.keys.capacity() * size_of::<u64>()
            + self.places.capacity() * place_bytes * 8 / 7
    }
}
