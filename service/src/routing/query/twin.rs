//! Carries out a plan with the scalar products: slow, obvious, for tests.

use kvatlas_kernels::score::{
    Aggregate, GroupScores, HeadQuery, Table, group_scores, scalar, standardize,
};

use super::{Plan, WhichTable};

/// What a plan reads of a key summary.
pub(super) struct Tables<'a> {
    pub means: Table<'a>,
    pub extremes: Option<Table<'a>>,
    pub magnitudes: Option<Table<'a>>,
    /// `[blocks, layers, kv_heads]`, of all layers of the summary.
    pub inverse_norms: &'a [f32],
}

/// The scores of all blocks; for each head only where the plan has them.
pub(super) fn scores(plan: &Plan, tables: &Tables<'_>) -> GroupScores {
    let table = |which| match which {
        WhichTable::Means => tables.means,
        WhichTable::Extremes => tables.extremes.expect("the plan was checked"),
    };
    match plan {
        Plan::Rows {
            table: which,
            query,
        } => GroupScores {
            pooled: narrow(&scalar::row_dots(&table(*which), query)),
            per_head: Vec::new(),
        },
        Plan::Heads {
            table: which,
            query,
            aggregate,
            cosine,
        } => {
            let dots = narrow(&scalar::head_dots(&table(*which), query));
            let factors = cosine.then(|| factors(query, tables));
            let shape = (query.starts.len(), query.group);
            group_scores(&dots, shape, *aggregate, factors.as_deref(), true)
        }
        Plan::Calibrated { means, magnitudes } => {
            let magnitude_table = tables.magnitudes.expect("the plan was checked");
            let dots = scalar::head_dots(&tables.means, means);
            let extra = scalar::head_dots(&magnitude_table, magnitudes);
            let sums: Vec<f64> = dots.iter().zip(extra).map(|(a, b)| a + b).collect();
            let mut sums = narrow(&sums);
            standardize(&mut sums, means.dots());
            let shape = (means.starts.len(), means.group);
            group_scores(&sums, shape, Aggregate::Max, None, true)
        }
    }
}

/// `[blocks, starts]`: the inverse norms of the parts that the query asks about.
fn factors(query: &HeadQuery, tables: &Tables<'_>) -> Vec<f32> {
    let parts = tables.means.width / query.width;
    let rows = tables.inverse_norms.chunks_exact(parts);
    let of_row = |row: &[f32]| -> Vec<f32> {
        let part = |start: &usize| row[start / query.width];
        query.starts.iter().map(part).collect()
    };
    rows.flat_map(of_row).collect()
}

#[expect(clippy::cast_possible_truncation, reason = "as the kernels do")]
fn narrow(dots: &[f64]) -> Vec<f32> {
    dots.iter().map(|&dot| dot as f32).collect()
}
