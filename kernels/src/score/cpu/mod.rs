//! The products on the processor.

mod heads;
mod kernels;
mod panels;
mod pool;
mod portable;
mod rows;
mod simd;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use std::sync::atomic::{AtomicU64, Ordering};

pub use heads::Grouping;
pub use pool::THREADS_MAX;
pub use rows::{ROW_DOT_UNDERFLOW, row_dot_error};
pub use simd::Level;

use super::{Elements, RowQuery, Table};
use kernels::padded;
use pool::Pool;
use rows::{PANEL_ROWS, Rows};
use simd::{Element, Simd};

/// Memory that a thread reads before it looks for more to do.
const TASK_BYTES: usize = 1 << 20;

/// The products on threads of its own, with the best instructions that the processor has.
#[derive(Debug)]
pub struct Cpu {
    simd: Simd,
    pub(crate) pool: Pool,
}

impl Cpu {
    /// Starts the threads, 1 to [`THREADS_MAX`]; the caller of a product is one of them.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let (simd, pool) = (Simd::best(), Pool::start(threads)?);
        Ok(Self { simd, pool })
    }

    /// As [`Cpu::start`], with instructions of the caller's choice; `None` where there are no such.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start_at(level: Level, threads: usize) -> std::io::Result<Option<Self>> {
        let Some(simd) = Simd::at(level) else {
            return Ok(None);
        };
        let pool = Pool::start(threads)?;
        Ok(Some(Self { simd, pool }))
    }

    #[must_use]
    pub fn level(&self) -> Level {
        self.simd.level()
    }

    /// The caller of a product included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// `scores[q][row]`: the product of each row with each query. A row's score has the same bits
    /// whatever the number of threads and of queries.
    ///
    /// # Panics
    /// When `scores` has another length than queries times rows, or a query names columns that the
    /// table does not have.
    pub fn row_dots(&self, table: &Table<'_>, queries: &[&RowQuery], scores: &mut [f32]) {
        match table.elements {
            Elements::F16(cells) => {
                self.row_dots_of(&Rows::new(self.simd, cells, table.width), queries, scores);
            }
            Elements::F32(cells) => {
                self.row_dots_of(&Rows::new(self.simd, cells, table.width), queries, scores);
            }
        }
    }

    /// The score of one row, with the bits that [`Cpu::row_dots`] gives it.
    ///
    /// # Panics
    /// When the table has no such row, or not the query's columns.
    #[must_use]
    pub fn row_dot(&self, table: &Table<'_>, row: usize, query: &RowQuery) -> f32 {
        let mut score = [0.0];
        match table.elements {
            Elements::F16(cells) => {
                Rows::new(self.simd, cells, table.width).dots(row, query, &mut score);
            }
            Elements::F32(cells) => {
                Rows::new(self.simd, cells, table.width).dots(row, query, &mut score);
            }
        }
        score[0]
    }

    /// Reads all bytes, with the same threads and the widest loads, and does as little as one can:
    /// the exclusive or of all words of eight bytes, the last one filled up with zeros. What the
    /// products are measured against.
    #[must_use]
    pub fn plain_read(&self, bytes: &[u8]) -> u64 {
        let (lines, rest) = bytes.as_chunks::<64>();
        let all = AtomicU64::new(simd::read(self.simd, &[padded(rest)]));
        let tasks = lines.chunks(TASK_BYTES / 64).collect();
        self.pool.run(tasks, |lines| {
            all.fetch_xor(simd::read(self.simd, lines), Ordering::Relaxed);
        });
        all.into_inner()
    }

    fn row_dots_of<E: Element>(
        &self,
        rows: &Rows<'_, E>,
        queries: &[&RowQuery],
        scores: &mut [f32],
    ) {
        assert_eq!(scores.len(), queries.len() * rows.count(), "a score each");
        if scores.is_empty() {
            return;
        }
        // Tasks of a few rows each, with a part of every query's scores.
        let mut parts: Vec<_> = scores
            .chunks_mut(rows.count())
            .map(|scores| scores.chunks_mut(rows.in_a_task()))
            .collect();
        let tasks = (0..rows.count()).step_by(rows.in_a_task());
        let tasks = tasks.map(|first| {
            let scores = parts.iter_mut().filter_map(Iterator::next).collect();
            (first, scores)
        });
        let tasks: Vec<(usize, Vec<&mut [f32]>)> = tasks.collect();
        self.pool.run(tasks, |(first, mut scores)| {
            let count = scores.first().map_or(0, |scores| scores.len());
            for at in (0..count).step_by(PANEL_ROWS) {
                // All queries, while the rows are in a cache.
                for (query, scores) in queries.iter().zip(&mut scores) {
                    let scores = &mut scores[at..count.min(at + PANEL_ROWS)];
                    rows.dots(first + at, query, scores);
                }
            }
        });
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "to the precision of a score"
)]
fn narrow(dot: f64) -> f32 {
    dot as f32
}
