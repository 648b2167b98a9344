//! Owners whose events come in over gRPC: each stream is a connection to the engines behind it.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use bytes::Bytes;
use kvatlas_events::{
    feed::{Engine, Frame, Input, Intake, News, Progress, Reply, Want},
    view::{self, SourceId},
};
use parking_lot::Mutex;

use super::{
    fleet::Fleet,
    hearing::{Hearing, Ranks},
    sources::SOURCES_MAX,
};
use crate::donors::owners::OwnerKey;

/// How long an owner that no stream brings is kept, so that a stream that comes back can go on.
pub const IDLE_MS_MAX: u64 = 600_000;

type Tell = Box<dyn FnMut(News<'_>) -> Reply + Send>;

/// Every owner that a stream brought.
#[derive(Debug)]
pub struct Pushed {
    fleet: Arc<Fleet>,
    owners: Mutex<HashMap<OwnerKey, Arc<Mutex<PushedOwner>>>>,
    streams: Mutex<u64>,
}

/// One owner, fed by one stream at a time.
struct PushedOwner {
    intake: Intake<Tell>,
    namespace: view::Namespace,
    has_replay: bool,
    ranks: Ranks,
    /// The number of its first epoch.
    first_epoch: u64,
    /// Who feeds it; None: nobody does.
    stream: Option<u64>,
    /// The number of the replay that was asked for last.
    ask: u32,
    idle_since_ms: u64,
}

impl std::fmt::Debug for PushedOwner {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("PushedOwner")
            .field("progress", &self.intake.progress())
            .finish_non_exhaustive()
    }
}

/// What a stream says of an owner when it names it first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Introduction {
    pub namespace: view::Namespace,
    /// Of the namespace, where one is named.
    pub block_size: Option<u32>,
    /// Batches can be sent again.
    pub has_replay: bool,
}

/// What comes in for an owner.
#[derive(Debug)]
pub enum Message {
    Batch {
        sequence: u64,
        digest: u64,
        payload: Bytes,
        is_replayed: bool,
    },
    ReplayEnded,
    /// Nothing: how does it stand?
    Question,
}

/// Where an owner stands after a message.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    pub progress: Progress,
    /// Batches are to be sent again from here.
    pub replay_from: Option<u64>,
}

/// How an owner is doing.
#[derive(Debug)]
pub struct PushedStatus {
    pub owner: OwnerKey,
    pub ranks: Vec<(u32, SourceId)>,
    pub progress: Progress,
    /// The number of its first epoch.
    pub first_epoch: u64,
}

/// Why a stream cannot bring an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushRefusal {
    /// There are [`SOURCES_MAX`] already.
    TooMany,
    /// Its events are brought by another stream, or it was removed.
    Superseded,
    /// Its worker's events are followed over ZMQ.
    Followed,
    /// Another owner brings the rank that the batch names, or the owner.
    RankTaken,
}

impl Pushed {
    #[must_use]
    pub fn new(fleet: Arc<Fleet>) -> Pushed {
        Pushed {
            fleet,
            owners: Mutex::default(),
            streams: Mutex::new(0),
        }
    }

    /// A stream begins.
    #[must_use]
    pub fn open(self: &Arc<Self>) -> PushStream {
        let mut streams = self.streams.lock();
        *streams += 1;
        PushStream {
            pushed: Arc::clone(self),
            number: *streams,
            owners: HashMap::new(),
        }
    }

    /// Takes a worker's owners out of the view; returns their ranks.
    pub fn forget(&self, worker_id: &str) -> Vec<u32> {
        let is_gone = |key: &OwnerKey| *key.worker_id == *worker_id;
        self.take(|key, _| is_gone(key))
    }

    /// Forgets those that nobody has brought for a while.
    pub fn sweep(&self, now_ms: u64) {
        self.take(|_, owner| {
            owner.stream.is_none() && now_ms.saturating_sub(owner.idle_since_ms) > IDLE_MS_MAX
        });
    }

