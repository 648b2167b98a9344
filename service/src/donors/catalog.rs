//! Every donor that can be found: one shard per namespace, written by one thread, read by all.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use kvatlas_events::event::EngineHash;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{
    gate::Gates,
    ids::Ids,
    index::{DonorIndex, Prepared, SeedKeys},
    names::Names,
    namespace::{Namespace, NamespaceId},
    neighbours::{Neighbours, Shape, indexer::Bell, pending::SlotSet},
    owners::{Owner, Owners},
    record::Settings,
    residents::{self, Residents},
    search::Scratch,
    slots::Slots,
    vocabulary::{Medium, Mode},
};
use crate::{
    leases::{Claim, Sighting},
    store::log::PlaceCell,
};

/// Most namespaces at a time.
pub const NAMESPACES_MAX: usize = 10_000;
/// Most idle scratch buffers that are kept for the next search.
const SCRATCHES_MAX: usize = 64;

/// One registered prompt whose captured tokens have readable KV.
#[derive(Debug)]
pub struct Donor {
    pub id: Box<str>,
    pub owner: Arc<Owner>,
    pub owner_generation: u64,
    /// The service's restart counter when it was registered.
    pub epoch: u64,
    /// Order of registration: the higher, the fresher.
    pub sequence: u64,
    pub captured_tokens: u32,
    pub exact_tokens: u32,
    pub medium: Medium,
    /// Shared by all donors of the store.
    pub store_id: Arc<str>,
    pub source_request_id: Box<str>,
    /// Where its record lies in the log.
    pub place: PlaceCell,
    /// Whether that record has a text.
    pub has_text: bool,
    /// What leases of it are counted on, and what makes them stale.
    pub claim: Arc<Claim>,
    /// When it was last hit, by [`Catalog::tick`].
    pub last_hit: AtomicU64,
}

impl Donor {
    /// Why no lease may be given; nothing where one may: its owner lives in the same generation,
    /// and of what lies on a device some is there for sure, by `seen`.
    #[must_use]
    pub fn unleasable(&self, now_ms: u64, seen: Option<Sighting>) -> Option<&'static str> {
        if !self.owner.life.is_live(self.owner_generation, now_ms) {
            return Some("the donor's owner is not announced in its generation");
        }
        seen.and_then(residents::doubt)
    }

    /// What is known of it where it lies on a device; nothing of what lies elsewhere.
    #[must_use]
    pub fn sight(&self) -> Option<Sighting> {
        (self.medium == Medium::Device).then(|| Sighting::take(&self.claim, &self.owner.life))
    }
}

/// The donors of one namespace.
#[derive(Debug)]
pub struct Shard {
    pub id: NamespaceId,
    pub namespace: Namespace,
    pub settings: RwLock<Settings>,
    /// Sketches of the donors' tokens, made behind their registration.
    pub sketches: Neighbours,
    /// Embeddings of the donors' texts, once there are any.
    pub embeddings: OnceLock<Neighbours>,
    /// Slots whose sketch, or whose embeddings, are not up to date. Marked under `donors`' lock.
    pub unsketched: Mutex<SlotSet>,
    pub unembedded: Mutex<SlotSet>,
    donors: RwLock<ShardDonors>,
}

/// What a search reads under the shard's lock.
#[derive(Debug, Default)]
pub struct ShardDonors {
    pub index: DonorIndex,
    slots: Slots<Arc<Donor>>,
    ids: Ids,
    tokens: u64,
}

impl ShardDonors {
    /// The donor in a slot that the index returned.
    #[must_use]
    pub fn at(&self, slot: u32) -> Option<&Arc<Donor>> {
        self.slots.get(slot)
    }

    #[must_use]
    pub fn by_id(&self, donor_id: &str) -> Option<&Arc<Donor>> {
        let has_id = |slot| self.at(slot).is_some_and(|donor| *donor.id == *donor_id);
        self.at(self.ids.find(donor_id, has_id)?)
    }

