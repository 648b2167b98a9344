//! Ways to fill the middle of an answer, between the pinned first and last blocks.

use std::collections::HashMap;

use super::ranking::RankingView;

/// From so many blocks on a bitmap is worth its allocation.
const DENSE_BLOCKS_MIN: usize = 64;

/// A budget below `total`, with its pinned ends inside the budget.
pub(super) struct Span {
    pub budget: u32,
    pub total: u32,
    /// (anchor, recent)
    pub pinned: (u32, u32),
}

impl Span {
    /// The pinned ends with what `choose` appends between them, in any order.
    pub(super) fn with_middle(&self, choose: impl FnOnce(&mut Vec<u32>)) -> Vec<u32> {
        let (anchor, recent) = self.pinned;
        let mut blocks = Vec::with_capacity(self.budget as usize);
        blocks.extend(0..anchor);
        choose(&mut blocks);
        sort_distinct(&mut blocks[anchor as usize..], self.total);
        blocks.extend(self.total - recent..self.total);
        blocks
    }

    /// Blocks between the ends.
    pub(super) fn middle(&self) -> u32 {
        self.total - self.pinned.0 - self.pinned.1
    }

    pub(super) fn is_middle(&self, block: u32) -> bool {
        (self.pinned.0..self.total - self.pinned.1).contains(&block)
    }

    /// Blocks wanted between the ends.
    pub(super) fn wanted(&self) -> usize {
        (self.budget - self.pinned.0 - self.pinned.1) as usize
    }
}

/// The centres of m equal parts of the middle: `anchor + floor((2 i + 1) M / (2 m))`.
pub(super) fn spread(span: &Span, blocks: &mut Vec<u32>) {
    let (middle, wanted) = (u64::from(span.middle()), span.wanted() as u64);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "below the middle's length, a u32"
    )]
    let place = |index: u64| ((2 * index + 1) * middle / (2 * wanted)) as u32;
    blocks.extend((0..wanted).map(|index| span.pinned.0 + place(index)));
}

/// Draws m of the middle's M blocks, reproducibly on any machine.
///
/// Write the middle's blocks into an array, ascending. For i = 0, 1, ..., m-1 take the next output
/// of SplitMix64 (Steele, Lea, Flood 2014; its state starts as the seed), swap entry i with entry
/// i + output mod (M - i): the first m entries are the draw (Fisher-Yates, stopped after m). The
/// modulo's bias is below M / 2^64. Here only displaced entries are written down, so that the cost
/// is m and not M.
pub(super) fn draw(span: &Span, seed: u64, blocks: &mut Vec<u32>) {
    let (anchor, middle) = (span.pinned.0, span.middle());
    let mut displaced: HashMap<u32, u32> = HashMap::with_capacity(span.wanted());
    let mut state = seed;
    for here in (0..middle).take(span.wanted()) {
        #[expect(clippy::cast_possible_truncation, reason = "a remainder of a u32")]
        let offset = (split_mix_64(&mut state) % u64::from(middle - here)) as u32;
        let there = here + offset;
        let at_here = displaced.get(&here).copied().unwrap_or(here);
        let drawn = displaced.insert(there, at_here).unwrap_or(there);
        blocks.push(anchor + drawn);
    }
}

pub(super) fn split_mix_64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Gives each of s segments a fair share of the m wanted blocks, by score.
///
/// Segment i is `[anchor + floor(i M / s), anchor + floor((i + 1) M / s))`. Each gets its best
/// floor(m / s) blocks; of the m mod s that remain, each segment gets at most one more, those first
/// whose next block is best. No segment is too short for its share, m being at most M; and where
/// floor(m / s) = floor(M / s), the M mod s segments that hold one block more are enough.
pub(super) fn fill_segments(
    span: &Span,
    segments: u32,
    ranking: Option<RankingView<'_>>,
    blocks: &mut Vec<u32>,
) {
    let (middle, count) = (u64::from(span.middle()), u64::from(segments));
    let share = span.wanted() / segments as usize;
    let mut extra = span.wanted() % segments as usize;
    let mut taken = vec![0usize; segments as usize];
    let end = blocks.len() + span.wanted();
    for block in ranked(ranking, span.total).filter(|&block| span.is_middle(block)) {
        if blocks.len() == end {
            break;
        }
        let segment = (u64::from(block - span.pinned.0 + 1) * count - 1) / middle;
        #[expect(clippy::cast_possible_truncation, reason = "below `segments`, a u32")]
        let taken = &mut taken[segment as usize];
        let beyond_share = *taken >= share;
        if beyond_share && (*taken > share || extra == 0) {
            continue;
        }
        extra -= usize::from(beyond_share);
        *taken += 1;
        blocks.push(block);
    }
}

/// Best first: the ranking without what lies beyond `total`, then what it does not know.
pub(super) fn ranked(ranking: Option<RankingView<'_>>, total: u32) -> impl Iterator<Item = u32> {
    let known = ranking.map_or(0, |ranking| ranking.len());
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a ranking has at most BLOCKS_MAX blocks"
    )]
    let unscored = known as u32..total;
    ranking
        .into_iter()
        .flat_map(|ranking| ranking.iter())
        .filter(move |&b| b < total)
        .chain(unscored)
}

/// Appends the best blocks that `keep` accepts, in the order of [`ranked`], until `blocks` has
/// `length` of them or there are no more.
pub(super) fn append_best(
    (ranking, total): (Option<RankingView<'_>>, u32),
    blocks: &mut Vec<u32>,
    length: usize,
    keep: impl Fn(u32) -> bool,
) {
    if blocks.len() >= length {
        return;
    }
    if let Some(ranking) = ranking {
        ranking.append_best(blocks, length, |block| block < total && keep(block));
    }
    let known = ranking.map_or(0, |ranking| ranking.len());
    let unscored = u32::try_from(known).unwrap_or(total)..total;
    blocks.extend(
        unscored
            .filter(|&block| keep(block))
            .take(length - blocks.len()),
    );
}

/// Sorts distinct blocks below `total`. Where they are dense, reading them off a bitmap takes a
/// fraction of the comparisons' time.
pub(super) fn sort_distinct(blocks: &mut [u32], total: u32) {
    let words = total.div_ceil(u64::BITS) as usize;
    if blocks.len() < DENSE_BLOCKS_MIN || blocks.len() < words {
        blocks.sort_unstable();
        return;
    }
    let mut marks = vec![0u64; words];
    for &block in &*blocks {
        marks[(block / u64::BITS) as usize] |= 1 << (block % u64::BITS);
    }
    let mut sorted = 0;
    for (start, mut mark) in (0..).step_by(u64::BITS as usize).zip(marks) {
        while mark != 0 {
            blocks[sorted] = start + mark.trailing_zeros();
            sorted += 1;
            mark &= mark - 1;
        }
    }
}
