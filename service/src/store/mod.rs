//! Durable state: records in sled, large values in checksummed files.

mod blob;
mod commit;
mod error;
mod header;
pub mod log;
#[cfg(test)]
mod model;
mod record;
#[cfg(test)]
mod tests;
mod witness;
mod writer;

use std::collections::HashSet;
use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

pub use self::blob::{BLOB_BYTES_MAX, Blob, BlobName, BlobRef};
use self::blob::{BlobFolder, sync_folder};
pub use self::commit::CommitCounts;
use self::commit::GroupCommit;
pub use self::error::{Damage, StoreError};
use self::error::{at_most, io_error, log_error};
use self::log::{Log, LogReport};
use self::record::Form;
use self::witness::Witness;
pub use self::writer::{BlobWriter, Scratch};

pub const KEY_BYTES_MAX: usize = 512;
pub const PAYLOAD_BYTES_MAX: usize = 256 << 20;
pub const CHANGES_MAX: usize = 16_384;
/// Longer payloads go to a file of their own.
pub const INLINE_BYTES_MAX: usize = 64 << 10;

/// sled writes a page of more than a quarter of a segment to a file that nobody syncs. A page
/// holds 16 records and a few more while it splits, so that this keeps every page in the log.
const SEGMENT_BYTES: usize = 8 << 20;
const CACHE_BYTES: u64 = 32 << 20;
const SEQUENCE_BITS: u32 = 40;
/// What is over it waits on the disk for the next start.
const REMOVALS_MAX: usize = 65_536;

const RECORDS_FOLDER: &str = "records";
const BLOBS_FOLDER: &str = "blobs";
const SPILLED_FOLDER: &str = "spilled";
const DONORS_FOLDER: &str = "donors";
/// The "table" of what was spilled: table byte and key -> [`BlobRef`].
const SPILLED_BYTE: u8 = u8::MAX;
/// The "table" of [`Counts`]: slot -> counts, the slot with the most writes being the last.
const COUNTS_BYTE: u8 = 0;
/// sled copies a page, 16 neighbours, at each change of one of them. With more slots than that,
/// taken in turn, no donor shares a page with the counts, which change at every write.
const COUNT_SLOTS: u8 = 32;

/// One key space each. All lie in one sled tree, so that a batch is atomic across them.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Table {
    Meta = 1,
    Priors = 2,
    Namespaces = 3,
    Donors = 4,
    KeySummaries = 5,
    Encoders = 6,
}

#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    Put {
        table: Table,
        key: &'a [u8],
        payload: &'a [u8],
    },
    Delete {
        table: Table,
        key: &'a [u8],
    },
}

/// Called with the key and the payload of each record.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) + 'a;

/// A folder with records and blobs, owned by one process.
#[derive(Debug)]
pub struct Store {
    records: sled::Db,
    /// sled never syncs its file: this handle does.
    records_file: File,
    group: GroupCommit,
    blobs: BlobFolder,
    spilled: BlobFolder,
    donors_folder: PathBuf,
    /// Whether a sync of the donor log has failed.
    log_failed: Arc<AtomicBool>,
    /// Writers take turns: what a change replaces must not change under it.
    counts: Mutex<Counts>,
    witness: Witness,
    /// Spilled files that no record refers to once the changes before are durable.
    removals: Mutex<Vec<BlobName>>,
    epoch: u64,
    sequence: AtomicU64,
    /// Held for its lock.
    _lock: File,
}

/// How many batches were written, then how many records each table has, by table byte. sled can
/// lose writes of a damaged log without a word: then these differ from what is found.
type Counts = [u64; 7];
const WRITES: usize = 0;

/// What was found at the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OpenReport {
    pub epoch: u64,
    /// Spilled files that a crash had left behind.
    pub files_removed: u64,
    /// The store's own records that cannot be read.
    pub damaged: u64,
    /// Calls of [`Store::write`] that were committed and that the log has lost, at least.
    pub writes_lost: u64,
}

/// What a scan met.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ScanReport {
    pub visited: u64,
    /// Records that cannot be read. They stay where they are.
    pub damaged: u64,
    /// By how many records the table differs from what was written: the log lost some. Means
    /// nothing while somebody writes.
    pub missing: u64,
}

