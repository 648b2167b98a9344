//! Puts the parts together: listens, serves, and drains at the end.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use kvatlas_kernels::cuda::CudaError;
use parking_lot::Mutex;
use tokio::{signal::unix::SignalKind, sync::watch};
use tonic_health::{ServingStatus, server::HealthReporter};

use self::{
    access::Doors,
    console::CoreSeen,
    opening::{Beginning, Parts, open_aside},
};
use crate::{
    access::{files::TokenFileError, http::guard, tls::TlsError},
    config::{AccessArgsError, Exposure, ListenAddress, ServeArgs, TextArgsError},
    donor_events::nats::BadSource,
    donors::text,
    events::{feeds::FollowError, sources::SourcesError},
    listen::{Encryption, Gates, Listener, serve_http},
    routing::encoder::registry,
    rpc::{Core, clock::Clock, routes, traced::Traced},
    store::StoreError,
    supervise::Supervisor,
    telemetry::{
        console::Console,
        http::{Pages, Stage, draining, router},
        logs,
    },
};

mod access;
mod console;
mod donor_events;
mod events;
mod near;
mod opening;
mod telemetry;

/// What health is told of, the server as a whole first.
const HEALTH_NAMES: [&str; 6] = [
    "",
    "kvatlas.v1.Routing",
    "kvatlas.v1.Donors",
    "kvatlas.v1.Leases",
    "kvatlas.v1.Events",
    "kvatlas.v1.Admin",
];
/// How often leases and queries that ran out are swept and the store is looked at.
const TICK: Duration = Duration::from_secs(1);

/// Why the server could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Encoders(#[from] registry::OpenError),
    #[error(transparent)]
    Text(#[from] TextArgsError),
    #[error(transparent)]
    Access(#[from] AccessArgsError),
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Model(#[from] text::OpenError),
    #[error("{flag}: {error}")]
    Sources {
        flag: &'static str,
        error: SourcesError,
    },
    #[error("--kv-events: worker {worker}: {error}")]
    Follow { worker: String, error: FollowError },
    #[error(transparent)]
    DonorEvents(#[from] BadSource),
    #[error("--device: {0}")]
    Device(CudaError),
    #[error("cannot listen on {address}: {error}")]
    Listen { address: String, error: io::Error },
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("the system gives no random bytes")]
    NoRandomness,
    #[error("the descriptor set cannot be reflected: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error("the transport failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    #[error("cannot write to standard output: {0}")]
    Announce(io::Error),
    #[error("--otlp-endpoint: {0}")]
    Otlp(String),
    #[error(transparent)]
    Log(#[from] logs::BadFilter),
    #[error("the worker {0} died: see the log above; the server has stopped")]
    WorkerDied(&'static str),
}

/// Where a server listens, with the ports that were picked for it.
#[derive(Debug, Clone)]
pub struct Bound {
    pub grpc: Vec<ListenAddress>,
    pub http: SocketAddr,
}

/// Serves until SIGTERM or SIGINT. Once ready, prints one line of JSON on standard output:
/// `{"grpc":["127.0.0.1:50051"],"http":"127.0.0.1:9464"}`.
pub fn serve(args: &ServeArgs) -> Result<(), AppError> {
    logs::init(&args.log, args.log_format)?;
    run(args, announce, || {
        let signal = |kind| tokio::signal::unix::signal(kind);
        // It asks for files to be read again. Where there are none, and until all were read for the
        // first time, it would end the process.
        let _heard_from_here_on = signal(SignalKind::hangup());
        async move {
            match (
                signal(SignalKind::terminate()),
                signal(SignalKind::interrupt()),
            ) {
                (Ok(mut terminate), Ok(mut interrupt)) => {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                    }
                }
                // Without handlers the signals end the process at once.
                _ => std::future::pending().await,
            }
        }
    })
}

/// A server on threads of its own, for quickstart and tests.
#[derive(Debug)]
pub struct RunningServer {
    bound: Bound,
    stop: Mutex<Option<tokio::sync::oneshot::Sender<()>>>,
    thread: Mutex<Option<std::thread::JoinHandle<Result<(), AppError>>>>,
}

/// Starts a server and returns once it is ready.
pub fn start(args: ServeArgs) -> Result<RunningServer, AppError> {
    let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let on_ready = move |bound: &Bound| {
        // The receiver waits until this or the thread's end.
        let _gone = ready.send(bound.clone());
        Ok(())
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "the server's own thread; its end is joined"
    )]
    let thread = std::thread::Builder::new()
        .name("kvatlas-server".to_owned())
        .spawn(move || {
            run(&args, on_ready, || async {
                // A dropped handle stops the server as well.
                let _dropped = stopped.await;
            })
        })
        .map_err(AppError::Thread)?;
    match is_ready.recv() {
        Ok(bound) => Ok(RunningServer {
            bound,
            stop: Mutex::new(Some(stop)),
            thread: Mutex::new(Some(thread)),
        }),
        Err(_) => match thread.join() {
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) | Err(_) => Err(AppError::WorkerDied("kvatlas-server")),
        },
    }
}

impl RunningServer {
    #[must_use]
    pub fn grpc_addresses(&self) -> &[ListenAddress] {
        &self.bound.grpc
    }

    #[must_use]
    pub fn http_address(&self) -> SocketAddr {
        self.bound.http
    }

    /// Drains and ends the server; a second call changes nothing.
    pub fn stop(&self) -> Result<(), AppError> {
        drop(self.stop.lock().take());
        let thread = self.thread.lock().take();
        match thread.map(std::thread::JoinHandle::join) {
            None => Ok(()),
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(AppError::WorkerDied("kvatlas-server")),
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "the server did not stop cleanly");
        }
    }
}

