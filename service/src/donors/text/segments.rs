//! Cuts a text into the segments that are embedded, each short enough for a model's window.

/// Longest segment, in bytes: some 110 English words, 150 tokens.
pub const SEGMENT_BYTES_MAX: usize = 600;
/// Most segments of one text that can be asked for.
pub const SEGMENTS_MAX: usize = 64;

/// A segment ends at the best border in its last part, and is no shorter than the rest.
const SEGMENT_BYTES_MIN: usize = SEGMENT_BYTES_MAX / 2;

/// At most `most` segments of the text beyond its first `skip_share` (0 to 1, of its bytes), in
/// their order: what an exact prefix covers needs no donor.
///
/// Together they are all of that text, or, when it is longer, evenly spread over it, so that
/// neither a preamble nor the length decides what a text is found by. A segment ends at the end of
/// a line where it can, else of a sentence, a clause, a word; so two texts with the same passages
/// are soon cut alike, whatever is in front of them. It has no white space around it, and is left
/// out when it has no letter or digit.
#[must_use]
pub fn segments(text: &str, skip_share: f32, most: usize) -> Vec<&str> {
    let beyond = beyond(text, skip_share);
    let pieces: Vec<&str> = Pieces(beyond).collect();
    if pieces.len() <= most {
        return pieces;
    }
    // The middle ones of `most` even parts.
    (0..most)
        .map(|part| pieces[(2 * part + 1) * pieces.len() / (2 * most)])
        .collect()
}

// From the first word border behind the share.
fn beyond(text: &str, share: f32) -> &str {
    if share.is_nan() || share <= 0.0 {
        return text;
    }
    let at = text.floor_char_boundary(share_of(text.len(), share));
    let rest = &text[at..];
    if rest.starts_with(char::is_whitespace) || text[..at].ends_with(char::is_whitespace) {
        return rest;
    }
    // A text without white space is cut anywhere.
    let near = &rest[..rest.floor_char_boundary(SEGMENT_BYTES_MAX)];
    near.find(char::is_whitespace)
        .map_or(rest, |border| &rest[border..])
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a share needs no more digits; not negative, and cut to the length"
)]
fn share_of(length: usize, share: f32) -> usize {
    ((length as f64 * f64::from(share)) as usize).min(length)
}

/// Successive pieces of a text.
struct Pieces<'a>(&'a str);

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            let rest = self.0.trim_start();
            if rest.is_empty() {
                return None;
            }
            let (piece, behind) = rest.split_at(end_of_piece(rest));
            self.0 = behind;
            if piece.contains(char::is_alphanumeric) {
                return Some(piece.trim_end());
            }
        }
    }
}

// Behind the last of the best borders.
fn end_of_piece(text: &str) -> usize {
    if text.len() <= SEGMENT_BYTES_MAX {
        return text.len();
    }
    let end = text.floor_char_boundary(SEGMENT_BYTES_MAX);
    let mut best = (Border::None, end);
    let mut before = Before::default();
    for (at, c) in text[..end].char_indices() {
        let border = before.border(c);
        if at >= SEGMENT_BYTES_MIN && border > Border::None && border >= best.0 {
            best = (border, at);
        }
        before.see(c);
    }
    best.1
}

/// Where a text can be cut, the better the later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Border {
    None,
    Word,
    Clause,
    Sentence,
    Line,
}

/// The last character of the words before a place, without what closes a quotation.
#[derive(Default)]
struct Before {
    last: Option<char>,
}

impl Before {
    // Between what was seen and this character.
    fn border(&self, next: char) -> Border {
        if next == '\n' {
            return Border::Line;
        }
        match self.last {
            // These scripts put no space behind a sentence.
            Some('。' | '！' | '？') => Border::Sentence,
            Some('.' | '!' | '?') if next.is_whitespace() => Border::Sentence,
            Some(';' | ':' | ',') if next.is_whitespace() => Border::Clause,
            _ if next.is_whitespace() => Border::Word,
            _ => Border::None,
        }
    }

