//! Rankings: block indices, best first, computed once when a prior is imported.

use std::fmt;

use super::policy::BLOCKS_MAX;

/// Up to so many blocks an index takes two bytes instead of four.
const NARROW_BLOCKS_MAX: usize = 1 << 16;

/// How the score tensor `[layers, kv_heads, blocks]` becomes one score per block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pooling {
    #[default]
    Mean,
    Max,
}

/// All blocks of a prefix, best first.
///
/// Packed little endian, `u16` up to 65,536 blocks and `u32` above: the bytes are those of the
/// record, and half the memory of a plain list.
#[derive(Clone, PartialEq, Eq)]
pub struct Ranking {
    bytes: Box<[u8]>,
    wide: bool,
}

impl Ranking {
    /// Ranks by score descending, then index ascending; NaN comes last, whatever its sign.
    ///
    /// # Panics
    /// With more than [`BLOCKS_MAX`] scores.
    #[must_use]
    pub fn of(scores: &[f32]) -> Self {
        let wide = scores.len() > NARROW_BLOCKS_MAX;
        let mut bytes = Vec::with_capacity(scores.len() * index_bytes(wide));
        rank_into(scores, &mut bytes, &mut Vec::new());
        Self {
            bytes: bytes.into(),
            wide,
        }
    }

    /// Reads what [`Ranking::as_bytes`] gave; `None` unless it ranks exactly `blocks` blocks.
    #[must_use]
    pub fn from_bytes(bytes: &[u8], blocks: usize) -> Option<Self> {
        let view = RankingView::new(bytes, blocks)?;
        view.is_permutation().then(|| Self {
            bytes: bytes.into(),
            wide: view.wide,
        })
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    #[must_use]
    pub fn view(&self) -> RankingView<'_> {
        RankingView {
            bytes: &self.bytes,
            wide: self.wide,
        }
    }
}

impl fmt::Debug for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ranking({} blocks)", self.view().len())
    }
}

/// A ranking that lies in somebody else's bytes, such as a mapped file.
#[derive(Clone, Copy, Debug)]
pub struct RankingView<'a> {
    bytes: &'a [u8],
    wide: bool,
}

impl<'a> RankingView<'a> {
    /// `None` when the length does not fit the number of blocks.
    #[must_use]
    pub fn new(bytes: &'a [u8], blocks: usize) -> Option<Self> {
        let wide = blocks > NARROW_BLOCKS_MAX;
        (bytes.len() == blocks.checked_mul(index_bytes(wide))?).then_some(Self { bytes, wide })
    }

    /// As [`RankingView::new`], of a length that was checked before.
    ///
    /// # Panics
    /// When the length does not fit.
    pub(super) fn exactly(bytes: &'a [u8], blocks: usize) -> Self {
        Self::new(bytes, blocks).expect("cut to the length of one ranking")
    }

    /// Whether every block occurs once.
    #[must_use]
    pub fn is_permutation(&self) -> bool {
        let mut seen = vec![false; self.len()];
        for block in self.iter() {
            match seen.get_mut(block as usize) {
                Some(seen) if !*seen => *seen = true,
                Some(_) | None => return false,
            }
        }
        true
    }

    /// The number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / index_bytes(self.wide)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Block indices, best first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        let none: &[u8] = &[];
        let (narrow, wide) = if self.wide {
            (none, self.bytes)
        } else {
            (self.bytes, none)
        };
        let narrow = narrow
            .as_chunks()
            .0
            .iter()
            .map(|&two| u32::from(u16::from_le_bytes(two)));
        let wide = wide
            .as_chunks()
            .0
            .iter()
            .map(|&four| u32::from_le_bytes(four));
        narrow.chain(wide)
    }
}

/// Ranks every head of a `[layers, kv_heads, blocks]` tensor, packed one after the other.
#[must_use]
pub fn rank_heads(scores: &[f32], blocks: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(scores.len() * index_bytes(blocks > NARROW_BLOCKS_MAX));
    let mut keys = Vec::with_capacity(blocks);
    for head in scores.chunks_exact(blocks.max(1)) {
        rank_into(head, &mut bytes, &mut keys);
    }
    bytes
}

/// Bytes of each packed index.
#[must_use]
pub fn packed_bytes(blocks: usize) -> usize {
    blocks * index_bytes(blocks > NARROW_BLOCKS_MAX)
}

/// One score per block of a `[layers * kv_heads, blocks]` tensor.
///
/// The mean is summed in f64 and rounded once, so that heads with equal scores in another order
/// still tie; a block with a NaN has no mean. The maximum passes over NaN.
#[must_use]
pub fn pool(scores: &[f32], blocks: usize, pooling: Pooling) -> Vec<f32> {
    let heads = scores.chunks_exact(blocks.max(1));
    match pooling {
        Pooling::Mean => {
            let mut sums = vec![0.0f64; blocks];
            #[expect(clippy::cast_precision_loss, reason = "fewer than 2^52 heads")]
            let count = heads.len() as f64;
            for head in heads {
                for (sum, &score) in sums.iter_mut().zip(head) {
                    *sum += f64::from(score);
                }
            }
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a mean of f32 is in f32's range"
            )]
            sums.into_iter().map(|sum| (sum / count) as f32).collect()
        }
        Pooling::Max => {
            let mut best = vec![f32::NAN; blocks];
            for head in heads {
                for (best, &score) in best.iter_mut().zip(head) {
                    *best = best.max(score);
                }
            }
            best
        }
    }
}

