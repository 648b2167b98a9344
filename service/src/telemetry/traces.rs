//! Spans of the calls that are sampled, and the way they take to a collector.
//!
//! Whether a call is sampled is decided from one header and one number, before anything is made.
//! What its spans say comes from its record, and is put together by the recorder's thread.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use opentelemetry::{
    InstrumentationScope, KeyValue, Value,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter, SpanLinks};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use super::record::{Line, Lookup, Manifest, Record, Reuse};

/// Spans that wait to be sent; one more is dropped and counted.
const WAITING_MAX: usize = 4_096;
const BATCH_MAX: usize = 512;
/// How long a batch waits for more.
const LINGER: Duration = Duration::from_secs(1);
/// gRPC's number for a method that nobody serves: then the path is the caller's own words.
const UNIMPLEMENTED: i32 = 12;

/// Which calls are sampled, and where their spans go.
#[derive(Debug)]
pub struct Traces {
    /// A number below it is sampled; 2^64 would be all.
    threshold: u128,
    drawn: AtomicU64,
    spans: mpsc::Sender<SpanData>,
    counters: TraceCounters,
}

#[derive(Debug, Clone, Default)]
pub struct TraceCounters {
    pub sent: Counter,
    /// Found the queue full.
    pub dropped: Counter,
    /// The collector did not take them.
    pub lost: Counter,
}

/// The place of a sampled call in its trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    trace: u128,
    span: u64,
    /// 0: none.
    parent: u64,
    /// The parent is another process's.
    is_remote: bool,
    pub began_unix_ns: u64,
}

/// What a caller's `traceparent` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parent {
    trace: u128,
    span: u64,
    is_sampled: bool,
}

impl Traces {
    /// `ratio`: of the calls whose callers say nothing, 0 to 1. `seed`: random.
    #[must_use]
    pub fn new(
        ratio: f64,
        seed: u64,
        counters: TraceCounters,
    ) -> (Traces, mpsc::Receiver<SpanData>) {
        let (spans, waiting) = mpsc::channel(WAITING_MAX);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 2^64"
        )]
        let threshold = (ratio.clamp(0.0, 1.0) * 2_f64.powi(64)) as u128;
        let traces = Traces {
            threshold,
            drawn: AtomicU64::new(seed),
            spans,
            counters,
        };
        (traces, waiting)
    }

    /// The seat of a call, if it is sampled: as its caller decided, else by the ratio.
    #[must_use]
    pub fn sample(&self, traceparent: Option<&str>) -> Option<Box<Seat>> {
        match traceparent.and_then(parse) {
            Some(parent) => parent.is_sampled.then(|| {
                Box::new(Seat {
                    trace: parent.trace,
                    span: self.id(),
                    parent: parent.span,
                    is_remote: true,
                    began_unix_ns: 0,
                })
            }),
            None => self.draw(None),
        }
    }

    /// The seat of one message of a stream, if it is sampled, by the ratio.
    #[must_use]
    pub fn sample_message(&self, stream: Option<&Seat>) -> Option<Box<Seat>> {
        self.draw(stream)
    }

    fn draw(&self, above: Option<&Seat>) -> Option<Box<Seat>> {
        if u128::from(self.random()) >= self.threshold {
            return None;
        }
        let trace = || u128::from(self.id()) << 64 | u128::from(self.id());
        Some(Box::new(Seat {
            trace: above.map_or_else(trace, |it| it.trace),
            span: self.id(),
            parent: above.map_or(0, |it| it.span),
            is_remote: false,
            began_unix_ns: 0,
        }))
    }

    /// The span of a whole call, once it is answered with this code of gRPC.
    pub fn answered(&self, seat: &Seat, path: &str, code: i32, ended_unix_ns: u64) {
        let name = match (code, path.strip_prefix('/')) {
            (UNIMPLEMENTED, _) | (_, None) => "unknown".to_owned(),
            (_, Some(method)) => method.to_owned(),
        };
        let mut span = span(seat, ended_unix_ns.saturating_sub(seat.began_unix_ns));
        span.name = name.into();
        span.span_kind = SpanKind::Server;
        span.attributes = vec![
            KeyValue::new("rpc.system", "grpc"),
            KeyValue::new("rpc.grpc.status_code", i64::from(code)),
        ];
        if code != 0 {
            span.status = Status::error("");
        }
        self.send(span);
    }

    /// The span of what a call did, below the call's own, and those of its stages.
    pub fn record(&self, line: &Line, call: &Seat) {
        let (name, took, attributes) = match &line.record {
            Record::Lookup(lookup) => ("lookup", lookup.took_us, of_lookup(lookup)),
            Record::Manifest(manifest) => ("manifest", manifest.took_us, of_manifest(manifest)),
            Record::Reuse(reuse) => ("reuse", reuse.took_us, of_reuse(reuse)),
            Record::Start(_) | Record::Sources(_) => return,
        };
        let seat = self.below(call, call.began_unix_ns);
        let mut span = span(&seat, took.0);
        span.name = name.into();
        span.attributes = attributes;
        self.send(span);
        if let Record::Lookup(lookup) = &line.record {
            self.stages(lookup, &seat);
        }
    }

    // Laid one after the other: what is known of each is how long it took.
    fn stages(&self, lookup: &Lookup, above: &Seat) {
        let stages = lookup.stages_us;
        let all = [
            stages.seeds,
            stages.align,
            stages.gate,
            stages.neighbours,
            stages.facts,
        ];
        let staged: u64 = all.iter().map(|it| it.0).sum();
        let before = lookup.took_us.0.saturating_sub(staged);
        let names = ["seeds", "align", "gate", "neighbours", "facts"];
        let mut began = above.began_unix_ns + before;
        for (name, took) in names.into_iter().zip(all) {
            if took.0 > 0 {
                let mut span = span(&self.below(above, began), took.0);
                span.name = name.into();
                self.send(span);
                began += took.0;
            }
        }
    }

    fn below(&self, above: &Seat, began_unix_ns: u64) -> Seat {
        Seat {
            trace: above.trace,
            span: self.id(),
            parent: above.span,
            is_remote: false,
            began_unix_ns,
        }
    }

    fn send(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.counters.dropped.inc();
        }
    }

    // SplitMix64: spread well enough for ids, which are no secrets.
    fn random(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut mixed = self
            .drawn
            .fetch_add(STEP, Ordering::Relaxed)
            .wrapping_add(STEP);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    // 0 is no id.
    fn id(&self) -> u64 {
        self.random().max(1)
    }
}

