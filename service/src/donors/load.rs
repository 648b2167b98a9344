//! Reads the catalog back from the disk at the start.

use std::{num::NonZero, sync::Arc, thread::available_parallelism};

use kvatlas_events::event::EngineHash;
use prost::Message;

use super::{
    catalog::{Catalog, Donor, Shard},
    evict::Eviction,
    index::{Prepared, prepare},
    namespace::NamespaceId,
    owned::Owned,
    owners::OwnerKey,
    record::{
        DonorRecord, LoggedDonor, NamespaceRecord, Settings, SettingsRecord, medium_from_number,
        split_donor_key,
    },
    tokens::PackedTokens,
    writer::{LOG_MARK_KEY, Loaded, SETTINGS_KEY},
};
use crate::{
    leases::Claim,
    store::{
        Change, Store, StoreError, Table,
        log::{Kind, Log, LogChange, LogMark, Place, PlaceCell},
    },
};

/// Donors that one commit moves to the log, and that one write takes out of the store.
const MOVED_BATCH_MAX: usize = 1024;
/// Threads that read donors and prepare them for the search; each holds a segment of the log.
const THREADS_MAX: usize = 8;

/// What becomes of a donor that was read.
pub(super) struct Kept<'a> {
    pub(super) catalog: &'a Catalog,
    pub(super) eviction: &'a mut Eviction,
    pub(super) owned: &'a mut Owned,
}

/// Publishes every readable donor. What cannot be read is counted and skipped.
pub(super) fn load(
    store: &Store,
    log: &mut Log,
    kept: &mut Kept<'_>,
) -> Result<Loaded, StoreError> {
    let mut loaded = Loaded::default();
    let catalog = kept.catalog;
    match store.read(Table::Meta, SETTINGS_KEY) {
        Ok(None) => {}
        Ok(Some(bytes)) => match SettingsRecord::decode(&bytes[..]) {
            Ok(record) => catalog.restore_settings(Settings::from_record(&record)),
            Err(_) => loaded.damaged += 1,
        },
        Err(error) => return Err(error),
    }
    loaded.log_mark = log_mark(store, log, &mut loaded)?;
    let scanned = store.scan(
        Table::Namespaces,
        &mut |key, payload| match namespace(key, payload) {
            Some(shard) => {
                loaded.namespaces += 1;
                catalog.add_shard(shard);
            }
            None => loaded.damaged += 1,
        },
    )?;
    loaded.damaged += scanned.damaged + scanned.missing;
    loaded.damaged += move_to_log(store, log)?;
    let threads = available_parallelism()
        .map_or(1, NonZero::get)
        .min(THREADS_MAX);
    let decode = |key: &[u8], payload: &[u8], place| decode(catalog, (key, payload), place);
    let replayed = log.replay(threads, &decode, &mut |decoded| {
        let Decoded {
            shard,
            donor,
            prepared,
            block_names,
        } = decoded;
        let published = catalog.publish(&shard, &donor, &prepared, block_names);
        kept.eviction.add(&shard, &donor);
        kept.owned.add(&shard, &donor, published.slot);
    })?;
    loaded.donors = replayed.taken;
    loaded.damaged += replayed.damaged;
    Ok(loaded)
}

// What was noted of the log's newest segment. It is damage if the log has lost that: as a whole,
// or its end.
fn log_mark(store: &Store, log: &Log, loaded: &mut Loaded) -> Result<Option<LogMark>, StoreError> {
    let mark = match store.read(Table::Meta, LOG_MARK_KEY) {
        Ok(None) => return Ok(None),
        Ok(Some(bytes)) => LogMark::from_bytes(&bytes),
        Err(StoreError::Record { .. }) => None,
        Err(error) => return Err(error),
    };
    let is_missing = mark.is_some_and(|mark| mark.is_missing(log.newest_mark()));
    if is_missing {
        tracing::error!("part of the donor log is missing: its newest segment, or all of them");
    }
    loaded.log_is_missing = is_missing;
    loaded.damaged += u64::from(is_missing || mark.is_none());
    Ok(mark)
}

