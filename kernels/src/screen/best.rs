//! The best blocks, with the full table read only where the screen leaves a doubt.

use std::ops::Range;

use super::products::{Instructions, Products, ROWS};
use super::query::{Bound, IntegerQuery};
use super::{Screen, WIDTH_MAX, elements};
use crate::score::{Cpu, RowQuery, Table, best};

/// Chance, for each block that belongs in the answer, that the screen leaves it out.
pub const FAILURE_PROBABILITY: f64 = 1e-9;

/// Codes that a thread reads before it looks for more to do.
const TASK_BYTES: usize = 1 << 20;

/// Rows of the full table that a thread reads before it looks for more to do; one at least.
const RESCORE_BYTES: usize = 1 << 16;

/// With more than this share of the blocks wanted, all rows are read at once. Measured: rows here
/// and there take twice as long as all in a row, so at a quarter both ways take the same time.
const WANTED_SHARE: usize = 8;

/// With more than this share of the blocks surviving, all rows are read after all.
const SURVIVORS_SHARE: usize = 2;

/// Which blocks are asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Blocks that may be in the answer.
    pub among: Range<usize>,
    /// How many.
    pub k: usize,
    /// Chance, for each block that belongs in the answer, that it is left out: see the
    /// [module](super).
    pub failure_probability: f64,
}

/// The best blocks, and what it took to find them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Screened {
    /// Best first, a tie to the smaller index: what [`best`] makes of the full pass.
    pub best: Vec<u32>,
    /// Blocks whose rows were read from the full table.
    pub survivors: usize,
    /// Whether the screen was of no use, so that all rows were read.
    pub full_pass: bool,
}

impl Screen<'_> {
    /// The best blocks of `table`, whose copy this is.
    ///
    /// # Panics
    /// When table, screen, query and range do not fit each other, or when the probability is not
    /// between 0 and 1.
    #[must_use]
    pub fn best(
        &self,
        cpu: &Cpu,
        table: &Table<'_>,
        query: &RowQuery,
        wanted: &Wanted,
    ) -> Screened {
        let mut all = self.best_of_each(cpu, table, &[query], wanted);
        all.swap_remove(0)
    }

    /// [`Screen::best`] for each of several queries; the codes are read once.
    ///
    /// # Panics
    /// As [`Screen::best`].
    #[must_use]
    pub fn best_of_each(
        &self,
        cpu: &Cpu,
        table: &Table<'_>,
        queries: &[&RowQuery],
        wanted: &Wanted,
    ) -> Vec<Screened> {
        assert_eq!(table.rows(), self.blocks(), "a row for each block");
        assert_eq!(table.width, self.width(), "a channel for each column");
        assert!(table.width <= WIDTH_MAX, "sums of products are exact");
        assert!(
            0.0 < wanted.failure_probability && wanted.failure_probability < 1.0,
            "a probability"
        );
        let pass = Pass {
            cpu,
            table,
            screen: self,
            wanted,
        };
        if queries.is_empty() {
            return Vec::new();
        }
        if wanted.k > wanted.among.len() / WANTED_SHARE {
            return queries.iter().map(|query| pass.full(query)).collect();
        }
        let integers: Vec<_> = queries
            .iter()
            .map(|query| IntegerQuery::new(query, self, wanted.failure_probability))
            .collect();
        let products = pass.products(&integers);
        let each = queries.iter().zip(&integers).enumerate();
        each.map(|(at, (query, integers))| {
            let products = products.iter().skip(at).step_by(queries.len());
            pass.screened(query, &integers.bound, products.copied())
        })
        .collect()
    }
}

/// What every step of a pass needs.
struct Pass<'a> {
    cpu: &'a Cpu,
    table: &'a Table<'a>,
    screen: &'a Screen<'a>,
    wanted: &'a Wanted,
}

/// A block whose score by the full table is known.
#[derive(Clone, Copy, Debug)]
struct Scored {
    block: usize,
    score: f32,
}

