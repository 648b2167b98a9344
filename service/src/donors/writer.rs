//! The one thread that changes the catalog: store first, then search, then the acknowledgement.

use std::{collections::HashSet, sync::Arc};

use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{
    catalog::{Catalog, Defaults, Donor, NAMESPACES_MAX, Shard},
    evict::Eviction,
    index::{Prepared, prepare},
    load,
    namespace::{Namespace, NamespaceId},
    owners::{Owner, OwnerKey, OwnerRefusal},
    record::{DonorRecord, NamespaceRecord, Settings, donor_key, medium_to_number},
    vocabulary::Medium,
};
use crate::{
    leases::Claim,
    store::{Change, Store, StoreError, Table},
};

/// Writes that may wait at a time.
pub const QUEUE_DEPTH_MAX: usize = 4096;
/// Tokens of all writes that may wait at a time.
pub const QUEUED_TOKENS_MAX: u32 = 32 << 20;
/// Writes that one commit makes durable.
const BATCH_MAX: usize = 512;
/// Donors whose removal one commit makes durable.
const REMOVAL_BATCH_MAX: usize = 4096;
/// Where the server's own settings lie in the store.
pub(super) const SETTINGS_KEY: &[u8] = b"settings";

/// How many donors and tokens may be kept.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    pub donors_max: u64,
    pub tokens_max: u64,
}

/// A validated registration.
#[derive(Debug)]
pub struct NewDonor {
    pub donor_id: Box<str>,
    pub namespace: NamespaceName,
    pub owner: OwnerKey,
    pub owner_generation: u64,
    /// The captured tokens alone.
    pub captured: Vec<u32>,
    pub exact_tokens: u32,
    pub medium: Medium,
    pub store_id: Box<str>,
    pub source_request_id: Box<str>,
    pub now_ms: u64,
}

/// A namespace in full, or by an id that an answer gave.
#[derive(Debug, Clone)]
pub enum NamespaceName {
    Full(Box<Namespace>),
    Id(NamespaceId),
}

/// What became of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    pub admission: Admission,
    pub namespace: NamespaceId,
    pub evicted: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    Added,
    Replaced,
    /// Its tokens are the beginning of this donor of the same owner.
    Covered(Box<str>),
    NothingCaptured,
}

/// Which donors are to go.
#[derive(Debug)]
pub enum Removal {
    Ids(NamespaceName, Vec<String>),
    Owner(OwnerKey),
    /// An owner's donors of generations below this one.
    OlderThan(OwnerKey, u64),
    Namespace(NamespaceName),
}

/// Why a write was refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WriteRefusal {
    #[error("namespace_id is not known here: send the whole namespace")]
    UnknownNamespace,
    #[error(transparent)]
    Owner(#[from] OwnerRefusal),
    #[error("tokens: {tokens} captured tokens, the server keeps at most {max} over all donors")]
    TooManyTokens { tokens: u64, max: u64 },
    #[error("every donor that could make room is leased")]
    AllLeased,
    #[error("{NAMESPACES_MAX} namespaces hold donors or settings, no more can be")]
    TooManyNamespaces,
    #[error("the write queue is full")]
    QueueFull,
    #[error("the store failed: {0}")]
    Store(Arc<StoreError>),
    #[error("the server is stopping")]
    Stopping,
}

impl From<StoreError> for WriteRefusal {
    fn from(error: StoreError) -> WriteRefusal {
        WriteRefusal::Store(Arc::new(error))
    }
}

type Reply<T> = oneshot::Sender<Result<T, WriteRefusal>>;

/// A write on its way, and the place of its answer.
#[derive(Debug)]
enum Command {
    Register(Box<NewDonor>, Reply<Registered>),
    Remove(Removal, Reply<u64>),
    Settings(
        Option<NamespaceName>,
        Box<dyn SettingsChange>,
        Reply<Settings>,
    ),
}

