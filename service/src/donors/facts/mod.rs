//! Do two texts that are otherwise alike differ in a number, a name, a negation or an identifier?

mod judge;
mod labels;
mod lexicon;
mod marks;
mod numbers;
mod seeds;
mod shape;
mod spelling;
mod words;

use std::{
    cell::{Cell, OnceCell},
    ops::Range,
};

use judge::{Gap, Judge, Side};
use seeds::Seeds;
use words::{EDGE_AFTER, EDGE_BEFORE, LINE_AFTER, LINE_BEFORE, Word, words};

/// Words of the longest gap on either side.
const GAP_WORDS_MAX: usize = 16;
/// Bytes of both texts together; longer ones are not compared. At 50 to 150 ns a byte, that takes
/// up to a third of a second of a processor.
pub const TEXTS_BYTES_MAX: usize = 2 << 20;
/// Words between two looks at whether it is too late.
const LATE_WORDS: usize = 1_024;
/// How often a word may be come by, on an average, before what was found has to do.
const WALKS_MAX: usize = 32;
/// Equal words behind a gap that end it.
const RESYNC_WORDS: usize = 3;
/// Words of the longest gap that the end of a text or of a line ends on one side.
const TAIL_WORDS_MAX: usize = 4;
/// Equal words that a gap needs before it, however small it is.
const SUPPORT_WORDS_MIN: usize = 3;
/// Equal words that it needs behind it, but where the texts or the lines end.
const FOLLOWING_WORDS_MIN: usize = 8;
/// The same while few before it are in its own line: lines of different passages may begin alike.
const LINE_FOLLOWING_WORDS_MIN: usize = 12;
/// Equal words in its own line that make it a change of that line.
const LINE_WORDS: usize = 24;
/// Equal words of a line that is a whole one but for a gap.
const WHOLE_LINE_WORDS_MIN: usize = 10;
/// Equal words before a gap that nothing equal follows.
const TAIL_SUPPORT_WORDS_MIN: usize = 8;

/// Whether the texts are near duplicates that state different facts.
///
/// Stretches of equal words are followed through small gaps, forward and backward from where they
/// are found; a gap between enough equal words that changes a number, a name, a negation, a unit
/// behind a number, an identifier or an operator, or turns a word into its opposite, makes the
/// texts differ. What is only moved, replaced at length, or added or left out as a whole sentence
/// does not; neither do spelling, spacing, punctuation, or other ordinary words.
///
/// Symmetric; false for equal texts, and for such as are too long, by [`TEXTS_BYTES_MAX`]. Linear
/// in their length.
#[must_use]
pub fn facts_differ(donor_text: &str, target_text: &str) -> bool {
    facts_differ_within(donor_text, target_text, &|| false) == Some(true)
}

/// [`facts_differ`], unless it is too late before that is known, or the texts are too long.
#[must_use]
pub fn facts_differ_within(
    donor_text: &str,
    target_text: &str,
    is_late: &dyn Fn() -> bool,
) -> Option<bool> {
    // In one order, whoever asks.
    let mut texts = [donor_text, target_text];
    texts.sort_unstable_by_key(|&text| (text.len(), text));
    let [a, b] = texts;
    if a == b {
        return Some(false);
    }
    if a.len() + b.len() > TEXTS_BYTES_MAX {
        return None;
    }
    let side = |text| {
        let words = words(text, is_late)?;
        Some(Side { text, words })
    };
    let sides = [side(a)?, side(b)?];
    let length = sides[0].words.len() + sides[1].words.len();
    let comparison = Comparison {
        judge: Judge::new(sides),
        seeds: OnceCell::new(),
        left: Cell::new(length.saturating_mul(WALKS_MAX)),
        look_at: Cell::new(usize::MAX),
        is_late,
        was_late: Cell::new(false),
    };
    let differs = comparison.differs();
    (differs || !comparison.was_late.get()).then_some(differs)
}