fn namespace(key: &[u8], payload: &[u8]) -> Option<Arc<Shard>> {
    let id = NamespaceId(key.try_into().ok()?);
    let (namespace, settings) = NamespaceRecord::decode(payload).ok()?.into_parts()?;
    let shard = Shard::new(namespace, settings);
    (shard.id == id).then(|| Arc::new(shard))
}

struct Decoded {
    shard: Arc<Shard>,
    donor: Arc<Donor>,
    prepared: Prepared,
    block_names: Vec<EngineHash>,
}

fn decode(catalog: &Catalog, (key, payload): (&[u8], &[u8]), place: Place) -> Option<Decoded> {
    let (namespace, donor_id) = split_donor_key(key)?;
    let shard = catalog.shard(namespace)?;
    let LoggedDonor {
        record,
        tokens,
        text,
    } = LoggedDonor::decode(payload)?;
    let owner = OwnerKey {
        worker_id: record.worker_id.into(),
        data_parallel_rank: record.data_parallel_rank,
    };
    let captured_tokens = u32::try_from(tokens.len()).ok()?;
    catalog.advance_clock(record.sequence);
    let owner = catalog.owners.get_or_add(&owner, 0).ok()?;
    owner.life.know(record.owner_generation);
    let donor = Donor {
        id: donor_id.into(),
        owner,
        owner_generation: record.owner_generation,
        epoch: record.epoch,
        sequence: record.sequence,
        captured_tokens,
        exact_tokens: record.exact_tokens.min(captured_tokens),
        medium: medium_from_number(record.medium)?,
        store_id: catalog.names.share(&record.store_id),
        source_request_id: record.source_request_id.into(),
        place: PlaceCell::new(place),
        has_text: !text.is_empty(),
        claim: Arc::new(Claim::default()),
        last_hit: record.sequence.into(),
    };
    let mut captured = Vec::new();
    tokens.unpack_into(&mut captured);
    Some(Decoded {
        shard,
        donor: Arc::new(donor),
        prepared: prepare(&captured),
        block_names: record.block_names.into_iter().map(EngineHash).collect(),
    })
}

// Donors once lay among the store's records. They go into the log, durable there before they go
// here; where a crash came in between, the log knows them already. Returns how many are damaged.
fn move_to_log(store: &Store, log: &mut Log) -> Result<u64, StoreError> {
    let (mut keys, mut unreadable) = (Vec::new(), 0);
    let (mut failure, mut waiting) = (None, 0);
    let scanned = store.scan(Table::Donors, &mut |key, payload| {
        if failure.is_some() {
            return;
        }
        let Ok(record) = DonorRecord::decode(payload) else {
            unreadable += 1;
            return;
        };
        let append = || {
            if log
                .newest(key)
                .is_none_or(|newest| newest < record.sequence)
            {
                append(log, key, record)?;
                waiting += 1;
            }
            if waiting >= MOVED_BATCH_MAX {
                waiting = 0;
                log.commit()?;
            }
            Ok(())
        };
        failure = append().err();
        keys.push(key.to_vec());
    })?;
    failure.map_or(Ok(()), Err)?;
    log.commit()?;
    for some in keys.chunks(MOVED_BATCH_MAX) {
        let table = Table::Donors;
        let deletes: Vec<_> = some
            .iter()
            .map(|key| Change::Delete { table, key })
            .collect();
        store.write(&deletes)?;
    }
    if !keys.is_empty() {
        store.commit()?;
        tracing::info!(
            donors = keys.len(),
            "moved donors from the records to the log"
        );
    }
    Ok(unreadable + scanned.damaged + scanned.missing)
}

fn append(log: &mut Log, key: &[u8], mut record: DonorRecord) -> Result<(), StoreError> {
    let tokens = PackedTokens::pack(&std::mem::take(&mut record.captured));
    let sequence = record.sequence;
    let head = LoggedDonor::head(record, &tokens);
    log.append(&LogChange {
        kind: Kind::Put,
        sequence,
        key,
        parts: &[&head, tokens.as_bytes()],
    })?;
    Ok(())
}