    fn tokens_of(&self, donor_id: &str) -> Option<Vec<u32>> {
        let has_id = |slot| self.at(slot).is_some_and(|donor| *donor.id == *donor_id);
        let slot = self.ids.find(donor_id, has_id)?;
        let mut tokens = Vec::new();
        self.index.tokens(slot)?.unpack_into(&mut tokens);
        Some(tokens)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Donor>> {
        self.slots.iter()
    }

    fn take(&mut self, donor_id: &str, seeds: &SeedKeys) -> Option<(u32, Arc<Donor>)> {
        let slots = &self.slots;
        let has_id = |slot| slots.get(slot).is_some_and(|donor| *donor.id == *donor_id);
        let slot = self.ids.remove(donor_id, has_id)?;
        self.index.remove(slot, seeds);
        let donor = self.slots.take(slot)?;
        self.tokens -= u64::from(donor.captured_tokens);
        Some((slot, donor))
    }

    fn put(&mut self, donor: &Arc<Donor>, prepared: &Prepared) -> u32 {
        self.tokens += u64::from(donor.captured_tokens);
        let slot = self.slots.put(Arc::clone(donor));
        self.index.insert(slot, prepared);
        self.ids.insert(&donor.id, slot);
        slot
    }
}

impl Shard {
    #[must_use]
    pub fn new(namespace: Namespace, settings: Settings) -> Shard {
        Shard {
            id: namespace.id(),
            namespace,
            settings: RwLock::new(settings),
            sketches: Neighbours::new(Shape::SKETCH),
            embeddings: OnceLock::new(),
            unsketched: Mutex::default(),
            unembedded: Mutex::default(),
            donors: RwLock::default(),
        }
    }

    // What is in the slot has changed, so that its vectors are to be made again.
    fn mark(&self, slot: u32, donor: &Donor) {
        self.unsketched.lock().insert(slot);
        if donor.has_text {
            self.unembedded.lock().insert(slot);
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, ShardDonors> {
        self.donors.read()
    }

    // Only one thread changes donors: what it reads here still holds when it writes.
    fn seeds_of(&self, donor_id: &str) -> Option<SeedKeys> {
        let tokens = self.read().tokens_of(donor_id)?;
        let seeds = SeedKeys::of(&tokens);
        self.read().index.read_ahead(&seeds);
        Some(seeds)
    }
}

/// What the server was started with; settings override it.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    pub mode: Mode,
    /// True when the mode was given at the start: then one of an earlier run does not apply.
    pub mode_is_given: bool,
    pub gates: Gates,
}

/// Where a donor became searchable, and whose place it took.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) slot: u32,
    pub(super) replaced: Option<Arc<Donor>>,
}

/// All shards, all owners, and the server's own settings.
#[derive(Debug)]
pub struct Catalog {
    pub owners: Owners,
    /// Which donors in device memory are there.
    pub residents: Residents,
    pub(super) names: Names,
    pub epoch: u64,
    defaults: Defaults,
    settings: RwLock<Settings>,
    shards: RwLock<HashMap<NamespaceId, Arc<Shard>>>,
    donors: AtomicU64,
    tokens: AtomicU64,
    clock: AtomicU64,
    scratches: Mutex<Vec<Scratch>>,
    /// Wake those who make vectors.
    pub sketch_bell: Bell<NamespaceId>,
    pub embedding_bell: Bell<NamespaceId>,
}

impl Catalog {
    #[must_use]
    pub fn new(defaults: Defaults, epoch: u64) -> Catalog {
        Catalog {
            owners: Owners::default(),
            residents: Residents::default(),
            names: Names::default(),
            epoch,
            defaults,
            settings: RwLock::default(),
            shards: RwLock::default(),
            donors: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            scratches: Mutex::default(),
            sketch_bell: Bell::default(),
            embedding_bell: Bell::default(),
        }
    }

    #[must_use]
    pub fn shard(&self, id: NamespaceId) -> Option<Arc<Shard>> {
        self.shards.read().get(&id).map(Arc::clone)
    }

    /// Every shard, in the order of their ids.
    #[must_use]
    pub fn shards(&self) -> Vec<Arc<Shard>> {
        let mut shards: Vec<_> = self.shards.read().values().map(Arc::clone).collect();
        shards.sort_unstable_by_key(|shard| shard.id);
        shards
    }

    #[must_use]
    pub fn namespaces(&self) -> usize {
        self.shards.read().len()
    }

