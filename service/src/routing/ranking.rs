//! Packed rankings: block indices, best first, as they lie in records and blobs.

use std::fmt;

/// Up to so many blocks an index takes two bytes instead of four.
const NARROW_BLOCKS_MAX: usize = 1 << 16;

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
    /// Packs a permutation of the blocks, as the kernels rank them.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn pack(ranked: &[u32]) -> Self {
        let packed = pack_rows(ranked, ranked.len());
        Self::from_bytes(&packed, ranked.len()).expect("a ranking names every block once")
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

    /// Appends the best blocks that `keep` accepts, until `blocks` has `length` of them. A loop
    /// rather than adapters over [`RankingView::iter`]: every manifest runs it.
    pub(super) fn append_best(
        &self,
        blocks: &mut Vec<u32>,
        length: usize,
        keep: impl Fn(u32) -> bool,
    ) {
        let mut offer = |block: u32| {
            if keep(block) {
                blocks.push(block);
            }
            blocks.len() >= length
        };
        if self.wide {
            for &four in self.bytes.as_chunks().0 {
                if offer(u32::from_le_bytes(four)) {
                    return;
                }
            }
        } else {
            for &two in self.bytes.as_chunks().0 {
                if offer(u32::from(u16::from_le_bytes(two))) {
                    return;
                }
            }
        }
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

/// Packs the rankings of many heads, each of `blocks` indices, one after the other.
#[must_use]
pub fn pack_rows(ranked: &[u32], blocks: usize) -> Vec<u8> {
    if blocks > NARROW_BLOCKS_MAX {
        return ranked
            .iter()
            .flat_map(|block| block.to_le_bytes())
            .collect();
    }
    let low_half = |block: &u32| {
        let [low, high, ..] = block.to_le_bytes();
        [low, high]
    };
    ranked.iter().flat_map(low_half).collect()
}

/// The bytes of one packed ranking.
#[must_use]
pub fn packed_bytes(blocks: usize) -> usize {
    blocks * index_bytes(blocks > NARROW_BLOCKS_MAX)
}

const fn index_bytes(wide: bool) -> usize {
    if wide { 4 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descending(blocks: u32) -> Vec<u32> {
        (0..blocks).rev().collect()
    }

    #[test]
    fn wide_and_narrow_indices_are_read_back() {
        for blocks in [0u32, 1, 2, 65_536, 65_537] {
            let ranked = descending(blocks);
            let ranking = Ranking::pack(&ranked);
            let length = ranking.as_bytes().len();
            assert_eq!(length, packed_bytes(ranked.len()));
            assert_eq!(length, ranked.len() * if blocks > 65_536 { 4 } else { 2 });
            assert_eq!(ranking.view().iter().collect::<Vec<_>>(), ranked);
            assert_eq!(
                Ranking::from_bytes(ranking.as_bytes(), ranked.len()),
                Some(ranking)
            );
        }
    }

    #[test]
    fn rows_lie_one_after_the_other() {
        let packed = pack_rows(&[2, 0, 1, 1, 2, 0], 3);
        let second = RankingView::new(&packed[packed_bytes(3)..], 3).unwrap();
        assert_eq!(second.iter().collect::<Vec<_>>(), [1, 2, 0]);
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
}
