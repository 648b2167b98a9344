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
    ask::FindCaller,
    register::{Registrar, UNARY_PATH, kept},
    seen::Seen,
};
use crate::{
    child::own_cpu_time,
    error::LoadtestError,
    measure::{Caller, Latencies, Load, Slice, Told},
    wire::Method,
};

/// One call in so many is a registration: 5 %.
const REGISTER_ONE_IN: u64 = 20;
/// The load, of what the server was just seen to take.
const LOAD_SHARE: f64 = 0.7;
/// The part of the time for latency that finding out what the server takes is given.
const CAPACITY_TIME_SHARE: u32 = 4;
/// Calls of the load, at least: fewer have no quantiles.
const CALLS_MIN: f64 = 2.0 * REGISTER_ONE_IN as f64;

/// What a mixed load came to.
#[derive(Debug)]
pub struct Mixed {
    /// Calls a second in a closed loop.
    pub capacity_per_s: f64,
    /// Processor time that this process used for them, per second: at as much as it has threads,
    /// the capacity is this process's and not the server's.
    pub client_cpu_share: f64,
    /// Calls a second that were then sent.
    pub rate_per_s: f64,
    /// Look-ups under that load.
    pub seen: Seen,
    /// Round trips of registrations under that load.
    pub register: Latencies,
    /// That load.
    pub slice: Slice,
}

/// Sends look-ups, and every now and then a registration of a new donor.
#[derive(Debug, Clone)]
pub struct MixedCaller {
    finds: FindCaller,
    registers: Method<RegisterDonorResponse>,
    registrar: Registrar,
    /// The index of the next donor to register.
    next_donor: Arc<AtomicUsize>,
    register: Arc<Mutex<Latencies>>,
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
            register: Arc::default(),
        }
    }

    /// Finds out what the server takes, then sends a part of that.
    ///
    /// # Errors
    /// When the system does not tell the processor time.
    pub async fn measure(
        &self,
        concurrency: usize,
        turn: Duration,
    ) -> Result<Mixed, LoadtestError> {
        let closed = Load {
            concurrency,
            rate: None,
            turn: turn / CAPACITY_TIME_SHARE,
        };
        let own = own_cpu_time()?;
        let full = closed.on(self).await;
        let own = own_cpu_time()?.saturating_sub(own);
        let capacity_per_s = full.per_second();
        drop(self.finds.take_seen());
        *self.register.lock() = Latencies::default();

        let rate_per_s = (capacity_per_s * LOAD_SHARE).max(CALLS_MIN / turn.as_secs_f64());
        let open = Load {
            concurrency,
            rate: Some(rate_per_s),
            turn,
        };
        let mut slice = open.on(self).await;
        slice.failed += full.failed;
        slice.first_failure = full.first_failure.or(slice.first_failure);
        Ok(Mixed {
            capacity_per_s,
            client_cpu_share: own.as_secs_f64() / full.elapsed.as_secs_f64(),
            rate_per_s,
            seen: self.finds.take_seen(),
            register: std::mem::take(&mut self.register.lock()),
            slice,
        })
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
        self.register.lock().record(sent.elapsed());
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
        self.finds.call(look_up).await
    }
}
