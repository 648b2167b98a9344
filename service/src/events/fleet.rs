//! The workers whose caches are in the view: what each holds of a prompt, and which one gets it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kvatlas_events::{
    feed::{Shared, State},
    pick::{Candidate, Load, SourceState, pick},
    view::{self, Match, OwnHash, Prompt, Shape, SourceId, chain},
};
use parking_lot::{Mutex, RwLock};

use super::holdings::{self, Holding};
use crate::donors::{catalog::Catalog, owners::OwnerKey, scope::Workers};

/// How long a request weighs on the worker that it was given to when nobody says that it is done.
pub const REQUEST_MS_MAX: u64 = 600_000;

/// Milliseconds since 1970 (UTC).
pub type ClockMs = Box<dyn Fn() -> u64 + Send + Sync>;

/// Every worker, by its name and rank.
pub struct Fleet {
    pub(super) catalog: Arc<Catalog>,
    /// By all sources, whichever way their events come.
    pub shared: Shared,
    pub(super) clock_ms: ClockMs,
    workers: RwLock<BTreeMap<Arc<OwnerKey>, Worker>>,
    load: Mutex<Load>,
    /// Beyond the epochs of every source that was forgotten.
    next_epoch: AtomicU64,
    /// So that equal workers take turns, and the instances of a service differ in their order.
    spread: AtomicU64,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Fleet")
            .field("workers", &self.workers.read().len())
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy)]
struct Worker {
    source: SourceId,
    namespace: view::Namespace,
    state: State,
}

/// What a prompt is asked by.
#[derive(Debug)]
pub struct WorkerQuery<'a> {
    pub prompt: Prompt<'a>,
    /// Others are as if they were not there.
    pub visible: &'a Workers,
    /// False where what went into the prompt's blocks besides its tokens is not known: then
    /// nothing is held of it.
    pub is_known: bool,
    /// Tokens that a block is counted as while no worker has told of any, at least 1.
    pub block_size: u32,
}

/// One worker, and what it holds of the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerMatch {
    pub owner: Arc<OwnerKey>,
    pub state: State,
    pub holding: Holding,
    pub load_blocks: u32,
}

/// The worker that the prompt is to go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PickedWorker {
    pub owner: Arc<OwnerKey>,
    pub charged_blocks: u32,
    /// The request weighs on the worker until it is finished.
    pub is_in_flight: bool,
}

impl Fleet {
    /// `seed` is to differ from instance to instance.
    #[must_use]
    pub fn new(catalog: Arc<Catalog>, clock_ms: ClockMs, seed: u64) -> Fleet {
        Fleet {
            shared: Shared {
                view: Arc::clone(&catalog.residents.view),
                room: Arc::default(),
            },
            catalog,
            clock_ms,
            workers: RwLock::default(),
            load: Mutex::new(Load::new(REQUEST_MS_MAX)),
            next_epoch: AtomicU64::new(0),
            spread: AtomicU64::new(seed),
        }
    }

    /// Every worker of the prompt's namespace, the one that holds most first. For a request also
    /// the one that it is to go to; an empty id charges for the computing alone.
    #[must_use]
    pub fn find(
        &self,
        query: &WorkerQuery<'_>,
        request: Option<&str>,
        now_ms: u64,
    ) -> (Vec<WorkerMatch>, Option<PickedWorker>) {
        let mut workers = self.of(query.prompt.namespace);
        workers.retain(|(owner, _)| query.visible.cover(&owner.worker_id));
        let shapes = self.catalog.residents.view.shapes(query.prompt.namespace);
        let held = self.held(query, &shapes);
        let block_size = shapes
            .first()
            .map_or(query.block_size, |shape| shape.block_size);
        let holding = |worker: &Worker| held.get(&worker.source).copied().unwrap_or_default();
        let mut load = self.load.lock();
        load.expire(now_ms);
        let picked = request.and_then(|request| {
            let candidates: Vec<Candidate> = workers
                .iter()
                .map(|(_, worker)| {
                    let state = source_state(worker.state);
                    holding(worker).candidate(worker.source, state, block_size)
                })
                .collect();
            let total = query.prompt.tokens.len() / block_size as usize;
            let total = u32::try_from(total).unwrap_or(u32::MAX);
            let spread = self.spread.fetch_add(1, Ordering::Relaxed);
            let picked = pick(&candidates, total, &load, now_ms, spread)?;
            let (source, charge) = (picked.source, picked.charge_blocks);
            let is_in_flight =
                !request.is_empty() && load.start(request, source, charge, now_ms).is_ok();
            if !is_in_flight {
                // A full book: the worker is not charged, and still right.
                let _uncharged = load.charge(source, charge, now_ms);
            }
            let owner = workers.iter().find(|(_, worker)| worker.source == source)?;
            Some(PickedWorker {
                owner: Arc::clone(&owner.0),
                charged_blocks: charge,
                is_in_flight,
            })
        });
        let mut matches: Vec<WorkerMatch> = workers
            .iter()
            .map(|(owner, worker)| WorkerMatch {
                owner: Arc::clone(owner),
                state: worker.state,
                holding: holding(worker),
                load_blocks: load.blocks(worker.source, now_ms),
            })
            .collect();
        drop(load);
        // They come sorted by name, and stay so where they hold the same.
        matches.sort_by_key(|found| {
            let holding = found.holding;
            std::cmp::Reverse((holding.device_tokens(), holding.lower_tokens()))
        });
        (matches, picked)
    }

