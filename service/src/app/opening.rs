//! From arguments to everything that handlers work with: reads the data folder, starts the workers.

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use kvatlas_kernels::score::Cpu;
use tokio::sync::{Semaphore, watch};

use super::{
    AppError, donor_events, events, near,
    telemetry::{self, Exporting, Spans},
};
use crate::{
    access::Access,
    config::{ScoreArgs, ServeArgs, ServeMode},
    donors::{
        catalog::Defaults,
        repeats::Repeats,
        vocabulary::Mode,
        writer::{Opened, Writer},
        writes::Capacity,
    },
    leases::{DonorLeases, ManifestLeases},
    routing::{
        encoder::registry::Encoders,
        priors::Priors,
        query::Queries,
        scorer::{Device, Scorer, ScorerWorker},
        summary::Summaries,
    },
    rpc::{Core, Limits, admission::Admission, clock::Clock},
    store::Store,
    supervise::{Supervisor, Workers},
    telemetry::{http::Stage, metrics::Metrics},
};

/// Prior imports at a time, and how many may wait.
const IMPORTERS: usize = 1;
const IMPORT_QUEUE_DEPTH_MAX: usize = 8;
/// Prior files in memory at a time.
const UPLOADS_MAX: usize = 8;
/// Key summaries being uploaded at a time, each with a thread and a file in the data folder.
const SUMMARY_UPLOADS_MAX: usize = 2;
/// Look-ups of long prompts at a time, and how many may wait.
const FINDERS: usize = 1;
const FINDER_QUEUE_DEPTH_MAX: usize = 64;
/// What is there before the data folder is read.
pub(super) struct Beginning {
    pub(super) clock: Clock,
    pub(super) access: Access,
}

pub(super) struct Parts {
    pub(super) core: Arc<Core>,
    /// Each ends when the last way to it is gone; those that make vectors when they are told.
    pub(super) threads: Vec<JoinHandle<()>>,
    /// Sends spans, where calls are traced.
    pub(super) exporting: Option<Exporting>,
}

// On a thread of its own: /healthz answers "starting" meanwhile.
pub(super) async fn open_aside(
    args: &ServeArgs,
    supervisor: &Supervisor,
    stage: &watch::Receiver<Stage>,
    beginning: Beginning,
) -> Result<Parts, AppError> {
    let (reply, opened) = tokio::sync::oneshot::channel();
    let (args_there, stage, supervisor_there) = (args.clone(), stage.clone(), supervisor.clone());
    let open = move || {
        // The server that asked may be stopping already.
        let _gone = reply.send(open(&args_there, &supervisor_there, &stage, beginning));
    };
    supervisor.thread("open", open).map_err(AppError::Thread)?;
    let opened = opened.await.map_err(|_| AppError::WorkerDied("open"))?;
    let (mut parts, spans) = opened?;
    let metrics = &parts.core.metrics;
    parts.exporting = telemetry::export(&args.telemetry, supervisor, metrics, spans)?;
    Ok(parts)
}

fn open(
    args: &ServeArgs,
    supervisor: &Supervisor,
    stage: &watch::Receiver<Stage>,
    Beginning { clock, access }: Beginning,
) -> Result<(Parts, Option<Spans>), AppError> {
    let capacity = capacity(args);
    let Data {
        store,
        priors,
        summaries,
        encoders,
        donors,
        damaged_records,
    } = read_data(args, capacity, &clock)?;
    let Opened {
        writer,
        writes,
        catalog,
        texts,
        ..
    } = donors;
    let (near, mut threads) = near::start(args, supervisor, clock, &catalog, texts)?;
    let writer = supervisor.thread("donor-writer", move || writer.run());
    threads.push(writer.map_err(AppError::Thread)?);
    let metrics = Metrics::new(store.epoch());
    let (mode, _) = catalog.rules(None);
    let telemetry = telemetry::start(&args.telemetry, supervisor, (&store, clock), &metrics, mode)?;
    let donor_events = donor_events::intake(supervisor, &near, &metrics)?;
    let (scorer, scoring) = scorer(&args.score, &store, clock)?;
    let scoring = supervisor.thread("scorer", move || scoring.run());
    threads.push(scoring.map_err(AppError::Thread)?);
    let (feeds, following) = events::start(&args.events, supervisor, clock, &catalog)?;
    threads.push(following);
    let workers = |name, threads, depth| {
        Workers::start(supervisor, name, threads, depth).map_err(AppError::Thread)
    };
    let core = Core {
        store: Arc::clone(&store),
        priors,
        summaries,
        encoders: Arc::new(encoders),
        scorer,
        queries: Queries::new(args.queries_max, args.query_bytes_max),
        catalog,
        writes,
        donor_leases: DonorLeases::new(store.epoch(), args.leases_max),
        manifest_leases: manifest_leases(&store)?,
        repeats: Repeats::new(args.leases_max),
        importers: workers("prior-import", IMPORTERS, IMPORT_QUEUE_DEPTH_MAX)?,
        uploads: Arc::new(Semaphore::new(UPLOADS_MAX)),
        summary_importers: workers("summary-import", SUMMARY_UPLOADS_MAX, SUMMARY_UPLOADS_MAX)?,
        summary_uploads: Arc::new(Semaphore::new(SUMMARY_UPLOADS_MAX)),
        finders: workers("long-lookup", FINDERS, FINDER_QUEUE_DEPTH_MAX)?,
        near,
        feeds,
        donor_events,
        supervisor: supervisor.clone(),
        admission: Admission::new(args.calls_in_flight_max, metrics.calls_refused.clone()),
        metrics,
        recorder: telemetry.recorder,
        traces: telemetry.traces,
        access,
        clock,
        stage: stage.clone(),
        limits: limits(args, capacity),
        damaged_records,
    };
    let parts = Parts {
        core: Arc::new(core),
        threads,
        exporting: None,
    };
    Ok((parts, telemetry.spans))
}

