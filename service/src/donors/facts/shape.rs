//! Where a run of letters and digits ends, and what it is made of.

use super::{
    numbers::{digit_of, fraction_of},
    spelling::{is_apostrophe, is_combining, is_ideograph},
};

/// A run of letters and digits, with what may stand between them.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one property")]
pub(super) struct Shape {
    /// In bytes of the text.
    pub(super) end: usize,
    pub(super) has_digits: bool,
    pub(super) is_camel: bool,
    /// Words joined by full stops, as in a host's name.
    pub(super) is_dotted: bool,
    has_letters: bool,
    /// Characters since the last full stop or comma.
    part: usize,
}

impl Shape {
    /// The run that begins at `start` with a letter, a digit or `_`.
    pub(super) fn of(text: &str, start: usize) -> Self {
        let mut shape = Self {
            end: start,
            ..Self::default()
        };
        let mut before = ' ';
        let mut rest = text[start..].chars();
        while let Some(letter) = rest.next() {
            if is_ideograph(letter) {
                if shape.end == start {
                    shape.end += letter.len_utf8();
                }
                break;
            }
            let mut behind = rest.clone();
            let around = (before, behind.next().unwrap_or(' '));
            if !shape.takes(letter, around, behind.next().unwrap_or(' ')) {
                break;
            }
            before = letter;
            shape.end += letter.len_utf8();
        }
        shape
    }

    // `around` are the characters beside it, `then` is the one after.
    fn takes(&mut self, letter: char, around: (char, char), then: char) -> bool {
        let (before, after) = around;
        if letter.is_alphanumeric() || letter == '_' {
            self.has_digits |= digit_of(letter).is_some() || fraction_of(letter).is_some();
            self.has_letters |= letter.is_alphabetic();
            self.is_camel |= before.is_lowercase() && letter.is_uppercase();
            self.part += 1;
            return true;
        }
        match letter {
            ',' => {
                let is_inside = before.is_ascii_digit() && after.is_ascii_digit();
                self.part = 0;
                is_inside && !self.has_letters
            }
            '.' => {
                let is_inside = before.is_ascii_digit() && after.is_ascii_digit();
                let joins = self.joins(around);
                self.is_dotted |= joins && !is_inside;
                let is_taken = is_inside || joins || self.is_initial(around, then);
                self.part = 0;
                is_taken
            }
            // "don't", and "1980's".
            _ if is_apostrophe(letter) => {
                self.part += 1;
                before.is_alphanumeric() && after.is_alphabetic()
            }
            _ => is_combining(letter),
        }
    }

    // "example.org", "p.5".
    fn joins(&self, (before, after): (char, char)) -> bool {
        let is_name = self.part > 1 && self.has_letters && after.is_lowercase();
        let is_section = before.is_alphabetic() && after.is_ascii_digit();
        before.is_alphanumeric() && (is_name || is_section)
    }

    // "U.S.".
    fn is_initial(&self, (before, after): (char, char), then: char) -> bool {
        self.part == 1 && before.is_alphabetic() && after.is_alphabetic() && !then.is_alphanumeric()
    }
}
