//! Exact alignment: every common run of a target and a donor, and the spans chosen from them.

use std::collections::BinaryHeap;

use super::seeds::{SHORT_WINDOW, count_u32, finish, short_hash};

/// Places in the target compared for one window of a donor. A window of text has few; more are
/// repetition, where the first ones serve.
const WINDOW_TRIES_MAX: usize = 64;
/// Comparisons for one donor, where comparing sixteen more tokens counts as another.
const WORK_MAX: usize = 16_384;
/// Runs kept of one donor.
const RUNS_MAX: usize = 2_048;
/// Pieces looked at while spans are chosen from the runs of one donor.
const PIECES_MAX: usize = 4 * RUNS_MAX;
/// Latest runs asked whether they cover a match already.
const RECENT_RUNS: usize = 8;
/// Places in the donor compared with the first window beyond the boundary.
const ANCHOR_TRIES_MAX: usize = 64;
/// Tokens compared at once.
const LANES: usize = 16;

/// A run of tokens that are identical in a donor and a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    pub donor_start: u32,
    pub target_start: u32,
    pub length: u32,
}

impl Span {
    pub fn donor_end(&self) -> u32 {
        self.donor_start + self.length
    }

    pub fn target_end(&self) -> u32 {
        self.target_start + self.length
    }

    /// The part from `from` up to `to`, counted from the span's start.
    fn slice(&self, from: u32, to: u32) -> Self {
        Self {
            donor_start: self.donor_start + from,
            target_start: self.target_start + from,
            length: to - from,
        }
    }
}

/// Aligns donors with one target after another, reusing its room.
#[derive(Debug, Default)]
pub(super) struct Aligner {
    /// Where the target is looked at from.
    boundary: usize,
    /// By hash of a short window: 1 + its first place beyond the boundary; 0 is none.
    heads: Vec<u32>,
    /// By place beyond the boundary: 1 + the next place with the same hash; 0 is none.
    next: Vec<u32>,
    runs: Vec<Span>,
    chosen: Chosen,
    work: usize,
}

impl Aligner {
    /// Prepares for comparing donors with a target from `boundary` on; `short_hashes` are those of
    /// its windows there.
    pub(super) fn set_target(&mut self, short_hashes: &[u32], boundary: usize) {
        self.boundary = boundary;
        self.heads.clear();
        self.heads
            .resize((short_hashes.len() * 2).next_power_of_two().max(64), 0);
        self.next.clear();
        self.next.resize(short_hashes.len(), 0);
        let shift = self.shift();
        // From the last to the first, so that the places of a hash come in rising order.
        for (place, (&hash, next)) in short_hashes.iter().zip(&mut self.next).enumerate().rev() {
            let head = &mut self.heads[(finish(hash) >> shift) as usize];
            *next = *head;
            *head = count_u32(place + 1);
        }
        self.work = 0;
    }

    /// Comparisons made since the target was set, in units of [`LANES`] tokens.
    pub(super) fn work(&self) -> usize {
        self.work
    }

    /// Spans of at least `shortest` identical tokens beyond the boundary, disjoint in donor and
    /// target, in target order. `shortest` is at least [`SHORT_WINDOW`].
    pub(super) fn spans(&mut self, target: &[u32], donor: &[u32], shortest: usize) -> &[Span] {
        self.find_runs(target, donor, shortest);
        self.chosen.choose(&mut self.runs, count_u32(shortest))
    }

    /// Finds every maximal common run of at least `shortest` tokens, except that of those inside
    /// another run's donor tokens only some are found, and that repetition is cut short.
    ///
    /// A run of n tokens has n - 7 windows of eight, so that of every n - 7 windows of the donor
    /// one needs to be looked up.
    fn find_runs(&mut self, target: &[u32], donor: &[u32], shortest: usize) {
        self.runs.clear();
        let stride = shortest - SHORT_WINDOW + 1;
        let shift = self.shift();
        let work_end = self.work + WORK_MAX;
        let mut at = 0;
        while let Some(window) = donor
            .get(at..)
            .and_then(<[u32]>::first_chunk::<SHORT_WINDOW>)
        {
            let mut resume = at + stride;
            let mut place = self.heads[(finish(short_hash(window)) >> shift) as usize];
            let mut tries = 0;
            while place != 0 && tries < WINDOW_TRIES_MAX {
                let beyond = place as usize - 1;
                place = self.next[beyond];
                tries += 1;
                if let Some(run) = self.extend(target, donor, (self.boundary + beyond, at))
                    && run.length as usize >= shortest
                {
                    self.runs.push(run);
                    // A run that reaches past this one holds a window that does.
                    resume = resume.max(run.donor_end() as usize + 1 - shortest);
                }
            }
            self.work += tries;
            if self.work > work_end || self.runs.len() > RUNS_MAX {
                break;
            }
            at = resume;
        }
    }

