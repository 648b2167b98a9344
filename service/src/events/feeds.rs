//! The engines that are followed over ZMQ: which they are, and the thread that does it.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
    thread::JoinHandle,
};

use kvatlas_events::{
    feed::{Feed, Progress, Source},
    view::{SourceId, View},
};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};

use super::{
    fleet::Fleet,
    hearing::{Hearing, Ranks},
    pushed::Pushed,
    sources::{NamedSource, SOURCES_MAX},
};
use crate::{donors::owners::OwnerKey, supervise::Supervisor};

/// Feeds that may wait to be begun.
const STARTS_MAX: usize = SOURCES_MAX;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is followed, and the way to the thread.
#[derive(Debug)]
pub struct Feeds {
    pub fleet: Arc<Fleet>,
    pub pushed: Arc<Pushed>,
    /// Times that a file of sources was read again and not taken.
    pub files_refused: AtomicU64,
    followed: Mutex<BTreeMap<Source, Followed>>,
    work: mpsc::Sender<Work>,
}

/// One source that is followed.
#[derive(Debug)]
struct Followed {
    named: NamedSource,
    is_from_file: bool,
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
    progress: watch::Receiver<Progress>,
    first_epoch: u64,
    ranks: Ranks,
}

impl Followed {
    fn progress(&self) -> Progress {
        let progress = *self.progress.borrow();
        Progress {
            epoch: self.first_epoch + progress.epoch,
            ..progress
        }
    }
}

/// How one source is doing.
#[derive(Debug, Clone)]
pub struct SourceStatus {
    /// None where its events come over gRPC.
    pub source: Option<Source>,
    pub worker_id: Box<str>,
    pub ranks: Vec<u32>,
    pub blocks: u64,
    pub progress: Progress,
    /// The number of its first epoch.
    pub first_epoch: u64,
}

/// Why a source is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    #[error("source: rank {rank} of that worker is followed at another address: remove it first")]
    Taken { rank: u32 },
    #[error("source: that worker's events come over Publish: remove it first")]
    Pushed,
    #[error("source: {SOURCES_MAX} are followed, no more can be")]
    TooMany,
    #[error("the server is stopping")]
    Stopping,
}