impl Pass<'_> {
    /// `[blocks, queries]`: the products of the codes with each query.
    fn products(&self, queries: &[IntegerQuery]) -> Vec<i64> {
        let instructions = Instructions::up_to(self.cpu.level());
        let queries: Vec<_> = queries
            .iter()
            .map(|query| Products::new(instructions, query))
            .collect();
        let (blocks, width) = (&self.wanted.among, self.screen.width());
        let codes = &self.screen.codes[blocks.start * width..blocks.end * width];
        let mut products = vec![0; blocks.len() * queries.len()];
        let rows = (TASK_BYTES / width).next_multiple_of(ROWS).max(ROWS);
        let tasks = codes
            .chunks(rows * width)
            .zip(products.chunks_mut(rows * queries.len()));
        self.cpu.pool.run(tasks.collect(), |(codes, products)| {
            let groups = codes
                .chunks(ROWS * width)
                .zip(products.chunks_mut(ROWS * queries.len()));
            for (codes, products) in groups {
                // All queries, while the codes are in a cache.
                for (at, query) in queries.iter().enumerate() {
                    let products = products.iter_mut().skip(at).step_by(queries.len());
                    for (product, value) in products.zip(multiply(query, codes)) {
                        *product = value;
                    }
                }
            }
        });
        products
    }

    fn screened(
        &self,
        query: &RowQuery,
        bound: &Bound,
        products: impl Iterator<Item = i64>,
    ) -> Screened {
        let blocks = self.wanted.among.clone();
        let scales = &self.screen.block_scales[blocks.clone()];
        let norms = &self.screen.block_norms[blocks.clone()];
        let scores: Vec<f64> = products
            .zip(scales)
            .map(|(product, &scale)| bound.score(product, scale))
            .collect();
        let mut known = self.score(query, &likely(&scores, blocks.start, self.wanted.k));
        // The score that the last of the best has at least.
        let least = known
            .iter()
            .map(|known| known.score)
            .fold(f32::INFINITY, least);
        let mut is_known = vec![false; scores.len()];
        for known in &known {
            is_known[known.block - blocks.start] = true;
        }
        let uppers = scores.iter().zip(scales.iter().zip(norms));
        let uppers = uppers.map(|(&score, (&scale, &norm))| bound.upper(score, scale, norm));
        let survivors: Vec<usize> = blocks
            .zip(uppers.zip(is_known))
            .filter(|&(_, (upper, is_known))| upper >= f64::from(least) && !is_known)
            .map(|(block, _)| block)
            .collect();
        if known.len() + survivors.len() > scores.len() / SURVIVORS_SHARE {
            return self.full(query);
        }
        known.extend(self.score(query, &survivors));
        known.sort_unstable_by_key(|known| known.block);
        let scores: Vec<f32> = known.iter().map(|known| known.score).collect();
        let best = best(&scores, 0..scores.len(), self.wanted.k);
        let best = best
            .into_iter()
            .map(|at| narrow(known[at as usize].block))
            .collect();
        Screened {
            best,
            survivors: known.len(),
            full_pass: false,
        }
    }

    /// The blocks' scores by the full table.
    fn score(&self, query: &RowQuery, blocks: &[usize]) -> Vec<Scored> {
        let mut scored: Vec<_> = blocks
            .iter()
            .map(|&block| Scored { block, score: 0.0 })
            .collect();
        let row_bytes = self.table.bytes() / self.table.rows();
        let tasks = scored
            .chunks_mut((RESCORE_BYTES / row_bytes).max(1))
            .collect();
        self.cpu.pool.run(tasks, |scored: &mut [Scored]| {
            for scored in scored {
                scored.score = self.cpu.row_dot(self.table, scored.block, query);
            }
        });
        scored
    }

    /// Without the screen.
    fn full(&self, query: &RowQuery) -> Screened {
        let blocks = &self.wanted.among;
        let part = Table::new(elements(self.table, blocks.clone()), self.table.width);
        let mut scores = vec![0.0; blocks.len()];
        self.cpu.row_dots(&part, &[query], &mut scores);
        let best = best(&scores, 0..scores.len(), self.wanted.k);
        let best = best
            .into_iter()
            .map(|at| at + narrow(blocks.start))
            .collect();
        Screened {
            best,
            survivors: blocks.len(),
            full_pass: true,
        }
    }
}

/// The products of up to [`ROWS`] rows.
fn multiply(query: &Products<'_>, codes: &[u8]) -> [i64; ROWS] {
    let width = query.width();
    if codes.len() == ROWS * width {
        query.of(std::array::from_fn(|row| &codes[row * width..][..width]))
    } else {
        let mut products = [0; ROWS];
        for (product, codes) in products.iter_mut().zip(codes.chunks(width)) {
            [*product] = query.of([codes]);
        }
        products
    }
}

/// The `k` blocks that are best by the screen, ascending.
fn likely(scores: &[f64], first: usize, k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    if k > 0 && k < order.len() {
        order.select_nth_unstable_by(k - 1, |&left, &right| {
            scores[right].total_cmp(&scores[left])
        });
    }
    order.truncate(k);
    order.sort_unstable();
    order.into_iter().map(|at| first + at).collect()
}

/// The smaller; with a NaN nothing is certain.
fn least(left: f32, right: f32) -> f32 {
    if left.is_nan() || right.is_nan() {
        f32::NEG_INFINITY
    } else {
        left.min(right)
    }
}

fn narrow(block: usize) -> u32 {
    u32::try_from(block).expect("blocks are counted in u32")
}
