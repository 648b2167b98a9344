//! Takes the records of calls, and passes them on from a thread of its own.
//!
//! A call pushes into a bounded buffer and goes on; the thread comes by some twenty times a second
//! and takes all there is. So nobody is woken for a call, and what is done with a record (window,
//! audit log, series by namespace, spans, the console) costs the calls nothing but a processor.

use std::{io, sync::Arc, thread::JoinHandle, time::Duration};

use parking_lot::{Condvar, Mutex};
use prometheus_client::metrics::counter::Counter;

use super::{
    audit::{AuditCounters, AuditLimits, AuditLog},
    digests::AuditKey,
    line,
    metrics::namespaces::NamespaceSeries,
    record::{Line, Record, Start, VERSION},
    traces::{Seat, Traces},
    window::Window,
};
use crate::supervise::Supervisor;

/// Records that wait for the thread; one more is dropped and counted.
pub const WAITING_MAX: usize = 16_384;
/// The thread is woken early when so many wait.
const WAKE_AT: usize = WAITING_MAX / 2;
const TURN: Duration = Duration::from_millis(50);
/// Lines are handed on once so many bytes of them are there.
const CHUNK_BYTES: usize = 64 << 10;

/// Where calls leave their records. Shared by all.
#[derive(Debug)]
pub struct Recorder {
    pub key: AuditKey,
    waiting: Mutex<Waiting>,
    bell: Condvar,
    window: Mutex<Window>,
    counters: RecorderCounters,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Waiting {
    entries: Vec<Entry>,
    stops: bool,
}

/// One record, and where in a trace it belongs.
#[derive(Debug)]
pub struct Entry {
    pub line: Line,
    pub seat: Option<Box<Seat>>,
}

#[derive(Debug, Clone, Default)]
pub struct RecorderCounters {
    pub records: Counter,
    pub dropped: Counter,
    pub audit: AuditCounters,
}

/// What the thread works with.
pub struct Recording {
    pub audit: Option<AuditLimits>,
    pub namespaces: Arc<NamespaceSeries>,
    pub traces: Option<Arc<Traces>>,
    /// Milliseconds since 1970 (UTC).
    pub clock_ms: Box<dyn Fn() -> u64 + Send>,
    /// Begins the window and every file.
    pub start: Start,
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Recording")
            .field("audit", &self.audit)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// Starts the thread; it ends with [`Self::stop`].
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(
        supervisor: &Supervisor,
        key: AuditKey,
        counters: RecorderCounters,
        recording: Recording,
    ) -> io::Result<Arc<Recorder>> {
        let recorder = Arc::new(Recorder {
            key,
            waiting: Mutex::default(),
            bell: Condvar::new(),
            window: Mutex::default(),
            counters,
            thread: Mutex::default(),
        });
        let there = Arc::clone(&recorder);
        let thread = supervisor.background("recorder", move || there.run(recording))?;
        *recorder.thread.lock() = Some(thread);
        Ok(recorder)
    }

    /// Leaves a record; where too many wait it is dropped.
    pub fn record(&self, entry: Entry) {
        let mut waiting = self.waiting.lock();
        let there = waiting.entries.len();
        if there >= WAITING_MAX {
            drop(waiting);
            self.counters.dropped.inc();
            return;
        }
        waiting.entries.push(entry);
        drop(waiting);
        if there + 1 == WAKE_AT {
            self.bell.notify_one();
        }
    }

    /// Where to begin reading the window; see [`Window::first_of`].
    #[must_use]
    pub fn window_from(&self, since_ms: u64, records_max: usize) -> u64 {
        self.window.lock().first_of(since_ms, records_max)
    }

    /// A page of the window as lines, and where to go on; see [`Window::page`].
    #[must_use]
    pub fn window_page(&self, from: u64, since_ms: u64, most: usize) -> (Vec<String>, Option<u64>) {
        let (lines, next) = self.window.lock().page(from, since_ms, most);
        let text = |line: &Line| {
            let mut text = Vec::new();
            line::write(line, &mut text);
            text.pop();
            String::from_utf8_lossy(&text).into_owned()
        };
        (lines.iter().map(text).collect(), next)
    }

    /// Records of the window themselves; see [`Window::after`].
    #[must_use]
    pub fn records_after(&self, from: u64, most: usize) -> (Vec<Line>, u64) {
        self.window.lock().after(from, most)
    }

    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.lock().entries.len()
    }

    /// Returns once the thread has passed on what waits, and ended.
    pub fn stop(&self) {
        self.waiting.lock().stops = true;
        self.bell.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The supervisor has told of a panic already.
            let _ended = thread.join();
        }
    }

    fn run(&self, recording: Recording) {
        let Recording {
            audit,
            namespaces,
            traces,
            clock_ms,
            start,
        } = recording;
        let audit = audit.map(|limits| AuditLog::new(limits, self.counters.audit.clone()));
        let mut desk = Desk {
            recorder: self,
            audit,
            namespaces,
            traces,
            chunk: Vec::with_capacity(CHUNK_BYTES),
            chunk_lines: 0,
        };
        let now_ms = clock_ms();
        let first = Line {
            v: VERSION,
            at_ms: now_ms,
            record: Record::Start(start),
        };
        desk.begin(first, now_ms);
        let mut batch = Vec::new();
        loop {
            let stops = self.take(&mut batch);
            desk.pass_on(&mut batch, clock_ms());
            if stops {
                return;
            }
        }
    }

    // Waits for a turn, or until much is there, and takes it. Returns whether it was the last.
    fn take(&self, batch: &mut Vec<Entry>) -> bool {
        let mut waiting = self.waiting.lock();
        if !waiting.stops && waiting.entries.len() < WAKE_AT {
            self.bell.wait_for(&mut waiting, TURN);
        }
        std::mem::swap(&mut waiting.entries, batch);
        waiting.stops
    }
}

// What the thread does with records.
struct Desk<'a> {
    recorder: &'a Recorder,
    audit: Option<AuditLog>,
    namespaces: Arc<NamespaceSeries>,
    traces: Option<Arc<Traces>>,
    /// Whole lines that were not handed on yet.
    chunk: Vec<u8>,
    chunk_lines: u64,
}

impl Desk<'_> {
    fn begin(&mut self, first: Line, now_ms: u64) {
        if let Some(audit) = &mut self.audit {
            let mut text = Vec::new();
            line::write(&first, &mut text);
            audit.begin(text, now_ms);
        }
        self.recorder.window.lock().push(first);
    }

    fn pass_on(&mut self, batch: &mut Vec<Entry>, now_ms: u64) {
        self.recorder.counters.records.inc_by(batch.len() as u64);
        if self.audit.is_some() {
            for entry in batch.iter() {
                line::write(&entry.line, &mut self.chunk);
                self.chunk_lines += 1;
                if self.chunk.len() >= CHUNK_BYTES {
                    self.hand_on(now_ms);
                }
            }
            self.hand_on(now_ms);
        }
        if let Some(traces) = &self.traces {
            for entry in batch.iter() {
                if let Some(seat) = &entry.seat {
                    traces.record(&entry.line, seat);
                }
            }
        }
        self.namespaces.count(batch, now_ms);
        let mut window = self.recorder.window.lock();
        for entry in batch.drain(..) {
            window.push(entry.line);
        }
    }

    fn hand_on(&mut self, now_ms: u64) {
        if self.chunk.is_empty() {
            return;
        }
        if let Some(audit) = &mut self.audit {
            audit.write(&self.chunk, self.chunk_lines, now_ms);
        }
        self.chunk.clear();
        self.chunk_lines = 0;
    }
}
