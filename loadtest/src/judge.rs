//! What is true of an answer: computed from the tokens themselves, knowing nothing of the service.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use kvatlas_proto::v1::Span;

use crate::prompts::{DonorSet, Library, PieceId, Target};

/// A run of equal tokens counts from this length on.
pub const RUN_MIN_TOKENS: usize = 16;
/// A nomination is right when it covers this share of what the best donor covers.
pub const RIGHT_SHARE: f64 = 0.98;
/// Donors whose coverage is computed exactly, per target.
const CANDIDATES_MAX: usize = 64;
/// A donor that shares less than this share of the most shared tokens cannot be the best.
const CANDIDATE_SHARE: f64 = 0.80;

/// Which windows of 16 tokens a target has, and where.
#[derive(Debug)]
pub struct TargetWindows<'a> {
    target: &'a [u32],
    /// The last position of each window, by hash; earlier ones follow in `earlier`.
    last: HashMap<u64, usize, BuildHasherDefault<AlreadyHashed>>,
    earlier: Vec<Option<usize>>,
}

impl<'a> TargetWindows<'a> {
    /// Indexes a target.
    #[must_use]
    pub fn new(target: &'a [u32]) -> Self {
        let mut last = HashMap::default();
        let mut earlier = Vec::with_capacity(target.len());
        for (at, window) in target.windows(RUN_MIN_TOKENS).enumerate() {
            earlier.push(last.insert(hash(window), at));
        }
        Self {
            target,
            last,
            earlier,
        }
    }

    /// True coverage: how many tokens of the target lie in a run of at least 16 tokens that the
    /// donor has too, anywhere.
    #[must_use]
    pub fn covered_by(&self, donor: &[u32]) -> usize {
        let mut covered = vec![false; self.target.len()];
        for window in donor.windows(RUN_MIN_TOKENS) {
            let mut place = self.last.get(&hash(window)).copied();
            while let Some(at) = place {
                let run = at..at + RUN_MIN_TOKENS;
                if self.target[run.clone()] == *window {
                    covered[run].fill(true);
                }
                place = self.earlier[at];
            }
        }
        covered.iter().filter(|&&token| token).count()
    }
}

/// Which donors have a passage: inverted lists in one array.
#[derive(Debug)]
pub struct PieceIndex {
    /// The list of passage `p` is `donors[starts[p]..starts[p + 1]]`.
    starts: Vec<u32>,
    donors: Vec<u32>,
    /// Tokens that each donor shares with the target at hand; 0 between two targets.
    shared: Vec<u32>,
}

impl PieceIndex {
    /// Indexes every donor.
    #[must_use]
    pub fn new(set: &DonorSet) -> Self {
        let mut starts = vec![0_u32; set.library.seen_count() + 1];
        for &piece in set.pieces_of_each().flatten() {
            starts[piece as usize + 1] += 1;
        }
        let mut total = 0;
        for start in &mut starts {
            total += *start;
            *start = total;
        }
        let mut next = starts.clone();
        let mut donors = vec![0; total as usize];
        for (donor, pieces) in (0..).zip(set.pieces_of_each()) {
            for &piece in pieces {
                let place = &mut next[piece as usize];
                donors[*place as usize] = donor;
                *place += 1;
            }
        }
        Self {
            starts,
            donors,
            shared: vec![0; set.count],
        }
    }

    /// The donors that may be the best for passages, those that share most tokens first.
    fn candidates(&mut self, pieces: &[PieceId], library: &Library) -> Vec<usize> {
        let mut touched: Vec<u32> = Vec::new();
        for &piece in pieces {
            let length = u32::try_from(library.length(piece)).expect("a line is bounded");
            let at = piece as usize;
            let list = self.starts[at] as usize..self.starts[at + 1] as usize;
            for &donor in &self.donors[list] {
                let shared = &mut self.shared[donor as usize];
                if *shared == 0 {
                    touched.push(donor);
                }
                *shared += length;
            }
        }
        let mut ranked: Vec<(u32, u32)> = touched
            .into_iter()
            .map(|donor| (std::mem::take(&mut self.shared[donor as usize]), donor))
            .collect();
        let most = ranked.iter().map(|&(shared, _)| shared).max().unwrap_or(0);
        let enough = f64::from(most) * CANDIDATE_SHARE;
        ranked.retain(|&(shared, _)| f64::from(shared) >= enough);
        ranked.sort_unstable_by(|left, right| right.0.cmp(&left.0).then(left.1.cmp(&right.1)));
        ranked
            .into_iter()
            .take(CANDIDATES_MAX)
            .map(|(_, donor)| donor as usize)
            .collect()
    }

    /// Tokens that the best donor of all covers.
    #[must_use]
    pub fn best_coverage(&mut self, target: &Target, set: &DonorSet) -> usize {
        let windows = TargetWindows::new(&target.tokens);
        self.candidates(&target.pieces, &set.library)
            .into_iter()
            .chain(target.source)
            .map(|donor| windows.covered_by(&set.donor(donor).tokens))
            .max()
            .unwrap_or(0)
    }
}