/// A change of settings, made by the writer on what holds then.
pub trait SettingsChange: FnOnce(Settings) -> Settings + Send {}
impl<F: FnOnce(Settings) -> Settings + Send> SettingsChange for F {}
impl std::fmt::Debug for dyn SettingsChange {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("SettingsChange")
    }
}

#[derive(Debug)]
struct Queued {
    command: Command,
    _tokens: Option<OwnedSemaphorePermit>,
}

/// The way to the writer thread.
#[derive(Debug, Clone)]
pub struct Writes {
    queue: mpsc::Sender<Queued>,
    tokens: Arc<Semaphore>,
}

/// What is still to come of a registration that was queued.
pub type PendingRegistration = oneshot::Receiver<Result<Registered, WriteRefusal>>;

impl Writes {
    /// Queues a registration, or refuses at once.
    pub fn try_register(&self, donor: NewDonor) -> Result<PendingRegistration, WriteRefusal> {
        let permits = permits(&donor);
        let tokens = Arc::clone(&self.tokens)
            .try_acquire_many_owned(permits)
            .map_err(|_| WriteRefusal::QueueFull)?;
        let (reply, pending) = oneshot::channel();
        self.try_send(Command::Register(Box::new(donor), reply), Some(tokens))?;
        Ok(pending)
    }

    /// Queues a registration, waiting for room: a stream is slowed down rather than refused.
    pub async fn register_when_free(
        &self,
        donor: NewDonor,
    ) -> Result<PendingRegistration, WriteRefusal> {
        let tokens = Arc::clone(&self.tokens)
            .acquire_many_owned(permits(&donor))
            .await
            .map_err(|_| WriteRefusal::Stopping)?;
        let (reply, pending) = oneshot::channel();
        let command = Command::Register(Box::new(donor), reply);
        self.queue
            .send(Queued {
                command,
                _tokens: Some(tokens),
            })
            .await
            .map_err(|_| WriteRefusal::Stopping)?;
        Ok(pending)
    }

    /// Removes donors; returns how many went.
    pub async fn remove(&self, removal: Removal) -> Result<u64, WriteRefusal> {
        let (reply, pending) = oneshot::channel();
        self.try_send(Command::Remove(removal, reply), None)?;
        pending.await.map_err(|_| WriteRefusal::Stopping)?
    }

    /// Changes the settings of a namespace, or of the server; returns what holds then.
    pub async fn set(
        &self,
        namespace: Option<NamespaceName>,
        change: impl SettingsChange + 'static,
    ) -> Result<Settings, WriteRefusal> {
        let (reply, pending) = oneshot::channel();
        self.try_send(Command::Settings(namespace, Box::new(change), reply), None)?;
        pending.await.map_err(|_| WriteRefusal::Stopping)?
    }

    /// Writes that wait now.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    fn try_send(
        &self,
        command: Command,
        tokens: Option<OwnedSemaphorePermit>,
    ) -> Result<(), WriteRefusal> {
        self.queue
            .try_send(Queued {
                command,
                _tokens: tokens,
            })
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => WriteRefusal::QueueFull,
                mpsc::error::TrySendError::Closed(_) => WriteRefusal::Stopping,
            })
    }
}

/// Owns every change of the catalog.
#[derive(Debug)]
pub struct Writer {
    store: Arc<Store>,
    catalog: Arc<Catalog>,
    capacity: Capacity,
    eviction: Eviction,
    queue: mpsc::Receiver<Queued>,
}

/// What was read from the disk at the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loaded {
    pub donors: u64,
    pub namespaces: u64,
    /// Records that could not be read and were left out.
    pub damaged: u64,
}

/// A catalog read from the disk, and what goes with it.
#[derive(Debug)]
pub struct Opened {
    pub writer: Writer,
    pub writes: Writes,
    pub catalog: Arc<Catalog>,
    pub loaded: Loaded,
}

