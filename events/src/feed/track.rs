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

use std::collections::VecDeque;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// Frames that wait for a replay to end.
pub const HELD_FRAMES_MAX: usize = 4096;
/// Bytes of payload that wait for a replay to end.
pub const HELD_BYTES_MAX: usize = 64 << 20;
/// Replays that bring nothing new before the source goes on without.
pub const ASKS_MAX: u32 = 4;
/// How long a replay may pause: an engine serves one between two batches, and may lose its end.
pub const REPLAY_PAUSE_MS_MAX: u64 = 2_000;
/// How long to wait after a replay that failed, times the failures so far.
pub const ASK_REST_MS: u64 = 200;
/// After how much silence a replay is asked for, to find what was lost at the end.
pub const SILENCE_MS_MAX: u64 = 10_000;

/// One batch as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<P> {
    pub sequence: u64,
    /// Of the payload; two batches with one digest are the same batch.
    pub digest: u64,
    pub payload: P,
}

impl Frame<Bytes> {
    #[must_use]
    pub fn new(sequence: u64, payload: Bytes) -> Self {
        Self {
            sequence,
            digest: xxh3_64(&payload),
            payload,
        }
    }
}

/// How far a source's blocks can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Not connected, or not yet sure to be connected to the engine that the blocks are from.
    Stale,
    /// That engine's, but batches are missing or were not understood; or nothing is known yet.
    Degraded,
    /// All that the engine published, from the first batch of the epoch to the last one applied.
    Exact,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<P> {
    /// The subscription is up, to one process until it is lost.
    Connected,
    /// Handed in before whatever a later process answers.
    Lost,
    Live(Frame<P>),
    Replayed {
        ask: u32,
        frame: Frame<P>,
    },
    /// The marker that ends a replay.
    Ended {
        ask: u32,
    },
    /// A replay cannot be had, or was cut off.
    Failed {
        ask: u32,
    },
    /// Time went by, see [`Track::deadline_ms`].
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<P> {
    Apply(P),
    /// Ask for all batches from this one on, over a connection of its own, and give up the replay
    /// before. What comes is handed in under the number of the ask.
    Ask {
        ask: u32,
        from: u64,
    },
    /// A new epoch: everything applied is void, and so is every lease on it.
    Begin,
    /// The subscription is dead though it looks alive: drop it and connect again.
    Reconnect,
}

/// One source, a (worker, rank).
#[derive(Debug)]
pub struct Track<P> {
    has_replay: bool,
    state: State,
    /// A batch of this epoch was not understood in all its parts.
    is_doubted: bool,
    epoch: u64,
    /// The first and the last batch applied in this epoch.
    first: Option<u64>,
    last: Option<Last>,
    connection: Option<Connection>,
    heard_ms: u64,
    replay: Replay,
    asks: u32,
    /// Asks since one brought something new.
    tries: u32,
    held: VecDeque<Frame<P>>,
    held_bytes: usize,
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
struct Last {
    sequence: u64,
    digest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replay {
    None,
    Running {
        ask: u32,
        deadline_ms: u64,
        /// It is from the engine that the last batch applied is from.
        is_verified: bool,
    },
    Resting {
        until_ms: u64,
    },
}

impl<P: AsRef<[u8]>> Track<P> {
    #[must_use]
    pub fn new(has_replay: bool) -> Self {
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
            held: VecDeque::new(),
            held_bytes: 0,
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

    /// A batch that was applied in an epoch is damaged, or has an event of a known type that is. A
    /// removal may be lost with it, and until another epoch nothing makes up for that. Of an epoch
    /// that is over it does not matter.
    pub fn doubt(&mut self, epoch: u64) {
        self.is_doubted |= epoch == self.epoch;
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
        Some((self.first?, self.last?.sequence))
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
        if self.has_replay {
            self.ask(step);
        }
    }

    fn lost(&mut self, step: &mut Step<'_, P>) {
        self.disconnect();
        self.state = State::Stale;
        if !self.has_replay {
            self.begin(step);
        }
    }

    fn disconnect(&mut self) {
        self.connection = None;
        self.replay = Replay::None;
        self.tries = 0;
        self.held.clear();
        self.held_bytes = 0;
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
            self.held_bytes = 0;
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
        } else {
            self.hold(frame, VecDeque::push_back);
        }
    }

    /// A frame that follows those applied, as far as anything does; no replay is running.
    fn accept(&mut self, frame: Frame<P>, step: &mut Step<'_, P>) {
        let is_next = match self.last {
            Some(last) if frame.sequence <= last.sequence => {
                // A replay brought it before.
                if frame.sequence < last.sequence || frame.digest == last.digest {
                    return;
                }
                self.begin(step);
                false
            }
            Some(last) => frame.sequence - last.sequence == 1,
            None => frame.sequence == 0,
        };
        if !is_next && self.has_replay && self.tries < ASKS_MAX {
            self.hold(frame, VecDeque::push_front);
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
            is_verified,
            ..
        } = &mut self.replay
        else {
            return;
        };
        *deadline_ms = step.now_ms + REPLAY_PAUSE_MS_MAX;
        let Some(last) = self.last else {
            *is_verified = true;
            return self.apply_replayed(frame, step);
        };
        if !*is_verified {
            if frame.sequence < last.sequence {
                return;
            }
            if frame.sequence > last.sequence {
                // It is not kept any more, and what was removed between is not known.
                return self.begin_from_replay(step);
            }
            if frame.digest != last.digest {
                return self.other_engine(step);
            }
            *is_verified = true;
            self.here().is_sure = true;
            if self.state == State::Stale {
                self.state = State::Degraded;
            }
        } else if frame.sequence > last.sequence {
            if frame.sequence - last.sequence > 1 {
                if self.tries < ASKS_MAX {
                    return self.ask(step);
                }
                self.begin(step);
            }
            self.apply_replayed(frame, step);
        }
    }

    fn apply_replayed(&mut self, frame: Frame<P>, step: &mut Step<'_, P>) {
        self.tries = 0;
        self.apply(frame, step);
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
        if self.tries < ASKS_MAX {
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
        if self.replay == Replay::None && self.is_behind() {
            self.state = State::Degraded;
            if self.tries < ASKS_MAX {
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
            self.held_bytes -= frame.payload.as_ref().len();
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
            is_verified: false,
        };
        step.actions.push(Action::Ask {
            ask: self.asks,
            from: self.last.map_or(0, |last| last.sequence),
        });
    }

    fn begin(&mut self, step: &mut Step<'_, P>) {
        self.first = None;
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
        self.last = Some(Last { sequence, digest });
        self.here().is_sure = true;
        step.actions.push(Action::Apply(payload));
    }

    /// Where there is no room the frame is dropped, and leaves a gap that is found later.
    fn hold(&mut self, frame: Frame<P>, push: fn(&mut VecDeque<Frame<P>>, Frame<P>)) {
        let bytes = frame.payload.as_ref().len();
        if self.held.len() < HELD_FRAMES_MAX && self.held_bytes + bytes <= HELD_BYTES_MAX {
            self.held_bytes += bytes;
            push(&mut self.held, frame);
        }
    }

    fn here(&mut self) -> &mut Connection {
        let connection = self.connection.as_mut();
        connection.expect("nothing is asked, held or applied without one")
    }

    /// Later batches came over this connection than the last one applied: those between them went
    /// with an epoch that was given up, or found no room among the frames held.
    fn is_behind(&self) -> bool {
        let live = self.connection.and_then(|connection| connection.live);
        live.is_some_and(|live| self.last.is_none_or(|last| last.sequence < live))
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
