//! Group commit: one sync makes durable what everybody who waits has written.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Condvar, Mutex};

use super::error::StoreError;

/// Of those who wait, one leads: it syncs for all whose call came before the sync began.
#[derive(Debug, Default)]
pub(super) struct GroupCommit {
    turn: Mutex<Turn>,
    changed: Condvar,
    commits: AtomicU64,
}

#[derive(Debug, Default)]
struct Turn {
    started: u64,
    finished: u64,
    /// The first failure. The kernel may drop dirty pages after a failed sync and report the
    /// next one as a success, so that no later success can be believed.
    failure: Option<String>,
}

/// Calls of commit, and the syncs that served them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CommitCounts {
    pub commits: u64,
    pub syncs: u64,
}

impl GroupCommit {
    /// Returns after a `sync` that began after this call, by this thread or by another.
    pub(super) fn commit(
        &self,
        sync: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.commits.fetch_add(1, Relaxed);
        let mut turn = self.turn.lock();
        let wanted = turn.started + 1;
        loop {
            if let Some(cause) = &turn.failure {
                return Err(StoreError::SyncFailed {
                    cause: cause.clone(),
                });
            }
            if turn.finished >= wanted {
                return Ok(());
            }
            if turn.started == turn.finished {
                break;
            }
            self.changed.wait(&mut turn);
        }
        turn.started += 1;
        drop(turn);
        let lead = Lead {
            group: self,
            failure: Some("the sync panicked".to_owned()),
        };
        lead.finish(sync())
    }

    pub(super) fn has_failed(&self) -> bool {
        self.turn.lock().failure.is_some()
    }

    pub(super) fn counts(&self) -> CommitCounts {
        CommitCounts {
            commits: self.commits.load(Relaxed),
            syncs: self.turn.lock().finished,
        }
    }
}

/// Ends the turn also when the sync panics: else everybody would wait for ever.
struct Lead<'a> {
    group: &'a GroupCommit,
    failure: Option<String>,
}

impl Lead<'_> {
    fn finish(mut self, outcome: Result<(), StoreError>) -> Result<(), StoreError> {
        self.failure = outcome.as_ref().err().map(ToString::to_string);
        outcome
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut turn = self.group.turn.lock();
        turn.finished = turn.started;
        turn.failure = self.failure.take();
        self.group.changed.notify_all();
    }
}