impl Feeds {
    /// Starts the thread.
    pub fn start(
        supervisor: &Supervisor,
        fleet: Arc<Fleet>,
    ) -> io::Result<(Feeds, JoinHandle<()>)> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (work, to_do) = mpsc::channel(STARTS_MAX);
        let thread = supervisor.thread("kv-events", move || runtime.block_on(run(to_do)))?;
        let feeds = Feeds {
            pushed: Arc::new(Pushed::new(Arc::clone(&fleet))),
            fleet,
            files_refused: AtomicU64::new(0),
            followed: Mutex::default(),
            work,
        };
        Ok((feeds, thread))
    }

    /// Follows a source from now on; false where it is followed already.
    pub fn follow(&self, named: NamedSource, is_from_file: bool) -> Result<bool, FollowError> {
        let mut followed = self.followed.lock();
        let source = &named.source;
        if followed.contains_key(source) {
            return Ok(false);
        }
        let is_same_worker =
            |other: &Source| other.worker == source.worker && other.rank == source.rank;
        if followed.keys().any(is_same_worker) {
            return Err(FollowError::Taken { rank: source.rank });
        }
        if self.pushed.has(&source.worker) {
            return Err(FollowError::Pushed);
        }
        // The batches of another address may name a rank that nobody said.
        let key = OwnerKey {
            worker_id: source.worker.as_str().into(),
            data_parallel_rank: source.rank,
        };
        if self.fleet.has(&key) {
            return Err(FollowError::Taken { rank: source.rank });
        }
        if followed.len() >= SOURCES_MAX {
            return Err(FollowError::TooMany);
        }
        let residents = &self.fleet.catalog.residents;
        let namespace = residents.engine_namespace(named.namespace.as_ref());
        let mut hearing = Hearing::new(Arc::clone(&self.fleet), &source.worker, namespace);
        let ranks = hearing.ranks();
        let block_size = named.namespace.as_ref().map(|named| named.block_size);
        let shared = self.fleet.shared.clone();
        let feed = Feed::new(source.clone(), namespace, block_size, shared, move |news| {
            hearing.hear(news)
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let entry = Followed {
            named: named.clone(),
            is_from_file,
            stop,
            ended,
            progress: feed.progress(),
            first_epoch: self.fleet.first_epoch(),
            ranks,
        };
        let work = async move {
            feed.run(async {
                // Dropped or sent: both say stop.
                let _stopped = stopped.await;
            })
            .await;
            let _nobody_waits = end.send(());
        };
        self.run(work).map_err(|_| FollowError::Stopping)?;
        followed.insert(named.source, entry);
        Ok(true)
    }

    /// Runs work on the thread of the feeds.
    pub fn run(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<(), Stopping> {
        self.work.try_send(Box::pin(work)).map_err(|_| Stopping)
    }

    /// Stops following a worker's sources and takes them out of the view; returns which ranks it
    /// had, and how many sources that were.
    pub async fn unfollow(&self, worker_id: &str) -> (Vec<u32>, usize) {
        let gone = self.take(|source, _| source.worker == worker_id);
        let pushed = self.pushed.forget(worker_id);
        let sources = gone.len() + usize::from(!pushed.is_empty());
        let mut ranks = self.end_all(gone).await;
        ranks.extend(pushed);
        (ranks, sources)
    }

    /// Whether a worker is followed over ZMQ.
    #[must_use]
    pub fn follows(&self, worker_id: &str) -> bool {
        let followed = self.followed.lock();
        followed.keys().any(|source| source.worker == worker_id)
    }

    /// Makes what is followed what the file says, as far as the file is concerned. Returns the
    /// workers and ranks that went.
    pub async fn follow_file(&self, wanted: Vec<NamedSource>) -> Vec<(String, Vec<u32>)> {
        let is_wanted = |named: &NamedSource| wanted.contains(named);
        let gone = self.take(|_, entry| entry.is_from_file && !is_wanted(&entry.named));
        let mut ended = Vec::new();
        for entry in gone {
            let worker = entry.named.source.worker.clone();
            ended.push((worker, self.end_all(vec![entry]).await));
        }
        for named in wanted {
            let worker = named.source.worker.clone();
            if let Err(error) = self.follow(named, true) {
                tracing::error!(worker, %error, "a source of the file is not followed");
            }
        }
        ended
    }

    /// How every source is doing, in their order.
    #[must_use]
    pub fn statuses(&self) -> Vec<SourceStatus> {
        let view = &self.fleet.catalog.residents.view;
        let status = |(source, entry): (&Source, &Followed)| {
            let ranks = entry.ranks.lock().clone();
            SourceStatus {
                source: Some(source.clone()),
                worker_id: source.worker.as_str().into(),
                blocks: blocks(view, &ranks),
                ranks: ranks.into_iter().map(|(rank, _)| rank).collect(),
                progress: entry.progress(),
                first_epoch: entry.first_epoch,
            }
        };
        let mut statuses: Vec<_> = self.followed.lock().iter().map(status).collect();
        let pushed = self.pushed.statuses().into_iter();
        statuses.extend(pushed.map(|status| SourceStatus {
            source: None,
            worker_id: status.owner.worker_id,
            blocks: blocks(view, &status.ranks),
            ranks: status.ranks.into_iter().map(|(rank, _)| rank).collect(),
            progress: status.progress,
            first_epoch: status.first_epoch,
        }));
        statuses
    }

    // The ranks that were heard of, and those that were to be.
    async fn end_all(&self, gone: Vec<Followed>) -> Vec<u32> {
        let mut ranks = BTreeSet::new();
        for entry in gone {
            ranks.insert(entry.named.source.rank);
            ranks.extend(entry.ranks.lock().iter().map(|(rank, _)| *rank));
            drop(entry.stop);
            // An error says that it has ended all the same.
            let _ended = entry.ended.await;
            let last = entry.progress.borrow().epoch;
            self.fleet.end_epochs(entry.first_epoch + last);
        }
        ranks.into_iter().collect()
    }

    fn take(&self, is_gone: impl Fn(&Source, &Followed) -> bool) -> Vec<Followed> {
        let mut followed = self.followed.lock();
        followed
            .extract_if(.., |source, entry| is_gone(source, entry))
            .map(|(_, entry)| entry)
            .collect()
    }
}

/// The thread has ended, or is told more at once than it can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopping;

fn blocks(view: &View, ranks: &[(u32, SourceId)]) -> u64 {
    let blocks = ranks.iter().map(|(_, source)| view.blocks(*source) as u64);
    blocks.sum()
}

// Until nobody can send any more. What is followed then is dropped where it stands: the process
// ends, and the donors of the engines stay.
async fn run(mut to_do: mpsc::Receiver<Work>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            work = to_do.recv() => match work {
                Some(work) => {
                    running.spawn(work);
                }
                None => return,
            },
            Some(ended) = running.join_next() => {
                if let Err(error) = ended
                    && error.is_panic()
                {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
        }
    }
}
