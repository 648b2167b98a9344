//! Gives the console what it shows: the recorder's window, how the server is, and block maps.

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use kvatlas_events::feed::State as FeedState;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::AppError;
use crate::{
    events::feeds::SourceStatus,
    routing::{
        manifest::{Manifest, ManifestError, ManifestQuery, Provenance, Reason, get_manifest},
        prior::Prior,
    },
    rpc::{Core, records},
    supervise::Supervisor,
    telemetry::{
        console::{
            Asked, BlockMap, BlockQuery, Console, NoBlocks,
            hub::Hub,
            live::{self, Feed},
            state::{self, ROWS_MAX, State, Used},
        },
        words::SourceState,
    },
};

/// How long a block map waits for rankings to be read.
const LOAD_MAX: Duration = Duration::from_secs(5);

/// Empty while the server starts and when it ends.
pub(super) type CoreSeen = Arc<Mutex<Option<Arc<Core>>>>;

/// The thread that makes the console's events. Dropped, it ends, and every console's stream.
pub(super) struct Running {
    hub: Arc<Hub>,
    thread: Option<JoinHandle<()>>,
}

pub(super) fn start(
    supervisor: &Supervisor,
    core: &CoreSeen,
) -> Result<(Console, Running), AppError> {
    let hub = Arc::<Hub>::default();
    let feed = feed(core);
    let there = Arc::clone(&hub);
    let thread = supervisor
        .background("console", move || live::run(&there, &feed))
        .map_err(AppError::Thread)?;
    let seen = Arc::clone(core);
    let console = Console {
        hub: Arc::clone(&hub),
        blocks: Arc::new(move |query| blocks(Arc::clone(&seen), query)),
    };
    let thread = Some(thread);
    Ok((console, Running { hub, thread }))
}

