//! Series by namespace, for those that are used most; all others share one.
//!
//! A call counts in exactly one series, and no series ever counts backwards: one that loses its
//! place to a busier namespace goes, and what it had counted stays counted nowhere else.

use std::collections::HashMap;

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
};

use crate::telemetry::{
    record::{Lookup, NamespaceDigest, Record},
    recorder::Entry,
    words::Outcome,
};

/// Namespaces with a series of their own.
pub const NAMESPACES_MAX: usize = 32;
/// Namespaces whose use is watched for whether they deserve one.
const WATCHED_MAX: usize = 4_096;
/// How often places are given anew.
const REVIEW_MS: u64 = 60_000;
/// A newcomer takes a place when it was used so many times as often in the last minute.
const TIMES_AS_BUSY: u64 = 2;

/// The series. The recorder's thread counts, a scrape reads.
#[derive(Debug, Default)]
pub struct NamespaceSeries(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    own: Vec<(NamespaceDigest, Counts)>,
    places: HashMap<NamespaceDigest, usize>,
    other: Counts,
    /// Look-ups of those without a place, since the last review.
    watched: HashMap<NamespaceDigest, u64>,
    reviewed_ms: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    lookups: [u64; Outcome::ALL.len()],
    prompt_tokens: u64,
    reusable_tokens: u64,
    /// Look-ups since the last review.
    recent: u64,
}

impl NamespaceSeries {
    /// Counts the look-ups among the records.
    pub fn count(&self, entries: &[Entry], now_ms: u64) {
        let mut table = self.0.lock();
        for entry in entries {
            if let Record::Lookup(lookup) = &entry.line.record {
                table.count(lookup);
            }
        }
        if now_ms.saturating_sub(table.reviewed_ms) >= REVIEW_MS {
            table.reviewed_ms = now_ms;
            table.review();
        }
    }
}

impl Table {
    fn count(&mut self, lookup: &Lookup) {
        let place = lookup.namespace.and_then(|it| self.place(it));
        let counts = match place.and_then(|place| self.own.get_mut(place)) {
            Some((_, counts)) => counts,
            None => &mut self.other,
        };
        counts.lookups[lookup.outcome as usize] += 1;
        counts.prompt_tokens += u64::from(lookup.prompt_tokens);
        if lookup.outcome != Outcome::Miss {
            counts.reusable_tokens += u64::from(lookup.reusable_tokens);
        }
        counts.recent += 1;
    }

    fn place(&mut self, namespace: NamespaceDigest) -> Option<usize> {
        if let Some(place) = self.places.get(&namespace) {
            return Some(*place);
        }
        if self.own.len() < NAMESPACES_MAX {
            self.own.push((namespace, Counts::default()));
            self.places.insert(namespace, self.own.len() - 1);
            return Some(self.own.len() - 1);
        }
        if self.watched.len() < WATCHED_MAX || self.watched.contains_key(&namespace) {
            *self.watched.entry(namespace).or_default() += 1;
        }
        None
    }

    // The busiest newcomers take the places of those that are used less than half as often.
    fn review(&mut self) {
        let mut newcomers: Vec<(u64, NamespaceDigest)> =
            self.watched.drain().map(|(it, uses)| (uses, it)).collect();
        newcomers.sort_unstable_by(|left, right| right.cmp(left));
        let mut places: Vec<usize> = (0..self.own.len()).collect();
        places.sort_unstable_by_key(|place| self.own[*place].1.recent);
        for ((uses, newcomer), place) in newcomers.into_iter().zip(places) {
            let (namespace, counts) = &mut self.own[place];
            if uses <= counts.recent * TIMES_AS_BUSY {
                break;
            }
            self.places.remove(namespace);
            self.places.insert(newcomer, place);
            (*namespace, *counts) = (newcomer, Counts::default());
        }
        for (_, counts) in &mut self.own {
            counts.recent = 0;
        }
    }

    // With the word for those that have no place.
    fn all(&self) -> Vec<(String, Counts)> {
        let own = self
            .own
            .iter()
            .map(|(it, counts)| (it.to_string(), *counts));
        own.chain([("other".to_owned(), self.other)]).collect()
    }
}

/// Name, help, and what is told.
type Tokens = (&'static str, &'static str, fn(&Counts) -> u64);