fn manifest_leases(store: &Store) -> Result<ManifestLeases, AppError> {
    let mut key = [0_u8; 16];
    getrandom::fill(&mut key).map_err(|_| AppError::NoRandomness)?;
    Ok(ManifestLeases::new(store.epoch(), key))
}

fn capacity(args: &ServeArgs) -> Capacity {
    Capacity {
        donors_max: args.donors_max,
        tokens_max: args.donor_tokens_max,
    }
}

fn limits(args: &ServeArgs, capacity: Capacity) -> Limits {
    Limits {
        message_bytes_max: args.message_bytes_max,
        prior_bytes_max: args.prior_bytes_max,
        summary_bytes_max: args.summary_bytes_max,
        upload_max: Duration::from_millis(args.upload_ms_max),
        call_max: Duration::from_millis(args.call_ms_max),
        lease_ttl_ms: args.lease_ttl_ms,
        query_ttl_ms: args.query_ttl_ms,
        capacity,
    }
}

fn scorer(
    args: &ScoreArgs,
    store: &Arc<Store>,
    clock: Clock,
) -> Result<(Scorer, ScorerWorker), AppError> {
    let cpu = Cpu::start(args.cpu_threads()).map_err(AppError::Thread)?;
    let device = Device::open(args.device, cpu).map_err(AppError::Device)?;
    let (store, clock_ns) = (Arc::clone(store), move || clock.now_ns());
    Ok(Scorer::new(
        args.queue_depth_max as usize,
        device,
        store,
        clock_ns,
    ))
}

struct Data {
    store: Arc<Store>,
    priors: Arc<Priors>,
    summaries: Arc<Summaries>,
    encoders: Encoders,
    donors: Opened,
    /// Records that cannot be read; they are left out.
    damaged_records: u64,
}

fn read_data(args: &ServeArgs, capacity: Capacity, clock: &Clock) -> Result<Data, AppError> {
    let (store, report) = Store::open(&args.data_dir)?;
    let store = Arc::new(store);
    let (priors, priors_loaded) = Priors::open(Arc::clone(&store))?;
    let priors = Arc::new(priors);
    let (summaries, summaries_loaded) = Summaries::open(Arc::clone(&store), Arc::clone(&priors))?;
    // With a damaged record it is not known whose files are whose.
    if priors_loaded.damaged + summaries_loaded.damaged == 0 {
        let mut blobs = priors_loaded.blobs;
        blobs.extend(summaries_loaded.blobs);
        store.remove_unreferenced_blobs(&blobs)?;
    }
    let (encoders, encoders_loaded) =
        Encoders::open(Arc::clone(&store), args.models_dir.as_deref())?;
    let defaults = Defaults {
        mode: args.mode.map_or(Mode::DiscoveryOnly, mode),
        mode_is_given: args.mode.is_some(),
        gates: args.gates.into(),
    };
    let donors = Writer::open(Arc::clone(&store), defaults, capacity)?;
    let damaged_records = report.damaged
        + priors_loaded.damaged
        + summaries_loaded.damaged
        + encoders_loaded.damaged
        + donors.loaded.damaged;
    let writes_lost = report.writes_lost;
    if writes_lost > 0 || damaged_records > 0 {
        tracing::error!(
            writes_lost,
            damaged_records,
            "the data folder has been damaged"
        );
    }
    tracing::info!(
        priors = priors.len(),
        encoders = encoders_loaded.working,
        encoders_broken = encoders_loaded.broken,
        key_summaries = summaries.len(),
        donors = donors.loaded.donors,
        namespaces = donors.loaded.namespaces,
        damaged_records,
        load_ms = clock.uptime_ms(),
        "read the data folder"
    );
    Ok(Data {
        store,
        priors,
        summaries: Arc::new(summaries),
        encoders,
        donors,
        damaged_records,
    })
}

fn mode(mode: ServeMode) -> Mode {
    match mode {
        ServeMode::DiscoveryOnly => Mode::DiscoveryOnly,
        ServeMode::Materialize => Mode::Materialize,
        ServeMode::Disabled => Mode::Disabled,
    }
}
