//! A text's words in one spelling, and which of them state a fact.

use xxhash_rust::xxh3::xxh3_64;

/// Words that negate.
const NEGATIONS: [&str; 18] = [
    "not", "no", "never", "none", "nobody", "nothing", "nowhere", "neither", "nor", "without",
    "hardly", "nicht", "kein", "keine", "nie", "pas", "jamais", "sans",
];
/// Numbers in words, and how digits spell them. "one" is left out: it is mostly a pronoun.
const NUMBERS: [(&str, &str); 46] = [
    ("zero", "0"),
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
    ("eleven", "11"),
    ("twelve", "12"),
    ("thirteen", "13"),
    ("fourteen", "14"),
    ("fifteen", "15"),
    ("sixteen", "16"),
    ("seventeen", "17"),
    ("eighteen", "18"),
    ("nineteen", "19"),
    ("twenty", "20"),
    ("thirty", "30"),
    ("forty", "40"),
    ("fifty", "50"),
    ("sixty", "60"),
    ("seventy", "70"),
    ("eighty", "80"),
    ("ninety", "90"),
    ("hundred", "100"),
    ("thousand", "1000"),
    ("million", "1000000"),
    ("billion", "1000000000"),
    ("dozen", "12"),
    ("half", "1/2"),
    ("twice", "2x"),
    ("first", "1st"),
    ("second", "2nd"),
    ("third", "3rd"),
    ("fourth", "4th"),
    ("fifth", "5th"),
    ("sixth", "6th"),
    ("seventh", "7th"),
    ("eighth", "8th"),
    ("ninth", "9th"),
    ("tenth", "10th"),
    ("eleventh", "11th"),
    ("twelfth", "12th"),
];
/// Words that turn a statement round.
const OPPOSITES: [(&str, &str); 24] = [
    ("accept", "reject"),
    ("accepted", "rejected"),
    ("allow", "deny"),
    ("allowed", "denied"),
    ("approve", "reject"),
    ("approved", "rejected"),
    ("approve", "deny"),
    ("approved", "denied"),
    ("increase", "decrease"),
    ("increased", "decreased"),
    ("raise", "lower"),
    ("raised", "lowered"),
    ("rise", "fall"),
    ("above", "below"),
    ("before", "after"),
    ("more", "less"),
    ("most", "least"),
    ("always", "never"),
    ("enable", "disable"),
    ("enabled", "disabled"),
    ("true", "false"),
    ("pass", "fail"),
    ("guilty", "innocent"),
    ("minimum", "maximum"),
];
/// What makes the opposite of a word in front of it.
const NEGATIVE_PREFIXES: [&str; 6] = ["un", "in", "im", "dis", "non", "ir"];
/// A word is at least so long behind such a prefix.
const STEM_BYTES_MIN: usize = 4;
/// Words behind whose full stop a name may follow.
const ABBREVIATIONS: [&str; 18] = [
    "mr", "mrs", "ms", "dr", "st", "gen", "col", "capt", "lt", "jr", "sr", "prof", "rev", "hon",
    "gov", "sen", "rep", "vs",
];
/// Operators that change what code does.
const OPERATORS: [&str; 9] = ["===", "!==", "==", "!=", "<=", ">=", "&&", "||", "=>"];

/// What a word may state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fact {
    None,
    Number,
    Identifier,
    Negation,
    /// A name, unless it is only the first word of its sentence.
    Capitalized {
        begins_sentence: bool,
    },
}

/// One word.
#[derive(Debug, Clone)]
pub(super) struct Word<'a> {
    /// Of its one spelling: lower case, numbers in digits.
    pub(super) hash: u64,
    pub(super) fact: Fact,
    raw: &'a str,
}

/// The words of a text, contractions taken apart.
pub(super) fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::with_capacity(text.len() / 5);
    let mut begins_sentence = true;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some(operator) = OPERATORS
            .iter()
            .find(|operator| rest.starts_with(**operator))
        {
            let (raw, after) = rest.split_at(operator.len());
            words.push(word(raw, raw, Fact::Identifier));
            rest = after;
        } else if first.is_alphanumeric() {
            let (raw, after) = rest.split_at(word_length(rest));
            push(raw, begins_sentence, &mut words);
            begins_sentence = false;
            rest = after;
        } else {
            let abbreviates = first == '.' && words.last().is_some_and(is_abbreviation);
            // A closing quote or bracket may follow the end of a sentence.
            begins_sentence |=
                !abbreviates && matches!(first, '.' | '!' | '?' | '\n' | ':' | '"' | '\u{201c}');
            rest = &rest[first.len_utf8()..];
        }
    }
    words
}

