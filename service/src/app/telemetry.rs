//! Starts what records and traces calls, and reads what is only known when asked.

use std::sync::Arc;

use kvatlas_events::feed::State;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter as _},
};
use tokio::sync::{mpsc, oneshot, watch};

use super::AppError;
use crate::{
    config::TelemetryArgs,
    donors::vocabulary::Mode,
    rpc::{Core, clock::Clock, records},
    store::{Change, Store, Table},
    supervise::Supervisor,
    telemetry::{
        audit::AuditLimits,
        digests::{AUDIT_KEY_BYTES, AuditKey},
        http::{Stage, draining},
        metrics::{Metrics, Reading},
        record::{Line, Record, Source, Sources, Start, VERSION},
        recorder::{Entry, Recorder, Recording},
        traces::{Traces, send_all},
        words::SourceState,
    },
};

const AUDIT_KEY: &[u8] = b"audit-key";
const MS_PER_S: u64 = 1_000;
/// How often the state of sources is recorded where it does not change.
const SOURCES_EVERY_S: u32 = 60;
/// A batch on its way at the end gets so long.
const EXPORT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Spans on their way to the collector.
pub(super) type Spans = mpsc::Receiver<SpanData>;

/// What was started.
pub(super) struct Telemetry {
    pub(super) recorder: Option<Arc<Recorder>>,
    pub(super) traces: Option<Arc<Traces>>,
    pub(super) spans: Option<Spans>,
}

pub(super) fn start(
    args: &TelemetryArgs,
    supervisor: &Supervisor,
    (store, clock): (&Store, Clock),
    metrics: &Metrics,
    mode: Mode,
) -> Result<Telemetry, AppError> {
    if !args.telemetry {
        return Ok(Telemetry {
            recorder: None,
            traces: None,
            spans: None,
        });
    }
    let mut seed = [0_u8; 8];
    getrandom::fill(&mut seed).map_err(|_| AppError::NoRandomness)?;
    let (traces, spans) = if args.otlp_endpoint.is_some() {
        let (ratio, seed) = (f64::from(args.trace_ratio), u64::from_le_bytes(seed));
        let (traces, spans) = Traces::new(ratio, seed, metrics.traces.clone());
        (Some(Arc::new(traces)), Some(spans))
    } else {
        (None, None)
    };
    let recording = Recording {
        audit: args.audit.as_ref().map(|folder| AuditLimits {
            folder: folder.clone(),
            bytes_max: args.audit_bytes_max,
            age_ms_max: u64::from(args.audit_age_s_max) * MS_PER_S,
            files_max: args.audit_files_max as usize,
        }),
        namespaces: Arc::clone(&metrics.namespaces),
        traces: traces.clone(),
        clock_ms: Box::new(move || clock.now_ms()),
        start: Start {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: store.epoch(),
            mode: records::mode(mode),
        },
    };
    let key = audit_key(store)?;
    let recorder = Recorder::start(supervisor, key, metrics.recorder.clone(), recording)
        .map_err(AppError::Thread)?;
    Ok(Telemetry {
        recorder: Some(recorder),
        traces,
        spans,
    })
}

// Made once for a data folder, so that digests stay the same over restarts.
fn audit_key(store: &Store) -> Result<AuditKey, AppError> {
    let kept = store.read(Table::Meta, AUDIT_KEY)?;
    let kept = kept.and_then(|key| <[u8; AUDIT_KEY_BYTES]>::try_from(key).ok());
    if let Some(key) = kept {
        return Ok(AuditKey(key));
    }
    let mut key = [0; AUDIT_KEY_BYTES];
    getrandom::fill(&mut key).map_err(|_| AppError::NoRandomness)?;
    store.write(&[Change::Put {
        table: Table::Meta,
        key: AUDIT_KEY,
        payload: &key,
    }])?;
    store.commit()?;
    Ok(AuditKey(key))
}

/// The task that sends spans, and what ends it.
#[derive(Debug)]
pub(super) struct Exporting {
    task: tokio::task::JoinHandle<()>,
    end: oneshot::Sender<()>,
}

