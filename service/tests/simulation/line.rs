//! The way from one address to the service: processes that come and go behind it, and a network
//! that loses, cuts off and delays what they say.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use kvatlas::{
    donors::owners::OwnerKey,
    events::{
        Hearing,
        pushed::{Introduction, Message, PushStream},
    },
};
use kvatlas_events::{
    feed::{Engine, Frame, Input, Intake, News, Progress, Reply, State, Want},
    view::{self, SourceId},
};
use parking_lot::Mutex;

use crate::{
    content::Prefix,
    engine::{Damage, Moment, Process, Style},
    random::Random,
    service::Service,
};

/// Sooner than this something is still to come of a replay; a look after silence is later.
const SOON_MS: u64 = 2_500;
type Tell = Box<dyn FnMut(News<'_>) -> Reply>;
/// Those of a source that are followed, and what the view calls each.
type Ranks = Vec<(u32, SourceId)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Sockets, as a feed reads them.
    Fed,
    /// A sidecar's stream.
    Pushed,
}

/// What a network does to one line, in percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) twice: u64,
    pub(crate) replay: u64,
}

pub(crate) struct Line {
    pub(crate) worker: &'static str,
    /// Of batches that name none.
    pub(crate) rank: u32,
    pub(crate) way: Way,
    pub(crate) has_replay: bool,
    pub(crate) faults: Faults,
    /// The last one lives, the others are gone.
    pub(crate) processes: Vec<Process>,
    link: Link,
    /// Under which its blocks are in the view.
    pub(crate) namespace: view::Namespace,
    connection: Option<Connection>,
    replays: VecDeque<Replay>,
    /// Times that the source was not exact, or began an epoch.
    pub(crate) lapses: u64,
    epoch: u64,
    connections: u64,
}

enum Link {
    Off,
    Fed {
        intake: Box<Intake<Tell>>,
        ranks: Arc<Mutex<Ranks>>,
    },
    Pushed(Option<PushStream>),
}

/// To one process. What is on its way arrives in order, or not at all.
struct Connection {
    process: usize,
    queue: VecDeque<Frame<Bytes>>,
    is_cut: bool,
    /// The number that arrived last.
    heard: Option<u64>,
}

struct Replay {
    ask: u32,
    frames: VecDeque<Frame<Bytes>>,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Marked,
    CutOff,
    Silence,
}

/// What an exact source stands for.
pub(crate) struct Exact<'a> {
    pub(crate) process: usize,
    pub(crate) style: &'a Style,
    /// None: before the first batch.
    pub(crate) applied: Option<(u64, u64)>,
    pub(crate) moment: Option<&'a Moment>,
}