impl Store {
    /// Opens or creates the store in `directory`, waiting up to five seconds for a process that
    /// is about to end. The new epoch is durable when this returns.
    ///
    /// # Errors
    /// A folder in use, of a newer format, or with a damaged header.
    pub fn open(directory: &Path) -> Result<(Self, OpenReport), StoreError> {
        Self::open_within(directory, header::WAIT_MS_MAX)
    }

    fn open_within(directory: &Path, wait_ms_max: u64) -> Result<(Self, OpenReport), StoreError> {
        std::fs::create_dir_all(directory).map_err(io_error("create", directory))?;
        let lock = header::lock(directory, wait_ms_max)?;
        let records_path = directory.join(RECORDS_FOLDER);
        let last_epoch = header::read_epoch(directory, !records_path.exists())?;
        let epoch = last_epoch.unwrap_or(0) + 1;
        if epoch > header::EPOCH_MAX {
            return Err(StoreError::Exhausted { what: "epoch" });
        }
        header::write_epoch(directory, epoch)?;

        let records = open_records(directory, &records_path, wait_ms_max)?;
        let records_file = records_path.join("db");
        let records_file = File::options()
            .write(true)
            .open(&records_file)
            .map_err(io_error("open", &records_file))?;
        let store = Self {
            records,
            records_file,
            group: GroupCommit::default(),
            blobs: BlobFolder::open(directory.join(BLOBS_FOLDER))?,
            spilled: BlobFolder::open(directory.join(SPILLED_FOLDER))?,
            donors_folder: directory.join(DONORS_FOLDER),
            log_failed: Arc::default(),
            counts: Mutex::default(),
            witness: Witness::open(directory)?,
            removals: Mutex::new(Vec::new()),
            epoch,
            sequence: AtomicU64::new(0),
            _lock: lock,
        };
        let counts_damaged = store.load_counts()?;
        let writes_noted = store.witness.read();
        let writes_lost = writes_noted.saturating_sub(store.counts.lock()[WRITES]);
        store.commit()?;
        for folder in [&records_path, directory] {
            sync_folder(folder)?;
        }
        let mut report = store.sweep_spilled()?;
        report.damaged += counts_damaged;
        report.writes_lost = writes_lost;
        Ok((store, report))
    }

    /// Whether a sync has failed: then no write can be kept until a restart.
    pub fn has_failed(&self) -> bool {
        self.group.has_failed() || self.log_failed.load(Relaxed)
    }

    /// Opens the log of the donors, which lies beside the records and has one writer.
    ///
    /// # Errors
    /// A failing disk.
    pub fn open_log(&self) -> Result<(Log, LogReport), StoreError> {
        Log::open(&self.donors_folder, Arc::clone(&self.log_failed))
    }

    /// How often the store was opened, this time included.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A number above every earlier one of this store, also after a crash: the epoch in the
    /// upper 24 bits, a counter below.
    ///
    /// # Errors
    /// After 2^40 numbers in one epoch.
    pub fn next_sequence(&self) -> Result<u64, StoreError> {
        let counter = self.sequence.fetch_add(1, Relaxed);
        if counter >> SEQUENCE_BITS != 0 {
            return Err(StoreError::Exhausted { what: "sequence" });
        }
        Ok(self.epoch << SEQUENCE_BITS | counter)
    }

