//! Scoring on the processor.

use kvatlas_kernels::score::{
    Aggregate, Cpu, GroupScores, HeadQuery, RowQuery, Table, group_scores, standardize,
};
use kvatlas_kernels::screen::{FAILURE_PROBABILITY, Screen, Screened, Wanted};

use super::{Answer, Order, Want, complete, order_by_head, pooled_order, tables};
use crate::routing::query::{Plan, WhichTable};
use crate::routing::summary::{KeySummary, Tables};

#[derive(Debug)]
pub(super) struct CpuScorer {
    cpu: Cpu,
    /// Kept from task to task: 22 MiB for 8,192 blocks of 672 query heads.
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
        let scores = match plan {
            Plan::Rows { .. } => unreachable!("a plan over whole rows goes to `rows`"),
            Plan::Heads {
                table,
                query,
                aggregate,
                cosine,
            } => {
                let (table, _) = rows_of(tables(summary), *table);
                self.dots(&table, query);
                let norms = cosine.then(|| inverse_norms(summary, query));
                let heads = (query.starts.len(), query.group);
                group_scores(&self.dots, heads, *aggregate, norms.as_deref(), per_head)
            }
            Plan::Calibrated { means, magnitudes } => {
                self.calibrated(tables(summary), means, magnitudes, per_head)
            }
        };
        if per_head {
            order_by_head(scores.per_head, summary)
        } else {
            pooled_order(&scores.pooled, want)
        }
    }

    fn calibrated(
        &mut self,
        tables: &Tables,
        means: &HeadQuery,
        magnitudes: &HeadQuery,
        per_head: bool,
    ) -> GroupScores {
        let table = tables.magnitudes().expect("kri-t is planned with them");
        self.dots(&table, magnitudes);
        let of_magnitudes = std::mem::take(&mut self.dots);
        self.dots(&tables.means(), means);
        for (dot, of_magnitudes) in self.dots.iter_mut().zip(&of_magnitudes) {
            *dot += of_magnitudes;
        }
        standardize(&mut self.dots, means.dots());
        let heads = (means.starts.len(), means.group);
        group_scores(&self.dots, heads, Aggregate::Max, None, per_head)
    }

    fn dots(&mut self, table: &Table<'_>, query: &HeadQuery) {
        self.dots.clear();
        self.dots.resize(table.rows() * query.dots(), 0.0);
        self.cpu.head_dots(table, query, &mut self.dots);
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

/// `[blocks, heads of the query]`: the factors of the heads that are asked about.
fn inverse_norms(summary: &KeySummary, query: &HeadQuery) -> Vec<f32> {
    let shape = &summary.shape;
    let head_dim = shape.head_dim as usize;
    let heads = shape.frame.layer_ids.len() * shape.kv_heads as usize;
    let asked = |row: &[f32]| -> Vec<f32> {
        let starts = query.starts.iter();
        starts.map(|start| row[start / head_dim]).collect()
    };
    let all = tables(summary).inverse_norms();
    all.chunks_exact(heads).flat_map(asked).collect()
}
