//! Starts what follows engines, and tells how it is doing.

use std::{
    io,
    path::Path,
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
};

use tokio::{
    signal::unix::{Signal, SignalKind},
    sync::watch,
};

use super::AppError;
use crate::{
    config::EventArgs,
    donors::catalog::Catalog,
    events::{
        feeds::{Feeds, SourceStatus},
        fleet::Fleet,
        sources,
    },
    rpc::{Core, clock::Clock, events::remove_device_donors},
    supervise::Supervisor,
    telemetry::http::{Stage, draining},
};

/// Follows every source that was named. The thread ends when nobody can name another one.
pub(super) fn start(
    args: &EventArgs,
    supervisor: &Supervisor,
    clock: Clock,
    catalog: &Arc<Catalog>,
) -> Result<(Feeds, JoinHandle<()>), AppError> {
    let mut seed = [0_u8; 8];
    getrandom::fill(&mut seed).map_err(|_| AppError::NoRandomness)?;
    let clock_ms = Box::new(move || clock.now_ms());
    let fleet = Fleet::new(Arc::clone(catalog), clock_ms, u64::from_le_bytes(seed));
    let (feeds, thread) = Feeds::start(supervisor, Arc::new(fleet)).map_err(AppError::Thread)?;
    let refused = |flag: &'static str| move |error| AppError::Sources { flag, error };
    for source in &args.kv_events {
        let worker = source.worker.clone();
        let named = sources::named(source.clone()).map_err(refused("--kv-events"))?;
        let followed = feeds.follow(named, false);
        followed.map_err(|error| AppError::Follow { worker, error })?;
    }
    if let Some(path) = &args.kv_events_file {
        for named in sources::read(path).map_err(refused("--kv-events-file"))? {
            let worker = named.source.worker.clone();
            let followed = feeds.follow(named, true);
            followed.map_err(|error| AppError::Follow { worker, error })?;
        }
    }
    Ok((feeds, thread))
}

/// Reads the file of sources again at every SIGHUP. One that cannot be read changes nothing.
pub(super) fn reread(
    core: Arc<Core>,
    path: Box<Path>,
    stage: watch::Receiver<Stage>,
) -> impl Future<Output = ()> + Send {
    // Here and not in the task: a signal that comes before anybody listens ends the process.
    let hangups = tokio::signal::unix::signal(SignalKind::hangup());
    reread_at(hangups, core, path, stage)
}

async fn reread_at(
    hangups: io::Result<Signal>,
    core: Arc<Core>,
    path: Box<Path>,
    stage: watch::Receiver<Stage>,
) {
    let Ok(mut hangups) = hangups else {
        tracing::error!("SIGHUP cannot be listened to: the file of sources is not read again");
        return;
    };
    let mut draining = std::pin::pin!(draining(stage));
    loop {
        tokio::select! {
            hangup = hangups.recv() => if hangup.is_none() { return },
            () = &mut draining => return,
        }
        let wanted = match sources::read(&path) {
            Ok(wanted) => wanted,
            Err(error) => {
                core.feeds.files_refused.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "the file of sources was not taken: nothing has changed");
                continue;
            }
        };
        let named = wanted.len();
        let gone = core.feeds.follow_file(wanted).await;
        let dropped = gone.len();
        for (worker, ranks) in gone {
            if let Err(error) = remove_device_donors(&core, &worker, &ranks).await {
                tracing::error!(worker, error = error.message(), "donors were not removed");
            }
        }
        tracing::info!(named, dropped, "read the file of sources again");
    }
}

type Gauge = (&'static str, &'static str, u64);

/// Who is followed, and what came of it since.
pub(super) fn gauges(core: &Core) -> Vec<Gauge> {
    let [exact, degraded, stale] = core.feeds.fleet.states().map(|count| count as u64);
    let sources = core.feeds.statuses();
    let outcomes = sources.iter().map(|source| source.progress.outcomes);
    core.metrics.event_outcomes.set(outcomes);
    let requests = core.feeds.fleet.requests() as u64;
    let mut gauges = vec![
        (
            "kvatlas_workers_exact",
            "Workers whose caches are known exactly",
            exact,
        ),
        (
            "kvatlas_workers_degraded",
            "Workers of whose events some are missing",
            degraded,
        ),
        (
            "kvatlas_workers_stale",
            "Workers of whom nothing is sure",
            stale,
        ),
        (
            "kvatlas_worker_requests_in_flight",
            "Requests that weigh on the worker they were given to",
            requests,
        ),
        (
            "kvatlas_event_sources",
            "Sources of events that are followed",
            sources.len() as u64,
        ),
        (
            "kvatlas_event_files_refused",
            "Times that the file of sources was read again and not taken",
            core.feeds.files_refused.load(Ordering::Relaxed),
        ),
        (
            "kvatlas_event_waiting_bytes",
            "What batches take that wait for a replay",
            core.feeds.fleet.shared.room.taken() as u64,
        ),
    ];
    gauges.extend(SUMS.map(|(name, help, of)| (name, help, sources.iter().map(of).sum())));
    gauges
}

/// Name, help, and what one source adds.
type Sum = (&'static str, &'static str, fn(&SourceStatus) -> u64);

/// Over the sources that are followed now.
const SUMS: [Sum; 13] = [
    ("kvatlas_view_blocks", "Blocks that workers hold", |of| {
        of.blocks
    }),
    (
        "kvatlas_event_epochs",
        "Times that all that was known of a source became void",
        |of| of.progress.epoch - of.first_epoch,
    ),
    ("kvatlas_event_batches", "Batches applied", |of| {
        of.progress.met.batches
    }),
    ("kvatlas_events", "Events applied", |of| {
        of.progress.met.events
    }),
    (
        "kvatlas_event_gaps",
        "Gaps in the numbers of batches",
        |of| of.progress.met.gaps,
    ),
    ("kvatlas_event_replays", "Replays asked for", |of| {
        of.progress.met.replays
    }),
    (
        "kvatlas_event_connection_failures",
        "Connections lost or refused",
        |of| of.progress.met.failures,
    ),
    (
        "kvatlas_events_unknown",
        "Events of an unknown type",
        |of| of.progress.met.unknown_events,
    ),
    (
        "kvatlas_events_malformed",
        "Events with a value that cannot be",
        |of| of.progress.met.malformed_events,
    ),
    (
        "kvatlas_event_batches_undecodable",
        "Payloads that are no batch",
        |of| of.progress.met.decode_errors,
    ),
    (
        "kvatlas_event_batches_refused",
        "Batches of a rank that found no room, or that another source brings",
        |of| of.progress.met.refused_batches,
    ),
    (
        "kvatlas_event_batches_dropped",
        "Batches that had to wait for a replay and found no room",
        |of| of.progress.met.dropped_batches,
    ),
    (
        "kvatlas_event_messages_malformed",
        "Messages that are no frame of a batch",
        |of| of.progress.met.malformed_messages,
    ),
];