impl Drop for Running {
    fn drop(&mut self) {
        self.hub.stop();
        // The supervisor has told of a panic already.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

fn there(core: &CoreSeen) -> Option<Arc<Core>> {
    core.lock().as_ref().map(Arc::clone)
}

fn feed(core: &CoreSeen) -> Feed {
    let [of_records, of_state, of_clock] = [core, core, core].map(Arc::clone);
    Feed {
        records: Box::new(move |from, most| {
            let core = there(&of_records);
            let recorder = core.as_ref().and_then(|core| core.recorder.as_ref());
            recorder.map_or_else(|| (Vec::new(), from), |it| it.records_after(from, most))
        }),
        state: Box::new(move || there(&of_state).map(|core| state(&core))),
        clock_ms: Box::new(move || there(&of_clock).map_or(0, |core| core.clock.now_ms())),
    }
}

fn state(core: &Core) -> State {
    let used = |now, max| Used { now, max };
    let leases = core.donor_leases.counts();
    let totals = core.donor_leases.totals();
    let mut workers: Vec<_> = core.feeds.statuses().into_iter().map(worker).collect();
    let workers_known = workers.len();
    workers.truncate(ROWS_MAX);
    let priors = core.priors.list("", None, ROWS_MAX);
    State {
        version: env!("CARGO_PKG_VERSION"),
        epoch: core.catalog.epoch,
        uptime_ms: core.clock.uptime_ms(),
        mode: records::mode(core.catalog.rules(None).0).as_str(),
        records: core.recorder.is_some(),
        records_dropped: core.metrics.recorder.dropped.get(),
        calls: used(
            core.admission.in_flight() as u64,
            core.admission.calls_max() as u64,
        ),
        donors: used(core.catalog.donors(), core.limits.capacity.donors_max),
        donor_tokens: used(core.catalog.tokens(), core.limits.capacity.tokens_max),
        namespaces: core.catalog.namespaces() as u64,
        owners_live: core.catalog.owners.live(core.clock.now_ms()) as u64,
        leases: used(leases.held as u64, leases.capacity as u64),
        leases_granted: totals.granted,
        leases_released: totals.released,
        leases_expired: totals.expired,
        leases_stale: totals.stale,
        workers,
        workers_known,
        priors: priors.iter().map(|it| prior(it)).collect(),
        priors_known: core.priors.len(),
    }
}

fn worker(status: SourceStatus) -> state::Worker {
    let met = status.progress.met;
    state::Worker {
        id: status.worker_id.into(),
        ranks: status.ranks,
        state: match status.progress.state {
            FeedState::Exact => SourceState::Exact,
            FeedState::Degraded => SourceState::Degraded,
            FeedState::Stale => SourceState::Stale,
        },
        blocks: status.blocks,
        batches: met.batches,
        gaps: met.gaps,
        replays: met.replays,
    }
}

fn prior(prior: &Prior) -> state::Prior {
    state::Prior {
        prefix_hash: prior.key.prefix_hash.to_string(),
        query_hash: prior.key.query_hash.to_string(),
        algorithm: prior.key.algorithm.to_string(),
        blocks: prior.blocks.total_blocks.unwrap_or(0).into(),
        heads: (prior.layers, prior.kv_heads),
    }
}

fn blocks(seen: CoreSeen, query: BlockQuery) -> Asked {
    Box::pin(async move {
        match once(&seen, &query) {
            Once::Done(answer) => answer,
            Once::Loading(loaded) => match tokio::time::timeout(LOAD_MAX, loaded).await {
                Ok(Ok(())) => match once(&seen, &query) {
                    Once::Done(answer) => answer,
                    // Replaced meanwhile: asking again is up to the caller.
                    Once::Loading(_) => Err(NoBlocks::Busy),
                },
                Ok(Err(_)) | Err(_) => Err(NoBlocks::Busy),
            },
        }
    })
}

enum Once {
    Done(Result<BlockMap, NoBlocks>),
    /// The rankings of the heads are being read; ask again then.
    Loading(oneshot::Receiver<()>),
}

fn once(seen: &CoreSeen, query: &BlockQuery) -> Once {
    let Some(core) = there(seen) else {
        return Once::Done(Err(NoBlocks::Busy));
    };
    let Ok(_permit) = core.admission.enter() else {
        return Once::Done(Err(NoBlocks::Busy));
    };
    let asked = ManifestQuery {
        prefix_hash: &query.prefix,
        k: query.k,
        policy: &query.policy,
        algorithm: &query.algorithm,
        total_blocks: query.total_blocks,
        ..ManifestQuery::default()
    };
    let error = match get_manifest(&core.priors, &asked) {
        Ok(manifest) => return Once::Done(Ok(map(&manifest))),
        Err(error) => error,
    };
    let message = error.to_string();
    match error {
        ManifestError::LoadPerHead(prior) => load(&core, prior),
        ManifestError::NotFound { .. }
        | ManifestError::QueryUnknown
        | ManifestError::SummaryMissing
        | ManifestError::EncoderMissing => Once::Done(Err(NoBlocks::Unknown(message))),
        ManifestError::Length { .. }
        | ManifestError::Policy(_)
        | ManifestError::FallbackPolicy(_)
        | ManifestError::FallbackNeedsPrior { .. }
        | ManifestError::FallbackNeedsTotalBlocks
        | ManifestError::Resolve(_)
        | ManifestError::QueryMissing
        | ManifestError::EncoderBroken => Once::Done(Err(NoBlocks::Wrong(message))),
    }
}

fn load(core: &Core, prior: Arc<Prior>) -> Once {
    let store = Arc::clone(&core.store);
    let (loaded, is_loaded) = oneshot::channel();
    let queued = core.importers.submit(move || {
        if prior.load_per_head(&store).is_ok() {
            // Whoever asked may have gone.
            let _gone = loaded.send(());
        }
    });
    match queued {
        Ok(()) => Once::Loading(is_loaded),
        Err(_full) => Once::Done(Err(NoBlocks::Busy)),
    }
}

fn map(manifest: &Manifest) -> BlockMap {
    let heads = manifest.heads.map_or(0, |(layers, heads)| layers * heads);
    let mut blocks = manifest.blocks.clone();
    let mut heads_of = Vec::new();
    if heads > 0 {
        blocks.sort_unstable();
        let counted = blocks.chunk_by(|one, other| one == other);
        heads_of = counted
            .map(|same| u32::try_from(same.len()).unwrap_or(u32::MAX))
            .collect();
        blocks.dedup();
    }
    let prior = manifest.prior.as_ref();
    BlockMap {
        total_blocks: manifest.total_blocks,
        blocks,
        heads_of,
        heads,
        policy: manifest.policy.tag(),
        provenance: match manifest.provenance {
            Provenance::Prior => "prior",
            Provenance::Online => "online",
            Provenance::PolicyOnly => "policy_only",
        },
        algorithm: prior.map_or_else(String::new, |prior| prior.key.algorithm.to_string()),
        generation: manifest.generation(),
        reason: match manifest.reason {
            None => "",
            Some(Reason::PriorMissing) => "prior_missing",
            Some(Reason::PriorShort) => "prior_short",
            Some(Reason::AllBlocks) => "all_blocks",
            Some(Reason::OnlineUnavailable) => "online_unavailable",
            Some(Reason::QueryUnknown) => "query_unknown",
        },
    }
}
