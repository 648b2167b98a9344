//! What is between a transport and the view: what comes is tracked, decoded and applied, and what
//! that changed is told.
//!
//! ```text
//! transport -> Input -> Track -> decode -> View, per rank -> News
//!      ^-------- Want ----/
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::held::Room;
use super::inputs::{Action, Input, State};
use super::track::Track;
use super::zmtp::LineError;
use crate::event::Event;
use crate::view::{Change, Counts, Namespace, SourceId, View};
use crate::wire::decode;

/// Ranks that the batches of one source may name.
pub const RANKS_MAX: usize = 64;

/// What a feed tells, in the order in which it came about.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// A rank is followed: its blocks are in the view under this name from now on. Unless the reply
    /// is that it is another source's: then nothing more is told of it.
    Follows { rank: u32, source: SourceId },
    /// What became of a rank's blocks on the device.
    Changes {
        source: SourceId,
        changes: &'a [Change],
    },
    /// How far all of it can be relied on, told before it is less and after it is more.
    State { state: State, epoch: u64 },
    /// There is no connection, and why.
    Failed {
        socket: Socket,
        error: &'a LineError,
    },
    /// The rank is no longer in the view.
    Forgets { source: SourceId },
}

/// What is said to a piece of news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Heard,
    /// Another source brings that rank of the worker: these batches are not to be applied.
    NotYours,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Socket {
    Events,
    Replay,
}

/// How far a feed is, and what it met, since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub state: State,
    pub epoch: u64,
    /// The first and the last batch applied in this epoch.
    pub applied: Option<(u64, u64)>,
    pub met: Met,
    /// What became of the events.
    pub outcomes: Counts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Batches that were applied, those that could not be read included.
    pub batches: u64,
    /// Events that were applied.
    pub events: u64,
    /// Events that were left out, by reason.
    pub unknown_events: u64,
    pub malformed_events: u64,
    /// Payloads that are no batch.
    pub decode_errors: u64,
    /// Messages that are no frame of a batch.
    pub malformed_messages: u64,
    /// Batches of a rank beyond [`RANKS_MAX`], for which the view has no room, or that another
    /// source brings.
    pub refused_batches: u64,
    /// Batches that had to wait for a replay and found no room: see [`Room`].
    pub dropped_batches: u64,
    /// Numbers that were passed over between two frames of one connection.
    pub gaps: u64,
    /// Replays asked for, and batches that they brought.
    pub replays: u64,
    pub replayed_frames: u64,
    /// Connections made, and lost or refused.
    pub connections: u64,
    pub failures: u64,
}

/// What a transport is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Ask the engine for all batches from this one on, and hand in what comes under the number
    /// of the ask. A replay that was asked for before is given up.
    Ask { ask: u32, from: u64 },
    /// Drop the connection, and make another one.
    Reconnect,
}

/// What all sources share.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    pub view: Arc<View>,
    /// For what has to wait.
    pub room: Arc<Room>,
}

/// Whose batches come in.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    pub namespace: Namespace,
    /// Tokens of its blocks, where that is known. See [`View::set_block_size`].
    pub block_size: Option<u32>,
    /// Of batches that name none.
    pub rank: u32,
    /// It can be asked for batches once more.
    pub has_replay: bool,
}

/// The batches of one engine on their way into the view.
#[derive(Debug)]
pub struct Intake<F> {
    engine: Engine,
    view: Arc<View>,
    tell: F,
    track: Track<Bytes>,
    /// The latest number that came live over this connection.
    live: Option<u64>,
    ranks: BTreeMap<u32, SourceId>,
    /// The rank that is followed before any batch came: an idle engine publishes nothing, and is
    /// there all the same.
    expected: Option<u32>,
    /// A rank that the latest step met, and another source brings.
    not_ours: Option<u32>,
    met: Met,
    outcomes: Counts,
    /// The state and the epoch that were told last.
    told: (State, u64),
    actions: Vec<Action<Bytes>>,
    changes: Vec<Change>,
}

