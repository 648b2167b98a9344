//! The one thread that changes the catalog: log first, then search, then the acknowledgement.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::{
    admission::{PreparedDonor, Stage, Staged},
    catalog::{Catalog, Defaults},
    evict::Eviction,
    index::prepare,
    load::{self, Kept},
    namespace::NamespaceId,
    owned::Owned,
    record::{NamespaceRecord, Settings, split_donor_key},
    texts::DonorTexts,
    writes::{
        Capacity, Command, NamespaceName, Queued, Registered, Removal, Reply, SettingsChange,
        WriteRefusal, Writes,
    },
};
use crate::store::{
    Change, Store, StoreError, Table,
    log::{Log, LogMark, LogReport, Moved, Place},
};

/// Writes that one commit makes durable.
const BATCH_MAX: usize = 1024;
/// Tokens after which a batch is full: some MiB of records.
const BATCH_TOKENS_MAX: usize = 4 << 20;
/// Where the server's own settings lie in the store.
pub(super) const SETTINGS_KEY: &[u8] = b"settings";

/// Where it lies what the newest segment of the log was when donors were last written.
pub(super) const LOG_MARK_KEY: &[u8] = b"donor-log";

/// Owns every change of the catalog.
#[derive(Debug)]
pub struct Writer {
    pub(super) store: Arc<Store>,
    pub(super) log: Log,
    pub(super) catalog: Arc<Catalog>,
    pub(super) capacity: Capacity,
    pub(super) eviction: Eviction,
    pub(super) owned: Owned,
    /// What the store says of the log.
    log_mark: Option<LogMark>,
    queue: Option<mpsc::Receiver<Queued>>,
}

/// What was read from the disk at the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loaded {
    pub donors: u64,
    pub namespaces: u64,
    /// Records that could not be read and were left out.
    pub damaged: u64,
    /// Bytes of an unfinished write that were cut from the end of the log.
    pub torn_bytes: u64,
    /// The log once held donors in a segment that is gone, with all behind it; counted as damage
    /// at every start until donors are registered again.
    pub log_is_missing: bool,
    /// What was noted of the log.
    pub(super) log_mark: Option<LogMark>,
}

