//! Several donors for one target: which spans of which donors together cover the most of it.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{
    align::Span,
    index::DonorIndex,
    search::{Aligned, Scratch, Target},
    seeds::{WINDOW, count_u32},
};

/// Donors that are chosen among; further candidates are left out.
pub const CANDIDATES_MAX: usize = 24;
/// Donors of one cover.
pub const COVER_DONORS_MAX: usize = 8;
/// Words of 64 target tokens that may be compared before the best choice so far has to do.
const WORK_MAX: usize = 30_000;
/// What arranging the spans of a set of donors counts as, for each span.
const ARRANGE_WORK: usize = 256;
/// Rounds in which further donors are looked for.
const ROUNDS_MAX: usize = 16;
/// Rounds in which they are looked for beside the best choice so far: each makes it anew.
const CHOICES_MAX: usize = 4;
/// Donors asked for in one round.
const ROUND_DONORS_MAX: usize = 4;
/// Tokens of the shortest span.
const SHORTEST: u32 = 16;
const _: () = assert!(SHORTEST as usize == WINDOW);

/// The best spans that were found, and how good they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cover {
    /// A donor and a span of it each, in target order.
    pub spans: Vec<(usize, Span)>,
    /// Target tokens in them.
    pub tokens: u32,
    /// No choice covers more. Equal to `tokens` unless the bound on work ended the search.
    pub tokens_at_most: u32,
}

/// Spans of at most `donors_max` donors (itself at most [`COVER_DONORS_MAX`]), disjoint in the
/// target, of at least 16 tokens each, that cover the most tokens; among equals those of fewer
/// donors, then fewer spans, then of earlier candidates.
///
/// A candidate is a donor and its spans, disjoint in donor and target; each donor comes once. What
/// is chosen of a span may be a part of it. See [`cover_within`] for how sure the answer is.
#[must_use]
pub fn best_cover(candidates: &[(usize, Vec<Span>)], donors_max: usize) -> Vec<(usize, Span)> {
    cover_within(candidates, donors_max, WORK_MAX).spans
}

/// [`best_cover`] with a bound on the work: a search that it does not end has the true optimum.
///
/// Donors are chosen by branch and bound over how many tokens the union of their spans has: the
/// union is what a set covers at most. What it does cover is less where spans that overlap are too
/// short to be cut, and is found by dynamic programming over the target.
#[must_use]
pub fn cover_within(
    candidates: &[(usize, Vec<Span>)],
    donors_max: usize,
    work_max: usize,
) -> Cover {
    let candidates = &candidates[..candidates.len().min(CANDIDATES_MAX)];
    let spans: Vec<Vec<Span>> = candidates.iter().map(|(_, spans)| usable(spans)).collect();
    let useful: Vec<usize> = (0..spans.len())
        .filter(|&at| !spans[at].is_empty() && !is_dominated(&spans, at))
        .collect();
    let mut choice = Choice::new(&spans, donors_max.min(COVER_DONORS_MAX), work_max);
    let nothing = vec![0; choice.words];
    let at_most = choice.bound(&useful);
    choice.explore(&mut Vec::new(), &nothing, &useful);
    let tokens = choice.best.tokens;
    Cover {
        tokens,
        tokens_at_most: if choice.is_cut_short { at_most } else { tokens },
        spans: choice
            .best
            .spans
            .iter()
            .map(|&(at, span)| (candidates[at].0, span))
            .collect(),
    }
}

impl DonorIndex {
    /// Spans of up to `donors_max` donors that together cover the most of the target beyond its
    /// boundary, in target order, each with its donor's slot.
    ///
    /// `first` are donors found already. Further ones are those that have most of the seeds that
    /// no donor so far covers.
    pub fn search_cover(
        &self,
        target: &Target<'_>,
        first: &[Aligned],
        donors_max: usize,
        scratch: &mut Scratch,
    ) -> Vec<(u32, Span)> {
        let length = count_u32(target.tokens.len());
        let boundary = count_u32(target.boundary);
        let candidates = gather(
            first,
            boundary..length,
            donors_max,
            |covered, known, max| {
                let is_new = |slot| !known.iter().any(|aligned| aligned.slot == slot);
                let target = Target {
                    is_eligible: &|slot| is_new(slot) && (target.is_eligible)(slot),
                    ..*target
                };
                self.nominate_uncovered(&target, covered, scratch, max)
            },
        );
        let spans = spans_of(&candidates);
        best_cover(&spans, donors_max)
            .into_iter()
            .map(|(slot, span)| (count_u32(slot), span))
            .collect()
    }
}

