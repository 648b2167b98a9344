//! Latency, memory and quality of donor discovery, by kind of recipient.
//! `cargo bench -p kvatlas --bench donors -- [donors] [queries] [passages file] [class]`. Passages
//! come from a seed, or are the token lists of a gzipped JSONL file.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers drawn at random, and places in lists"
)]

use std::{
    collections::{HashMap, HashSet},
    io::{Read as _, Write as _},
    time::Instant,
};

use kvatlas::donors::{
    index::{DonorIndex, SeedKeys, prepare},
    search::{Aligned, Found, Scratch, Target},
};

const VOCABULARY: u64 = 151_936;
const PASSAGES_PER_DONOR: usize = 8;
const PASSES: usize = 4;
const SHARED_TOKENS: usize = 500;
const TEMPLATE_DONORS: usize = 40;
type Make = fn(&mut Random, &Pool, &World) -> Query;

const CLASSES: [(&str, Make); 14] = [
    ("identical", identical),
    ("wrapper", wrapper),
    ("shift", shift),
    ("reorder", reorder),
    ("partial", partial),
    ("edit", edit),
    ("contained", contained),
    ("multi_turn", multi_turn),
    ("template", template),
    ("preamble", preamble),
    ("crowd", crowd),
    ("edit_12", edit_12),
    ("every_12th", every_12th),
    ("negative", negative),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"));
    let donors: usize = arguments.next().map_or(Ok(10_000), |n| n.parse())?;
    let queries: usize = arguments.next().map_or(Ok(1_000), |n| n.parse())?;
    let pool = Pool::new(donors, arguments.next().as_deref())?;
    let only = arguments.next();
    let mut out = std::io::stdout();

    let mut insert_us = Vec::new();
    let mut world = World::build(&pool, donors, &mut insert_us);
    let tokens: usize = (0..donors)
        .filter_map(|slot| world.index.tokens(slot as u32))
        .map(|packed| packed.len())
        .sum();
    let bytes = |part: usize| part as f64 / tokens as f64;
    writeln!(
        out,
        "{donors} donors, {:.0} tokens each, {:.3} bytes a token, {:.3} of them for seeds",
        tokens as f64 / donors as f64,
        bytes(world.index.memory_bytes()),
        bytes(world.index.postings_bytes()),
    )?;
    writeln!(out, "inserted   {}", summary(&mut insert_us))?;
    let (mut removed_us, mut again_us) = world.replace(donors.min(10_000));
    writeln!(out, "removed    {}", summary(&mut removed_us))?;
    writeln!(out, "again      {}", summary(&mut again_us))?;
    for (number, (name, make)) in (0..).zip(CLASSES) {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let mut random = Random(1_000 + number);
        let made: Vec<Query> = (0..queries)
            .map(|_| make(&mut random, &pool, &world))
            .collect();
        writeln!(out, "{name:10} {}", measure(&world, &made))?;
    }
    Ok(())
}

