//! Group commit: one sync makes durable what everybody who waits has written.

use parking_lot::{Condvar, Mutex};

use super::error::StoreError;

/// Of those who wait, one leads: it syncs for all whose call came before the sync began.
#[derive(Debug, Default)]
pub(super) struct GroupCommit {
    turn: Mutex<Turn>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Turn {
    commits: u64,
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
        let mut turn = self.turn.lock();
        turn.commits += 1;
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
        let turn = self.turn.lock();
        CommitCounts {
            commits: turn.commits,
            syncs: turn.finished,
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;

    fn failed() -> StoreError {
        StoreError::SyncFailed {
            cause: "no disk".to_owned(),
        }
    }

    fn wait_for(group: &GroupCommit, commits: u64) {
        while group.counts().commits < commits {
            std::thread::yield_now();
        }
    }

    #[test]
    fn one_sync_serves_all_that_came_before_it() {
        let group = GroupCommit::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                group.commit(|| {
                    wait_for(&group, 9);
                    Ok(())
                })
            });
            wait_for(&group, 1);
            for _ in 0..8 {
                scope.spawn(|| group.commit(|| Ok(())));
            }
        });
        assert_eq!(
            group.counts(),
            CommitCounts {
                commits: 9,
                syncs: 2
            }
        );
    }

    #[test]
    fn a_commit_returns_after_a_sync_that_began_after_its_write() {
        let group = GroupCommit::default();
        let clock = AtomicU64::new(1);
        let last_sync_began = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let written = clock.fetch_add(1, SeqCst);
                        let sync = || {
                            let began = clock.fetch_add(1, SeqCst);
                            std::thread::yield_now();
                            last_sync_began.fetch_max(began, SeqCst);
                            Ok(())
                        };
                        group.commit(sync).unwrap();
                        assert!(last_sync_began.load(SeqCst) > written);
                    }
                });
            }
        });
    }

    #[test]
    fn a_failed_sync_fails_all_that_wait_and_all_that_come() {
        let group = GroupCommit::default();
        std::thread::scope(|scope| {
            let lead = scope.spawn(|| {
                group.commit(|| {
                    wait_for(&group, 3);
                    Err(failed())
                })
            });
            wait_for(&group, 1);
            let followers = [
                scope.spawn(|| group.commit(|| Ok(()))),
                scope.spawn(|| group.commit(|| Ok(()))),
            ];
            assert!(lead.join().unwrap().is_err());
            for follower in followers {
                assert!(matches!(
                    follower.join().unwrap(),
                    Err(StoreError::SyncFailed { .. })
                ));
            }
        });
        assert!(
            group.commit(|| Ok(())).is_err(),
            "what was lost does not come back"
        );
        assert_eq!(group.counts().syncs, 1);
    }

    #[test]
    fn a_panic_in_a_sync_leaves_nobody_waiting() {
        let group = GroupCommit::default();
        std::thread::scope(|scope| {
            let lead = scope.spawn(|| {
                group.commit(|| {
                    wait_for(&group, 2);
                    panic!("on purpose")
                })
            });
            wait_for(&group, 1);
            let follower = scope.spawn(|| group.commit(|| Ok(())));
            assert!(lead.join().is_err());
            assert!(follower.join().unwrap().is_err());
        });
    }
}