fn span(seat: &Seat, took_ns: u64) -> SpanData {
    let start_time = SystemTime::UNIX_EPOCH + Duration::from_nanos(seat.began_unix_ns);
    SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes(seat.trace.to_be_bytes()),
            SpanId::from_bytes(seat.span.to_be_bytes()),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        ),
        parent_span_id: SpanId::from_bytes(seat.parent.to_be_bytes()),
        parent_span_is_remote: seat.is_remote,
        span_kind: SpanKind::Internal,
        name: "".into(),
        start_time,
        end_time: start_time + Duration::from_nanos(took_ns),
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("kvatlas").build(),
    }
}

/// Sends spans in batches, until `end` and what waits by then. A collector that does not take them
/// is told of once, until it does.
pub async fn send_all(
    mut waiting: mpsc::Receiver<SpanData>,
    exporter: impl SpanExporter,
    counters: TraceCounters,
    end: impl Future<Output = ()>,
) {
    let mut fails = false;
    let mut has_ended = false;
    let mut end = std::pin::pin!(end);
    loop {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let came = tokio::select! {
            came = waiting.recv_many(&mut batch, BATCH_MAX) => came,
            () = &mut end, if !has_ended => {
                // What waits is sent all the same; no more can come.
                has_ended = true;
                waiting.close();
                continue;
            }
        };
        if came == 0 {
            return;
        }
        let fill = async {
            while batch.len() < BATCH_MAX {
                let room = BATCH_MAX - batch.len();
                if waiting.recv_many(&mut batch, room).await == 0 {
                    return;
                }
            }
        };
        // What is there when the time is over is enough.
        let _over = tokio::time::timeout(LINGER, fill).await;
        let spans = batch.len() as u64;
        match exporter.export(batch).await {
            Ok(()) => {
                counters.sent.inc_by(spans);
                if std::mem::take(&mut fails) {
                    tracing::info!("the collector takes spans again");
                }
            }
            Err(error) => {
                counters.lost.inc_by(spans);
                if !std::mem::replace(&mut fails, true) {
                    tracing::warn!(%error, "the collector takes no spans: they are lost");
                }
            }
        }
    }
}

// https://www.w3.org/TR/trace-context/: version 00, and later ones as far as they agree with it.
fn parse(traceparent: &str) -> Option<Parent> {
    let mut parts = traceparent.split('-');
    let version = hex(parts.next()?, 2)?;
    let trace = hex(parts.next()?, 32)?;
    let span = u64::try_from(hex(parts.next()?, 16)?).ok()?;
    let flags = hex(parts.next()?, 2)?;
    let is_known = version == 0 && parts.next().is_none();
    let is_later = version > 0 && version < 0xff;
    ((is_known || is_later) && trace != 0 && span != 0).then_some(Parent {
        trace,
        span,
        is_sampled: flags & 1 == 1,
    })
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |it: u8| it.is_ascii_digit() || (b'a'..=b'f').contains(&it);
    let well_formed = text.len() == digits && text.bytes().all(is_hex);
    u128::from_str_radix(text, 16).ok().filter(|_| well_formed)
}

fn of_lookup(lookup: &Lookup) -> Vec<KeyValue> {
    let mut of = vec![
        word("kvatlas.outcome", lookup.outcome.as_str()),
        word("kvatlas.mode", lookup.mode.as_str()),
        number("kvatlas.prompt_tokens", lookup.prompt_tokens),
        number("kvatlas.exact_prefix_tokens", lookup.exact_prefix_tokens),
        number("kvatlas.reusable_tokens", lookup.reusable_tokens),
    ];
    of.extend(lookup.reason.map(|it| word("kvatlas.reason", it.as_str())));
    of.extend(lookup.gate.map(|it| word("kvatlas.gate", it.as_str())));
    of.extend(lookup.namespace.map(|it| digest("kvatlas.namespace", it)));
    of.extend(lookup.request.map(|it| digest("kvatlas.request", it)));
    of
}

