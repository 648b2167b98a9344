//! The embedder: one thread that owns the model, behind a bounded queue. Look-ups come before
//! donors, whose vectors are made in the background.

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, fmt, sync::Arc};

use parking_lot::{Condvar, Mutex};
use thiserror::Error;
use tokio::sync::oneshot;

use super::{Embed, ModelFailure, check};

/// Segments of look-ups that the model is given at a time. More at a time take as long each, and
/// what is late is dropped between them.
const QUERY_BATCH_MAX: usize = 4;
/// Segments of donors at a time: a look-up that arrives meanwhile waits for them.
const DONOR_BATCH_MAX: usize = 1;

/// The way to the embedder's thread.
pub struct Embedder {
    shared: Arc<Shared>,
    dimensions: usize,
}

/// What the embedder's thread runs.
#[expect(missing_debug_implementations, reason = "a model has none")]
pub struct EmbedderWorker {
    shared: Arc<Shared>,
    model: Box<dyn Embed>,
}

/// Why there are no vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EmbedRefusal {
    #[error("the embedder's queue is full")]
    Busy,
    #[error("the deadline passed before the text was embedded")]
    Late,
    #[error("the embedder has stopped")]
    Stopped,
    #[error("the embedding model failed: {0}")]
    Model(#[from] ModelFailure),
}

/// Vectors of unit length, one for each text.
pub type Embedded = Result<Vec<Vec<f32>>, EmbedRefusal>;

impl Embedder {
    /// At most `queue_depth_max` look-ups wait, and as many donors. The worker is to be run on a
    /// thread of its own; it ends when the embedder is stopped or dropped.
    pub fn new(
        model: impl Embed + 'static,
        queue_depth_max: usize,
        clock_ns: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> (Embedder, EmbedderWorker) {
        let shared = Arc::new(Shared {
            waiting: Mutex::new(Waiting::default()),
            arrived: Condvar::new(),
            queue_depth_max,
            clock_ns: Box::new(clock_ns),
        });
        let embedder = Embedder {
            shared: Arc::clone(&shared),
            dimensions: model.dimensions(),
        };
        let model = Box::new(model);
        (embedder, EmbedderWorker { shared, model })
    }

    /// Elements of each vector.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Look-ups and donors that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        let waiting = self.shared.waiting.lock();
        waiting.queries.len() + waiting.donors.len()
    }

    /// Embeds a look-up's segments, in front of all donors. Not begun, or not gone on with, once
    /// the deadline has passed or nobody waits any more; the caller stops waiting by itself.
    pub async fn embed_query(&self, segments: Vec<String>, deadline_ns: u64) -> Embedded {
        let reply = self.shared.submit(Line::Queries, segments, deadline_ns)?;
        reply.await.map_err(|_| EmbedRefusal::Stopped)?
    }

    /// Embeds a donor's segments while no look-up waits. Blocks the thread until then.
    pub fn embed_donor(&self, segments: Vec<String>) -> Embedded {
        let reply = self.shared.submit(Line::Donors, segments, u64::MAX)?;
        reply.blocking_recv().map_err(|_| EmbedRefusal::Stopped)?
    }

    /// Ends the worker after the batch that it is at. What waits is refused.
    pub fn stop(&self) {
        let mut waiting = self.shared.waiting.lock();
        waiting.is_stopped = true;
        let refused = (
            std::mem::take(&mut waiting.queries),
            std::mem::take(&mut waiting.donors),
        );
        drop(waiting);
        self.shared.arrived.notify_all();
        // Whoever waits for these sees that nobody will answer.
        drop(refused);
    }
}

impl Drop for Embedder {
    fn drop(&mut self) {
        self.stop();
    }
}

// Texts are never shown.
impl fmt::Debug for Embedder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Embedder")
            .field("dimensions", &self.dimensions)
            .field("queued", &self.queued())
            .finish_non_exhaustive()
    }
}

impl EmbedderWorker {
    /// Works until the embedder is stopped.
    pub fn run(mut self) {
        while let Some((line, batch)) = self.shared.next_batch() {
            if let Some(unfinished) = self.work(batch) {
                self.shared.put_back(line, unfinished);
            }
        }
    }

    // The task that is not done yet: at most the last, since a batch has no room behind it.
    fn work(&mut self, mut batch: Vec<Share>) -> Option<Task> {
        let texts: Vec<&str> = batch.iter().flat_map(Share::texts).collect();
        let mut unfinished = None;
        match embed(&mut *self.model, &texts) {
            Ok(vectors) => {
                let mut vectors = vectors.into_iter();
                for share in batch {
                    let own = vectors.by_ref().take(share.count).collect();
                    unfinished = share.task.served(own);
                }
            }
            Err(failure) if batch.len() <= 1 => {
                if let Some(share) = batch.pop() {
                    share.task.answer(Err(failure.into()));
                }
            }
            // One text must not cost the others their answer.
            Err(_) => {
                for share in batch {
                    unfinished = self.work(vec![share]);
                }
            }
        }
        unfinished
    }
}

