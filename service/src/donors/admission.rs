//! Decides what becomes of a registration, and stages it for the next commit.

use std::{collections::HashSet, sync::Arc};

use kvatlas_events::event::EngineHash;
use prost::Message;

use super::{
    catalog::{Donor, NAMESPACES_MAX, Shard},
    index::Prepared,
    namespace::NamespaceId,
    owners::{Owner, OwnerRefusal},
    record::{DonorRecord, LoggedDonor, NamespaceRecord, Settings, donor_key, medium_to_number},
    removal::id_of,
    vocabulary::Medium,
    writer::Writer,
    writes::{
        Admission, Capacity, NamespaceName, NewDonor, Registered, Reply, TEXT_BYTES_MAX,
        WriteRefusal,
    },
};
use crate::{
    leases::Claim,
    store::{
        StoreError,
        log::{Kind, LogChange, Place, PlaceCell},
    },
};

/// What one commit will make durable, and what follows it. The records of the donors wait in the
/// log already.
#[derive(Debug, Default)]
pub(super) struct Stage {
    /// Keys and records of namespaces.
    pub(super) namespaces: Vec<(NamespaceId, Vec<u8>)>,
    pub(super) forgotten: Vec<NamespaceId>,
    /// Keys of the staged donors.
    keys: HashSet<Vec<u8>>,
    pub(super) shards: Vec<Arc<Shard>>,
    pub(super) donors: Vec<Staged>,
    tokens: u64,
    pub(super) replies: Vec<(Reply<Registered>, Registered)>,
}

#[derive(Debug)]
pub(super) struct Staged {
    pub(super) shard: Arc<Shard>,
    pub(super) donor: Arc<Donor>,
    pub(super) prepared: Prepared,
    pub(super) block_names: Vec<EngineHash>,
}

/// A registration whose tokens are packed and sampled.
#[derive(Debug)]
pub(super) struct PreparedDonor {
    pub(super) new: NewDonor,
    pub(super) prepared: Prepared,
}

impl Writer {
    /// Decides on one registration and notes what is to be written and published.
    pub(super) fn stage(
        &mut self,
        donor: PreparedDonor,
        stage: &mut Stage,
    ) -> Result<Registered, WriteRefusal> {
        let PreparedDonor { mut new, prepared } = donor;
        let owner = self.catalog.owners.get_or_add(&new.owner, new.now_ms)?;
        let announced = owner.life.generation();
        if new.owner_generation < announced {
            let given = new.owner_generation;
            return Err(OwnerRefusal::OldGeneration { given, announced }.into());
        }
        owner.life.know(new.owner_generation);
        let shard = self.shard(&new.namespace, stage)?;
        check_names(&new, &shard)?;
        let key = donor_key(shard.id, &new.donor_id);
        if stage.keys.contains(&key) {
            self.flush(stage);
        }
        let registered = |admission, evicted| Registered {
            admission,
            namespace: shard.id,
            evicted,
        };
        // Where nothing is stored, an older registration under the id serves nobody any more.
        if new.captured.is_empty() {
            self.drop_one(&shard, &new.donor_id)?;
            return Ok(registered(Admission::NothingCaptured, 0));
        }
        if let Some(covering) = self.covering(&shard, &new, &prepared, stage) {
            self.drop_one(&shard, &new.donor_id)?;
            return Ok(registered(Admission::Covered(covering), 0));
        }
        let evicted = self.make_room(&shard, &new, stage)?;
        let replaces = shard.read().by_id(&new.donor_id).is_some();
        let sequence = self.store.next_sequence()?;
        let place = self.append(&new, &key, (&prepared, sequence))?;
        stage.keys.insert(key);
        stage.tokens += new.captured.len() as u64;
        stage.donors.push(Staged {
            shard: Arc::clone(&shard),
            block_names: std::mem::take(&mut new.block_names),
            donor: Arc::new(self.donor(new, owner, (sequence, place))),
            prepared,
        });
        let admission = if replaces {
            Admission::Replaced
        } else {
            Admission::Added
        };
        Ok(registered(admission, evicted))
    }

