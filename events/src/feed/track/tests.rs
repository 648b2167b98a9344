//! A world of engines that publish, restart, forget and lose, against what the track makes of it.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::feed::held::FRAME_BYTES;

mod probes;

type Payload = Vec<u8>;

/// The batch that an engine, the how-manieth, published under a number.
fn frame(engine: u64, sequence: u64) -> Frame<Payload> {
    let mut payload = vec![0; 16];
    payload[..8].copy_from_slice(&engine.to_be_bytes());
    payload[8..].copy_from_slice(&sequence.to_be_bytes());
    Frame {
        sequence,
        digest: engine << 32 | sequence,
        payload,
    }
}

fn read(payload: &[u8]) -> (u64, u64) {
    let half = |at: usize| u64::from_be_bytes(payload[at..at + 8].try_into().unwrap());
    (half(0), half(8))
}

/// What may happen next.
#[derive(Clone, Copy, Debug)]
enum Act {
    Publish,
    /// The publisher's queue was full.
    PublishLost,
    Restart {
        published_unheard: u64,
    },
    Cut,
    Deliver,
    DeliverReply,
    /// The engine answers, without the frame at `lost` and, if so, without the end.
    Answer {
        lost: Option<usize>,
        ends: bool,
    },
    Refuse,
    Wait {
        ms: u64,
    },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => Just(Act::Publish),
        1 => Just(Act::PublishLost),
        1 => (0..5_u64).prop_map(|published_unheard| Act::Restart { published_unheard }),
        1 => Just(Act::Cut),
        8 => Just(Act::Deliver),
        8 => Just(Act::DeliverReply),
        3 => (proptest::option::weighted(0.2, 0..4_usize), proptest::bool::weighted(0.8))
            .prop_map(|(lost, ends)| Act::Answer { lost, ends }),
        1 => Just(Act::Refuse),
        2 => prop_oneof![Just(100_u64), Just(2_000), Just(10_000)].prop_map(|ms| Act::Wait { ms }),
    ]
}

#[derive(Debug)]
struct World {
    has_replay: bool,
    kept: u64,
    /// The engine, the how-manieth.
    engine: u64,
    published: u64,
    has_ever_forgotten: bool,
    is_connected: bool,
    lines: VecDeque<Input<Payload>>,
    /// Lines handed in so far, and up to which a reply has to wait.
    handed: usize,
    sent: usize,
    started: usize,
    asked: Option<(u32, u64)>,
    replies: VecDeque<(usize, Input<Payload>)>,
    now_ms: u64,
    track: Track<Payload>,
    applied: Vec<(u64, u64)>,
    /// Batches that cannot be read, whoever published them.
    damaged: Option<u64>,
}

impl World {
    fn new(has_replay: bool, kept: u64) -> Self {
        Self {
            has_replay,
            kept,
            engine: 0,
            published: 0,
            has_ever_forgotten: false,
            is_connected: false,
            lines: VecDeque::new(),
            handed: 0,
            sent: 0,
            started: 0,
            asked: None,
            replies: VecDeque::new(),
            now_ms: 0,
            track: Track::new(has_replay, Arc::default()),
            applied: Vec::new(),
            damaged: None,
        }
    }

    fn line(&mut self, input: Input<Payload>) {
        self.lines.push_back(input);
        self.sent += 1;
    }

    fn connect(&mut self) {
        if !self.is_connected {
            self.is_connected = true;
            self.line(Input::Connected);
        }
    }

    fn cut(&mut self) {
        if self.is_connected {
            self.is_connected = false;
            self.line(Input::Lost);
        }
    }

