//! What the frames of one source mean: which batch to apply, when to ask for a replay, and when
//! nothing that was applied can be trusted any more.
//!
//! An engine numbers its batches from 0 and says neither when it restarts nor when it lost one.
//! What is applied is therefore always an unbroken run of one engine's batches, and one of two
//! things ties it to the engine that is there now: the connection it came over, as one connection
//! reaches one process; or, after that was lost, a replay that begins with the last batch applied
//! and brings the same bytes. Where neither does, a new epoch begins with nothing.
//!
//! A run that does not begin with the engine's first batch claims too little and never too much:
//! every removal since is in it.
//!
//! What continues an exact run is applied at once, also where a replay runs beside it: a removal
//! must not wait. Where anything else has to wait, the run is not exact.

use std::sync::Arc;

use super::held::{Held, Room};
use super::inputs::{Action, Frame, Input, State};
use super::recent::Recent;

/// Replays that bring nothing new before the source goes on without.
pub const ASKS_MAX: u32 = 4;
/// How long a replay may pause: an engine serves one between two batches, and may lose its end.
pub const REPLAY_PAUSE_MS_MAX: u64 = 2_000;
/// How long a replay may go on that brings nothing new.
pub const REPLAY_FRUITLESS_MS_MAX: u64 = 10_000;
/// Contradictions between what comes live and the replay before that is another engine's, and no
/// longer asked for.
pub const CONTRADICTIONS_MAX: u32 = 3;
/// How long to wait after a replay that failed, times the failures so far.
pub const ASK_REST_MS: u64 = 200;
/// After how much silence a replay is asked for, to find what was lost at the end.
pub const SILENCE_MS_MAX: u64 = 10_000;

/// One source, a (worker, rank).
#[derive(Debug)]
pub struct Track<P: AsRef<[u8]>> {
    has_replay: bool,
    state: State,
    /// A batch of this epoch was not understood in all its parts.
    is_doubted: bool,
    epoch: u64,
    /// The first and the last batch applied in this epoch.
    first: Option<u64>,
    last: Option<u64>,
    connection: Option<Connection>,
    heard_ms: u64,
    replay: Replay,
    asks: u32,
    /// Asks since one brought something new.
    tries: u32,
    /// How often in a row what came live was not what the replay had brought.
    contradictions: u32,
    recent: Recent,
    held: Held<P>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    /// The latest number that came live.
    live: Option<u64>,
    /// The last batch applied is from the engine at this connection.
    is_sure: bool,
    /// A replay was had: where none comes any more, something is wrong.
    is_answered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replay {
    None,
    Running {
        ask: u32,
        deadline_ms: u64,
        /// When it is over if it brings nothing new.
        fruitless_ms: u64,
        /// It is from the engine that the last batch applied is from.
        is_verified: bool,
    },
    Resting {
        until_ms: u64,
    },
}

impl<P: AsRef<[u8]> + From<Vec<u8>>> Track<P> {
    /// What has to wait takes room in `room`.
    #[must_use]
    pub fn new(has_replay: bool, room: Arc<Room>) -> Self {
        Self {
            has_replay,
            state: State::Stale,
            is_doubted: false,
            epoch: 0,
            first: None,
            last: None,
            connection: None,
            heard_ms: 0,
            replay: Replay::None,
            asks: 0,
            tries: 0,
            contradictions: 0,
            recent: Recent::default(),
            held: Held::new(room),
        }
    }

    #[must_use]
    pub fn state(&self) -> State {
        if self.is_doubted && self.state == State::Exact {
            State::Degraded
        } else {
            self.state
        }
    }

    /// A batch that was applied in an epoch is damaged: a removal may be lost with it, and until
    /// another epoch only a clear makes up for that. Of an epoch that is over it does not matter.
    pub fn doubt(&mut self, epoch: u64) {
        self.is_doubted |= epoch == self.epoch;
    }

    /// Everything was cleared in an epoch: whatever was not understood before no longer matters.
    pub fn understand(&mut self, epoch: u64) {
        self.is_doubted &= epoch != self.epoch;
    }

