//! What a gap between equal stretches changes: numbers, names, negations, identifiers, or nothing.

use std::{collections::HashMap, ops::Range};

use super::{
    lexicon::{COMMON, GRAMMAR, MEASURES, NAMES, NEGATIONS, Opposite, opposites, stem},
    spelling::{canonical_hash, plain_hash},
    words::{
        CAPITAL, CAPITALS, EDGE_AFTER, EDGE_BEFORE, FIRST, IN_WORDS, JOINED, Kind, LABEL, Word,
    },
};

/// Words of one side that make a sentence of their own.
const SENTENCE_WORDS_MIN: usize = 3;
/// Measures that are facts also where the other side has none: percent and currencies.
const MEASURES_ALONE: usize = 7;
/// Prefixes that turn a word into its opposite.
const PREFIXES: [&str; 9] = ["un", "in", "im", "il", "ir", "dis", "non", "mis", "de"];
/// Endings that ordinary words have at the beginning of a sentence.
const ORDINARY_ENDINGS: [&str; 9] = [
    "ly", "ing", "ed", "ness", "ment", "ful", "less", "ous", "ever",
];

/// One of the two texts.
pub(super) struct Side<'t> {
    pub(super) text: &'t str,
    pub(super) words: Vec<Word>,
}

/// Words of both sides between stretches that are equal, by their places.
#[derive(Debug, Clone)]
pub(super) struct Gap(pub(super) [Range<usize>; 2]);

/// Two texts, and which of their words are written how elsewhere in them.
pub(super) struct Judge<'t> {
    pub(super) sides: [Side<'t>; 2],
    written: std::cell::OnceCell<HashMap<u64, u8>>,
}

const SEEN_SMALL: u8 = 1;
const SEEN_AS_NAME: u8 = 2;

