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

/// The same for values that differ by less than writing shows.
pub(super) fn value_bits(value: f64) -> u64 {
    ((value * 1e6).round() / 1e6).to_bits()
}
