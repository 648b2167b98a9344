//! The two ways of keeping vectors, behind one face.

use super::{
    exact::Exact,
    graph::{Graph, GraphError},
    vector::Vector,
};

/// A vector that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Hit {
    pub(super) key: u64,
    pub(super) score: f32,
}

#[derive(Debug)]
pub(super) enum Store {
    Exact(Exact),
    Graph(Graph),
}

/// The ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Exact,
    Graph,
}

impl Default for Store {
    fn default() -> Store {
        Store::Exact(Exact::default())
    }
}

impl Store {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Store::Exact(_) => Kind::Exact,
            Store::Graph(_) => Kind::Graph,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Store::Exact(exact) => exact.len(),
            Store::Graph(graph) => graph.len(),
        }
    }

    /// Adds the vector of a key that is not there.
    pub(super) fn add(&mut self, key: u64, vector: &Vector) -> Result<(), GraphError> {
        match self {
            Store::Exact(exact) => {
                exact.add(key, vector);
                Ok(())
            }
            Store::Graph(graph) => graph.add(key, vector),
        }
    }

    /// True when the key was there.
    pub(super) fn remove(&mut self, key: u64) -> bool {
        match self {
            Store::Exact(exact) => exact.remove(key),
            Store::Graph(graph) => graph.remove(key),
        }
    }

    pub(super) fn get(&self, key: u64) -> Option<Vector> {
        match self {
            Store::Exact(exact) => exact.get(key),
            Store::Graph(graph) => graph.get(key),
        }
    }

    /// The nearest, nearest first; of equals the lower key.
    pub(super) fn nearest(&self, query: &Vector, wanted: usize) -> Vec<Hit> {
        match self {
            Store::Exact(exact) => exact.nearest(query, wanted),
            Store::Graph(graph) => graph.nearest(query, wanted),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Store::Exact(exact) => exact.memory_bytes(),
            Store::Graph(graph) => graph.memory_bytes(),
        }
    }
}
