//! Latencies in one geometric series of buckets, counted without a lock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, TypedMetric},
};

/// Bounds double from 1 us to 8.4 s; what takes longer is beyond the last.
const BOUNDS: usize = 24;
const FIRST_BOUND_NS: u64 = 1_000;

/// How often each duration was seen. Clones share the counts.
#[derive(Debug, Clone, Default)]
pub struct Latency(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// By the first bound that is not below; the last has none.
    within: [AtomicU64; BOUNDS + 1],
    sum_ns: AtomicU64,
}

impl Latency {
    pub fn observe_ns(&self, took_ns: u64) {
        // The thousand is divided out, rounded up, so that the bounds are powers of two.
        let micros = took_ns.div_ceil(FIRST_BOUND_NS).max(1);
        let place = micros.next_power_of_two().trailing_zeros() as usize;
        let place = place.min(BOUNDS);
        self.0.within[place].fetch_add(1, Ordering::Relaxed);
        self.0.sum_ns.fetch_add(took_ns, Ordering::Relaxed);
    }
}

impl TypedMetric for Latency {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Latency {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut buckets = Vec::with_capacity(BOUNDS + 1);
        let mut count = 0;
        for (place, within) in self.0.within.iter().enumerate() {
            let within = within.load(Ordering::Relaxed);
            count += within;
            let bound = Duration::from_nanos(FIRST_BOUND_NS << place.min(BOUNDS));
            let bound = if place == BOUNDS {
                f64::INFINITY
            } else {
                bound.as_secs_f64()
            };
            buckets.push((bound, within));
        }
        let sum = Duration::from_nanos(self.0.sum_ns.load(Ordering::Relaxed));
        encoder.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(took_ns: u64, expected: usize) {
        let latency = Latency::default();
        latency.observe_ns(took_ns);
        let place = |place: usize| latency.0.within[place].load(Ordering::Relaxed);
        let found = (0..=BOUNDS).position(|it| place(it) == 1);
        assert_eq!(found, Some(expected), "{took_ns} ns");
    }

    #[test]
    fn each_duration_is_within_its_bound_and_over_the_one_below() {
        check(0, 0);
        check(1, 0);
        for place in 0..BOUNDS {
            check(1_000 << place, place);
            check((1_000 << place) + 1, place + 1);
        }
        check(u64::MAX, BOUNDS);
    }
}
