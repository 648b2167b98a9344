//! Words and numbers in one spelling, and the hashes of that.

use super::numbers::value_bits;

/// The hash of a word as it is written, in lower case.
pub(super) fn plain_hash(word: &str) -> u64 {
    hash(word.to_lowercase().as_bytes())
}

/// The hash of a word in lower case and one spelling.
pub(super) fn canonical_hash(word: &str) -> u64 {
    let lower = word.to_lowercase();
    let mut spelled = Vec::with_capacity(lower.len());
    spell(lower.as_bytes(), &mut spelled);
    hash(&spelled)
}

pub(super) fn value_hash(value: f64) -> u64 {
    mix(value_bits(value) ^ 0x6e75_6d62)
}

pub(super) fn ordinal_hash(value: f64) -> u64 {
    mix(value_bits(value) ^ 0x6f72_6465_7200)
}

/// FNV-1a, mixed.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}

pub(super) fn is_apostrophe(letter: char) -> bool {
    matches!(letter, '\'' | '’' | 'ʼ' | '＇')
}

pub(super) fn is_combining(letter: char) -> bool {
    matches!(letter, '\u{300}'..='\u{36f}')
}

/// Written without spaces: each is a word.
pub(super) fn is_ideograph(letter: char) -> bool {
    matches!(letter, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}')
}

/// In lower case, with one kind of apostrophe.
pub(super) fn lower_into(text: &str, lower: &mut String) {
    lower.clear();
    if text.is_ascii() {
        lower.push_str(text);
        lower.make_ascii_lowercase();
        return;
    }
    for letter in text.chars() {
        if is_apostrophe(letter) {
            lower.push('\'');
        } else if !is_combining(letter) {
            lower.extend(letter.to_lowercase());
        }
    }
}

/// Brings British and American spelling to one, and some other words, too: that does no harm.
pub(super) fn spell(word: &[u8], spelled: &mut Vec<u8>) {
    spelled.clear();
    if word.len() < 4 || !word.is_ascii() {
        spelled.extend_from_slice(word);
        return;
    }
    let mut at = 0;
    while at < word.len() {
        // No rule begins with another letter.
        if !matches!(
            word[at],
            b'o' | b'i' | b'y' | b'l' | b'a' | b't' | b'e' | b'd'
        ) {
            spelled.push(word[at]);
            at += 1;
            continue;
        }
        let rest = &word[at..];
        let (taken, given): (usize, &[u8]) = match rest {
            [b'o', b'u', b'r', ..] if at > 0 && word.len() > 4 => (3, b"or"),
            [b'i', b's', b'a' | b'e' | b'i', ..] if at > 1 => (2, b"iz"),
            [b'y', b's', b'e' | b'i', ..] if at > 1 => (2, b"yz"),
            [b'l', b'l', ..] => (2, b"l"),
            [b'a' | b'o', b'e', ..] if word.len() > 5 => (2, b"e"),
            [b't', b'r', b'e'] if at > 1 => (3, b"ter"),
            [b't', b'r', b'e', b's'] if at > 1 => (4, b"ters"),
            [b'o', b'g', b'u', b'e'] => (4, b"og"),
            [b'e', b'n', b'c', b'e', ..] => (4, b"ense"),
            [b'd', b'g', b'e', b'm', ..] => (4, b"dgm"),
            _ => (1, &rest[..1]),
        };
        spelled.extend_from_slice(given);
        at += taken;
    }
}
