//! Where the indexers' vectors come from: sketches from the donors' tokens.

use std::sync::Arc;

use super::{
    catalog::{Catalog, Shard},
    neighbours::{Neighbours, RefusedVector, Vector, indexer::Source, sketch::sketch},
};

/// Sketches of all donors, made from their tokens.
#[derive(Debug)]
pub struct Sketches(pub Arc<Catalog>);

impl Source for Sketches {
    type Shard = Arc<Shard>;

    fn shards(&self) -> Vec<Arc<Shard>> {
        self.0.shards()
    }

    fn neighbours<'a>(&self, shard: &'a Arc<Shard>) -> &'a Neighbours {
        &shard.sketches
    }

    fn take(&self, shard: &Arc<Shard>, from: u32) -> Option<u32> {
        let mut marks = shard.unsketched.lock();
        let slot = marks.next_from(from)?;
        marks.remove(slot);
        Some(slot)
    }

    fn vectors(&self, shard: &Arc<Shard>, slot: u32) -> Option<(u64, Vec<Vector>)> {
        let (sequence, packed) = {
            let donors = shard.read();
            let sequence = donors.at(slot)?.sequence;
            (sequence, Arc::clone(donors.index.tokens(slot)?))
        };
        let mut tokens = Vec::new();
        packed.unpack_into(&mut tokens);
        Some((sequence, sketch(&tokens).into_iter().collect()))
    }

    fn done(&self, _: &Arc<Shard>, _: u32, outcome: Result<(), RefusedVector>) {
        if let Err(error) = outcome {
            tracing::warn!(%error, "a donor has no sketch");
        }
    }
}

impl Catalog {
    /// Donors whose sketches are to be made or removed.
    #[must_use]
    pub fn sketches_behind(&self) -> u64 {
        let behind = |shard: &Arc<Shard>| shard.unsketched.lock().len() as u64;
        self.shards().iter().map(behind).sum()
    }

    /// Donors that can be found by their sketch.
    #[must_use]
    pub fn sketched(&self) -> u64 {
        let sketched = |shard: &Arc<Shard>| shard.sketches.len() as u64;
        self.shards().iter().map(sketched).sum()
    }
}
