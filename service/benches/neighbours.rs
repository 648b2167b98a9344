//! Recall, latency and memory of neighbours by token sketch, by number of donors.
//!
//! `cargo bench -p kvatlas --bench neighbours -- [donors] [queries] [passages file]
//! [replacements] [most by scan]`. Passages are generated from a seed; or they are the token lists
//! of a gzipped JSONL file. With a fourth argument, so many donors are then replaced by others (the
//! number of donors: all of them), and everything is measured again.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "small numbers drawn at random, and places in lists"
)]

use std::{
    collections::HashSet,
    io::{Read as _, Write as _},
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use kvatlas::donors::neighbours::{
    Neighbours, Shape, Thresholds, Vector,
    sketch::{SKETCH_DIMENSIONS, sketch},
};

const VOCABULARY: u64 = 151_936;
const PASSAGES_PER_DONOR: usize = 8;
const WANTED: usize = 10;

type Make = fn(&Pool, &mut Random, u64) -> Vec<u32>;
type Bench = Result<(), Box<dyn std::error::Error>>;

fn main() -> Bench {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let number = |at: usize, otherwise: usize| {
        arguments
            .get(at)
            .map_or(Ok(otherwise), |number| number.parse::<usize>())
    };
    let (donors, queries) = (number(0, 10_000)?, number(1, 500)?);
    let pool = Pool::new(donors, arguments.get(2).map(String::as_str))?;
    let replaced = number(3, 0)?;
    let exact_max = number(4, Thresholds::of(SKETCH_DIMENSIONS).exact_max)?;

    let mut world = World::new(Thresholds {
        exact_max,
        graph_min: exact_max / 2,
    });
    let before = resident_bytes();
    world.fill(&pool, 0..donors, 0)?;
    world.measure("filled", &pool, queries, before)?;
    if replaced > 0 {
        world.fill(&pool, 0..replaced, 1 << 40)?;
        world.measure("replaced", &pool, queries, before)?;
    }
    world.ask_while_adding(&pool, queries)
}

struct World {
    neighbours: Neighbours,
    /// What was put into each slot: the bytes of its sketch, and the seed of its prompt.
    rows: Vec<i8>,
    seeds: Vec<u64>,
}

impl World {
    fn new(thresholds: Thresholds) -> World {
        World {
            neighbours: Neighbours::with_thresholds(Shape::SKETCH, thresholds),
            rows: Vec::new(),
            seeds: Vec::new(),
        }
    }

    fn fill(&mut self, pool: &Pool, slots: std::ops::Range<usize>, base: u64) -> Bench {
        let (mut sketch_us, mut add_us) = (Vec::new(), Vec::new());
        for slot in slots {
            let seed = base + slot as u64;
            let tokens = pool.donor(seed);
            let start = Instant::now();
            let vector = sketch(&tokens).ok_or("a prompt without tokens")?;
            sketch_us.push(start.elapsed().as_secs_f64() * 1e6);
            if slot == self.seeds.len() {
                self.seeds.push(seed);
                self.rows.extend_from_slice(vector.bytes());
            } else {
                self.seeds[slot] = seed;
                self.rows[slot * SKETCH_DIMENSIONS..][..SKETCH_DIMENSIONS]
                    .copy_from_slice(vector.bytes());
            }
            let start = Instant::now();
            self.neighbours.update(slot as u32, seed, &[vector])?;
            add_us.push(start.elapsed().as_secs_f64() * 1e6);
        }
        let mean = add_us.iter().sum::<f64>() / add_us.len() as f64;
        writeln!(
            std::io::stdout(),
            "sketch us {} | update us mean {mean:.1} {}",
            percentiles(&mut sketch_us),
            percentiles(&mut add_us),
        )?;
        Ok(())
    }

    fn measure(&self, name: &str, pool: &Pool, queries: usize, before: usize) -> Bench {
        let own = self.rows.len() + self.seeds.len() * size_of::<u64>();
        let resident = resident_bytes().saturating_sub(before + own);
        writeln!(
            std::io::stdout(),
            "{name} {} | bytes a vector {:.0}, resident {:.0}",
            self.neighbours.len(),
            self.neighbours.memory_bytes() as f64 / self.seeds.len() as f64,
            resident as f64 / self.seeds.len() as f64,
        )?;
        self.ask("replaced words", pool, queries, Pool::replaced)?;
        self.ask("half new, shuffled, replaced", pool, queries, Pool::mixed)
    }

    fn ask(&self, name: &str, pool: &Pool, queries: usize, make: Make) -> Bench {
        let mut random = Random(77);
        let (mut sketch_us, mut search_us) = (Vec::new(), Vec::new());
        let (mut met, mut wanted, mut first, mut five) = (0, 0, 0, 0);
        for _ in 0..queries {
            let slot = random.below(self.seeds.len());
            let tokens = make(pool, &mut random, self.seeds[slot]);
            let start = Instant::now();
            let query = sketch(&tokens).ok_or("a prompt without tokens")?;
            let ready = Instant::now();
            let found = self.neighbours.nearest(&query, WANTED);
            search_us.push(ready.elapsed().as_secs_f64() * 1e6);
            sketch_us.push((ready - start).as_secs_f64() * 1e6);
            let truth = self.best(&query);
            let slots: HashSet<u32> = found.iter().map(|near| near.slot).collect();
            wanted += truth.len();
            met += truth.iter().filter(|slot| slots.contains(slot)).count();
            let place = found.iter().position(|near| near.slot as usize == slot);
            first += usize::from(place == Some(0));
            five += usize::from(place.is_some_and(|place| place < 5));
        }
        let share = |count: usize| count as f64 * 100.0 / queries as f64;
        writeln!(
            std::io::stdout(),
            "  {name}: recall@{WANTED} {:.4} | right first {:.1} % in five {:.1} % | \
             sketch us {} | search us {}",
            met as f64 / wanted as f64,
            share(first),
            share(five),
            percentiles(&mut sketch_us),
            percentiles(&mut search_us),
        )?;
        Ok(())
    }

    /// Latency of a sketch and a search while another thread replaces donors as fast as it can.
    fn ask_while_adding(&self, pool: &Pool, queries: usize) -> Bench {
        let prompts: Vec<Vec<u32>> = (0..queries)
            .map(|query| pool.donor((1 << 50) + query as u64))
            .collect();
        let is_over = AtomicBool::new(false);
        let (mut both_us, added, seconds) = std::thread::scope(|scope| {
            let adder = scope.spawn(|| self.add_until(&is_over));
            let begun = Instant::now();
            let both_us: Vec<f64> = prompts
                .iter()
                .cycle()
                .take(queries * 4)
                .map(|tokens| {
                    let start = Instant::now();
                    let query = sketch(tokens).map(|query| self.neighbours.nearest(&query, 16));
                    std::hint::black_box(query);
                    start.elapsed().as_secs_f64() * 1e6
                })
                .collect();
            is_over.store(true, Ordering::Relaxed);
            let added = adder.join().unwrap_or(0);
            (both_us, added, begun.elapsed().as_secs_f64())
        });
        writeln!(
            std::io::stdout(),
            "while adding {:.0}/s | sketch and search us {}",
            added as f64 / seconds,
            percentiles(&mut both_us),
        )?;
        Ok(())
    }

    /// Puts the sketches of donors into the slots of others; how many.
    fn add_until(&self, is_over: &AtomicBool) -> u64 {
        let mut random = Random(99);
        let mut added = 0;
        while !is_over.load(Ordering::Relaxed) {
            let from = random.below(self.seeds.len());
            let row = &self.rows[from * SKETCH_DIMENSIONS..][..SKETCH_DIMENSIONS];
            let values: Vec<f32> = row.iter().map(|&byte| f32::from(byte)).collect();
            let Some(vector) = Vector::new(&values) else {
                continue;
            };
            let slot = random.below(self.seeds.len()) as u32;
            added += u64::from(self.neighbours.update(slot, 1, &[vector]).is_ok());
        }
        added
    }

    /// The nearest by looking at all sketches.
    fn best(&self, query: &Vector) -> Vec<u32> {
        let mut products = vec![0; self.seeds.len()];
        kvatlas_kernels::Dot8::best().rows(query.bytes(), &self.rows, &mut products);
        let mut ranked: Vec<(i32, u32)> = products.into_iter().map(|p| -p).zip(0..).collect();
        let last = WANTED.min(ranked.len()) - 1;
        ranked.select_nth_unstable(last);
        ranked[..=last].iter().map(|&(_, slot)| slot).collect()
    }
}

/// Passages by number. Beyond the base ones they are images of those under another map of tokens.
struct Pool {
    base: Vec<Vec<u32>>,
    count: usize,
    /// Running sums of the passages' popularity.
    popularity: Vec<f64>,
}

impl Pool {
    fn new(donors: usize, file: Option<&str>) -> Result<Pool, Box<dyn std::error::Error>> {
        let base = match file {
            Some(path) => read_passages(path)?,
            None => generate_passages(),
        };
        let count = donors.max(base.len());
        let weights = (1..=count).map(|rank| (rank as f64).powf(-0.8));
        let popularity = weights.scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Ok(Pool {
            popularity: popularity.collect(),
            count,
            base,
        })
    }

    /// The prompt of a seed: an instruction, passages, popular ones more often, and a question.
    fn donor(&self, seed: u64) -> Vec<u32> {
        let mut random = Random(seed * 1_000 + 17);
        let passages = self.draw(&mut random);
        wrap(
            &mut random,
            passages.into_iter().map(|passage| self.passage(passage)),
        )
    }

    /// A donor's prompt with another wrapper, and every twelfth token replaced: no run is long.
    fn replaced(&self, random: &mut Random, seed: u64) -> Vec<u32> {
        let passages = self.draw(&mut Random(seed * 1_000 + 17));
        let mut tokens = wrap(
            random,
            passages.into_iter().map(|passage| self.passage(passage)),
        );
        replace(random, &mut tokens);
        tokens
    }

    /// As [`Pool::replaced`], but half of the passages are unseen, and the words of all shuffled.
    fn mixed(&self, random: &mut Random, seed: u64) -> Vec<u32> {
        let mut passages = self.draw(&mut Random(seed * 1_000 + 17));
        for passage in passages.iter_mut().step_by(2) {
            *passage = self.count * 3 + random.below(1 << 30);
        }
        let mut texts: Vec<Vec<u32>> = passages
            .iter()
            .map(|&passage| self.passage(passage))
            .collect();
        for text in &mut texts {
            for i in (1..text.len()).rev() {
                text.swap(i, random.below(i + 1));
            }
        }
        let mut tokens = wrap(random, texts);
        replace(random, &mut tokens);
        tokens
    }

    fn draw(&self, random: &mut Random) -> Vec<usize> {
        let mut drawn = Vec::new();
        while drawn.len() < PASSAGES_PER_DONOR {
            let at = random.fraction() * self.popularity[self.count - 1];
            let rank = self
                .popularity
                .partition_point(|&sum| sum < at)
                .min(self.count - 1);
            let passage = rank * 1_000_003 % self.count;
            if !drawn.contains(&passage) {
                drawn.push(passage);
            }
        }
        drawn
    }

    fn passage(&self, passage: usize) -> Vec<u32> {
        let image = (passage / self.base.len()) as u64;
        let (factor, offset) = (image * 2_654_435_761 % 151_909 + 1, image * 7_919);
        let map = |&token: &u32| match image {
            0 => token,
            _ => ((u64::from(token) * factor + offset) % VOCABULARY) as u32,
        };
        self.base[passage % self.base.len()]
            .iter()
            .map(map)
            .collect()
    }
}

fn replace(random: &mut Random, tokens: &mut [u32]) {
    for token in tokens.iter_mut().skip(11).step_by(12) {
        *token = random.token();
    }
}

fn wrap(random: &mut Random, passages: impl IntoIterator<Item = Vec<u32>>) -> Vec<u32> {
    let instruction = 10 + random.below(31);
    let mut tokens = random.tokens(instruction);
    tokens.extend(passages.into_iter().flatten());
    tokens.extend(random.tokens(10));
    tokens
}

fn generate_passages() -> Vec<Vec<u32>> {
    let mut random = Random(7);
    let mut passage = || {
        let length = 200 + random.below(90);
        // A token's frequency falls with its number, as in text.
        (0..length)
            .map(|_| (random.fraction().powi(3) * VOCABULARY as f64) as u32)
            .collect()
    };
    (0..8_000).map(|_| passage()).collect()
}

fn read_passages(path: &str) -> Result<Vec<Vec<u32>>, Box<dyn std::error::Error>> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path)?).read_to_string(&mut text)?;
    let lists = text
        .lines()
        .filter_map(|line| line.split("\"tokens\":[").nth(1)?.split(']').next());
    let parse = |list: &str| {
        list.split(',')
            .map(|token| Ok(token.trim().parse()?))
            .collect()
    };
    lists.map(parse).collect()
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|statm| statm.split(' ').nth(1)?.parse::<usize>().ok());
    pages.unwrap_or(0) * 4_096
}

fn percentiles(values: &mut [f64]) -> String {
    values.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() as f64 * share) as usize).min(values.len() - 1)];
    format!("p50 {:.1} p99 {:.1} max {:.0}", at(0.5), at(0.99), at(1.0))
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn token(&mut self) -> u32 {
        self.below(VOCABULARY as usize) as u32
    }

    fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.token()).collect()
    }
}
