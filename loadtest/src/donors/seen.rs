//! What the server tells of the time that its answers took, by class of look-up.

use kvatlas_proto::v1::{Discovery, FindDonorResponse, NeighbourSearch, StageTimings};
use serde::Serialize;

use crate::{measure::Latencies, prompts::Class};

/// What the server tells of the time that one answer took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Times {
    /// From the arrival of the request to the finished answer, waiting for neighbours included.
    pub whole_us: f32,
    /// The same without neighbours: decoding, seeds, alignment, gates.
    pub search_us: f32,
    /// What became of asking neighbours; absent where the seeds sufficed.
    pub neighbours: Option<NeighboursEnd>,
}

/// What became of asking the neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighboursEnd {
    /// They nominated the donor of the answer.
    Nominated,
    /// They had none that passes the gates, or none of them has a vector yet.
    Nothing,
    /// They did not answer before the deadline.
    Late,
    /// Too many were waiting already, or the search failed.
    Refused,
}

impl Times {
    /// As the answer tells them; what is not told is no number.
    #[must_use]
    pub fn of(answer: &FindDonorResponse) -> Self {
        let neighbours = NeighboursEnd::of(answer);
        let Some(timings) = answer.timings else {
            return Self {
                whole_us: f32::NAN,
                search_us: f32::NAN,
                neighbours,
            };
        };
        let StageTimings {
            decode_us,
            seeds_us,
            align_us,
            gate_us,
            total_us,
            neighbours_us: _,
            facts_us: _,
        } = timings;
        let whole_us = decode_us + total_us;
        // The whole of an answer that asked includes the way to another thread and back.
        let search_us = match neighbours {
            None => whole_us,
            Some(_) => decode_us + seeds_us + align_us + gate_us,
        };
        Self {
            whole_us,
            search_us,
            neighbours,
        }
    }
}

impl NeighboursEnd {
    fn of(answer: &FindDonorResponse) -> Option<Self> {
        let nominated = || {
            let quality = answer.r#match.as_ref()?.quality.as_ref()?;
            (quality.discovery() == Discovery::Sketch).then_some(Self::Nominated)
        };
        match answer.sketch_search() {
            NeighbourSearch::Unspecified
            | NeighbourSearch::NotNeeded
            | NeighbourSearch::NoText
            | NeighbourSearch::Disabled => None,
            NeighbourSearch::Done => Some(nominated().unwrap_or(Self::Nothing)),
            NeighbourSearch::NothingIndexed => Some(Self::Nothing),
            NeighbourSearch::Late => Some(Self::Late),
            NeighbourSearch::Busy | NeighbourSearch::Failed => Some(Self::Refused),
        }
    }
}

/// Times by class of look-up.
#[derive(Debug, Default)]
pub struct Seen(Vec<(Class, ClassSeen)>);

/// Times of some look-ups.
#[derive(Debug, Default)]
pub struct ClassSeen {
    pub search: Latencies,
    pub neighbours: NeighboursSeen,
}

/// Look-ups that asked the neighbours.
#[derive(Debug, Default)]
pub struct NeighboursSeen {
    nominated: u64,
    late: u64,
    refused: u64,
    /// All of them, by the whole time that the answer took.
    whole: Latencies,
}

impl Seen {
    /// Adds one answer.
    pub fn add(&mut self, class: Class, times: Times) {
        let at = self.0.iter().position(|&(known, _)| known == class);
        let at = at.unwrap_or_else(|| {
            self.0.push((class, ClassSeen::default()));
            self.0.len() - 1
        });
        self.0[at].1.add(times);
    }

    /// One class; absent where none of it was asked.
    #[must_use]
    pub fn of(&self, class: Class) -> Option<&ClassSeen> {
        let found = self.0.iter().find(|&&(known, _)| known == class);
        found.map(|(_, seen)| seen)
    }

    /// All classes.
    #[must_use]
    pub fn together(&self) -> ClassSeen {
        let mut all = ClassSeen::default();
        for (_, seen) in &self.0 {
            all.search.merge(&seen.search);
            all.neighbours.merge(&seen.neighbours);
        }
        all
    }
}

impl ClassSeen {
    /// Adds one answer.
    pub fn add(&mut self, times: Times) {
        self.search.record_us(times.search_us);
        if let Some(end) = times.neighbours {
            self.neighbours.add(end, times.whole_us);
        }
    }

    /// For reports.
    #[must_use]
    pub fn report(&self) -> SeenReport {
        SeenReport {
            search_p50_us: self.search.quantile_us(0.5),
            search_p99_us: self.search.quantile_us(0.99),
            search_p999_us: self.search.quantile_us(0.999),
            neighbours: self.neighbours.report(),
        }
    }
}