/// Candidates beside the first, from searches for what none so far covers; then for what the best
/// few of them leave uncovered.
fn gather(
    first: &[Aligned],
    beyond: std::ops::Range<u32>,
    donors_max: usize,
    mut further: impl FnMut(&[Span], &[Aligned], usize) -> Vec<Aligned>,
) -> Vec<Aligned> {
    let mut candidates: Vec<Aligned> = first.iter().take(CANDIDATES_MAX).cloned().collect();
    let mut choices = 0;
    for _ in 0..ROUNDS_MAX {
        let most = (CANDIDATES_MAX - candidates.len()).min(ROUND_DONORS_MAX);
        if most == 0 {
            break;
        }
        let mut outside = |covered: Vec<Span>| {
            let mut found = Vec::new();
            if leaves_room(&covered, &beyond) {
                found = further(&covered, &candidates, most);
                found.retain(|new| new.coverage > 0);
                found.truncate(most);
            }
            found
        };
        let all = candidates.iter().flat_map(|aligned| &aligned.spans);
        let mut found = outside(union(all.copied().collect()));
        if found.is_empty() && choices < CHOICES_MAX {
            choices += 1;
            let chosen = cover_within(&spans_of(&candidates), donors_max, WORK_MAX / CHOICES_MAX);
            let chosen = chosen.spans.iter().map(|&(_, span)| span);
            found = outside(union(chosen.collect()));
        }
        if found.is_empty() {
            break;
        }
        candidates.append(&mut found);
    }
    candidates
}

fn spans_of(candidates: &[Aligned]) -> Vec<(usize, Vec<Span>)> {
    let of = |aligned: &Aligned| (aligned.slot as usize, aligned.spans.clone());
    candidates.iter().map(of).collect()
}

/// The target's covered stretches, ascending and apart; only their target side means anything.
fn union(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable_by_key(|span| span.target_start);
    let mut union: Vec<Span> = Vec::new();
    for span in spans {
        match union.last_mut() {
            Some(last) if span.target_start <= last.target_end() => {
                last.length = last.length.max(span.target_end() - last.target_start);
            }
            Some(_) | None => union.push(span),
        }
    }
    union
}

/// Whether a span would fit between the covered stretches.
fn leaves_room(covered: &[Span], beyond: &std::ops::Range<u32>) -> bool {
    let mut at = beyond.start;
    for stretch in covered {
        if stretch.target_start >= at + SHORTEST {
            return true;
        }
        at = at.max(stretch.target_end());
    }
    beyond.end >= at + SHORTEST
}

fn usable(spans: &[Span]) -> Vec<Span> {
    let long = spans.iter().filter(|span| span.length >= SHORTEST);
    let mut usable: Vec<Span> = long.copied().collect();
    usable.sort_unstable_by_key(|span| span.target_start);
    usable
}

/// Whether an earlier candidate has all that this one has: nothing is then lost without it.
fn is_dominated(spans: &[Vec<Span>], at: usize) -> bool {
    let inside = |span: &Span, others: &[Span]| {
        let place = others.partition_point(|other| other.target_end() < span.target_end());
        others
            .get(place)
            .is_some_and(|other| other.target_start <= span.target_start)
    };
    let has_all = |others: &Vec<Span>| spans[at].iter().all(|span| inside(span, others));
    spans[..at].iter().any(has_all)
}

/// The search for the best set of donors.
struct Choice<'a> {
    spans: &'a [Vec<Span>],
    /// By candidate: a bit for every target token in its spans.
    maps: Vec<Vec<u64>>,
    words: usize,
    donors_max: usize,
    work_left: usize,
    is_cut_short: bool,
    best: Best,
}

#[derive(Debug, Default)]
struct Best {
    tokens: u32,
    /// Candidates that are used, ascending.
    donors: Vec<usize>,
    spans: Vec<(usize, Span)>,
}

impl Best {
    /// The greater the better.
    fn rank(&self) -> impl Ord + '_ {
        (
            self.tokens,
            Reverse(self.donors.len()),
            Reverse(self.spans.len()),
            Reverse(&self.donors),
        )
    }
}

