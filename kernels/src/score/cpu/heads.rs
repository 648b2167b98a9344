//! From rows to the scores of blocks: the products of query heads stay in a cache.

use std::ops::Range;

use super::Cpu;
use super::panels::{self, Moments, Panel, Standard};
use super::rows::{PANEL_ROWS, rows_in_a_task};
use super::simd::{self, Element};
use crate::score::{Aggregate, Elements, GroupScores, HeadQuery, Table, heads::DEVIATION_MIN};

/// How the products of query heads become scores.
#[derive(Clone, Copy, Debug)]
pub struct Grouping<'a> {
    /// Of the heads that share a part.
    pub aggregate: Aggregate,
    /// `[rows, parts]`: a factor for each part of a row, such as one over its norm. Part `p` has
    /// the columns from `p * width` on, `width` being the query's; all parts of the table are here,
    /// those included that the query does not ask about.
    pub row_scales: Option<&'a [f32]>,
    /// Whether each head's scores are wanted beside the pooled ones.
    pub per_head: bool,
}

impl Cpu {
    /// `dots[row][head]`: the product of each query head with its part of each row. A product has
    /// the same bits whatever the number of threads. Its sum is in f32 all along: parts are short.
    ///
    /// # Panics
    /// When `dots` has another length than rows times [`HeadQuery::dots`], the query's values are
    /// not one for each dot and column, or it names columns that the table does not have.
    pub fn head_dots(&self, table: &Table<'_>, query: &HeadQuery, dots: &mut [f32]) {
        let width = query.dots();
        assert_eq!(dots.len(), table.rows() * width, "a dot each");
        let Some(in_a_task) = in_a_task(&[table]) else {
            return;
        };
        let tasks = (0..table.rows()).step_by(in_a_task);
        let tasks = tasks.zip(dots.chunks_mut(in_a_task * width)).collect();
        self.pool.run(tasks, |(first, dots): (usize, &mut [f32])| {
            let mut panel = vec![Panel::default(); width];
            for (first, dots) in (first..)
                .step_by(PANEL_ROWS)
                .zip(dots.chunks_mut(PANEL_ROWS * width))
            {
                let rows = first..first + dots.len() / width;
                self.panel(table, rows, query, &mut panel);
                for (row, dots) in dots.chunks_exact_mut(width).enumerate() {
                    for (dot, panel) in dots.iter_mut().zip(&panel) {
                        *dot = panel[row];
                    }
                }
            }
        });
    }

    /// The bits of [`group_scores`](crate::score::group_scores) for [`Cpu::head_dots`].
    ///
    /// # Panics
    /// When the query's values are not one for each dot and column, it names columns that the table
    /// does not have, or the scales are not one for each part.
    #[must_use]
    pub fn head_scores(
        &self,
        table: &Table<'_>,
        query: &HeadQuery,
        grouping: &Grouping<'_>,
    ) -> GroupScores {
        let scales = grouping
            .row_scales
            .map(|all| Scales::new(all, table, query));
        let heads = query.starts.len();
        let mut scores = unscored(table.rows(), heads, grouping.per_head);
        let Some(in_a_task) = in_a_task(&[table]) else {
            return scores;
        };
        self.pool.run(shares(&mut scores, in_a_task), |mut share| {
            let mut dots = vec![Panel::default(); query.dots()];
            let mut panel = vec![Panel::default(); heads];
            for rows in share.panels() {
                self.panel(table, rows.clone(), query, &mut dots);
                simd::aggregate(self.simd, grouping.aggregate, &dots, &mut panel);
                if let Some(scales) = &scales {
                    scales.apply(rows.clone(), &mut panel);
                }
                share.put(rows, &panel, &simd::pool(self.simd, &panel));
            }
        });
        scores
    }

