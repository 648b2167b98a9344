//! The last two minutes, second by second.

use std::collections::VecDeque;

use crate::{
    report::{
        class::Class,
        latency::{Quantiles, Times},
        picture::ByClass,
        tally::Merge,
    },
    telemetry::record::{Line, Record},
};

pub const SECONDS: usize = 120;
/// Rates are over the last so many whole seconds.
const RATE_SECONDS: usize = 10;
/// Times are kept in slots of so many seconds.
const SLOT_SECONDS: u64 = 10;
const SLOTS: usize = SECONDS / 10;

/// Counts of each second, the newest last.
#[derive(Debug, Default)]
pub struct Pulse {
    /// The second that is counted now, since 1970.
    now_s: u64,
    seconds: VecDeque<Second>,
    slots: VecDeque<(u64, Times)>,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Second {
    pub lookups: ByClass,
    pub manifests: u64,
    pub reports: u64,
}

impl Pulse {
    /// Makes room for the seconds up to now.
    pub fn advance(&mut self, now_ms: u64) {
        let now_s = now_ms / 1_000;
        let passed = now_s.saturating_sub(self.now_s).min(SECONDS as u64);
        for _ in 0..passed {
            self.seconds.push_back(Second::default());
        }
        while self.seconds.len() > SECONDS {
            self.seconds.pop_front();
        }
        self.now_s = self.now_s.max(now_s);
        let oldest = self.now_s.saturating_sub(SECONDS as u64) / SLOT_SECONDS;
        self.slots.retain(|(slot, _)| *slot >= oldest);
    }

    /// Counts a record in the second that it belongs to; older ones are left out.
    pub fn add(&mut self, line: &Line) {
        let at_s = line.at_ms / 1_000;
        let back = self.now_s.saturating_sub(at_s);
        let place = usize::try_from(back).ok();
        let place = place.and_then(|back| self.seconds.len().checked_sub(back + 1));
        let Some(second) = place.and_then(|place| self.seconds.get_mut(place)) else {
            return;
        };
        match &line.record {
            Record::Lookup(lookup) => {
                second.lookups.add(Class::of(lookup), 1);
                self.times(at_s).add(lookup.took_us.0.div_ceil(1_000));
            }
            Record::Manifest(_) => second.manifests += 1,
            Record::Reuse(_) => second.reports += 1,
            Record::Start(_) | Record::Sources(_) => {}
        }
    }

    #[must_use]
    pub fn seconds(&self) -> Vec<Second> {
        self.seconds.iter().copied().collect()
    }

    /// Per second, over the last whole ones: look-ups, manifests.
    #[must_use]
    pub fn rates(&self) -> (f64, f64) {
        let whole = self.seconds.iter().rev().skip(1).take(RATE_SECONDS);
        let (mut lookups, mut manifests, mut seconds) = (0.0, 0.0, 0.0);
        for second in whole {
            lookups += real(second.lookups.total());
            manifests += real(second.manifests);
            seconds += 1.0;
        }
        (
            lookups / f64::max(seconds, 1.0),
            manifests / f64::max(seconds, 1.0),
        )
    }

    /// Look-ups of all seconds.
    #[must_use]
    pub fn lookups(&self) -> ByClass {
        let mut all = ByClass::default();
        for second in &self.seconds {
            all.merge(&second.lookups);
        }
        all
    }

    /// Of all seconds.
    #[must_use]
    pub fn latency(&self) -> Option<Quantiles> {
        let mut all = Times::default();
        for (_, times) in &self.slots {
            all.merge(times);
        }
        all.quantiles()
    }

    fn times(&mut self, at_s: u64) -> &mut Times {
        let slot = at_s / SLOT_SECONDS;
        let place = self.slots.iter().position(|(it, _)| *it == slot);
        let place = place.unwrap_or_else(|| {
            if self.slots.len() > SLOTS {
                self.slots.pop_front();
            }
            self.slots.push_back((slot, Times::default()));
            self.slots.len() - 1
        });
        let (_, times) = &mut self.slots[place];
        times
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a second")]
fn real(count: u64) -> f64 {
    count as f64
}
