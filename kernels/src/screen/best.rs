//! The best blocks, with the full table read only where the screen leaves a doubt.

use std::ops::Range;

use super::Screen;
use super::products::product_scalar;
use super::query::IntegerQuery;
use crate::score::{Cpu, Elements, RowQuery, Table, best};

/// Chance, for each block asked for, that the screen leaves it out though it belongs in.
pub const FAILURE_PROBABILITY: f64 = 1e-9;

/// Which blocks are asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Blocks that may be in the answer.
    pub among: Range<usize>,
    /// How many.
    pub k: usize,
    /// Chance, for each block asked for, that it is left out though it belongs in: see the
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

    /// [`Screen::best`] for several queries; the codes are read once.
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
        assert_eq!(table.rows(), self.blocks(), "the screen is the table's");
        assert_eq!(table.width, self.width(), "the screen is the table's");
        assert!(0.0 < wanted.failure_probability && wanted.failure_probability < 1.0);
        queries
            .iter()
            .map(|query| self.one(cpu, table, query, wanted))
            .collect()
    }

    fn one(&self, cpu: &Cpu, table: &Table<'_>, query: &RowQuery, wanted: &Wanted) -> Screened {
        let integers = IntegerQuery::new(query, self, wanted.failure_probability);
        let score = |block: usize| {
            let codes = &self.codes[block * table.width..(block + 1) * table.width];
            integers
                .bound
                .score(product_scalar(codes, &integers), self.block_scales[block])
        };
        let screened: Vec<f64> = wanted.among.clone().map(score).collect();
        let mut order: Vec<usize> = (0..screened.len()).collect();
        order.sort_by(|&left, &right| screened[right].total_cmp(&screened[left]));
        let exact = |block: usize| row_dot(cpu, table, query, block);
        let least = order
            .iter()
            .take(wanted.k)
            .map(|&at| exact(wanted.among.start + at));
        let least = least.fold(f32::INFINITY, |least, score| {
            if score < least || score.is_nan() {
                score
            } else {
                least
            }
        });
        let survives = |block: &usize| {
            let upper = integers.bound.upper(
                screened[block - wanted.among.start],
                self.block_scales[*block],
                self.block_norms[*block],
            );
            least.is_nan() || upper >= f64::from(least)
        };
        let survivors: Vec<usize> = wanted.among.clone().filter(survives).collect();
        let scores: Vec<f32> = survivors.iter().map(|&block| exact(block)).collect();
        let best = best(&scores, 0..scores.len(), wanted.k);
        let best = best
            .into_iter()
            .map(|at| u32::try_from(survivors[at as usize]).expect("counted in u32"))
            .collect();
        Screened {
            best,
            survivors: survivors.len(),
            full_pass: false,
        }
    }
}

fn row_dot(cpu: &Cpu, table: &Table<'_>, query: &RowQuery, block: usize) -> f32 {
    let columns = block * table.width..(block + 1) * table.width;
    let row = match table.elements {
        Elements::F16(elements) => Elements::F16(&elements[columns]),
        Elements::F32(elements) => Elements::F32(&elements[columns]),
    };
    let mut score = [0.0];
    cpu.row_dots(&Table::new(row, table.width), &[query], &mut score);
    score[0]
}