fn embed(model: &mut dyn Embed, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelFailure> {
    let vectors = model.embed(texts)?;
    check(&vectors, texts.len(), model.dimensions())?;
    Ok(vectors)
}

struct Shared {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    queue_depth_max: usize,
    clock_ns: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// The two queues; the first goes first.
#[derive(Default)]
struct Waiting {
    queries: VecDeque<Task>,
    donors: VecDeque<Task>,
    is_stopped: bool,
}

#[derive(Debug, Clone, Copy)]
enum Line {
    Queries,
    Donors,
}

struct Task {
    texts: Vec<String>,
    /// Of the first texts.
    vectors: Vec<Vec<f32>>,
    deadline_ns: u64,
    reply: oneshot::Sender<Embedded>,
}

/// The next texts of a task that are in a batch.
struct Share {
    task: Task,
    count: usize,
}

impl Shared {
    fn submit(
        &self,
        line: Line,
        texts: Vec<String>,
        deadline_ns: u64,
    ) -> Result<oneshot::Receiver<Embedded>, EmbedRefusal> {
        let now_ns = (self.clock_ns)();
        if now_ns >= deadline_ns {
            return Err(EmbedRefusal::Late);
        }
        let (reply, receiver) = oneshot::channel();
        if texts.is_empty() {
            let _kept = reply.send(Ok(Vec::new()));
            return Ok(receiver);
        }
        let task = Task {
            vectors: Vec::with_capacity(texts.len()),
            texts,
            deadline_ns,
            reply,
        };
        let mut dropped = Vec::new();
        let mut waiting = self.waiting.lock();
        if waiting.is_stopped {
            return Err(EmbedRefusal::Stopped);
        }
        let queue = waiting.line(line);
        if queue.len() >= self.queue_depth_max {
            // Places that nobody wants any more are free.
            dropped = drain_unwanted(queue, now_ns);
        }
        let is_full = queue.len() >= self.queue_depth_max;
        if !is_full {
            queue.push_back(task);
        }
        drop(waiting);
        dropped.into_iter().for_each(Task::answer_late);
        if is_full {
            return Err(EmbedRefusal::Busy);
        }
        self.arrived.notify_one();
        Ok(receiver)
    }

    // Sleeps until there is one; none when stopped.
    fn next_batch(&self) -> Option<(Line, Vec<Share>)> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.is_stopped {
                return None;
            }
            let now_ns = (self.clock_ns)();
            for (line, most) in [
                (Line::Queries, QUERY_BATCH_MAX),
                (Line::Donors, DONOR_BATCH_MAX),
            ] {
                let batch = take_batch(waiting.line(line), most, now_ns);
                if !batch.is_empty() {
                    return Some((line, batch));
                }
            }
            self.arrived.wait(&mut waiting);
        }
    }

    // In front of those that came later. When stopped, whoever waits for it sees that.
    fn put_back(&self, line: Line, task: Task) {
        let mut waiting = self.waiting.lock();
        if !waiting.is_stopped {
            waiting.line(line).push_front(task);
        }
    }
}

impl Waiting {
    fn line(&mut self, line: Line) -> &mut VecDeque<Task> {
        match line {
            Line::Queries => &mut self.queries,
            Line::Donors => &mut self.donors,
        }
    }
}

// The first `most` texts of tasks that are still wanted.
fn take_batch(queue: &mut VecDeque<Task>, most: usize, now_ns: u64) -> Vec<Share> {
    let mut batch = Vec::new();
    let mut room = most;
    while room > 0 {
        let Some(task) = queue.pop_front() else {
            break;
        };
        if !task.is_wanted(now_ns) {
            task.answer_late();
            continue;
        }
        let count = room.min(task.texts.len() - task.vectors.len());
        room -= count;
        batch.push(Share { task, count });
    }
    batch
}

fn drain_unwanted(queue: &mut VecDeque<Task>, now_ns: u64) -> Vec<Task> {
    let all = std::mem::take(queue);
    let (wanted, unwanted) = all.into_iter().partition(|task| task.is_wanted(now_ns));
    *queue = wanted;
    VecDeque::into(unwanted)
}

impl Task {
    fn is_wanted(&self, now_ns: u64) -> bool {
        now_ns < self.deadline_ns && !self.reply.is_closed()
    }

    // Itself again, while it is not done.
    fn served(mut self, vectors: Vec<Vec<f32>>) -> Option<Task> {
        self.vectors.extend(vectors);
        if self.vectors.len() < self.texts.len() {
            return Some(self);
        }
        let vectors = std::mem::take(&mut self.vectors);
        self.answer(Ok(vectors));
        None
    }

    fn answer_late(self) {
        self.answer(Err(EmbedRefusal::Late));
    }

    fn answer(self, answer: Embedded) {
        // The caller may have gone.
        let _gone = self.reply.send(answer);
    }
}

impl Share {
    fn texts(&self) -> impl Iterator<Item = &str> {
        let begun = self.task.vectors.len();
        let texts = &self.task.texts[begun..begun + self.count];
        texts.iter().map(String::as_str)
    }
}
