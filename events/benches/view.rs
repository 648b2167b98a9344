//! Speed and memory of the view:
//! `cargo bench -p kvatlas-events --bench view -- [blocks] [workers] [look-ups]`.
//! Prompts of 512 blocks of 16 tokens; the first half of one in two comes from a few that all
//! workers share. Events have one block and come from all workers in turn.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::collections::HashSet;
use std::fmt::Write as _;
use std::hint::black_box;
use std::io::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kvatlas_events::event::{EngineHash, Event, Kind, Medium, Removed, Stored};
use kvatlas_events::view::{
    Change, Index, Namespace, OwnHash, Place, Prompt, Seat, Shape, SourceId, Start, View, chain,
};

const SHAPE: Shape = Shape {
    block_size: 16,
    lookahead: 0,
};
const MODEL: Namespace = Namespace(0x5eed);
const PROMPT_BLOCKS: usize = 512;
const SHARED_BLOCKS: usize = 256;
const SHARED_PROMPTS: u64 = 16;
const BLOCKS_AT_ONCE: usize = 32;
const CHURN_ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers: Vec<usize> = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let number = |at: usize, otherwise| numbers.get(at).copied().unwrap_or(otherwise);
    let blocks = number(0, 1_000_000);
    let (workers, look_ups) = (number(1, 100), number(2, 20_000));
    let prompts = blocks / PROMPT_BLOCKS;
    let mut out = String::new();

    let world = World::new(workers);
    let before = resident_bytes()?;
    let stored_s = world.store(0..prompts);
    let held: usize = world
        .sources
        .iter()
        .map(|&source| world.view.blocks(source))
        .sum();
    let bytes_each = || -> Result<f64, Box<dyn std::error::Error>> {
        Ok(resident_bytes()?.saturating_sub(before) as f64 / held as f64)
    };
    writeln!(out, "stores {:.2} M/s", per_us(blocks, stored_s))?;
    writeln!(out, "{held} entries of {:.1} bytes", bytes_each()?)?;

    for round in 1..=CHURN_ROUNDS {
        let (mut removed_s, mut stored_s) = (0.0, 0.0);
        for first in (0..prompts).step_by(256) {
            let some = first..(first + 256).min(prompts);
            let of = |round| some.start + round * prompts..some.end + round * prompts;
            removed_s += world.remove(of(round - 1));
            stored_s += world.store(of(round));
        }
        let [removes, stores] = [removed_s, stored_s].map(|seconds| per_us(blocks, seconds));
        let bytes = bytes_each()?;
        writeln!(
            out,
            "churn: removes {removes:.2} M/s, stores {stores:.2} M/s, {bytes:.1} bytes"
        )?;
    }

    let last = CHURN_ROUNDS * prompts..(CHURN_ROUNDS + 1) * prompts;
    let chains: Vec<Vec<OwnHash>> = last.clone().map(own_chain).collect();
    writeln!(
        out,
        "find, idle: {}",
        look_up(&world.view, &chains, look_ups)
    )?;
    let stop = AtomicBool::new(false);
    let (report, churned) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| world.churn(last, &stop));
        let report = look_up(&world.view, &chains, look_ups);
        stop.store(true, Ordering::Relaxed);
        (report, writer.join())
    });
    let churned = churned.map_err(|_| "the writer panicked")?;
    writeln!(
        out,
        "find, beside a writer of {churned:.2} M events/s: {report}"
    )?;

    let (stored_s, removed_s) = index_alone(workers, prompts);
    let [stores, removes] = [stored_s, removed_s].map(|seconds| per_us(blocks, seconds));
    writeln!(
        out,
        "index alone: stores {stores:.2} M/s, removes {removes:.2} M/s"
    )?;
    std::io::stdout().write_all(out.as_bytes())?;
    Ok(())
}

/// Seconds for the stores and for the removals of one-block events, without what engines' hashes
/// and rules cost.
fn index_alone(workers: usize, prompts: usize) -> (f64, f64) {
    let index = Index::default();
    let chains: Vec<Vec<u64>> = (0..prompts)
        .map(|prompt| {
            (0..PROMPT_BLOCKS)
                .map(|block| name(prompt, block))
                .collect()
        })
        .collect();
    let seat = |prompt: usize| Seat::new(u16::try_from(prompt % workers).unwrap_or(u16::MAX), 0);
    let mut places: Vec<Vec<Place>> = vec![Vec::with_capacity(PROMPT_BLOCKS); prompts];
    let mut puts = Vec::new();
    let start = busy_s();
    for first in (0..prompts).step_by(workers) {
        for block in 0..PROMPT_BLOCKS {
            for prompt in first..(first + workers).min(prompts) {
                let from = places[prompt]
                    .last()
                    .map_or(Start::Root(OwnHash(1)), |&place| Start::After(place));
                index.put(
                    seat(prompt),
                    from,
                    &chains[prompt][block..=block],
                    &mut puts,
                );
                places[prompt].extend(puts.iter().map(|put| put.place));
            }
        }
    }
    let stored_s = busy_s() - start;
    // A block that two prompts of one worker share is removed once.
    let mut held: HashSet<(Seat, Place)> = HashSet::new();
    for (prompt, places) in places.iter_mut().enumerate() {
        places.retain(|&place| held.insert((seat(prompt), place)));
    }
    let start = busy_s();
    for first in (0..prompts).step_by(workers) {
        for block in 0..PROMPT_BLOCKS {
            for (prompt, places) in places.iter().enumerate().skip(first).take(workers) {
                if let Some(&place) = places.iter().rev().nth(block) {
                    black_box(index.release(seat(prompt), place));
                }
            }
        }
    }
    let share = held.len() as f64 / (prompts * PROMPT_BLOCKS) as f64;
    (stored_s, (busy_s() - start) / share)
}