impl Collector for NamespaceSeries {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let all = self.0.lock().all();
        let kind = MetricType::Counter;
        let mut lookups = encoder.encode_descriptor(
            "kvatlas_namespace_lookups",
            "Donor look-ups, by namespace and outcome",
            None,
            kind,
        )?;
        for (namespace, counts) in &all {
            for (outcome, count) in Outcome::ALL.iter().zip(counts.lookups) {
                let labels = [
                    ("namespace", namespace.as_str()),
                    ("outcome", outcome.as_str()),
                ];
                ConstCounter::new(count).encode(lookups.encode_family(&labels)?)?;
            }
        }
        let tokens: [Tokens; 2] = [
            (
                "kvatlas_namespace_prompt_tokens",
                "Tokens of prompts that were looked up, by namespace",
                |counts| counts.prompt_tokens,
            ),
            (
                "kvatlas_namespace_reusable_tokens",
                "Tokens that answers offered, by namespace",
                |counts| counts.reusable_tokens,
            ),
        ];
        for (name, help, of) in tokens {
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (namespace, counts) in &all {
                let labels = [("namespace", namespace.as_str())];
                ConstCounter::new(of(counts)).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{
        record::{Decimal, Hex, Line, Stages, VERSION},
        words::Mode,
    };

    fn entry(namespace: u64) -> Entry {
        let line = Line {
            v: VERSION,
            at_ms: 0,
            record: Record::Lookup(Box::new(Lookup {
                request: None,
                took_us: Decimal(0),
                namespace: Some(Hex(namespace)),
                outcome: Outcome::Prefix,
                reason: None,
                gate: None,
                mode: Mode::DiscoveryOnly,
                prompt_tokens: 10,
                exact_prefix_tokens: 0,
                verified_tokens: 0,
                reusable_tokens: 4,
                similarity: None,
                reuse_ratio: None,
                gates: None,
                tier: None,
                donor: None,
                owner: None,
                template: None,
                leased: false,
                lease_refusal: None,
                facts_differ: None,
                stages_us: Stages::default(),
            })),
        };
        Entry { line, seat: None }
    }

    // Namespaces `from..to`, each looked up so often.
    fn look_up(series: &NamespaceSeries, (from, to): (u64, u64), times: usize, now_ms: u64) {
        let entries: Vec<Entry> = (from..to)
            .flat_map(|it| std::iter::repeat_with(move || entry(it)).take(times))
            .collect();
        series.count(&entries, now_ms);
    }

    fn lookups(series: &NamespaceSeries, namespace: &str) -> Option<u64> {
        let all = series.0.lock().all();
        let found = all.iter().find(|(name, _)| name == namespace);
        found.map(|(_, counts)| counts.lookups.iter().sum())
    }

    #[test]
    fn a_thousand_namespaces_have_a_bounded_number_of_series() {
        let series = NamespaceSeries::default();
        look_up(&series, (0, 1_000), 3, 1);
        assert_eq!(series.0.lock().all().len(), NAMESPACES_MAX + 1);
        assert_eq!(lookups(&series, "000000000000"), Some(3));
        let others = 3 * (1_000 - NAMESPACES_MAX as u64);
        assert_eq!(lookups(&series, "other"), Some(others));
    }

    #[test]
    fn a_busier_namespace_takes_the_place_of_the_idlest_and_what_others_counted_stays() {
        let series = NamespaceSeries::default();
        series.0.lock().reviewed_ms = 1;
        look_up(&series, (0, NAMESPACES_MAX as u64), 5, 1);
        look_up(&series, (500, 501), 10, 1);
        look_up(&series, (501, 502), 11, 1 + REVIEW_MS);
        let others = lookups(&series, "other");
        assert_eq!(
            lookups(&series, &Hex::<12>(500).to_string()),
            None,
            "only twice as busy"
        );
        assert_eq!(lookups(&series, &Hex::<12>(501).to_string()), Some(0));
        assert_eq!(series.0.lock().all().len(), NAMESPACES_MAX + 1);
        look_up(&series, (501, 502), 1, 2 + REVIEW_MS);
        assert_eq!(lookups(&series, &Hex::<12>(501).to_string()), Some(1));
        assert_eq!(lookups(&series, "other"), others);
    }
}
