//! The scorer: one thread that owns the device, behind a bounded queue, and scores what waits
//! together where that reads a table once instead of several times.

mod cpu;
mod cuda;
mod device;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use kvatlas_kernels::score::{RowQuery, best};
use kvatlas_kernels::{Scores, rank, rank_rows};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::oneshot;

pub use self::device::Device;
use super::encoder::{Encoder, EncoderError};
use super::query::{Algorithm, Calibration, OnlineQuery, Plan, PlanError, WhichTable, plan};
use super::ranking::pack_rows;
use super::summary::{KeySummary, SummaryError, Tables};
use crate::store::Store;

/// Tasks that are taken from the queue at a time.
const BATCH_MAX: usize = 16;

/// What is to be scored.
#[derive(Debug)]
pub struct Task {
    pub summary: Arc<KeySummary>,
    pub query: QuerySource,
    pub algorithm: Algorithm,
    pub want: Want,
}

/// Where the query comes from.
#[derive(Debug)]
pub enum QuerySource {
    Given {
        query: Arc<OnlineQuery>,
        /// Of the calibration, where the request names another than was kept with it.
        position: Option<u64>,
    },
    Tokens {
        encoder: Arc<Encoder>,
        tokens: Vec<u32>,
        start_position: u64,
        mean_of_last: u32,
    },
}

/// Which blocks must be in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// The `k` best of a range: a screen can leave the others unscored.
    Best {
        among: Range<usize>,
        k: usize,
    },
    All,
    /// All, for each (layer, KV head).
    PerHead,
}

/// Blocks in order.
#[derive(Debug)]
pub struct Scored {
    pub order: Order,
    /// Scored together, this one included.
    pub batch: usize,
    /// Blocks that a screen left to be scored; `None` when all were.
    pub survivors: Option<usize>,
    /// The pass over the tables.
    pub score_ns: u64,
}

#[derive(Debug)]
pub enum Order {
    /// All blocks; the wanted ones first, best first.
    Pooled(Vec<u32>),
    /// Packed rankings, layer-major.
    PerHead {
        layers: u32,
        kv_heads: u32,
        packed: Vec<u8>,
    },
}

/// Why a task was not scored.
#[derive(Debug, Error)]
pub enum ScoreError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Encoder(#[from] EncoderError),
    #[error(transparent)]
    Summary(#[from] SummaryError),
}

/// The queue is full, or the scorer has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScorerBusy;

/// The way to the scorer's thread.
#[derive(Debug)]
pub struct Scorer {
    queue: Mutex<Option<SyncSender<Job>>>,
    queued: Arc<AtomicUsize>,
}

/// What the scorer's thread runs.
#[expect(missing_debug_implementations, reason = "a clock has none")]
pub struct ScorerWorker {
    jobs: Receiver<Job>,
    queued: Arc<AtomicUsize>,
    device: Device,
    store: Arc<Store>,
    clock_ns: Box<dyn Fn() -> u64 + Send>,
}

#[derive(Debug)]
struct Job {
    task: Task,
    reply: oneshot::Sender<Result<Scored, ScoreError>>,
}

impl Scorer {
    /// At most `queue_depth_max` tasks wait. The worker ends when the scorer is stopped and the
    /// queue is empty.
    pub fn new(
        queue_depth_max: usize,
        device: Device,
        store: Arc<Store>,
        clock_ns: impl Fn() -> u64 + Send + 'static,
    ) -> (Self, ScorerWorker) {
        let (sender, jobs) = sync_channel(queue_depth_max);
        let queued = Arc::new(AtomicUsize::new(0));
        let scorer = Self {
            queue: Mutex::new(Some(sender)),
            queued: Arc::clone(&queued),
        };
        let worker = ScorerWorker {
            jobs,
            queued,
            device,
            store,
            clock_ns: Box::new(clock_ns),
        };
        (scorer, worker)
    }

    /// Queues a task, or refuses at once. To drop the receiver is to drop the task.
    pub fn submit(
        &self,
        task: Task,
    ) -> Result<oneshot::Receiver<Result<Scored, ScoreError>>, ScorerBusy> {
        let (reply, scored) = oneshot::channel();
        let queue = self.queue.lock();
        let sender = queue.as_ref().ok_or(ScorerBusy)?;
        // Before it can be taken, so that the count never falls below zero.
        self.queued.fetch_add(1, Ordering::Relaxed);
        match sender.try_send(Job { task, reply }) {
            Ok(()) => Ok(scored),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.queued.fetch_sub(1, Ordering::Relaxed);
                Err(ScorerBusy)
            }
        }
    }

    /// Tasks that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Lets queued tasks finish; the worker ends then.
    pub fn stop(&self) {
        drop(self.queue.lock().take());
    }
}

impl ScorerWorker {
    /// Scores until the scorer is stopped.
    pub fn run(mut self) {
        while let Ok(first) = self.jobs.recv() {
            let mut batch = Vec::with_capacity(BATCH_MAX);
            batch.push(first);
            while batch.len() < BATCH_MAX
                && let Ok(next) = self.jobs.try_recv()
            {
                batch.push(next);
            }
            self.queued.fetch_sub(batch.len(), Ordering::Relaxed);
            self.score(batch);
        }
    }

    fn score(&mut self, batch: Vec<Job>) {
        let mut planned: Vec<Planned> =
            batch.into_iter().filter_map(|job| self.plan(job)).collect();
        while let Some(first) = planned.pop() {
            // Nobody waits for it any more: its deadline passed, or the caller has gone.
            if first.reply.is_closed() {
                continue;
            }
            match first.plan {
                Plan::Rows { table, .. } => {
                    let together = |other: &mut Planned| first.shares_rows(table, other);
                    let mut group: Vec<Planned> = planned.extract_if(.., together).collect();
                    group.push(first);
                    self.score_rows(table, group);
                }
                Plan::Heads { .. } | Plan::Calibrated { .. } => self.score_heads(first),
            }
        }
    }

