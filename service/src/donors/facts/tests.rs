//! Changes that must be noticed and edits that must not, both ways round; and any text at all.

mod pairs;

use pairs::{CHANGED, UNCHANGED};
use proptest::prelude::*;

use super::*;

const BEFORE: &str = "The committee met in the old hall on the appointed day, and after a long \
    debate the chairman reported what had been found.";
const AFTER: &str = "The members then went home, and the report was printed for all who had asked \
    to see it in the following weeks.";

/// One sentence amid others that are the same.
fn within(sentence: &str) -> String {
    format!("{BEFORE} {sentence} {AFTER}")
}

/// Asks both ways round, with the sentences alone and amid others; gives what was answered wrong.
fn check(pairs: &[[&str; 2]], expected: bool) {
    let mut wrong = Vec::new();
    for [one, two] in pairs {
        let texts = [
            ((*one).to_owned(), (*two).to_owned()),
            (within(one), within(two)),
        ];
        for (one, two) in texts {
            let found = [facts_differ(&one, &two), facts_differ(&two, &one)];
            if found != [expected; 2] {
                wrong.push(format!("{found:?} {one} / {two}"));
            }
            assert!(!facts_differ(&one, &one) && !facts_differ(&two, &two));
        }
    }
    assert_eq!(wrong, <[String; 0]>::default(), "\n{}", wrong.join("\n"));
}

#[test]
fn changed_facts_are_noticed() {
    check(CHANGED, true);
}

#[test]
fn other_edits_are_not() {
    check(UNCHANGED, false);
}

#[test]
fn passages_and_sentences_may_be_moved_added_and_left_out() {
    let mixed = |text: &str, by: usize| {
        let words: Vec<&str> = text.split(' ').collect();
        let picked = (0..words.len()).map(|at| words[at * (2 * by + 1) % words.len()]);
        picked.collect::<Vec<_>>().join(" ")
    };
    let passages: Vec<String> = (1..5)
        .map(|i| {
            format!(
                "In the year {i}82{i} the envoy of country {i} came to Boston with {i}7 men. {} He \
                 was not {i} times as glad as the others of town {i}, for Ohio {i} had lost. {}",
                mixed(BEFORE, i),
                mixed(AFTER, i),
            )
        })
        .collect();
    let prompt = |order: &[usize], instruction: &str, question: &str| {
        let body: Vec<&str> = order.iter().map(|&at| passages[at].as_str()).collect();
        format!("{instruction}\n\n{}\n\n{question}", body.join("\n\n"))
    };
    let whole = prompt(
        &[0, 1, 2, 3],
        "Answer with care what Anna asks.",
        "Question: Who came to Boston in 1821 and why did he not stay there?",
    );
    let others = [
        prompt(
            &[3, 1, 0, 2],
            "Summarize for Berlin 12 of these.",
            "What did Ohio lose?",
        ),
        prompt(
            &[2, 0],
            "Never tell Bob.",
            "List all of the 7 years in which Adams was there.",
        ),
        prompt(&[0, 1, 3, 2], "Answer with care what Anna asks.", "Name 3."),
    ];
    for other in &others {
        assert!(!facts_differ(&whole, other), "{other}");
        assert!(!facts_differ(other, &whole), "{other}");
    }
    let with_one_more = whole.replace(
        "In the year 2822",
        "Nobody in Texas knew of these 9 before. In the year 2822",
    );
    assert_ne!(with_one_more, whole);
    assert!(!facts_differ(&whole, &with_one_more));
    let changed = others[0].replace("3823", "3824");
    assert_ne!(changed, others[0]);
    assert!(facts_differ(&whole, &changed), "moved, and changed as well");
}