    /// Whether any stream brings, or brought, this worker.
    #[must_use]
    pub fn has(&self, worker_id: &str) -> bool {
        let owners = self.owners.lock();
        owners.keys().any(|key| *key.worker_id == *worker_id)
    }

    /// How every owner is doing, with the ranks that it has.
    #[must_use]
    pub fn statuses(&self) -> Vec<PushedStatus> {
        let owners = self.owners.lock();
        let mut statuses: Vec<_> = owners
            .iter()
            .map(|(key, owner)| {
                let owner = owner.lock();
                let ranks = owner.ranks.lock().clone();
                PushedStatus {
                    owner: key.clone(),
                    ranks,
                    progress: owner.progress(),
                    first_epoch: owner.first_epoch,
                }
            })
            .collect();
        statuses.sort_by(|one, other| one.owner.cmp(&other.owner));
        statuses
    }

    fn take(&self, is_gone: impl Fn(&OwnerKey, &PushedOwner) -> bool) -> Vec<u32> {
        let mut ranks = Vec::new();
        self.owners.lock().retain(|key, owner| {
            let mut owner = owner.lock();
            let stays = !is_gone(key, &owner);
            if !stays {
                ranks.push(key.data_parallel_rank);
                ranks.extend(owner.ranks.lock().iter().map(|(rank, _)| *rank));
                self.fleet.end_epochs(owner.progress().epoch);
                owner.stream = None;
                owner.intake.forget();
            }
            stays
        });
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    // The owner as this stream brings it: a new one, or one that an earlier stream brought.
    fn introduce(
        &self,
        key: &OwnerKey,
        introduction: Introduction,
        stream: u64,
    ) -> Result<Arc<Mutex<PushedOwner>>, PushRefusal> {
        let mut owners = self.owners.lock();
        let count = owners.len();
        let entry = match owners.entry(key.clone()) {
            Entry::Occupied(known) => {
                let owner = Arc::clone(known.get());
                let mut held = owner.lock();
                let is_same = held.namespace == introduction.namespace
                    && held.has_replay == introduction.has_replay;
                if is_same {
                    held.stream = Some(stream);
                    drop(held);
                    return Ok(owner);
                }
                self.fleet.end_epochs(held.progress().epoch);
                held.stream = None;
                held.intake.forget();
                drop(held);
                Entry::Occupied(known)
            }
            vacant @ Entry::Vacant(_) if count < SOURCES_MAX => vacant,
            Entry::Vacant(_) => return Err(PushRefusal::TooMany),
        };
        let mut owner = self.owner(key, introduction, stream);
        if owner.intake.not_ours().is_some() {
            owner.intake.forget();
            if let Entry::Occupied(known) = entry {
                known.remove();
            }
            return Err(PushRefusal::RankTaken);
        }
        let owner = Arc::new(Mutex::new(owner));
        entry.insert_entry(Arc::clone(&owner));
        Ok(owner)
    }

    fn owner(&self, key: &OwnerKey, introduction: Introduction, stream: u64) -> PushedOwner {
        let Introduction {
            namespace,
            block_size,
            has_replay,
        } = introduction;
        let mut hearing = Hearing::new(Arc::clone(&self.fleet), &key.worker_id, namespace);
        let ranks = hearing.ranks();
        let engine = Engine {
            namespace,
            block_size,
            rank: key.data_parallel_rank,
            has_replay,
        };
        let tell: Tell = Box::new(move |news| hearing.hear(news));
        PushedOwner {
            intake: Intake::new(engine, &self.fleet.shared, tell),
            namespace,
            has_replay,
            ranks,
            first_epoch: self.fleet.first_epoch(),
            stream: Some(stream),
            ask: 0,
            idle_since_ms: 0,
        }
    }
}

/// One stream, and the owners that it brings. What it brought is stale once it is dropped.
#[derive(Debug)]
pub struct PushStream {
    pushed: Arc<Pushed>,
    number: u64,
    owners: HashMap<OwnerKey, Arc<Mutex<PushedOwner>>>,
}

impl PushStream {
    /// Whether the stream has named the owner before.
    #[must_use]
    pub fn knows(&self, key: &OwnerKey) -> bool {
        self.owners.contains_key(key)
    }

