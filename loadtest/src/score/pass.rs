//! The measured passes: a plan over all rows of a table, the same by its screen, a plain read.

use std::cell::RefCell;

use kvatlas::routing::query::{OnlineQuery, Plan, PlanError, WhichTable, plan};
use kvatlas_kernels::{
    score::{Cpu, Elements, Grouping, Table, best},
    screen::{FAILURE_PROBABILITY, OwnedScreen, Screened, Wanted},
};

use super::{Algorithm, keys::Keys, question::summary_shape};

/// A query's products with the first `blocks` blocks of some keys.
#[derive(Debug)]
pub struct Pass<'a> {
    pub cpu: &'a Cpu,
    pub keys: &'a Keys,
    pub blocks: usize,
    pub k: usize,
    plan: Plan,
    /// As the service keeps it from one pass to the next.
    kept: RefCell<Vec<f32>>,
}

impl<'a> Pass<'a> {
    /// # Errors
    /// When the service finds that query and keys do not fit.
    pub fn new(
        cpu: &'a Cpu,
        (keys, blocks): (&'a Keys, usize),
        (algorithm, k): (Algorithm, usize),
        query: &OnlineQuery,
    ) -> Result<Self, PlanError> {
        let shape = summary_shape(keys.shape, blocks);
        Ok(Self {
            cpu,
            keys,
            blocks,
            k,
            kept: RefCell::default(),
            plan: plan(algorithm.of_service(), query, &shape, false)?,
        })
    }

    /// The best blocks by the full tables, best first.
    #[must_use]
    pub fn full(&self) -> Vec<u32> {
        let scores = match &self.plan {
            Plan::Rows { table, query } => {
                let mut scores = vec![0.0; self.blocks];
                let table = self.keys.table(*table, self.blocks);
                self.cpu.row_dots(&table, &[query], &mut scores);
                scores
            }
            Plan::Heads {
                table,
                query,
                aggregate,
                cosine: _,
            } => {
                let grouping = Grouping {
                    aggregate: *aggregate,
                    row_scales: None,
                    per_head: false,
                };
                let table = self.keys.table(*table, self.blocks);
                self.cpu.head_scores(&table, query, &grouping).pooled
            }
            Plan::Calibrated { means, magnitudes } => {
                let tables = (
                    self.keys.table(WhichTable::Means, self.blocks),
                    self.keys.magnitudes(self.blocks),
                );
                let products = [(&tables.0, means), (&tables.1, magnitudes)];
                let kept = &mut self.kept.borrow_mut();
                self.cpu.standard_head_scores(products, false, kept).pooled
            }
        };
        best(&scores, 0..self.blocks, self.k)
    }

    /// The screen that [`Pass::screened`] goes by, of all blocks; `None` where the products are not
    /// one vector over the rows.
    #[must_use]
    pub fn screen(&self, seed: u64) -> Option<OwnedScreen> {
        match &self.plan {
            Plan::Rows { table, .. } => Some(OwnedScreen::new(
                &self.keys.table(*table, self.blocks),
                seed,
            )),
            Plan::Heads { .. } | Plan::Calibrated { .. } => None,
        }
    }

    /// The best blocks by the screen; `None` as for [`Pass::screen`].
    #[must_use]
    pub fn screened(&self, screen: &OwnedScreen) -> Option<Screened> {
        match &self.plan {
            Plan::Rows { table, query } => {
                let table = self.keys.table(*table, self.blocks);
                let wanted = Wanted {
                    among: 0..self.blocks,
                    k: self.k,
                    failure_probability: FAILURE_PROBABILITY,
                };
                Some(screen.view().best(self.cpu, &table, query, &wanted))
            }
            Plan::Heads { .. } | Plan::Calibrated { .. } => None,
        }
    }

    /// Reads what a full pass reads, and nothing else.
    #[must_use]
    pub fn plain_read(&self) -> u64 {
        let read = |table: Table<'_>| match table.elements {
            Elements::F16(elements) => self.cpu.plain_read(bytemuck::cast_slice(elements)),
            Elements::F32(elements) => self.cpu.plain_read(bytemuck::cast_slice(elements)),
        };
        self.tables().map(read).fold(0, |all, bits| all ^ bits)
    }

    /// Bytes that a full pass reads.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tables().map(|table| table.bytes()).sum()
    }

    fn tables(&self) -> impl Iterator<Item = Table<'_>> {
        let (first, second) = match &self.plan {
            Plan::Rows { table, .. } | Plan::Heads { table, .. } => {
                (self.keys.table(*table, self.blocks), None)
            }
            Plan::Calibrated { .. } => (
                self.keys.table(WhichTable::Means, self.blocks),
                Some(self.keys.magnitudes(self.blocks)),
            ),
        };
        std::iter::once(first).chain(second)
    }
}