/// A change among the last words that two texts share, whatever each of them goes on with.
#[test]
fn a_change_shortly_before_the_texts_part_is_noticed() {
    let next = [
        "What did Ohio lose, and who told them of it first?",
        "Which of the ships came home before the others, and why?",
    ];
    let wrong: Vec<String> = [
        (
            "The year in which it began was",
            ["1812", "1813"],
            "in the end.",
        ),
        (
            "After a time the old board did",
            ["", "not"],
            "approve of it.",
        ),
        (
            "At last all of it was sold to",
            ["Anna", "Maria"],
            "with the house.",
        ),
    ]
    .into_iter()
    .flat_map(|(start, facts, rest)| {
        let sentences = facts.map(|fact| format!("{start} {fact} {rest}"));
        ["", " ", "\n\n"].into_iter().flat_map(move |joint| {
            let before = if joint.is_empty() { "" } else { BEFORE };
            let stated = sentences
                .clone()
                .map(|sentence| format!("{before}{joint}{sentence}"));
            let goes_on = [0, 1].map(|at| format!("{}{joint} {}", stated[at], next[at]));
            let one_goes_on = [stated[0].clone(), goes_on[1].clone()];
            let same = [
                stated[0].clone(),
                format!("{}{joint} {}", stated[0], next[1]),
            ];
            [
                (goes_on, !joint.is_empty()),
                (one_goes_on, true),
                (same, false),
            ]
        })
    })
    .filter(|([one, two], expected)| {
        [facts_differ(one, two), facts_differ(two, one)] != [*expected; 2]
    })
    .map(|(texts, expected)| format!("not {expected}: {texts:?}"))
    .collect();
    assert_eq!(wrong, <[String; 0]>::default(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_label_of_a_passage_is_no_fact_of_it() {
    let prompt = |label: &dyn Fn(usize) -> String, numbers: [usize; 2], order: [usize; 2]| {
        let passages = [BEFORE, AFTER];
        let part = |at: usize| format!("{}{}", label(numbers[at]), passages[order[at]]);
        format!("{}\n\n{}", part(0), part(1))
    };
    let labels: [&dyn Fn(usize) -> String; 6] = [
        &|i| format!("Document [{i}] "),
        &|i| format!("Document [{i}]: "),
        &|i| format!("Passage {i}:\n"),
        &|i| format!("[{i}] "),
        &|i| format!("{i}. "),
        &|i| format!("({i}) "),
    ];
    for label in labels {
        let one = prompt(label, [1, 2], [0, 1]);
        let others = [
            prompt(label, [3, 7], [0, 1]),
            prompt(label, [1, 2], [1, 0]),
            prompt(&|_| String::new(), [0, 0], [0, 1]),
        ];
        for other in &others {
            assert!(!facts_differ(&one, other), "{one}\n---\n{other}");
        }
        let changed = others[1].replace("the old hall", "the old hall of Rome");
        assert!(facts_differ(&one, &changed), "{one}\n---\n{changed}");
    }
    let within = |start: &str| format!("{start} they met in the hall of the town.\n{AFTER}");
    assert!(facts_differ(
        &within("Document 5 says that"),
        &within("Document 6 says that")
    ));
    assert!(facts_differ(
        &within("In the year 5"),
        &within("In the year 6")
    ));
}

#[test]
fn records_of_one_form_may_change_places() {
    let record = |ship: &str, port: &str, men: u32| {
        format!("The {ship} left the old port of {port} with {men} men and came home in spring.")
    };
    let [one, two] = [record("Alpha", "Lisbon", 41), record("Beta", "Cadiz", 72)];
    let list = |first: &str, second: &str| format!("{BEFORE} {first} {second} {AFTER}");
    assert!(!facts_differ(&list(&one, &two), &list(&two, &one)));
    let changed = record("Beta", "Cadiz", 73);
    assert!(facts_differ(&list(&one, &two), &list(&one, &changed)));
}

#[test]
fn unlike_texts_are_not_compared() {
    for (one, two) in [
        ("", "42"),
        ("yes", "no"),
        ("Paris is not old.", "The 3 of Rome."),
        (BEFORE, AFTER),
        ("1 2 3 4 5 6 7 8 9", "a b c d e f g h i"),
    ] {
        assert!(!facts_differ(one, two), "{one}, {two}");
    }
}

/// Whenever it becomes too late, the answer is the right one or none; in time it is there.
#[test]
fn a_comparison_that_is_late_says_nothing_wrong() {
    let long = |number: u32| {
        let sentence = |i: u32| format!("In the year {} they met for the {i}th time. ", i + 900);
        let sentences: String = (0..300).map(sentence).collect();
        format!("{sentences} At last {number} of them went home before the end of the day.")
    };
    let texts = [
        long(25),
        long(26),
        long(25).replace("1000 they", "1001 they"),
    ];
    for (one, two) in [(0, 1), (1, 2), (0, 2)] {
        let (one, two) = (&texts[one], &texts[two]);
        let mut told = 0;
        for calls in 0..40_usize {
            let left = Cell::new(calls);
            let is_late = || left.replace(left.get().saturating_sub(1)) == 0;
            match facts_differ_within(one, two, &is_late) {
                Some(differs) => {
                    assert!(differs);
                    told += 1;
                }
                None => assert_eq!(told, 0, "{calls}"),
            }
        }
        assert!((1..40).contains(&told), "{told}");
    }
    let too_long = "word ".repeat(TEXTS_BYTES_MAX / 10 + 1);
    let other = too_long.replacen("word", "ward", 1);
    assert_eq!(facts_differ_within(&too_long, &other, &|| false), None);
    assert_eq!(
        facts_differ_within(&too_long, &too_long, &|| true),
        Some(false)
    );
}

/// Pieces that meet the reader's special cases.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => "[a-c]{1,3} ",
        2 => prop::sample::select(&[
            "not ", "n't", "two hundred and ", "1,000.5", "$", "%", "-", "--", "== ", "!",
            "http://", "a@b.c ", "x_y", "\n\n", ". ", "No. 5", "ß", "İ", "’", "\u{301}", "漢字",
            "U.S. ", "/", "\\", "million", "a hundred ", "per cent ", "Neither ", "𝔘𝔫", "٣",
            "cannot ", "…", "_", ",,", "½", "\u{2028}", "8(a)", "1980's", "4-year ", "€5",
        ][..]).prop_map(str::to_owned),
        1 => "\\PC{0,6}",
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_two_texts_can_be_compared_either_way(
        one in any_text(),
        two in any_text(),
        cut in any::<prop::sample::Index>(),
        middle in any_text(),
    ) {
        prop_assert!(!facts_differ(&one, &one));
        prop_assert_eq!(facts_differ(&one, &two), facts_differ(&two, &one));
        // A near duplicate: something is put in anywhere.
        let cut = one.char_indices().map(|(at, _)| at).nth(cut.index(one.len() + 1)).unwrap_or(0);
        let near = format!("{}{middle}{}", &one[..cut], &one[cut..]);
        prop_assert_eq!(facts_differ(&one, &near), facts_differ(&near, &one));
    }
}