impl<F: FnMut(News<'_>) -> Reply> Intake<F> {
    /// Follows the rank of batches that name none from the beginning.
    pub fn new(engine: Engine, shared: &Shared, tell: F) -> Self {
        let Shared { view, room } = shared.clone();
        let mut intake = Self {
            track: Track::new(engine.has_replay, room),
            engine,
            view,
            tell,
            live: None,
            ranks: BTreeMap::new(),
            expected: None,
            not_ours: None,
            met: Met::default(),
            outcomes: Counts::default(),
            told: (State::Stale, 0),
            actions: Vec::new(),
            changes: Vec::new(),
        };
        intake.expected = intake.source_of(engine.rank).map(|_| engine.rank);
        intake
    }

    /// Takes what happened, as [`Track::step`] does, and carries out what follows from it but for
    /// what it returns. `now_ms` never goes back.
    pub fn step(&mut self, input: Input<Bytes>, now_ms: u64) -> Option<Want> {
        self.count(&input);
        self.not_ours = None;
        let mut epoch = self.track.epoch();
        let mut actions = std::mem::take(&mut self.actions);
        self.track.step(input, now_ms, &mut actions);
        self.tell_less();
        let mut want = None;
        for action in actions.drain(..) {
            match action {
                Action::Apply(payload) => self.apply(&payload, epoch),
                Action::Begin => {
                    epoch += 1;
                    self.begin();
                }
                Action::Ask { ask, from } => {
                    self.met.replays += 1;
                    want = Some(Want::Ask { ask, from });
                }
                Action::Reconnect => want = Some(Want::Reconnect),
            }
        }
        self.actions = actions;
        self.tell_state();
        if self.engine.has_replay && !self.track.believes_replay() {
            self.engine.has_replay = false;
            self.failed(Socket::Replay, &LineError::OtherEngine);
        }
        want
    }

    /// When an [`Input::Tick`] is due, whatever else comes.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        self.track.deadline_ms()
    }

    /// A rank that another source brings, where the latest step met one: batches of it were not
    /// applied. Before the first step it is the engine's own.
    #[must_use]
    pub fn not_ours(&self) -> Option<u32> {
        self.not_ours
    }

    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            state: self.track.state(),
            epoch: self.track.epoch(),
            applied: self.track.applied(),
            met: Met {
                dropped_batches: self.track.dropped(),
                ..self.met
            },
            outcomes: self.outcomes,
        }
    }

    /// A connection could not be made, or is over. To be followed by [`Input::Lost`] or
    /// [`Input::Failed`].
    pub fn failed(&mut self, socket: Socket, error: &LineError) {
        self.met.failures += 1;
        self.tell(News::Failed { socket, error });
    }

    /// A message came that is no frame of a batch.
    pub fn malformed(&mut self) {
        self.met.malformed_messages += 1;
    }

    /// Takes everything out of the view. What came is forgotten, and more must not come.
    pub fn forget(&mut self) {
        self.tell_state_as(State::Stale);
        self.track.forget();
        for source in std::mem::take(&mut self.ranks).into_values() {
            self.forget_rank(source);
        }
    }

    fn forget_rank(&mut self, source: SourceId) {
        let counts = self.view.remove(source, &mut self.changes);
        self.tell_changes(source, counts);
        self.tell(News::Forgets { source });
    }

    fn count(&mut self, input: &Input<Bytes>) {
        match input {
            Input::Connected => {
                self.met.connections += 1;
                self.live = None;
            }
            Input::Lost => self.live = None,
            Input::Live(frame) => {
                let before = self.live.replace(frame.sequence);
                let is_gap = before.is_some_and(|before| {
                    frame.sequence.checked_sub(before).is_some_and(|by| by > 1)
                });
                self.met.gaps += u64::from(is_gap);
            }
            Input::Replayed { .. } => self.met.replayed_frames += 1,
            Input::Ended { .. } | Input::Failed { .. } | Input::Tick => {}
        }
    }

    fn apply(&mut self, payload: &[u8], epoch: u64) {
        self.met.batches += 1;
        let Ok(batch) = decode(payload) else {
            self.met.decode_errors += 1;
            return self.doubt(epoch);
        };
        self.met.events += batch.events.len() as u64;
        self.met.unknown_events += u64::from(batch.rejected.unknown);
        self.met.malformed_events += u64::from(batch.rejected.malformed);
        if batch.rejected.may_hide_removal {
            self.doubt(epoch);
        }
        let rank = batch.rank.unwrap_or(self.engine.rank);
        if let Some(expected) = self.expected.take().filter(|&expected| expected != rank)
            && let Some(source) = self.ranks.remove(&expected)
        {
            self.forget_rank(source);
        }
        let Some(source) = self.source_of(rank) else {
            self.met.refused_batches += 1;
            if self.not_ours.is_some() {
                // Whoever sees to it that each rank comes once shall not find everything exact.
                self.doubt(epoch);
            }
            return;
        };
        let counts = self.view.apply(source, &batch.events, &mut self.changes);
        self.tell_changes(source, counts);
        let is_cleared = batch.events.contains(&Event::Cleared) && self.ranks.len() == 1;
        if is_cleared && !batch.rejected.may_hide_removal {
            self.track.understand(epoch);
        }
    }

    fn doubt(&mut self, epoch: u64) {
        self.track.doubt(epoch);
        self.tell_less();
    }

    fn source_of(&mut self, rank: u32) -> Option<SourceId> {
        if let Some(&source) = self.ranks.get(&rank) {
            return Some(source);
        }
        if self.ranks.len() == RANKS_MAX {
            return None;
        }
        let source = self.view.add(self.engine.namespace)?;
        if (self.tell)(News::Follows { rank, source }) == Reply::NotYours {
            // Nothing is in it that would have to be told.
            let _nothing = self.view.remove(source, &mut Vec::new());
            self.not_ours = Some(rank);
            return None;
        }
        if let Some(block_size) = self.engine.block_size {
            self.view.set_block_size(source, block_size);
        }
        self.ranks.insert(rank, source);
        Some(source)
    }

    fn tell(&mut self, news: News<'_>) {
        // Only whether a rank is taken is asked.
        let _heard = (self.tell)(news);
    }

    fn begin(&mut self) {
        for source in self.ranks.clone().into_values() {
            let counts = self.view.reset(source, &mut self.changes);
            self.tell_changes(source, counts);
        }
    }

    fn tell_changes(&mut self, source: SourceId, counts: Option<Counts>) {
        self.outcomes += counts.unwrap_or_default();
        if !self.changes.is_empty() {
            let changes = &self.changes;
            let _heard = (self.tell)(News::Changes { source, changes });
            self.changes.clear();
        }
    }

    /// What is lost of the state is told before what follows from it, what is gained after.
    fn tell_less(&mut self) {
        if self.track.state() != State::Exact {
            self.tell_state();
        }
    }

    fn tell_state(&mut self) {
        self.tell_state_as(self.track.state());
    }

    fn tell_state_as(&mut self, state: State) {
        let told = (state, self.track.epoch());
        if told != std::mem::replace(&mut self.told, told) {
            let (state, epoch) = told;
            self.tell(News::State { state, epoch });
        }
    }
}

#[cfg(test)]
mod tests;
