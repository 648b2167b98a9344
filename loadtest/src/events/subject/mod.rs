//! How every index is measured, ours and the peers' alike: filled, churned, asked.
//!
//! ```text
//! fill    events of one block, of all workers in turn, until each holds its share
//! churn   removals of one block, from the ends of prompts, and stores in their place
//! find    512 blocks, hashed before: alone, and beside a thread that churns without pause
//! chunks  stores of 128 blocks an event
//! ```
//!
//! Events are made before the clock runs. It depends on nothing but the standard library and
//! serde, as the peers' own program includes it.

#![expect(clippy::disallowed_methods, reason = "it measures time")]

pub mod world;

use std::{
    fs,
    hint::black_box,
    io,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use self::world::{Block, PROMPT_BLOCKS, Prompt, World, each};

/// Blocks of an event that stores many: 2,048 tokens, which engines compute in one step.
pub const CHUNK_BLOCKS: usize = 128;
/// Of each prompt, made at once before they are applied.
const BLOCKS_AT_ONCE: usize = 32;
const CHURN_ROUNDS: usize = 2;
/// The warm-up fills so many times less.
const WARM_UP_SHARE: usize = 10;
/// Prompts that the thread beside the look-ups churns, again and again.
const WRITER_PROMPTS: usize = 64;
const PAGE_BYTES: usize = 4096;

/// An index that is told what workers store and remove.
pub trait Subject {
    type Event;
    /// What the thread that applies events has for itself.
    type Writer: Send;

    fn writer(&self) -> Self::Writer;
    fn stored(&self, worker: usize, parent: Option<&Block>, blocks: &[Block]) -> Self::Event;
    fn removed(&self, worker: usize, blocks: &[Block]) -> Self::Event;
    fn apply(&self, writer: &mut Self::Writer, event: Self::Event);

    /// Waits until what was applied is there, for one that applies behind a queue.
    fn settle(&self, _writer: &mut Self::Writer) {}
}

/// One that can be asked who holds how much of a prompt.
pub trait Finds: Subject {
    /// A prompt's blocks as it wants them.
    type Chain: Clone;
    type Found;

    fn chain(&self, prompt: &[Block]) -> Self::Chain;
    fn find(&self, chain: Self::Chain) -> Self::Found;
    /// How many blocks a worker holds of it from the start.
    fn held(&self, found: &Self::Found, worker: usize) -> usize;
}

/// What came of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Figures {
    pub entries: usize,
    pub stores_per_s: f64,
    pub churn_stores_per_s: f64,
    pub removes_per_s: f64,
    pub chunk_events_per_s: f64,
    pub bytes_per_entry: f64,
    pub churned_bytes_per_entry: f64,
    pub find_p50_us: Option<f64>,
    pub find_p99_us: Option<f64>,
    pub find_p50_us_with_writer: Option<f64>,
    pub find_p99_us_with_writer: Option<f64>,
    /// Events of the thread beside those, their making included.
    pub writer_events_per_s: Option<f64>,
}

/// An index that holds a world.
#[derive(Debug)]
pub struct Filled<S: Subject> {
    subject: S,
    writer: S::Writer,
    world: World,
    round: usize,
    pub figures: Figures,
}

impl<S: Subject> Filled<S> {
    /// Warms up with another such index, then fills and churns one.
    ///
    /// # Errors
    /// When the system does not say how much memory this process has.
    pub fn new(make: impl Fn() -> S, world: World) -> io::Result<Self> {
        let before = resident_bytes()?;
        let few = World {
            prompts: world.prompts.div_ceil(WARM_UP_SHARE),
            ..world
        };
        let mut warm_up = Self::empty(make(), few);
        for some in few.groups(0) {
            warm_up.store(&some);
        }
        for some in few.groups(0) {
            warm_up.remove(&some);
        }
        drop(warm_up);

        let mut filled = Self::empty(make(), world);
        let entries = world.entries() as f64;
        let took = world.groups(0).map(|some| filled.store(&some)).sum();
        filled.figures.stores_per_s = per_s(entries, took);
        let bytes_each = || Ok::<_, io::Error>((resident_bytes()? - before) as f64 / entries);
        filled.figures.bytes_per_entry = bytes_each()?;
        let (mut removing, mut storing) = (Duration::ZERO, Duration::ZERO);
        for round in 1..=CHURN_ROUNDS {
            for (old, new) in world.groups(round - 1).zip(world.groups(round)) {
                removing += filled.remove(&old);
                storing += filled.store(&new);
            }
        }
        filled.round = CHURN_ROUNDS;
        let events = entries * CHURN_ROUNDS as f64;
        filled.figures.removes_per_s = per_s(events, removing);
        filled.figures.churn_stores_per_s = per_s(events, storing);
        filled.figures.churned_bytes_per_entry = bytes_each()?;
        Ok(filled)
    }

