//! Marks between words: ends of sentences, signs of numbers, operators; the rest means nothing.

use super::{
    spelling::{canonical_hash, hash},
    words::{Kind, Reader},
};

/// Characters of the longest operator; more in a row are decoration.
const OPERATOR_MAX: usize = 3;

/// Takes the mark at the reader's place, and what belongs to it.
pub(super) fn read(reader: &mut Reader<'_>, mark: char) {
    let at = reader.at;
    let next = at + mark.len_utf8();
    reader.at = next;
    match mark {
        '\n' | '\u{2028}' | '\u{2029}' => new_line(reader, at),
        '.' | '?' | '。' | '？' | '！' => sentence_end(reader, mark),
        '$' => currency(reader, "dollar"),
        '£' => currency(reader, "pound"),
        '€' => currency(reader, "euro"),
        '¥' => currency(reader, "yen"),
        '%' if is_behind_number(reader, at) => {
            let place = (at, next);
            reader.end_number();
            reader.push(canonical_hash("percent"), place, (Kind::Plain, 0));
        }
        '&' if reader.byte(next) != b'&' => {
            reader.end_number();
            reader.push(canonical_hash("and"), (at, next), (Kind::Plain, 0));
        }
        '-' | '−' if is_sign(reader, at, next) => {
            let end = number_end(reader, next);
            reader.digits(next, end, true);
            reader.at = end;
        }
        '/' | '~' if reader.chunk(at) => {}
        '≠' => operator(reader, "!=", (at, Kind::Operator)),
        '≤' => operator(reader, "<=", (at, Kind::Operator)),
        '≥' => operator(reader, ">=", (at, Kind::Operator)),
        '=' | '!' | '<' | '>' | '+' | '-' | '*' | '/' | '%' | '|' | '^' | '&' => {
            operators(reader, at);
        }
        ',' => reader.comma(),
        // Hyphens join numbers, and spaces of other kinds part nothing.
        '‐' | '‑' | '\'' | '’' | '"' | '“' | '”' | '\u{a0}' | '\u{2009}' | '\u{202f}'
        | '\u{200b}' => {}
        _ => reader.end_number(),
    }
}

/// Whether a run without spaces is a path, a network address, a mail address, or the like.
pub(super) fn is_address(chunk: &str) -> bool {
    let has_letters = chunk.bytes().any(|byte| byte.is_ascii_alphabetic());
    let has = |wanted: &[char]| chunk.contains(wanted);
    let slashes = chunk.bytes().filter(|&byte| byte == b'/').count();
    if !has_letters || chunk.contains("—") {
        return false;
    }
    chunk.contains("://")
        || (has(&['@']) && has(&['.']))
        || has(&['\\'])
        || slashes > 1
        || (slashes == 1 && (chunk.starts_with('/') || has(&['.', '_', '0', '1', '2'])))
        || chunk.contains("::")
        || is_uuid(chunk)
}

