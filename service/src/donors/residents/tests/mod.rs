//! Donors in device memory beside engines that store and remove: cases, random schedules, races.

mod cases;
mod random;

use std::sync::Arc;

use kvatlas_events::event::{self, EngineHash, Event, Kind, Removed, Stored};
use kvatlas_events::view::{Change, SourceId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ties::Counts;
use super::*;
use crate::donors::{
    answer::Answer,
    catalog::{Catalog, Defaults},
    find::{FindQuery, Finder},
    gate::{GateOverrides, Gates},
    index::prepare,
    owners::OwnerKey,
    record::Settings,
    repeats::Repeats,
    vocabulary::{Mode, Tier},
};
use crate::leases::{Claim, DonorLeases, LeaseState};
use crate::store::log::{Place, PlaceCell};

/// Tokens a block: enough for seeds in every two of them.
const SIZE: u32 = 64;
const NOW_MS: u64 = 1_000;
const GENERATION: u64 = 7;
const HOLDER: &str = "engine";

/// A prompt as choices, one a block: those that begin alike share their first blocks.
type Path = [u8];

fn tokens(path: &Path) -> Vec<u32> {
    let block = |(place, &choice): (u64, &u8)| {
        (0..u64::from(SIZE)).map(move |at| {
            let token = xxh3_64_with_seed(&[choice], place << 32 | at) % 50_021;
            u32::try_from(token).unwrap()
        })
    };
    (0..).zip(path).flat_map(block).collect()
}

/// What an engine calls the last block of a path.
fn name(engine: usize, path: &Path) -> EngineHash {
    EngineHash(xxh3_64_with_seed(path, engine as u64))
}

fn names(engine: usize, path: &Path) -> Vec<EngineHash> {
    (1..=path.len())
        .map(|end| name(engine, &path[..end]))
        .collect()
}

/// The blocks of a path from `from` on.
fn stored(engine: usize, path: &Path, from: usize) -> Event<'static> {
    Event::Stored(Stored {
        hashes: names(engine, path).split_off(from),
        parent: (from > 0).then(|| name(engine, &path[..from])),
        tokens: tokens(path).split_off(from * SIZE as usize),
        bigram_end: None,
        block_size: SIZE,
        medium: event::Medium::Device,
        adapter: None,
        salt: None,
        extra: Vec::new(),
        group: None,
        kind: Kind::Absent,
        lookahead: Vec::new(),
    })
}

/// The last block of a path.
fn removed(engine: usize, path: &Path) -> Event<'static> {
    Event::Removed(Removed {
        hashes: vec![name(engine, path)],
        medium: event::Medium::Device,
        group: None,
    })
}

fn namespace() -> Namespace {
    Namespace {
        model: "model".into(),
        block_size: SIZE,
        adapter: "none".into(),
        tenant_key: "semblend:tenant:v1:none".into(),
        ..Namespace::default()
    }
}

/// A catalog of one namespace, leases, and engines whose owners live.
struct World {
    catalog: Catalog,
    shard: Arc<Shard>,
    leases: DonorLeases,
    repeats: Repeats,
    owners: Vec<Arc<Owner>>,
    sources: Vec<Option<SourceId>>,
    registered: u64,
}

/// A registration, in device memory unless said otherwise.
struct New<'a> {
    id: &'a str,
    owner: usize,
    captured: Vec<u32>,
    names: Vec<EngineHash>,
    medium: Medium,
}

impl<'a> New<'a> {
    fn of(id: &'a str, path: &Path) -> Self {
        Self {
            id,
            owner: 0,
            captured: tokens(path),
            names: Vec::new(),
            medium: Medium::Device,
        }
    }
}

impl World {
    /// Engines that are not followed yet.
    fn new(engines: usize, mode: Mode, namespace: Namespace) -> Self {
        let defaults = Defaults {
            mode,
            mode_is_given: true,
            gates: Gates {
                min_prompt_tokens: 1,
                min_reuse_tokens: SIZE,
                min_similarity: 0.0,
                min_reuse_ratio: 0.0,
                exact_prefix_skip_ratio: 1.0,
            },
        };
        let catalog = Catalog::new(defaults, 1);
        let shard = Arc::new(Shard::new(namespace, Settings::default()));
        catalog.add_shard(Arc::clone(&shard));
        let owner = |number: usize| {
            let key = OwnerKey {
                worker_id: format!("worker-{number}").into(),
                data_parallel_rank: 0,
            };
            let announced = catalog.owners.announce(&key, GENERATION, u64::MAX, NOW_MS);
            announced.unwrap().0
        };
        Self {
            owners: (0..engines).map(owner).collect(),
            sources: vec![None; engines],
            leases: DonorLeases::new(1, 1_000),
            repeats: Repeats::new(16),
            shard,
            catalog,
            registered: 0,
        }
    }