fn is_abbreviation(word: &Word<'_>) -> bool {
    word.raw.chars().count() == 1 || ABBREVIATIONS.contains(&word.raw.to_lowercase().as_str())
}

/// Bytes of the word that the text begins with: a connector belongs to it between two of its
/// characters.
fn word_length(text: &str) -> usize {
    let mut previous = ' ';
    let mut chars = text.char_indices().peekable();
    while let Some((at, character)) = chars.next() {
        let next = chars.peek().map_or(' ', |&(_, next)| next);
        let digits = previous.is_ascii_digit() && next.is_ascii_digit();
        let connects = match character {
            '_' => next.is_alphanumeric() || next == '_' || previous == '_',
            ',' | ':' => digits,
            '.' | '/' | '@' | '\'' | '\u{2019}' => next.is_alphanumeric(),
            '%' => previous.is_ascii_digit(),
            _ => character.is_alphanumeric(),
        };
        if !connects {
            return at;
        }
        previous = character;
    }
    text.len()
}

fn push<'a>(raw: &'a str, begins_sentence: bool, words: &mut Vec<Word<'a>>) {
    let mut spelled = raw.to_lowercase().replace('\u{2019}', "'");
    if let Some(stem) = spelled.strip_suffix("n't") {
        let stem = match stem {
            "ca" => "can",
            "wo" => "will",
            "sha" => "shall",
            other => other,
        };
        words.push(word(raw, stem, Fact::None));
        words.push(word(raw, "not", Fact::Negation));
        return;
    }
    if spelled == "cannot" {
        words.push(word(raw, "can", Fact::None));
        words.push(word(raw, "not", Fact::Negation));
        return;
    }
    if let Some(owner) = spelled.strip_suffix("'s") {
        spelled = owner.to_owned();
    }
    let fact = fact(raw, &spelled, begins_sentence);
    if spelled
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_digit())
    {
        spelled.retain(|character| character != ',');
    }
    if spelled == "1" {
        "one".clone_into(&mut spelled);
    }
    if let Some((_, digits)) = NUMBERS.iter().find(|(name, _)| *name == spelled) {
        (*digits).clone_into(&mut spelled);
    }
    words.push(word(raw, &spelled, fact));
}

fn fact(raw: &str, spelled: &str, begins_sentence: bool) -> Fact {
    if NEGATIONS.contains(&spelled) {
        return Fact::Negation;
    }
    if NUMBERS.iter().any(|(name, _)| *name == spelled) {
        return Fact::Number;
    }
    let has_digit = raw.chars().any(|character| character.is_ascii_digit());
    let has_letter = raw.chars().any(char::is_alphabetic);
    if has_digit {
        return match (has_letter, spelled) {
            (false, "1") => Fact::None,
            (false, _) => Fact::Number,
            (true, _) => Fact::Identifier,
        };
    }
    let capital_inside = raw
        .chars()
        .zip(raw.chars().skip(1))
        .any(|(before, after)| before.is_lowercase() && after.is_uppercase());
    if raw.contains(['_', '/', '@']) || capital_inside {
        return Fact::Identifier;
    }
    let is_all_capitals = raw.chars().count() > 1 && !raw.chars().any(char::is_lowercase);
    match raw.chars().next() {
        Some(first) if first.is_uppercase() && raw != "I" => Fact::Capitalized {
            begins_sentence: begins_sentence && !is_all_capitals,
        },
        Some(_) | None => Fact::None,
    }
}

fn word<'a>(raw: &'a str, spelled: &str, fact: Fact) -> Word<'a> {
    Word {
        hash: xxh3_64(spelled.as_bytes()),
        fact,
        raw,
    }
}

/// Whether one word is the other with a prefix that negates, or its opposite.
pub(super) fn are_opposite(left: &Word<'_>, right: &Word<'_>) -> bool {
    let (left, right) = (left.raw.to_lowercase(), right.raw.to_lowercase());
    let negates = |whole: &str, stem: &str| {
        stem.len() >= STEM_BYTES_MIN
            && NEGATIVE_PREFIXES
                .iter()
                .any(|prefix| whole.strip_prefix(prefix) == Some(stem))
    };
    let listed = |a: &str, b: &str| OPPOSITES.contains(&(a, b));
    negates(&left, &right)
        || negates(&right, &left)
        || listed(&left, &right)
        || listed(&right, &left)
}