impl Writer {
    /// Reads the catalog from the store; the writer is to be run on a thread of its own.
    pub fn open(
        store: Arc<Store>,
        defaults: Defaults,
        capacity: Capacity,
    ) -> Result<Opened, StoreError> {
        let catalog = Arc::new(Catalog::new(defaults, store.epoch()));
        let mut eviction = Eviction::default();
        let loaded = load::load(&store, &catalog, &mut eviction)?;
        let (sender, queue) = mpsc::channel(QUEUE_DEPTH_MAX);
        let tokens = Arc::new(Semaphore::new(QUEUED_TOKENS_MAX as usize));
        let writer = Writer {
            store,
            catalog: Arc::clone(&catalog),
            capacity,
            eviction,
            queue,
        };
        Ok((
            writer,
            Writes {
                queue: sender,
                tokens,
            },
            catalog,
            loaded,
        ))
    }

    /// Works until every [`Writes`] is gone.
    pub fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while let Some(first) = self.queue.blocking_recv() {
            batch.push(first);
            while batch.len() < BATCH_MAX {
                let Ok(next) = self.queue.try_recv() else {
                    break;
                };
                batch.push(next);
            }
            self.carry_out(&mut batch);
        }
    }

    fn carry_out(&mut self, batch: &mut Vec<Queued>) {
        let mut stage = Stage::default();
        // The permits go with the batch: what is queued stays bounded until it is durable.
        for Queued { command, _tokens } in batch.drain(..) {
            match command {
                Command::Register(donor, reply) => self.register(*donor, reply, &mut stage),
                Command::Remove(removal, reply) => {
                    self.flush(&mut stage);
                    answer(reply, self.remove(&removal));
                }
                Command::Settings(namespace, change, reply) => {
                    self.flush(&mut stage);
                    answer(reply, self.set(namespace, change));
                }
            }
        }
        self.flush(&mut stage);
    }

    fn register(&mut self, donor: NewDonor, reply: Reply<Registered>, stage: &mut Stage) {
        match self.stage(donor, stage) {
            Ok(registered) => stage.replies.push((reply, registered)),
            Err(refusal) => answer(reply, Err(refusal)),
        }
    }

    // Decides on one registration and notes what is to be written and published.
    fn stage(&mut self, new: NewDonor, stage: &mut Stage) -> Result<Registered, WriteRefusal> {
        let owner = self.catalog.owners.get_or_add(&new.owner, new.now_ms)?;
        let announced = owner.life.generation();
        if new.owner_generation < announced {
            let given = new.owner_generation;
            return Err(OwnerRefusal::OldGeneration { given, announced }.into());
        }
        let shard = self.shard(&new.namespace, stage)?;
        let key = donor_key(shard.id, &new.donor_id);
        if stage.keys.contains(&key) {
            self.flush(stage);
        }
        let registered = |admission, evicted| Registered {
            admission,
            namespace: shard.id,
            evicted,
        };
        if new.captured.is_empty() {
            self.drop_one(&shard, &new.donor_id, key, stage);
            return Ok(registered(Admission::NothingCaptured, 0));
        }
        let prepared = prepare(&new.captured);
        if let Some(covering) = self.covering(&shard, &new, &prepared, stage) {
            self.drop_one(&shard, &new.donor_id, key, stage);
            return Ok(registered(Admission::Covered(covering), 0));
        }
        let evicted = self.make_room(&shard, &new, stage)?;
        let replaces = shard.read().by_id(&new.donor_id).is_some();
        let sequence = self.store.next_sequence()?;
        stage.puts.push((
            Table::Donors,
            key.clone(),
            encode(&new, self.catalog.epoch, sequence),
        ));
        stage.keys.insert(key);
        stage.tokens += new.captured.len() as u64;
        stage.donors.push(Staged {
            shard: Arc::clone(&shard),
            donor: Arc::new(self.donor(new, owner, sequence)),
            prepared,
        });
        let admission = if replaces {
            Admission::Replaced
        } else {
            Admission::Added
        };
        Ok(registered(admission, evicted))
    }

    // A live donor of the same owner that begins with all of the new one's tokens, is as exact and
    // lies in the same place: the new one could serve nobody whom that one does not serve.
    fn covering(
        &self,
        shard: &Arc<Shard>,
        new: &NewDonor,
        prepared: &Prepared,
        stage: &Stage,
    ) -> Option<Box<str>> {
        // A device donor of an earlier epoch cannot be leased: it covers nobody.
        let covers = |donor: &Donor| {
            donor.owner.key == new.owner
                && donor.owner_generation == new.owner_generation
                && donor.medium == new.medium
                && donor.store_id == new.store_id
                && donor.exact_tokens >= new.exact_tokens
                && donor.id != new.donor_id
                && (donor.medium != Medium::Device || donor.epoch == self.catalog.epoch)
        };
        let staged = stage.donors.iter().find(|staged| {
            Arc::ptr_eq(&staged.shard, shard)
                && covers(&staged.donor)
                && staged.prepared.tokens.starts_with(&new.captured)
        });
        if let Some(staged) = staged {
            return Some(staged.donor.id.clone());
        }
        let donors = shard.read();
        let is_candidate = |slot| donors.at(slot).is_some_and(|donor| covers(donor));
        let slot = donors
            .index
            .covering(prepared, &new.captured, &is_candidate)?;
        donors.at(slot).map(|donor| donor.id.clone())
    }

    fn donor(&self, new: NewDonor, owner: Arc<Owner>, sequence: u64) -> Donor {
        Donor {
            id: new.donor_id,
            owner,
            owner_generation: new.owner_generation,
            epoch: self.catalog.epoch,
            sequence,
            captured_tokens: u32::try_from(new.captured.len()).unwrap_or(u32::MAX),
            exact_tokens: new.exact_tokens,
            medium: new.medium,
            store_id: new.store_id,
            source_request_id: new.source_request_id,
            claim: Arc::new(Claim::default()),
            last_hit: self.catalog.tick().into(),
        }
    }

    // An older registration under the id serves nobody any more.
    fn drop_one(&mut self, shard: &Shard, donor_id: &str, key: Vec<u8>, stage: &mut Stage) {
        if self.catalog.unpublish(shard, donor_id).is_some() {
            stage.deletes.push(key);
        }
    }

    fn shard(&self, name: &NamespaceName, stage: &mut Stage) -> Result<Arc<Shard>, WriteRefusal> {
        let id = match name {
            NamespaceName::Id(id) => *id,
            NamespaceName::Full(namespace) => namespace.id(),
        };
        let staged = || {
            stage
                .shards
                .iter()
                .find(|shard| shard.id == id)
                .map(Arc::clone)
        };
        if let Some(shard) = self.catalog.shard(id).or_else(staged) {
            return Ok(shard);
        }
        let NamespaceName::Full(namespace) = name else {
            return Err(WriteRefusal::UnknownNamespace);
        };
        if self.catalog.namespaces() + stage.shards.len() >= NAMESPACES_MAX {
            self.forget_empty_namespaces(stage);
            if self.catalog.namespaces() + stage.shards.len() >= NAMESPACES_MAX {
                return Err(WriteRefusal::TooManyNamespaces);
            }
        }
        let settings = Settings::default();
        let record = NamespaceRecord::new(namespace, &settings).encode_to_vec();
        stage.puts.push((Table::Namespaces, id.0.to_vec(), record));
        let shard = Arc::new(Shard::new((**namespace).clone(), settings));
        stage.shards.push(Arc::clone(&shard));
        Ok(shard)
    }

    fn forget_empty_namespaces(&self, stage: &mut Stage) {
        for shard in self.catalog.shards() {
            let in_use = stage
                .donors
                .iter()
                .any(|staged| staged.shard.id == shard.id);
            let plain = *shard.settings.read() == Settings::default();
            if plain && !in_use && shard.read().is_empty() {
                self.catalog.remove_shard(shard.id);
                stage.forgotten.push(shard.id);
            }
        }
    }

    // Evicts until the new donor fits, in the place of an older one under its id.
    fn make_room(
        &mut self,
        shard: &Shard,
        new: &NewDonor,
        stage: &mut Stage,
    ) -> Result<u32, WriteRefusal> {
        let Capacity {
            donors_max,
            tokens_max,
        } = self.capacity;
        let tokens = new.captured.len() as u64;
        if tokens > tokens_max {
            return Err(WriteRefusal::TooManyTokens {
                tokens,
                max: tokens_max,
            });
        }
        let mut evicted = 0;
        loop {
            let replaced = shard.read().by_id(&new.donor_id).map(Arc::clone);
            let freed = replaced.map_or((0, 0), |old| (1, u64::from(old.captured_tokens)));
            let donors = self.catalog.donors() + stage.donors.len() as u64 - freed.0;
            let held = self.catalog.tokens() + stage.tokens - freed.1;
            if donors < donors_max.max(1) && held + tokens <= tokens_max {
                return Ok(evicted);
            }
            let Some((shard, donor)) = self.eviction.next() else {
                if stage.donors.is_empty() {
                    return Err(WriteRefusal::AllLeased);
                }
                // What is staged can be evicted too once it is published.
                self.flush(stage);
                continue;
            };
            self.catalog.unpublish(&shard, &donor.id);
            let key = donor_key(shard.id, &donor.id);
            // A staged record under the same key replaces this one: deleting would lose it.
            if !stage.keys.contains(&key) {
                stage.deletes.push(key);
            }
            evicted += 1;
        }
    }

    // Durable, then searchable, then acknowledged.
    fn flush(&mut self, stage: &mut Stage) {
        let Stage {
            puts,
            deletes,
            forgotten,
            shards,
            donors,
            replies,
            ..
        } = std::mem::take(stage);
        let written = self.write(&puts, &deletes, &forgotten);
        if let Err(error) = written {
            let refusal = WriteRefusal::from(error);
            for (reply, _) in replies {
                answer(reply, Err(refusal.clone()));
            }
            return;
        }
        for shard in shards {
            self.catalog.add_shard(shard);
        }
        for Staged {
            shard,
            donor,
            prepared,
        } in donors
        {
            self.catalog.publish(&shard, Arc::clone(&donor), &prepared);
            self.eviction.add(&shard, &donor);
        }
        self.eviction.compact(&self.catalog);
        for (reply, registered) in replies {
            answer(reply, Ok(registered));
        }
    }

    fn write(
        &self,
        puts: &[Put],
        deletes: &[Vec<u8>],
        forgotten: &[NamespaceId],
    ) -> Result<(), StoreError> {
        if puts.is_empty() && deletes.is_empty() && forgotten.is_empty() {
            return Ok(());
        }
        let mut changes = Vec::with_capacity(puts.len() + deletes.len() + forgotten.len());
        changes.extend(deletes.iter().map(|key| Change::Delete {
            table: Table::Donors,
            key,
        }));
        changes.extend(forgotten.iter().map(|id| Change::Delete {
            table: Table::Namespaces,
            key: &id.0,
        }));
        changes.extend(puts.iter().map(|(table, key, payload)| Change::Put {
            table: *table,
            key,
            payload,
        }));
        self.store.write(&changes)?;
        self.store.commit()
    }

    // Out of the search, then out of the store.
    fn remove(&mut self, removal: &Removal) -> Result<u64, WriteRefusal> {
        let mut keys = Vec::new();
        let mut take = |shard: &Shard, donor_id: &str| {
            if self.catalog.unpublish(shard, donor_id).is_some() {
                keys.push(donor_key(shard.id, donor_id));
            }
        };
        match removal {
            Removal::Ids(name, ids) => {
                let shard = self.known(name)?;
                ids.iter().for_each(|id| take(&shard, id));
            }
            Removal::Owner(owner) => {
                for (shard, donor) in self.matching(|donor| donor.owner.key == *owner) {
                    take(&shard, &donor.id);
                }
            }
            Removal::OlderThan(owner, generation) => {
                let older = |donor: &Donor| {
                    donor.owner.key == *owner && donor.owner_generation < *generation
                };
                for (shard, donor) in self.matching(older) {
                    take(&shard, &donor.id);
                }
            }
            Removal::Namespace(name) => {
                let shard = self.known(name)?;
                let donors: Vec<_> = shard.read().iter().map(Arc::clone).collect();
                donors.iter().for_each(|donor| take(&shard, &donor.id));
            }
        }
        for some in keys.chunks(REMOVAL_BATCH_MAX) {
            self.write(&[], some, &[])?;
        }
        self.eviction.compact(&self.catalog);
        Ok(keys.len() as u64)
    }

    fn known(&self, name: &NamespaceName) -> Result<Arc<Shard>, WriteRefusal> {
        let id = match name {
            NamespaceName::Id(id) => *id,
            NamespaceName::Full(namespace) => namespace.id(),
        };
        self.catalog.shard(id).ok_or(WriteRefusal::UnknownNamespace)
    }

    fn matching(&self, is_wanted: impl Fn(&Donor) -> bool) -> Vec<(Arc<Shard>, Arc<Donor>)> {
        let mut found = Vec::new();
        for shard in self.catalog.shards() {
            let donors = shard.read();
            let wanted = donors.iter().filter(|donor| is_wanted(donor));
            found.extend(wanted.map(|donor| (Arc::clone(&shard), Arc::clone(donor))));
        }
        found
    }

    fn set(
        &mut self,
        namespace: Option<NamespaceName>,
        change: Box<dyn SettingsChange>,
    ) -> Result<Settings, WriteRefusal> {
        let Some(name) = namespace else {
            let settings = change(self.catalog.settings());
            let record = settings.to_record().encode_to_vec();
            self.write(&[(Table::Meta, SETTINGS_KEY.to_vec(), record)], &[], &[])?;
            self.catalog.set_settings(settings);
            return Ok(settings);
        };
        let mut stage = Stage::default();
        let shard = self.shard(&name, &mut stage)?;
        let settings = change(*shard.settings.read());
        let record = NamespaceRecord::new(&shard.namespace, &settings).encode_to_vec();
        stage
            .puts
            .push((Table::Namespaces, shard.id.0.to_vec(), record));
        self.write(&stage.puts, &[], &stage.forgotten)?;
        *shard.settings.write() = settings;
        for shard in stage.shards {
            self.catalog.add_shard(shard);
        }
        Ok(settings)
    }
}

