//! A text as words in one canonical form: what is only written otherwise has the same hash.

use super::{
    LATE_WORDS, labels,
    lexicon::{ABBREVIATIONS, MEASURES, NUMERALS, Numeral, SHORT_FORMS},
    marks,
    numbers::{Number, digit_of, fraction_of, is_padded, parse_digits},
    shape::Shape,
    spelling::{
        canonical_hash, hash, is_apostrophe, lower_into, ordinal_hash, plain_hash, spell,
        value_hash,
    },
};

/// Words read of a text; what comes behind them is not compared.
pub(super) const WORDS_MAX: usize = 1 << 20;
/// Bytes of the longest path, address or name of a field that is one word.
const CHUNK_BYTES_MAX: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// A number; its hash is that of its value.
    Number,
    Ordinal,
    /// Letters and digits mixed, `snake_case`, `CamelCase`, a path, an address.
    Identifier,
    /// An operator that is one wherever it stands, such as `==`.
    Operator,
    /// A mark that is an operator only beside another one, such as `-`.
    Mark,
}

/// The first letter is a capital.
pub(super) const CAPITAL: u16 = 1;
/// All letters are capitals, and there are several.
pub(super) const CAPITALS: u16 = 2;
/// A sentence begins here.
pub(super) const FIRST: u16 = 4;
/// A line or a sentence begins here.
pub(super) const EDGE_BEFORE: u16 = 8;
/// A line or a sentence ends here.
pub(super) const EDGE_AFTER: u16 = 16;
/// A number in words.
pub(super) const IN_WORDS: u16 = 32;
/// A line begins here.
pub(super) const LINE_BEFORE: u16 = 64;
/// A line ends here.
pub(super) const LINE_AFTER: u16 = 128;
/// A hyphen joins it with a number.
pub(super) const JOINED: u16 = 256;
/// Belongs to the label that a prompt gives one of its passages: "Document [3]", "3)".
pub(super) const LABEL: u16 = 512;

#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    pub(super) hash: u64,
    /// Where it stands in the text, in bytes.
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) kind: Kind,
    pub(super) flags: u16,
}

impl Word {
    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn text<'t>(&self, text: &'t str) -> &'t str {
        text.get(self.start as usize..self.end as usize)
            .unwrap_or("")
    }
}

/// Reads the words of a text of less than 4 GiB; none if it becomes too late.
pub(super) fn words(text: &str, is_late: &dyn Fn() -> bool) -> Option<Vec<Word>> {
    let mut reader = Reader::new(text);
    for step in 0_usize.. {
        if reader.words.len() == WORDS_MAX || reader.at >= text.len() {
            break;
        }
        if step.is_multiple_of(LATE_WORDS) && is_late() {
            return None;
        }
        reader.step();
    }
    reader.end_sentence();
    reader.end_line();
    labels::mark(text, &mut reader.words);
    Some(reader.words)
}

