//! Replays a trace of requests over workers that keep blocks as engines do, and counts the hits.
//!
//! ```text
//! request -> find (the view) -> pick (the policy) -> the worker's queue -> prefill -> decode
//!                  ^                  ^                                      |          |
//!                  |                  +-- load: start, finish ---------------+----------+
//!                  +-- events: blocks stored and evicted at the end of each prefill
//! ```
//!
//! A worker computes one prompt at a time, in order of arrival, and leaves out the blocks from
//! the start that it holds when it begins. Decoding holds no other request up. The view is the
//! real one, fed with events, and has to say at every pick what the caches truly hold.

use std::collections::{BTreeMap, HashMap, VecDeque};

use kvatlas_events::event::{EngineHash, Event, Kind, Medium, Removed, Stored};
use kvatlas_events::pick::{Candidate, Load, SourceState, pick};
use kvatlas_events::view::{Change, Namespace, Prompt, Shape, SourceId, View, chain};

/// The trace names blocks, not tokens: each name is one token here, and each block one token.
const SHAPE: Shape = Shape {
    block_size: 1,
    lookahead: 0,
};
const MODEL: Namespace = Namespace(0x5eed);
const LEASE_MS: u64 = 600_000;

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) at_us: u64,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    /// One name for each block of the input, which stands for all blocks before it too.
    pub(crate) blocks: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fleet {
    pub(crate) workers: usize,
    /// Blocks that each worker holds; the least recently used goes first.
    pub(crate) worker_blocks: usize,
    pub(crate) block_tokens: u64,
    pub(crate) prefill_tokens_per_s: u64,
    pub(crate) decode_tokens_per_s: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Policy {
    /// Ours, with a seed for its spread.
    Pick(u64),
    RoundRobin,
    /// The fewest requests in flight, in turn among equals.
    LeastLoad,
}

#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// Blocks that were not computed again.
    pub(crate) hits: usize,
    /// Each worker's seconds of prefill, which is what one request takes from all others.
    pub(crate) prefill_s: Vec<f64>,
    /// Each worker's seconds of decoding, summed over its requests.
    pub(crate) decode_s: Vec<f64>,
    /// From arrival to the first token, ascending.
    pub(crate) waits_s: Vec<f64>,
}

impl Report {
    /// The busiest worker over the mean: of prefill or of decoding, whichever is worse.
    pub(crate) fn imbalance(&self) -> f64 {
        let of = |work: &[f64]| {
            let most = work.iter().copied().fold(0.0, f64::max);
            most * work.len() as f64 / work.iter().sum::<f64>()
        };
        of(&self.prefill_s).max(of(&self.decode_s))
    }
}

/// What one cache with the blocks of all workers would hit, if every prompt were computed as soon
/// as it came.
pub(crate) fn ideal_hits(trace: &[Request], fleet: &Fleet) -> usize {
    let mut cache = Cache::new(fleet.workers * fleet.worker_blocks);
    trace
        .iter()
        .map(|request| {
            let hits = cache.prefix(&request.blocks);
            cache.keep(&request.blocks);
            hits
        })
        .sum()
}

/// The trace has to be in order of time.
pub(crate) fn replay(trace: &[Request], fleet: &Fleet, policy: Policy) -> Report {
    let mut world = World::new(trace, fleet);
    for (number, request) in trace.iter().enumerate() {
        world.go_on(request.at_us);
        let worker = world.choose(number, policy);
        let carried = &mut world.workers[worker];
        carried.in_flight += 1;
        carried.queue.push_back(number);
        if carried.queue.len() == 1 {
            world.begin(worker, request.at_us);
        }
    }
    world.go_on(u64::MAX);
    world.report.waits_s.sort_unstable_by(f64::total_cmp);
    world.report
}

