//! What one followed worker tells, passed on to its donors and to the fleet.

use std::sync::Arc;

use kvatlas_events::{
    feed::{News, Reply, State, zmtp::LineError},
    view::{self, SourceId},
};
use parking_lot::Mutex;

use super::fleet::Fleet;
use crate::donors::owners::OwnerKey;

/// The ranks of a worker that have been heard of, and what the view calls each.
pub(super) type Ranks = Arc<Mutex<Vec<(u32, SourceId)>>>;

/// Listens to one worker, whichever way its events come.
#[derive(Debug)]
pub struct Hearing {
    fleet: Arc<Fleet>,
    worker_id: Box<str>,
    namespace: view::Namespace,
    state: State,
    ranks: Ranks,
    /// It was logged that another source brings one of its ranks.
    is_conflict_told: bool,
}

impl Hearing {
    #[must_use]
    pub fn new(fleet: Arc<Fleet>, worker_id: &str, namespace: view::Namespace) -> Hearing {
        Hearing {
            fleet,
            worker_id: worker_id.into(),
            namespace,
            state: State::Stale,
            ranks: Ranks::default(),
            is_conflict_told: false,
        }
    }

    #[must_use]
    pub fn ranks(&self) -> Ranks {
        Arc::clone(&self.ranks)
    }

    /// Takes one piece of news, in the order in which they come about.
    pub fn hear(&mut self, news: News<'_>) -> Reply {
        let residents = &self.fleet.catalog.residents;
        match news {
            News::Follows { rank, source } => return self.follow(rank, source),
            News::Changes { source, changes } => residents.changed(source, changes),
            News::State { state, epoch } => self.set_state(state, epoch),
            News::Failed {
                error: error @ LineError::OtherEngine,
                ..
            } => tracing::warn!(worker = &*self.worker_id, "{error}"),
            News::Failed { socket, error } => {
                let worker = &*self.worker_id;
                tracing::debug!(worker, ?socket, %error, "no connection to an engine's events");
            }
            News::Forgets { source } => {
                residents.forget(source);
                let mut ranks = self.ranks.lock();
                if let Some(at) = ranks.iter().position(|(_, known)| *known == source) {
                    let (rank, _) = ranks.remove(at);
                    self.fleet.remove(&self.owner(rank), source);
                }
            }
        }
        Reply::Heard
    }

    fn follow(&mut self, rank: u32, source: SourceId) -> Reply {
        let key = self.owner(rank);
        if !self.fleet.add(&key, source, self.namespace, self.state) {
            // With every batch of that rank.
            if !std::mem::replace(&mut self.is_conflict_told, true) {
                let worker = &*self.worker_id;
                tracing::error!(
                    worker,
                    rank,
                    "another source brings this rank of the worker: what this one says of it is \
                     not applied, and this one is degraded"
                );
            }
            return Reply::NotYours;
        }
        self.ranks.lock().push((rank, source));
        let catalog = &self.fleet.catalog;
        match catalog.owners.get_or_add(&key, (self.fleet.clock_ms)()) {
            Ok(owner) => {
                catalog.residents.follow(&owner, source, self.namespace);
                if self.state == State::Exact {
                    catalog.residents.set_exact(source, true);
                }
            }
            // Its donors stay unconfirmed, so that none is leased.
            Err(error) => tracing::error!(worker = &*self.worker_id, rank, %error, "donors"),
        }
        Reply::Heard
    }

    fn set_state(&mut self, state: State, epoch: u64) {
        self.state = state;
        let ranks = self.ranks.lock();
        for &(rank, source) in &*ranks {
            self.fleet
                .catalog
                .residents
                .set_exact(source, state == State::Exact);
            self.fleet.set_state(&self.owner(rank), state);
        }
        tracing::info!(
            worker = &*self.worker_id,
            ?state,
            epoch,
            "an engine's events"
        );
    }

    fn owner(&self, rank: u32) -> OwnerKey {
        OwnerKey {
            worker_id: self.worker_id.clone(),
            data_parallel_rank: rank,
        }
    }
}