/// A catalog read from the disk, and what goes with it.
#[derive(Debug)]
pub struct Opened {
    pub writer: Writer,
    pub writes: Writes,
    pub catalog: Arc<Catalog>,
    pub texts: DonorTexts,
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
        let (mut eviction, mut owned) = (Eviction::default(), Owned::default());
        let (mut log, report) = store.open_log()?;
        let LogReport {
            damaged,
            torn_bytes,
            segments: _,
        } = report;
        if torn_bytes > 0 {
            tracing::warn!(
                torn_bytes,
                "cut an unfinished write from the end of the donor log"
            );
        }
        let mut kept = Kept {
            catalog: &catalog,
            eviction: &mut eviction,
            owned: &mut owned,
        };
        let mut loaded = load::load(&store, &mut log, &mut kept)?;
        loaded.damaged += damaged;
        loaded.torn_bytes = torn_bytes;
        let (writes, queue) = Writes::channel();
        let texts = DonorTexts::new(log.reader());
        let writer = Writer {
            store,
            log,
            catalog: Arc::clone(&catalog),
            capacity,
            eviction,
            owned,
            log_mark: loaded.log_mark,
            queue: Some(queue),
        };
        Ok(Opened {
            writer,
            writes,
            catalog,
            texts,
            loaded,
        })
    }

    /// Works until every [`Writes`] is gone. A second thread packs and samples the tokens of what
    /// comes next while this one waits for the disk.
    pub fn run(mut self) {
        let Some(queue) = self.queue.take() else {
            return;
        };
        thread::scope(|scope| {
            let (send, receive) = sync_channel(BATCH_MAX);
            scope.spawn(move || prepare_all(queue, &send));
            let mut batch = Vec::with_capacity(BATCH_MAX);
            while take_batch(&receive, &mut batch) {
                self.carry_out(&mut batch);
            }
        });
    }

    fn carry_out(&mut self, batch: &mut Vec<Ready>) {
        let catalog = &self.catalog;
        let cleaned = self.log.clean(&mut |key, place| holds(catalog, key, place));
        if let Err(error) = cleaned {
            tracing::error!(%error, "the donor log could not be tidied");
        }
        let mut stage = Stage::default();
        // The permits go with the batch: what is queued stays bounded until it is durable.
        let mut permits = Vec::with_capacity(batch.len());
        for Ready { work, tokens } in batch.drain(..) {
            permits.push(tokens);
            match work {
                Work::Register(donor, reply) => self.register(*donor, reply, &mut stage),
                Work::Remove(removal, reply) => {
                    self.flush(&mut stage);
                    answer(reply, self.remove(&removal));
                }
                Work::Settings(namespace, change, reply) => {
                    self.flush(&mut stage);
                    answer(reply, self.set(namespace, change));
                }
            }
        }
        self.flush(&mut stage);
    }

    fn register(&mut self, donor: PreparedDonor, reply: Reply<Registered>, stage: &mut Stage) {
        match self.stage(donor, stage) {
            Ok(registered) => stage.replies.push((reply, registered)),
            Err(refusal) => answer(reply, Err(refusal)),
        }
    }

    /// Durable, then searchable, then acknowledged.
    pub(super) fn flush(&mut self, stage: &mut Stage) {
        let Stage {
            namespaces,
            forgotten,
            shards,
            donors,
            replies,
            ..
        } = std::mem::take(stage);
        if let Err(error) = self.write(&namespaces, &forgotten) {
            for staged in &donors {
                self.log.forget(staged.donor.place.get());
            }
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
            block_names,
        } in donors
        {
            let published = self.catalog.publish(&shard, &donor, &prepared, block_names);
            if let Some(old) = published.replaced {
                self.log.forget(old.place.get());
            }
            self.eviction.add(&shard, &donor);
            self.owned.add(&shard, &donor, published.slot);
        }
        self.eviction.compact(&self.catalog);
        for (reply, registered) in replies {
            answer(reply, Ok(registered));
        }
        self.settle_log();
    }

    // A namespace is durable before its donors are, and until they are gone.
    fn write(
        &mut self,
        namespaces: &[(NamespaceId, Vec<u8>)],
        forgotten: &[NamespaceId],
    ) -> Result<(), StoreError> {
        let table = Table::Namespaces;
        let puts = namespaces.iter().map(|(id, payload)| Change::Put {
            table,
            key: &id.0,
            payload,
        });
        // Once a segment: the file is there before its donors are.
        let mark = self.log.newest_mark();
        let mark_bytes = mark.to_bytes();
        let is_new = self.log.has_waiting() && self.log_mark != Some(mark);
        let note = is_new.then_some(Change::Put {
            table: Table::Meta,
            key: LOG_MARK_KEY,
            payload: &mark_bytes,
        });
        self.write_records(&puts.chain(note).collect::<Vec<_>>())?;
        if is_new {
            self.log_mark = Some(mark);
        }
        self.log.commit()?;
        let deletes = forgotten
            .iter()
            .map(|id| Change::Delete { table, key: &id.0 });
        self.write_records(&deletes.collect::<Vec<_>>())
    }

    fn write_records(&self, changes: &[Change<'_>]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.store.write(changes)?;
        self.store.commit()
    }

    /// Makes what was appended durable, where no donor waits to be published.
    pub(super) fn commit_log(&mut self) -> Result<(), StoreError> {
        self.log.commit()?;
        self.settle_log();
        Ok(())
    }

    fn settle_log(&mut self) {
        let catalog = &self.catalog;
        let settled = self.log.settle(&mut |moved| move_donor(catalog, moved));
        if let Err(error) = settled {
            tracing::error!(%error, "the donor log could not be tidied");
        }
    }

    fn set(
        &mut self,
        namespace: Option<NamespaceName>,
        change: Box<dyn SettingsChange>,
    ) -> Result<Settings, WriteRefusal> {
        let Some(name) = namespace else {
            let settings = change(self.catalog.settings());
            let record = settings.to_record().encode_to_vec();
            self.write_records(&[Change::Put {
                table: Table::Meta,
                key: SETTINGS_KEY,
                payload: &record,
            }])?;
            self.catalog.set_settings(settings);
            return Ok(settings);
        };
        let mut stage = Stage::default();
        let shard = self.shard(&name, &mut stage)?;
        let settings = change(*shard.settings.read());
        let record = NamespaceRecord::new(&shard.namespace, &settings).encode_to_vec();
        stage.namespaces.push((shard.id, record));
        self.write(&stage.namespaces, &stage.forgotten)?;
        *shard.settings.write() = settings;
        for shard in stage.shards {
            self.catalog.add_shard(shard);
        }
        Ok(settings)
    }
}

