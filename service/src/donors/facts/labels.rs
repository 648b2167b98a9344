//! Labels that a prompt gives its passages: another place in the prompt is no other fact.

use super::{
    lexicon::LABELS,
    words::{IN_WORDS, Kind, LABEL, LINE_BEFORE, Word},
};

/// Bytes of the longest number that is a label by itself, where a line begins.
const NUMBER_BYTES_MAX: u32 = 3;

/// Marks the words of "Document [3]", "Passage 3:", "[3]", "3)" and the like.
pub(super) fn mark(text: &str, words: &mut [Word]) {
    let is_before = |word: &Word, marks: &[char]| {
        let rest = text.get(word.end as usize..);
        rest.is_some_and(|rest| rest.starts_with(marks))
    };
    for at in 0..words.len() {
        let first = words[at];
        if !first.has(LINE_BEFORE) {
            continue;
        }
        let next = words.get(at + 1).filter(|next| next.kind == Kind::Number);
        let is_named = LABELS.has(first.hash)
            && next.is_some_and(|next| is_before(next, &[']', ')', ':', '.', '\n']));
        let is_short = first.kind == Kind::Number
            && first.end - first.start <= NUMBER_BYTES_MAX
            && !first.has(IN_WORDS);
        if is_named {
            words[at].flags |= LABEL;
            words[at + 1].flags |= LABEL;
        } else if is_short && is_before(&first, &[']', ')', '.']) {
            words[at].flags |= LABEL;
        }
    }
}
