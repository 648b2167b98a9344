//! Takes donors out: of the search first, then of the log.

use std::sync::Arc;

use super::{
    catalog::{Donor, Shard},
    namespace::NamespaceId,
    record::donor_key,
    vocabulary::Medium,
    writer::Writer,
    writes::{NamespaceName, Removal, WriteRefusal},
};
use crate::store::{
    StoreError,
    log::{Kind, LogChange},
};

/// Donors whose removal one commit makes durable.
const BATCH_MAX: usize = 4096;

impl Writer {
    /// Removes donors; returns how many went.
    pub(super) fn remove(&mut self, removal: &Removal) -> Result<u64, WriteRefusal> {
        match removal {
            Removal::Ids(name, ids) => {
                let shard = self.known(name)?;
                self.remove_all(
                    ids.iter()
                        .map(|id| (Arc::clone(&shard), id.as_str().into())),
                )
            }
            Removal::Owner(owner) => {
                let donors = self.owned.of(owner);
                self.remove_all(named(donors, |_| true))
            }
            Removal::OwnerIn(owner, namespaces) => {
                let mut donors = self.owned.of(owner);
                donors.retain(|(shard, _)| namespaces.cover(shard.id, &shard.namespace.tenant_key));
                self.remove_all(named(donors, |_| true))
            }
            Removal::OnDevice(owner) => {
                let donors = self.owned.of(owner);
                self.remove_all(named(donors, |donor| donor.medium == Medium::Device))
            }
            Removal::OlderThan(owner, generation) => {
                let donors = self.owned.of(owner);
                self.remove_all(named(donors, |donor| donor.owner_generation < *generation))
            }
            Removal::Namespace(name) => {
                let shard = self.known(name)?;
                let donors: Vec<_> = shard.read().iter().map(Arc::clone).collect();
                let donors = donors.into_iter().map(|donor| (Arc::clone(&shard), donor));
                self.remove_all(named(donors, |_| true))
            }
        }
    }

    fn remove_all(
        &mut self,
        donors: impl Iterator<Item = (Arc<Shard>, Box<str>)>,
    ) -> Result<u64, WriteRefusal> {
        let mut removed = 0;
        for (shard, donor_id) in donors {
            if !self.drop_one(&shard, &donor_id)? {
                continue;
            }
            removed += 1;
            if removed % BATCH_MAX as u64 == 0 {
                self.commit_log()?;
            }
        }
        self.commit_log()?;
        self.eviction.compact(&self.catalog);
        Ok(removed)
    }

    /// Takes a donor out of the search and notes that in the log; false where there was none.
    pub(super) fn drop_one(&mut self, shard: &Shard, donor_id: &str) -> Result<bool, StoreError> {
        let Some(donor) = self.catalog.unpublish(shard, donor_id) else {
            return Ok(false);
        };
        self.log.forget(donor.place.get());
        self.note_removal(&donor_key(shard.id, donor_id))?;
        Ok(true)
    }

    pub(super) fn note_removal(&mut self, key: &[u8]) -> Result<(), StoreError> {
        let removal = LogChange {
            kind: Kind::Delete,
            sequence: self.store.next_sequence()?,
            key,
            parts: &[],
        };
        self.log.append(&removal)?;
        Ok(())
    }

    fn known(&self, name: &NamespaceName) -> Result<Arc<Shard>, WriteRefusal> {
        let shard = self.catalog.shard(id_of(name));
        shard.ok_or(WriteRefusal::UnknownNamespace)
    }
}

/// The id of a namespace, however it is named.
pub(super) fn id_of(name: &NamespaceName) -> NamespaceId {
    match name {
        NamespaceName::Id(id) => *id,
        NamespaceName::Full(namespace) => namespace.id(),
    }
}

fn named(
    donors: impl IntoIterator<Item = (Arc<Shard>, Arc<Donor>)>,
    is_wanted: impl Fn(&Donor) -> bool,
) -> impl Iterator<Item = (Arc<Shard>, Box<str>)> {
    donors
        .into_iter()
        .filter(move |(_, donor)| is_wanted(donor))
        .map(|(shard, donor)| (shard, donor.id.clone()))
}