    fn publish(&mut self, is_heard: bool) {
        if is_heard && self.is_connected {
            self.line(Input::Live(frame(self.engine, self.published)));
        }
        self.published += 1;
        self.has_ever_forgotten |= self.published > self.kept;
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Publish => self.publish(true),
            Act::PublishLost => self.publish(false),
            Act::Restart { published_unheard } => {
                self.cut();
                self.engine += 1;
                self.published = 0;
                self.started = self.sent;
                for _ in 0..published_unheard {
                    self.publish(false);
                }
                self.connect();
            }
            Act::Cut => {
                self.cut();
                self.publish(false);
                self.connect();
            }
            Act::Deliver => {
                if let Some(line) = self.lines.pop_front() {
                    self.handed += 1;
                    self.step(line);
                }
            }
            Act::DeliverReply => {
                if let Some((after, _)) = self.replies.front()
                    && *after <= self.handed
                    && let Some((_, reply)) = self.replies.pop_front()
                {
                    self.step(reply);
                }
            }
            Act::Answer { lost, ends } => self.answer(lost, ends),
            Act::Refuse => {
                if let Some((ask, _)) = self.asked.take() {
                    self.replies.push_back((0, Input::Failed { ask }));
                }
            }
            Act::Wait { ms } => {
                self.now_ms += ms;
                self.step(Input::Tick);
            }
        }
    }

    fn answer(&mut self, lost: Option<usize>, ends: bool) {
        let Some((ask, from)) = self.asked.take() else {
            return;
        };
        let oldest = self.published.saturating_sub(self.kept);
        for (at, sequence) in (from.max(oldest)..self.published).enumerate() {
            if lost != Some(at) {
                let frame = frame(self.engine, sequence);
                let reply = Input::Replayed { ask, frame };
                self.replies.push_back((self.started, reply));
            }
        }
        if ends {
            self.replies.push_back((self.started, Input::Ended { ask }));
        }
    }

    fn step(&mut self, input: Input<Payload>) {
        let mut actions = Vec::new();
        let mut epoch = self.track.epoch();
        self.track.step(input, self.now_ms, &mut actions);
        for action in actions {
            match action {
                Action::Apply(payload) => {
                    let (engine, sequence) = read(&payload);
                    self.applied.push((engine, sequence));
                    if self.damaged == Some(sequence) {
                        self.track.doubt(epoch);
                    }
                }
                Action::Ask { ask, from } => {
                    assert!(self.has_replay, "nobody to ask");
                    self.replies.clear();
                    self.asked = Some((ask, from));
                }
                Action::Begin => {
                    epoch += 1;
                    self.applied.clear();
                }
                Action::Reconnect => {
                    self.lines.clear();
                    self.handed = self.sent;
                    self.is_connected = false;
                    self.connect();
                }
            }
        }
        self.check();
    }

    /// What is applied and called exact is an unbroken run of one engine's batches, all understood.
    fn check(&self) {
        let run = self.track.applied();
        assert_eq!(run.is_none(), self.applied.is_empty());
        assert_eq!(self.track.is_doubted, self.has_damaged());
        let Some((first, last)) = run.filter(|_| self.track.state() == State::Exact) else {
            return;
        };
        let (engine, _) = self.applied[0];
        let wanted = (first..=last).map(|sequence| (engine, sequence));
        assert!(
            wanted.eq(self.applied.iter().copied()),
            "{:?}",
            self.applied
        );
        if self.lines.is_empty() {
            assert_eq!(engine, self.engine, "that engine is gone");
        }
        assert!(self.track.held.front().is_none() || self.track.replay != Replay::None);
    }

    fn has_damaged(&self) -> bool {
        let mut applied = self.applied.iter();
        applied.any(|(_, sequence)| self.damaged == Some(*sequence))
    }

    /// Everything arrives, replays lose nothing, and the engine says one thing more.
    fn settle(&mut self) {
        self.connect();
        self.publish(true);
        for _ in 0..40 {
            self.act(Act::Answer {
                lost: None,
                ends: true,
            });
            while !self.lines.is_empty() {
                self.act(Act::Deliver);
            }
            while !self.replies.is_empty() {
                self.act(Act::DeliverReply);
            }
            self.act(Act::Wait { ms: 400 });
        }
        let state = match self.has_damaged() {
            true => State::Degraded,
            false => State::Exact,
        };
        assert_eq!(self.track.state(), state);
        let latest = (self.engine, self.published - 1);
        assert_eq!(self.applied.last(), Some(&latest));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_exact_is_one_engines_unbroken_run(
        has_replay: bool,
        kept in 1..30_u64,
        before in 0..20_u64,
        damaged in proptest::option::of(0..20_u64),
        acts in vec(act(), 0..200),
    ) {
        let mut world = World::new(has_replay, kept);
        world.damaged = damaged;
        for _ in 0..before {
            world.publish(false);
        }
        world.connect();
        for act in acts {
            world.act(act);
        }
        world.settle();
    }

    /// As long as an engine keeps everything and answers, nothing since its start is missing.
    #[test]
    fn with_a_replay_nothing_is_missing(
        before in 0..20_u64,
        acts in vec(act().prop_filter("answers are whole", |act| !matches!(
            act,
            Act::Refuse
                | Act::Wait { .. }
                | Act::Answer { lost: Some(_), .. }
                | Act::Answer { ends: false, .. }
        )), 0..200),
    ) {
        let mut world = World::new(true, 1_000);
        for _ in 0..before {
            world.publish(false);
        }
        world.connect();
        for act in acts {
            world.act(act);
        }
        world.settle();
        prop_assert_eq!(world.track.applied().map(|(first, _)| first), Some(0));
        prop_assert!(!world.has_ever_forgotten);
    }
}

