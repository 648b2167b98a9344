//! What became of engines' events, by outcome: a kind of attention that nobody indexes must show.

use kvatlas_events::view::{Counts, Outcome};
use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use super::Labels;

/// One gauge for each outcome, over the sources that are followed now.
#[derive(Debug, Clone)]
pub struct EventOutcomes([Gauge; Outcome::ALL.len()]);

impl EventOutcomes {
    pub(super) fn new(registry: &mut Registry) -> EventOutcomes {
        let family = Family::<Labels, Gauge>::default();
        registry.register(
            "kvatlas_events_outcomes",
            "What became of the blocks and events of the sources that are followed",
            family.clone(),
        );
        let gauge = |(_, name)| family.get_or_create(&[("outcome", name)]).clone();
        EventOutcomes(Outcome::ALL.map(gauge))
    }

    /// What the sources count now.
    pub fn set(&self, sources: impl Iterator<Item = Counts>) {
        let mut sum = Counts::default();
        for counts in sources {
            sum += counts;
        }
        for (gauge, (outcome, _)) in self.0.iter().zip(Outcome::ALL) {
            gauge.set(i64::try_from(sum.get(outcome)).unwrap_or(i64::MAX));
        }
    }
}