/// Sends spans to the collector until the last call is answered. Inside the runtime.
pub(super) fn export(
    args: &TelemetryArgs,
    supervisor: &Supervisor,
    metrics: &Metrics,
    spans: Option<Spans>,
) -> Result<Option<Exporting>, AppError> {
    let (Some(endpoint), Some(spans)) = (&args.otlp_endpoint, spans) else {
        return Ok(None);
    };
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(EXPORT_TIMEOUT)
        .build();
    let mut exporter = exporter.map_err(|error| AppError::Otlp(error.to_string()))?;
    exporter.set_resource(
        &Resource::builder_empty()
            .with_service_name("kvatlas")
            .with_attribute(opentelemetry::KeyValue::new(
                "service.version",
                env!("CARGO_PKG_VERSION"),
            ))
            .build(),
    );
    let (end, ended) = oneshot::channel();
    let sending = send_all(spans, exporter, metrics.traces.clone(), async {
        // A sender that is gone has ended it as well.
        let _gone = ended.await;
    });
    let task = supervisor.task("otlp", sending);
    Ok(Some(Exporting { task, end }))
}

/// Waits for the last spans, no longer than for two batches.
pub(super) async fn finish(exporting: Option<Exporting>) {
    if let Some(Exporting { task, end }) = exporting {
        drop(end);
        // What is not sent by then is lost, as it would be with a dead collector.
        let _late = tokio::time::timeout(EXPORT_TIMEOUT * 2, task).await;
    }
}

/// Records how far the sources can be believed: once a minute, and when that changes.
pub(super) async fn watch_sources(core: Arc<Core>, stage: watch::Receiver<Stage>) {
    let Some(recorder) = core.recorder.clone() else {
        return;
    };
    let mut ticks = tokio::time::interval(super::TICK);
    let mut draining = std::pin::pin!(draining(stage));
    let mut last: Option<Sources> = None;
    let mut seconds = 0;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = &mut draining => return,
        }
        let now = sources(&core, &recorder.key);
        let is_same = last.as_ref().is_some_and(|last| is_same(last, &now));
        seconds += 1;
        if (is_same && seconds < SOURCES_EVERY_S) || (last.is_none() && now.sources.is_empty()) {
            continue;
        }
        seconds = 0;
        last = Some(now.clone());
        recorder.record(Entry {
            line: Line {
                v: VERSION,
                at_ms: core.clock.now_ms(),
                record: Record::Sources(now),
            },
            seat: None,
        });
    }
}

fn sources(core: &Core, key: &AuditKey) -> Sources {
    let [exact, degraded, stale] = core.feeds.fleet.states();
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let statuses = core.feeds.statuses();
    let source = |status: &crate::events::feeds::SourceStatus| Source {
        worker: key.owner(
            &status.worker_id,
            status.ranks.first().copied().unwrap_or(0),
        ),
        state: match status.progress.state {
            State::Exact => SourceState::Exact,
            State::Degraded => SourceState::Degraded,
            State::Stale => SourceState::Stale,
        },
        gaps: status.progress.met.gaps,
        replays: status.progress.met.replays,
    };
    Sources {
        exact: count(exact),
        degraded: count(degraded),
        stale: count(stale),
        sources: statuses.iter().map(source).collect(),
    }
}

// Numbers of replays grow while a source catches up: that alone is no news.
fn is_same(last: &Sources, now: &Sources) -> bool {
    let states = |of: &Sources| -> Vec<_> {
        let sources = of.sources.iter();
        sources.map(|it| (it.worker, it.state, it.gaps)).collect()
    };
    let counts = |of: &Sources| (of.exact, of.degraded, of.stale);
    counts(last) == counts(now) && states(last) == states(now)
}

/// Leases by how they ended, sources by their state, and what waits where.
pub(super) fn readings(core: &Core) -> Vec<Reading> {
    let leases = core.donor_leases.totals();
    let [exact, degraded, stale] = core.feeds.fleet.states().map(|count| count as u64);
    let embedder = core.near.embedder.as_ref();
    let recorder = core.recorder.as_ref();
    vec![
        Reading {
            name: "kvatlas_leases",
            help: "Donor leases since the start, by what became of them",
            is_counter: true,
            label: "state",
            values: vec![
                ("granted", leases.granted),
                ("released", leases.released),
                ("expired", leases.expired),
                ("stale", leases.stale),
            ],
        },
        Reading {
            name: "kvatlas_workers",
            help: "Workers by how far what is known of their caches can be believed",
            is_counter: false,
            label: "state",
            values: vec![("exact", exact), ("degraded", degraded), ("stale", stale)],
        },
        Reading {
            name: "kvatlas_queue_depth",
            help: "What waits, by queue",
            is_counter: false,
            label: "queue",
            values: vec![
                ("donor_writes", core.writes.queued() as u64),
                ("score", core.scorer.queued() as u64),
                ("embedding", embedder.map_or(0, |it| it.queued() as u64)),
                ("sketches", core.catalog.sketches_behind()),
                ("records", recorder.map_or(0, |it| it.waiting() as u64)),
            ],
        },
    ]
}
