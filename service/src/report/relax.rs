//! What gates refuse, and how much of it would pass if one of them were lower.
//!
//! Recomputed from the measured numbers of the candidate that a look-up refused: the best one under
//! the gates that held. With lower gates another donor might be better still, so that this is a
//! lower bound.

use super::{class::Class, tally::Merge};
use crate::telemetry::{
    record::{Gates, Lookup, Share},
    words::Gate,
};

/// Tried instead of min_reuse_tokens.
pub const REUSE_TOKENS: [u32; STEPS] = [1_024, 512, 384, 256, 128, 64, 32];
/// Tried instead of min_similarity, in ten-thousandths.
pub const SIMILARITIES: [u32; STEPS] = [7_000, 6_000, 5_000, 4_000, 3_000, 2_000, 1_000];
/// Tried instead of min_reuse_ratio, in ten-thousandths.
pub const REUSE_RATIOS: [u32; STEPS] = [6_000, 5_000, 4_000, 3_000, 2_000, 1_000, 500];

const STEPS: usize = 7;

/// Look-ups that gates refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Relaxing {
    /// Refused by one of the three gates that weigh a candidate.
    pub refused: u64,
    /// Of these, those that more than one of them refuses: no gate alone lets them pass.
    pub by_several: u64,
    /// What a record does not measure.
    pub unmeasured: u64,
    pub reuse_tokens: Gains,
    pub similarity: Gains,
    pub reuse_ratio: Gains,
}

/// For each step what would pass besides if the gate were there and the others as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gains(pub [Gain; STEPS]);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gain {
    pub lookups: u64,
    pub tokens: u64,
}