    fn append(
        &mut self,
        new: &NewDonor,
        key: &[u8],
        (prepared, sequence): (&Prepared, u64),
    ) -> Result<Place, StoreError> {
        let record = DonorRecord {
            worker_id: new.owner.worker_id.to_string(),
            data_parallel_rank: new.owner.data_parallel_rank,
            owner_generation: new.owner_generation,
            exact_tokens: new.exact_tokens,
            medium: medium_to_number(new.medium),
            store_id: new.store_id.to_string(),
            source_request_id: new.source_request_id.to_string(),
            epoch: self.catalog.epoch,
            sequence,
            block_names: new.block_names.iter().map(|name| name.0).collect(),
            ..DonorRecord::default()
        };
        let head = LoggedDonor::head(record, &prepared.tokens);
        let text = new.text.as_deref().unwrap_or_default();
        debug_assert!(
            text.len() <= TEXT_BYTES_MAX,
            "the edge lets no longer one in"
        );
        self.log.append(&LogChange {
            kind: Kind::Put,
            sequence,
            key,
            parts: &[&head, prepared.tokens.as_bytes(), text.as_bytes()],
        })
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
        let covers = |donor: &Donor| {
            donor.owner.key == new.owner
                && donor.owner_generation == new.owner_generation
                && donor.medium == new.medium
                && *donor.store_id == *new.store_id
                && donor.exact_tokens >= new.exact_tokens
                && donor.id != new.donor_id
                && (donor.medium != Medium::Device || self.covers_on_device(donor, new))
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

    // What is known to be there covers what goes no further. Of two that nobody has confirmed the
    // older one will do, unless the newer one says more of itself or the older is of another run.
    fn covers_on_device(&self, donor: &Donor, new: &NewDonor) -> bool {
        match donor.claim.residency.live_tokens() {
            Some(live) => live as usize >= new.captured.len(),
            None => donor.epoch == self.catalog.epoch && new.block_names.is_empty(),
        }
    }

    fn donor(&self, new: NewDonor, owner: Arc<Owner>, (sequence, place): (u64, Place)) -> Donor {
        Donor {
            id: new.donor_id,
            owner,
            owner_generation: new.owner_generation,
            epoch: self.catalog.epoch,
            sequence,
            captured_tokens: u32::try_from(new.captured.len()).unwrap_or(u32::MAX),
            exact_tokens: new.exact_tokens,
            medium: new.medium,
            store_id: self.catalog.names.share(&new.store_id),
            source_request_id: new.source_request_id,
            place: PlaceCell::new(place),
            has_text: new.text.is_some_and(|text| !text.is_empty()),
            claim: Arc::new(Claim::default()),
            last_hit: self.catalog.tick().into(),
        }
    }

    pub(super) fn shard(
        &mut self,
        name: &NamespaceName,
        stage: &mut Stage,
    ) -> Result<Arc<Shard>, WriteRefusal> {
        let id = id_of(name);
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
        stage.namespaces.push((id, record));
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
            self.log.forget(donor.place.get());
            let key = donor_key(shard.id, &donor.id);
            // A staged record under the same key replaces this one: a removal would end that.
            if !stage.keys.contains(&key) {
                self.note_removal(&key)?;
            }
            evicted += 1;
        }
    }
}

// Only here is the block size known, where the namespace came by its id.
fn check_names(new: &NewDonor, shard: &Shard) -> Result<(), WriteRefusal> {
    let given = new.block_names.len();
    let full = new.captured.len() / (shard.namespace.block_size.max(1) as usize);
    if given == 0 || given == full {
        Ok(())
    } else {
        Err(WriteRefusal::BlockHashes { given, full })
    }
}
