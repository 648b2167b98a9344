//! The bound against what it bounds, and answers against the full pass, also with what breaks
//! others.

use std::iter::once;

use half::f16;
use proptest::prelude::*;
use proptest::sample::select;

use super::products::{Instructions, Products, Way};
use super::query::IntegerQuery;
use super::*;
use crate::score::{Cpu, Level, RowQuery, best};

/// Small tables made of what is hard to screen.
mod awkward;

/// SplitMix64, and what is made of it.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below the limit.
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.bits() % limit as u64).unwrap()
    }

    /// Nearly normal, with deviation 1: a sum of four uniform numbers.
    fn normal(&mut self) -> f32 {
        let parts = self.bits().to_le_bytes();
        let (parts, _) = parts.as_chunks();
        let sum: f32 = parts
            .iter()
            .map(|&part| f32::from(i16::from_le_bytes(part)))
            .sum();
        sum / 32768.0 * 0.866
    }

    /// Normal, but one in fifty is far out.
    fn heavy(&mut self) -> f32 {
        let factor = if self.below(50) == 0 { 5.0 } else { 1.0 };
        self.normal() * factor
    }
}

/// Block means as models have them: channels with means and deviations of their own, a few of them
/// far larger, blocks of different sizes, heavy tails.
fn keys(blocks: usize, width: usize, seed: u64) -> Vec<f16> {
    let mut random = Random(seed);
    let mut channel = || {
        let size = if random.below(40) == 0 { 10.0 } else { 1.0 };
        (random.normal() * size, random.normal().exp2() * size)
    };
    let channels: Vec<_> = (0..width).map(|_| channel()).collect();
    let mut keys = Vec::with_capacity(blocks * width);
    for _ in 0..blocks {
        let size = (random.normal() * 0.3).exp2();
        let row = channels
            .iter()
            .map(|(mean, deviation)| mean + deviation * size * random.heavy());
        keys.extend(row.map(f16::from_f32));
    }
    keys
}

fn query(width: usize, seed: u64) -> RowQuery {
    let mut random = Random(seed);
    RowQuery::new(
        once(0..width).collect(),
        (0..width).map(|_| random.heavy()).collect(),
    )
}

fn wanted(among: Range<usize>, k: usize) -> Wanted {
    Wanted {
        among,
        k,
        failure_probability: FAILURE_PROBABILITY,
    }
}

/// The screened answer, which is the full pass's.
fn check(
    cpu: &Cpu,
    table: &Table<'_>,
    screen: &OwnedScreen,
    query: &RowQuery,
    wanted: &Wanted,
) -> Screened {
    let screen = screen.view();
    screen.check().unwrap();
    let screened = screen.best(cpu, table, query, wanted);
    let mut scores = vec![0.0; table.rows()];
    cpu.row_dots(table, &[query], &mut scores);
    assert_eq!(screened.best, best(&scores, wanted.among.clone(), wanted.k));
    screened
}

/// `[blocks]`: the upper end less the score in the full pass, and the upper end's distance from the
/// score by the screen.
fn margins(
    table: &Table<'_>,
    screen: &OwnedScreen,
    query: &RowQuery,
    probability: f64,
) -> Vec<(f64, f64)> {
    let cpu = Cpu::start(1).unwrap();
    let mut scores = vec![0.0; table.rows()];
    cpu.row_dots(table, &[query], &mut scores);
    let integers = IntegerQuery::new(query, &screen.view(), probability);
    let products = Products::new(Instructions::at(Way::Scalar).unwrap(), &integers);
    let margin = |(block, &score): (usize, &f32)| {
        let codes = &screen.codes[block * table.width..(block + 1) * table.width];
        let (scale, norm) = (screen.block_scales[block], screen.block_norms[block]);
        let [product] = products.of([codes]);
        let by_screen = integers.bound.score(product, scale);
        let upper = integers.bound.upper(by_screen, scale, norm);
        (upper - f64::from(score), upper - by_screen)
    };
    scores.iter().enumerate().map(margin).collect()
}

fn exceeding(table: &Table<'_>, screen: &OwnedScreen, query: &RowQuery, probability: f64) -> usize {
    let margins = margins(table, screen, query, probability);
    margins.iter().filter(|(margin, _)| *margin < 0.0).count()
}