/// A write whose tokens, if it has any, are packed and sampled.
struct Ready {
    work: Work,
    tokens: Option<OwnedSemaphorePermit>,
}

enum Work {
    Register(Box<PreparedDonor>, Reply<Registered>),
    Remove(Removal, Reply<u64>),
    Settings(
        Option<NamespaceName>,
        Box<dyn SettingsChange>,
        Reply<Settings>,
    ),
}

// In the order of the queue.
fn prepare_all(mut queue: mpsc::Receiver<Queued>, send: &SyncSender<Ready>) {
    while let Some(Queued { command, tokens }) = queue.blocking_recv() {
        let work = match command {
            Command::Register(new, reply) => {
                let prepared = prepare(&new.captured);
                let donor = PreparedDonor {
                    new: *new,
                    prepared,
                };
                Work::Register(Box::new(donor), reply)
            }
            Command::Remove(removal, reply) => Work::Remove(removal, reply),
            Command::Settings(namespace, change, reply) => Work::Settings(namespace, change, reply),
        };
        if send.send(Ready { work, tokens }).is_err() {
            return;
        }
    }
}

// Waits for one write and takes what else is ready; false at the end.
fn take_batch(receive: &Receiver<Ready>, batch: &mut Vec<Ready>) -> bool {
    let Ok(first) = receive.recv() else {
        return false;
    };
    let mut weight = first.weight();
    batch.push(first);
    while batch.len() < BATCH_MAX
        && weight < BATCH_TOKENS_MAX
        && let Ok(next) = receive.try_recv()
    {
        weight += next.weight();
        batch.push(next);
    }
    true
}

impl Ready {
    fn weight(&self) -> usize {
        match &self.work {
            Work::Register(donor, _) => donor.new.weight(),
            Work::Remove(..) | Work::Settings(..) => 0,
        }
    }
}

// Whether a donor's record is the one at that place.
fn holds(catalog: &Catalog, key: &[u8], place: Place) -> bool {
    let held = split_donor_key(key).and_then(|(namespace, donor_id)| {
        let shard = catalog.shard(namespace)?;
        let donors = shard.read();
        donors.by_id(donor_id).map(|donor| donor.place.get())
    });
    held == Some(place)
}

fn move_donor(catalog: &Catalog, moved: &Moved) -> bool {
    let took = split_donor_key(&moved.key).and_then(|(namespace, donor_id)| {
        let shard = catalog.shard(namespace)?;
        let donors = shard.read();
        let donor = donors.by_id(donor_id)?;
        (donor.place.get() == moved.from).then(|| donor.place.set(moved.to))
    });
    took.is_some()
}

// A caller that has gone needs no answer.
fn answer<T>(reply: Reply<T>, result: Result<T, WriteRefusal>) {
    let _gone = reply.send(result);
}

#[cfg(test)]
mod tests;
