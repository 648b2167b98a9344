//! Replays a trace over workers that keep blocks as engines do, and counts the hits.
//!
//! ```text
//! request -> find (the service) -> the worker's queue -> prefill -> decode
//!                  ^                                        |          |
//!                  |-- finish ------------------------------+----------+
//!                  +-- events: blocks stored and evicted at the end of each prefill
//! ```
//!
//! A worker computes one prompt at a time, in order of arrival, and leaves out the blocks from
//! the start that it holds when it begins. Decoding holds no other request up. FindWorkers has to
//! say at every pick what the caches truly hold.

use std::collections::{BTreeMap, VecDeque};

use super::{Scale, cache::Cache, file::Request, service::Service};
use crate::error::LoadtestError;

#[derive(Debug, Clone, Copy)]
pub(super) enum Policy {
    /// Ours, with a seed for its spread.
    FindWorkers(u64),
    RoundRobin,
    /// The fewest requests in flight, in turn among equals.
    LeastLoad,
}

impl Policy {
    pub(super) fn name(self) -> String {
        match self {
            Self::FindWorkers(seed) => format!("FindWorkers, seed {}", seed >> 32),
            Self::RoundRobin => "round robin".to_owned(),
            Self::LeastLoad => "least load".to_owned(),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// Blocks that were not computed again.
    pub(super) hits: usize,
    /// Each worker's seconds of prefill, which is what one request takes from all others.
    prefill_s: Vec<f64>,
    /// Each worker's seconds of decoding, summed over its requests.
    decode_s: Vec<f64>,
    /// From arrival to the first token, ascending.
    pub(super) waits_s: Vec<f64>,
}

impl Outcome {
    /// The busiest worker over the mean: of prefill or of decoding, whichever is worse.
    pub(super) fn imbalance(&self) -> f64 {
        let of = |work: &[f64]| {
            let most = work.iter().copied().fold(0.0, f64::max);
            most * work.len() as f64 / work.iter().sum::<f64>()
        };
        of(&self.prefill_s).max(of(&self.decode_s))
    }
}

/// What one cache with the blocks of all workers would hit, if every prompt were computed as soon
/// as it came.
pub(super) fn ideal_hits(trace: &[Request], scale: &Scale) -> usize {
    let mut cache = Cache::new(scale.workers * scale.worker_blocks);
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
pub(super) fn replay(
    trace: &[Request],
    scale: &Scale,
    policy: Policy,
) -> Result<Outcome, LoadtestError> {
    let mut world = World::new(trace, scale, policy);
    for (number, request) in trace.iter().enumerate() {
        world.go_on(request.at_us);
        let worker = world.choose(number, policy)?;
        let carried = &mut world.workers[worker];
        carried.in_flight += 1;
        carried.queue.push_back(number);
        if carried.queue.len() == 1 {
            world.begin(worker, request.at_us);
        }
    }
    world.go_on(u64::MAX);
    world.outcome.waits_s.sort_unstable_by(f64::total_cmp);
    Ok(world.outcome)
}

struct World<'a> {
    trace: &'a [Request],
    scale: &'a Scale,
    service: Service,
    workers: Vec<Worker>,
    /// What happens when; the number keeps those of one time in order.
    agenda: BTreeMap<(u64, usize), Happening>,
    happenings: usize,
    outcome: Outcome,
}

struct Worker {
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
    fn new(trace: &'a [Request], scale: &'a Scale, policy: Policy) -> Self {
        let seed = match policy {
            Policy::FindWorkers(seed) => seed,
            Policy::RoundRobin | Policy::LeastLoad => 0,
        };
        let worker = |_| Worker {
            cache: Cache::new(scale.worker_blocks),
            queue: VecDeque::new(),
            in_flight: 0,
        };
        Self {
            trace,
            scale,
            service: Service::new(scale.workers, scale.block_tokens, seed),
            workers: (0..scale.workers).map(worker).collect(),
            agenda: BTreeMap::new(),
            happenings: 0,
            outcome: Outcome {
                hits: 0,
                prefill_s: vec![0.0; scale.workers],
                decode_s: vec![0.0; scale.workers],
                waits_s: Vec::new(),
            },
        }
    }

    fn choose(&self, number: usize, policy: Policy) -> Result<usize, LoadtestError> {
        let workers = self.scale.workers;
        match policy {
            Policy::RoundRobin => Ok(number % workers),
            Policy::LeastLoad => {
                let in_turn = (0..workers).map(|at| (number + at) % workers);
                let least = in_turn.min_by_key(|&worker| self.workers[worker].in_flight);
                Ok(least.unwrap_or_default())
            }
            Policy::FindWorkers(_) => self.ask(number),
        }
    }

    fn ask(&self, number: usize) -> Result<usize, LoadtestError> {
        let request = &self.trace[number];
        let now_ms = request.at_us / 1000;
        let answer = self
            .service
            .find(&request.blocks, Some(&request_id(number)), now_ms);
        let truly = |worker: &Worker| worker.cache.prefix(&request.blocks);
        let truly: Vec<usize> = self.workers.iter().map(truly).collect();
        let wrong = |reason| LoadtestError::WrongAnswer {
            call: "FindWorkers",
            reason,
        };
        if answer.held != truly {
            let held = &answer.held;
            return Err(wrong(format!("{held:?} blocks are held, truly {truly:?}")));
        }
        answer
            .picked
            .ok_or_else(|| wrong("nobody is picked".to_owned()))
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
                    self.service.finish(request_id(number));
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
        let held_tokens = (hits * self.scale.block_tokens) as u64;
        let tokens = request.input_tokens.saturating_sub(held_tokens).max(1);
        let took_us = tokens * 1_000_000 / self.scale.prefill_tokens_per_s;
        self.outcome.hits += hits;
        self.outcome.prefill_s[worker] += seconds(took_us);
        self.plan(now_us + took_us, Happening::Computed { worker, hits });
    }

    /// The prompt is computed: its blocks are kept, others go, and its answer begins.
    fn end(&mut self, worker: usize, hits: usize, now_us: u64) {
        let carried = &mut self.workers[worker];
        let Some(number) = carried.queue.pop_front() else {
            return;
        };
        let request = &self.trace[number];
        let gone = carried.cache.keep(&request.blocks);
        let prompt = (request.blocks.as_slice(), hits);
        self.service.computed(worker, prompt, gone, now_us / 1000);
        let took_us = request.output_tokens * 1_000_000 / self.scale.decode_tokens_per_s;
        self.outcome.decode_s[worker] += seconds(took_us);
        self.outcome.waits_s.push(seconds(now_us - request.at_us));
        self.plan(now_us + took_us, Happening::Decoded { worker, number });
        self.begin(worker, now_us);
    }

    fn plan(&mut self, at_us: u64, happening: Happening) {
        self.happenings += 1;
        self.agenda.insert((at_us, self.happenings), happening);
    }
}

fn request_id(number: usize) -> String {
    format!("request-{number}")
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}