fn is_uuid(chunk: &str) -> bool {
    const PARTS_MIN: usize = 4;
    chunk.bytes().filter(|&byte| byte == b'-').count() >= PARTS_MIN
        && chunk.bytes().any(|byte| byte.is_ascii_digit())
        && chunk
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

// A sentence ends here, too, unless the line was only full.
fn new_line(reader: &mut Reader<'_>, at: usize) {
    let is_blank = reader.text[reader.at..]
        .trim_start_matches([' ', '\t', '\r'])
        .starts_with('\n');
    let line = reader.text[..at].trim_end_matches([' ', '\r']);
    let is_full = line.ends_with(|letter: char| letter.is_alphanumeric() || ",-".contains(letter));
    if !is_full || is_blank {
        reader.end_sentence();
    }
    reader.end_line();
}

fn sentence_end(reader: &mut Reader<'_>, mark: char) {
    let next = reader.char_at(reader.at).unwrap_or(' ');
    let is_inside = next.is_alphanumeric() && mark.is_ascii();
    if is_inside || (mark == '.' && reader.is_abbreviated()) {
        reader.end_number();
    } else {
        reader.end_sentence();
    }
}

fn currency(reader: &mut Reader<'_>, name: &str) {
    reader.end_number();
    if reader.byte(reader.at).is_ascii_digit() {
        reader.set_unit(name);
    }
}

fn is_behind_number(reader: &Reader<'_>, at: usize) -> bool {
    let before = reader.text[..at].trim_end_matches(' ');
    before.ends_with(|letter: char| letter.is_ascii_digit())
}

// Of "-5", but neither of "3-5" nor of a hyphen.
fn is_sign(reader: &Reader<'_>, at: usize, next: usize) -> bool {
    let before = reader.char_before(at).unwrap_or(' ');
    reader.byte(next).is_ascii_digit() && (before.is_whitespace() || "([{,=:<>*/+".contains(before))
}

fn number_end(reader: &Reader<'_>, start: usize) -> usize {
    let is_in = |at: usize| {
        let byte = reader.byte(at);
        byte.is_ascii_digit()
            || (matches!(byte, b'.' | b',') && reader.byte(at + 1).is_ascii_digit())
    };
    let mut end = start;
    while is_in(end) {
        end += 1;
    }
    end
}

// Marks that may be an operator, from `at` on.
fn operators(reader: &mut Reader<'_>, at: usize) {
    let is_part = |at: usize| b"=!<>+-*/%|^&".contains(&reader.byte(at));
    let mut end = at;
    while is_part(end) {
        end += 1;
    }
    let text = &reader.text[at..end];
    reader.at = end;
    let before = reader.char_before(at);
    let after = reader.char_at(end);
    match text {
        "==" | "!=" | "<=" | ">=" | "===" | "!==" | "&&" | "||" | "+=" | "-=" | "*=" | "/="
        | "++" | "<<" | ">>" | "=>" | "->" => operator(reader, text, (at, Kind::Operator)),
        "!" => exclamation(reader, at, (before, after)),
        "<" | ">" if is_between(reader, at, end) => {
            operator(reader, text, (at, Kind::Operator));
        }
        // All are dashes.
        "-" | "--" | "---" if before != Some('\n') => {
            let is_hyphen = text == "-" && is_glued(before, after);
            if is_hyphen {
                // It may join a number: "twenty-one".
            } else if is_between(reader, at, end) {
                operator(reader, "-", (at, Kind::Mark));
            } else {
                reader.end_number();
            }
        }
        _ if text.len() <= OPERATOR_MAX && is_between(reader, at, end) => {
            let is_word = text == "/" && is_glued(before, after);
            if !is_word {
                operator(reader, text, (at, Kind::Mark));
            }
        }
        _ => reader.end_number(),
    }
}

// A negation in front of a name or a bracket, else the end of a sentence.
fn exclamation(reader: &mut Reader<'_>, at: usize, around: (Option<char>, Option<char>)) {
    let (before, after) = around;
    let is_prefix = before.is_none_or(|letter| letter.is_whitespace() || "([{&|=".contains(letter))
        && after.is_some_and(|letter| letter.is_alphanumeric() || matches!(letter, '(' | '_'));
    if is_prefix {
        operator(reader, "!", (at, Kind::Operator));
    } else {
        sentence_end(reader, '!');
    }
}

fn is_glued(before: Option<char>, after: Option<char>) -> bool {
    before.is_some_and(char::is_alphanumeric) && after.is_some_and(char::is_alphanumeric)
}

// Whether there are operands on both sides, on the same line.
fn is_between(reader: &Reader<'_>, start: usize, end: usize) -> bool {
    let before = reader.text[..start].trim_end_matches(' ');
    let after = reader.text[end..].trim_start_matches(' ');
    before.ends_with(|letter: char| letter.is_alphanumeric() || ")]_\"'".contains(letter))
        && after.starts_with(|letter: char| letter.is_alphanumeric() || "([_\"'-".contains(letter))
}

fn operator(reader: &mut Reader<'_>, name: &str, (at, kind): (usize, Kind)) {
    reader.end_number();
    let place = (at, reader.at);
    reader.push(hash(name.as_bytes()), place, (kind, 0));
}
