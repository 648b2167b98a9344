//! Changes of one fact, which must be noticed, and edits that change none, which must not.

use crate::random::Random;

/// Number words that may stand for each other.
const NUMBER_WORDS: [&str; 16] = [
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty",
    "thirty", "fifty", "sixty", "hundred", "thousand",
];
/// A negation may follow each of these.
const AUXILIARIES: [&str; 14] = [
    "is", "are", "was", "were", "has", "have", "had", "will", "would", "can", "could", "should",
    "must", "did",
];
/// Capitalized in mid-sentence without being a name.
const NO_NAMES: [&str; 6] = ["The", "This", "That", "These", "They", "There"];
/// Pairs that mean the same; none is a number, a name or a negation.
const SYNONYMS: [(&str, &str); 24] = [
    ("begin", "start"),
    ("also", "likewise"),
    ("large", "big"),
    ("great", "considerable"),
    ("people", "citizens"),
    ("nation", "country"),
    ("nations", "countries"),
    ("important", "significant"),
    ("help", "aid"),
    ("hope", "trust"),
    ("between", "among"),
    ("because", "since"),
    ("shows", "demonstrates"),
    ("obtained", "gained"),
    ("present", "current"),
    ("power", "strength"),
    ("purpose", "aim"),
    ("further", "additional"),
    ("duty", "obligation"),
    ("upon", "on"),
    ("various", "different"),
    ("although", "though"),
    ("necessary", "required"),
    ("entire", "whole"),
];

/// A change of one fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flip {
    /// One digit of a number.
    Digits,
    /// A number in words.
    NumberWord,
    /// A name in mid-sentence.
    Name,
    /// `not` behind a verb.
    NotInserted,
    /// `never` behind a verb.
    NeverInserted,
    /// `not` or `never` taken out.
    NegationRemoved,
    /// One letter or digit of an identifier.
    Identifier,
}

impl Flip {
    pub const ALL: [Self; 7] = [
        Self::Digits,
        Self::NumberWord,
        Self::Name,
        Self::NotInserted,
        Self::NeverInserted,
        Self::NegationRemoved,
        Self::Identifier,
    ];

    /// As reports spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Digits => "digits",
            Self::NumberWord => "number_word",
            Self::Name => "name",
            Self::NotInserted => "not_inserted",
            Self::NeverInserted => "never_inserted",
            Self::NegationRemoved => "negation_removed",
            Self::Identifier => "identifier",
        }
    }

    /// The text with one fact changed; none where it has no such fact. `names` are those that may
    /// take another's place.
    #[must_use]
    pub fn apply(self, text: &str, names: &[&str], random: &mut Random) -> Option<String> {
        let words: Vec<&str> = text.split(' ').collect();
        let at = pick(random, &words, |at| self.applies(&words, at))?;
        let word = core(words[at]);
        let new = match self {
            Self::Digits => other_character(word, random),
            Self::NumberWord => other_of(&NUMBER_WORDS, word, random)?.to_owned(),
            Self::Name => other_name(names, word, random)?.to_owned(),
            Self::NotInserted => format!("{word} not"),
            Self::NeverInserted => format!("{word} never"),
            Self::NegationRemoved => String::new(),
            Self::Identifier => other_character(word, random),
        };
        Some(replaced(&words, at, &new))
    }

    fn applies(self, words: &[&str], at: usize) -> bool {
        let word = core(words[at]);
        match self {
            Self::Digits => !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()),
            Self::NumberWord => NUMBER_WORDS.contains(&word),
            Self::Name => is_name(words, at),
            Self::NotInserted => AUXILIARIES.contains(&words[at]) && !negated(words, at),
            Self::NeverInserted => {
                matches!(words[at], "has" | "have" | "had" | "was" | "were") && !negated(words, at)
            }
            Self::NegationRemoved => matches!(words[at], "not" | "never"),
            Self::Identifier => is_identifier(word),
        }
    }
}

/// An edit that leaves every fact as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Benign {
    CommaDropped,
    CommaAdded,
    Quotes,
    DoubleSpace,
    NewLine,
    Synonym,
}

impl Benign {
    pub const ALL: [Self; 6] = [
        Self::CommaDropped,
        Self::CommaAdded,
        Self::Quotes,
        Self::DoubleSpace,
        Self::NewLine,
        Self::Synonym,
    ];

