//! Follows one engine over its sockets.
//!
//! ```text
//! PUB    -> Link -> Intake -> View, News
//! ROUTER -> Link -/
//! ```
//!
//! One task reads, decides and applies, so that nothing queues but in the kernel's receive buffer
//! and, while a replay runs, among the frames that the track holds; both are bounded. Where events
//! come faster than they are applied the buffer fills, the engine's publisher queues and then
//! drops, and that is a gap like any other. Applying a batch is work for a processor: run feeds on
//! a runtime that serves no requests.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::config::Source;
use super::inputs::{Frame, Input, State};
use super::intake::{Engine, Intake, Met, News, Progress, Reply, Shared, Socket, Want};
use super::link::{Heard, Link};
use super::zmtp::Hello;
use crate::view::{Counts, Namespace};

/// The first pause before connecting again; it doubles.
const RECONNECT_MS_MIN: u64 = 50;
/// The longest pause before connecting again, up to half as much again for the spread.
pub const RECONNECT_MS_MAX: u64 = 2_000;
/// The number that marks the end of a replay.
const END: u64 = u64::MAX;

/// One source that is followed.
#[derive(Debug)]
pub struct Feed<F> {
    source: Source,
    namespace: Namespace,
    block_size: Option<u32>,
    shared: Shared,
    tell: F,
    progress: watch::Sender<Progress>,
}

impl<F: FnMut(News<'_>) -> Reply> Feed<F> {
    /// The namespace and, where they are known, the tokens of the source's blocks.
    pub fn new(
        source: Source,
        namespace: Namespace,
        block_size: Option<u32>,
        shared: Shared,
        tell: F,
    ) -> Self {
        Self {
            source,
            namespace,
            block_size,
            shared,
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
        follow.intake.forget();
    }
}

struct Follow<F> {
    source: Source,
    intake: Intake<F>,
    progress: watch::Sender<Progress>,
    events: Link,
    replay: Link,
    /// What comes over the replay's link was asked for under this number.
    ask: u32,
    /// Connections that could not be made or did not last, in a row.
    failures: u32,
    connected_ms: Option<u64>,
    started: Instant,
}

impl<F: FnMut(News<'_>) -> Reply> Follow<F> {
    fn new(feed: Feed<F>) -> Self {
        let Feed {
            source,
            namespace,
            block_size,
            shared,
            tell,
            progress,
        } = feed;
        let engine = Engine {
            namespace,
            block_size,
            rank: source.rank,
            has_replay: source.replay.is_some(),
        };
        Self {
            intake: Intake::new(engine, &shared, tell),
            progress,
            events: Link::open(source.events.clone(), Hello::Subscribe, Duration::ZERO),
            replay: Link::closed(),
            ask: 0,
            failures: 0,
            connected_ms: None,
            started: Instant::now(),
            source,
        }
    }

    async fn run(&mut self) {
        loop {
            let deadline = self.intake.deadline_ms();
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
                .intake
                .deadline_ms()
                .is_some_and(|due| due <= self.now_ms())
            {
                self.step(Input::Tick);
            }
            self.progress.send_replace(self.intake.progress());
            tokio::task::consume_budget().await;
        }
    }

    fn heard_live(&mut self, heard: Heard) -> Option<Input<Bytes>> {
        match heard {
            Heard::Opened => {
                self.connected_ms = Some(self.now_ms());
                Some(Input::Connected)
            }
            Heard::Message(message) => {
                let frame = live_frame(&message);
                if frame.is_none() {
                    self.intake.malformed();
                }
                frame.map(Input::Live)
            }
            Heard::Failed(error) => {
                self.intake.failed(Socket::Events, &error);
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
                Some(frame) => Some(Input::Replayed { ask, frame }),
                None => {
                    self.intake.malformed();
                    None
                }
            },
            Heard::Failed(error) => {
                self.intake.failed(Socket::Replay, &error);
                Some(Input::Failed { ask })
            }
        }
    }

    fn step(&mut self, input: Input<Bytes>) {
        match self.intake.step(input, self.now_ms()) {
            None => {}
            Some(Want::Ask { ask, from }) => {
                self.ask = ask;
                if let Some(address) = &self.source.replay {
                    let hello = Hello::Ask { from };
                    self.replay = Link::open(address.clone(), hello, Duration::ZERO);
                }
            }
            Some(Want::Reconnect) => self.connect(),
        }
    }

    fn connect(&mut self) {
        self.replay = Link::closed();
        let pause = pause(self.failures, &self.source.events);
        self.failures = self.failures.saturating_add(1);
        let address = self.source.events.clone();
        self.events = Link::open(address, Hello::Subscribe, pause);
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
    Some(Frame::new(u64::from_be_bytes(sequence), payload.clone()))
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