impl<'a> Choice<'a> {
    fn new(spans: &'a [Vec<Span>], donors_max: usize, work_max: usize) -> Self {
        let all = || spans.iter().flatten();
        let first = all().map(|span| span.target_start).min().unwrap_or(0) as usize;
        let end = all().map(Span::target_end).max().unwrap_or(0) as usize;
        let words = (end - first).div_ceil(64);
        let map = |spans: &Vec<Span>| {
            let mut map = vec![0; words];
            for span in spans {
                let start = span.target_start as usize - first;
                set(&mut map, start, start + span.length as usize);
            }
            map
        };
        Self {
            spans,
            maps: spans.iter().map(map).collect(),
            words,
            donors_max,
            work_left: work_max,
            is_cut_short: false,
            best: Best::default(),
        }
    }

    /// No set of these candidates covers more.
    fn bound(&self, candidates: &[usize]) -> u32 {
        let mut sizes: Vec<u32> = candidates.iter().map(|&at| count(&self.maps[at])).collect();
        sizes.sort_unstable_by_key(|&size| Reverse(size));
        let largest = sizes.iter().take(self.donors_max).sum();
        let mut all = vec![0; self.words];
        for &at in candidates {
            add(&mut all, &self.maps[at]);
        }
        count(&all).min(largest)
    }

    /// Tries every set of `chosen` and some of `rest`, but those that cannot be the best.
    fn explore(&mut self, chosen: &mut Vec<usize>, covered: &[u64], rest: &[usize]) {
        let tokens = count(covered);
        let mut gains: Vec<(u32, usize)> = rest
            .iter()
            .map(|&at| (count_new(&self.maps[at], covered), at))
            .collect();
        gains.sort_unstable_by_key(|&(gain, at)| (Reverse(gain), at));
        self.spend((rest.len() + 1) * self.words);
        // Where more can be gained the larger sets come first: they spare arranging this one.
        let is_full = gains.first().is_none_or(|&(gain, _)| gain == 0);
        if is_full {
            self.consider(chosen, tokens);
        }
        let mut with_one = vec![0; self.words];
        for place in 0..gains.len() {
            if !self.can_win(tokens, chosen.len(), &gains[place..]) {
                break;
            }
            if self.work_left == 0 {
                self.is_cut_short = true;
                break;
            }
            let (_, at) = gains[place];
            with_one.copy_from_slice(covered);
            add(&mut with_one, &self.maps[at]);
            let rest: Vec<usize> = gains[place + 1..].iter().map(|&(_, at)| at).collect();
            chosen.push(at);
            self.explore(chosen, &with_one, &rest);
            chosen.pop();
        }
        if !is_full {
            self.consider(chosen, tokens);
        }
    }

    /// Whether `tokens` of so many donors and some of these gains, falling, could be the best.
    fn can_win(&self, tokens: u32, donors: usize, gains: &[(u32, usize)]) -> bool {
        let mut reached = tokens;
        for (&(gain, _), donors) in gains.iter().zip(donors + 1..=self.donors_max) {
            reached += gain;
            let is_better = reached > self.best.tokens;
            if is_better || (reached == self.best.tokens && donors <= self.best.donors.len()) {
                return true;
            }
        }
        false
    }

    fn consider(&mut self, chosen: &[usize], at_most: u32) {
        let is_hopeless =
            (at_most, Reverse(chosen.len())) < (self.best.tokens, Reverse(self.best.donors.len()));
        if is_hopeless || chosen.is_empty() {
            return;
        }
        let sources: Vec<(usize, &[Span])> = chosen
            .iter()
            .map(|&at| (at, self.spans[at].as_slice()))
            .collect();
        let count: usize = sources.iter().map(|(_, spans)| spans.len()).sum();
        self.spend(count * ARRANGE_WORK);
        let spans = arrange(&sources);
        let mut donors: Vec<usize> = spans.iter().map(|&(at, _)| at).collect();
        donors.sort_unstable();
        donors.dedup();
        let found = Best {
            tokens: spans.iter().map(|(_, span)| span.length).sum(),
            donors,
            spans,
        };
        if found.rank() > self.best.rank() {
            self.best = found;
        }
    }

    fn spend(&mut self, work: usize) {
        self.work_left = self.work_left.saturating_sub(work);
    }
}

/// A span that is taken from `start` on, after what is best before.
#[derive(Debug, Clone, Copy)]
struct Piece {
    source: usize,
    span: Span,
    start: u32,
    before: Value,
}

