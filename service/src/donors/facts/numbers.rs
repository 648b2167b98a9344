//! Numbers as they are written, in digits and words, brought to one value.

use super::lexicon::Numeral;

/// More digits than this are an identifier rather than an amount.
const DIGITS_MAX: usize = 15;

/// A number that further words may still change: "two", "two hundred", "two hundred and five".
#[derive(Debug, Clone, Copy)]
pub(super) struct Number {
    /// What is multiplied already.
    total: f64,
    /// What the next scale multiplies.
    current: f64,
    last_scale: f64,
    is_digits: bool,
}

impl Number {
    pub(super) fn value(&self) -> f64 {
        self.total + self.current
    }

    /// The number that begins with this numeral; none begins with an ordinal.
    pub(super) fn begin(numeral: Numeral) -> Option<Self> {
        let (total, current, last_scale) = match numeral {
            Numeral::Unit(value) | Numeral::Tens(value) => (0.0, value, f64::MAX),
            Numeral::Hundred => (0.0, 100.0, f64::MAX),
            Numeral::Scale(scale) => (scale, 0.0, scale),
            Numeral::Ordinal(_) => return None,
        };
        Some(Self {
            total,
            current,
            last_scale,
            is_digits: false,
        })
    }

    pub(super) fn of_digits(value: f64) -> Self {
        Self {
            total: 0.0,
            current: value,
            last_scale: f64::MAX,
            is_digits: true,
        }
    }

    /// The number with one more numeral; none where that begins another number.
    pub(super) fn extended(self, numeral: Numeral) -> Option<Self> {
        let mut number = self;
        match numeral {
            Numeral::Scale(scale) if scale < self.last_scale => {
                if self.current == 0.0 {
                    return None;
                }
                number.total += self.current * scale;
                (number.current, number.last_scale) = (0.0, scale);
            }
            Numeral::Hundred if !self.is_digits && self.current > 0.0 && self.current < 100.0 => {
                number.current *= 100.0;
            }
            Numeral::Unit(value) if self.has_room(value) => number.current += value,
            Numeral::Tens(value) if self.has_room(value) => number.current += value,
            Numeral::Scale(_)
            | Numeral::Hundred
            | Numeral::Unit(_)
            | Numeral::Tens(_)
            | Numeral::Ordinal(_) => return None,
        }
        Some(number)
    }

    /// The ordinal that ends a number, as in "twenty-first".
    pub(super) fn ordinal(self, value: f64) -> Option<f64> {
        self.has_room(value).then(|| self.value() + value)
    }

    /// Whether "and" may stand inside of it here.
    pub(super) fn takes_and(self) -> bool {
        self.has_room(1.0) && self.value() >= 100.0
    }

    /// Whether a comma may stand inside of it here, as in "two million, five hundred".
    pub(super) fn takes_comma(self) -> bool {
        !self.is_digits && self.current == 0.0 && self.total > 0.0
    }

    // Twenty takes one to nine; a hundred, or a thousand, takes up to ninety-nine.
    fn has_room(self, value: f64) -> bool {
        if self.is_digits || value.fract() != 0.0 {
            return false;
        }
        let below = if self.current == 0.0 {
            if self.total > 0.0 { 100.0 } else { 0.0 }
        } else if self.current % 100.0 == 0.0 {
            100.0
        } else if self.current % 10.0 == 0.0 && self.current % 100.0 > 10.0 {
            10.0
        } else {
            0.0
        };
        value < below
    }
}

/// The value of digits with separators; none where they are too many to be an amount, or are
/// several numbers, as in a version.
pub(super) fn parse_digits(text: &str) -> Option<f64> {
    if text.bytes().filter(u8::is_ascii_digit).count() > DIGITS_MAX {
        return None;
    }
    let (whole, fraction) = match text.split_once('.') {
        Some((_, fraction)) if fraction.contains(['.', ',']) => return None,
        Some((whole, fraction)) => (whole, fraction),
        None => (text, ""),
    };
    let mut digits = String::with_capacity(text.len());
    let mut groups = whole.split(',');
    digits.push_str(groups.next().unwrap_or(""));
    for group in groups {
        // "1,5" is a decimal elsewhere; "1,500" is not.
        if group.len() != 3 && fraction.is_empty() {
            digits.push('.');
        }
        digits.push_str(group);
    }
    if !fraction.is_empty() {
        digits.push('.');
        digits.push_str(fraction);
    }
    digits.parse().ok()
}

/// Whether digits begin with a zero that is more than filling: "007" is a name, "07" and "0.5" are
/// not.
pub(super) fn is_padded(digits: &str) -> bool {
    const DIGITS_MIN: usize = 3;
    digits.len() >= DIGITS_MIN
        && digits.starts_with('0')
        && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// A decimal digit of any of the scripts that write numbers with digits of their own.
pub(super) fn digit_of(letter: char) -> Option<char> {
    if letter.is_ascii() {
        return letter.is_ascii_digit().then_some(letter);
    }
    // In each, the ten stand in order.
    const ZEROS: [char; 17] = [
        '\u{660}', '\u{6f0}', '\u{7c0}', '\u{966}', '\u{9e6}', '\u{a66}', '\u{ae6}', '\u{b66}',
        '\u{be6}', '\u{c66}', '\u{ce6}', '\u{d66}', '\u{e50}', '\u{ed0}', '\u{f20}', '\u{1040}',
        '\u{ff10}',
    ];
    let value = |&zero: &char| u32::from(letter).checked_sub(u32::from(zero));
    let value = ZEROS.iter().filter_map(value).find(|&value| value < 10)?;
    char::from_digit(value, 10)
}

/// Numerator and denominator of a fraction that is one character.
pub(super) fn fraction_of(letter: char) -> Option<[f64; 2]> {
    let parts = match letter {
        '½' => [1, 2],
        '⅓' => [1, 3],
        '⅔' => [2, 3],
        '¼' => [1, 4],
        '¾' => [3, 4],
        '⅕' => [1, 5],
        '⅖' => [2, 5],
        '⅗' => [3, 5],
        '⅘' => [4, 5],
        '⅙' => [1, 6],
        '⅚' => [5, 6],
        '⅛' => [1, 8],
        '⅜' => [3, 8],
        '⅝' => [5, 8],
        '⅞' => [7, 8],
        _ => return None,
    };
    Some(parts.map(f64::from))
}

/// The same for values that differ by less than writing shows.
pub(super) fn value_bits(value: f64) -> u64 {
    ((value * 1e6).round() / 1e6).to_bits()
}