struct World {
    view: View,
    sources: Vec<SourceId>,
}

impl World {
    fn new(workers: usize) -> Self {
        let view = View::default();
        let sources = (0..workers).filter_map(|_| view.add(MODEL)).collect();
        Self { view, sources }
    }

    fn source(&self, prompt: usize) -> SourceId {
        self.sources[prompt % self.sources.len()]
    }

    /// Seconds that the events took.
    fn store(&self, prompts: Range<usize>) -> f64 {
        self.apply(prompts, stored)
    }

    /// From the end of each prompt, as engines do.
    fn remove(&self, prompts: Range<usize>) -> f64 {
        self.apply(prompts, |prompt, block| {
            removed(prompt, PROMPT_BLOCKS - 1 - block)
        })
    }

    fn apply(&self, prompts: Range<usize>, event: impl Fn(usize, usize) -> Event<'static>) -> f64 {
        let mut seconds = 0.0;
        let mut changes = Vec::new();
        let workers = self.sources.len();
        for some in prompts.clone().step_by(workers) {
            let some = some..(some + workers).min(prompts.end);
            for first in (0..PROMPT_BLOCKS).step_by(BLOCKS_AT_ONCE) {
                let events: Vec<(SourceId, [Event<'_>; 1])> = (first..first + BLOCKS_AT_ONCE)
                    .flat_map(|block| some.clone().map(move |prompt| (prompt, block)))
                    .map(|(prompt, block)| (self.source(prompt), [event(prompt, block)]))
                    .collect();
                let start = busy_s();
                for (source, event) in &events {
                    changes.clear();
                    black_box(self.view.apply(*source, event, &mut changes));
                }
                seconds += busy_s() - start;
            }
        }
        seconds
    }

    /// Removes and stores the same prompts until it is told to stop. Million events a second.
    fn churn(&self, prompts: Range<usize>, stop: &AtomicBool) -> f64 {
        let (mut events, mut changes): (usize, Vec<Change>) = (0, Vec::new());
        let start = Instant::now();
        for prompt in prompts.cycle() {
            for block in (0..PROMPT_BLOCKS).rev() {
                changes.clear();
                self.view
                    .apply(self.source(prompt), &[removed(prompt, block)], &mut changes);
            }
            for block in 0..PROMPT_BLOCKS {
                changes.clear();
                self.view
                    .apply(self.source(prompt), &[stored(prompt, block)], &mut changes);
            }
            events += 2 * PROMPT_BLOCKS;
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        per_us(events, start.elapsed().as_secs_f64())
    }
}

fn look_up(view: &View, chains: &[Vec<OwnHash>], look_ups: usize) -> String {
    let mut times_ns: Vec<u128> = (0..look_ups)
        .map(|at| {
            let chain = &chains[at * 7919 % chains.len()];
            let start = Instant::now();
            black_box(view.matches(SHAPE, black_box(chain)));
            start.elapsed().as_nanos()
        })
        .collect();
    times_ns.sort_unstable();
    let at = |share: usize| times_ns[look_ups * share / 1000] as f64 / 1000.0;
    format!(
        "p50 {:.2} us, p99 {:.2} us, p999 {:.2} us",
        at(500),
        at(990),
        at(999)
    )
}

fn own_chain(prompt: usize) -> Vec<OwnHash> {
    let tokens: Vec<u32> = (0..PROMPT_BLOCKS)
        .flat_map(|block| tokens(prompt, block))
        .collect();
    let prompt = Prompt {
        namespace: MODEL,
        adapter: None,
        tenant: None,
        items: &[],
        tokens: &tokens,
    };
    chain(&prompt, SHAPE)
}

fn tokens(prompt: usize, block: usize) -> [u32; 16] {
    let name = name(prompt, block);
    std::array::from_fn(|at| u32::try_from(mix(name + at as u64) % 150_000).unwrap_or_default())
}

/// Half of the prompts begin with one that is shared.
fn name(prompt: usize, block: usize) -> u64 {
    let seed = if prompt.is_multiple_of(2) && block < SHARED_BLOCKS {
        mix(prompt as u64 / 2) % SHARED_PROMPTS
    } else {
        SHARED_PROMPTS + prompt as u64
    };
    mix(seed << 16 | block as u64 | 1 << 60)
}

fn engine_hash(prompt: usize, block: usize) -> EngineHash {
    EngineHash(name(prompt, block))
}

fn stored(prompt: usize, block: usize) -> Event<'static> {
    Event::Stored(Stored {
        hashes: vec![engine_hash(prompt, block)],
        parent: block.checked_sub(1).map(|block| engine_hash(prompt, block)),
        tokens: tokens(prompt, block).to_vec(),
        bigram_end: None,
        block_size: 16,
        medium: Medium::Device,
        adapter: None,
        salt: None,
        extra: Vec::new(),
        group: Some(0),
        kind: Kind::Attention,
        lookahead: Vec::new(),
    })
}

fn removed(prompt: usize, block: usize) -> Event<'static> {
    let hashes = vec![engine_hash(prompt, block)];
    Event::Removed(Removed {
        hashes,
        medium: Medium::Device,
        group: Some(0),
    })
}

fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

fn per_us(count: usize, seconds: f64) -> f64 {
    count as f64 / seconds / 1e6
}

/// Seconds that this thread ran: what others on the machine do does not count.
fn busy_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns: u64 = stat
        .split(' ')
        .next()
        .and_then(|ns| ns.parse().ok())
        .unwrap_or_default();
    ns as f64 / 1e9
}

fn resident_bytes() -> Result<usize, Box<dyn std::error::Error>> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let resident: usize = pages
        .split(' ')
        .nth(1)
        .ok_or("no resident pages")?
        .parse()?;
    Ok(resident * 4096)
}
