//! Look-ups with registrations among them, as a fleet sends them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kvatlas_proto::v1::RegisterDonorResponse;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::{
    ask::{FindCaller, Times},
    register::{Registrar, UNARY_PATH, kept},
};
use crate::{
    measure::{Caller, Latencies, Load, Slice, Told},
    prompts::Class,
    wire::Method,
};

/// One call in so many is a registration: 5 %.
const REGISTER_ONE_IN: u64 = 20;
/// The load, of what the server was just seen to take.
const LOAD_SHARE: f64 = 0.7;
/// The part of the time for latency that finding out what the server takes is given.
const CAPACITY_TIME_SHARE: u32 = 4;

/// What a mixed load came to.
#[derive(Debug)]
pub struct Mixed {
    /// Calls a second in a closed loop.
    pub capacity_per_s: f64,
    /// Calls a second that were then sent.
    pub rate_per_s: f64,
    pub seen: Seen,
    pub slice: Slice,
}

/// Times by class of look-up.
#[derive(Debug, Default)]
pub struct Seen {
    pub classes: Vec<ClassSeen>,
    /// Round trips of registrations.
    pub register: Latencies,
}

#[derive(Debug)]
pub struct ClassSeen {
    pub class: Class,
    /// The server's search, without neighbours.
    pub search: Latencies,
    /// Neighbours, where they were asked.
    pub neighbours: Latencies,
}

impl Seen {
    fn add(&mut self, class: Class, times: Times) {
        let at = self.classes.iter().position(|seen| seen.class == class);
        let at = at.unwrap_or_else(|| {
            self.classes.push(ClassSeen {
                class,
                search: Latencies::default(),
                neighbours: Latencies::default(),
            });
            self.classes.len() - 1
        });
        let seen = &mut self.classes[at];
        seen.search.record_us(times.search_us);
        if times.neighbours_us > 0.0 {
            seen.neighbours.record_us(times.neighbours_us);
        }
    }

    /// All classes together: (search, neighbours).
    #[must_use]
    pub fn together(&self) -> (Latencies, Latencies) {
        let mut all = (Latencies::default(), Latencies::default());
        for seen in &self.classes {
            all.0.merge(&seen.search);
            all.1.merge(&seen.neighbours);
        }
        all
    }
}

/// Sends look-ups, and every now and then a registration of a new donor.
#[derive(Debug, Clone)]
pub struct MixedCaller {
    finds: FindCaller,
    registers: Method<RegisterDonorResponse>,
    registrar: Registrar,
    /// The index of the next donor to register.
    next_donor: Arc<AtomicUsize>,
    seen: Arc<Mutex<Seen>>,
}

impl MixedCaller {
    pub fn new(
        finds: FindCaller,
        registrar: Registrar,
        channel: Channel,
        next_donor: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            finds,
            registers: Method::new(channel, UNARY_PATH),
            registrar,
            next_donor,
            seen: Arc::default(),
        }
    }

    /// Finds out what the server takes, then sends a part of that.
    pub async fn measure(&self, concurrency: usize, turn: Duration) -> Mixed {
        let closed = Load {
            concurrency,
            rate: None,
            turn: turn / CAPACITY_TIME_SHARE,
        };
        let mut slice = closed.on(self).await;
        let capacity_per_s = slice.per_second();
        *self.seen.lock() = Seen::default();
        let rate_per_s = (capacity_per_s * LOAD_SHARE).max(1.0);
        let open = Load {
            concurrency,
            rate: Some(rate_per_s),
            turn,
        };
        let under_load = open.on(self).await;
        slice.failed += under_load.failed;
        slice.first_failure = slice.first_failure.or(under_load.first_failure);
        Mixed {
            capacity_per_s,
            rate_per_s,
            seen: std::mem::take(&mut self.seen.lock()),
            slice,
        }
    }

    async fn register(&mut self) -> Result<Told, String> {
        let index = self.next_donor.fetch_add(1, Ordering::Relaxed);
        let request = self.registrar.request(index);
        let sent = Instant::now();
        let answer = self
            .registers
            .call(request)
            .await
            .map_err(|status| format!("RegisterDonor: {status}"))?;
        self.seen.lock().register.record(sent.elapsed());
        kept(&answer).map_err(|reason| format!("RegisterDonor: {reason}"))?;
        Ok(Told::default())
    }
}

impl Caller for MixedCaller {
    async fn call(&mut self, ordinal: u64) -> Result<Told, String> {
        if ordinal.is_multiple_of(REGISTER_ONE_IN) {
            return self.register().await;
        }
        let look_up = ordinal - ordinal / REGISTER_ONE_IN - 1;
        let (class, times) = self.finds.find(look_up).await?;
        self.seen.lock().add(class, times);
        Ok(Told {
            server_us: Some(times.whole_us),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_by_class() {
        let times = |search_us, neighbours_us| Times {
            whole_us: search_us + neighbours_us,
            search_us,
            neighbours_us,
        };
        let mut seen = Seen::default();
        seen.add(Class::Edit, times(10.0, 0.0));
        seen.add(Class::Negative, times(20.0, 400.0));
        seen.add(Class::Edit, times(30.0, 0.0));
        let edit = &seen.classes[0];
        assert_eq!((edit.class, edit.search.count()), (Class::Edit, 2));
        assert_eq!(edit.neighbours.count(), 0);
        let (search, neighbours) = seen.together();
        assert_eq!((search.count(), neighbours.count()), (3, 1));
        assert!((neighbours.quantile_us(0.5) - 400.0).abs() < 1.0);
    }
}