/// What a way to get somewhere is worth, the greater the better, and the last piece on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Value {
    tokens: u32,
    pieces: Reverse<u32>,
    /// The last piece and where it ends.
    last: Option<(usize, u32)>,
}

/// A place in the target where a choice is made, in the order in which they are met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A span ends.
    End { source: usize, nth: usize },
    /// A span can be taken from here on.
    Begin { source: usize, nth: usize },
}

/// The most tokens that disjoint parts of these spans cover, each of at least 16 tokens; with the
/// fewest parts.
///
/// Dynamic programming from left to right. In some best choice every part begins where its span
/// does or where the part before ends, and ends where its span does, or as early as the next part
/// and its own 16 tokens allow: moving a border between two parts to the left changes nothing
/// else. The next part's span goes further than this one's: else this one would do without it. So
/// from a part there is one way to go on for each source, and one to let the span end.
fn arrange(sources: &[(usize, &[Span])]) -> Vec<(usize, Span)> {
    let mut ways: BTreeMap<(u32, Event), Value> = BTreeMap::new();
    for (source, (_, spans)) in sources.iter().enumerate() {
        for (nth, span) in spans.iter().enumerate() {
            let event = Event::Begin { source, nth };
            ways.insert((span.target_start, event), Value::default());
        }
    }
    let offer = |ways: &mut BTreeMap<_, Value>, place, value: Value| {
        let known = ways.entry(place).or_default();
        *known = value.max(*known);
    };
    let mut pieces: Vec<Piece> = Vec::new();
    let mut best = Value::default();
    while let Some(((at, event), value)) = ways.pop_first() {
        let (source, nth) = match event {
            Event::End { .. } => {
                best = best.max(value);
                continue;
            }
            Event::Begin { source, nth } => (source, nth),
        };
        let span = sources[source].1[nth];
        let before = value.max(best);
        let piece = pieces.len();
        pieces.push(Piece {
            source,
            span,
            start: at,
            before,
        });
        let until = |end: u32| Value {
            tokens: before.tokens + (end - at),
            pieces: Reverse(before.pieces.0 + 1),
            last: Some((piece, end)),
        };
        let end = span.target_end();
        offer(&mut ways, (end, Event::End { source, nth }), until(end));
        for (other, (_, spans)) in sources.iter().enumerate() {
            let nth = spans.partition_point(|next| next.target_end() <= end);
            let Some(next) = spans.get(nth) else { continue };
            let border = next.target_start.max(at + SHORTEST);
            if border <= end && border + SHORTEST <= next.target_end() {
                let event = Event::Begin { source: other, nth };
                offer(&mut ways, (border, event), until(border));
            }
        }
    }
    trace(sources, &pieces, best)
}

fn trace(sources: &[(usize, &[Span])], pieces: &[Piece], best: Value) -> Vec<(usize, Span)> {
    let mut spans = Vec::new();
    let mut last = best.last;
    while let Some((piece, end)) = last {
        let piece = pieces[piece];
        let skipped = piece.start - piece.span.target_start;
        let span = Span {
            donor_start: piece.span.donor_start + skipped,
            target_start: piece.start,
            length: end - piece.start,
        };
        spans.push((sources[piece.source].0, span));
        last = piece.before.last;
    }
    spans.reverse();
    spans
}

/// Sets the bits from `start` up to `end`.
fn set(map: &mut [u64], start: usize, end: usize) {
    for (word, bits) in map
        .iter_mut()
        .enumerate()
        .take(end.div_ceil(64))
        .skip(start / 64)
    {
        let from = start.saturating_sub(word * 64);
        let to = (end - word * 64).min(64);
        *bits |= (u64::MAX >> (64 - (to - from))) << from;
    }
}

fn add(map: &mut [u64], other: &[u64]) {
    map.iter_mut()
        .zip(other)
        .for_each(|(map, other)| *map |= other);
}

fn count(map: &[u64]) -> u32 {
    map.iter().map(|word| word.count_ones()).sum()
}

/// Bits of `map` that `covered` lacks.
fn count_new(map: &[u64], covered: &[u64]) -> u32 {
    map.iter()
        .zip(covered)
        .map(|(map, covered)| (map & !covered).count_ones())
        .sum()
}

#[cfg(test)]
mod tests;