fn of_manifest(manifest: &Manifest) -> Vec<KeyValue> {
    let mut of = vec![
        word("kvatlas.outcome", manifest.outcome.as_str()),
        number("kvatlas.k", manifest.k),
        number("kvatlas.total_blocks", manifest.total_blocks),
    ];
    let words = [
        ("kvatlas.reason", manifest.reason.map(|it| it.as_str())),
        (
            "kvatlas.algorithm",
            manifest.algorithm.map(|it| it.as_str()),
        ),
        ("kvatlas.policy", manifest.policy.map(|it| it.as_str())),
        (
            "kvatlas.provenance",
            manifest.provenance.map(|it| it.as_str()),
        ),
    ];
    let words = words.into_iter();
    of.extend(words.filter_map(|(key, it)| Some(word(key, it?))));
    of.extend(manifest.request.map(|it| digest("kvatlas.request", it)));
    of
}

fn of_reuse(reuse: &Reuse) -> Vec<KeyValue> {
    let mut of = vec![
        word("kvatlas.provenance", reuse.provenance.as_str()),
        number("kvatlas.tokens_loaded", reuse.tokens_loaded),
    ];
    of.extend(reuse.reason.map(|it| word("kvatlas.reason", it.as_str())));
    of.extend(reuse.request.map(|it| digest("kvatlas.request", it)));
    of
}

fn word(key: &'static str, value: &'static str) -> KeyValue {
    KeyValue::new(key, value)
}

fn number(key: &'static str, value: u32) -> KeyValue {
    KeyValue::new(key, i64::from(value))
}

fn digest(key: &'static str, value: impl std::fmt::Display) -> KeyValue {
    KeyValue::new(key, Value::from(value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn traces(ratio: f64) -> Traces {
        Traces::new(ratio, 7, TraceCounters::default()).0
    }

    #[test]
    fn a_parent_is_read_as_the_standard_says() {
        let whole = format!("00-{TRACE}-{SPAN}-01");
        let parent = parse(&whole).unwrap();
        assert_eq!(
            format!("{:032x}-{:016x}", parent.trace, parent.span),
            whole[3..52]
        );
        assert!(parent.is_sampled);
        assert!(!parse(&format!("00-{TRACE}-{SPAN}-00")).unwrap().is_sampled);
        assert!(parse(&format!("01-{TRACE}-{SPAN}-01-later")).is_some());
        let none = "0".repeat(32);
        for bad in [
            "",
            "00",
            &format!("00-{TRACE}-{SPAN}"),
            &format!("00-{TRACE}-{SPAN}-01-more"),
            &format!("ff-{TRACE}-{SPAN}-01"),
            &format!("00-{none}-{SPAN}-01"),
            &format!("00-{TRACE}-{}-01", "0".repeat(16)),
            &format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            &format!("00-+{}-{SPAN}-01", &TRACE[1..]),
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_caller_decides_and_otherwise_the_ratio() {
        let sampled = format!("00-{TRACE}-{SPAN}-01");
        let unsampled = format!("00-{TRACE}-{SPAN}-00");
        let seat = traces(0.0).sample(Some(&sampled)).unwrap();
        assert_eq!(format!("{:032x}", seat.trace), TRACE);
        assert_eq!(format!("{:016x}", seat.parent), SPAN);
        assert_eq!(traces(1.0).sample(Some(&unsampled)), None);
        for (ratio, least, most) in [(0.0, 0, 0), (0.01, 60, 140), (1.0, 10_000, 10_000)] {
            let traces = traces(ratio);
            let sampled = (0..10_000).filter(|_| traces.sample(None).is_some());
            let sampled = sampled.count();
            assert!((least..=most).contains(&sampled), "{ratio}: {sampled}");
        }
        // What no caller can have meant is no word of a caller.
        assert!(traces(1.0).sample(Some("00-")).is_some());
    }

    #[test]
    fn the_path_of_a_method_that_is_not_served_is_not_told() {
        let (traces, mut spans) = Traces::new(1.0, 7, TraceCounters::default());
        let seat = traces.sample(None).unwrap();
        traces.answered(&seat, "/my/secret", UNIMPLEMENTED, 5);
        traces.answered(&seat, "/kvatlas.v1.Admin/GetStatus", 0, 5);
        assert_eq!(spans.try_recv().unwrap().name, "unknown");
        assert_eq!(spans.try_recv().unwrap().name, "kvatlas.v1.Admin/GetStatus");
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (traces, spans) = Traces::new(1.0, 7, TraceCounters::default());
        let seat = traces.sample(None).unwrap();
        for _ in 0..WAITING_MAX + 3 {
            traces.answered(&seat, "/kvatlas.v1.Admin/GetStatus", 0, 5);
        }
        assert_eq!(spans.len(), WAITING_MAX);
        assert_eq!(traces.counters.dropped.get(), 3);
    }
}