impl<'t> Judge<'t> {
    pub(super) fn new(sides: [Side<'t>; 2]) -> Self {
        Self {
            sides,
            written: std::cell::OnceCell::new(),
        }
    }

    /// Whether the two sides of a gap state different facts.
    pub(super) fn differs(&self, gap: &Gap) -> bool {
        if self.is_whole_sentence(gap) {
            return false;
        }
        let words = [0, 1].map(|side| &self.sides[side].words[gap.0[side].clone()]);
        let all = || words.iter().copied().flatten();
        // The same passage stands at another place.
        if all().all(|word| word.has(LABEL)) {
            return false;
        }
        let has_identifier = all().any(|word| word.kind == Kind::Identifier);
        let is_respelled = all().all(|word| is_letters(word, has_identifier))
            && self.letters(gap, 0).next().is_some()
            && self.letters(gap, 0).eq(self.letters(gap, 1));
        if is_respelled {
            return false;
        }
        numbers_differ(words, self)
            || operators_differ(words)
            || identifiers_differ(words)
            || self.names_differ(gap)
            || self.measures_differ(gap)
            || self.polarity_differs(words)
    }

    // A sentence or a line that only one side has, or that each side has another one of.
    fn is_whole_sentence(&self, gap: &Gap) -> bool {
        let [a, b] = &gap.0;
        let is_whole = |side: usize, range: &Range<usize>| {
            let words = &self.sides[side].words;
            range.start < range.end
                && words[range.start].has(EDGE_BEFORE)
                && words[range.end - 1].has(EDGE_AFTER)
        };
        if !a.is_empty() && !b.is_empty() {
            return a.len() + b.len() > 2 && is_whole(0, a) && is_whole(1, b);
        }
        let (side, range) = if a.is_empty() { (1, b) } else { (0, a) };
        if range.len() < SENTENCE_WORDS_MIN {
            return false;
        }
        // The same insertion may be seen a few words further to the left.
        let words = &self.sides[side].words;
        let mut range = range.clone();
        for _ in 0..=range.len() {
            if is_whole(side, &range) {
                return true;
            }
            if range.start == 0 || words[range.start - 1].hash != words[range.end - 1].hash {
                break;
            }
            range = range.start - 1..range.end - 1;
        }
        false
    }

    fn letters(&self, gap: &Gap, side: usize) -> impl Iterator<Item = char> {
        let Side { text, words } = &self.sides[side];
        let words = &words[gap.0[side].clone()];
        let text = match (words.first(), words.last()) {
            (Some(first), Some(last)) => text.get(first.start as usize..last.end as usize),
            (_, None) | (None, _) => None,
        };
        let kept = |letter: &char| letter.is_alphanumeric() || *letter == '_';
        let letters = text.unwrap_or("").chars().filter(kept);
        letters.flat_map(char::to_lowercase)
    }

    fn names_differ(&self, gap: &Gap) -> bool {
        let names = [0, 1].map(|side| self.names(gap, side));
        let mut left = [0, 1].map(|side: usize| {
            let others = &names[1 - side];
            let is_new = |at: &&usize| {
                !others
                    .iter()
                    .any(|&other| self.is_same_name(side, **at, other))
            };
            let mut left: Vec<usize> = names[side].iter().filter(is_new).copied().collect();
            left.dedup();
            left
        });
        if left.iter().all(Vec::is_empty) {
            return self.names_swapped(gap, &names);
        }
        left.iter_mut().for_each(|left| left.truncate(16));
        !self.is_acronym(0, &left) && !self.is_acronym(1, &left)
    }

    // "A beat B" and "B beat A"; a list may come in any order.
    fn names_swapped(&self, gap: &Gap, names: &[Vec<usize>; 2]) -> bool {
        let hashes = [0, 1].map(|side| {
            let words = &self.sides[side].words;
            names[side]
                .iter()
                .map(|&at| words[at].hash)
                .collect::<Vec<_>>()
        });
        if hashes[0].len() != hashes[1].len() || hashes[0] == hashes[1] {
            return false;
        }
        let joins = [plain_hash("and"), plain_hash("or")];
        gap.0[0]
            .clone()
            .any(|at| !names[0].contains(&at) && !joins.contains(&self.sides[0].words[at].hash))
    }

    // The same word, or with the ending of a plural.
    fn is_same_name(&self, side: usize, at: usize, other: usize) -> bool {
        let (one, two) = (&self.sides[side], &self.sides[1 - side]);
        let (word, other) = (&one.words[at], &two.words[other]);
        if word.hash == other.hash {
            return true;
        }
        let [word, other] = [word.text(one.text), other.text(two.text)].map(str::to_lowercase);
        let is_plural = |one: &str, more: &str| {
            more.strip_prefix(one)
                .is_some_and(|ending| matches!(ending, "s" | "es" | "'s" | "’s"))
        };
        is_plural(&word, &other) || is_plural(&other, &word)
    }

    // "US" and "United States".
    fn is_acronym(&self, side: usize, left: &[Vec<usize>; 2]) -> bool {
        let ([at], others) = (&left[side][..], &left[1 - side]) else {
            return false;
        };
        let short = &self.sides[side];
        let full = &self.sides[1 - side];
        let word = &short.words[*at];
        let letters = word.text(short.text).chars().filter(|c| c.is_alphabetic());
        let initials: String = others
            .iter()
            .filter_map(|&other| full.words[other].text(full.text).chars().next())
            .collect();
        // "USA", too.
        let letters: String = letters.collect();
        let is_short = letters.strip_prefix(&initials);
        word.has(CAPITALS) && others.len() > 1 && is_short.is_some_and(|more| more.len() <= 1)
    }

    fn names(&self, gap: &Gap, side: usize) -> Vec<usize> {
        let is_insertion = gap.0[1 - side].is_empty();
        // Where the next word is written large, too, what was put before it is no mere adverb.
        let next_is_large = |range: &Range<usize>| {
            let next = self.sides[side].words.get(range.end);
            next.is_some_and(|next| next.has(CAPITAL))
        };
        let is_sure = is_insertion && next_is_large(&gap.0[side]);
        let range = gap.0[side].clone();
        range
            .filter(|&at| self.is_name(side, at, is_sure))
            .collect()
    }

    fn is_name(&self, side: usize, at: usize, is_sure: bool) -> bool {
        let Side { text, words } = &self.sides[side];
        let word = &words[at];
        if word.kind == Kind::Plain && NAMES.has(word.hash) {
            return true;
        }
        let is_large = word.kind == Kind::Plain && word.has(CAPITAL);
        if !is_large || GRAMMAR.has(word.hash) {
            return false;
        }
        if !word.has(FIRST) {
            return true;
        }
        if COMMON.has(word.hash) {
            return false;
        }
        let seen = self.written().get(&word.hash).copied().unwrap_or(0);
        if is_sure || seen & SEEN_AS_NAME != 0 || word.has(CAPITALS) {
            return true;
        }
        let lower = word.text(text).to_lowercase();
        let is_ordinary = |ending: &&str| lower.ends_with(ending);
        seen & SEEN_SMALL == 0 && !ORDINARY_ENDINGS.iter().any(is_ordinary)
    }

    fn written(&self) -> &HashMap<u64, u8> {
        self.written.get_or_init(|| {
            let mut written = HashMap::new();
            for word in self.sides.iter().flat_map(|side| &side.words) {
                let how = match (word.has(CAPITAL), word.has(FIRST)) {
                    (false, _) => SEEN_SMALL,
                    (true, false) => SEEN_AS_NAME,
                    (true, true) => continue,
                };
                *written.entry(word.hash).or_insert(0) |= how;
            }
            written
        })
    }

    fn measures_differ(&self, gap: &Gap) -> bool {
        let measures = [0, 1].map(|side: usize| {
            let words = &self.sides[side].words;
            let behind_number = |at: usize| at > 0 && words[at - 1].kind == Kind::Number;
            let of = gap.0[side].clone().filter(|&at| behind_number(at));
            of.filter_map(|at| MEASURES.get(words[at].hash))
                .collect::<Vec<_>>()
        });
        match [&measures[0][..], &measures[1][..]] {
            [[], alone] | [alone, []] => alone.iter().any(|&measure| measure < MEASURES_ALONE),
            [one, two] => one != two,
        }
    }

    // Negations that come or go, and words that turn into their opposites.
    fn polarity_differs(&self, words: [&[Word]; 2]) -> bool {
        let negations = words.map(count_negations);
        let negated =
            negations[0] % 2 != negations[1] % 2 || (negations[0] == 0) != (negations[1] == 0);
        let only = [0, 1].map(|side: usize| {
            let others = words[1 - side];
            let is_new = |word: &&Word| others.iter().all(|other| other.hash != word.hash);
            let new = words[side].iter().filter(is_new);
            new.filter(|word| word.kind == Kind::Plain && !NEGATIONS.has(word.hash))
                .map(|word| word.text(self.sides[side].text).to_lowercase())
                .collect::<Vec<_>>()
        });
        let turned = only[0]
            .iter()
            .flat_map(|one| only[1].iter().map(move |two| (one, two)))
            .filter(|(one, two)| {
                is_prefixed(one, two) || is_prefixed(two, one) || are_opposite(one, two)
            })
            .count();
        // "not allowed" is "forbidden".
        negated != (turned == 1) || turned > 1
    }
}

// Whether nothing is lost when only its letters are looked at; a number may be part of an
// identifier that is written in two ways.
fn is_letters(word: &Word, in_identifier: bool) -> bool {
    match word.kind {
        Kind::Plain | Kind::Identifier => true,
        Kind::Number | Kind::Ordinal => in_identifier,
        Kind::Operator | Kind::Mark => false,
    }
}

fn numbers_differ(words: [&[Word]; 2], judge: &Judge<'_>) -> bool {
    let is_number = |word: &&Word| matches!(word.kind, Kind::Number | Kind::Ordinal);
    let numbers = words.map(|words| words.iter().filter(is_number).collect::<Vec<_>>());
    for side in [0, 1] {
        // "one" may stand for "a".
        let is_one = |word: &Word| {
            word.has(IN_WORDS)
                && word
                    .text(judge.sides[side].text)
                    .eq_ignore_ascii_case("one")
        };
        if numbers[1 - side].is_empty() && numbers[side].iter().all(|word| is_one(word)) {
            return false;
        }
    }
    let hashes = numbers.map(|numbers| numbers.iter().map(|word| word.hash).collect::<Vec<_>>());
    hashes[0] != hashes[1]
}

fn operators_differ(words: [&[Word]; 2]) -> bool {
    let is_operator = |word: &&Word| matches!(word.kind, Kind::Operator | Kind::Mark);
    let operators = words.map(|words| words.iter().filter(is_operator).collect::<Vec<_>>());
    match [&operators[0][..], &operators[1][..]] {
        [[], alone] | [alone, []] => alone.iter().any(|word| word.kind == Kind::Operator),
        [one, two] => !one
            .iter()
            .map(|word| word.hash)
            .eq(two.iter().map(|word| word.hash)),
    }
}

fn identifiers_differ(words: [&[Word]; 2]) -> bool {
    let hashes = words.map(|words| {
        let is_named = |word: &&Word| word.kind == Kind::Identifier || word.has(JOINED);
        let identifiers = words.iter().filter(is_named);
        let mut hashes: Vec<u64> = identifiers.map(|word| word.hash).collect();
        hashes.sort_unstable();
        hashes
    });
    hashes[0] != hashes[1]
}

fn count_negations(words: &[Word]) -> usize {
    let (neither, nor) = (canonical_hash("neither"), canonical_hash("nor"));
    let goes_on = words.iter().any(|word| word.hash == neither);
    let negations = words.iter().filter(|word| NEGATIONS.has(word.hash));
    negations
        .filter(|word| !(goes_on && word.hash == nor))
        .count()
}

// "approved" and "unapproved", "useful" and "useless".
fn is_prefixed(word: &str, other: &str) -> bool {
    const WORD_BYTES_MIN: usize = 3;
    let is_negated = |prefix: &&str| {
        let rest = other
            .strip_prefix(*prefix)
            .map(|rest| rest.trim_start_matches('-'));
        rest.is_some_and(|rest| rest.len() >= WORD_BYTES_MIN && stem(rest) == stem(word))
    };
    let is_less = || {
        let (full, less) = (word.strip_suffix("ful"), other.strip_suffix("less"));
        full.is_some() && full == less
    };
    PREFIXES.iter().any(is_negated) || is_less()
}

fn are_opposite(one: &str, two: &str) -> bool {
    let pairs = |word: &str| {
        let hash = canonical_hash(stem(word));
        opposites(hash).collect::<Vec<Opposite>>()
    };
    let (ones, twos) = (pairs(one), pairs(two));
    let excludes = |a: &Opposite, b: &Opposite| a.pair == b.pair && a.side != b.side;
    let agrees = ones
        .iter()
        .any(|a| twos.iter().any(|b| a.pair == b.pair && a.side == b.side));
    !agrees && ones.iter().any(|a| twos.iter().any(|b| excludes(a, b)))
}
