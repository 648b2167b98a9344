//! Closed and open loops over any call, and the latencies they saw.

use std::{
    collections::VecDeque,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hdrhistogram::Histogram;
use parking_lot::{Condvar, Mutex};
use tokio::{
    sync::mpsc::{Receiver, channel},
    task::JoinSet,
    time::Instant,
};

/// Latencies above this are recorded as this.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// Decimal digits kept of a latency.
const LATENCY_DIGITS: u8 = 3;
/// Calls in flight at once in an open loop, at most: more means that the server is hopelessly
/// behind, and the latencies, which count from the intended time, say so.
pub const OPEN_IN_FLIGHT_MAX: usize = 4096;

/// Latencies with three digits.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_NS, LATENCY_DIGITS);
        Self(histogram.expect("the bounds and the digits are constants"))
    }
}

impl Latencies {
    /// Adds one.
    pub fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_MAX_NS);
        self.0.saturating_record(nanoseconds);
    }

    /// Adds one that came as microseconds; what is not a time is left out.
    pub fn record_us(&mut self, microseconds: f32) {
        let seconds = f64::from(microseconds) / 1e6;
        if let Ok(latency) = Duration::try_from_secs_f64(seconds) {
            self.record(latency);
        }
    }

    /// Adds all of another's.
    pub fn merge(&mut self, other: &Self) {
        self.0
            .add(&other.0)
            .expect("all histograms have the same bounds");
    }

    /// Microseconds that a share of the latencies does not exceed; 0 when there are none.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1000.0
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }
}

/// What a call tells besides its round trip.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Told {
    /// The time the server says it took, in microseconds.
    pub server_us: Option<f32>,
}

/// What a loop saw.
#[derive(Debug, Clone, Default)]
pub struct Slice {
    pub round_trip: Latencies,
    /// As told by the server, where it tells.
    pub server: Latencies,
    /// In an open loop: how long after the intended time a call was sent, which is what the client
    /// itself adds to a round trip.
    pub sent_late: Latencies,
    pub elapsed: Duration,
    pub failed: u64,
    pub first_failure: Option<String>,
}

impl Slice {
    /// Answered calls a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 {
            self.round_trip.count() as f64 / seconds
        } else {
            0.0
        }
    }

    /// Adds what another loop saw, one after the other.
    pub fn then(&mut self, other: Self) {
        self.elapsed += other.elapsed;
        self.beside(other);
    }

    /// Adds what another loop saw at the same time.
    fn beside(&mut self, other: Self) {
        self.round_trip.merge(&other.round_trip);
        self.server.merge(&other.server);
        self.sent_late.merge(&other.sent_late);
        self.failed += other.failed;
        self.first_failure = self.first_failure.take().or(other.first_failure);
    }

    /// Adds one call.
    pub fn record(&mut self, latency: Duration, outcome: Result<Told, String>) {
        match outcome {
            Ok(told) => {
                self.round_trip.record(latency);
                if let Some(server_us) = told.server_us {
                    self.server.record_us(server_us);
                }
            }
            Err(failure) => {
                self.failed += 1;
                self.first_failure.get_or_insert(failure);
            }
        }
    }
}

/// Something that can be called again and again, by several at once.
pub trait Caller: Clone + Send + 'static {
    /// The call with the number `ordinal`; its answer is checked, and what is wrong with it is the
    /// error.
    fn call(&mut self, ordinal: u64) -> impl Future<Output = Result<Told, String>> + Send;
}

/// How calls are sent.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Calls in flight in a closed loop.
    pub concurrency: usize,
    /// Calls a second; absent for a closed loop.
    pub rate: Option<f64>,
    /// How long.
    pub turn: Duration,
}

impl Load {
    /// Calls for a while.
    pub async fn on(self, caller: &impl Caller) -> Slice {
        match self.rate {
            Some(per_second) => open_loop(caller, per_second, self.turn).await,
            None => closed_loop(caller, self.concurrency, self.turn).await,
        }
    }
}

/// `concurrency` callers for a while, each sending as soon as its last call is answered, and each
/// at least once.
async fn closed_loop<C: Caller>(caller: &C, concurrency: usize, length: Duration) -> Slice {
    let start = Instant::now();
    let end = start + length;
    let next = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..concurrency {
        let mut caller = caller.clone();
        let next = Arc::clone(&next);
        callers.spawn(async move {
            let mut seen = Slice::default();
            let mut sent = Instant::now();
            loop {
                let outcome = caller.call(next.fetch_add(1, Ordering::Relaxed)).await;
                let answered = Instant::now();
                seen.record(answered - sent, outcome);
                sent = answered;
                if sent >= end {
                    return seen;
                }
            }
        });
    }
    let mut all = Slice::default();
    while let Some(ended) = callers.join_next().await {
        match ended {
            Ok(seen) => all.beside(seen),
            Err(died) => all.record(Duration::ZERO, Err(died.to_string())),
        }
    }
    all.elapsed = start.elapsed();
    all
}