    /// As reports spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CommaDropped => "comma_dropped",
            Self::CommaAdded => "comma_added",
            Self::Quotes => "quotes",
            Self::DoubleSpace => "double_space",
            Self::NewLine => "new_line",
            Self::Synonym => "synonym",
        }
    }

    /// The text with one such edit; none where it has no place for it.
    #[must_use]
    pub fn apply(self, text: &str, random: &mut Random) -> Option<String> {
        let words: Vec<&str> = text.split(' ').collect();
        let at = pick(random, &words, |at| self.applies(&words, at))?;
        let word = words[at];
        let core = core(word);
        let new = match self {
            Self::CommaDropped => {
                let mut edited = words.clone();
                edited[at] = word.strip_suffix(',')?;
                return Some(edited.join(" "));
            }
            Self::CommaAdded => format!("{core},"),
            Self::Quotes => format!("\"{core}\""),
            Self::DoubleSpace => format!(" {core}"),
            Self::NewLine => format!("\n{core}"),
            Self::Synonym => synonym(core)?.to_owned(),
        };
        Some(replaced(&words, at, &new))
    }

    fn applies(self, words: &[&str], at: usize) -> bool {
        let word = words[at];
        let plain = word.len() >= 5 && word.bytes().all(|byte| byte.is_ascii_lowercase());
        match self {
            Self::CommaDropped => word
                .strip_suffix(',')
                .is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_lowercase())),
            Self::CommaAdded => plain && words.get(at + 1) == Some(&"and"),
            Self::Quotes => plain && !NUMBER_WORDS.contains(&word),
            Self::DoubleSpace | Self::NewLine => plain && at > 0,
            Self::Synonym => synonym(core(word)).is_some(),
        }
    }
}

/// A sentence with identifiers, as prompts about code and operations have them.
#[must_use]
pub fn record(random: &mut Random) -> String {
    let ticket = 10_000 + random.below(90_000);
    let commit = random.bits() >> 32;
    let field = ["retry_limit", "parse_header", "queue_depth", "block_size"][random.below(4)];
    let user = random.below(10_000);
    format!(
        "The field {field} was set in ticket KV-{ticket} and commit c{commit:08x} by user_{user}."
    )
}

/// The names of a text: capitalized words in mid-sentence.
pub fn names(text: &str) -> impl Iterator<Item = &str> {
    let words: Vec<&str> = text.split(' ').collect();
    let found: Vec<&str> = (0..words.len())
        .filter(|&at| is_name(&words, at))
        .map(|at| core(words[at]))
        .collect();
    found.into_iter()
}

/// A word without the punctuation around it.
fn core(word: &str) -> &str {
    word.trim_matches(|letter: char| !letter.is_alphanumeric())
}

fn replaced(words: &[&str], at: usize, new: &str) -> String {
    let word = words[at];
    let whole = word.replacen(core(word), new, 1);
    let mut edited: Vec<&str> = words.to_vec();
    if whole.is_empty() {
        edited.remove(at);
    } else {
        edited[at] = &whole;
    }
    edited.join(" ")
}

fn pick(random: &mut Random, words: &[&str], applies: impl Fn(usize) -> bool) -> Option<usize> {
    let places: Vec<usize> = (0..words.len()).filter(|&at| applies(at)).collect();
    let at = random.below(places.len());
    places.get(at).copied()
}

fn is_name(words: &[&str], at: usize) -> bool {
    let word = core(words[at]);
    let before = at.checked_sub(1).map_or("", |at| words[at]);
    let in_sentence = before.len() > 1 && before.bytes().all(|byte| byte.is_ascii_lowercase());
    let mut letters = word.chars();
    in_sentence
        && word.len() >= 4
        && letters.next().is_some_and(char::is_uppercase)
        && letters.all(char::is_lowercase)
        && !NO_NAMES.contains(&word)
}

/// A name with an underscore, or letters and then digits, such as `KV-48213`; but neither `13th`
/// nor `17-year` nor `mid-1970s`, which are words: a letter changed in them is a slip of the pen.
fn is_identifier(word: &str) -> bool {
    let begins = |kind: fn(&char) -> bool| word.chars().next().is_some_and(|first| kind(&first));
    let with_digit = word.bytes().any(|byte| byte.is_ascii_digit());
    let of_letters = begins(char::is_ascii_alphabetic);
    let hyphened = word.contains('-') && !begins(char::is_ascii_uppercase);
    word.contains('_') || (with_digit && of_letters && !hyphened)
}

fn negated(words: &[&str], at: usize) -> bool {
    let near = &words[at.saturating_sub(2)..(at + 3).min(words.len())];
    near.iter().any(|word| {
        matches!(
            core(word),
            "not" | "never" | "no" | "nor" | "cannot" | "neither"
        )
    })
}

fn other_of<'a>(of: &[&'a str], word: &str, random: &mut Random) -> Option<&'a str> {
    let others: Vec<&str> = of.iter().copied().filter(|other| *other != word).collect();
    others.get(random.below(others.len())).copied()
}

