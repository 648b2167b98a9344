//! Look-ups alone and beside registrations, and registrations against removals.

use std::{ops::Range, time::Duration};

use serde::Serialize;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::{
    ask::FindCaller,
    register::{RegisterStream, Registrar},
};
use crate::{
    error::LoadtestError,
    measure::{Load, Slice},
};

const FINDS_PER_S: f64 = 1000.0;
const REGISTRATIONS_PER_S: usize = 5000;
/// How long look-ups are measured beside registrations, at most: their messages are made before.
const BUSY_MAX: Duration = Duration::from_secs(4);
/// Those messages, at most.
const BUSY_BYTES_MAX: usize = 192 << 20;

/// What look-ups, sent at one rate throughout, lose to registrations; and what removals cost.
/// Look-ups count in the server and as a round trip from the time they were to be sent.
#[derive(Debug, Clone, Serialize)]
pub struct Contention {
    pub finds_per_s: f64,
    /// As sent; less when the server takes fewer.
    pub registrations_per_s: f64,
    pub idle: FindTimes,
    pub busy: FindTimes,
    /// Of the 99th percentiles, busy / idle.
    pub server_p99_ratio: f64,
    pub round_trip_p99_ratio: f64,
    pub bulk_registrations_per_s: f64,
    /// Of the same donors, by id.
    pub removals_per_s: f64,
    /// Time of a removal / time of a registration.
    pub removal_cost: f64,
    pub failed: u64,
    #[serde(skip)]
    pub first_failure: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct FindTimes {
    pub p50_us: f64,
    pub p99_us: f64,
    pub round_trip_p50_us: f64,
    pub round_trip_p99_us: f64,
}

/// Who calls, on which connections.
#[derive(Debug)]
pub struct Callers {
    pub finds: FindCaller,
    pub registrar: Registrar,
    /// Another connection than the look-ups'.
    pub registrations: Channel,
}

/// How many donors [`measure`] registers and does not remove.
#[must_use]
pub fn donors_of(turn: Duration, tokens_each: usize) -> usize {
    let milliseconds = usize::try_from(turn.min(BUSY_MAX).as_millis()).expect("a few thousand");
    let bounded = BUSY_BYTES_MAX / (4 * tokens_each);
    (REGISTRATIONS_PER_S * milliseconds / 1000).clamp(1, bounded)
}

/// Measures with so many new donors, from the index `first` on.
///
/// # Errors
/// When a registration or removal is refused.
pub async fn measure(callers: Callers, donors: Range<usize>) -> Result<Contention, LoadtestError> {
    let Callers {
        finds,
        registrar,
        registrations,
    } = callers;
    let load = Load {
        concurrency: 1,
        rate: Some(FINDS_PER_S),
        turn: Duration::from_secs_f64(donors.len() as f64 / REGISTRATIONS_PER_S as f64),
    };
    // Half of the time before and half of it after the busy one, so that a drift cancels out.
    let half = Load {
        turn: load.turn / 2,
        ..load
    };
    let messages = registrar.messages(donors.clone());
    let mut idle = half.on(&finds).await;
    let mut stream = RegisterStream::open(registrations.clone()).await?;
    let sending = async {
        let began = Instant::now();
        let rate = Some(REGISTRATIONS_PER_S as f64);
        stream.exchange(messages, donors.start as u64, rate).await?;
        Ok::<f64, LoadtestError>(donors.len() as f64 / began.elapsed().as_secs_f64())
    };
    let (busy, registrations_per_s) = tokio::join!(load.on(&finds), sending);
    idle.then(half.on(&finds).await);

    let removals_per_s = registrar
        .remove(registrations.clone(), donors.clone())
        .await?;
    let bulk = registrar.bulk(registrations, donors).await?;
    let (calm, pressed) = (FindTimes::of(&idle), FindTimes::of(&busy));
    Ok(Contention {
        finds_per_s: FINDS_PER_S,
        registrations_per_s: registrations_per_s?,
        server_p99_ratio: pressed.p99_us / calm.p99_us,
        round_trip_p99_ratio: pressed.round_trip_p99_us / calm.round_trip_p99_us,
        idle: calm,
        busy: pressed,
        bulk_registrations_per_s: bulk.per_second,
        removals_per_s,
        removal_cost: bulk.per_second / removals_per_s,
        failed: idle.failed + busy.failed,
        first_failure: idle.first_failure.or(busy.first_failure),
    })
}

impl FindTimes {
    fn of(slice: &Slice) -> Self {
        Self {
            p50_us: slice.server.quantile_us(0.5),
            p99_us: slice.server.quantile_us(0.99),
            round_trip_p50_us: slice.round_trip.quantile_us(0.5),
            round_trip_p99_us: slice.round_trip.quantile_us(0.99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_donors_registered_beside_look_ups_are_bounded() {
        let donors = |milliseconds, tokens| donors_of(Duration::from_millis(milliseconds), tokens);
        assert_eq!(donors(100, 2048), 500);
        assert_eq!(donors(60_000, 2048), 20_000);
        assert_eq!(donors(60_000, 8192), 6144);
        assert_eq!(donors(0, 2048), 1);
    }
}