/// Calls sent at `per_second`, whether or not the earlier ones are answered. A latency counts
/// from the time its call was to be sent, so that a stall is charged to every call it delayed.
async fn open_loop<C: Caller>(caller: &C, per_second: f64, length: Duration) -> Slice {
    let start = Instant::now();
    let mut due = paced(start, per_second, length);
    let mut in_flight = JoinSet::new();
    let mut all = Slice::default();
    while let Some((ordinal, intended)) = due.recv().await {
        while in_flight.len() >= OPEN_IN_FLIGHT_MAX {
            take(&mut all, in_flight.join_next().await);
        }
        while let Some(ended) = in_flight.try_join_next() {
            take(&mut all, Some(ended));
        }
        let mut caller = caller.clone();
        in_flight.spawn(async move {
            let late = intended.elapsed();
            let outcome = caller.call(ordinal).await;
            Answered {
                late,
                latency: intended.elapsed(),
                outcome,
            }
        });
    }
    while let Some(ended) = in_flight.join_next().await {
        take(&mut all, Some(ended));
    }
    all.elapsed = start.elapsed();
    all
}

/// Tells when each call is due, on a thread of its own: the runtime's timer is too coarse, and
/// polling would take a core from the server. This is some 60 us late.
#[expect(
    clippy::disallowed_methods,
    reason = "one thread for one loop, at whose end it ends"
)]
fn paced(start: Instant, per_second: f64, length: Duration) -> Receiver<(u64, Instant)> {
    let (tell, due) = channel(OPEN_IN_FLIGHT_MAX);
    tokio::task::spawn_blocking(move || {
        let (asleep, never) = (Mutex::new(()), Condvar::new());
        for ordinal in 0.. {
            let after = intended_after(ordinal, per_second);
            if after >= length {
                return;
            }
            let intended = start + after;
            while Instant::now() < intended {
                never.wait_until(&mut asleep.lock(), intended.into_std());
            }
            if tell.blocking_send((ordinal, intended)).is_err() {
                return;
            }
        }
    });
    due
}

/// A call of an open loop.
struct Answered {
    late: Duration,
    latency: Duration,
    outcome: Result<Told, String>,
}

fn take(all: &mut Slice, ended: Option<Result<Answered, tokio::task::JoinError>>) {
    match ended {
        Some(Ok(answered)) => {
            all.sent_late.record(answered.late);
            all.record(answered.latency, answered.outcome);
        }
        Some(Err(died)) => all.record(Duration::ZERO, Err(died.to_string())),
        None => {}
    }
}

/// When the call with the number `ordinal` is to be sent, counted from the start.
fn intended_after(ordinal: u64, per_second: f64) -> Duration {
    Duration::try_from_secs_f64(ordinal as f64 / per_second).unwrap_or(Duration::MAX)
}

/// The item whose turn it is.
#[must_use]
pub fn in_turn(ordinal: u64, count: usize) -> usize {
    usize::try_from(ordinal % count as u64).expect("below a length")
}

/// The middle of some numbers; 0 when there are none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.len() / 2;
    match (sorted.get(upper), sorted.len() % 2) {
        (None, _) => 0.0,
        (Some(&middle), 1) => middle,
        (Some(&above), _) => f64::midpoint(sorted[upper - 1], above),
    }
}

/// Requests that a stream has sent and not seen answered, in order.
#[derive(Debug, Default)]
pub struct Outstanding(VecDeque<(u64, Instant)>);

impl Outstanding {
    /// A request went out.
    pub fn sent(&mut self, correlation_id: u64, at: Instant) {
        self.0.push_back((correlation_id, at));
    }