    fn see(&mut self, c: char) {
        if !matches!(c, '"' | '\'' | ')' | ']' | '”' | '’' | '」') {
            self.last = Some(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `count` sentences of some 40 bytes, each with its number.
    fn sentences(count: usize) -> String {
        let sentence = |n| format!("Sentence {n} says what it has to say. ");
        (0..count).map(sentence).collect()
    }

    #[test]
    fn a_short_text_is_one_segment_and_an_empty_one_none() {
        assert_eq!(segments(" a few words \n", 0.0, 8), ["a few words"]);
        for nothing in ["", "  \n ", "--- *** ---"] {
            assert!(segments(nothing, 0.0, 8).is_empty(), "{nothing:?}");
        }
        assert!(segments("a few words", 0.0, 0).is_empty());
    }

    #[test]
    fn a_long_text_is_cut_behind_sentences() {
        let text = sentences(60);
        let cut = segments(&text, 0.0, 64);
        assert!(cut.len() >= 4, "{}", cut.len());
        for segment in &cut {
            assert!(segment.starts_with("Sentence") && segment.ends_with("say."));
        }
        assert_eq!(cut.join(" "), text.trim_end());
    }

    #[test]
    fn the_best_border_wins_and_of_equal_ones_the_last() {
        let word = |count: usize| "w".repeat(count);
        let check = |text: String, first: usize| {
            assert_eq!(segments(&text, 0.0, 64)[0].len(), first, "{text}");
        };
        let tail = word(500);
        check(format!("{}\n{} {tail}", word(310), word(50)), 310);
        check(format!("{}. {} {tail}", word(310), word(50)), 311);
        check(format!("{}.\" {} {tail}", word(310), word(50)), 312);
        check(format!("{}, {} {tail}", word(310), word(50)), 311);
        check(format!("{} {} {tail}", word(310), word(50)), 361);
        check(format!("{}。{}{tail}", word(310), word(50)), 313);
        // Too early a border is none.
        check(format!("{}\n{}{tail}", word(200), word(50)), 600);
    }

    #[test]
    fn a_long_text_is_sampled_from_its_beginning_to_its_end() {
        let text = sentences(2_000);
        let cut = segments(&text, 0.0, 8);
        assert_eq!(cut.len(), 8);
        for (part, segment) in cut.iter().enumerate() {
            let at = segment.as_ptr().addr() - text.as_ptr().addr();
            let eighth = text.len() / 8;
            assert!((part * eighth..(part + 1) * eighth).contains(&at), "{part}");
        }
    }

    #[test]
    fn what_an_exact_prefix_covers_is_left_out() {
        let text = sentences(40);
        let cut = segments(&text, 0.5, 64);
        let at = cut[0].as_ptr().addr() - text.as_ptr().addr();
        let half = text.len() / 2;
        assert!((half..half + 20).contains(&at), "{at} of {}", text.len());
        assert!(
            cut.last()
                .unwrap()
                .ends_with("Sentence 39 says what it has to say.")
        );
        assert!(segments(&text, 1.0, 64).is_empty());
        for all in [0.0, -1.0, f32::NAN] {
            assert_eq!(segments(&text, all, 64).concat().len(), {
                segments(&text, 0.0, 64).concat().len()
            });
        }
    }

    #[test]
    fn texts_with_the_same_lines_are_cut_alike_behind_different_preambles() {
        let passage = |n: usize| format!("Passage {n} is about the number {n}. ").repeat(12);
        let body: String = (0..8).map(|n| passage(n) + "\n\n").collect();
        let one = format!("{}\n\n{body}", sentences(3));
        let other = format!("{}\n\n{body}", sentences(31));
        let (one, other) = (segments(&one, 0.0, 64), segments(&other, 0.0, 64));
        let shared = one.iter().filter(|segment| other.contains(segment)).count();
        assert!(shared >= one.len() - 2, "{shared} of {}", one.len());
    }

    fn part() -> impl Strategy<Value = String> {
        prop_oneof![
            8 => "[a-z]{0,9}[ .,\n]",
            2 => prop::sample::select(vec!["é", "漢。", "\u{1F600}", "\u{a0}", "--"])
                .prop_map(str::to_owned),
            1 => (1_usize..700).prop_map(|length| "W".repeat(length)),
        ]
    }

    proptest! {
        #[test]
        fn segments_are_short_in_order_and_leave_out_no_word(
            parts in prop::collection::vec(part(), 0..200),
            share in -0.5_f32..1.5,
            most in 0_usize..70,
        ) {
            let text = parts.concat();
            let cut = segments(&text, share, most);
            prop_assert!(cut.len() <= most);
            let mut end = 0;
            for segment in &cut {
                let at = segment.as_ptr().addr() - text.as_ptr().addr();
                prop_assert!(at >= end, "out of order, or overlapping");
                end = at + segment.len();
                prop_assert!((1..=SEGMENT_BYTES_MAX).contains(&segment.len()));
                prop_assert_eq!(segment.trim(), *segment);
            }
            let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).count();
            let all = segments(&text, 0.0, usize::MAX);
            prop_assert_eq!(all.iter().map(|s| letters(s)).sum::<usize>(), letters(&text));
        }
    }
}