    /// A replay can be had, and what came live has not contradicted it time and again.
    #[must_use]
    pub fn believes_replay(&self) -> bool {
        self.has_replay && self.contradictions < CONTRADICTIONS_MAX
    }

    /// Grows with every [`Action::Begin`].
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The first and the last batch applied in this epoch. From 0 on nothing is missing since the
    /// engine's start.
    #[must_use]
    pub fn applied(&self) -> Option<(u64, u64)> {
        Some((self.first?, self.last?))
    }

    /// Frames that had to wait and found no room. They are missing, and asked for again.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.held.dropped
    }

    /// Lets go of what waits: nothing more will come.
    pub fn forget(&mut self) {
        self.held.clear();
    }

    /// When a [`Input::Tick`] is due, whatever else comes.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        match self.replay {
            Replay::Running { deadline_ms, .. } => Some(deadline_ms),
            Replay::Resting { until_ms } => Some(until_ms),
            Replay::None => self.probe_ms(),
        }
    }

    /// Takes what happened and adds what is to be done, in order. `now_ms` never goes back.
    pub fn step(&mut self, input: Input<P>, now_ms: u64, actions: &mut Vec<Action<P>>) {
        let mut step = Step { now_ms, actions };
        match input {
            Input::Connected => self.connected(&mut step),
            Input::Lost => self.lost(&mut step),
            Input::Live(frame) => self.live(frame, &mut step),
            Input::Replayed { ask, frame } if self.is_running(ask) => {
                self.replayed(frame, &mut step);
            }
            Input::Ended { ask } if self.is_running(ask) => self.ended(&mut step),
            Input::Failed { ask } if self.is_running(ask) => self.failed(&mut step),
            Input::Tick => self.tick(&mut step),
            // Left over from a replay that was given up.
            Input::Replayed { .. } | Input::Ended { .. } | Input::Failed { .. } => {}
        }
    }

    fn connected(&mut self, step: &mut Step<'_, P>) {
        self.disconnect();
        self.connection = Some(Connection::default());
        self.heard_ms = step.now_ms;
        if self.last.is_none() {
            self.state = State::Degraded;
        }
        if self.believes_replay() {
            self.ask(step);
        }
    }

    fn lost(&mut self, step: &mut Step<'_, P>) {
        self.disconnect();
        self.state = State::Stale;
        if !self.believes_replay() {
            self.begin(step);
        }
    }

    fn disconnect(&mut self) {
        self.connection = None;
        self.replay = Replay::None;
        self.tries = 0;
        self.held.clear();
    }

    fn live(&mut self, frame: Frame<P>, step: &mut Step<'_, P>) {
        let Some(connection) = &mut self.connection else {
            // Left over from a connection that was given up.
            return;
        };
        let before = connection.live.replace(frame.sequence);
        let is_backwards = before.is_some_and(|before| frame.sequence <= before);
        self.heard_ms = step.now_ms;
        if is_backwards {
            self.held.clear();
            self.begin(step);
            self.state = State::Degraded;
            self.replay = Replay::None;
            self.tries = 0;
            self.accept(frame, step);
        } else if self.replay == Replay::None {
            if self.last.is_some() {
                self.tries = 0;
            }
            self.accept(frame, step);
            self.recent.forget();
        } else if self.state == State::Exact && self.follows(&frame) {
            self.apply(frame, step);
        } else if !self.agrees(&frame) {
            self.held.push_back(&frame);
            if self.state == State::Exact {
                self.state = State::Degraded;
            }
        }
    }

    fn follows(&self, frame: &Frame<P>) -> bool {
        let next = self.last.and_then(|last| last.checked_add(1));
        next == Some(frame.sequence)
    }

    /// A replay over this connection brought it before.
    fn agrees(&mut self, frame: &Frame<P>) -> bool {
        let is_sure = self.connection.is_some_and(|connection| connection.is_sure);
        let agrees = is_sure && self.recent.digest(frame.sequence) == Some(frame.digest);
        if agrees {
            self.contradictions = 0;
        }
        agrees
    }

    /// A frame that follows those applied, as far as anything does; no replay is running.
    fn accept(&mut self, frame: Frame<P>, step: &mut Step<'_, P>) {
        let is_next = match self.last {
            Some(last) if frame.sequence <= last => {
                let known = self.recent.digest(frame.sequence);
                if known.is_none() || self.agrees(&frame) {
                    return;
                }
                self.contradictions += 1;
                self.begin(step);
                false
            }
            Some(_) => self.follows(&frame),
            None => frame.sequence == 0,
        };
        if !is_next && self.believes_replay() && self.tries < ASKS_MAX {
            self.held.push_front(&frame);
            self.state = State::Degraded;
            return self.ask(step);
        }
        if !is_next {
            self.begin(step);
        }
        self.state = State::Exact;
        self.apply(frame, step);
    }

    fn replayed(&mut self, frame: Frame<P>, step: &mut Step<'_, P>) {
        self.here().is_answered = true;
        let Replay::Running {
            deadline_ms,
            fruitless_ms,
            is_verified,
            ..
        } = &mut self.replay
        else {
            return;
        };
        *deadline_ms = (step.now_ms + REPLAY_PAUSE_MS_MAX).min(*fruitless_ms);
        let Some(last) = self.last else {
            *is_verified = true;
            return self.apply_replayed(frame, step);
        };
        if frame.sequence <= last {
            match self.recent.digest(frame.sequence) {
                Some(digest) if digest == frame.digest => {
                    *is_verified = true;
                    self.here().is_sure = true;
                    if self.state == State::Stale {
                        self.state = State::Degraded;
                    }
                    self.join(step);
                }
                Some(_) => self.other_engine(step),
                // So long ago that nothing is known of it.
                None => {}
            }
        } else if !*is_verified {
            // It is not kept any more, and what was removed between is not known.
            self.begin_from_replay(step);
        } else if !self.follows(&frame) && self.tries < ASKS_MAX {
            self.ask(step);
        } else {
            if !self.follows(&frame) {
                self.begin(step);
            }
            self.apply_replayed(frame, step);
        }
    }

    fn apply_replayed(&mut self, frame: Frame<P>, step: &mut Step<'_, P>) {
        self.tries = 0;
        if let Replay::Running { fruitless_ms, .. } = &mut self.replay {
            *fruitless_ms = step.now_ms + REPLAY_FRUITLESS_MS_MAX;
        }
        self.apply(frame, step);
        self.join(step);
    }

    /// The replay is over, without its end, once it brought the first frame that waits.
    fn join(&mut self, step: &mut Step<'_, P>) {
        if self.waits_at_most(self.last) {
            self.settle(step);
        }
    }

    /// The first frame that waits has at most this number, and the replay is this engine's.
    fn waits_at_most(&self, sequence: Option<u64>) -> bool {
        let held = self.held.front().map(|held| held.sequence);
        self.is_verified() && held.is_some() && held <= sequence
    }

    fn ended(&mut self, step: &mut Step<'_, P>) {
        self.here().is_answered = true;
        if self.last.is_none() || self.is_verified() {
            self.settle(step);
        } else {
            // An engine keeps its latest batch: this one never had it.
            self.other_engine(step);
        }
    }

    /// The replay is from another engine than the last batch applied.
    fn other_engine(&mut self, step: &mut Step<'_, P>) {
        if self.connection.is_some_and(|connection| connection.is_sure) {
            // So is the connection, and it has not noticed yet.
            self.begin(step);
            self.reconnect(step);
        } else {
            self.begin_from_replay(step);
        }
    }

    fn begin_from_replay(&mut self, step: &mut Step<'_, P>) {
        self.begin(step);
        self.state = State::Degraded;
        if self.tries < ASKS_MAX {
            self.ask(step);
        } else {
            self.give_up(step);
        }
    }

    /// Where the end did not come something else may be missing too: what is asked for once more
    /// begins with the last batch applied, and costs little.
    fn failed(&mut self, step: &mut Step<'_, P>) {
        let next = self.last.and_then(|last| last.checked_add(1));
        if self.waits_at_most(next) {
            self.settle(step);
        } else if self.tries < ASKS_MAX {
            let until_ms = step.now_ms + ASK_REST_MS * u64::from(self.tries);
            self.replay = Replay::Resting { until_ms };
        } else if self.is_verified() {
            self.settle(step);
        } else {
            self.give_up(step);
        }
    }

    /// No replay can be had.
    fn give_up(&mut self, step: &mut Step<'_, P>) {
        self.replay = Replay::None;
        if self.is_answered() && self.state == State::Exact {
            return self.reconnect(step);
        }
        self.begin(step);
        self.state = State::Degraded;
        self.drain(step);
        self.catch_up(step);
    }

    fn reconnect(&mut self, step: &mut Step<'_, P>) {
        self.disconnect();
        self.state = State::Stale;
        step.actions.push(Action::Reconnect);
    }

    /// The replay is over, and what it brought joins what was applied before.
    fn settle(&mut self, step: &mut Step<'_, P>) {
        self.replay = Replay::None;
        self.heard_ms = step.now_ms;
        self.state = State::Exact;
        self.drain(step);
        self.catch_up(step);
    }

    /// What is still missing once nothing waits any more is asked for, or given up.
    fn catch_up(&mut self, step: &mut Step<'_, P>) {
        if self.replay == Replay::None && self.is_behind() {
            self.state = State::Degraded;
            if self.tries < ASKS_MAX && self.believes_replay() {
                self.ask(step);
            } else {
                self.begin(step);
            }
        }
    }

    fn drain(&mut self, step: &mut Step<'_, P>) {
        while self.replay == Replay::None
            && let Some(frame) = self.held.pop_front()
        {
            self.accept(frame, step);
        }
    }

    fn tick(&mut self, step: &mut Step<'_, P>) {
        if self.deadline_ms().is_none_or(|due| step.now_ms < due) {
            return;
        }
        match self.replay {
            Replay::Running { .. } => self.failed(step),
            Replay::Resting { .. } => self.ask(step),
            Replay::None => {
                self.heard_ms = step.now_ms;
                self.tries = 0;
                self.ask(step);
            }
        }
    }

    fn probe_ms(&self) -> Option<u64> {
        self.is_answered().then_some(self.heard_ms + SILENCE_MS_MAX)
    }

    fn ask(&mut self, step: &mut Step<'_, P>) {
        self.asks = self.asks.wrapping_add(1);
        self.tries += 1;
        self.replay = Replay::Running {
            ask: self.asks,
            deadline_ms: step.now_ms + REPLAY_PAUSE_MS_MAX,
            fruitless_ms: step.now_ms + REPLAY_FRUITLESS_MS_MAX,
            is_verified: false,
        };
        step.actions.push(Action::Ask {
            ask: self.asks,
            from: self.last.unwrap_or(0),
        });
    }

    fn begin(&mut self, step: &mut Step<'_, P>) {
        self.first = None;
        self.recent.clear();
        if self.last.take().is_some() {
            self.epoch += 1;
            self.is_doubted = false;
            step.actions.push(Action::Begin);
        }
    }

    fn apply(&mut self, frame: Frame<P>, step: &mut Step<'_, P>) {
        let Frame {
            sequence,
            digest,
            payload,
        } = frame;
        self.first.get_or_insert(sequence);
        self.last = Some(sequence);
        self.recent.push(sequence, digest);
        self.here().is_sure = true;
        step.actions.push(Action::Apply(payload));
    }

    fn here(&mut self) -> &mut Connection {
        let connection = self.connection.as_mut();
        connection.expect("nothing is asked, held or applied without one")
    }

    /// Later batches came over this connection than the last one applied: those between them went
    /// with an epoch that was given up, or found no room among the frames held.
    fn is_behind(&self) -> bool {
        let live = self.connection.and_then(|connection| connection.live);
        live.is_some_and(|live| self.last.is_none_or(|last| last < live))
    }

    fn is_answered(&self) -> bool {
        self.connection
            .is_some_and(|connection| connection.is_answered)
    }

    fn is_running(&self, number: u32) -> bool {
        matches!(self.replay, Replay::Running { ask, .. } if ask == number)
    }

    fn is_verified(&self) -> bool {
        matches!(
            self.replay,
            Replay::Running {
                is_verified: true,
                ..
            }
        )
    }
}

struct Step<'a, P> {
    now_ms: u64,
    actions: &'a mut Vec<Action<P>>,
}

#[cfg(test)]
mod tests;