impl Relaxing {
    pub(super) fn add(&mut self, lookup: &Lookup, class: Class) {
        if class != Class::BelowGates {
            return;
        }
        self.refused += 1;
        let Some(candidate) = Candidate::of(lookup) else {
            self.unmeasured += 1;
            return;
        };
        let gain = Gain {
            lookups: 1,
            tokens: lookup.reusable_tokens.into(),
        };
        match candidate.only_gate() {
            None => self.by_several += 1,
            Some(Weigh::ReuseTokens) => {
                let gains = &mut self.reuse_tokens;
                gains.add(&REUSE_TOKENS, candidate.reusable_tokens, gain);
            }
            Some(Weigh::Similarity) => {
                let gains = &mut self.similarity;
                gains.add(&SIMILARITIES, candidate.similarity, gain);
            }
            Some(Weigh::ReuseRatio) => {
                let gains = &mut self.reuse_ratio;
                gains.add(&REUSE_RATIOS, candidate.reuse_ratio, gain);
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weigh {
    ReuseTokens,
    Similarity,
    ReuseRatio,
}

/// What was refused, in the units of the steps.
struct Candidate {
    gate: Gate,
    limits: Gates,
    reusable_tokens: u64,
    similarity: u64,
    reuse_ratio: u64,
}

impl Candidate {
    fn of(lookup: &Lookup) -> Option<Self> {
        Some(Self {
            gate: lookup.gate?,
            limits: lookup.gates?,
            reusable_tokens: lookup.reusable_tokens.into(),
            similarity: lookup.similarity?.0,
            reuse_ratio: lookup.reuse_ratio?.0,
        })
    }

    // None where more than one refuses it, or none of the three.
    fn only_gate(&self) -> Option<Weigh> {
        let limits = &self.limits;
        let low = |value: u64, limit: Share| value < limit.0;
        let fails = [
            (
                Weigh::ReuseTokens,
                Gate::MinReuseTokens,
                self.reusable_tokens < u64::from(limits.min_reuse_tokens),
            ),
            (
                Weigh::Similarity,
                Gate::MinSimilarity,
                low(self.similarity, limits.min_similarity),
            ),
            (
                Weigh::ReuseRatio,
                Gate::MinReuseRatio,
                low(self.reuse_ratio, limits.min_reuse_ratio),
            ),
        ];
        // Shares are rounded: one that refuses can look as if it did not.
        let mut failing = fails
            .into_iter()
            .filter(|(_, gate, is_low)| *is_low || *gate == self.gate);
        let (only, _, _) = failing.next()?;
        failing.next().is_none().then_some(only)
    }
}

impl Gains {
    fn add(&mut self, steps: &[u32; STEPS], value: u64, gain: Gain) {
        for (mine, step) in self.0.iter_mut().zip(steps) {
            if value > 0 && value >= u64::from(*step) {
                mine.merge(&gain);
            }
        }
    }
}

impl Merge for Gain {
    fn merge(&mut self, other: &Self) {
        self.lookups += other.lookups;
        self.tokens += other.tokens;
    }
}

impl Merge for Gains {
    fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            mine.merge(theirs);
        }
    }
}

impl Merge for Relaxing {
    fn merge(&mut self, other: &Self) {
        self.refused += other.refused;
        self.by_several += other.by_several;
        self.unmeasured += other.unmeasured;
        self.reuse_tokens.merge(&other.reuse_tokens);
        self.similarity.merge(&other.similarity);
        self.reuse_ratio.merge(&other.reuse_ratio);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::record::{Line, Record};

    // A look-up of 2,000 tokens that a gate refused: gate, reusable tokens, similarity, ratio.
    fn refused(gate: &str, tokens: u32, similarity: f64, ratio: f64) -> Lookup {
        let reason = match gate {
            "min_similarity" => "low_similarity",
            _ => "low_reuse_tokens",
        };
        let line = format!(
            r#"{{"v":1,"at_ms":1,"kind":"lookup","took_us":9,"outcome":"miss","reason":"{reason}",
            "gate":"{gate}","mode":"discovery_only","prompt_tokens":2000,"exact_prefix_tokens":0,
            "verified_tokens":{tokens},"reusable_tokens":{tokens},"similarity":{similarity},
            "reuse_ratio":{ratio},"gates":{{"min_prompt_tokens":512,"min_reuse_tokens":512,
            "min_similarity":0.6,"min_reuse_ratio":0.5,"exact_prefix_skip_ratio":0.5}},
            "leased":false,"stages_us":{{"seeds":1,"align":1,"gate":1,"neighbours":0,"facts":0}}}}"#
        );
        let Record::Lookup(lookup) = Line::parse(&line).unwrap().record else {
            panic!("{line}");
        };
        *lookup
    }

    fn relaxing(lookups: &[Lookup]) -> Relaxing {
        let mut relaxing = Relaxing::default();
        for lookup in lookups {
            relaxing.add(lookup, Class::of(lookup));
        }
        relaxing
    }

    fn passing(gains: &Gains) -> [u64; STEPS] {
        gains.0.map(|gain| gain.lookups)
    }

    #[test]
    fn a_candidate_passes_from_its_own_measure_down() {
        let it = relaxing(&[refused("min_similarity", 1_000, 0.5, 0.5)]);
        // 0.7, 0.6 | 0.5, 0.4, 0.3, 0.2, 0.1
        assert_eq!(passing(&it.similarity), [0, 0, 1, 1, 1, 1, 1]);
        assert_eq!(it.similarity.0[2].tokens, 1_000);
        let it = relaxing(&[refused("min_similarity", 1_000, 0.4999, 0.5)]);
        assert_eq!(passing(&it.similarity), [0, 0, 0, 1, 1, 1, 1]);
        let it = relaxing(&[refused("min_reuse_tokens", 256, 0.7, 0.5)]);
        // 1024, 512, 384 | 256, 128, 64, 32
        assert_eq!(passing(&it.reuse_tokens), [0, 0, 0, 1, 1, 1, 1]);
        let it = relaxing(&[refused("min_reuse_ratio", 800, 0.7, 0.4)]);
        // 0.6, 0.5 | 0.4, 0.3, 0.2, 0.1, 0.05
        assert_eq!(passing(&it.reuse_ratio), [0, 0, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn what_more_than_one_gate_refuses_no_gate_alone_lets_pass() {
        let it = relaxing(&[
            refused("min_similarity", 900, 0.5, 0.45),
            refused("min_reuse_tokens", 100, 0.9, 0.05),
        ]);
        assert_eq!((it.refused, it.by_several), (2, 2));
        for gains in [&it.reuse_tokens, &it.similarity, &it.reuse_ratio] {
            assert_eq!(passing(gains), [0; STEPS]);
        }
    }

    #[test]
    fn a_rounded_share_still_fails_the_gate_that_refused_it() {
        let it = relaxing(&[refused("min_similarity", 1_200, 0.6, 0.6)]);
        assert_eq!(passing(&it.similarity), [0, 1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn what_was_not_measured_is_counted_apart() {
        let mut lookup = refused("min_similarity", 1_200, 0.5, 0.6);
        lookup.similarity = None;
        let it = relaxing(&[lookup]);
        assert_eq!((it.refused, it.unmeasured, it.by_several), (1, 1, 0));
    }

    #[test]
    fn nothing_at_all_passes_no_gate() {
        let it = relaxing(&[refused("min_reuse_tokens", 0, 0.9, 0.9)]);
        assert_eq!(passing(&it.reuse_tokens), [0; STEPS]);
    }
}