/// The same screen with codes rounded to the nearest.
fn undithered(table: &Table<'_>) -> OwnedScreen {
    let mut screen = OwnedScreen::new(table, 0);
    let ratios = ratios(table, &screen);
    for (code, ratio) in screen.codes.iter_mut().zip(ratios) {
        let code_f64 = ratio.round() + f64::from(CODE_ZERO);
        *code = (0..=u8::MAX)
            .find(|&code| f64::from(code) >= code_f64)
            .unwrap();
    }
    screen
}

fn ratios(table: &Table<'_>, screen: &OwnedScreen) -> Vec<f64> {
    let mut ratios = Vec::new();
    for (row, &scale) in screen.block_scales.iter().enumerate() {
        for column in 0..table.width {
            let distance =
                f64::from(table.get(row, column)) - f64::from(screen.channels.centres[column]);
            ratios.push(distance / f64::from(screen.channels.scales[column]) / f64::from(scale));
        }
    }
    ratios
}

/// The query that gains the most from the errors of a block's codes.
fn aligned(table: &Table<'_>, screen: &OwnedScreen, block: usize) -> RowQuery {
    let columns = block * table.width..(block + 1) * table.width;
    let errors = ratios(table, screen)[columns.clone()]
        .iter()
        .zip(&screen.codes[columns])
        .map(|(ratio, &code)| ratio - (f64::from(code) - f64::from(CODE_ZERO)))
        .collect::<Vec<_>>();
    let values = errors.iter().zip(&screen.channels.scales);
    let values = values.map(|(error, scale)| {
        if *error < 0.0 {
            -1.0 / scale
        } else {
            1.0 / scale
        }
    });
    RowQuery::new(once(0..table.width).collect(), values.collect())
}

const SEEDS: u64 = 60;

#[test]
fn the_bound_needs_the_dither() {
    let (blocks, width) = (32, 1024);
    let keys = keys(blocks, width, 1);
    let table = Table::new(Elements::F16(&keys), width);
    let rounded = undithered(&table);
    let query = aligned(&table, &rounded, 7);
    assert!(exceeding(&table, &rounded, &query, FAILURE_PROBABILITY) >= 1);
    for seed in 0..SEEDS {
        let screen = OwnedScreen::new(&table, seed);
        assert_eq!(
            exceeding(&table, &screen, &query, FAILURE_PROBABILITY),
            0,
            "seed {seed}"
        );
    }
}

#[test]
fn the_bound_means_its_probability() {
    let (blocks, width) = (64, 512);
    let keys = keys(blocks, width, 2);
    let table = Table::new(Elements::F16(&keys), width);
    let (mut exceeded, mut squares) = (0, 0.0);
    for seed in 0..SEEDS {
        let (screen, query) = (OwnedScreen::new(&table, seed), query(width, seed));
        exceeded += exceeding(&table, &screen, &query, 0.2);
        for (margin, bound) in margins(&table, &screen, &query, FAILURE_PROBABILITY) {
            squares += (1.0 - margin / bound).powi(2);
        }
    }
    let scores = f64::from(u32::try_from(SEEDS).unwrap()) * 64.0;
    // An error of deviation 0.41 reaches 0.9 once in seventy times; Hoeffding allows once in five.
    let rate = f64::from(u32::try_from(exceeded).unwrap()) / scores;
    assert!((0.003..0.05).contains(&rate), "{rate}");
    // 0.41 of the 3.2 that the bound is, at one in a billion.
    let deviation = (squares / scores).sqrt();
    assert!((0.11..0.14).contains(&deviation), "{deviation}");
}

#[test]
fn answers_need_the_dither() {
    let (blocks, width, k_max) = (128, 1024, 16);
    let keys = keys(blocks, width, 3);
    let table = Table::new(Elements::F16(&keys), width);
    let (cpu, rounded) = (Cpu::start(1).unwrap(), undithered(&table));
    // A block that just belongs in the answer, and a query that the rounding hides it from.
    let found = (0..blocks).find_map(|block| {
        let query = aligned(&table, &rounded, block);
        let mut scores = vec![0.0; blocks];
        cpu.row_dots(&table, &[&query], &mut scores);
        let order = best(&scores, 0..blocks, k_max);
        let k = order.iter().position(|&other| other as usize == block)? + 1;
        let screened = rounded
            .view()
            .best(&cpu, &table, &query, &wanted(0..blocks, k));
        (screened.best != order[..k]).then_some((query, k))
    });
    let (query, k) = found.expect("rounding to nearest hides some block");
    for seed in 0..SEEDS {
        check(
            &cpu,
            &table,
            &OwnedScreen::new(&table, seed),
            &query,
            &wanted(0..blocks, k),
        );
    }
}

