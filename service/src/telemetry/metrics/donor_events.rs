//! What other providers announce of their donors, counted.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{Labels, counter};
use crate::donors::vocabulary::{DonorEventOutcome, Forgotten, Unfindable};

/// What other providers announce of their donors.
#[derive(Debug, Clone)]
pub struct DonorEvents {
    outcomes: [Counter; DonorEventOutcome::ALL.len()],
    unfindable: [Counter; Unfindable::ALL.len()],
    forgotten: [Counter; Forgotten::ALL.len()],
    /// Events from NATS that were dropped since too many waited.
    pub overrun: Counter,
    /// Neighbours of misses that were announced.
    pub listed: Counter,
    pub donors: Gauge,
    pub streams: Gauge,
    pub bytes: Gauge,
    /// Subscriptions, and how many of them are connected.
    pub sources: Gauge,
    pub sources_connected: Gauge,
}

impl DonorEvents {
    pub(super) fn new(r: &mut Registry) -> DonorEvents {
        let mut family = |name, help| {
            let family = Family::<Labels, Counter>::default();
            r.register(name, help, family.clone());
            family
        };
        let outcomes = family(
            "kvatlas_donor_events",
            "Events about donors of other providers, by what became of them",
        );
        let unfindable = family(
            "kvatlas_announced_donors_unfindable",
            "Announced donors that no look-up can find, by why",
        );
        let forgotten = family(
            "kvatlas_announced_donors_forgotten",
            "Announced donors that went, by why",
        );
        DonorEvents {
            outcomes: DonorEventOutcome::ALL.map(|it| bound(&outcomes, "outcome", it.as_str())),
            unfindable: Unfindable::ALL.map(|it| bound(&unfindable, "reason", it.as_str())),
            forgotten: Forgotten::ALL.map(|it| bound(&forgotten, "reason", it.as_str())),
            overrun: counter(
                r,
                "kvatlas_donor_events_overrun",
                "Events about donors from NATS that were dropped since too many waited",
            ),
            listed: counter(
                r,
                "kvatlas_announced_donors_listed",
                "Announced donors that answers listed as neighbours",
            ),
            donors: gauge(
                r,
                "kvatlas_announced_donors",
                "Announced donors that can be found",
            ),
            streams: gauge(
                r,
                "kvatlas_donor_event_streams",
                "Emitters of events about donors that are known",
            ),
            bytes: gauge(
                r,
                "kvatlas_announced_donor_bytes",
                "Memory that announced donors take, about",
            ),
            sources: gauge(
                r,
                "kvatlas_donor_event_sources",
                "NATS servers that events about donors are to come from",
            ),
            sources_connected: gauge(
                r,
                "kvatlas_donor_event_sources_connected",
                "NATS servers that events about donors can come from now",
            ),
        }
    }

    pub fn count(&self, outcome: DonorEventOutcome) {
        count(&self.outcomes, &DonorEventOutcome::ALL, &outcome, 1);
    }

    pub fn count_unfindable(&self, why: Unfindable) {
        count(&self.unfindable, &Unfindable::ALL, &why, 1);
    }

    pub fn count_forgotten(&self, why: Forgotten, donors: usize) {
        count(&self.forgotten, &Forgotten::ALL, &why, donors as u64);
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    let gauge = Gauge::default();
    registry.register(name, help, gauge.clone());
    gauge
}

fn bound(family: &Family<Labels, Counter>, label: &'static str, value: &'static str) -> Counter {
    family.get_or_create(&[(label, value)]).clone()
}

// In the order of `all`, one counter for each.
fn count<T: PartialEq>(counters: &[Counter], all: &[T], value: &T, by: u64) {
    for (counter, each) in counters.iter().zip(all) {
        if each == value {
            counter.inc_by(by);
        }
    }
}