    /// `None` when there is nothing more to do for the job.
    fn plan(&self, job: Job) -> Option<Planned> {
        let Job { task, reply } = job;
        if reply.is_closed() {
            return None;
        }
        match make_plan(&task, &self.store) {
            Ok(plan) => Some(Planned {
                summary: task.summary,
                want: task.want,
                plan,
                reply,
            }),
            Err(error) => {
                // A caller that has gone needs no answer; nor below.
                let _gone = reply.send(Err(error));
                None
            }
        }
    }

    /// One pass for all of the group.
    fn score_rows(&mut self, which: WhichTable, group: Vec<Planned>) {
        let began_ns = (self.clock_ns)();
        let (summary, want) = (Arc::clone(&group[0].summary), group[0].want.clone());
        let queries: Vec<&RowQuery> = group.iter().filter_map(Planned::row_query).collect();
        let answers = self.device.rows(&summary, which, &queries, &want);
        let (batch, score_ns) = (group.len(), self.since(began_ns));
        for (planned, answer) in group.into_iter().zip(answers) {
            planned.answer(answer, batch, score_ns);
        }
    }

    fn score_heads(&mut self, planned: Planned) {
        let began_ns = (self.clock_ns)();
        let order = self
            .device
            .heads(&planned.summary, &planned.plan, &planned.want);
        let answer = Answer {
            order,
            survivors: None,
        };
        planned.answer(answer, 1, self.since(began_ns));
    }

    fn since(&self, began_ns: u64) -> u64 {
        (self.clock_ns)().saturating_sub(began_ns)
    }
}

/// What a device makes of a query.
struct Answer {
    order: Order,
    survivors: Option<usize>,
}

/// A task whose query has been made into what the kernels take.
struct Planned {
    summary: Arc<KeySummary>,
    want: Want,
    plan: Plan,
    reply: oneshot::Sender<Result<Scored, ScoreError>>,
}

impl Planned {
    /// Whether one pass answers both.
    fn shares_rows(&self, table: WhichTable, other: &Planned) -> bool {
        let same_summary = self.summary.generation == other.summary.generation;
        same_summary
            && self.want == other.want
            && matches!(other.plan, Plan::Rows { table: of_other, .. } if of_other == table)
    }

    fn row_query(&self) -> Option<&RowQuery> {
        match &self.plan {
            Plan::Rows { query, .. } => Some(query),
            Plan::Heads { .. } | Plan::Calibrated { .. } => None,
        }
    }

    fn answer(self, answer: Answer, batch: usize, score_ns: u64) {
        let Answer { order, survivors } = answer;
        let scored = Scored {
            order,
            batch,
            survivors,
            score_ns,
        };
        let _gone = self.reply.send(Ok(scored));
    }
}

fn make_plan(task: &Task, store: &Store) -> Result<Plan, ScoreError> {
    let (shape, per_head) = (&task.summary.shape, task.want == Want::PerHead);
    let plan = match &task.query {
        QuerySource::Given { query, position } => {
            let moved = moved_to(query, *position);
            plan(
                task.algorithm,
                moved.as_ref().unwrap_or(query),
                shape,
                per_head,
            )?
        }
        QuerySource::Tokens {
            encoder,
            tokens,
            start_position,
            mean_of_last,
        } => {
            let (found, wanted) = (shape.kv_heads, encoder.config.kv_heads);
            if found != wanted {
                return Err(EncoderError::KvHeads { found, wanted }.into());
            }
            let vectors = encoder.query(tokens, *start_position, *mean_of_last, &shape.frame)?;
            let query = OnlineQuery {
                vectors: Some(vectors),
                calibration: None,
            };
            plan(task.algorithm, &query, shape, per_head)?
        }
    };
    // Last: a request that is refused costs no disk.
    task.summary.load(store)?;
    Ok(plan)
}

/// The query at another position, where one is named.
fn moved_to(query: &OnlineQuery, position: Option<u64>) -> Option<OnlineQuery> {
    let calibration = query.calibration.clone()?;
    Some(OnlineQuery {
        vectors: None,
        calibration: Some(Calibration {
            position: position?,
            ..calibration
        }),
    })
}

/// A plan is made after the tables were loaded.
fn tables(summary: &KeySummary) -> &Tables {
    summary.tables().expect("loaded when it was planned")
}

/// The order of each (layer, KV head), of scores `[heads, blocks]`.
fn order_by_head(per_head: Vec<f32>, summary: &KeySummary) -> Order {
    let blocks = summary.shape.blocks as usize;
    let kv_heads = summary.shape.kv_heads;
    let heads = u32::try_from(per_head.len() / blocks).expect("at most 2^19 heads");
    Order::PerHead {
        layers: heads / kv_heads,
        kv_heads,
        packed: pack_rows(&rank_rows(&Scores::F32(per_head), blocks), blocks),
    }
}

fn pooled_order(scores: &[f32], want: &Want) -> Order {
    Order::Pooled(match want {
        Want::Best { among, k } => complete(best(scores, among.clone(), *k), scores.len()),
        Want::All | Want::PerHead => rank(scores),
    })
}

/// The best blocks, then the others by index.
fn complete(best: Vec<u32>, blocks: usize) -> Vec<u32> {
    let mut is_best = vec![false; blocks];
    for &block in &best {
        is_best[block as usize] = true;
    }
    let mut order = best;
    order.reserve(blocks - order.len());
    let all = 0..u32::try_from(blocks).expect("blocks are counted in u32");
    order.extend(all.filter(|&block| !is_best[block as usize]));
    order
}