fn measure(world: &World, queries: &[Query]) -> String {
    let mut scratch = Scratch::default();
    let mut first = Vec::new();
    let mut found = Vec::new();
    let [mut least, mut least_seeds, mut least_align] =
        std::array::from_fn(|_| vec![f64::MAX; queries.len()]);
    for pass in 0..PASSES {
        for (i, query) in queries.iter().enumerate() {
            let (us, result) = search(&world.index, &query.tokens, &mut scratch);
            least[i] = least[i].min(us);
            least_seeds[i] = least_seeds[i].min(result.seeds_ns as f64 / 1e3);
            least_align[i] = least_align[i].min(result.align_ns as f64 / 1e3);
            if pass == 0 {
                first.push(us);
                found.push(result);
            }
        }
    }
    let (mut right, mut exact, mut false_spans, mut verified) = (0, 0, 0, 0);
    let (mut reported, mut best_total) = (0, 0);
    for (query, found) in queries.iter().zip(&found) {
        verified += found.candidates.len();
        let windows = windows_of(&query.tokens);
        let nominated = found.candidates.first();
        let truth = nominated.map_or(0, |a| {
            coverage(
                &windows,
                &query.tokens,
                &world.donor(a.slot as usize).tokens,
            )
        });
        let best = world
            .rivals(query)
            .map(|slot| coverage(&windows, &query.tokens, &world.donor(slot).tokens))
            .fold(truth, usize::max);
        right += usize::from(truth * 100 >= best * 98);
        exact += usize::from(nominated.map_or(0, |a| a.coverage as usize) == truth);
        reported += nominated.map_or(0, |a| a.coverage as usize);
        best_total += best;
        for aligned in &found.candidates {
            let donor = &world.donor(aligned.slot as usize).tokens;
            false_spans += count_false(aligned, &query.tokens, donor);
        }
    }
    let count = queries.len() as f64;
    format!(
        "us p50 {:5.1} p99 {:6.1} max {:6.1} | least of {PASSES}: p50 {:5.1} \
         p99 {:6.1} | right {:6.2} % exact {:6.2} % \
         coverage/best {:.4} false {false_spans} verified {:.2} \
         | least seeds {:.1} / {:.1} align {:.1} / {:.1}",
        percentile(&mut first, 0.5),
        percentile(&mut first, 0.99),
        percentile(&mut first, 1.0),
        percentile(&mut least, 0.5),
        percentile(&mut least, 0.99),
        right as f64 * 100.0 / count,
        exact as f64 * 100.0 / count,
        f64::from(u32::try_from(reported).unwrap_or(u32::MAX)) / (best_total as f64).max(1.0),
        verified as f64 / count,
        percentile(&mut least_seeds, 0.5),
        percentile(&mut least_seeds, 0.99),
        percentile(&mut least_align, 0.5),
        percentile(&mut least_align, 0.99),
    )
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn search(index: &DonorIndex, tokens: &[u32], scratch: &mut Scratch) -> (f64, Found) {
    let target = Target {
        tokens,
        boundary: 0,
        is_eligible: &|_| true,
        reach: None,
        verify_max: 8,
    };
    let start = Instant::now();
    let clock = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let found = index.search(&target, scratch, &clock);
    (start.elapsed().as_secs_f64() * 1e6, found)
}

struct Donor {
    tokens: Vec<u32>,
    passages: Vec<usize>,
}

struct Query {
    tokens: Vec<u32>,
    source: Option<usize>,
    passages: Vec<usize>,
}

struct World {
    /// By donor; the tokens are only in the index.
    passages: Vec<Vec<usize>>,
    /// Donors by passage.
    having: HashMap<usize, Vec<usize>>,
    index: DonorIndex,
    /// The first of these have only passages; then come those behind a shared preamble, then those
    /// of templates, forty each.
    plain: usize,
    templates: usize,
    shared: Vec<u32>,
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
    fn build(pool: &Pool, count: usize, insert_us: &mut Vec<f64>) -> Self {
        let mut random = Random(42);
        let plain = count * 7 / 10;
        let templates = count * 9 / 10;
        let shared = random.tokens(SHARED_TOKENS);
        let mut form = Vec::new();
        let mut all_passages = Vec::with_capacity(count);
        let mut index = DonorIndex::new();
        for slot in 0..count {
            let passages = pool.draw(&mut random, PASSAGES_PER_DONOR);
            let donor = if slot < plain {
                Donor {
                    tokens: pool.wrap(&mut random, &passages),
                    passages,
                }
            } else if slot < templates {
                let tokens = [shared.clone(), pool.wrap(&mut random, &passages)].concat();
                Donor { tokens, passages }
            } else {
                if (slot - templates).is_multiple_of(TEMPLATE_DONORS) {
                    form = random.tokens(1_000);
                }
                // Half form, half body.
                let passages = passages[..PASSAGES_PER_DONOR / 2].to_vec();
                let filled = fill(&mut random, &form);
                Donor {
                    tokens: [filled, pool.wrap(&mut random, &passages)].concat(),
                    passages,
                }
            };
            let prepared = prepare(&donor.tokens);
            let start = Instant::now();
            index.read_ahead(&prepared.seeds);
            index.insert(slot as u32, &prepared);
            insert_us.push(start.elapsed().as_secs_f64() * 1e6);
            all_passages.push(donor.passages);
        }
        let mut having: HashMap<usize, Vec<usize>> = HashMap::new();
        for (slot, passages) in all_passages.iter().enumerate() {
            for &passage in passages {
                having.entry(passage).or_default().push(slot);
            }
        }
        Self {
            passages: all_passages,
            having,
            index,
            plain,
            templates,
            shared,
        }
    }

    fn donor(&self, slot: usize) -> Donor {
        let mut tokens = Vec::new();
        let packed = self.index.tokens(slot as u32).expect("every slot has one");
        packed.unpack_into(&mut tokens);
        let passages = self.passages[slot].clone();
        Donor { tokens, passages }
    }

    /// Takes donors out and puts them in again, what is made outside the lock included;
    /// microseconds of each.
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
    fn replace(&mut self, count: usize) -> (Vec<f64>, Vec<f64>) {
        let mut random = Random(9);
        let mut times = (Vec::new(), Vec::new());
        for _ in 0..count {
            let slot = random.below(self.passages.len());
            let tokens = self.donor(slot).tokens;
            let start = Instant::now();
            let seeds = SeedKeys::of(&tokens);
            self.index.read_ahead(&seeds);
            self.index.remove(slot as u32, &seeds);
            let removed = Instant::now();
            let prepared = prepare(&tokens);
            self.index.read_ahead(&prepared.seeds);
            self.index.insert(slot as u32, &prepared);
            times.0.push((removed - start).as_secs_f64() * 1e6);
            times.1.push(removed.elapsed().as_secs_f64() * 1e6);
        }
        times
    }

    fn source(&self, random: &mut Random) -> usize {
        random.below(self.plain)
    }

    /// The donors that may be best: the source, and those with most passages of the query.
    fn rivals(&self, query: &Query) -> impl Iterator<Item = usize> {
        let mut shared: HashMap<usize, usize> = HashMap::new();
        for passage in query.passages.iter().collect::<HashSet<_>>() {
            for &slot in self.having.get(passage).map_or(&[][..], Vec::as_slice) {
                *shared.entry(slot).or_default() += 1;
            }
        }
        let mut ranked: Vec<(usize, usize)> = shared.into_iter().map(|(s, n)| (n, s)).collect();
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        let best = ranked.into_iter().map(|(_, slot)| slot).take(6);
        best.chain(query.source)
    }
}

fn identical(random: &mut Random, _: &Pool, world: &World) -> Query {
    query(world, world.source(random), |donor| donor.tokens.clone())
}

fn wrapper(random: &mut Random, pool: &Pool, world: &World) -> Query {
    query(world, world.source(random), |donor| {
        pool.wrap(random, &donor.passages)
    })
}

fn shift(random: &mut Random, _: &Pool, world: &World) -> Query {
    let source = world.source(random);
    let more = 1 + random.below(64);
    query(world, source, |donor| {
        [random.tokens(more), donor.tokens.clone()].concat()
    })
}

fn reorder(random: &mut Random, pool: &Pool, world: &World) -> Query {
    query(world, world.source(random), |donor| {
        let mut passages = donor.passages.clone();
        for i in (1..passages.len()).rev() {
            passages.swap(i, random.below(i + 1));
        }
        pool.wrap(random, &passages)
    })
}

fn partial(random: &mut Random, pool: &Pool, world: &World) -> Query {
    let source = world.source(random);
    let kept = &world.passages[source][..PASSAGES_PER_DONOR * 3 / 4];
    let more = pool.draw(random, PASSAGES_PER_DONOR / 4);
    let passages = [kept, &more].concat();
    Query {
        tokens: pool.wrap(random, &passages),
        source: Some(source),
        passages,
    }
}

fn edit(random: &mut Random, _: &Pool, world: &World) -> Query {
    query(world, world.source(random), |donor| {
        edited(random, &donor.tokens, 40)
    })
}

fn edit_12(random: &mut Random, _: &Pool, world: &World) -> Query {
    query(world, world.source(random), |donor| {
        edited(random, &donor.tokens, 12)
    })
}

fn every_12th(random: &mut Random, _: &Pool, world: &World) -> Query {
    query(world, world.source(random), |donor| {
        let tokens = donor.tokens.iter().enumerate();
        tokens
            .map(|(i, &token)| if i % 12 == 11 { random.token() } else { token })
            .collect()
    })
}

fn contained(random: &mut Random, pool: &Pool, world: &World) -> Query {
    let source = world.source(random);
    let middle = PASSAGES_PER_DONOR / 2;
    let passages = world.passages[source][middle - 1..=middle].to_vec();
    Query {
        tokens: pool.wrap(random, &passages),
        source: Some(source),
        passages,
    }
}

fn multi_turn(random: &mut Random, _: &Pool, world: &World) -> Query {
    query(world, world.source(random), |donor| {
        [donor.tokens.clone(), random.tokens(250)].concat()
    })
}

fn template(random: &mut Random, _: &Pool, world: &World) -> Query {
    let source = world.templates + random.below(world.passages.len() - world.templates);
    query(world, source, |donor| fill(random, &donor.tokens))
}

fn preamble(random: &mut Random, pool: &Pool, world: &World) -> Query {
    let source = world.plain + random.below(world.templates - world.plain);
    query(world, source, |donor| {
        [world.shared.clone(), pool.wrap(random, &donor.passages)].concat()
    })
}

fn crowd(random: &mut Random, pool: &Pool, world: &World) -> Query {
    let source = world.templates + random.below(world.passages.len() - world.templates);
    query(world, source, |donor| {
        let form = fill(random, &donor.tokens[..1_000]);
        [form, pool.wrap(random, &donor.passages)].concat()
    })
}

fn negative(random: &mut Random, pool: &Pool, _: &World) -> Query {
    let unseen = pool.count * 3 + random.below(1 << 30);
    let passages: Vec<usize> = (unseen..unseen + PASSAGES_PER_DONOR).collect();
    Query {
        tokens: pool.wrap(random, &passages),
        source: None,
        passages,
    }
}

fn query(world: &World, source: usize, make: impl FnOnce(&Donor) -> Vec<u32>) -> Query {
    let donor = world.donor(source);
    Query {
        tokens: make(&donor),
        source: Some(source),
        passages: donor.passages,
    }
}

/// Puts other variables into a form: three tokens of every hundred.
fn fill(random: &mut Random, form: &[u32]) -> Vec<u32> {
    let tokens = form.iter().enumerate();
    tokens
        .map(|(i, &token)| if i % 100 >= 97 { random.token() } else { token })
        .collect()
}

fn edited(random: &mut Random, tokens: &[u32], one_in: usize) -> Vec<u32> {
    let mut out = Vec::with_capacity(tokens.len() * 2);
    for &token in tokens {
        if random.below(one_in) > 0 {
            out.push(token);
            continue;
        }
        match random.below(3) {
            0 => out.push(random.token()),
            1 => {}
            _ => out.extend([token, token]),
        }
    }
    out
}

/// Passages by number. Beyond the base ones they are images of those under another map of tokens.
struct Pool {
    base: Vec<Vec<u32>>,
    count: usize,
    /// Running sums of the passages' popularity.
    popularity: Vec<f64>,
}

impl Pool {
    fn new(count: usize, file: Option<&str>) -> Result<Self, Box<dyn std::error::Error>> {
        let base = match file {
            Some(path) => read_passages(path)?,
            None => generate_passages(),
        };
        let count = count.max(base.len());
        let weights = (1..=count).map(|rank| (rank as f64).powf(-0.8));
        let popularity = weights.scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Ok(Self {
            popularity: popularity.collect(),
            count,
            base,
        })
    }

    /// Different passages, popular ones more often.
    fn draw(&self, random: &mut Random, count: usize) -> Vec<usize> {
        let mut drawn = Vec::new();
        while drawn.len() < count {
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

    /// Instruction, passages, question.
    fn wrap(&self, random: &mut Random, passages: &[usize]) -> Vec<u32> {
        let instruction = 10 + random.below(31);
        let mut tokens = random.tokens(instruction);
        for &passage in passages {
            let image = (passage / self.base.len()) as u64;
            // A prime above the vocabulary would be a permutation; this is near enough to one.
            let (factor, offset) = (image * 2_654_435_761 % 151_909 + 1, image * 7_919);
            let map = |&token: &u32| match image {
                0 => token,
                _ => ((u64::from(token) * factor + offset) % VOCABULARY) as u32,
            };
            tokens.extend(self.base[passage % self.base.len()].iter().map(map));
        }
        tokens.extend(random.tokens(10));
        tokens
    }
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

type Windows<'a> = HashMap<&'a [u32], Vec<usize>>;

fn windows_of(tokens: &[u32]) -> Windows<'_> {
    let mut windows: Windows<'_> = HashMap::new();
    for (place, window) in tokens.windows(16).enumerate() {
        windows.entry(window).or_default().push(place);
    }
    windows
}

/// Target tokens in any run of sixteen or more that the donor has somewhere.
fn coverage(windows: &Windows<'_>, target: &[u32], donor: &[u32]) -> usize {
    let mut covered = vec![false; target.len()];
    for window in donor.windows(16) {
        for &place in windows.get(window).map_or(&[][..], Vec::as_slice) {
            covered[place..place + 16].fill(true);
        }
    }
    covered.into_iter().filter(|&is_covered| is_covered).count()
}

fn count_false(aligned: &Aligned, target: &[u32], donor: &[u32]) -> usize {
    let is_false = |target_start: u32, donor_start: u32, length: u32| {
        let (t, d, n) = (target_start as usize, donor_start as usize, length as usize);
        n < 16 || target[t..t + n] != donor[d..d + n]
    };
    let spans = aligned.spans.iter().chain(&aligned.anchored);
    spans
        .filter(|s| is_false(s.target_start, s.donor_start, s.length))
        .count()
}

fn summary(us: &mut [f64]) -> String {
    format!(
        "us mean {:.1} p50 {:.1} p99 {:.1} max {:.1}",
        us.iter().sum::<f64>() / us.len() as f64,
        percentile(us, 0.5),
        percentile(us, 0.99),
        percentile(us, 1.0),
    )
}

fn percentile(values: &mut [f64], fraction: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[((values.len() as f64 * fraction) as usize).min(values.len() - 1)]
}