pub(super) struct Reader<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
    pub(super) words: Vec<Word>,
    /// The number that the last word is, while it may go on, and the place of that word.
    number: Option<(Number, usize)>,
    /// The unit of a currency whose sign came before the number.
    unit: Option<u64>,
    is_first: bool,
    is_edge: bool,
    is_line: bool,
    /// Where the last chunk ends that is too long to be one word.
    no_chunk_before: usize,
    lower: String,
    spelled: Vec<u8>,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str) -> Self {
        Self {
            text,
            at: 0,
            words: Vec::with_capacity((text.len() / 5).min(WORDS_MAX)),
            number: None,
            unit: None,
            is_first: true,
            is_edge: true,
            is_line: true,
            no_chunk_before: 0,
            lower: String::new(),
            spelled: Vec::new(),
        }
    }

    fn step(&mut self) {
        match self.char_at(self.at) {
            Some(' ' | '\t' | '\r') => self.at += 1,
            Some(letter) if letter.is_alphanumeric() || letter == '_' => self.run(),
            Some(mark) => marks::read(self, mark),
            None => self.at = self.text.len(),
        }
    }

    pub(super) fn byte(&self, at: usize) -> u8 {
        self.text.as_bytes().get(at).copied().unwrap_or(b' ')
    }

    pub(super) fn char_at(&self, at: usize) -> Option<char> {
        let byte = *self.text.as_bytes().get(at)?;
        if byte.is_ascii() {
            return Some(char::from(byte));
        }
        self.text.get(at..)?.chars().next()
    }

    pub(super) fn char_before(&self, at: usize) -> Option<char> {
        self.text.get(..at)?.chars().next_back()
    }

    /// What comes next goes with no number before it.
    pub(super) fn end_number(&mut self) {
        self.number = None;
        self.flush_unit();
    }

    /// So does what comes behind a comma, but for "two hundred, and five".
    pub(super) fn comma(&mut self) {
        let takes_comma = self.number.is_some_and(|(number, _)| number.takes_comma());
        let rest = self.text[self.at..].trim_start_matches([' ', '\n']);
        if !takes_comma && !rest.starts_with("and ") {
            self.end_number();
        }
    }

    pub(super) fn end_sentence(&mut self) {
        self.end_number();
        (self.is_first, self.is_edge) = (true, true);
        if let Some(last) = self.words.last_mut() {
            last.flags |= EDGE_AFTER;
        }
    }

    pub(super) fn end_line(&mut self) {
        (self.is_line, self.is_edge) = (true, true);
        if let Some(last) = self.words.last_mut() {
            last.flags |= EDGE_AFTER | LINE_AFTER;
        }
    }

    /// Whether a full stop behind the last word ends no sentence.
    pub(super) fn is_abbreviated(&self) -> bool {
        self.words.last().is_some_and(|last| {
            let is_initial = last.end - last.start == 1 && last.has(CAPITAL);
            last.kind == Kind::Plain && (is_initial || ABBREVIATIONS.has(last.hash))
        })
    }

    pub(super) fn set_unit(&mut self, name: &str) {
        self.unit = Some(canonical_hash(name));
    }

    fn flush_unit(&mut self) {
        if let Some(unit) = self.unit.take() {
            self.push(unit, (self.at, self.at), (Kind::Plain, 0));
        }
    }

    /// Takes a word from `place.0` to `place.1`.
    pub(super) fn push(&mut self, hash: u64, place: (usize, usize), as_what: (Kind, u16)) {
        let mut flags = as_what.1;
        if self.is_first {
            flags |= FIRST;
        }
        if self.is_edge {
            flags |= EDGE_BEFORE;
        }
        if self.is_line {
            flags |= LINE_BEFORE;
        }
        (self.is_first, self.is_edge, self.is_line) = (false, false, false);
        let in_text = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        self.words.push(Word {
            hash,
            start: in_text(place.0),
            end: in_text(place.1),
            kind: as_what.0,
            flags,
        });
    }

    pub(super) fn push_identifier(&mut self, start: usize, end: usize) {
        self.end_number();
        let text = self.text[start..end].trim_matches('_');
        let text = &text.replace(is_apostrophe, "");
        let capital = text.chars().next().is_some_and(char::is_uppercase);
        let hash = plain_hash(text);
        let flags = if capital { CAPITAL } else { 0 };
        self.push(hash, (start, end), (Kind::Identifier, flags));
    }

    /// A path, an address or the like that begins at `start`; false where there is none.
    pub(super) fn chunk(&mut self, start: usize) -> bool {
        if start < self.no_chunk_before {
            return false;
        }
        const ENDS: &str = "\"'`<>()[]{},;|“”";
        let ends = |letter: char| letter.is_whitespace() || ENDS.contains(letter);
        let rest = &self.text[start..];
        let length = rest.find(ends).unwrap_or(rest.len());
        if length > CHUNK_BYTES_MAX {
            self.no_chunk_before = start + length;
            return false;
        }
        let chunk = rest[..length].trim_end_matches(['.', ':', '!', '?', '*', '…']);
        let is_one = marks::is_address(chunk);
        if is_one {
            self.push_identifier(start, start + chunk.len());
            self.at = start + chunk.len();
        }
        is_one
    }

    /// A word of ASCII letters that nothing joins with what comes next, as most are.
    fn simple_word(&mut self) -> bool {
        let start = self.at;
        let bytes = &self.text.as_bytes()[start..];
        let length = bytes
            .iter()
            .take_while(|byte| byte.is_ascii_alphabetic())
            .count();
        let after = |at: usize| bytes.get(at).copied().unwrap_or(b' ');
        let ends = match after(length) {
            b' ' | b',' | b';' | b')' | b'"' | b'\n' => true,
            b'.' | b':' | b'-' => after(length + 1).is_ascii_whitespace(),
            _ => false,
        };
        let is_one_case = || bytes[1..length].iter().all(u8::is_ascii_lowercase);
        let is_simple = length > 0 && ends && is_one_case();
        let behind_hyphen = start > 0 && self.byte(start - 1) == b'-';
        if !is_simple || behind_hyphen {
            return false;
        }
        self.at += length;
        let mut lower = std::mem::take(&mut self.lower);
        lower_into(&self.text[start..self.at], &mut lower);
        let flags = if bytes[0].is_ascii_uppercase() {
            CAPITAL
        } else {
            0
        };
        let place = (start, self.at);
        match lower.as_str() {
            "cannot" | "cent" | "no" => self.lower_word(&lower, place, flags),
            _ => self.bare_word(&lower, place, flags),
        }
        self.lower = lower;
        true
    }

    /// Letters and digits, and what may stand between them.
    fn run(&mut self) {
        if self.simple_word() {
            return;
        }
        let start = self.at;
        let shape = Shape::of(self.text, start);
        self.at = shape.end;
        if matches!(self.byte(self.at), b'/' | b'\\' | b'@' | b':' | b'.' | b'-')
            && !self.byte(self.at + 1).is_ascii_whitespace()
            && self.chunk(start)
        {
            return;
        }
        let text = &self.text[start..shape.end];
        if text.bytes().all(|byte| byte == b'_') {
            return;
        }
        let is_named = text.trim_matches('_').contains('_');
        if is_named || shape.is_dotted || shape.is_camel {
            self.push_identifier(start, shape.end);
        } else if shape.has_digits {
            if !self.other_digits(start, shape.end) {
                self.digits(start, shape.end, false);
            }
        } else {
            self.word(start, shape.end);
        }
    }

    /// A number in digits, perhaps with an ending or a unit.
    pub(super) fn digits(&mut self, start: usize, end: usize, is_negative: bool) {
        self.end_number_before_digits();
        let text = &self.text[start..end];
        let number = text
            .find(|letter: char| !matches!(letter, '0'..='9' | '.' | ','))
            .unwrap_or(text.len());
        let (digits, ending) = text.split_at(number);
        let parsed = parse_digits(digits).filter(|_| !digits.is_empty());
        let Some(value) = parsed.map(|value| if is_negative { -value } else { value }) else {
            self.push_identifier(start, end);
            return;
        };
        let ending_hash = canonical_hash(ending);
        match ending.to_ascii_lowercase().as_str() {
            "" if self.section(start, end) => {}
            "" => {
                let is_name = is_padded(digits);
                self.amount(
                    value,
                    is_name.then(|| hash(digits.as_bytes())),
                    (start, end),
                );
            }
            "st" | "nd" | "rd" | "th" => {
                self.push(ordinal_hash(value), (start, end), (Kind::Ordinal, 0));
            }
            _ if MEASURES.has(ending_hash) => {
                let place = (start, start + digits.len());
                self.push(value_hash(value), place, (Kind::Number, 0));
                self.push(ending_hash, (place.1, end), (Kind::Plain, 0));
            }
            _ => self.push_identifier(start, end),
        }
    }

    /// Digits of another script, or a fraction that is one character, or both; false for others.
    fn other_digits(&mut self, start: usize, end: usize) -> bool {
        let text = &self.text[start..end];
        if text.is_ascii() {
            return false;
        }
        let last = text.chars().next_back().unwrap_or(' ');
        let fraction = fraction_of(last);
        let whole = fraction.map_or(text, |_| text.trim_end_matches(last));
        let Some(digits) = whole.chars().map(digit_of).collect::<Option<String>>() else {
            return false;
        };
        let value = parse_digits(&digits);
        if value.is_none() && !digits.is_empty() {
            return false;
        }
        self.end_number_before_digits();
        if let Some(value) = value {
            let name = is_padded(&digits).then(|| hash(digits.as_bytes()));
            self.amount(value, name, (start, end));
        }
        // Like "1/2".
        for part in fraction.into_iter().flatten() {
            self.end_number_before_digits();
            self.push(value_hash(part), (start, end), (Kind::Number, 0));
        }
        true
    }

    // A number that may go on, or one that stands for itself as it is written.
    fn amount(&mut self, value: f64, name: Option<u64>, place: (usize, usize)) {
        self.push(name.unwrap_or(value_hash(value)), place, (Kind::Number, 0));
        if name.is_none() {
            self.number = Some((Number::of_digits(value), self.words.len() - 1));
        }
    }

    // "501(c)(3)": one name.
    fn section(&mut self, start: usize, mut end: usize) -> bool {
        let whole = end;
        while self.byte(end) == b'('
            && self.byte(end + 1).is_ascii_alphanumeric()
            && self.byte(end + 2) == b')'
        {
            end += 3;
        }
        if end > whole {
            self.push_identifier(start, end);
            self.at = end;
        }
        end > whole
    }

    fn end_number_before_digits(&mut self) {
        let unit = self.unit.take();
        self.end_number();
        self.unit = unit;
    }

    fn word(&mut self, start: usize, end: usize) {
        let text = &self.text[start..end];
        let mut lower = std::mem::take(&mut self.lower);
        lower_into(text, &mut lower);
        let mut flags = if self.is_joined(start, end) {
            JOINED
        } else {
            0
        };
        if text.chars().next().is_some_and(char::is_uppercase) {
            flags |= CAPITAL;
            let letters = || text.chars().filter(|letter| letter.is_alphabetic());
            if letters().count() > 1 && letters().all(char::is_uppercase) {
                flags |= CAPITALS;
            }
        }
        self.lower_word(&lower, (start, end), flags);
        self.lower = lower;
    }

    // "KV-482", "4-year".
    fn is_joined(&self, start: usize, end: usize) -> bool {
        let with_next = self.byte(end) == b'-' && self.byte(end + 1).is_ascii_digit();
        let before = start.checked_sub(1).filter(|&at| self.byte(at) == b'-');
        let last = self.words.last().filter(|last| {
            last.kind == Kind::Number || last.kind == Kind::Ordinal || last.has(JOINED)
        });
        with_next
            || (before.is_some() && last.is_some_and(|last| Some(last.end as usize) == before))
    }

    fn lower_word(&mut self, lower: &str, place: (usize, usize), flags: u16) {
        if let Some(base) = lower.strip_suffix("n't") {
            let base = match base {
                "wo" => "will",
                "ca" => "can",
                "sha" => "shall",
                "ai" => "is",
                other => other,
            };
            return self.negated(base, place, flags);
        }
        if lower == "cannot" {
            return self.negated("can", place, flags);
        }
        let bare = lower.split_once('\'').map_or(lower, |(base, ending)| {
            let is_ending = matches!(ending, "s" | "re" | "ll" | "ve" | "m" | "d");
            if is_ending { base } else { lower }
        });
        if bare.contains('\'') {
            let joined: String = bare.chars().filter(|&letter| letter != '\'').collect();
            self.plain(&joined, place, flags);
        } else if bare == "cent" && self.last_is("per") {
            self.words.pop();
            self.plain("percent", place, flags);
        } else if bare == "no" && self.is_number_sign(place.1) {
            self.plain("number", place, flags);
        } else {
            self.bare_word(bare, place, flags);
        }
    }

    // Without an apostrophe.
    fn bare_word(&mut self, lower: &str, place: (usize, usize), flags: u16) {
        let hash = hash(lower.as_bytes());
        match NUMERALS.get(hash) {
            Some(numeral) => self.numeral(numeral, place, flags),
            None => self.plain_of(hash, lower, place, flags),
        }
    }

    fn negated(&mut self, base: &str, place: (usize, usize), flags: u16) {
        self.plain(base, place, flags);
        self.plain("not", place, 0);
    }

    // "No. 5".
    fn is_number_sign(&self, end: usize) -> bool {
        let rest = self.text[end..].strip_prefix('.');
        rest.is_some_and(|rest| rest.trim_start().starts_with(|c: char| c.is_ascii_digit()))
    }

    fn plain(&mut self, lower: &str, place: (usize, usize), flags: u16) {
        self.plain_of(hash(lower.as_bytes()), lower, place, flags);
    }

    // `as_written` is the hash of `lower`.
    fn plain_of(&mut self, as_written: u64, lower: &str, place: (usize, usize), flags: u16) {
        // "and" may stand inside a number.
        if lower != "and" || !self.number.is_some_and(|(number, _)| number.takes_and()) {
            self.number = None;
        }
        self.flush_unit();
        let hash = SHORT_FORMS.get(as_written).unwrap_or_else(|| {
            spell(lower.as_bytes(), &mut self.spelled);
            if self.spelled == lower.as_bytes() {
                as_written
            } else {
                hash(&self.spelled)
            }
        });
        self.push(hash, place, (Kind::Plain, flags));
    }

    fn last_is(&self, word: &str) -> bool {
        let last = self.words.last();
        last.is_some_and(|last| last.text(self.text).eq_ignore_ascii_case(word))
    }

    fn numeral(&mut self, numeral: Numeral, place: (usize, usize), flags: u16) {
        let last = self.words.len().wrapping_sub(1);
        let open = self.number.filter(|&(_, at)| at == last || at + 1 == last);
        if let Some((number, at)) = open {
            if let Some(number) = number.extended(numeral) {
                self.words.truncate(at + 1);
                self.renew(value_hash(number.value()), place.1, Kind::Number);
                self.number = Some((number, at));
                return;
            }
            if let Numeral::Ordinal(value) = numeral
                && let Some(value) = number.ordinal(value)
            {
                self.words.truncate(at + 1);
                self.renew(ordinal_hash(value), place.1, Kind::Ordinal);
                self.number = None;
                return;
            }
        }
        self.flush_unit();
        self.number = None;
        let flags = flags | IN_WORDS;
        if let Numeral::Ordinal(value) = numeral {
            self.push(ordinal_hash(value), place, (Kind::Ordinal, flags));
        } else if let Some(number) = Number::begin(numeral) {
            let counts_one = matches!(numeral, Numeral::Hundred | Numeral::Scale(_));
            let hash = value_hash(number.value());
            if counts_one && (self.last_is("a") || self.last_is("an")) {
                self.renew(hash, place.1, Kind::Number);
            } else {
                self.push(hash, place, (Kind::Number, flags));
            }
            self.number = Some((number, self.words.len() - 1));
        }
    }

    // The last word has become another one, up to `end`.
    fn renew(&mut self, hash: u64, end: usize, kind: Kind) {
        if let Some(last) = self.words.last_mut() {
            (last.hash, last.kind) = (hash, kind);
            last.end = u32::try_from(end).unwrap_or(u32::MAX);
        }
    }
}