struct World<'a> {
    trace: &'a [Request],
    fleet: &'a Fleet,
    view: View,
    load: Load,
    workers: Vec<Worker>,
    /// What happens when; the number keeps those of one time in order.
    agenda: BTreeMap<(u64, usize), Happening>,
    happenings: usize,
    report: Report,
}

struct Worker {
    source: SourceId,
    cache: Cache,
    /// The first is being computed.
    queue: VecDeque<usize>,
    in_flight: usize,
}

#[derive(Clone, Copy)]
enum Happening {
    Computed { worker: usize, hits: usize },
    Decoded { worker: usize, number: usize },
}

impl<'a> World<'a> {
    fn new(trace: &'a [Request], fleet: &'a Fleet) -> Self {
        let view = View::default();
        let workers = (0..fleet.workers)
            .map(|_| Worker {
                source: view.add(MODEL).expect("fewer than the view can follow"),
                cache: Cache::new(fleet.worker_blocks),
                queue: VecDeque::new(),
                in_flight: 0,
            })
            .collect();
        Self {
            trace,
            fleet,
            view,
            load: Load::new(LEASE_MS),
            workers,
            agenda: BTreeMap::new(),
            happenings: 0,
            report: Report {
                hits: 0,
                prefill_s: vec![0.0; fleet.workers],
                decode_s: vec![0.0; fleet.workers],
                waits_s: Vec::new(),
            },
        }
    }

    fn choose(&mut self, number: usize, policy: Policy) -> usize {
        let request = &self.trace[number];
        let now_ms = request.at_us / 1000;
        let candidates = self.find(&request.blocks);
        match policy {
            Policy::RoundRobin => number % self.fleet.workers,
            Policy::LeastLoad => (0..self.fleet.workers)
                .map(|at| (number + at) % self.fleet.workers)
                .min_by_key(|&worker| self.workers[worker].in_flight)
                .expect("there are workers"),
            Policy::Pick(seed) => {
                self.load.expire(now_ms);
                let total = u32::try_from(request.blocks.len()).expect("a prompt is short");
                let spread = seed.wrapping_add(number as u64);
                let picked = pick(&candidates, total, &self.load, now_ms, spread)
                    .expect("there are workers");
                self.load
                    .start(
                        &number.to_string(),
                        picked.source,
                        picked.charge_blocks,
                        now_ms,
                    )
                    .expect("within the bounds of the book");
                candidates
                    .iter()
                    .position(|one| one.source == picked.source)
                    .expect("it was a candidate")
            }
        }
    }

    /// Every worker with what the view says that it holds, which has to be what it does.
    fn find(&self, blocks: &[u32]) -> Vec<Candidate> {
        let prompt = Prompt {
            namespace: MODEL,
            adapter: None,
            tenant: None,
            items: &[],
            tokens: blocks,
        };
        let found: HashMap<SourceId, u32> = self
            .view
            .matches(SHAPE, &chain(&prompt, SHAPE))
            .iter()
            .map(|one| (one.source, one.device_blocks))
            .collect();
        self.workers
            .iter()
            .map(|worker| {
                let device_blocks = found.get(&worker.source).copied().unwrap_or_default();
                assert_eq!(device_blocks as usize, worker.cache.prefix(blocks));
                Candidate {
                    source: worker.source,
                    device_blocks,
                    lower_blocks: 0,
                    state: SourceState::Exact,
                }
            })
            .collect()
    }

    /// Lets everything happen that does before a time.
    fn go_on(&mut self, until_us: u64) {
        while let Some(next) = self.agenda.first_entry()
            && next.key().0 <= until_us
        {
            let ((now_us, _), happening) = next.remove_entry();
            match happening {
                Happening::Computed { worker, hits } => self.end(worker, hits, now_us),
                Happening::Decoded { worker, number } => {
                    self.workers[worker].in_flight -= 1;
                    self.load.finish(&number.to_string());
                }
            }
        }
    }