type Put = (Table, Vec<u8>, Vec<u8>);

/// What one commit will make durable, and what follows it.
#[derive(Debug, Default)]
struct Stage {
    puts: Vec<Put>,
    /// Keys of donors.
    deletes: Vec<Vec<u8>>,
    forgotten: Vec<NamespaceId>,
    /// Keys of the staged donors.
    keys: HashSet<Vec<u8>>,
    shards: Vec<Arc<Shard>>,
    donors: Vec<Staged>,
    tokens: u64,
    replies: Vec<(Reply<Registered>, Registered)>,
}

#[derive(Debug)]
struct Staged {
    shard: Arc<Shard>,
    donor: Arc<Donor>,
    prepared: Prepared,
}

fn encode(new: &NewDonor, epoch: u64, sequence: u64) -> Vec<u8> {
    DonorRecord {
        worker_id: new.owner.worker_id.to_string(),
        data_parallel_rank: new.owner.data_parallel_rank,
        owner_generation: new.owner_generation,
        exact_tokens: new.exact_tokens,
        medium: medium_to_number(new.medium),
        store_id: new.store_id.to_string(),
        source_request_id: new.source_request_id.to_string(),
        epoch,
        sequence,
        captured: new.captured.clone(),
    }
    .encode_to_vec()
}

fn permits(donor: &NewDonor) -> u32 {
    u32::try_from(donor.captured.len())
        .unwrap_or(u32::MAX)
        .clamp(1, QUEUED_TOKENS_MAX)
}

// A caller that has gone needs no answer.
fn answer<T>(reply: Reply<T>, result: Result<T, WriteRefusal>) {
    let _gone = reply.send(result);
}