    /// The maximal run around a window at `at` = (target, donor) places; none if the window
    /// differs or a recent run covers it.
    fn extend(&mut self, target: &[u32], donor: &[u32], at: (usize, usize)) -> Option<Span> {
        let (target_at, donor_at) = at;
        if target[target_at..target_at + SHORT_WINDOW] != donor[donor_at..donor_at + SHORT_WINDOW] {
            return None;
        }
        let covered = |run: &Span| {
            let (target_start, donor_start) = (run.target_start as usize, run.donor_start as usize);
            target_start + donor_at == donor_start + target_at
                && target_start <= target_at
                && target_at < run.target_end() as usize
        };
        if self.runs.iter().rev().take(RECENT_RUNS).any(covered) {
            return None;
        }
        let before = common_suffix(&target[self.boundary..target_at], &donor[..donor_at]);
        let after = SHORT_WINDOW
            + common_prefix(
                &target[target_at + SHORT_WINDOW..],
                &donor[donor_at + SHORT_WINDOW..],
            );
        self.work += (before + after) / LANES;
        Some(Span {
            donor_start: count_u32(donor_at - before),
            target_start: count_u32(target_at - before),
            length: count_u32(before + after),
        })
    }

    fn shift(&self) -> u32 {
        u32::BITS - self.heads.len().ilog2()
    }
}

/// The longest run of at least `shortest` tokens that begins in the target exactly at `boundary`;
/// of equal ones the one at the same place in the donor, then the first.
pub(super) fn anchored_run(
    target: &[u32],
    donor: &[u32],
    boundary: usize,
    shortest: usize,
) -> Option<Span> {
    let beyond = target.get(boundary..)?;
    let (first, rest) = beyond.split_first()?;
    let run_at = |start: usize| -> usize {
        let there = donor.get(start..).unwrap_or(&[]);
        common_prefix(beyond, there)
    };
    let (mut start, mut length) = (boundary, run_at(boundary));
    let mut tries = 0;
    let mut chunk_start = 0;
    let longest_possible = beyond.len().min(donor.len());
    for chunk in donor.chunks(LANES) {
        if length == longest_possible || tries == ANCHOR_TRIES_MAX {
            break;
        }
        // One vector comparison tells that most chunks have no such token.
        if chunk
            .iter()
            .fold(false, |any, token| any | (token == first))
        {
            for (offset, _) in chunk
                .iter()
                .enumerate()
                .filter(|&(_, token)| token == first)
            {
                let place = chunk_start + offset;
                // A longer run must agree one token past the longest so far.
                if tries < ANCHOR_TRIES_MAX
                    && donor.get(place + length) == beyond.get(length)
                    && donor.get(place + 1) == rest.first()
                {
                    let here = run_at(place);
                    tries += usize::from(here >= shortest);
                    if here > length {
                        (start, length) = (place, here);
                    }
                }
            }
        }
        chunk_start += LANES;
    }
    (length >= shortest).then(|| Span {
        donor_start: count_u32(start),
        target_start: count_u32(boundary),
        length: count_u32(length),
    })
}

/// How many first tokens two sequences share.
pub(super) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    let length = a.len().min(b.len());
    let (a, b) = (&a[..length], &b[..length]);
    let (lanes_a, _) = a.as_chunks::<LANES>();
    let (lanes_b, _) = b.as_chunks::<LANES>();
    let equal = lanes_a
        .iter()
        .zip(lanes_b)
        .take_while(|(a, b)| are_equal(a, b))
        .count()
        * LANES;
    let more = a[equal..]
        .iter()
        .zip(&b[equal..])
        .take_while(|(a, b)| a == b)
        .count();
    equal + more
}