    /// The products of two tables added, then each query head's made z-scores over the rows, then
    /// the greatest of each group: [`standardize`](crate::score::standardize) and
    /// [`group_scores`](crate::score::group_scores) of the sums of [`Cpu::head_dots`], up to the
    /// rounding of f64. The scores' bits do not depend on the number of threads.
    ///
    /// `kept` is memory for all products, better kept than asked for anew: its content is of no
    /// use, before or after.
    ///
    /// # Panics
    /// When the tables or queries do not fit each other or the queries their tables, as above.
    #[must_use]
    pub fn standard_head_scores(
        &self,
        [(table, query), (other_table, other_query)]: [(&Table<'_>, &HeadQuery); 2],
        per_head: bool,
        kept: &mut Vec<f32>,
    ) -> GroupScores {
        let (rows, heads, width) = (table.rows(), query.starts.len(), query.dots());
        assert_eq!(other_table.rows(), rows, "as many rows");
        let shape = |query: &HeadQuery| (query.starts.len(), query.group);
        assert_eq!(shape(other_query), shape(query), "as many heads");
        let mut scores = unscored(rows, heads, per_head);
        let Some(in_a_task) = in_a_task(&[table, other_table]) else {
            return scores;
        };
        let len = rows.next_multiple_of(PANEL_ROWS) * width;
        kept.resize(len.max(kept.len()), 0.0);
        let (dots, _) = kept[..len].as_chunks_mut::<PANEL_ROWS>();
        let chunk = in_a_task / PANEL_ROWS * width;

        let mut moments = vec![Moments::default(); rows.div_ceil(in_a_task) * width];
        let tasks = (0..rows).step_by(in_a_task).zip(dots.chunks_mut(chunk));
        let tasks = tasks.zip(moments.chunks_exact_mut(width)).collect();
        self.pool.run(
            tasks,
            |((first, dots), moments): ((usize, &mut [Panel]), _)| {
                let end = rows.min(first + in_a_task);
                let mut others = vec![Panel::default(); width];
                for (first, dots) in (first..end).step_by(PANEL_ROWS).zip(dots.chunks_mut(width)) {
                    let rows = first..end.min(first + PANEL_ROWS);
                    self.panel(table, rows.clone(), query, dots);
                    self.panel(other_table, rows, other_query, &mut others);
                    panels::add(dots, &others);
                }
                simd::moments(self.simd, dots, end - first, moments);
            },
        );

        let standards = standards(&moments, in_a_task, rows, width);
        let tasks = shares(&mut scores, in_a_task);
        let tasks = tasks.into_iter().zip(dots.chunks(chunk)).collect();
        self.pool
            .run(tasks, |(mut share, dots): (Share<'_>, &[Panel])| {
                let mut panel = vec![Panel::default(); heads];
                for (rows, dots) in share.panels().zip(dots.chunks(width)) {
                    simd::standard_max(self.simd, dots, &standards, &mut panel);
                    share.put(rows, &panel, &simd::pool(self.simd, &panel));
                }
            });
        scores
    }

    /// The products of at most [`PANEL_ROWS`] rows with all query heads.
    fn panel(&self, table: &Table<'_>, rows: Range<usize>, query: &HeadQuery, dots: &mut [Panel]) {
        assert_eq!(query.values.len(), dots.len() * query.width, "a value each");
        let cells = rows.start * table.width..rows.end * table.width;
        match table.elements {
            Elements::F16(all) => panel_of(self.simd, &all[cells], table.width, (query, dots)),
            Elements::F32(all) => panel_of(self.simd, &all[cells], table.width, (query, dots)),
        }
    }
}

fn panel_of<E: Element>(
    simd: simd::Simd,
    cells: &[E],
    width: usize,
    (query, dots): (&HeadQuery, &mut [Panel]),
) {
    let mut rows = [&[][..]; PANEL_ROWS];
    let count = cells.len() / width;
    for (row, cells) in rows.iter_mut().zip(cells.chunks_exact(width)) {
        *row = cells;
    }
    E::heads(simd, &rows[..count], query, dots);
}

/// Rows that make a task, whole panels; `None` without rows.
fn in_a_task(tables: &[&Table<'_>]) -> Option<usize> {
    let rows = tables.first().map_or(0, |table| table.rows());
    let bytes: usize = tables.iter().map(|table| table.bytes()).sum();
    (rows > 0).then(|| rows_in_a_task(bytes / rows))
}

fn unscored(rows: usize, heads: usize, per_head: bool) -> GroupScores {
    assert!(heads > 0, "a query has heads");
    GroupScores {
        pooled: vec![0.0; rows],
        per_head: vec![0.0; if per_head { heads * rows } else { 0 }],
    }
}

/// A task's part of the scores.
struct Share<'a> {
    first: usize,
    pooled: &'a mut [f32],
    /// Of each head; none unless asked for.
    per_head: Vec<&'a mut [f32]>,
}

fn shares(scores: &mut GroupScores, in_a_task: usize) -> Vec<Share<'_>> {
    let rows = scores.pooled.len();
    let per_head = scores.per_head.chunks_exact_mut(rows);
    let mut heads: Vec<_> = per_head
        .map(|scores| scores.chunks_mut(in_a_task))
        .collect();
    let pooled = (0..)
        .step_by(in_a_task)
        .zip(scores.pooled.chunks_mut(in_a_task));
    let share = |(first, pooled)| Share {
        first,
        pooled,
        per_head: heads.iter_mut().filter_map(Iterator::next).collect(),
    };
    pooled.map(share).collect()
}

impl Share<'_> {
    /// The rows, panel by panel.
    fn panels(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (first, end) = (self.first, self.first + self.pooled.len());
        let starts = (first..end).step_by(PANEL_ROWS);
        starts.map(move |first| first..end.min(first + PANEL_ROWS))
    }