    /// Applies all changes or none; of two for one key the later wins. Visible at once, durable
    /// after the next [`Self::commit`].
    ///
    /// # Errors
    /// What is over a limit, and a failing disk.
    pub fn write(&self, changes: &[Change<'_>]) -> Result<(), StoreError> {
        check_limits(changes)?;
        let values = self.spill_long(changes)?;
        let mut counts = self.counts.lock();
        let Prepared {
            batch,
            replaced,
            counts: new_counts,
        } = self.prepare(values, &counts)?;
        self.records
            .apply_batch(batch)
            .map_err(log_error("write"))?;
        *counts = new_counts;
        let mut removals = self.removals.lock();
        let room = REMOVALS_MAX.saturating_sub(removals.len());
        removals.extend(replaced.into_iter().take(room));
        Ok(())
    }

    /// Returns when everything written before the call is on the disk. Calls that wait together
    /// share a sync.
    ///
    /// # Errors
    /// A failed sync, from then on always: what it lost is not known.
    pub fn commit(&self) -> Result<(), StoreError> {
        self.group.commit(|| {
            // Taken first: only what was replaced before the flush may go after it.
            let removals = std::mem::take(&mut *self.removals.lock());
            let writes = self.counts.lock()[WRITES];
            self.records.flush().map_err(log_error("flush"))?;
            self.records_file
                .sync_data()
                .map_err(|source| StoreError::Io {
                    action: "sync",
                    path: RECORDS_FOLDER.into(),
                    source,
                })?;
            self.witness.note(writes)?;
            for name in removals {
                self.spilled.remove(name)?;
            }
            Ok(())
        })
    }

    pub fn commit_counts(&self) -> CommitCounts {
        self.group.counts()
    }

    /// The payload last written under `key`.
    ///
    /// # Errors
    /// A damaged record, and a failing disk.
    pub fn read(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let whole = whole_key(table as u8, key);
        let mut record = self.records.get(&whole).map_err(log_error("read"))?;
        loop {
            let Some(found) = record else { return Ok(None) };
            let outcome = self.payload(table, key, &found, <[u8]>::to_vec);
            if outcome.is_ok() {
                return outcome.map(Some);
            }
            // A spilled file goes when its record is replaced: then the new record is the answer.
            record = self.records.get(&whole).map_err(log_error("read"))?;
            if record.as_ref() == Some(&found) {
                return outcome.map(Some);
            }
        }
    }

    /// Visits the records of a table in the order of their keys. A damaged record is counted,
    /// skipped and left where it is.
    ///
    /// # Errors
    /// A failing disk, and damage to the log itself.
    pub fn scan(&self, table: Table, visit: &mut Visit<'_>) -> Result<ScanReport, StoreError> {
        let mut report = ScanReport::default();
        for entry in self.records.scan_prefix([table as u8]) {
            let (key, record) = entry.map_err(log_error("read"))?;
            let key = &key[1..];
            match self.payload(table, key, &record, |payload| visit(key, payload)) {
                Ok(()) => report.visited += 1,
                // Damaged, or its spilled file went with a change since: a new look tells.
                Err(StoreError::Record { .. }) => match self.read(table, key) {
                    Ok(Some(payload)) => {
                        visit(key, &payload);
                        report.visited += 1;
                    }
                    Ok(None) => {}
                    Err(StoreError::Record { .. }) => report.damaged += 1,
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
        let expected = self.counts.lock()[table as usize];
        report.missing = expected.abs_diff(report.visited + report.damaged);
        Ok(report)
    }

    /// Stores bytes that no record refers to yet, durably.
    ///
    /// # Errors
    /// Over [`BLOB_BYTES_MAX`], and a failing disk.
    pub fn put_blob(&self, bytes: &[u8]) -> Result<BlobRef, StoreError> {
        let blob = self.blobs.write(BlobName(self.next_sequence()?), bytes)?;
        self.blobs.sync()?;
        Ok(blob)
    }

    /// A blob that is written piece by piece, durable and whole once it is finished.
    ///
    /// # Errors
    /// A failing disk.
    pub fn blob_writer(&self) -> Result<BlobWriter<'_>, StoreError> {
        BlobWriter::create(&self.blobs, BlobName(self.next_sequence()?))
    }

    /// An unnamed file beside the blobs, for what is too large for the memory while it comes in.
    ///
    /// # Errors
    /// A failing disk.
    pub fn scratch(&self) -> Result<Scratch, StoreError> {
        self.blobs.scratch()
    }

    /// Maps a blob, after a look at every byte.
    ///
    /// # Errors
    /// [`StoreError::Blob`] where it is missing, cut or altered.
    pub fn map_blob(&self, blob: &BlobRef) -> Result<Blob, StoreError> {
        self.blobs.map(blob)
    }

    /// Removes a blob; one that is gone already is no error. Maps of it stay readable.
    ///
    /// # Errors
    /// A failing disk.
    pub fn remove_blob(&self, blob: &BlobRef) -> Result<(), StoreError> {
        self.blobs.remove(blob.name)
    }

    /// Removes what a crash between [`Self::put_blob`] and the record left; returns how many
    /// files. For the start only: a blob that is put meanwhile would go too.
    ///
    /// # Errors
    /// A failing disk.
    pub fn remove_unreferenced_blobs(
        &self,
        referenced: &HashSet<BlobName>,
    ) -> Result<u64, StoreError> {
        self.blobs.remove_all_but(referenced)
    }

    /// The changes as values, later ones first and one for a key; long payloads are on the disk
    /// when this returns.
    fn spill_long(&self, changes: &[Change<'_>]) -> Result<Vec<NewValue>, StoreError> {
        let mut values = Vec::with_capacity(changes.len());
        let mut seen = HashSet::with_capacity(changes.len());
        let mut has_spilled = false;
        for change in changes.iter().rev() {
            let (Change::Put { table, key, .. } | Change::Delete { table, key }) = *change;
            if !seen.insert((table, key)) {
                continue;
            }
            let key = whole_key(table as u8, key);
            let value = match change {
                Change::Delete { .. } => Value::Nothing,
                Change::Put { payload, .. } if payload.len() <= INLINE_BYTES_MAX => {
                    Value::Inline(record::encode(&key, Form::Inline, payload))
                }
                Change::Put { payload, .. } => {
                    has_spilled = true;
                    let name = BlobName(self.next_sequence()?);
                    Value::Spilled(self.spilled.write(name, payload)?)
                }
            };
            values.push(NewValue { key, value });
        }
        if has_spilled {
            self.spilled.sync()?;
        }
        Ok(values)
    }

    /// The batch for sled, and what else changes with it.
    fn prepare(&self, values: Vec<NewValue>, counts: &Counts) -> Result<Prepared, StoreError> {
        let mut batch = sled::Batch::default();
        let mut replaced = Vec::new();
        let mut new_counts = *counts;
        new_counts[WRITES] += 1;
        for NewValue { key, value } in values {
            let list_key = spilled_key(&key);
            let old = self.records.get(&list_key).map_err(log_error("read"))?;
            if let Some(old) = old {
                replaced.extend(decode_blob(&list_key, &old).map(|blob| blob.name));
                batch.remove(list_key.as_slice());
            }
            let was_there = self.records.contains_key(&key).map_err(log_error("read"))?;
            let count = &mut new_counts[usize::from(key[0])];
            match (was_there, &value) {
                (false, Value::Inline(_) | Value::Spilled(_)) => *count += 1,
                // Damage may have taken a count back, hence no plain subtraction.
                (true, Value::Nothing) => *count = count.saturating_sub(1),
                (true, Value::Inline(_) | Value::Spilled(_)) | (false, Value::Nothing) => {}
            }
            match value {
                Value::Nothing => batch.remove(key),
                Value::Inline(record) => batch.insert(key, record),
                Value::Spilled(blob) => {
                    let blob = blob.to_bytes();
                    let listed = record::encode(&list_key, Form::Inline, &blob);
                    batch.insert(list_key, listed);
                    let record = record::encode(&key, Form::Spilled, &blob);
                    batch.insert(key, record);
                }
            }
        }
        let slot = new_counts[WRITES].to_le_bytes()[0] % COUNT_SLOTS;
        let key = [COUNTS_BYTE, slot];
        let bytes: Vec<u8> = new_counts
            .iter()
            .flat_map(|count| count.to_le_bytes())
            .collect();
        batch.insert(&key, record::encode(&key, Form::Inline, &bytes));
        Ok(Prepared {
            batch,
            replaced,
            counts: new_counts,
        })
    }

    /// Returns how many of the counts are damaged.
    fn load_counts(&self) -> Result<u64, StoreError> {
        let mut counts = self.counts.lock();
        let mut damaged = 0;
        for entry in self.records.scan_prefix([COUNTS_BYTE]) {
            let (key, record) = entry.map_err(log_error("read"))?;
            match record::decode(&key, &record) {
                Ok((_form, bytes)) => {
                    let mut found = Counts::default();
                    for (count, bytes) in found.iter_mut().zip(bytes.as_chunks().0) {
                        *count = u64::from_le_bytes(*bytes);
                    }
                    if found[WRITES] > counts[WRITES] {
                        *counts = found;
                    }
                }
                Err(_damage) => damaged += 1,
            }
        }
        Ok(damaged)
    }

    /// Hands the payload of a record to `take`.
    fn payload<T>(
        &self,
        table: Table,
        key: &[u8],
        record: &[u8],
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, StoreError> {
        let damaged = |damage| StoreError::Record { table, damage };
        match record::decode(&whole_key(table as u8, key), record).map_err(damaged)? {
            (Form::Inline, payload) => Ok(take(payload)),
            (Form::Spilled, blob) => {
                let blob = BlobRef::from_bytes(blob).ok_or(damaged(Damage::Length))?;
                match self.spilled.map(&blob) {
                    Ok(bytes) => Ok(take(&bytes)),
                    Err(StoreError::Blob { damage, .. }) => Err(damaged(damage)),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Removes spilled files that no record refers to, unless a record of the list is damaged:
    /// then nobody knows which file it stood for.
    fn sweep_spilled(&self) -> Result<OpenReport, StoreError> {
        let mut report = OpenReport {
            epoch: self.epoch,
            ..OpenReport::default()
        };
        let mut listed = HashSet::new();
        for entry in self.records.scan_prefix([SPILLED_BYTE]) {
            let (key, record) = entry.map_err(log_error("read"))?;
            match decode_blob(&key, &record) {
                Some(blob) => _ = listed.insert(blob.name),
                None => report.damaged += 1,
            }
        }
        if report.damaged == 0 {
            report.files_removed = self.spilled.remove_all_but(&listed)?;
        }
        Ok(report)
    }
}

/// A write that is ready to go.
struct Prepared {
    batch: sled::Batch,
    /// Spilled files that it makes useless.
    replaced: Vec<BlobName>,
    counts: Counts,
}

struct NewValue {
    /// Table byte and key.
    key: Vec<u8>,
    value: Value,
}

/// What a key holds after a write.
enum Value {
    Nothing,
    Inline(Vec<u8>),
    Spilled(BlobRef),
}

fn check_limits(changes: &[Change<'_>]) -> Result<(), StoreError> {
    at_most("number of changes", changes.len(), CHANGES_MAX)?;
    for change in changes {
        let (Change::Put { key, .. } | Change::Delete { key, .. }) = change;
        at_most("key length in bytes", key.len(), KEY_BYTES_MAX)?;
        if let Change::Put { payload, .. } = change {
            at_most("payload length in bytes", payload.len(), PAYLOAD_BYTES_MAX)?;
        }
    }
    Ok(())
}

fn open_records(directory: &Path, path: &Path, wait_ms_max: u64) -> Result<sled::Db, StoreError> {
    header::retry_while_in_use(directory, wait_ms_max, || {
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(CACHE_BYTES)
            .segment_size(SEGMENT_BYTES)
            .flush_every_ms(None)
            .use_compression(false);
        // sled panics at some kinds of damage. Nothing of it is used after that.
        let opened = std::panic::catch_unwind(AssertUnwindSafe(|| config.open()));
        match opened.map_err(|_panic| StoreError::LogDamaged {
            path: path.to_owned(),
        })? {
            Ok(records) => Ok(Some(records)),
            // sled has no error of its own for it.
            Err(sled::Error::Io(error)) if error.to_string().contains("could not acquire lock") => {
                Ok(None)
            }
            Err(error) => Err(log_error("open")(error)),
        }
    })
}

fn whole_key(table_byte: u8, key: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(1 + key.len());
    whole.push(table_byte);
    whole.extend_from_slice(key);
    whole
}

fn spilled_key(whole_key_of_record: &[u8]) -> Vec<u8> {
    whole_key(SPILLED_BYTE, whole_key_of_record)
}

fn decode_blob(key: &[u8], record: &[u8]) -> Option<BlobRef> {
    let (_form, blob) = record::decode(key, record).ok()?;
    BlobRef::from_bytes(blob)
}