/// Without the call that comparing arrays of this length becomes.
fn are_equal(a: &[u32; LANES], b: &[u32; LANES]) -> bool {
    let differences = a.iter().zip(b).map(|(a, b)| a ^ b);
    differences.fold(0, |any, difference| any | difference) == 0
}

/// How many last tokens two sequences share.
fn common_suffix(a: &[u32], b: &[u32]) -> usize {
    let length = a.len().min(b.len());
    let (a, b) = (&a[a.len() - length..], &b[b.len() - length..]);
    let (_, lanes_a) = a.as_rchunks::<LANES>();
    let (_, lanes_b) = b.as_rchunks::<LANES>();
    let lanes = lanes_a.iter().rev().zip(lanes_b.iter().rev());
    let left = length - lanes.take_while(|(a, b)| are_equal(a, b)).count() * LANES;
    let more = a[..left].iter().rev().zip(b[..left].iter().rev());
    length - left + more.take_while(|(a, b)| a == b).count()
}

/// Spans chosen so far, in both orders.
#[derive(Debug, Default)]
struct Chosen {
    by_target: Vec<Span>,
    by_donor: Vec<Span>,
    pieces: BinaryHeap<Piece>,
}

/// A run or part of one that may become a span; greatest first: longest, then first in the target.
#[derive(Debug, PartialEq, Eq)]
struct Piece(Span);

impl Ord for Piece {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let rank = |span: &Span| {
            use std::cmp::Reverse;
            (
                span.length,
                Reverse(span.target_start),
                Reverse(span.donor_start),
            )
        };
        rank(&self.0).cmp(&rank(&other.0))
    }
}

impl PartialOrd for Piece {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Chosen {
    /// Takes the longest run, cuts what it covers off the others, and so on.
    fn choose(&mut self, runs: &mut Vec<Span>, shortest: u32) -> &[Span] {
        self.by_target.clear();
        self.by_donor.clear();
        if are_disjoint(runs) {
            self.by_target.append(runs);
            self.by_target
                .sort_unstable_by_key(|span| span.target_start);
            return &self.by_target;
        }
        self.pieces.clear();
        self.pieces.extend(runs.iter().map(|&run| Piece(run)));
        for _ in 0..PIECES_MAX {
            let Some(Piece(piece)) = self.pieces.pop() else {
                break;
            };
            if let Some((from, to)) = self.overlap(piece) {
                for rest in [piece.slice(0, from), piece.slice(to, piece.length)] {
                    if rest.length >= shortest {
                        self.pieces.push(Piece(rest));
                    }
                }
            } else {
                let at = self
                    .by_target
                    .partition_point(|s| s.target_start < piece.target_start);
                self.by_target.insert(at, piece);
                let at = self
                    .by_donor
                    .partition_point(|s| s.donor_start < piece.donor_start);
                self.by_donor.insert(at, piece);
            }
        }
        &self.by_target
    }

    /// A part of the piece, as offsets into it, that a chosen span has already.
    fn overlap(&self, piece: Span) -> Option<(u32, u32)> {
        let common = |start: u32, other_start: u32, other_end: u32| {
            let from = other_start.max(start) - start;
            let to = other_end.min(start + piece.length).max(start) - start;
            (from < to).then_some((from, to))
        };
        let at = self
            .by_target
            .partition_point(|s| s.target_end() <= piece.target_start);
        let in_target = self
            .by_target
            .get(at)
            .and_then(|s| common(piece.target_start, s.target_start, s.target_end()));
        in_target.or_else(|| {
            let at = self
                .by_donor
                .partition_point(|s| s.donor_end() <= piece.donor_start);
            self.by_donor
                .get(at)
                .and_then(|s| common(piece.donor_start, s.donor_start, s.donor_end()))
        })
    }
}

/// True when no two runs share a token of the donor or of the target. Sorts the runs.
fn are_disjoint(runs: &mut [Span]) -> bool {
    runs.sort_unstable_by_key(|run| run.donor_start);
    if !runs.is_sorted_by(|a, b| a.donor_end() <= b.donor_start) {
        return false;
    }
    runs.sort_unstable_by_key(|run| run.target_start);
    runs.is_sorted_by(|a, b| a.target_end() <= b.target_start)
}

#[cfg(test)]
mod tests;