    /// Whether every request was answered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An answer came: how long it took, or what is wrong with it.
    ///
    /// # Errors
    /// When it answers a request that was not sent, was answered already, or was not the next.
    pub fn answered(&mut self, correlation_id: u64, at: Instant) -> Result<Duration, String> {
        match self.0.pop_front() {
            Some((next, sent)) if next == correlation_id => Ok(at - sent),
            Some((next, _)) => Err(format!("answer {correlation_id} instead of {next}")),
            None => Err(format!("answer {correlation_id} to nothing")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first call keeps the only thread busy; the others cost nothing.
    #[derive(Clone)]
    struct StallsOnce(Duration);

    impl Caller for StallsOnce {
        async fn call(&mut self, ordinal: u64) -> Result<Told, String> {
            let end = Instant::now() + self.0;
            while ordinal == 0 && Instant::now() < end {}
            Ok(Told {
                server_us: Some(5.0),
            })
        }
    }

    /// Every third call fails.
    #[derive(Clone)]
    struct FailsSometimes;

    impl Caller for FailsSometimes {
        async fn call(&mut self, ordinal: u64) -> Result<Told, String> {
            tokio::task::yield_now().await;
            if ordinal.is_multiple_of(3) {
                Err(format!("call {ordinal}"))
            } else {
                Ok(Told::default())
            }
        }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(future)
    }

    #[test]
    fn an_open_loop_charges_a_stall_to_every_call_it_delayed() {
        const STALL: Duration = Duration::from_millis(50);
        let seen = run(open_loop(&StallsOnce(STALL), 1000.0, 2 * STALL));
        assert_eq!(seen.round_trip.count(), 100);
        // Calls 0 to 49 were due during the stall; the call due at t waited for 50 - t.
        let late = |upto: f64| seen.round_trip.quantile_us(1.0 - upto / 100.0);
        assert!(late(10.0) >= 38_000.0, "call 10 took {} us", late(10.0));
        assert!(late(40.0) >= 8_000.0, "call 40 took {} us", late(40.0));
        // The server is not to blame: the calls were not even sent.
        let sent_late = seen.sent_late.quantile_us(0.9);
        assert!(sent_late >= 38_000.0, "sent {sent_late} us late");
    }

    #[test]
    fn an_open_loop_sends_as_many_as_the_rate_says() {
        let seen = run(open_loop(
            &FailsSometimes,
            2000.0,
            Duration::from_millis(30),
        ));
        assert_eq!(seen.round_trip.count() + seen.failed, 60);
        assert_eq!(seen.failed, 20);
        assert!(seen.first_failure.unwrap().starts_with("call "));
        assert!(seen.elapsed >= Duration::from_millis(29));
    }

    #[test]
    fn a_closed_loop_counts_answers_and_failures() {
        let seen = run(closed_loop(&FailsSometimes, 4, Duration::from_millis(20)));
        let all = seen.round_trip.count() + seen.failed;
        assert!(all >= 4);
        assert_eq!(seen.failed, all.div_ceil(3));
        assert!(seen.per_second() > 0.0);
        assert_eq!(seen.server.count(), 0);
    }

    #[test]
    fn a_closed_loop_that_begins_too_late_still_calls() {
        let seen = run(closed_loop(&StallsOnce(Duration::ZERO), 4, Duration::ZERO));
        assert_eq!(seen.round_trip.count(), 4);
    }

    #[test]
    fn quantiles_keep_three_digits() {
        let mut latencies = Latencies::default();
        for micros in 1..=1000 {
            latencies.record(Duration::from_micros(micros));
        }
        latencies.record(Duration::from_secs(3600));
        assert!((latencies.quantile_us(0.5) - 501.0).abs() <= 1.0);
        assert!((latencies.quantile_us(0.99) - 991.0).abs() <= 1.0);
        let most = latencies.quantile_us(1.0);
        assert!(
            (most - 60e6).abs() < 60e3,
            "the longest is recorded as {most} us"
        );
    }

    #[test]
    fn times_that_are_none_are_left_out() {
        let mut latencies = Latencies::default();
        for bad in [f32::NAN, -1.0, f32::INFINITY] {
            latencies.record_us(bad);
        }
        latencies.record_us(12.5);
        assert_eq!(latencies.count(), 1);
        assert!((latencies.quantile_us(0.5) - 12.5).abs() < 0.1);
    }

    #[test]
    fn merged_slices_add_up() {
        let mut slice = Slice::default();
        let mut other = Slice {
            elapsed: Duration::from_secs(2),
            ..Slice::default()
        };
        other.record(Duration::from_micros(10), Ok(Told::default()));
        other.record(Duration::from_micros(10), Err("no".to_owned()));
        slice.then(other.clone());
        slice.then(other);
        assert_eq!((slice.round_trip.count(), slice.failed), (2, 2));
        assert!((slice.per_second() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn the_median_is_the_middle() {
        for (values, middle) in [
            (&[][..], 0.0),
            (&[3.0], 3.0),
            (&[9.0, 1.0, 2.0], 2.0),
            (&[4.0, 1.0, 2.0, 9.0], 3.0),
        ] {
            assert!((median(values) - middle).abs() < 1e-9, "{values:?}");
        }
    }

    #[test]
    fn answers_out_of_order_are_noticed() {
        let now = Instant::now();
        let mut outstanding = Outstanding::default();
        outstanding.sent(1, now);
        outstanding.sent(2, now);
        assert!(outstanding.answered(1, now).is_ok());
        assert!(outstanding.answered(3, now).is_err());
        assert!(
            outstanding.answered(2, now).is_err(),
            "it was taken by the wrong answer"
        );
    }
}