/// Appends the packed ranking; `keys` is scratch.
fn rank_into(scores: &[f32], bytes: &mut Vec<u8>, keys: &mut Vec<u64>) {
    assert!(
        scores.len() <= BLOCKS_MAX as usize,
        "more blocks than a prior may have"
    );
    keys.clear();
    keys.extend(
        (0u64..)
            .zip(scores)
            .map(|(block, &score)| descending(score) << 32 | block),
    );
    keys.sort_unstable();
    if scores.len() > NARROW_BLOCKS_MAX {
        bytes.extend(keys.iter().flat_map(|key| low_bytes::<4>(*key)));
    } else {
        bytes.extend(keys.iter().flat_map(|key| low_bytes::<2>(*key)));
    }
}

/// A key that sorts higher scores first, both zeros alike, and NaN last.
fn descending(score: f32) -> u64 {
    if score.is_nan() {
        return u64::from(u32::MAX);
    }
    // Adding zero turns -0.0 into 0.0. A positive number's bits then ascend with it when the sign
    // bit is set, a negative one's when all are flipped.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    };
    u64::from(!ascending)
}

fn low_bytes<const WIDTH: usize>(key: u64) -> [u8; WIDTH] {
    let bytes = key.to_le_bytes();
    std::array::from_fn(|index| bytes[index])
}

const fn index_bytes(wide: bool) -> usize {
    if wide { 4 } else { 2 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranked(scores: &[f32]) -> Vec<u32> {
        Ranking::of(scores).view().iter().collect()
    }

    /// The obvious twin: a stable sort of the indices.
    fn slowly_ranked(scores: &[f32]) -> Vec<u32> {
        let mut blocks: Vec<u32> = (0..u32::try_from(scores.len()).unwrap()).collect();
        let score = |block: u32| scores[block as usize];
        blocks.sort_by(|&a, &b| match (score(a).is_nan(), score(b).is_nan()) {
            (false, false) => score(b).partial_cmp(&score(a)).unwrap(),
            (a, b) => a.cmp(&b),
        });
        blocks
    }

    #[test]
    fn ties_zeros_and_nan() {
        let nan = f32::NAN;
        for (scores, expected) in [
            (&[1.0, 3.0, 2.0][..], &[1u32, 2, 0][..]),
            (&[5.0, 5.0, 5.0], &[0, 1, 2]),
            (&[-0.0, 0.0, -0.0], &[0, 1, 2]),
            (&[nan, 1.0, -nan, f32::NEG_INFINITY], &[1, 3, 0, 2]),
            (
                &[f32::INFINITY, f32::MAX, f32::MIN, -1.0e-45, 1.0e-45],
                &[0, 1, 4, 3, 2],
            ),
            (&[], &[]),
        ] {
            assert_eq!(ranked(scores), expected, "{scores:?}");
        }
    }

    #[test]
    fn pooling_over_heads() {
        let nan = f32::NAN;
        let scores = [1.0, 2.0, 9.0, nan, 3.0, 2.0, nan, nan];
        let mean = pool(&scores, 4, Pooling::Mean);
        assert_eq!(mean[..2], [2.0, 2.0]);
        assert!(mean[2].is_nan() && mean[3].is_nan());
        let max = pool(&scores, 4, Pooling::Max);
        assert_eq!(max[..3], [3.0, 2.0, 9.0]);
        assert!(max[3].is_nan());
    }

    #[test]
    fn wide_and_narrow_indices() {
        for blocks in [1usize, 65_536, 65_537] {
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let scores: Vec<f32> = (0..blocks).map(|block| block as f32).collect();
            let ranking = Ranking::of(&scores);
            assert_eq!(ranking.as_bytes().len(), packed_bytes(blocks));
            let mut descending: Vec<u32> = (0..u32::try_from(blocks).unwrap()).collect();
            descending.reverse();
            assert_eq!(ranking.view().iter().collect::<Vec<_>>(), descending);
            assert_eq!(
                Ranking::from_bytes(ranking.as_bytes(), blocks),
                Some(ranking)
            );
        }
    }

    #[test]
    fn bytes_that_rank_nothing_are_refused() {
        assert!(Ranking::from_bytes(&[0, 0, 1, 0], 2).is_some());
        assert!(
            Ranking::from_bytes(&[0, 0, 0, 0], 2).is_none(),
            "twice the same"
        );
        assert!(
            Ranking::from_bytes(&[0, 0, 2, 0], 2).is_none(),
            "out of range"
        );
        assert!(Ranking::from_bytes(&[0, 0, 1], 2).is_none(), "cut");
        assert!(
            Ranking::from_bytes(&[0, 0, 1, 0], 3).is_none(),
            "another length"
        );
    }

    proptest! {
        #[test]
        fn it_equals_its_slow_twin(
            scores in prop::collection::vec(
                prop_oneof![
                    (-3i8..3).prop_map(f32::from),
                    any::<f32>(),
                    Just(f32::NAN),
                    Just(-0.0),
                ],
                0..200,
            ),
        ) {
            prop_assert_eq!(ranked(&scores), slowly_ranked(&scores));
        }

        #[test]
        fn each_head_is_ranked_like_a_tensor_of_its_own(
            heads in prop::collection::vec(prop::collection::vec(-3i8..3, 7), 1..5),
        ) {
            let scores: Vec<f32> = heads.iter().flatten().map(|&score| f32::from(score)).collect();
            let packed = rank_heads(&scores, 7);
            for (head, scores) in packed.chunks(packed_bytes(7)).zip(scores.chunks(7)) {
                let view = RankingView::new(head, 7).unwrap();
                prop_assert_eq!(view.iter().collect::<Vec<_>>(), slowly_ranked(scores));
            }
        }
    }
}