    fn put(&mut self, rows: Range<usize>, panel: &[Panel], pooled: &Panel) {
        let (at, count) = (rows.start - self.first, rows.len());
        self.pooled[at..at + count].copy_from_slice(&pooled[..count]);
        for (scores, panel) in self.per_head.iter_mut().zip(panel) {
            scores[at..at + count].copy_from_slice(&panel[..count]);
        }
    }
}

/// The factors of the parts that a query asks about.
struct Scales<'a> {
    /// `[rows, parts]`
    all: &'a [f32],
    parts: usize,
    /// The part of each head.
    asked: Vec<usize>,
}

impl<'a> Scales<'a> {
    fn new(all: &'a [f32], table: &Table<'_>, query: &HeadQuery) -> Self {
        let parts = table.width / query.width;
        assert_eq!(all.len(), table.rows() * parts, "a scale for each part");
        let asked = query.starts.iter().map(|start| start / query.width);
        Self {
            all,
            parts,
            asked: asked.collect(),
        }
    }

    fn apply(&self, rows: Range<usize>, panel: &mut [Panel]) {
        let scales = &self.all[rows.start * self.parts..rows.end * self.parts];
        for (row, scales) in scales.chunks_exact(self.parts).enumerate() {
            for (scores, &part) in panel.iter_mut().zip(&self.asked) {
                scores[row] *= scales[part];
            }
        }
    }
}

/// From the moments of chunks, `[chunks, width]`, taken together in their order.
fn standards(moments: &[Moments], in_a_task: usize, rows: usize, width: usize) -> Vec<Standard> {
    let mut all = vec![Moments::default(); width];
    for (before, more) in (0..rows)
        .step_by(in_a_task)
        .zip(moments.chunks_exact(width))
    {
        panels::merge(&mut all, before, more, in_a_task.min(rows - before));
    }
    let standard = |of: Moments| Standard {
        mean: of.mean,
        factor: 1.0 / (of.squares / panels::count(rows)).sqrt().max(DEVIATION_MIN),
    };
    all.into_iter().map(standard).collect()
}