/// Blocks that are read in full, of 512, for the best 16.
fn survivors(change: impl Fn(&mut [f16])) -> usize {
    let (blocks, width) = (512, 1024);
    let mut keys = keys(blocks, width, 4);
    change(&mut keys);
    let table = Table::new(Elements::F16(&keys), width);
    let (cpu, screen) = (Cpu::start(2).unwrap(), OwnedScreen::new(&table, 5));
    let survivors = (0..10).map(|seed| {
        let query = query(width, seed);
        let screened = check(&cpu, &table, &screen, &query, &wanted(0..blocks, 16));
        assert!(!screened.full_pass);
        screened.survivors
    });
    survivors.max().unwrap()
}

#[test]
fn few_blocks_survive() {
    let scale =
        |key: &mut f16, factor: f32| *key = f16::from_f32((key.to_f32() * factor).clamp(-6e4, 6e4));
    let few = 50;
    assert!(survivors(|_| ()) <= few);
    // One huge block, one huge channel, one large element, and the last two at once.
    assert!(
        survivors(|keys| keys[1024..2048]
            .iter_mut()
            .for_each(|key| scale(key, 500.0)))
            <= few
    );
    let channel = |keys: &mut [f16]| {
        keys.iter_mut()
            .skip(9)
            .step_by(1024)
            .for_each(|key| scale(key, 500.0));
    };
    assert!(survivors(channel) <= few);
    let element = |keys: &mut [f16]| keys[77_777] = f16::from_f32(300.0);
    assert!(survivors(element) <= few);
    assert!(
        survivors(|keys| {
            channel(keys);
            element(keys);
        }) <= few
    );
}

#[test]
fn ties_are_read_in_full() {
    let (blocks, width) = (100, 130);
    let row = keys(1, width, 6);
    let keys = row.repeat(blocks);
    let table = Table::new(Elements::F16(&keys), width);
    let (cpu, screen) = (Cpu::start(1).unwrap(), OwnedScreen::new(&table, 5));
    let screened = check(&cpu, &table, &screen, &query(width, 1), &wanted(20..90, 3));
    assert_eq!(
        screened,
        Screened {
            best: vec![20, 21, 22],
            survivors: 70,
            full_pass: true
        }
    );
    // Nor does a query of zeros tell blocks apart.
    let zeros = RowQuery::new(once(0..width).collect(), vec![0.0; width]);
    assert!(check(&cpu, &table, &screen, &zeros, &wanted(0..blocks, 3)).full_pass);
    let nothing = check(&cpu, &table, &screen, &zeros, &wanted(0..blocks, 0));
    assert_eq!(
        nothing,
        Screened {
            best: vec![],
            survivors: 0,
            full_pass: false
        }
    );
    check(&cpu, &table, &screen, &zeros, &wanted(9..9, 3));
}

/// What the full pass makes of sums beyond f32, the screen, which adds in f64, must not judge.
#[test]
fn scores_may_overflow() {
    let (blocks, width) = (20, 128);
    let plain: Vec<f32> = keys(blocks, width, 9)
        .into_iter()
        .map(f16::to_f32)
        .collect();
    let query = RowQuery::new(once(0..width).collect(), vec![1.0; width]);
    let check = |change: &dyn Fn(&mut [f32]), expected: &[u32]| {
        let mut keys = plain.clone();
        change(&mut keys);
        let table = Table::new(Elements::F32(&keys), width);
        let screen = OwnedScreen::new(&table, 5);
        let cpu = Cpu::start(1).unwrap();
        assert_eq!(
            check(&cpu, &table, &screen, &query, &wanted(0..blocks, 2)).best,
            expected
        );
    };
    // All infinite, so a tie, though the last is the largest.
    let infinite = |keys: &mut [f32]| {
        for (block, value) in [(3, 3.0e38), (7, 3.1e38), (9, 3.2e38)] {
            keys[block * width..(block + 1) * width].fill(value);
        }
    };
    check(&infinite, &[3, 7]);
    // Infinite in both directions, so not a number, though the sum is the largest.
    let not_a_number = |keys: &mut [f32]| {
        infinite(keys);
        for pair in keys[9 * width..10 * width].chunks_mut(2) {
            pair.copy_from_slice(&[3.3e38, -2.2e38]);
        }
        keys[7 * width..8 * width].fill(0.0);
        keys[3 * width..4 * width].fill(9.0);
        keys[5 * width..6 * width].fill(8.0);
    };
    check(&not_a_number, &[3, 5]);
}

