//! Where the indexers' vectors come from: sketches of tokens, embeddings of texts.

use std::sync::Arc;

use super::{
    catalog::{Catalog, Shard},
    namespace::NamespaceId,
    neighbours::{
        Neighbours, RefusedVector, Shape, Vector, indexer::Source, pending::SlotSet, sketch::sketch,
    },
    text::{Embedder, segments},
    texts::DonorTexts,
};

/// Sketches of all donors, made from their tokens.
#[derive(Debug)]
pub struct Sketches(pub Arc<Catalog>);

impl Source for Sketches {
    type Key = NamespaceId;
    type Shard = Arc<Shard>;

    fn shard(&self, key: NamespaceId) -> Option<Arc<Shard>> {
        self.0.shard(key)
    }

    fn neighbours<'a>(&self, shard: &'a Arc<Shard>) -> &'a Neighbours {
        &shard.sketches
    }

    fn take(&self, shard: &Arc<Shard>, from: u32) -> Option<u32> {
        take(&mut shard.unsketched.lock(), from)
    }

    fn vectors(&self, shard: &Arc<Shard>, slot: u32) -> Option<(u64, Vec<Vector>)> {
        let mut tokens = Vec::new();
        let sequence = {
            let donors = shard.read();
            donors.index.tokens(slot)?.unpack_into(&mut tokens);
            donors.at(slot)?.sequence
        };
        Some((sequence, sketch(&tokens).into_iter().collect()))
    }

    fn done(&self, _: &Arc<Shard>, _: u32, outcome: Result<(), RefusedVector>) {
        if let Err(error) = outcome {
            tracing::warn!(%error, "a donor has no sketch");
        }
    }
}

/// Embeddings of the texts of donors that have one. The model's time is the queue: one donor after
/// another, behind every look-up.
#[derive(Debug)]
pub struct Embeddings {
    pub catalog: Arc<Catalog>,
    pub texts: DonorTexts,
    pub embedder: Arc<Embedder>,
    /// Most segments of a donor.
    pub segments_max: u32,
}

impl Source for Embeddings {
    type Key = NamespaceId;
    type Shard = Arc<Shard>;

    fn shard(&self, key: NamespaceId) -> Option<Arc<Shard>> {
        self.catalog.shard(key)
    }

    fn neighbours<'a>(&self, shard: &'a Arc<Shard>) -> &'a Neighbours {
        shard.embeddings.get_or_init(|| {
            Neighbours::new(Shape {
                dimensions: self.embedder.dimensions(),
                segments_max: self.segments_max,
            })
        })
    }

    fn take(&self, shard: &Arc<Shard>, from: u32) -> Option<u32> {
        take(&mut shard.unembedded.lock(), from)
    }

    fn vectors(&self, shard: &Arc<Shard>, slot: u32) -> Option<(u64, Vec<Vector>)> {
        let donor = Arc::clone(shard.read().at(slot)?);
        let text = self.texts.of(&donor).unwrap_or_default();
        let parts = segments(&text, 0.0, self.segments_max as usize);
        let parts: Vec<String> = parts.into_iter().map(str::to_owned).collect();
        if parts.is_empty() {
            return Some((donor.sequence, Vec::new()));
        }
        let embedded = self.embedder.embed_donor(parts).unwrap_or_else(|error| {
            tracing::warn!(%error, "a donor's text is not embedded");
            Vec::new()
        });
        let vectors = embedded.iter().filter_map(|values| Vector::new(values));
        Some((donor.sequence, vectors.collect()))
    }

    fn done(&self, _: &Arc<Shard>, _: u32, outcome: Result<(), RefusedVector>) {
        if let Err(error) = outcome {
            tracing::warn!(%error, "a donor's text is not found by its embeddings");
        }
    }
}

fn take(marks: &mut SlotSet, from: u32) -> Option<u32> {
    let slot = marks.next_from(from)?;
    marks.remove(slot);
    Some(slot)
}

impl Catalog {
    /// Whether a namespace has a sketch, and an embedding, that could be found. Waits for nobody
    /// but those who add or remove a namespace.
    #[must_use]
    pub fn has_vectors(&self, namespace: Option<NamespaceId>) -> (bool, bool) {
        let shard = namespace.and_then(|id| self.shard(id));
        shard.map_or((false, false), |shard| {
            let embeddings = shard.embeddings.get();
            let has_embedding = embeddings.is_some_and(|kept| !kept.is_empty());
            (!shard.sketches.is_empty(), has_embedding)
        })
    }

    /// Donors whose embeddings are to be made or removed.
    #[must_use]
    pub fn embeddings_behind(&self) -> u64 {
        let behind = |shard: &Arc<Shard>| shard.unembedded.lock().len() as u64;
        self.shards().iter().map(behind).sum()
    }

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
