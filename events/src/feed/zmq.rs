//! Follows one engine over its sockets: what arrives goes through the [`Track`] into the view.
//!
//! ```text
//! PUB    -> Link -> Track -> decode -> View, per rank -> News
//! ROUTER -> Link -/
//! ```
//!
//! One task reads, decides and applies, so that nothing queues but in the kernel's receive buffer
//! and, while a replay runs, among the frames that the track holds; both are bounded. Where events
//! come faster than they are applied the buffer fills, the engine's publisher queues and then
//! drops, and that is a gap like any other. Applying a batch is work for a processor: run feeds on
//! a runtime that serves no requests.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::config::Source;
use super::link::{Heard, Link};
use super::track::{Action, Frame, Input, State, Track};
use super::zmtp::{Hello, LineError};
use crate::view::{Change, Counts, Namespace, SourceId, View};
use crate::wire::decode;

/// Ranks that the batches of one source may name.
pub const RANKS_MAX: usize = 64;
/// The first pause before connecting again; it doubles.
const RECONNECT_MS_MIN: u64 = 50;
/// The longest pause before connecting again, up to half as much again for the spread.
pub const RECONNECT_MS_MAX: u64 = 2_000;
/// The number that marks the end of a replay.
const END: u64 = u64::MAX;

/// What a feed tells, in the order in which it came about.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// Batches of a rank come: its blocks are in the view under this name from now on.
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
    /// Batches that were applied, those that could not be decoded included.
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
    /// Batches of a rank beyond [`RANKS_MAX`], or for which the view has no room.
    pub refused_batches: u64,
    /// Numbers that were passed over between two frames of one connection.
    pub gaps: u64,
    /// Replays asked for, and batches that they brought.
    pub replays: u64,
    pub replayed_frames: u64,
    /// Connections made, and lost or refused.
    pub connections: u64,
    pub failures: u64,
}

/// One source that is followed.
#[derive(Debug)]
pub struct Feed<F> {
    source: Source,
    namespace: Namespace,
    view: Arc<View>,
    tell: F,
    progress: watch::Sender<Progress>,
}

impl<F: FnMut(News<'_>)> Feed<F> {
    pub fn new(source: Source, namespace: Namespace, view: Arc<View>, tell: F) -> Self {
        Self {
            source,
            namespace,
            view,
            tell,
            progress: watch::Sender::new(Progress {
                state: State::Stale,
                epoch: 0,
                applied: None,
                met: Met::default(),
                outcomes: Counts::default(),
            }),
        }
    }

    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Follows the source until `stop` resolves, and then takes it out of the view.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let mut follow = Follow::new(self);
        tokio::select! {
            biased;
            () = stop => {}
            () = follow.run() => {}
        }
        follow.forget();
    }
}

struct Follow<F> {
    feed: Feed<F>,
    track: Track<Bytes>,
    events: Link,
    replay: Link,
    ask: u32,
    /// Connections that could not be made or did not last, in a row.
    failures: u32,
    connected_ms: Option<u64>,
    live: Option<u64>,
    ranks: BTreeMap<u32, SourceId>,
    met: Met,
    outcomes: Counts,
    /// The state and the epoch that were told last.
    told: (State, u64),
    started: Instant,
    actions: Vec<Action<Bytes>>,
    changes: Vec<Change>,
}