    /// Ends requests; returns how many were in flight.
    pub fn finish(&self, requests: &[String]) -> usize {
        let mut load = self.load.lock();
        requests.iter().filter(|id| load.finish(id)).count()
    }

    /// Workers of each state: exact, degraded, stale.
    #[must_use]
    pub fn states(&self) -> [usize; 3] {
        let workers = self.workers.read();
        [State::Exact, State::Degraded, State::Stale].map(|state| {
            workers
                .values()
                .filter(|worker| worker.state == state)
                .count()
        })
    }

    /// Requests that weigh on a worker.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.load.lock().requests()
    }

    /// What the epochs of a source that is followed from now on begin from: whoever brings a worker
    /// again must not find the numbers of before.
    pub(super) fn first_epoch(&self) -> u64 {
        self.next_epoch.load(Ordering::Relaxed)
    }

    /// A source is forgotten, in its epoch of this number.
    pub(super) fn end_epochs(&self, last: u64) {
        self.next_epoch.fetch_max(last + 1, Ordering::Relaxed);
    }

    /// Whether a source brings the worker.
    pub(super) fn has(&self, owner: &OwnerKey) -> bool {
        self.workers.read().contains_key(owner)
    }

    /// False where another source brings the same worker already.
    pub(super) fn add(
        &self,
        owner: &OwnerKey,
        source: SourceId,
        namespace: view::Namespace,
        state: State,
    ) -> bool {
        let mut workers = self.workers.write();
        if workers.contains_key(owner) {
            return false;
        }
        let worker = Worker {
            source,
            namespace,
            state,
        };
        workers.insert(Arc::new(owner.clone()), worker);
        true
    }

    pub(super) fn set_state(&self, owner: &OwnerKey, state: State) {
        if let Some(worker) = self.workers.write().get_mut(owner) {
            worker.state = state;
        }
    }

    pub(super) fn remove(&self, owner: &OwnerKey, source: SourceId) {
        self.workers.write().remove(owner);
        self.load.lock().remove(source);
    }

    fn of(&self, namespace: view::Namespace) -> Vec<(Arc<OwnerKey>, Worker)> {
        self.workers
            .read()
            .iter()
            .filter(|(_, worker)| worker.namespace == namespace)
            .map(|(owner, worker)| (Arc::clone(owner), *worker))
            .collect()
    }

    fn held(&self, query: &WorkerQuery<'_>, shapes: &[Shape]) -> HashMap<SourceId, Holding> {
        let view = &self.catalog.residents.view;
        let shapes = shapes.iter().filter(|_| query.is_known);
        let matches = shapes.map(|&shape| {
            let chain: Vec<OwnHash> = chain(&query.prompt, shape);
            (shape, view.matches(shape, &chain))
        });
        let matches: Vec<(Shape, Vec<Match>)> = matches.collect();
        holdings::held(&matches, |source| view.several_shapes(source))
    }
}

fn source_state(state: State) -> SourceState {
    match state {
        State::Exact => SourceState::Exact,
        State::Degraded => SourceState::Degraded,
        State::Stale => SourceState::Stale,
    }
}