    /// Renews all prompts by events of many blocks.
    pub fn chunks(&mut self) {
        let mut storing = Duration::ZERO;
        let world = self.world;
        for (old, new) in world.groups(self.round).zip(world.groups(self.round + 1)) {
            let gone = Held::all(world, &old)
                .iter()
                .map(|held| held.removed(&self.subject, 0..PROMPT_BLOCKS))
                .collect();
            self.apply(gone);
            let all = Held::all(world, &new);
            let come = (0..PROMPT_BLOCKS)
                .step_by(CHUNK_BLOCKS)
                .flat_map(|first| all.iter().map(move |held| (held, first)))
                .map(|(held, first)| held.stored(&self.subject, first..first + CHUNK_BLOCKS))
                .collect();
            storing += self.apply(come);
        }
        self.round += 1;
        let events = (world.entries() / CHUNK_BLOCKS) as f64;
        self.figures.chunk_events_per_s = per_s(events, storing);
    }

    fn empty(subject: S, world: World) -> Self {
        Self {
            writer: subject.writer(),
            subject,
            world,
            round: 0,
            figures: Figures {
                entries: world.entries(),
                ..Figures::default()
            },
        }
    }

    fn store(&mut self, prompts: &Range<Prompt>) -> Duration {
        self.one_by_one(prompts, |subject, held, block| {
            held.stored(subject, block..block + 1)
        })
    }

    /// From the end of each prompt, as engines do.
    fn remove(&mut self, prompts: &Range<Prompt>) -> Duration {
        self.one_by_one(prompts, |subject, held, block| {
            let block = PROMPT_BLOCKS - 1 - block;
            held.removed(subject, block..block + 1)
        })
    }

    fn one_by_one(
        &mut self,
        prompts: &Range<Prompt>,
        event: impl Fn(&S, &Held, usize) -> S::Event,
    ) -> Duration {
        let all = Held::all(self.world, prompts);
        let mut took = Duration::ZERO;
        for first in (0..PROMPT_BLOCKS).step_by(BLOCKS_AT_ONCE) {
            let events = (first..first + BLOCKS_AT_ONCE)
                .flat_map(|block| all.iter().map(move |held| (held, block)))
                .map(|(held, block)| event(&self.subject, held, block))
                .collect();
            took += self.apply(events);
        }
        took
    }

    fn apply(&mut self, events: Vec<S::Event>) -> Duration {
        let began = Instant::now();
        for event in events {
            self.subject.apply(&mut self.writer, event);
        }
        self.subject.settle(&mut self.writer);
        began.elapsed()
    }
}

impl<S: Finds> Filled<S> {
    /// Asks for every prompt in turn, and once for all whether the answers are right.
    ///
    /// # Errors
    /// With what a wrong answer says.
    pub fn finds(&mut self, look_ups: usize) -> Result<(), String> {
        let chains = self.chains();
        self.check(&chains)?;
        look_up(&self.subject, &chains, look_ups / 4);
        let times = look_up(&self.subject, &chains, look_ups);
        self.figures.find_p50_us = Some(quantile_us(&times, 0.5));
        self.figures.find_p99_us = Some(quantile_us(&times, 0.99));
        Ok(())
    }

    fn chains(&self) -> Vec<S::Chain> {
        let prompts = self.world.groups(self.round).flat_map(|some| each(&some));
        prompts
            .map(|prompt| self.subject.chain(&self.world.blocks(prompt)))
            .collect()
    }