    #[must_use]
    pub fn donors(&self) -> u64 {
        self.donors.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// The mode and the thresholds that hold in a namespace, or for the server.
    #[must_use]
    pub fn rules(&self, shard: Option<&Shard>) -> (Mode, Gates) {
        let server = *self.settings.read();
        let mode = server.mode.unwrap_or(self.defaults.mode);
        let gates = server.gates.over(self.defaults.gates);
        match shard {
            None => (mode, gates),
            Some(shard) => {
                let own = *shard.settings.read();
                (own.mode.unwrap_or(mode), own.gates.over(gates))
            }
        }
    }

    #[must_use]
    pub fn settings(&self) -> Settings {
        *self.settings.read()
    }

    /// Takes over what an earlier run was told, unless this one was told otherwise.
    pub(super) fn restore_settings(&self, mut settings: Settings) {
        if self.defaults.mode_is_given {
            settings.mode = None;
        }
        self.set_settings(settings);
    }

    pub(super) fn set_settings(&self, settings: Settings) {
        *self.settings.write() = settings;
    }

    /// An ever rising number: what was hit later has the higher one.
    pub fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that a donor was nominated, so that it is evicted later than what was not.
    pub fn hit(&self, donor: &Donor) {
        donor.last_hit.store(self.tick(), Ordering::Relaxed);
    }

    /// Runs `search` with a scratch buffer that is kept for the next one.
    pub fn with_scratch<T>(&self, search: impl FnOnce(&mut Scratch) -> T) -> T {
        let kept = self.scratches.lock().pop();
        let mut scratch = kept.unwrap_or_default();
        let found = search(&mut scratch);
        let mut scratches = self.scratches.lock();
        if scratches.len() < SCRATCHES_MAX {
            scratches.push(scratch);
        }
        found
    }

    pub(super) fn add_shard(&self, shard: Arc<Shard>) {
        self.shards.write().insert(shard.id, shard);
    }

    pub(super) fn remove_shard(&self, id: NamespaceId) {
        self.shards.write().remove(&id);
        self.sketch_bell.forget(id);
        self.embedding_bell.forget(id);
    }

    /// Starts the clock after what was read from the disk.
    pub(super) fn advance_clock(&self, past: u64) {
        self.clock
            .fetch_max(past.saturating_add(1), Ordering::Relaxed);
    }

    /// Makes a donor searchable in the place of one of the same id, whose leases become stale.
    pub(super) fn publish(
        &self,
        shard: &Arc<Shard>,
        donor: &Arc<Donor>,
        prepared: &Prepared,
        block_names: Vec<EngineHash>,
    ) -> Published {
        let (owner, tokens) = (Arc::clone(&donor.owner), u64::from(donor.captured_tokens));
        let old_seeds = shard.seeds_of(&donor.id);
        shard.read().index.read_ahead(&prepared.seeds);
        let (slot, replaced) = {
            let mut donors = shard.donors.write();
            let old = old_seeds.and_then(|seeds| donors.take(&donor.id, &seeds));
            let replaced = old.map(|(slot, old)| {
                shard.mark(slot, &old);
                old
            });
            let slot = donors.put(donor, prepared);
            shard.mark(slot, donor);
            give_way(donors);
            (slot, replaced)
        };
        self.ring(shard);
        self.residents.tie(shard, donor, slot, block_names);
        owner.donors.fetch_add(1, Ordering::Relaxed);
        self.donors.fetch_add(1, Ordering::Relaxed);
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
        if let Some(old) = &replaced {
            self.retire(old);
        }
        Published { slot, replaced }
    }

    /// Takes a donor out of the search; its leases become stale.
    pub(super) fn unpublish(&self, shard: &Shard, donor_id: &str) -> Option<Arc<Donor>> {
        let seeds = shard.seeds_of(donor_id)?;
        let donor = {
            let mut donors = shard.donors.write();
            let (slot, donor) = donors.take(donor_id, &seeds)?;
            shard.mark(slot, &donor);
            give_way(donors);
            donor
        };
        self.ring(shard);
        self.retire(&donor);
        Some(donor)
    }

    fn ring(&self, shard: &Shard) {
        self.sketch_bell.ring(shard.id);
        if !shard.unembedded.lock().is_empty() {
            self.embedding_bell.ring(shard.id);
        }
    }

    fn retire(&self, donor: &Donor) {
        donor.claim.retire();
        residents::part(donor);
        donor.owner.donors.fetch_sub(1, Ordering::Relaxed);
        self.donors.fetch_sub(1, Ordering::Relaxed);
        self.tokens
            .fetch_sub(u64::from(donor.captured_tokens), Ordering::Relaxed);
    }
}

// The writer comes back for its next donor at once, before a reader that waits has woken up: it
// would wait for many donors, not for one.
fn give_way(donors: RwLockWriteGuard<'_, ShardDonors>) {
    RwLockWriteGuard::unlock_fair(donors);
}
