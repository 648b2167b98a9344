//! The service's own parts, put together as the server does, without its sockets.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use kvatlas::{
    donors::{
        answer::Answer,
        catalog::{Catalog, Defaults},
        find::{FindQuery, Finder},
        gate::{GateOverrides, Gates},
        owners::{Announced, OwnerKey, OwnerRefusal},
        repeats::Repeats,
        vocabulary::{Mode, Tier},
        writer::{Opened, Writer},
        writes::{Capacity, NewDonor, Registered, Removal, WriteRefusal, Writes},
    },
    events::{fleet::Fleet, pushed::Pushed},
    leases::{DonorLeases, LeaseState},
    store::Store,
};
use tokio::runtime::{Builder, Runtime};

use crate::content::{Prefix, SIZE, namespace};

pub(crate) const HOLDER: &str = "engine";
pub(crate) const STORE: &str = "store";
pub(crate) const LEASE_MS: u32 = 60_000;

pub(crate) struct Service {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) pushed: Arc<Pushed>,
    pub(crate) leases: DonorLeases,
    writes: Writes,
    repeats: Repeats,
    clock: Arc<AtomicU64>,
    runtime: Runtime,
}

/// Lets `act` work with a service over an empty folder.
pub(crate) fn run<T>(folder: &Path, act: impl FnOnce(&mut Service) -> T) -> T {
    let store = Arc::new(Store::open(folder).unwrap().0);
    let defaults = Defaults {
        mode: Mode::Materialize,
        mode_is_given: true,
        gates: Gates {
            min_prompt_tokens: 1,
            min_reuse_tokens: u32::try_from(SIZE).unwrap(),
            min_similarity: 0.0,
            min_reuse_ratio: 0.0,
            exact_prefix_skip_ratio: 1.0,
        },
    };
    let capacity = Capacity {
        donors_max: 1 << 10,
        tokens_max: 1 << 30,
    };
    let Opened {
        writer,
        writes,
        catalog,
        ..
    } = Writer::open(store, defaults, capacity).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| writer.run());
        let clock = Arc::new(AtomicU64::new(1_000));
        let shown = Arc::clone(&clock);
        let clock_ms = Box::new(move || shown.load(Ordering::Relaxed));
        let fleet = Arc::new(Fleet::new(Arc::clone(&catalog), clock_ms, 1));
        let mut service = Service {
            catalog,
            pushed: Arc::new(Pushed::new(Arc::clone(&fleet))),
            fleet,
            leases: DonorLeases::new(1, 1 << 12),
            writes,
            repeats: Repeats::new(16),
            clock,
            runtime: Builder::new_current_thread().build().unwrap(),
        };
        act(&mut service)
    })
}

impl Service {
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    pub(crate) fn pass_ms(&self, ms: u64) {
        self.clock.fetch_add(ms, Ordering::Relaxed);
    }

    pub(crate) fn register(&self, new: NewDonor) -> Result<Registered, WriteRefusal> {
        let pending = self.writes.try_register(new).unwrap();
        self.runtime.block_on(pending).unwrap()
    }

    pub(crate) fn remove(&self, removal: Removal) -> u64 {
        self.runtime.block_on(self.writes.remove(removal)).unwrap()
    }

    /// As the call does: what a newer generation leaves behind goes.
    pub(crate) fn announce(
        &self,
        key: &OwnerKey,
        generation: u64,
        until_ms: u64,
    ) -> Result<u64, OwnerRefusal> {
        let now_ms = self.now_ms();
        let owners = &self.catalog.owners;
        let (owner, announced) = owners.announce(key, generation, until_ms, now_ms)?;
        Ok(match announced {
            Announced::Renewed => 0,
            Announced::Began => {
                let removed = self.remove(Removal::OlderThan(key.clone(), generation));
                owner.swept_below.fetch_max(generation, Ordering::AcqRel);
                removed
            }
        })
    }

    pub(crate) fn find(&self, prompt: &Prefix, request_id: &str) -> Arc<Answer> {
        let finder = Finder {
            catalog: &self.catalog,
            leases: &self.leases,
            repeats: &self.repeats,
            clock_ns: &|| 0,
            now_ms: self.now_ms(),
            deadline_ns: 1,
        };
        let query = FindQuery {
            tokens: &prompt.tokens(0),
            exact_prefix_tokens: 0,
            request_id,
            holder: HOLDER,
            readable_store_ids: &[STORE.into()],
            gates: GateOverrides::default(),
            accept_spans: true,
            asynchronous_load: true,
            minimum_tier: Tier::Verified,
            explain: false,
            lease_ttl_ms: LEASE_MS,
            segment_donors_max: 0,
            neighbours_max: 0,
        };
        finder.find(&query, namespace(prompt.root).id())
    }

    pub(crate) fn is_valid(&self, lease: &[u8]) -> bool {
        let state = self.leases.validate(self.now_ms(), lease, Some(HOLDER));
        matches!(state, LeaseState::Valid { .. })
    }

    /// Answers that were given under a request's id hold their donors.
    pub(crate) fn forget_answers(&mut self) {
        self.repeats = Repeats::new(16);
    }
}
