//! Look-ups alone and beside registrations, and registrations against removals.

use std::{ops::Range, time::Duration};

use serde::Serialize;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::{
    ask::FindCaller,
    register::{RegisterStream, Registrar},
    seen::SeenReport,
};
use crate::{child::own_cpu_time, error::LoadtestError, measure::Load};

const FINDS_PER_S: f64 = 1000.0;
const REGISTRATIONS_PER_S: usize = 5000;
/// How long look-ups are measured beside registrations, at most: their messages are made before.
const BUSY_MAX: Duration = Duration::from_secs(4);
/// Those messages, at most.
const BUSY_BYTES_MAX: usize = 192 << 20;

/// What look-ups, sent at one rate throughout, lose to registrations, which are sent at a rate of
/// their own; and what removals cost.
#[derive(Debug, Clone, Serialize)]
pub struct Contention {
    pub finds_per_s: f64,
    /// As acknowledged; less when the server takes fewer than are sent.
    pub registrations_per_s: f64,
    /// Look-ups alone, on a server that has nothing else to do.
    pub idle: FindTimes,
    /// Look-ups beside the registrations.
    pub busy: FindTimes,
    /// busy / idle.
    pub p99_ratios: Ratios,
    pub bulk_registrations_per_s: f64,
    /// Of the same donors, by id.
    pub removals_per_s: f64,
    /// Time of a removal / time of a registration.
    pub removal_cost: f64,
    pub failed: u64,
    #[serde(skip)]
    pub first_failure: Option<String>,
}

/// Of the 99th percentiles: the whole time in the server, the search without neighbours, look-ups
/// that asked neighbours, and the round trip. No number where there was nothing to divide by.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ratios {
    pub whole: f64,
    pub search: f64,
    pub neighbours: f64,
    pub round_trip: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct FindTimes {
    /// In the server, from the arrival to the finished answer.
    pub p50_us: f64,
    pub p99_us: f64,
    #[serde(flatten)]
    pub seen: SeenReport,
    /// From the time that a look-up was to be sent, which includes how late this process sent it.
    pub round_trip_p50_us: f64,
    pub round_trip_p99_us: f64,
    pub sent_late_p50_us: f64,
    pub sent_late_p99_us: f64,
    /// Processor time of this process per second.
    pub client_cpu_share: f64,
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

/// Measures with so many new donors, from the index `first` on, on a server that is quiet.
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
    let messages = registrar.messages(donors.clone());
    let mut stream = RegisterStream::open(registrations.clone()).await?;
    let idle = finds_under(load, &finds).await?;
    let sending = async {
        let began = Instant::now();
        let rate = Some(REGISTRATIONS_PER_S as f64);
        stream.exchange(messages, donors.start as u64, rate).await?;
        Ok::<f64, LoadtestError>(donors.len() as f64 / began.elapsed().as_secs_f64())
    };
    let (busy, registrations_per_s) = tokio::try_join!(finds_under(load, &finds), sending)?;

    let removals_per_s = registrar
        .remove(registrations.clone(), donors.clone())
        .await?;
    let bulk = registrar.bulk(registrations, donors).await?;
    Ok(Contention {
        finds_per_s: FINDS_PER_S,
        registrations_per_s,
        p99_ratios: Ratios::new(&busy.times, &idle.times),
        idle: idle.times,
        busy: busy.times,
        bulk_registrations_per_s: bulk.per_second,
        removals_per_s,
        removal_cost: bulk.per_second / removals_per_s,
        failed: idle.failed + busy.failed,
        first_failure: idle.first_failure.or(busy.first_failure),
    })
}

struct Finds {
    times: FindTimes,
    failed: u64,
    first_failure: Option<String>,
}

async fn finds_under(load: Load, finds: &FindCaller) -> Result<Finds, LoadtestError> {
    drop(finds.take_seen());
    let own = own_cpu_time()?;
    let slice = load.on(finds).await;
    let own = own_cpu_time()?.saturating_sub(own);
    Ok(Finds {
        times: FindTimes {
            p50_us: slice.server.quantile_us(0.5),
            p99_us: slice.server.quantile_us(0.99),
            seen: finds.take_seen().together().report(),
            round_trip_p50_us: slice.round_trip.quantile_us(0.5),
            round_trip_p99_us: slice.round_trip.quantile_us(0.99),
            sent_late_p50_us: slice.sent_late.quantile_us(0.5),
            sent_late_p99_us: slice.sent_late.quantile_us(0.99),
            client_cpu_share: own.as_secs_f64() / slice.elapsed.as_secs_f64(),
        },
        failed: slice.failed,
        first_failure: slice.first_failure,
    })
}

impl Ratios {
    fn new(busy: &FindTimes, idle: &FindTimes) -> Self {
        let ratio = |p99: fn(&FindTimes) -> f64| p99(busy) / p99(idle);
        Self {
            whole: ratio(|times| times.p99_us),
            search: ratio(|times| times.seen.search_p99_us),
            neighbours: ratio(|times| times.seen.neighbours.p99_us),
            round_trip: ratio(|times| times.round_trip_p99_us),
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
