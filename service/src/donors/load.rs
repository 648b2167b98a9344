//! Reads the catalog back from the store at the start.

use std::{collections::HashMap, sync::Arc};

use prost::Message;

use super::{
    catalog::{Catalog, Donor, Shard},
    evict::Eviction,
    index::prepare,
    namespace::NamespaceId,
    owners::OwnerKey,
    record::{
        DonorRecord, NamespaceRecord, Settings, SettingsRecord, medium_from_number, split_donor_key,
    },
    writer::{Loaded, SETTINGS_KEY},
};
use crate::{
    leases::Claim,
    store::{Store, StoreError, Table},
};

/// Publishes every readable donor. What cannot be read is counted, left on the disk, and skipped.
pub(super) fn load(
    store: &Store,
    catalog: &Catalog,
    eviction: &mut Eviction,
) -> Result<Loaded, StoreError> {
    let mut loaded = Loaded::default();
    match store.read(Table::Meta, SETTINGS_KEY) {
        Ok(None) => {}
        Ok(Some(bytes)) => match SettingsRecord::decode(&bytes[..]) {
            Ok(record) => catalog.restore_settings(Settings::from_record(&record)),
            Err(_) => loaded.damaged += 1,
        },
        Err(error) => return Err(error),
    }
    let mut shards = HashMap::new();
    let scanned = store.scan(
        Table::Namespaces,
        &mut |key, payload| match namespace(key, payload) {
            Some(shard) => {
                loaded.namespaces += 1;
                catalog.add_shard(Arc::clone(&shard));
                shards.insert(shard.id, shard);
            }
            None => loaded.damaged += 1,
        },
    )?;
    loaded.damaged += scanned.damaged + scanned.missing;
    let scanned = store.scan(Table::Donors, &mut |key, payload| {
        if publish(catalog, &shards, eviction, (key, payload)).is_some() {
            loaded.donors += 1;
        } else {
            loaded.damaged += 1;
        }
    })?;
    loaded.damaged += scanned.damaged + scanned.missing;
    Ok(loaded)
}

fn namespace(key: &[u8], payload: &[u8]) -> Option<Arc<Shard>> {
    let id = NamespaceId(key.try_into().ok()?);
    let (namespace, settings) = NamespaceRecord::decode(payload).ok()?.into_parts()?;
    let shard = Shard::new(namespace, settings);
    (shard.id == id).then(|| Arc::new(shard))
}

fn publish(
    catalog: &Catalog,
    shards: &HashMap<NamespaceId, Arc<Shard>>,
    eviction: &mut Eviction,
    (key, payload): (&[u8], &[u8]),
) -> Option<()> {
    let (namespace, donor_id) = split_donor_key(key)?;
    let shard = shards.get(&namespace)?;
    let record = DonorRecord::decode(payload).ok()?;
    let owner = OwnerKey {
        worker_id: record.worker_id.into(),
        data_parallel_rank: record.data_parallel_rank,
    };
    let captured_tokens = u32::try_from(record.captured.len()).ok()?;
    catalog.advance_clock(record.sequence);
    let owner = catalog.owners.get_or_add(&owner, 0).ok()?;
    owner.life.know(record.owner_generation);
    let donor = Arc::new(Donor {
        id: donor_id.into(),
        owner,
        owner_generation: record.owner_generation,
        epoch: record.epoch,
        sequence: record.sequence,
        captured_tokens,
        exact_tokens: record.exact_tokens.min(captured_tokens),
        medium: medium_from_number(record.medium)?,
        store_id: record.store_id.into(),
        source_request_id: record.source_request_id.into(),
        claim: Arc::new(Claim::default()),
        last_hit: record.sequence.into(),
    });
    catalog.publish(shard, Arc::clone(&donor), &prepare(&record.captured));
    eviction.add(shard, &donor);
    Some(())
}