/// A name that begins otherwise, so that it is no other form of the same one.
fn other_name<'a>(names: &[&'a str], name: &str, random: &mut Random) -> Option<&'a str> {
    let first = name.chars().next();
    let others: Vec<&str> = names
        .iter()
        .copied()
        .filter(|other| other.chars().next() != first)
        .collect();
    others.get(random.below(others.len())).copied()
}

/// The word with one letter or digit changed to another of its kind.
fn other_character(word: &str, random: &mut Random) -> String {
    let mut bytes = word.as_bytes().to_vec();
    let places: Vec<usize> = (0..bytes.len())
        .filter(|&at| bytes[at].is_ascii_digit() || bytes[at].is_ascii_lowercase())
        .collect();
    if let Some(&at) = places.get(random.below(places.len())) {
        let (first, count) = if bytes[at].is_ascii_digit() {
            (b'0', 10)
        } else {
            (b'a', 26)
        };
        let step = 1 + random.bits() % (count - 1);
        let moved = (u64::from(bytes[at] - first) + step) % count;
        bytes[at] = first + u8::try_from(moved).expect("below 26");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn synonym(word: &str) -> Option<&'static str> {
    SYNONYMS
        .iter()
        .find_map(|&(one, other)| (one == word).then_some(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "In 1847 the envoys had met Jefferson near Boston, and three of them did \
        not agree. The treaty was signed on 12 May because commerce, although important, was \
        delayed. See ticket KV-48213 in parse_header.";

    fn flipped(flip: Flip, seed: u64) -> String {
        let changed = flip.apply(TEXT, &["Madison", "Virginia"], &mut Random::new(seed));
        changed.unwrap_or_else(|| panic!("{}: no place", flip.name()))
    }

    fn differing(changed: &str) -> Vec<(String, String)> {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        words(TEXT)
            .into_iter()
            .zip(words(changed))
            .filter(|(before, after)| before != after)
            .collect()
    }

    #[test]
    fn a_replacing_flip_changes_one_word_of_its_kind() {
        for seed in 0..50 {
            for flip in [Flip::Digits, Flip::NumberWord, Flip::Name, Flip::Identifier] {
                let changed = flipped(flip, seed);
                let [(before, after)] = &differing(&changed)[..] else {
                    panic!("{} {seed}: {changed}", flip.name());
                };
                let expected: &[&str] = match flip {
                    Flip::Digits => &["1847", "12"],
                    Flip::NumberWord => &["three"],
                    Flip::Name => &["Jefferson", "Boston,"],
                    Flip::Identifier => &["KV-48213", "parse_header."],
                    Flip::NotInserted | Flip::NeverInserted | Flip::NegationRemoved => &[],
                };
                assert!(expected.contains(&before.as_str()), "{before} {after}");
                assert_eq!(before.ends_with(','), after.ends_with(','));
            }
        }
    }

    #[test]
    fn negations_come_and_go() {
        for seed in 0..50 {
            let count = |text: &str, word: &str| text.split(' ').filter(|at| *at == word).count();
            assert_eq!(count(&flipped(Flip::NotInserted, seed), "not"), 2);
            assert_eq!(count(&flipped(Flip::NeverInserted, seed), "never"), 1);
            assert_eq!(count(&flipped(Flip::NegationRemoved, seed), "not"), 0);
        }
    }

    #[test]
    fn benign_edits_keep_numbers_names_negations_and_identifiers() {
        let facts = |text: &str| {
            let kept = |word: &&str| {
                word.chars()
                    .any(|letter| letter.is_ascii_digit() || letter.is_uppercase())
                    || word.contains('_')
                    || NUMBER_WORDS.contains(word)
                    || matches!(*word, "not" | "never")
            };
            let words = text.split_whitespace().map(core);
            words.filter(kept).map(str::to_owned).collect::<Vec<_>>()
        };
        for seed in 0..50 {
            for benign in Benign::ALL {
                let Some(edited) = benign.apply(TEXT, &mut Random::new(seed)) else {
                    assert_eq!(benign, Benign::CommaAdded);
                    continue;
                };
                assert_ne!(edited, TEXT, "{}", benign.name());
                assert_eq!(facts(&edited), facts(TEXT), "{}", benign.name());
            }
        }
    }

    #[test]
    fn a_word_with_a_digit_is_no_identifier() {
        for (word, expected) in [
            ("KV-48213", true),
            ("c00ff12", true),
            ("parse_header", true),
            ("17-year", false),
            ("19th", false),
            ("mid-1970s", false),
            ("1847", false),
        ] {
            assert_eq!(is_identifier(word), expected, "{word}");
        }
    }

    #[test]
    fn a_record_has_identifiers() {
        let record = record(&mut Random::new(3));
        let changed = Flip::Identifier.apply(&record, &[], &mut Random::new(4));
        assert!(changed.is_some_and(|changed| changed != record));
    }
}
