//! The one way in: events wait in a bounded queue and are applied on a thread of their own, one
//! after another, whoever they come from.

use std::{io, sync::Arc};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{
    decode::{EVENT_BYTES_MAX, decode},
    refusal::Refusal,
};
use crate::{
    donors::{
        announced::{Announced, Applied, is_within},
        owners::OwnerKey,
        scope::{EVERYTHING, Scope},
        vocabulary::DonorEventOutcome,
    },
    supervise::{Supervisor, Workers},
    telemetry::metrics::DonorEvents,
};

/// What waits, in units of 16 KiB: 64 MiB, and as many events.
const UNIT_BYTES: usize = 16 << 10;
const UNITS_MAX: usize = 4096;

/// Why an event is refused whose sender may not speak for all that it is about; the same whether
/// any of it exists.
const NOT_ITS_OWN: &str = "the token may not name the event's worker or tenant";

/// Applies events to what is announced.
#[derive(Debug)]
pub struct Intake {
    pub announced: Arc<Announced>,
    pub metrics: DonorEvents,
    thread: Workers,
    room: Arc<Semaphore>,
}

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub outcome: DonorEventOutcome,
    /// Never content of the event.
    pub detail: String,
}

/// The event is not applied, because too many wait or because the server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun;

impl Intake {
    /// # Errors
    /// When the system gives no thread.
    pub fn start(
        supervisor: &Supervisor,
        announced: Arc<Announced>,
        metrics: DonorEvents,
    ) -> io::Result<Intake> {
        Ok(Intake {
            announced,
            metrics,
            // Each job holds a unit of the room, so that the queue is never full.
            thread: Workers::start(supervisor, "donor-events", 1, UNITS_MAX)?,
            room: Arc::new(Semaphore::new(UNITS_MAX)),
        })
    }

    /// Applies an event once there is room for it, unless it is about what `scope` does not hold.
    ///
    /// # Errors
    /// When the server stops.
    pub async fn take(&self, event: Bytes, scope: Arc<Scope>) -> Result<Taken, Overrun> {
        let room = Arc::clone(&self.room).acquire_many_owned(units(&event));
        let room = room.await.map_err(|_| Overrun)?;
        let (reply, taken) = oneshot::channel();
        self.submit((event, scope), room, move |taken| {
            // The caller may have gone.
            let _gone = reply.send(taken);
        })?;
        taken.await.map_err(|_| Overrun)
    }

    /// Has an event applied, or drops it at once.
    ///
    /// # Errors
    /// When there is no room for it.
    pub fn try_take(&self, event: Bytes) -> Result<(), Overrun> {
        let room = Arc::clone(&self.room).try_acquire_many_owned(units(&event));
        let room = room.map_err(|_| Overrun)?;
        self.submit((event, Arc::new(EVERYTHING.clone())), room, |_| {})
    }

    /// Forgets what a worker announced, whatever may still wait.
    pub fn forget_worker(&self, worker: &OwnerKey) {
        let applied = self.announced.forget_worker(worker);
        record(&self.announced, &self.metrics, &applied);
    }

    /// Lets what waits be applied, then ends the thread.
    pub fn stop(&self) {
        self.room.close();
        self.thread.stop();
    }

    fn submit(
        &self,
        (event, scope): (Bytes, Arc<Scope>),
        room: OwnedSemaphorePermit,
        reply: impl FnOnce(Taken) + Send + 'static,
    ) -> Result<(), Overrun> {
        let (announced, metrics) = (Arc::clone(&self.announced), self.metrics.clone());
        let work = move || {
            reply(apply(&announced, &metrics, &event, &scope));
            drop(room);
        };
        self.thread.submit(work).map_err(|_| Overrun)
    }
}

// One that is too large is refused, and takes no more room than the largest.
fn units(event: &Bytes) -> u32 {
    let bytes = event.len().min(EVENT_BYTES_MAX);
    let units = bytes.div_ceil(UNIT_BYTES).max(1);
    u32::try_from(units).unwrap_or(u32::MAX)
}

fn apply(announced: &Announced, metrics: &DonorEvents, event: &[u8], scope: &Scope) -> Taken {
    let (applied, detail) = match decode(event) {
        Ok(event) if !is_within(scope, &event.at, Some(&event.change)) => {
            (Applied::refused(), NOT_ITS_OWN.to_owned())
        }
        Ok(event) => {
            let applied = announced.apply(event);
            let detail = detail(&applied);
            (applied, detail)
        }
        Err(Refusal { fault, lost }) => {
            let lost = lost.filter(|lost| is_within(scope, &lost.at, None));
            let applied = lost.map_or_else(Applied::refused, |lost| announced.lose(&lost));
            (applied, fault.to_string())
        }
    };
    metrics.count(applied.outcome);
    record(announced, metrics, &applied);
    Taken {
        outcome: applied.outcome,
        detail,
    }
}

fn record(announced: &Announced, metrics: &DonorEvents, applied: &Applied) {
    if let Some(why) = applied.unfindable {
        metrics.count_unfindable(why);
    }
    for &(why, donors) in &applied.forgotten {
        metrics.count_forgotten(why, donors);
    }
    let counts = announced.counts();
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    metrics.donors.set(number(counts.donors));
    metrics.streams.set(number(counts.streams));
    metrics.bytes.set(number(counts.bytes));
}

fn detail(applied: &Applied) -> String {
    if applied.outcome == DonorEventOutcome::Refused {
        return "data.provider_generation: older than the emitter's".to_owned();
    }
    let unfindable = applied.unfindable;
    unfindable.map_or_else(String::new, |why| format!("no look-up finds it: {why}"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;
    use crate::{donors::announced::Capacity, telemetry::metrics::Metrics};

    fn everything() -> Arc<Scope> {
        Arc::new(EVERYTHING.clone())
    }

    fn intake() -> Intake {
        let announced = Arc::new(Announced::new(None, Capacity::default()));
        let metrics = Metrics::new(1).donor_events;
        Intake::start(&Supervisor::new(), announced, metrics).unwrap()
    }

    #[tokio::test]
    async fn what_waits_is_bounded_by_bytes_and_by_number() {
        for (bytes, most) in [
            (1, 4096),
            (16 << 10, 4096),
            ((16 << 10) + 1, 2048),
            (4 << 20, 16),
        ] {
            let intake = intake();
            // Until the thread is let go on, everything waits.
            let (release, released) = sync_channel::<()>(0);
            let (started, has_started) = sync_channel(1);
            let hold = move || {
                started.send(()).unwrap();
                let _dropped = released.recv();
            };
            intake.thread.submit(hold).unwrap();
            has_started.recv().unwrap();
            let event = Bytes::from(vec![b'x'; bytes]);
            for number in 0..most {
                assert_eq!(intake.try_take(event.clone()), Ok(()), "{bytes}: {number}");
            }
            assert_eq!(intake.try_take(event.clone()), Err(Overrun), "{bytes}");
            drop(release);
            // One that may wait is taken behind them.
            let taken = intake.take(event, everything()).await.unwrap();
            assert_eq!(taken.outcome, DonorEventOutcome::Refused);
            intake.stop();
            assert_eq!(intake.try_take(Bytes::new()), Err(Overrun));
            assert_eq!(intake.take(Bytes::new(), everything()).await, Err(Overrun));
        }
    }
}