    /// Begins to compute the first prompt of a worker's queue.
    fn begin(&mut self, worker: usize, now_us: u64) {
        let Some(&number) = self.workers[worker].queue.front() else {
            return;
        };
        let request = &self.trace[number];
        let cache = &mut self.workers[worker].cache;
        let hits = cache.prefix(&request.blocks);
        cache.keep(&request.blocks[..hits]);
        let held_tokens = hits as u64 * self.fleet.block_tokens;
        let tokens = request.input_tokens.saturating_sub(held_tokens).max(1);
        let took_us = tokens * 1_000_000 / self.fleet.prefill_tokens_per_s;
        self.report.hits += hits;
        self.report.prefill_s[worker] += seconds(took_us);
        self.plan(now_us + took_us, Happening::Computed { worker, hits });
    }

    /// The prompt is computed: its blocks are kept, others go, and its answer begins.
    fn end(&mut self, worker: usize, hits: usize, now_us: u64) {
        let carried = &mut self.workers[worker];
        let number = carried.queue.pop_front().expect("it was being computed");
        let request = &self.trace[number];
        let gone = carried.cache.keep(&request.blocks);
        let events = [stored(&request.blocks, hits), removed(gone)];
        let mut changes: Vec<Change> = Vec::new();
        self.view.apply(carried.source, &events, &mut changes);
        let took_us = request.output_tokens * 1_000_000 / self.fleet.decode_tokens_per_s;
        self.report.decode_s[worker] += seconds(took_us);
        self.report.waits_s.push(seconds(now_us - request.at_us));
        self.plan(now_us + took_us, Happening::Decoded { worker, number });
        self.begin(worker, now_us);
    }

    fn plan(&mut self, at_us: u64, happening: Happening) {
        self.happenings += 1;
        self.agenda.insert((at_us, self.happenings), happening);
    }
}

/// Blocks by how lately they were used. A block's parents are always used after it, as engines
/// free a request's blocks from its end: what is held is whole from the start.
struct Cache {
    blocks_max: usize,
    uses: u64,
    used: HashMap<u32, u64>,
    by_use: BTreeMap<u64, u32>,
}

impl Cache {
    fn new(blocks_max: usize) -> Self {
        Self {
            blocks_max,
            uses: 0,
            used: HashMap::new(),
            by_use: BTreeMap::new(),
        }
    }

    /// How many blocks it holds from the start.
    fn prefix(&self, blocks: &[u32]) -> usize {
        let held = blocks
            .iter()
            .take_while(|block| self.used.contains_key(block));
        held.count()
    }

    /// Uses blocks, and says which went for them.
    fn keep(&mut self, blocks: &[u32]) -> Vec<u32> {
        for &block in blocks.iter().rev() {
            self.uses += 1;
            if let Some(before) = self.used.insert(block, self.uses) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.uses, block);
        }
        let mut gone = Vec::new();
        while self.used.len() > self.blocks_max
            && let Some((_, block)) = self.by_use.pop_first()
        {
            self.used.remove(&block);
            gone.push(block);
        }
        gone
    }
}

fn stored(blocks: &[u32], held: usize) -> Event<'static> {
    Event::Stored(Stored {
        hashes: blocks[held..].iter().copied().map(engine_hash).collect(),
        parent: held.checked_sub(1).map(|last| engine_hash(blocks[last])),
        tokens: blocks[held..].to_vec(),
        bigram_end: None,
        block_size: SHAPE.block_size,
        medium: Medium::Device,
        adapter: None,
        salt: None,
        extra: Vec::new(),
        group: Some(0),
        kind: Kind::Attention,
        lookahead: Vec::new(),
    })
}

fn removed(blocks: Vec<u32>) -> Event<'static> {
    Event::Removed(Removed {
        hashes: blocks.into_iter().map(engine_hash).collect(),
        medium: Medium::Device,
        group: Some(0),
    })
}

fn engine_hash(block: u32) -> EngineHash {
    EngineHash(u64::from(block) + 1)
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}