#[test]
fn queries_together_or_alone() {
    let (blocks, width) = (150, 200);
    let keys = keys(blocks, width, 7);
    let table = Table::new(Elements::F16(&keys), width);
    let (cpu, screen) = (Cpu::start(2).unwrap(), OwnedScreen::new(&table, 5));
    let queries: Vec<_> = (0..5).map(|seed| query(width, seed)).collect();
    let wanted = wanted(3..150, 7);
    let alone = queries
        .iter()
        .map(|query| check(&cpu, &table, &screen, query, &wanted));
    let together: Vec<_> = queries.iter().collect();
    let together = screen.view().best_of_each(&cpu, &table, &together, &wanted);
    assert_eq!(together, alone.collect::<Vec<_>>());
    assert!(together.iter().all(|screened| !screened.full_pass));
    assert_eq!(
        screen.view().best_of_each(&cpu, &table, &[], &wanted),
        vec![]
    );
}

#[test]
#[should_panic(expected = "a row for each block")]
fn another_tables_screen_is_a_bug_of_the_caller() {
    let keys = keys(4, 10, 8);
    let (table, part) = (Elements::F16(&keys), Elements::F16(&keys[..30]));
    let screen = OwnedScreen::new(&Table::new(part, 10), 1);
    let cpu = Cpu::start(1).unwrap();
    let table = Table::new(table, 10);
    let _ = screen
        .view()
        .best(&cpu, &table, &query(10, 1), &wanted(0..4, 1));
}

#[test]
fn sections_are_checked() {
    let keys = keys(4, 10, 8);
    let good = OwnedScreen::new(&Table::new(Elements::F16(&keys), 10), 1);
    let check = |change: fn(&mut OwnedScreen), expected: &str| {
        let mut screen = good.clone();
        change(&mut screen);
        assert_eq!(screen.view().check().unwrap_err().to_string(), expected);
    };
    assert_eq!(good.view().check(), Ok(()));
    check(
        |screen| screen.channels.scales.clear(),
        "a screen has 1 to 1048576 columns, not 0",
    );
    check(
        |screen| screen.codes.truncate(39),
        "codes has 39 elements, not 40",
    );
    check(
        |screen| screen.block_norms.push(1.0),
        "block_norms has 5 elements, not 4",
    );
    check(
        |screen| screen.channels.centres.truncate(9),
        "channel_centres has 9 elements, not 10",
    );
    let value = |section: &str| format!("{section} is not a finite number of the right sign");
    check(
        |screen| screen.block_scales[2] = -1.0,
        &value("block_scales[2]"),
    );
    check(
        |screen| screen.block_scales[0] = f32::INFINITY,
        &value("block_scales[0]"),
    );
    check(
        |screen| screen.channels.scales[3] = f32::NAN,
        &value("channel_scales[3]"),
    );
    check(
        |screen| screen.block_norms[1] = f32::NAN,
        &value("block_norms[1]"),
    );
    check(
        |screen| screen.channels.centres[9] = f32::INFINITY,
        &value("channel_centres[9]"),
    );
    let sizes = SectionBytes::new(4, 10);
    assert_eq!(sizes.codes, size_of_val(good.view().codes));
    assert_eq!(sizes.block_scales, size_of_val(good.view().block_scales));
    assert_eq!(sizes.block_norms, size_of_val(good.view().block_norms));
    assert_eq!(
        sizes.channel_centres,
        size_of_val(good.view().channel_centres)
    );
    assert_eq!(
        sizes.channel_scales,
        size_of_val(good.view().channel_scales)
    );
}