impl<F: FnMut(News<'_>)> Follow<F> {
    fn new(feed: Feed<F>) -> Self {
        Self {
            track: Track::new(feed.source.replay.is_some()),
            events: Link::open(feed.source.events.clone(), Hello::Subscribe, Duration::ZERO),
            replay: Link::closed(),
            ask: 0,
            failures: 0,
            connected_ms: None,
            live: None,
            ranks: BTreeMap::new(),
            met: Met::default(),
            outcomes: Counts::default(),
            told: (State::Stale, 0),
            started: Instant::now(),
            actions: Vec::new(),
            changes: Vec::new(),
            feed,
        }
    }

    async fn run(&mut self) {
        loop {
            let deadline = self.track.deadline_ms();
            let deadline = deadline.map(|ms| self.started + Duration::from_millis(ms));
            let input = tokio::select! {
                // The end of the subscription comes before what a later process answers, as it
                // happened before: whatever is there to be read of the one is read first.
                biased;
                heard = self.events.next() => self.heard_live(heard),
                heard = self.replay.next() => self.heard_replay(heard),
                () = until(deadline) => Some(Input::Tick),
            };
            if let Some(input) = input {
                self.step(input);
            }
            // Also where the other two never pause.
            if self
                .track
                .deadline_ms()
                .is_some_and(|due| due <= self.now_ms())
            {
                self.step(Input::Tick);
            }
            self.report();
            tokio::task::consume_budget().await;
        }
    }

    fn heard_live(&mut self, heard: Heard) -> Option<Input<Bytes>> {
        match heard {
            Heard::Opened => {
                self.met.connections += 1;
                self.connected_ms = Some(self.now_ms());
                Some(Input::Connected)
            }
            Heard::Message(message) => match live_frame(&message) {
                Some(frame) => {
                    let before = self.live.replace(frame.sequence);
                    let is_gap = before.is_some_and(|before| frame.sequence > before + 1);
                    self.met.gaps += u64::from(is_gap);
                    Some(Input::Live(frame))
                }
                None => {
                    self.met.malformed_messages += 1;
                    None
                }
            },
            Heard::Failed(error) => {
                self.failed(Socket::Events, &error);
                let now_ms = self.now_ms();
                let connected_ms = self.connected_ms.take();
                if connected_ms.is_some_and(|since| now_ms - since > RECONNECT_MS_MAX) {
                    self.failures = 0;
                }
                self.connect();
                Some(Input::Lost)
            }
        }
    }

    fn heard_replay(&mut self, heard: Heard) -> Option<Input<Bytes>> {
        let ask = self.ask;
        match heard {
            Heard::Opened => None,
            Heard::Message(message) => match replay_frame(&message) {
                Some(frame) if frame.sequence == END => {
                    self.replay = Link::closed();
                    Some(Input::Ended { ask })
                }
                Some(frame) => {
                    self.met.replayed_frames += 1;
                    Some(Input::Replayed { ask, frame })
                }
                None => {
                    self.met.malformed_messages += 1;
                    None
                }
            },
            Heard::Failed(error) => {
                self.failed(Socket::Replay, &error);
                Some(Input::Failed { ask })
            }
        }
    }

    fn failed(&mut self, socket: Socket, error: &LineError) {
        self.met.failures += 1;
        (self.feed.tell)(News::Failed { socket, error });
    }

    fn connect(&mut self) {
        self.live = None;
        self.replay = Link::closed();
        let pause = pause(self.failures, &self.feed.source.events);
        self.failures = self.failures.saturating_add(1);
        let address = self.feed.source.events.clone();
        self.events = Link::open(address, Hello::Subscribe, pause);
    }

    fn step(&mut self, input: Input<Bytes>) {
        let mut actions = std::mem::take(&mut self.actions);
        let now_ms = self.now_ms();
        self.track.step(input, now_ms, &mut actions);
        let state = self.track.state();
        if state != State::Exact {
            self.tell_state(state);
        }
        for action in actions.drain(..) {
            match action {
                Action::Apply(payload) => self.apply(&payload),
                Action::Begin => self.begin(),
                Action::Ask { ask, from } => {
                    self.met.replays += 1;
                    self.ask = ask;
                    if let Some(address) = &self.feed.source.replay {
                        let hello = Hello::Ask { from };
                        self.replay = Link::open(address.clone(), hello, Duration::ZERO);
                    }
                }
                Action::Reconnect => self.connect(),
            }
        }
        self.actions = actions;
        self.tell_state(state);
    }

    fn report(&self) {
        self.feed.progress.send_replace(Progress {
            state: self.track.state(),
            epoch: self.track.epoch(),
            applied: self.track.applied(),
            met: self.met,
            outcomes: self.outcomes,
        });
    }

    fn tell_state(&mut self, state: State) {
        let told = (state, self.track.epoch());
        if told != std::mem::replace(&mut self.told, told) {
            let (state, epoch) = told;
            (self.feed.tell)(News::State { state, epoch });
        }
    }

    fn apply(&mut self, payload: &[u8]) {
        self.met.batches += 1;
        let Ok(batch) = decode(payload) else {
            self.met.decode_errors += 1;
            return;
        };
        self.met.events += batch.events.len() as u64;
        self.met.unknown_events += u64::from(batch.rejected.unknown);
        self.met.malformed_events += u64::from(batch.rejected.malformed);
        let rank = batch.rank.unwrap_or(self.feed.source.rank);
        let Some(source) = self.source_of(rank) else {
            self.met.refused_batches += 1;
            return;
        };
        let counts = self
            .feed
            .view
            .apply(source, &batch.events, &mut self.changes);
        self.tell_changes(source, counts);
    }

    fn source_of(&mut self, rank: u32) -> Option<SourceId> {
        if let Some(&source) = self.ranks.get(&rank) {
            return Some(source);
        }
        if self.ranks.len() == RANKS_MAX {
            return None;
        }
        let source = self.feed.view.add(self.feed.namespace)?;
        self.ranks.insert(rank, source);
        (self.feed.tell)(News::Follows { rank, source });
        Some(source)
    }

    fn begin(&mut self) {
        for source in self.ranks.clone().into_values() {
            let counts = self.feed.view.reset(source, &mut self.changes);
            self.tell_changes(source, counts);
        }
    }

    fn forget(&mut self) {
        self.tell_state(State::Stale);
        for source in std::mem::take(&mut self.ranks).into_values() {
            let counts = self.feed.view.remove(source, &mut self.changes);
            self.tell_changes(source, counts);
            (self.feed.tell)(News::Forgets { source });
        }
    }

    fn tell_changes(&mut self, source: SourceId, counts: Option<Counts>) {
        self.outcomes += counts.unwrap_or_default();
        if !self.changes.is_empty() {
            let changes = &self.changes;
            (self.feed.tell)(News::Changes { source, changes });
            self.changes.clear();
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// How long to wait before connecting again. Different addresses do not come back all at once.
fn pause(failures: u32, address: &str) -> Duration {
    let doubled = RECONNECT_MS_MIN.saturating_mul(1 << failures.min(16));
    let pause = doubled.min(RECONNECT_MS_MAX);
    let seed = xxh3_64(address.as_bytes()).wrapping_add(failures.into());
    Duration::from_millis(pause + xxh3_64(&seed.to_le_bytes()) % (pause / 2))
}

/// Topic, number, payload.
fn live_frame(message: &[Bytes]) -> Option<Frame<Bytes>> {
    match message {
        [_, sequence, payload] => frame(sequence, payload).filter(|frame| frame.sequence != END),
        _ => None,
    }
}

/// Nothing, a topic in later releases, number, payload.
fn replay_frame(message: &[Bytes]) -> Option<Frame<Bytes>> {
    match message {
        [empty, sequence, payload] | [empty, _, sequence, payload] if empty.is_empty() => {
            frame(sequence, payload)
        }
        _ => None,
    }
}

fn frame(sequence: &Bytes, payload: &Bytes) -> Option<Frame<Bytes>> {
    let sequence = <[u8; 8]>::try_from(sequence.as_ref()).ok()?;
    Some(Frame {
        sequence: u64::from_be_bytes(sequence),
        digest: xxh3_64(payload),
        payload: payload.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(frames: &[&[u8]]) -> Vec<Bytes> {
        frames
            .iter()
            .map(|frame| Bytes::copy_from_slice(frame))
            .collect()
    }

    #[test]
    fn frames_are_told_apart_by_their_number_and_place() {
        let seven = 7_u64.to_be_bytes();
        let end = END.to_be_bytes();
        let sequence = |frame: Option<Frame<Bytes>>| frame.map(|frame| frame.sequence);
        let live = |frames: &[&[u8]]| sequence(live_frame(&message(frames)));
        assert_eq!(live(&[b"topic", &seven, b"x"]), Some(7));
        assert_eq!(live(&[b"", &seven, b"x"]), Some(7));
        assert_eq!(live(&[b"", &end, b""]), None);
        assert_eq!(live(&[&seven, b"x"]), None);
        assert_eq!(live(&[b"", &seven[1..], b"x"]), None);
        let replayed = |frames: &[&[u8]]| sequence(replay_frame(&message(frames)));
        assert_eq!(replayed(&[b"", &seven, b"x"]), Some(7));
        assert_eq!(replayed(&[b"", b"topic", &seven, b"x"]), Some(7));
        assert_eq!(replayed(&[b"", b"", &end, b""]), Some(END));
        assert_eq!(replayed(&[b"topic", &seven, b"x"]), None);
        assert_eq!(replayed(&[b"", &seven]), None);
    }

    #[test]
    fn pauses_grow_to_a_limit_and_spread() {
        let pauses = |address| (0..40).map(move |failures| pause(failures, address).as_millis());
        let limit = u128::from(RECONNECT_MS_MAX) * 3 / 2;
        assert!(pauses("a:1").all(|pause| pause >= 50 && pause < limit));
        assert!(pauses("a:1").nth(1) >= Some(100));
        assert!(pauses("a:1").ne(pauses("b:1")));
    }
}