/// What becomes of a track that is given these.
fn check(has_replay: bool, inputs: Vec<(u64, Input<Payload>)>) -> (Track<Payload>, Vec<Told>) {
    let mut track = Track::new(has_replay, Arc::default());
    let mut told = Vec::new();
    for (now_ms, input) in inputs {
        let mut actions = Vec::new();
        track.step(input, now_ms, &mut actions);
        told.extend(actions.into_iter().map(tell));
    }
    (track, told)
}

fn tell(action: Action<Payload>) -> Told {
    match action {
        Action::Apply(payload) => {
            let (engine, sequence) = read(&payload);
            Told::Apply(engine, sequence)
        }
        Action::Ask { from, .. } => Told::Ask(from),
        Action::Begin => Told::Begin,
        Action::Reconnect => Told::Reconnect,
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Told {
    Apply(u64, u64),
    Ask(u64),
    Begin,
    Reconnect,
}

fn live(sequence: u64) -> (u64, Input<Payload>) {
    (0, Input::Live(frame(1, sequence)))
}

fn replayed(ask: u32, engine: u64, sequence: u64) -> (u64, Input<Payload>) {
    let frame = frame(engine, sequence);
    (0, Input::Replayed { ask, frame })
}

const CONNECTED: (u64, Input<Payload>) = (0, Input::Connected);
const LOST: (u64, Input<Payload>) = (0, Input::Lost);

fn ended(ask: u32) -> (u64, Input<Payload>) {
    (0, Input::Ended { ask })
}

#[test]
fn a_source_without_replay_begins_anew_at_every_doubt() {
    use Told::{Apply, Begin};
    let (track, told) = check(false, vec![CONNECTED, live(7), live(8), live(10)]);
    assert_eq!(told, [Apply(1, 7), Apply(1, 8), Begin, Apply(1, 10)]);
    assert_eq!((track.state(), track.epoch()), (State::Exact, 1));

    let next = (0, Input::Live(frame(2, 2)));
    let (track, told) = check(false, vec![CONNECTED, live(0), live(1), LOST]);
    assert_eq!(told, [Apply(1, 0), Apply(1, 1), Begin]);
    assert_eq!(track.state(), State::Stale);
    let (_, told) = check(false, vec![CONNECTED, live(1), LOST, CONNECTED, next]);
    assert_eq!(told, [Apply(1, 1), Begin, Apply(2, 2)]);

    let (_, told) = check(false, vec![CONNECTED, live(3), live(2)]);
    assert_eq!(told, [Apply(1, 3), Begin, Apply(1, 2)]);
}

#[test]
fn a_gap_is_filled_and_what_comes_twice_is_dropped() {
    use Told::{Apply, Ask};
    let (track, told) = check(
        true,
        vec![
            CONNECTED,
            ended(1),
            live(0),
            live(3),
            replayed(2, 1, 0),
            replayed(2, 1, 1),
            replayed(2, 1, 2),
            replayed(2, 1, 3),
            ended(2),
            live(4),
        ],
    );
    let applied = [Apply(1, 0), Ask(0), Apply(1, 1), Apply(1, 2), Apply(1, 3)];
    assert_eq!(told[0], Ask(0));
    assert_eq!(told[1..6], applied);
    assert_eq!(told[6..], [Apply(1, 4)]);
    assert_eq!((track.state(), track.epoch()), (State::Exact, 0));
}

#[test]
fn a_restart_is_seen_in_the_replay() {
    use Told::{Apply, Ask, Begin, Reconnect};
    let before = vec![CONNECTED, replayed(1, 1, 0), replayed(1, 1, 1), ended(1)];
    let after = |rest: Vec<_>| {
        let inputs = [before.clone(), rest].concat();
        let (_, told) = check(true, inputs);
        assert_eq!(told[..3], [Ask(0), Apply(1, 0), Apply(1, 1)]);
        told.into_iter().skip(3).collect::<Vec<_>>()
    };
    let anew = [Ask(1), Begin, Ask(0)];
    assert_eq!(after(vec![LOST, CONNECTED, replayed(2, 2, 1)]), anew);
    assert_eq!(after(vec![LOST, CONNECTED, replayed(2, 2, 5)]), anew);
    assert_eq!(after(vec![LOST, CONNECTED, ended(2)]), anew);
    assert_eq!(after(vec![LOST, CONNECTED, replayed(2, 1, 1)]), [Ask(1)]);
    // Of a batch that is no longer kept nothing is known, not even that it was another engine's.
    assert_eq!(after(vec![live(4), replayed(2, 1, 3)]), anew);
    // The replay is the new engine's, and so is what came live.
    let newest = (0, Input::Live(frame(2, 1)));
    assert_eq!(after(vec![newest]), [Begin, Ask(0)]);
    let silent = (SILENCE_MS_MAX, Input::Tick);
    let other = replayed(2, 2, 1);
    assert_eq!(after(vec![silent, other]), [Ask(1), Begin, Reconnect]);
}

#[test]
fn a_replay_that_never_comes_is_done_without() {
    use Told::{Apply, Ask};
    let mut inputs = vec![CONNECTED, live(4), live(5)];
    let step = REPLAY_PAUSE_MS_MAX / 2;
    inputs.extend((1..30).map(|times| (times * step, Input::Tick)));
    let (track, told) = check(true, inputs);
    let asks = ASKS_MAX as usize;
    assert!(told[..asks].iter().all(|told| *told == Ask(0)));
    assert_eq!(told[asks..], [Apply(1, 4), Apply(1, 5)]);
    assert_eq!(track.state(), State::Exact);
    assert_eq!(track.deadline_ms(), None);
}

#[test]
fn a_replay_without_an_end_is_asked_for_once_more() {
    use Told::{Apply, Ask};
    let cut_off = (0, Input::Failed { ask: 1 });
    let mut inputs = vec![CONNECTED, replayed(1, 1, 0), cut_off];
    let (track, _) = check(true, inputs.clone());
    assert_eq!(track.state(), State::Degraded);
    inputs.extend([(0, Input::Tick), replayed(2, 1, 0), replayed(2, 1, 1)]);
    inputs.push(ended(2));
    let (track, told) = check(true, inputs);
    assert_eq!(told, [Ask(0), Apply(1, 0), Ask(0), Apply(1, 1)]);
    assert_eq!(track.state(), State::Exact);
}

#[test]
fn what_is_behind_what_was_heard_is_not_exact() {
    use Told::{Apply, Ask, Begin};
    let silent = (SILENCE_MS_MAX, Input::Tick);
    let inputs = vec![
        CONNECTED,
        ended(1),
        live(0),
        live(1),
        live(2),
        silent,
        // The replay lost the batch that it was to begin with.
        replayed(2, 1, 3),
        // The next one loses all but its first, and says that it is whole.
        replayed(3, 1, 0),
        ended(3),
    ];
    let (track, told) = check(true, inputs);
    assert_eq!(told[4..], [Ask(2), Begin, Ask(0), Apply(1, 0), Ask(0)]);
    assert_eq!(track.state(), State::Degraded);
}

#[test]
fn a_clear_ends_what_was_not_understood_before() {
    let (mut track, _) = check(false, vec![CONNECTED, live(0), live(1)]);
    track.doubt(0);
    track.understand(1);
    assert_eq!(track.state(), State::Degraded, "of another epoch");
    track.understand(0);
    assert_eq!(track.state(), State::Exact);
}

#[test]
fn a_batch_that_is_not_understood_costs_its_epoch() {
    let (mut track, _) = check(false, vec![CONNECTED, live(0), live(1)]);
    track.doubt(0);
    assert_eq!(track.state(), State::Degraded);
    let mut step = |input| track.step(input, 0, &mut Vec::new());
    step(live(2).1);
    assert_eq!(track.state(), State::Degraded);
    let mut step = |input| track.step(input, 0, &mut Vec::new());
    step(live(4).1);
    assert_eq!((track.state(), track.epoch()), (State::Exact, 1));
    track.doubt(0);
    assert_eq!(track.state(), State::Exact, "that epoch is over");
}

#[test]
fn what_finds_no_room_to_wait_is_missing_until_it_is_sent_again() {
    use Told::{Apply, Ask};
    // Another source has taken half of what there is.
    let bytes_max = 20 * (FRAME_BYTES + frame(1, 0).payload.len());
    let room = Arc::new(Room::new(bytes_max));
    let mut other = Track::new(true, Arc::clone(&room));
    let mut track = Track::new(true, room);
    let (mut told, mut late) = (Vec::new(), Vec::new());
    for track in [&mut other, &mut track] {
        for (now_ms, input) in [CONNECTED].into_iter().chain((0..12).map(live)) {
            track.step(input, now_ms, &mut told);
        }
    }
    assert_eq!((other.dropped(), other.state()), (2, State::Degraded));
    assert_eq!((track.dropped(), track.state()), (7, State::Degraded));
    // Five waited; what comes then is behind what was heard.
    track.step(ended(1).1, 0, &mut late);
    let told: Vec<Told> = late.drain(..).map(tell).collect();
    let first: Vec<Told> = (0..5).map(|number| Apply(1, number)).collect();
    assert_eq!(told, [first, vec![Ask(4)]].concat());
    assert_eq!(track.state(), State::Degraded);
    for (now_ms, input) in (4..12)
        .map(|number| replayed(2, 1, number))
        .chain([ended(2)])
    {
        track.step(input, now_ms, &mut late);
    }
    let told: Vec<Told> = late.into_iter().map(tell).collect();
    let rest: Vec<Told> = (5..12).map(|number| Apply(1, number)).collect();
    assert_eq!((told, track.state()), (rest, State::Exact));
}

#[test]
fn what_found_no_room_to_wait_is_not_forgotten_where_no_replay_comes() {
    let room = Room::new(20 * (FRAME_BYTES + frame(1, 0).payload.len()));
    let mut track = Track::new(true, Arc::new(room));
    let mut actions = Vec::new();
    for (now_ms, input) in [CONNECTED].into_iter().chain((0..12).map(live)) {
        track.step(input, now_ms, &mut actions);
    }
    assert_eq!(track.dropped(), 2);
    for ask in 1..=ASKS_MAX {
        let now_ms = u64::from(ask) * 1_000;
        track.step(Input::Failed { ask }, now_ms, &mut actions);
        track.step(
            Input::Tick,
            now_ms + ASK_REST_MS * u64::from(ask),
            &mut actions,
        );
    }
    // Two are missing, and a removal may be among them.
    assert_eq!((track.state(), track.applied()), (State::Degraded, None));
    track.step(live(12).1, 9_000, &mut actions);
    assert_eq!(
        (track.state(), track.applied()),
        (State::Exact, Some((12, 12)))
    );
}