struct Comparison<'t> {
    judge: Judge<'t>,
    seeds: OnceCell<Seeds>,
    /// Words that may still be followed.
    left: Cell<usize>,
    /// At so many words left, or less, it is looked whether it is too late.
    look_at: Cell<usize>,
    is_late: &'t dyn Fn() -> bool,
    was_late: Cell<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// How far equal words were followed, in words of each side, and whether facts differ there.
#[derive(Debug, Clone, Copy)]
struct Walked {
    differs: bool,
    lengths: [usize; 2],
    /// Equal words among them.
    equal: usize,
}

impl Comparison<'_> {
    fn differs(&self) -> bool {
        let [a, b] = &self.judge.sides;
        let start = self.walk(
            Direction::Forward,
            [0, 0],
            [a.words.len(), b.words.len()],
            0,
        );
        if start.differs {
            return true;
        }
        let mut done = start.lengths[1];
        if done == b.words.len() {
            return false;
        }
        let end = self.walk(
            Direction::Backward,
            [a.words.len(), b.words.len()],
            [a.words.len(), b.words.len() - done],
            0,
        );
        if end.differs {
            return true;
        }
        let last = b.words.len() - end.lengths[1];
        let seeds = self.seeds();
        while self.left.get() > 0
            && let Some([at, place]) = seeds.next(done, last)
        {
            let ends = [a.words.len() - at, b.words.len() - place];
            let forward = self.walk(Direction::Forward, [at, place], ends, 0);
            if forward.differs {
                return true;
            }
            // What begins a line may have been taken for the beginning of another one.
            let limits = [at, place - done.saturating_sub(GAP_WORDS_MAX)];
            let backward = self.walk(Direction::Backward, [at, place], limits, forward.equal);
            if backward.differs {
                return true;
            }
            done = place + forward.lengths[1].max(1);
        }
        false
    }

    fn spend(&self, words: usize) {
        let left = self.left.get().saturating_sub(words);
        self.left.set(left);
        if left <= self.look_at.get() {
            self.look_at.set(left.saturating_sub(LATE_WORDS));
            if (self.is_late)() {
                self.was_late.set(true);
                self.left.set(0);
            }
        }
    }

    fn seeds(&self) -> &Seeds {
        let [a, b] = &self.judge.sides;
        self.seeds.get_or_init(|| Seeds::new(&a.words, &b.words))
    }

    /// Whether a gap states different facts, and not what the other side says elsewhere.
    fn counts(&self, gap: &Gap) -> bool {
        let is_elsewhere = |side: usize, range: &Range<usize>| {
            let words = &self.judge.sides[side].words;
            self.seeds().is_elsewhere(words, range, 1 - side)
        };
        let [a, b] = &gap.0;
        self.judge.differs(gap) && !(is_elsewhere(0, a) && is_elsewhere(1, b))
    }

    /// Follows equal words from `start` over at most `limits` words of each side. `support` is how
    /// many equal words there are on the other side of the start.
    fn walk(
        &self,
        direction: Direction,
        start: [usize; 2],
        limits: [usize; 2],
        support: usize,
    ) -> Walked {
        let path = Path {
            sides: [0, 1].map(|side| &self.judge.sides[side].words[..]),
            direction,
            start,
            limits,
        };
        let mut walked = Walked {
            differs: false,
            lengths: [0, 0],
            equal: 0,
        };
        let mut in_line = support;
        let mut support = support + path.edge_support();
        let mut change: Option<Change> = None;
        loop {
            let run = path.run(walked.lengths);
            self.spend(run + GAP_WORDS_MAX);
            walked.lengths = walked.lengths.map(|length| length + run);
            walked.equal += run;
            support += run;
            in_line = path.in_line(walked.lengths, in_line + run, run);
            if let Some(change) = &mut change {
                change.missing = change.missing.saturating_sub(run);
                walked.differs = change.missing == 0;
            }
            if walked.differs {
                return walked;
            }
            if path.is_at_ends(walked.lengths) {
                walked.differs = change.is_some() && walked.equal >= SUPPORT_WORDS_MIN;
                return walked;
            }
            let Some(gap) = path.gap(walked.lengths) else {
                let tail = path.tail(walked.lengths);
                walked.differs = match (change, tail) {
                    (Some(change), tail) => {
                        (change.is_in_line() && tail.is_some()) || path.ends(walked, change)
                    }
                    (None, Some(tail)) => {
                        support >= TAIL_SUPPORT_WORDS_MIN
                            && self.counts(&path.place(walked.lengths, tail))
                    }
                    (None, None) => false,
                };
                // What did not count was followed too far.
                walked.lengths = change.map_or(walked.lengths, |change| change.at);
                return walked;
            };
            let size = gap[0].max(gap[1]);
            if let Some(change) = &mut change {
                change.missing += size;
            } else if support < SUPPORT_WORDS_MIN.max(size) {
                return walked;
            } else if self.counts(&path.place(walked.lengths, gap)) {
                change = Some(Change::new(walked, size, [in_line, support]));
            }
            support = support.saturating_sub(size);
            walked.lengths = [walked.lengths[0] + gap[0], walked.lengths[1] + gap[1]];
        }
    }
}