    /// One engine, followed and exact.
    fn exact() -> Self {
        let mut world = Self::new(1, Mode::Materialize, namespace());
        world.follow(0, Some(&namespace()));
        world.set_exact(0, true);
        world
    }

    fn follow(&mut self, engine: usize, namespace: Option<&Namespace>) {
        let residents = &self.catalog.residents;
        let name = residents.engine_namespace(namespace);
        let source = residents.view.add(name).unwrap();
        residents.follow(&self.owners[engine], source, name);
        self.sources[engine] = Some(source);
    }

    fn set_exact(&self, engine: usize, is_exact: bool) {
        if let Some(source) = self.sources[engine] {
            self.catalog.residents.set_exact(source, is_exact);
        }
    }

    fn forget(&mut self, engine: usize) {
        if let Some(source) = self.sources[engine].take() {
            let residents = &self.catalog.residents;
            residents.view.remove(source, &mut Vec::new());
            residents.forget(source);
        }
    }

    fn send(&self, engine: usize, events: &[Event<'_>]) {
        self.tell(engine, |view, source, changes| {
            view.apply(source, events, changes);
        });
    }

    fn reset(&self, engine: usize) {
        self.tell(engine, |view, source, changes| {
            view.reset(source, changes);
        });
    }

    fn tell(&self, engine: usize, act: impl FnOnce(&View, SourceId, &mut Vec<Change>)) {
        if let Some(source) = self.sources[engine] {
            let residents = &self.catalog.residents;
            let mut changes = Vec::new();
            act(&residents.view, source, &mut changes);
            residents.changed(source, &changes);
        }
    }

    fn register(&mut self, new: New<'_>) -> Arc<Donor> {
        self.registered += 1;
        self.register_as(new, self.registered)
    }

    fn register_as(&self, new: New<'_>, sequence: u64) -> Arc<Donor> {
        let captured = u32::try_from(new.captured.len()).unwrap();
        let donor = Arc::new(Donor {
            id: new.id.into(),
            owner: Arc::clone(&self.owners[new.owner]),
            owner_generation: GENERATION,
            epoch: 1,
            sequence,
            captured_tokens: captured,
            exact_tokens: captured,
            medium: new.medium,
            store_id: "store".into(),
            source_request_id: "".into(),
            place: PlaceCell::new(Place::default()),
            has_text: false,
            claim: Arc::new(Claim::default()),
            last_hit: 0.into(),
        });
        let prepared = prepare(&new.captured);
        self.catalog
            .publish(&self.shard, &donor, &prepared, new.names);
        donor
    }

    fn find(&self, target: &[u32]) -> Arc<Answer> {
        self.find_segments(target, 0)
    }

    fn find_segments(&self, target: &[u32], segment_donors_max: usize) -> Arc<Answer> {
        let finder = Finder {
            catalog: &self.catalog,
            leases: &self.leases,
            repeats: &self.repeats,
            clock_ns: &|| 0,
            now_ms: NOW_MS,
            deadline_ns: 1,
        };
        let query = FindQuery {
            tokens: target,
            exact_prefix_tokens: 0,
            request_id: "",
            holder: HOLDER,
            readable_store_ids: &["store".into()],
            gates: GateOverrides::default(),
            accept_spans: true,
            asynchronous_load: true,
            minimum_tier: Tier::Verified,
            explain: true,
            lease_ttl_ms: 60_000,
            segment_donors_max,
            neighbours_max: 0,
        };
        finder.find(&query, self.shard.id)
    }

    fn is_valid(&self, answer: &Answer) -> bool {
        let lease = answer.lease.unwrap();
        let state = self
            .leases
            .validate(NOW_MS, lease.id.as_ref(), Some(HOLDER));
        matches!(state, LeaseState::Valid { .. })
    }

    fn visits(&self, engine: usize) -> usize {
        self.owners[engine].ties.lock().visits()
    }

    fn counts(&self, engine: usize) -> Counts {
        self.owners[engine].ties.lock().counts()
    }
}
