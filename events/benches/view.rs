//! Speed and memory of the view:
//! `cargo bench -p kvatlas-events --bench view -- [blocks] [workers] [look-ups]`.
//! Prompts of 512 blocks of 16 tokens; the first half of one in two comes from a few that all
//! workers share. Events have one block and come from all workers in turn.

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kvatlas_events::event::{EngineHash, Event, Kind, Medium, Removed, Stored};
use kvatlas_events::view::{Change, Namespace, OwnHash, Prompt, Shape, SourceId, View, chain};

const SHAPE: Shape = Shape {
    block_size: 16,
    lookahead: 0,
};
const MODEL: Namespace = Namespace(0x5eed);
const PROMPT_BLOCKS: usize = 512;
const SHARED_BLOCKS: usize = 256;
const SHARED_PROMPTS: u64 = 16;
const EVENTS_AT_ONCE: usize = 4096;
const CHURN_ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"));
    let blocks: usize = arguments.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let workers: usize = arguments.next().map_or(Ok(100), |n| n.parse())?;
    let look_ups: usize = arguments.next().map_or(Ok(20_000), |n| n.parse())?;
    let mut out = String::new();

    let mut world = World::new(workers);
    let before = resident_bytes()?;
    let prompts: Vec<usize> = (0..blocks / PROMPT_BLOCKS).collect();
    let store_s = world.store(&prompts);
    let held: usize = world
        .sources
        .iter()
        .map(|&source| world.view.blocks(source))
        .sum();
    let used = resident_bytes()?.saturating_sub(before);
    writeln!(out, "stores {:.2} M/s", per_us(blocks, store_s))?;
    writeln!(
        out,
        "{held} entries, {:.1} bytes each",
        used as f64 / held as f64
    )?;

    let chains: Vec<Vec<OwnHash>> = prompts.iter().map(|&prompt| world.chain(prompt)).collect();
    writeln!(
        out,
        "find, idle: {}",
        look_up(&world.view, &chains, look_ups)
    )?;

    for round in 1..=CHURN_ROUNDS {
        let (gone, new): (Vec<usize>, Vec<usize>) = prompts
            .iter()
            .map(|prompt| {
                (
                    prompt + (round - 1) * prompts.len(),
                    prompt + round * prompts.len(),
                )
            })
            .unzip();
        let (mut removed_s, mut stored_s) = (0.0, 0.0);
        for (gone, new) in gone.chunks(256).zip(new.chunks(256)) {
            removed_s += world.remove(gone);
            stored_s += world.store(new);
        }
        writeln!(
            out,
            "churn {round}: removes {:.2} M/s, stores {:.2} M/s, {:.1} bytes an entry",
            per_us(blocks, removed_s),
            per_us(blocks, stored_s),
            resident_bytes()?.saturating_sub(before) as f64 / held as f64,
        )?;
    }

    let last: Vec<usize> = prompts
        .iter()
        .map(|prompt| prompt + CHURN_ROUNDS * prompts.len())
        .collect();
    let chains: Vec<Vec<OwnHash>> = last.iter().map(|&prompt| world.chain(prompt)).collect();
    let stop = AtomicBool::new(false);
    let (report, churned) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| world.churn(&last, &stop));
        let report = look_up(&world.view, &chains, look_ups);
        stop.store(true, Ordering::Relaxed);
        (report, writer.join())
    });
    let churned = churned.map_err(|_| "the writer panicked")?;
    writeln!(
        out,
        "find, beside a writer of {churned:.2} M events/s: {report}"
    )?;
    std::io::stdout().write_all(out.as_bytes())?;
    Ok(())
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

    fn chain(&self, prompt: usize) -> Vec<OwnHash> {
        let tokens: Vec<u32> = (0..PROMPT_BLOCKS)
            .flat_map(|block| tokens(prompt, block))
            .collect();
        let prompt = Prompt {
            namespace: MODEL,
            adapter: None,
            salt: None,
            items: &[],
            tokens: &tokens,
        };
        chain(&prompt, SHAPE)
    }

    /// Seconds that the events took.
    fn store(&mut self, prompts: &[usize]) -> f64 {
        self.apply(prompts, |prompt, block| stored(prompt, block))
    }

    /// From the end of each prompt, as engines do.
    fn remove(&mut self, prompts: &[usize]) -> f64 {
        self.apply(prompts, |prompt, block| {
            removed(prompt, PROMPT_BLOCKS - 1 - block)
        })
    }

    fn apply(&self, prompts: &[usize], event: impl Fn(usize, usize) -> Event<'static>) -> f64 {
        let mut seconds = 0.0;
        let mut changes = Vec::new();
        for some in prompts.chunks(self.sources.len()) {
            for first in (0..PROMPT_BLOCKS).step_by(EVENTS_AT_ONCE / self.sources.len()) {
                let end = (first + EVENTS_AT_ONCE / self.sources.len()).min(PROMPT_BLOCKS);
                let events: Vec<(SourceId, [Event<'_>; 1])> = (first..end)
                    .flat_map(|block| some.iter().map(move |&prompt| (prompt, block)))
                    .map(|(prompt, block)| (self.source(prompt), [event(prompt, block)]))
                    .collect();
                let start = Instant::now();
                for (source, event) in &events {
                    changes.clear();
                    black_box(self.view.apply(*source, event, &mut changes));
                }
                seconds += start.elapsed().as_secs_f64();
            }
        }
        seconds
    }

    /// Removes and stores the same prompts until it is told to stop. Million events a second.
    fn churn(&self, prompts: &[usize], stop: &AtomicBool) -> f64 {
        let (mut events, mut changes): (usize, Vec<Change>) = (0, Vec::new());
        let start = Instant::now();
        for &prompt in prompts.iter().cycle() {
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

/// Half of the prompts begin with one that is shared.
fn tokens(prompt: usize, block: usize) -> [u32; 16] {
    let seed = if prompt % 2 == 0 && block < SHARED_BLOCKS {
        mix(prompt as u64 / 2) % SHARED_PROMPTS
    } else {
        SHARED_PROMPTS + prompt as u64
    };
    std::array::from_fn(|at| {
        let token = mix(seed << 32 | (block * 16 + at) as u64) % 150_000;
        u32::try_from(token).unwrap_or_default()
    })
}

fn engine_hash(prompt: usize, block: usize) -> EngineHash {
    let seed = if prompt % 2 == 0 && block < SHARED_BLOCKS {
        mix(prompt as u64 / 2) % SHARED_PROMPTS
    } else {
        SHARED_PROMPTS + prompt as u64
    };
    EngineHash(mix(seed << 16 | block as u64 | 1 << 60))
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

fn resident_bytes() -> Result<usize, Box<dyn std::error::Error>> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let resident: usize = pages
        .split(' ')
        .nth(1)
        .ok_or("no resident pages")?
        .parse()?;
    Ok(resident * 4096)
}