impl Line {
    pub(crate) fn new(
        (worker, rank): (&'static str, u32),
        (way, has_replay, faults): (Way, bool, Faults),
        namespace: view::Namespace,
        process: Process,
    ) -> Self {
        Self {
            worker,
            rank,
            way,
            has_replay,
            faults,
            processes: vec![process],
            link: Link::Off,
            namespace,
            connection: None,
            replays: VecDeque::new(),
            lapses: 0,
            epoch: 0,
            connections: 0,
        }
    }

    pub(crate) fn process(&self) -> &Process {
        self.processes.last().unwrap()
    }

    fn current(&self) -> usize {
        self.processes.len() - 1
    }

    pub(crate) fn key(&self, rank: u32) -> OwnerKey {
        OwnerKey {
            worker_id: self.worker.into(),
            data_parallel_rank: rank,
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        !matches!(self.link, Link::Off)
    }

    /// The number of the batch that came last over the connection, if there is one.
    pub(crate) fn heard(&self) -> Option<u64> {
        self.connection.as_ref()?.heard
    }

    /// The number of the batch that was published last, where none can have been missed: all of
    /// them came over the connection, or an engine that keeps its latest was asked.
    pub(crate) fn latest(&self) -> Option<u64> {
        let connection = self.connection.as_ref()?;
        let process = &self.processes[connection.process];
        let is_whole = self.faults.loss == 0
            && self.has_replay
            && process.style.kept_max > 0
            && connection.process == self.current()
            && !connection.is_cut;
        (process.moments.len() as u64)
            .checked_sub(1)
            .filter(|_| is_whole)
    }

    /// The worst of these batches. What is cleared later was damaged in vain, where it was all;
    /// whether it was is not sure of an engine with several ranks.
    pub(crate) fn damage(&self, first: u64, last: u64) -> Damage {
        let Some(connection) = &self.connection else {
            return Damage::None;
        };
        let Process { moments, style, .. } = &self.processes[connection.process];
        let cleared = match style.ranks.len() {
            1 => Damage::None,
            _ => Damage::Odd,
        };
        (first..=last).fold(Damage::None, |worst, number| {
            let moment = &moments[usize::try_from(number).unwrap()];
            let before = match moment.is_cleared {
                true => worst.min(cleared),
                false => worst,
            };
            before.max(moment.damage)
        })
    }

    /// The service begins to follow it.
    pub(crate) fn add(&mut self, service: &Service) {
        let Way::Fed = self.way else {
            self.link = Link::Pushed(None);
            return;
        };
        let fleet = Arc::clone(&service.fleet);
        let mut hearing = Hearing::new(fleet, self.worker, self.namespace);
        let ranks = hearing.ranks();
        let engine = Engine {
            namespace: self.namespace,
            block_size: None,
            rank: self.rank,
            has_replay: self.has_replay,
        };
        let tell: Tell = Box::new(move |news| hearing.hear(news));
        let intake = Intake::new(engine, &service.fleet.shared, tell);
        let intake = Box::new(intake);
        self.link = Link::Fed { intake, ranks };
    }

    /// The service follows it no longer; which ranks it had.
    pub(crate) fn remove(&mut self, service: &Service) -> Vec<u32> {
        self.connection = None;
        self.replays.clear();
        match std::mem::replace(&mut self.link, Link::Off) {
            Link::Off => Vec::new(),
            Link::Fed { mut intake, ranks } => {
                let mut all: Vec<u32> = ranks.lock().iter().map(|(rank, _)| *rank).collect();
                all.push(self.rank);
                intake.forget();
                assert!(ranks.lock().is_empty());
                all.sort_unstable();
                all.dedup();
                all
            }
            Link::Pushed(stream) => {
                drop(stream);
                service.pushed.forget(self.worker)
            }
        }
    }

    /// Who is followed.
    pub(crate) fn sources(&self, service: &Service) -> Ranks {
        match &self.link {
            Link::Off => Vec::new(),
            Link::Fed { ranks, .. } => ranks.lock().clone(),
            Link::Pushed(_) => self
                .status(service)
                .map_or_else(Vec::new, |(ranks, _)| ranks),
        }
    }

    pub(crate) fn progress(&self, service: &Service) -> Option<Progress> {
        match &self.link {
            Link::Off => None,
            Link::Fed { intake, .. } => Some(intake.progress()),
            Link::Pushed(_) => self.status(service).map(|(_, progress)| progress),
        }
    }

    fn status(&self, service: &Service) -> Option<(Ranks, Progress)> {
        let key = self.key(self.rank);
        let mut statuses = service.pushed.statuses().into_iter();
        let status = statuses.find(|status| status.owner == key)?;
        Some((status.ranks, status.progress))
    }

    /// What the service claims to know all of, where it does.
    pub(crate) fn exact(&self, service: &Service) -> Option<Exact<'_>> {
        let progress = self.progress(service)?;
        if progress.state != State::Exact {
            return None;
        }
        let connection = self.connection.as_ref();
        let connection = connection.expect("exact without a connection");
        let (process, heard) = (connection.process, connection.heard);
        let last = progress.applied.map(|(_, last)| last);
        // A removal may be in it.
        assert!(heard <= last, "exact while {heard:?} waits: {progress:?}");
        let Process { moments, style, .. } = &self.processes[process];
        let applied = progress.applied;
        let damage = applied.map(|(first, last)| self.damage(first, last));
        assert!(damage != Some(Damage::Lossy), "exact after a damaged batch");
        Some(Exact {
            process,
            style,
            applied,
            moment: applied.map(|(_, last)| &moments[usize::try_from(last).unwrap()]),
        })
    }

    /// The engine publishes a batch, which may be lost on its way.
    pub(crate) fn publish(
        &mut self,
        random: &mut Random,
        prompt: &mut dyn FnMut(&mut Random) -> Prefix,
    ) {
        let current = self.current();
        let frame = self.processes[current].publish(random, prompt);
        let Some(connection) = &mut self.connection else {
            return;
        };
        if connection.process != current || connection.is_cut || random.percent(self.faults.loss) {
            return;
        }
        if random.percent(self.faults.twice) {
            connection.queue.push_back(frame.clone());
        }
        connection.queue.push_back(frame);
    }

    /// Another process takes the address; what the old one sent last may never arrive.
    pub(crate) fn restart(&mut self, process: Process, random: &mut Random) {
        self.cut(random);
        self.processes.push(process);
    }

    pub(crate) fn cut(&mut self, random: &mut Random) {
        if let Some(connection) = &mut self.connection {
            let arrives = random.between(0, connection.queue.len());
            connection.queue.truncate(arrives);
            connection.is_cut = true;
        }
        for replay in &mut self.replays {
            let arrives = random.between(0, replay.frames.len());
            replay.frames.truncate(arrives);
            replay.end = End::CutOff;
        }
    }

    pub(crate) fn connect(&mut self, service: &Service, random: &mut Random) {
        if self.is_on() && self.connection.is_none() {
            self.replays.clear();
            self.connection = Some(Connection {
                process: self.current(),
                queue: VecDeque::new(),
                is_cut: false,
                heard: None,
            });
            self.step(Input::Connected, service, random);
        }
    }

    /// One more thing arrives, if anything does.
    pub(crate) fn deliver(&mut self, service: &Service, random: &mut Random) -> bool {
        let is_live = self
            .connection
            .as_ref()
            .is_some_and(|connection| connection.is_cut || !connection.queue.is_empty());
        if is_live && (self.replays.is_empty() || random.percent(50)) {
            self.deliver_live(service, random);
        } else if !self.replays.is_empty() {
            self.deliver_replayed(service, random);
        } else {
            return false;
        }
        true
    }

    fn deliver_live(&mut self, service: &Service, random: &mut Random) {
        let connection = self.connection.as_mut().unwrap();
        let input = match connection.queue.pop_front() {
            Some(frame) => {
                connection.heard = Some(frame.sequence);
                Input::Live(frame)
            }
            None => {
                self.connection = None;
                // What is left of them comes from a process that is told to be gone.
                self.replays.clear();
                Input::Lost
            }
        };
        self.step(input, service, random);
    }

    fn deliver_replayed(&mut self, service: &Service, random: &mut Random) {
        let replay = self.replays.front_mut().unwrap();
        let ask = replay.ask;
        let input = match (replay.frames.pop_front(), replay.end) {
            (Some(frame), _) => Input::Replayed { ask, frame },
            (None, end) => {
                self.replays.pop_front();
                match end {
                    End::Marked => Input::Ended { ask },
                    End::CutOff => Input::Failed { ask },
                    End::Silence => return,
                }
            }
        };
        self.step(input, service, random);
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, service: &Service, random: &mut Random) {
        let deadline = self.deadline_ms();
        if deadline.is_some_and(|due| due <= service.now_ms()) {
            self.step(Input::Tick, service, random);
        }
    }

    /// When something is to come of what was asked.
    pub(crate) fn due_ms(&self, now_ms: u64) -> Option<u64> {
        self.deadline_ms().filter(|&due| due < now_ms + SOON_MS)
    }

    fn deadline_ms(&self) -> Option<u64> {
        match &self.link {
            Link::Off => None,
            Link::Fed { intake, .. } => intake.deadline_ms(),
            Link::Pushed(stream) => stream.as_ref()?.deadline_ms(),
        }
    }

    fn step(&mut self, input: Input<Bytes>, service: &Service, random: &mut Random) {
        let key = self.key(self.rank);
        let now_ms = service.now_ms();
        let want = match &mut self.link {
            Link::Off => None,
            Link::Fed { intake, .. } => intake.step(input, now_ms),
            Link::Pushed(stream) => {
                let introduction = Introduction {
                    namespace: self.namespace,
                    block_size: None,
                    has_replay: self.has_replay,
                };
                let from = push(stream, (service, &key, introduction), input);
                from.map(|from| Want::Ask { ask: 0, from })
            }
        };
        if let Some(progress) = self.progress(service) {
            let is_other = std::mem::replace(&mut self.epoch, progress.epoch) != progress.epoch;
            self.lapses += u64::from(is_other || progress.state != State::Exact);
            // A stream that is distrusted begins anew, with what comes next.
            let connections = progress.met.connections;
            let is_anew = std::mem::replace(&mut self.connections, connections) != connections;
            if let Some(connection) = self.connection.as_mut().filter(|_| is_anew) {
                connection.heard = None;
            }
        }
        match want {
            None => {}
            Some(Want::Ask { ask, from }) => self.asked(ask, from, random),
            Some(Want::Reconnect) => {
                self.connection = None;
                self.replays.clear();
            }
        }
    }

    /// What becomes of a replay that is asked for.
    fn asked(&mut self, ask: u32, from: u64, random: &mut Random) {
        // A sidecar answers what it was asked before all the same.
        if self.way == Way::Fed || random.percent(50) {
            self.replays.clear();
        }
        let connection = self.connection.as_ref().unwrap();
        let process = &self.processes[connection.process];
        let kept = process.kept.iter();
        let mut frames: VecDeque<_> = kept
            .filter(|frame| frame.sequence >= from)
            .cloned()
            .collect();
        let mut end = End::Marked;
        let is_there = connection.process == self.current() && !connection.is_cut;
        if !is_there {
            frames.clear();
            end = End::CutOff;
        } else if random.percent(self.faults.replay) {
            match random.below(6) {
                0 => end = End::Silence,
                // It says nothing at all.
                5 => {
                    frames.clear();
                    end = End::Silence;
                }
                1 => end = End::CutOff,
                2 => {
                    frames.truncate(random.between(0, frames.len()));
                    end = End::Silence;
                }
                3 => {
                    frames.truncate(random.between(0, frames.len()));
                    end = End::CutOff;
                }
                _ if frames.is_empty() => {}
                _ => {
                    frames.remove(random.below(frames.len()));
                }
            }
        }
        self.replays.push_back(Replay { ask, frames, end });
    }
}

/// What comes over a stream; from where batches are wanted again.
fn push(
    stream: &mut Option<PushStream>,
    (service, key, introduction): (&Service, &OwnerKey, Introduction),
    input: Input<Bytes>,
) -> Option<u64> {
    let now_ms = service.now_ms();
    let batch = |frame: Frame<Bytes>, is_replayed| Message::Batch {
        sequence: frame.sequence,
        digest: frame.digest,
        payload: frame.payload,
        is_replayed,
    };
    let message = match input {
        Input::Connected => {
            let opened = stream.insert(service.pushed.open());
            return opened.introduce(key, introduction, now_ms).unwrap();
        }
        Input::Lost => {
            *stream = None;
            return None;
        }
        Input::Tick => {
            let wanted = stream.as_mut()?.tick(now_ms);
            return wanted
                .first()
                .and_then(|(_, standing)| standing.replay_from);
        }
        // A sidecar that cannot says nothing.
        Input::Failed { .. } => return None,
        Input::Live(frame) => batch(frame, false),
        Input::Replayed { frame, .. } => batch(frame, true),
        Input::Ended { .. } => Message::ReplayEnded,
    };
    let standing = stream.as_mut()?.take(key, message, now_ms).unwrap();
    standing.replay_from
}