impl NeighboursSeen {
    fn add(&mut self, end: NeighboursEnd, whole_us: f32) {
        match end {
            NeighboursEnd::Nominated => self.nominated += 1,
            NeighboursEnd::Nothing => {}
            NeighboursEnd::Late => self.late += 1,
            NeighboursEnd::Refused => self.refused += 1,
        }
        self.whole.record_us(whole_us);
    }

    fn merge(&mut self, other: &Self) {
        self.nominated += other.nominated;
        self.late += other.late;
        self.refused += other.refused;
        self.whole.merge(&other.whole);
    }

    fn report(&self) -> NeighboursReport {
        NeighboursReport {
            asked: self.whole.count(),
            nominated: self.nominated,
            late: self.late,
            refused: self.refused,
            p50_us: self.whole.quantile_us(0.5),
            p99_us: self.whole.quantile_us(0.99),
            p999_us: self.whole.quantile_us(0.999),
        }
    }
}

/// Times in the server. The search is from the arrival of the request to the finished answer, but
/// without neighbours where they were asked.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct SeenReport {
    pub search_p50_us: f64,
    pub search_p99_us: f64,
    pub search_p999_us: f64,
    pub neighbours: NeighboursReport,
}

/// Look-ups that asked neighbours, by the whole time from the arrival to the finished answer.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct NeighboursReport {
    pub asked: u64,
    /// The donor of the answer comes from them.
    pub nominated: u64,
    /// They did not answer before the deadline.
    pub late: u64,
    /// They were busy, or failed.
    pub refused: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
}

#[cfg(test)]
mod tests {
    use kvatlas_proto::v1::{DonorMatch, QualitySignals};

    use super::*;

    fn answer(end: NeighbourSearch, by: Option<Discovery>) -> FindDonorResponse {
        let found = by.map(|by| DonorMatch {
            quality: Some(QualitySignals {
                discovery: by.into(),
                ..QualitySignals::default()
            }),
            ..DonorMatch::default()
        });
        FindDonorResponse {
            r#match: found,
            sketch_search: end.into(),
            timings: Some(StageTimings {
                decode_us: 1.0,
                seeds_us: 2.0,
                align_us: 4.0,
                gate_us: 8.0,
                total_us: 500.0,
                neighbours_us: 300.0,
                facts_us: 0.0,
            }),
            ..FindDonorResponse::default()
        }
    }

    #[test]
    fn the_search_is_all_but_neighbours() {
        let check = |end, by| {
            let Times {
                whole_us,
                search_us,
                neighbours,
            } = Times::of(&answer(end, by));
            assert!((whole_us - 501.0).abs() < 0.01);
            (search_us.round(), neighbours)
        };
        let seeds = Some(Discovery::Seeds);
        assert_eq!(check(NeighbourSearch::NotNeeded, seeds), (501.0, None));
        let asked = [
            (NeighbourSearch::Done, None, NeighboursEnd::Nothing),
            (
                NeighbourSearch::Done,
                Some(Discovery::Sketch),
                NeighboursEnd::Nominated,
            ),
            (NeighbourSearch::Late, None, NeighboursEnd::Late),
            (NeighbourSearch::Busy, None, NeighboursEnd::Refused),
        ];
        for (end, by, expected) in asked {
            assert_eq!(check(end, by), (15.0, Some(expected)));
        }
        assert!(Times::of(&FindDonorResponse::default()).whole_us.is_nan());
    }

    #[test]
    fn times_are_kept_by_class() {
        let mut seen = Seen::default();
        let mut add = |class, search_us, neighbours| {
            let times = Times {
                whole_us: search_us + 400.0,
                search_us,
                neighbours,
            };
            seen.add(class, times);
        };
        add(Class::Edit, 10.0, None);
        add(Class::Negative, 20.0, Some(NeighboursEnd::Nothing));
        add(Class::Edit, 30.0, Some(NeighboursEnd::Late));
        let edit = seen.of(Class::Edit).unwrap();
        assert_eq!(edit.search.count(), 2);
        assert_eq!(edit.neighbours.report().asked, 1);
        assert!(seen.of(Class::Shift).is_none());
        let all = seen.together();
        let NeighboursReport {
            asked,
            nominated,
            late,
            refused,
            p50_us,
            ..
        } = all.neighbours.report();
        assert_eq!(all.search.count(), 3);
        assert_eq!((asked, nominated, late, refused), (2, 0, 1, 0));
        assert!((p50_us - 420.0).abs() < 1.0);
    }
}