fn announce(bound: &Bound) -> Result<(), AppError> {
    let grpc: Vec<_> = bound.grpc.iter().map(ToString::to_string).collect();
    let line = serde_json::json!({ "grpc": grpc, "http": bound.http.to_string() });
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(AppError::Announce)
}

fn run<Stop: Future<Output = ()>>(
    args: &ServeArgs,
    on_ready: impl FnOnce(&Bound) -> Result<(), AppError>,
    stop: impl FnOnce() -> Stop,
) -> Result<(), AppError> {
    let workers = args.runtime_workers();
    let mut builder = if workers == 1 {
        // Its queue is first in, first out: a connection that an answer wakes comes after the other
        // answers that are ready, and one write carries them all. The other scheduler would poll
        // it next, and write each answer alone.
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    let runtime = builder
        .worker_threads(workers)
        .thread_name("kvatlas-call")
        .enable_all()
        .build()
        .map_err(AppError::Thread)?;
    runtime.block_on(live(args, on_ready, stop))
}

// From the first listener to the last answer.
async fn live<Stop: Future<Output = ()>>(
    args: &ServeArgs,
    on_ready: impl FnOnce(&Bound) -> Result<(), AppError>,
    stop: impl FnOnce() -> Stop,
) -> Result<(), AppError> {
    let stop = stop();
    let sources = args.donor_event_sources()?;
    let clock = Clock::start();
    let (doors, files) = access::open(args, clock)?;
    let supervisor = Supervisor::new();
    let (stage, stage_seen) = watch::channel(Stage::Starting);
    let core_seen = CoreSeen::default();
    let (http, http_bound) = listen_http(args.http_listen).await?;
    let (console, watching) = console::start(&supervisor, &core_seen)?;
    let pages = pages(&core_seen, &stage_seen, console, &doors);
    let encryption = |tls: &Option<_>| tls.clone().map(|tls| (tls, doors.handshakes.clone()));
    let pages = guard(router(pages), doors.access.clone());
    // Until the very end: probes are told of the drain, and the last counts can be read.
    supervisor.task("http", serve_http(http, pages, encryption(&doors.http_tls)));

    let listeners = bind(args, encryption(&doors.tls).as_ref())?;
    let bound = bound(&listeners, http_bound)?;
    // Reading what is stored can take seconds; nothing is served before it is done.
    let beginning = Beginning {
        clock,
        access: doors.access.clone(),
    };
    let Parts {
        core,
        threads,
        exporting,
    } = open_aside(args, &supervisor, &stage_seen, beginning).await?;
    *core_seen.lock() = Some(Arc::clone(&core));

    let (reporter, health) = tonic_health::server::health_reporter();
    report(&reporter, ServingStatus::Serving).await;
    let mut servers = Servers::new();
    let ping = args.events.ping();
    for listener in listeners {
        let mut routes = routes(&core)?;
        if args.access.health != Exposure::Off {
            routes = routes.add_service(health.clone());
        }
        servers.spawn(listener.serve(routes, gates(&core), stage_seen.clone(), ping));
    }
    access::watch_files(files, &supervisor, &stage_seen)?;
    attend(args, &supervisor, &core, (&reporter, &stage_seen));
    donor_events::follow(sources, &supervisor, &core.donor_events, &stage_seen);
    stage.send_replace(Stage::Ready);
    tracing::info!(grpc = ?bound.grpc, http = %bound.http, epoch = core.catalog.epoch, "ready");
    on_ready(&bound)?;

    let died = tokio::select! {
        () = stop => None,
        name = supervisor.died() => Some(name),
    };
    drain(&mut servers, &reporter, &stage, args.drain_ms).await;
    drop(watching);
    *core_seen.lock() = None;
    end(core, threads);
    telemetry::finish(exporting).await;
    tracing::info!("stopped");
    match died {
        None => Ok(()),
        Some(name) => Err(AppError::WorkerDied(name)),
    }
}

fn bind(args: &ServeArgs, encryption: Option<&Encryption>) -> Result<Vec<Listener>, AppError> {
    let bind = |address| {
        let bound = Listener::bind(address, encryption.cloned());
        bound.map_err(|error| listen_error(address, error))
    };
    args.listen.iter().map(bind).collect()
}

fn bound(listeners: &[Listener], http: SocketAddr) -> Result<Bound, AppError> {
    let address = |listener: &Listener| {
        let address = listener.address();
        address.map_err(|error| listen_error("tcp", error))
    };
    let grpc = listeners.iter().map(address).collect::<Result<_, _>>()?;
    Ok(Bound { grpc, http })
}

type Servers = tokio::task::JoinSet<Result<(), tonic::transport::Error>>;

// Lets the calls that are under way end.
async fn drain(
    servers: &mut Servers,
    reporter: &HealthReporter,
    stage: &watch::Sender<Stage>,
    drain_ms: u64,
) {
    tracing::info!("draining");
    report(reporter, ServingStatus::NotServing).await;
    stage.send_replace(Stage::Draining);
    // Ends the calls that watch: they would hold up the drain.
    for service in HEALTH_NAMES {
        reporter.clone().clear_service_status(service).await;
    }
    let drained = tokio::time::timeout(Duration::from_millis(drain_ms), async {
        while servers.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        tracing::warn!(drain_ms, "calls were cut off");
    }
    servers.shutdown().await;
}

// What is done beside the calls, until the drain.
fn attend(
    args: &ServeArgs,
    supervisor: &Supervisor,
    core: &Arc<Core>,
    (reporter, stage): (&HealthReporter, &watch::Receiver<Stage>),
) {
    let ticking = tick(Arc::clone(core), reporter.clone(), stage.clone());
    supervisor.task("tick", ticking);
    let watching = telemetry::watch_sources(Arc::clone(core), stage.clone());
    supervisor.task("sources", watching);
    if let Some(path) = &args.events.kv_events_file {
        let path = path.as_path().into();
        let reread = events::reread(Arc::clone(core), path, stage.clone());
        supervisor.task("kv-events-file", reread);
    }
}

// Lets queued work finish.
fn end(core: Arc<Core>, threads: Vec<std::thread::JoinHandle<()>>) {
    core.importers.stop();
    core.summary_importers.stop();
    core.finders.stop();
    core.near.threads.stop();
    core.donor_events.stop();
    if let Some(embedder) = &core.near.embedder {
        embedder.stop();
    }
    core.catalog.sketch_bell.end();
    core.catalog.embedding_bell.end();
    core.scorer.stop();
    if let Some(recorder) = &core.recorder {
        recorder.stop();
    }
    if let Some(core) = Arc::into_inner(core) {
        drop(core);
        for thread in threads {
            // The supervisor has told of a panic already.
            let _ended = thread.join();
        }
    }
}

fn gates(core: &Core) -> Gates {
    Gates {
        access: core.access.clone(),
        admission: core.admission.clone(),
        traced: Traced {
            traces: core.traces.clone(),
            clock: core.clock,
        },
    }
}

// With the port that was picked.
async fn listen_http(
    address: SocketAddr,
) -> Result<(tokio::net::TcpListener, SocketAddr), AppError> {
    let bound = tokio::net::TcpListener::bind(address).await;
    bound
        .and_then(|listener| {
            let bound = listener.local_addr()?;
            Ok((listener, bound))
        })
        .map_err(|error| listen_error(address, error))
}

fn listen_error(address: impl std::fmt::Display, error: io::Error) -> AppError {
    AppError::Listen {
        address: address.to_string(),
        error,
    }
}

fn pages(
    core: &CoreSeen,
    stage: &watch::Receiver<Stage>,
    console: Console,
    doors: &Doors,
) -> Pages {
    let (core, doors) = (Arc::clone(core), doors.clone());
    let metrics = move || {
        let core = core.lock().as_ref().map(Arc::clone);
        core.map(|core| {
            let all = [
                &gauges(&core)[..],
                &near_gauges(&core)[..],
                &events::gauges(&core)[..],
                &access::gauges(&doors)[..],
            ]
            .concat();
            core.metrics.render(&all, &telemetry::readings(&core))
        })
        .unwrap_or_default()
    };
    Pages {
        stage: stage.clone(),
        metrics: Arc::new(metrics),
        console,
    }
}

type Gauge = (&'static str, &'static str, u64);

fn gauges(core: &Core) -> [Gauge; 12] {
    let leases = core.donor_leases.counts();
    [
        ("kvatlas_priors", "Priors stored", core.priors.len() as u64),
        (
            "kvatlas_donors",
            "Donors that can be found",
            core.catalog.donors(),
        ),
        (
            "kvatlas_donor_tokens",
            "Tokens of all donors",
            core.catalog.tokens(),
        ),
        (
            "kvatlas_namespaces",
            "Namespaces known",
            core.catalog.namespaces() as u64,
        ),
        (
            "kvatlas_leases_held",
            "Donor leases held",
            leases.held as u64,
        ),
        (
            "kvatlas_owners_live",
            "Owners whose announcement lasts",
            core.catalog.owners.live(core.clock.now_ms()) as u64,
        ),
        (
            "kvatlas_calls_in_flight",
            "Calls being served",
            core.admission.in_flight() as u64,
        ),
        (
            "kvatlas_donor_writes_queued",
            "Donor writes that wait",
            core.writes.queued() as u64,
        ),
        (
            "kvatlas_key_summaries",
            "Key summaries stored",
            core.summaries.len() as u64,
        ),
        (
            "kvatlas_queries_kept",
            "Queries kept under a query_hash",
            core.queries.counts().queries as u64,
        ),
        (
            "kvatlas_score_queued",
            "Requests that wait to be scored",
            core.scorer.queued() as u64,
        ),
        (
            "kvatlas_damaged_records",
            "Records left out at the start",
            core.damaged_records,
        ),
    ]
}

// Of the search by vectors.
fn near_gauges(core: &Core) -> [Gauge; 4] {
    [
        (
            "kvatlas_sketches",
            "Donors that can be found by a sketch of their tokens",
            core.catalog.sketched(),
        ),
        (
            "kvatlas_sketches_behind",
            "Donors whose sketches are still to be made or removed",
            core.catalog.sketches_behind(),
        ),
        (
            "kvatlas_embeddings_behind",
            "Donors whose texts are still to be embedded or forgotten",
            core.catalog.embeddings_behind(),
        ),
        (
            "kvatlas_embedding_queued",
            "Texts that wait for the embedding model",
            core.near
                .embedder
                .as_ref()
                .map_or(0, |embedder| embedder.queued() as u64),
        ),
    ]
}

// Ends leases and queries that ran out, and stops saying "serving" once writes cannot be kept.
async fn tick(core: Arc<Core>, reporter: HealthReporter, stage: watch::Receiver<Stage>) {
    let mut ticks = tokio::time::interval(TICK);
    let mut draining = std::pin::pin!(draining(stage));
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = &mut draining => return,
        }
        core.donor_leases.sweep(core.clock.now_ms());
        core.queries.sweep(core.clock.now_ms());
        core.feeds.pushed.sweep(core.clock.now_ms());
        if core.store.has_failed() {
            tracing::error!("the store has failed: no write can be kept; restart the server");
            report(&reporter, ServingStatus::NotServing).await;
        }
    }
}

async fn report(reporter: &HealthReporter, status: ServingStatus) {
    for service in HEALTH_NAMES {
        reporter.set_service_status(service, status).await;
    }
}
