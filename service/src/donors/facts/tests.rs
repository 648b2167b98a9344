//! Changes that state other facts, and changes that do not, in both directions.

use proptest::prelude::*;

use super::facts_differ;

const BEFORE: &str = "It was reported to the whole of the committee on the same evening that ";
const AFTER: &str = " and the matter was then laid upon the table for the members to consider.";

#[track_caller]
fn check(left: &str, right: &str, expected: bool) {
    let [left, right] = [left, right].map(|part| format!("{BEFORE}{part}{AFTER}"));
    assert_eq!(facts_differ(&left, &right), expected, "{left} | {right}");
    assert_eq!(facts_differ(&right, &left), expected, "{right} | {left}");
    assert!(!facts_differ(&left, &left));
}

#[test]
fn changed_facts_are_told() {
    for (left, right) in [
        ("the board did approve it", "the board did not approve it"),
        ("the board can approve it", "the board cannot approve it"),
        ("the board has agreed", "the board hasn't agreed"),
        ("they sold 25 ships", "they sold 26 ships"),
        ("they sold 1,000 ships", "they sold 10,000 ships"),
        ("they sold three ships", "they sold thirty ships"),
        ("they sold 3 ships", "they sold four ships"),
        ("it fell by 2.5% then", "it fell by 3.5% then"),
        ("in the third year", "in the fourth year"),
        ("they met in Kentucky then", "they met in Virginia then"),
        ("they met Mr. Adams there", "they met Mr. Monroe there"),
        ("use parse_header here", "use parse_footer here"),
        ("call readFile with it", "call writeFile with it"),
        ("ticket AB-1234 was closed", "ticket AB-1235 was closed"),
        ("write to jo@acme.org today", "write to al@acme.org today"),
        ("if a == b it ends", "if a != b it ends"),
        ("the claim was approved", "the claim was unapproved"),
        ("the price did increase", "the price did decrease"),
        ("it was without merit", "it was of merit"),
        ("they never came back", "they came back"),
        ("er hat es getan", "er hat es nicht getan"),
    ] {
        check(left, right, true);
    }
}

#[test]
fn benign_changes_are_not() {
    for (left, right) in [
        ("the board did approve it", "the board, did approve it;"),
        ("the board did not approve", "the board didn't approve"),
        ("the board can not approve", "the board cannot approve"),
        ("they sold 1,000 ships", "they sold 1000 ships"),
        ("they sold twenty ships", "they sold 20 ships"),
        ("they sold one ship", "they sold a ship"),
        ("a big house was built", "a large house was built"),
        ("the colour of the flag", "the color of the flag"),
        (
            "the board\u{2019}s vote was taken",
            "the board's vote was taken",
        ),
        ("so The Board did it", "so the board did it"),
        ("it   was  done", "it was done"),
        ("it was done. However they", "it was done. Still they"),
    ] {
        check(left, right, false);
    }
}

#[test]
fn other_passages_are_not_changes() {
    let passages: Vec<String> = (0..6)
        .map(|n| {
            (0..40)
                .map(|i| format!("word{}", (n * 40 + i) % 239))
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    let all = passages.join("\n");
    let reordered: Vec<&str> = [3, 0, 5, 1, 4, 2].map(|i| passages[i].as_str()).into();
    assert!(!facts_differ(&all, &reordered.join("\n")));
    assert!(!facts_differ(
        &all,
        &format!("Answer in 7 words for Bob.\n{all}\nWhy 12?")
    ));
    let added = "In 1790 Washington spoke at length to all of the members, not for the first time.";
    let with_more = [&passages[0], added, &passages[1]]
        .map(str::to_owned)
        .join(" ");
    assert!(!facts_differ(&passages[..2].join(" "), &with_more));
    assert!(!facts_differ("", ""));
    assert!(!facts_differ("", &all));
}

proptest! {
    #[test]
    fn any_texts_are_compared_alike_in_both_directions(
        left in "\\PC{0,80}", right in "\\PC{0,80}", shared in "[a-z0-9 .,'A-Z]{0,80}",
    ) {
        let [left, right] = [left, right].map(|own| format!("{shared} {own} {shared}"));
        prop_assert_eq!(facts_differ(&left, &right), facts_differ(&right, &left));
        prop_assert!(!facts_differ(&left, &left));
    }

    #[test]
    fn one_changed_number_is_found_anywhere(
        words in prop::collection::vec("[a-z]{3,9}", 40..200),
        at in 8_usize..30,
        number in 2_u32..999,
    ) {
        let text = |number: u32| {
            let mut words = words.clone();
            words.insert(at, number.to_string());
            words.join(" ")
        };
        // Other words than the number's neighbours must not repeat for a change to be one place.
        let mut distinct = words.clone();
        distinct.sort_unstable();
        distinct.dedup();
        prop_assume!(distinct.len() == words.len());
        prop_assert!(facts_differ(&text(number), &text(number + 1)));
    }
}
