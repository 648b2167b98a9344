//! The one thread that changes the catalog: store first, then search, then the acknowledgement.

use std::{collections::HashSet, sync::Arc};

use prost::Message;
use tokio::sync::mpsc;

use super::{
    catalog::{Catalog, Defaults, Donor, NAMESPACES_MAX, Shard},
    evict::Eviction,
    index::{Prepared, prepare},
    load,
    namespace::NamespaceId,
    owners::{Owner, OwnerRefusal},
    record::{DonorRecord, NamespaceRecord, Settings, donor_key, medium_to_number},
    vocabulary::Medium,
    writes::{
        Admission, Capacity, Command, NamespaceName, NewDonor, Queued, Registered, Removal, Reply,
        SettingsChange, WriteRefusal, Writes,
    },
};
use crate::{
    leases::Claim,
    store::{Change, Store, StoreError, Table},
};

/// Writes that one commit makes durable.
const BATCH_MAX: usize = 512;
/// Donors whose removal one commit makes durable.
const REMOVAL_BATCH_MAX: usize = 4096;
/// Where the server's own settings lie in the store.
pub(super) const SETTINGS_KEY: &[u8] = b"settings";

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
        let (writes, queue) = Writes::channel();
        let writer = Writer {
            store,
            catalog: Arc::clone(&catalog),
            capacity,
            eviction,
            queue,
        };
        Ok(Opened {
            writer,
            writes,
            catalog,
            loaded,
        })
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
        owner.life.know(new.owner_generation);
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

// A caller that has gone needs no answer.
fn answer<T>(reply: Reply<T>, result: Result<T, WriteRefusal>) {
    let _gone = reply.send(result);
}