/// How many of the reported spans are not what a span must be: at least 16 equal tokens inside
/// both prompts, after the span before it, and apart from every other one in the donor.
#[must_use]
pub fn false_spans(target: &[u32], donor: &[u32], spans: &[Span]) -> u64 {
    let mut target_end = 0;
    let mut donor_taken: Vec<(usize, usize)> = Vec::with_capacity(spans.len());
    let mut wrong = 0;
    for span in spans {
        let [from, at, length] =
            [span.donor_start, span.target_start, span.length].map(|value| value as usize);
        let equal = match (target.get(at..at + length), donor.get(from..from + length)) {
            (Some(ours), Some(theirs)) => ours == theirs,
            (None, _) | (_, None) => false,
        };
        let apart = donor_taken
            .iter()
            .all(|&(start, end)| from >= end || from + length <= start);
        if length < RUN_MIN_TOKENS || at < target_end || !equal || !apart {
            wrong += 1;
        }
        target_end = target_end.max(at + length);
        donor_taken.push((from, from + length));
    }
    wrong
}

/// FNV-1a over the tokens, then mixed so that the map's buckets are even.
fn hash(window: &[u32]) -> u64 {
    let folded = window
        .iter()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, &token| {
            (hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01B3)
        });
    (folded ^ (folded >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Keys of the window map are hashes already.
#[derive(Debug, Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 << 8) | u64::from(byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn span(donor_start: u32, target_start: u32, length: u32) -> Span {
        Span {
            donor_start,
            target_start,
            length,
            tier: 0,
        }
    }

    /// The definition, without a hash: every pair of positions.
    fn slow_coverage(target: &[u32], donor: &[u32]) -> usize {
        let mut covered = vec![false; target.len()];
        for at in 0..target.len() {
            for from in 0..donor.len() {
                let run = target[at..]
                    .iter()
                    .zip(&donor[from..])
                    .take_while(|(ours, theirs)| ours == theirs)
                    .count();
                if run >= RUN_MIN_TOKENS {
                    covered[at..at + run].fill(true);
                }
            }
        }
        covered.iter().filter(|&&token| token).count()
    }

    #[test]
    fn coverage_is_its_definition() {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            // Few token ids and copied pieces: many runs, also repeated and overlapping ones.
            let donor: Vec<u32> = (0..120).map(|_| random.below_u32(2)).collect();
            let mut target: Vec<u32> = (0..60).map(|_| random.below_u32(2)).collect();
            for _ in 0..3 {
                let from = random.below(100);
                target.extend_from_slice(&donor[from..from + 20]);
            }
            let fast = TargetWindows::new(&target).covered_by(&donor);
            assert_eq!(fast, slow_coverage(&target, &donor), "seed {seed}");
        }
    }

    #[test]
    fn a_run_of_sixteen_counts_and_one_of_fifteen_does_not() {
        let target: Vec<u32> = (0..40).collect();
        let windows = TargetWindows::new(&target);
        let padded =
            |run: std::ops::Range<u32>| [vec![900; 9], run.collect(), vec![901; 9]].concat();
        assert_eq!(windows.covered_by(&padded(3..18)), 0);
        assert_eq!(windows.covered_by(&padded(3..19)), 16);
    }

    #[test]
    fn true_spans_pass() {
        let donor: Vec<u32> = (0..100).collect();
        let target: Vec<u32> = (40..80).chain(0..40).collect();
        assert_eq!(
            false_spans(&target, &donor, &[span(40, 0, 40), span(0, 40, 40)]),
            0
        );
        assert_eq!(false_spans(&target, &donor, &[]), 0);
    }

    #[test]
    fn planted_false_spans_are_caught() {
        let donor: Vec<u32> = (0..100).collect();
        let target: Vec<u32> = (40..80).chain(0..40).collect();
        let planted: [(&str, &[Span]); 8] = [
            ("one token off", &[span(41, 0, 20)]),
            ("past the break", &[span(40, 0, 41)]),
            ("too short", &[span(40, 0, 15)]),
            ("past the target", &[span(30, 70, 16)]),
            ("past the donor", &[span(90, 50, 16)]),
            (
                "overlap in the target",
                &[span(40, 0, 20), span(59, 19, 20)],
            ),
            ("out of order", &[span(0, 40, 20), span(40, 0, 20)]),
            ("the donor's twice", &[span(40, 0, 20), span(50, 10, 20)]),
        ];
        for (what, spans) in planted {
            assert_eq!(false_spans(&target, &donor, spans), 1, "{what}");
        }
    }

    #[test]
    fn a_donor_token_used_twice_is_caught_even_when_the_tokens_agree() {
        let donor: Vec<u32> = (0..30).collect();
        let target: Vec<u32> = (0..20).chain(0..20).collect();
        assert_eq!(
            false_spans(&target, &donor, &[span(0, 0, 20), span(0, 20, 20)]),
            1
        );
    }
}
