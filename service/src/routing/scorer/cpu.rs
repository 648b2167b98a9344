//! Scoring on the processor.

use kvatlas_kernels::score::{Cpu, Grouping, RowQuery, Table};
use kvatlas_kernels::screen::{FAILURE_PROBABILITY, Screen, Screened, Wanted};

use super::{Answer, Order, Want, complete, order_by_head, pooled_order, tables};
use crate::routing::query::{Plan, WhichTable};
use crate::routing::summary::{KeySummary, Tables};

#[derive(Debug)]
pub(super) struct CpuScorer {
    cpu: Cpu,
    /// Of KRI-T, kept from task to task: 22 MiB for 8,192 blocks of 672 query heads.
    dots: Vec<f32>,
}

impl CpuScorer {
    pub(super) fn new(cpu: Cpu) -> Self {
        Self {
            cpu,
            dots: Vec::new(),
        }
    }

    /// Over the screen where that is enough.
    pub(super) fn rows(
        &self,
        summary: &KeySummary,
        which: WhichTable,
        queries: &[&RowQuery],
        want: &Want,
    ) -> Vec<Answer> {
        let (table, screen) = rows_of(tables(summary), which);
        if let (Some(screen), Want::Best { among, k }) = (screen, want) {
            let wanted = Wanted {
                among: among.clone(),
                k: *k,
                failure_probability: FAILURE_PROBABILITY,
            };
            let found = screen.best_of_each(&self.cpu, &table, queries, &wanted);
            let answer = |found: Screened| Answer {
                order: Order::Pooled(complete(found.best, table.rows())),
                survivors: (!found.full_pass).then_some(found.survivors),
            };
            return found.into_iter().map(answer).collect();
        }
        let mut scores = vec![0.0; queries.len() * table.rows()];
        self.cpu.row_dots(&table, queries, &mut scores);
        let answer = |scores| Answer {
            order: pooled_order(scores, want),
            survivors: None,
        };
        scores.chunks_exact(table.rows()).map(answer).collect()
    }

    pub(super) fn heads(&mut self, summary: &KeySummary, plan: &Plan, want: &Want) -> Order {
        let per_head = *want == Want::PerHead;
        let tables = tables(summary);
        let scores = match plan {
            Plan::Rows { .. } => unreachable!("a plan over whole rows goes to `rows`"),
            Plan::Heads {
                table,
                query,
                aggregate,
                cosine,
            } => {
                let (table, _) = rows_of(tables, *table);
                let grouping = Grouping {
                    aggregate: *aggregate,
                    row_scales: cosine.then(|| tables.inverse_norms()),
                    per_head,
                };
                self.cpu.head_scores(&table, query, &grouping)
            }
            Plan::Calibrated { means, magnitudes } => {
                let table = tables.magnitudes().expect("kri-t is planned with them");
                let products = [(&tables.means(), means), (&table, magnitudes)];
                self.cpu
                    .standard_head_scores(products, per_head, &mut self.dots)
            }
        };
        if per_head {
            order_by_head(scores.per_head, summary)
        } else {
            pooled_order(&scores.pooled, want)
        }
    }
}

fn rows_of(tables: &Tables, which: WhichTable) -> (Table<'_>, Option<Screen<'_>>) {
    match which {
        WhichTable::Means => (tables.means(), tables.screen()),
        WhichTable::Extremes => {
            let extremes = tables.extremes().expect("quest is planned with them");
            (extremes, tables.extremes_screen())
        }
    }
}