/// A gap that states different facts, if enough equal words follow.
#[derive(Debug, Clone, Copy)]
struct Change {
    /// Words of each side before it.
    at: [usize; 2],
    /// Equal words that must still follow.
    missing: usize,
    /// Equal words that were followed up to it.
    equal: usize,
    /// Equal words before it, in its own line and in all.
    in_line: usize,
    support: usize,
}

impl Change {
    fn new(walked: Walked, size: usize, [in_line, support]: [usize; 2]) -> Self {
        let mut change = Self {
            at: walked.lengths,
            missing: 0,
            equal: walked.equal,
            in_line,
            support,
        };
        let least = if change.is_in_line() {
            FOLLOWING_WORDS_MIN
        } else {
            LINE_FOLLOWING_WORDS_MIN
        };
        change.missing = least.max(2 * size);
        change
    }

    /// Its own line is equal over a long stretch before it.
    fn is_in_line(&self) -> bool {
        self.in_line >= LINE_WORDS
    }
}

/// Both sides' words from a start in one direction.
struct Path<'w> {
    sides: [&'w [Word]; 2],
    direction: Direction,
    start: [usize; 2],
    limits: [usize; 2],
}

impl Path<'_> {
    fn word(&self, side: usize, at: usize) -> Option<&Word> {
        if at >= self.limits[side] {
            return None;
        }
        match self.direction {
            Direction::Forward => self.sides[side].get(self.start[side] + at),
            Direction::Backward => self.sides[side].get(self.start[side].checked_sub(at + 1)?),
        }
    }

    /// The word that comes last before this place, which may be one before the start.
    fn last_word(&self, side: usize, at: usize) -> Option<&Word> {
        let place = match self.direction {
            Direction::Forward => (self.start[side] + at).checked_sub(1)?,
            Direction::Backward => self.start[side].checked_sub(at)?,
        };
        self.sides[side].get(place)
    }

    /// Equal words from these places on.
    fn run(&self, from: [usize; 2]) -> usize {
        self.run_up_to(from, usize::MAX)
    }

    fn run_up_to(&self, from: [usize; 2], max: usize) -> usize {
        let mut run = 0;
        while run < max
            && let Some(one) = self.word(0, from[0] + run)
            && let Some(two) = self.word(1, from[1] + run)
            && one.hash == two.hash
        {
            run += 1;
        }
        run
    }

    fn is_at_ends(&self, at: [usize; 2]) -> bool {
        at == self.limits
    }

    /// Whether what has the change ends here as a whole: one of the texts, its line, or a sentence
    /// of a line that is equal over a long stretch.
    fn ends(
        &self,
        Walked {
            lengths: at, equal, ..
        }: Walked,
        change: Change,
    ) -> bool {
        let (edge, line) = match self.direction {
            Direction::Forward => (EDGE_AFTER, LINE_AFTER),
            Direction::Backward => (EDGE_BEFORE, LINE_BEFORE),
        };
        let last = [0, 1].map(|side| self.last_word(side, at[side]));
        let have = |flag: u16| {
            last.iter()
                .all(|last| last.is_some_and(|last| last.has(flag)))
        };
        let is_at_text_edge = (0..2).any(|side| match self.direction {
            Direction::Forward => self.start[side] + at[side] == self.sides[side].len(),
            Direction::Backward => self.start[side] == at[side],
        });
        let is_supported = change.support >= TAIL_SUPPORT_WORDS_MIN;
        let in_line = change.in_line + equal - change.equal;
        (change.is_in_line() && have(edge))
            || (is_supported && in_line >= WHOLE_LINE_WORDS_MIN && have(line))
            || (is_supported && is_at_text_edge)
    }

    /// Of so many equal words those since a line began; the last `run` end at these places.
    fn in_line(&self, end: [usize; 2], words: usize, run: usize) -> usize {
        let flag = match self.direction {
            Direction::Forward => LINE_AFTER,
            Direction::Backward => LINE_BEFORE,
        };
        let is_last = |back: &usize| {
            let at = |side: usize| end[side].checked_sub(back + 1);
            let ends = |side: usize| at(side).and_then(|at| self.word(side, at));
            (0..2).all(|side| ends(side).is_some_and(|word| word.has(flag)))
        };
        (0..run.min(LINE_WORDS)).find(is_last).unwrap_or(words)
    }

    /// Where both texts begin, that counts like equal words before it.
    fn edge_support(&self) -> usize {
        let is_at_text_edge = match self.direction {
            Direction::Forward => self.start == [0, 0],
            Direction::Backward => self.start == [self.sides[0].len(), self.sides[1].len()],
        };
        if is_at_text_edge {
            SUPPORT_WORDS_MIN
        } else {
            0
        }
    }

    /// The smallest gap from these places to the next equal words.
    fn gap(&self, from: [usize; 2]) -> Option<[usize; 2]> {
        let left = [0, 1].map(|side| self.limits[side].saturating_sub(from[side]));
        if left == [0, 0] {
            return None;
        }
        for total in 1..=2 * GAP_WORDS_MAX {
            let fits =
                |gap: &[usize; 2]| (0..2).all(|side| gap[side] <= GAP_WORDS_MAX.min(left[side]));
            // The more even, the sooner.
            let gaps = (0..=total / 2)
                .rev()
                .flat_map(|less| [[less, total - less], [total - less, less]]);
            for gap in gaps.filter(fits) {
                let to = [from[0] + gap[0], from[1] + gap[1]];
                let run = self.run_up_to(to, RESYNC_WORDS);
                let ends = self.is_at_ends([to[0] + run, to[1] + run]);
                let is_tail = run > 0 || gap.iter().all(|&size| size <= TAIL_WORDS_MAX);
                if run == RESYNC_WORDS || (ends && is_tail) {
                    return Some(gap);
                }
            }
        }
        None
    }

    /// Words up to where a line or sentence ends on both sides, where those are few; only up to
    /// where a line ends, where one side has none.
    fn tail(&self, from: [usize; 2]) -> Option<[usize; 2]> {
        let (edge, line) = match self.direction {
            Direction::Forward => (EDGE_AFTER, LINE_AFTER),
            Direction::Backward => (EDGE_BEFORE, LINE_BEFORE),
        };
        let length = |side: usize, edge: u16| {
            let reachable = TAIL_WORDS_MAX.min(self.limits[side] - from[side]);
            (0..=reachable).find(|&length| {
                let last = self.last_word(side, from[side] + length);
                last.is_none_or(|last| last.has(edge))
            })
        };
        match [length(0, edge)?, length(1, edge)?] {
            [0, _] | [_, 0] => Some([length(0, line)?, length(1, line)?]),
            tail => Some(tail),
        }
    }

    /// The gap's places in the texts.
    fn place(&self, from: [usize; 2], gap: [usize; 2]) -> Gap {
        Gap([0, 1].map(|side| {
            let (near, far) = (from[side], from[side] + gap[side]);
            match self.direction {
                Direction::Forward => self.start[side] + near..self.start[side] + far,
                Direction::Backward => self.start[side] - far..self.start[side] - near,
            }
        }))
    }
}

#[cfg(test)]
mod tests;