    fn check(&self, chains: &[S::Chain]) -> Result<(), String> {
        let prompts = self.world.groups(self.round).flat_map(|some| each(&some));
        for (prompt, chain) in prompts.zip(chains) {
            let worker = self.world.worker(prompt);
            let found = self.subject.find(chain.clone());
            let held = self.subject.held(&found, worker);
            if held != PROMPT_BLOCKS {
                return Err(format!("{prompt:?}: {held} blocks of {PROMPT_BLOCKS}"));
            }
            let before = Prompt {
                round: self.round - 1,
                ..prompt
            };
            let chain = self.subject.chain(&self.world.blocks(before));
            let held = self.subject.held(&self.subject.find(chain), worker);
            if held >= PROMPT_BLOCKS {
                return Err(format!("{before:?} is gone, and {held} blocks are found"));
            }
        }
        Ok(())
    }
}

impl<S: Finds + Sync> Filled<S> {
    /// The same beside a thread that removes and stores prompts without pause.
    ///
    /// # Errors
    /// When that thread panicked.
    pub fn finds_beside_writer(&mut self, look_ups: usize) -> Result<(), String> {
        let chains = self.chains();
        let (subject, world, round) = (&self.subject, self.world, self.round);
        let writer = &mut self.writer;
        let stop = AtomicBool::new(false);
        let (times, written) = thread::scope(|scope| {
            let writing = scope.spawn(|| write(subject, writer, (world, round), &stop));
            look_up(subject, &chains, look_ups / 4);
            let times = look_up(subject, &chains, look_ups);
            stop.store(true, Ordering::Relaxed);
            (times, writing.join())
        });
        let written = written.map_err(|_| "the writer panicked".to_owned())?;
        self.figures.find_p50_us_with_writer = Some(quantile_us(&times, 0.5));
        self.figures.find_p99_us_with_writer = Some(quantile_us(&times, 0.99));
        self.figures.writer_events_per_s = Some(written);
        self.check(&chains)
    }
}

/// Events a second until it is told to stop; what it removes it stores again.
fn write<S: Subject>(
    subject: &S,
    writer: &mut S::Writer,
    (world, round): (World, usize),
    stop: &AtomicBool,
) -> f64 {
    let first = Prompt { number: 0, round };
    let few = Prompt {
        number: world.prompts.min(WRITER_PROMPTS),
        round,
    };
    let all = Held::all(world, &(first..few));
    let began = Instant::now();
    let mut events = 0;
    for held in all.iter().cycle() {
        for block in (0..PROMPT_BLOCKS).rev() {
            subject.apply(writer, held.removed(subject, block..block + 1));
        }
        for block in 0..PROMPT_BLOCKS {
            subject.apply(writer, held.stored(subject, block..block + 1));
        }
        subject.settle(writer);
        events += 2 * PROMPT_BLOCKS;
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    per_s(events as f64, began.elapsed())
}

/// A prompt's blocks, and the worker that holds them.
struct Held {
    worker: usize,
    blocks: Vec<Block>,
}

impl Held {
    fn all(world: World, prompts: &Range<Prompt>) -> Vec<Self> {
        let held = |prompt| Self {
            worker: world.worker(prompt),
            blocks: world.blocks(prompt),
        };
        each(prompts).map(held).collect()
    }

    fn stored<S: Subject>(&self, subject: &S, of: Range<usize>) -> S::Event {
        let parent = of.start.checked_sub(1).map(|parent| &self.blocks[parent]);
        subject.stored(self.worker, parent, &self.blocks[of])
    }

    fn removed<S: Subject>(&self, subject: &S, of: Range<usize>) -> S::Event {
        let mut blocks = self.blocks[of].to_vec();
        blocks.reverse();
        subject.removed(self.worker, &blocks)
    }
}

fn look_up<S: Finds>(subject: &S, chains: &[S::Chain], look_ups: usize) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..look_ups)
        .map(|at| {
            let chain = black_box(chains[at * 7919 % chains.len()].clone());
            let began = Instant::now();
            let found = black_box(subject.find(chain));
            let took = began.elapsed();
            drop(found);
            took
        })
        .collect();
    times.sort_unstable();
    times
}

fn quantile_us(sorted: &[Duration], share: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length"
    )]
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at).map_or(0.0, |took| took.as_secs_f64() * 1e6)
}

fn per_s(count: f64, took: Duration) -> f64 {
    count / took.as_secs_f64()
}

fn resident_bytes() -> io::Result<usize> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    let resident = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    let resident: usize = resident.ok_or(io::ErrorKind::InvalidData)?;
    Ok(resident * PAGE_BYTES)
}
