//! Time at the edge: a clock that never goes back, and the deadline of each call.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use tonic::{Status, metadata::MetadataMap};

/// Wall-clock time at the start, plus what has passed since.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    started_unix_ms: u64,
}

impl Clock {
    #[expect(
        clippy::disallowed_methods,
        reason = "read once; from here on time only goes forward"
    )]
    #[must_use]
    pub fn start() -> Clock {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let started_unix_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Clock {
            started: Instant::now(),
            started_unix_ms,
        }
    }

    /// Milliseconds since 1970 (UTC).
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        let passed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.started_unix_ms.saturating_add(passed)
    }

    // Reading the clock is not free: a call reads it once and derives the rest.
    fn ns_at(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.started).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Nanoseconds since 1970 (UTC), of so many since the start.
    #[must_use]
    pub fn unix_ns(&self, since_start_ns: u64) -> u64 {
        let started_ns = self.started_unix_ms.saturating_mul(1_000_000);
        started_ns.saturating_add(since_start_ns)
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn uptime_ms(&self) -> u64 {
        self.now_ns() / 1_000_000
    }
}

/// How much earlier than the caller's deadline the answer is due, at most: it has a way to go, and
/// the transport, which counts as well, would end the call as CANCELLED.
const ANSWER_EARLY_MAX: Duration = Duration::from_millis(2);

/// No call is answered in less: one that has no more time left is refused without being begun.
const ANSWER_NS_MIN: u64 = 1_000;

/// When a call began, and when it must have been answered.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    /// On the clock's nanoseconds.
    pub began_ns: u64,
    /// Milliseconds since 1970 (UTC).
    pub began_ms: u64,
    /// On the clock's nanoseconds.
    pub at_ns: u64,
    instant: Instant,
}

impl Deadline {
    /// A little before the caller's own, at most `max` away.
    #[must_use]
    pub fn of(metadata: &MetadataMap, clock: &Clock, max: Duration) -> Deadline {
        let given = metadata
            .get("grpc-timeout")
            .and_then(|value| timeout(value.to_str().ok()?))
            .map(|given| given - ANSWER_EARLY_MAX.min(given / 8));
        let budget = given.unwrap_or(max).min(max);
        let nanos = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
        let now = Instant::now();
        let began_ns = clock.ns_at(now);
        Deadline {
            began_ns,
            began_ms: clock.started_unix_ms.saturating_add(began_ns / 1_000_000),
            at_ns: began_ns.saturating_add(nanos),
            instant: now + budget,
        }
    }

    /// Refuses a call that had no time left when it began.
    pub fn check(&self) -> Result<(), Status> {
        if self.began_ns.saturating_add(ANSWER_NS_MIN) > self.at_ns {
            return Err(Status::deadline_exceeded("the call's deadline passed"));
        }
        Ok(())
    }

    /// Waits for `work` until the deadline; does not begin it when that has passed.
    pub async fn bound<T>(&self, work: impl Future<Output = T>) -> Result<T, Status> {
        if Instant::now() >= self.instant {
            return Err(Status::deadline_exceeded("the call's deadline passed"));
        }
        tokio::time::timeout_at(self.instant, work)
            .await
            .map_err(|_| Status::deadline_exceeded("the call's deadline passed"))
    }
}

// As the gRPC protocol spells it: at most eight digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let digits = text.strip_suffix(unit)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|d| d.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(count * 3600)),
        'M' => Some(Duration::from_secs(count * 60)),
        'S' => Some(Duration::from_secs(count)),
        'm' => Some(Duration::from_millis(count)),
        'u' => Some(Duration::from_micros(count)),
        'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_spelled_as_the_protocol_says() {
        for (text, expected) in [
            ("5m", Some(Duration::from_millis(5))),
            ("1S", Some(Duration::from_secs(1))),
            ("2H", Some(Duration::from_secs(7200))),
            ("3M", Some(Duration::from_secs(180))),
            ("7u", Some(Duration::from_micros(7))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("100000000n", None),
            ("m", None),
            ("5", None),
            ("", None),
            ("-5m", None),
            ("5x", None),
        ] {
            assert_eq!(timeout(text), expected, "{text}");
        }
    }

    #[test]
    fn the_callers_deadline_cannot_exceed_the_servers() {
        let clock = Clock::start();
        let max = Duration::from_secs(1);
        let mut metadata = MetadataMap::new();
        let far = Deadline::of(&metadata, &clock, max).at_ns;
        metadata.insert("grpc-timeout", "9H".parse().unwrap());
        assert!(Deadline::of(&metadata, &clock, max).at_ns < far + 500_000_000);
        metadata.insert("grpc-timeout", "0m".parse().unwrap());
        let deadline = Deadline::of(&metadata, &clock, max);
        assert!(deadline.check().is_err());
    }
}