    /// The first that the stream says of an owner; a stream that brought it before ends for it.
    pub fn introduce(
        &mut self,
        key: &OwnerKey,
        introduction: Introduction,
        now_ms: u64,
    ) -> Result<Option<u64>, PushRefusal> {
        let owner = self.pushed.introduce(key, introduction, self.number)?;
        self.owners.insert(key.clone(), Arc::clone(&owner));
        let mut owner = owner.lock();
        owner.step(Input::Lost, now_ms);
        Ok(owner.step(Input::Connected, now_ms))
    }

    /// What comes for an owner that the stream has introduced.
    pub fn take(
        &mut self,
        key: &OwnerKey,
        message: Message,
        now_ms: u64,
    ) -> Result<Standing, PushRefusal> {
        let owner = self.owners.get(key).ok_or(PushRefusal::Superseded)?;
        let mut owner = owner.lock();
        if owner.stream != Some(self.number) {
            return Err(PushRefusal::Superseded);
        }
        let input = match message {
            Message::Question => return Ok(owner.standing(None)),
            Message::ReplayEnded => Input::Ended { ask: owner.ask },
            Message::Batch {
                sequence,
                digest,
                payload,
                is_replayed,
            } => {
                let frame = Frame {
                    sequence,
                    digest,
                    payload,
                };
                match is_replayed {
                    true => Input::Replayed {
                        ask: owner.ask,
                        frame,
                    },
                    false => Input::Live(frame),
                }
            }
        };
        let replay_from = owner.step(input, now_ms);
        match owner.intake.not_ours() {
            Some(_) => Err(PushRefusal::RankTaken),
            None => Ok(owner.standing(replay_from)),
        }
    }

    /// When something is due, if nothing comes before.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        let deadlines = self.owners.values().filter_map(|owner| {
            let owner = owner.lock();
            let is_ours = owner.stream == Some(self.number);
            is_ours.then(|| owner.intake.deadline_ms()).flatten()
        });
        deadlines.min()
    }

    /// Does what is due; returns the owners of which batches are wanted again.
    pub fn tick(&mut self, now_ms: u64) -> Vec<(OwnerKey, Standing)> {
        let mut wanted = Vec::new();
        for (key, owner) in &self.owners {
            let mut owner = owner.lock();
            let is_due = owner.intake.deadline_ms().is_some_and(|due| due <= now_ms);
            if is_due
                && owner.stream == Some(self.number)
                && let Some(from) = owner.step(Input::Tick, now_ms)
            {
                wanted.push((key.clone(), owner.standing(Some(from))));
            }
        }
        wanted
    }
}

impl Drop for PushStream {
    fn drop(&mut self) {
        let now_ms = (self.pushed.fleet.clock_ms)();
        for owner in self.owners.values() {
            let mut owner = owner.lock();
            if owner.stream == Some(self.number) {
                owner.step(Input::Lost, now_ms);
                owner.stream = None;
                owner.idle_since_ms = now_ms;
            }
        }
    }
}

impl PushedOwner {
    /// Where batches are wanted from, if any are.
    fn step(&mut self, input: Input<Bytes>, now_ms: u64) -> Option<u64> {
        match self.intake.step(input, now_ms)? {
            Want::Ask { ask, from } => {
                self.ask = ask;
                Some(from)
            }
            // The engine may be another one by now: as if the stream had been opened anew.
            Want::Reconnect => {
                let _nothing_can_be_asked_for = self.intake.step(Input::Lost, now_ms);
                match self.intake.step(Input::Connected, now_ms) {
                    Some(Want::Ask { ask, from }) => {
                        self.ask = ask;
                        Some(from)
                    }
                    Some(Want::Reconnect) | None => None,
                }
            }
        }
    }

    fn progress(&self) -> Progress {
        let progress = self.intake.progress();
        Progress {
            epoch: self.first_epoch + progress.epoch,
            ..progress
        }
    }

    fn standing(&self, replay_from: Option<u64>) -> Standing {
        Standing {
            progress: self.progress(),
            replay_from,
        }
    }
}
