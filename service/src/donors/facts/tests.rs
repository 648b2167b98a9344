//! Changes that must be noticed and edits that must not, both ways round; and any text at all.

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

const CHANGED: &[[&str; 2]] = &[
    // Numbers.
    [
        "They paid 1,000 dollars for the land.",
        "They paid 1,100 dollars for the land.",
    ],
    [
        "The sum was 3.5 percent of the whole.",
        "The sum was 3.6 percent of the whole.",
    ],
    [
        "It took them two days to arrive there.",
        "It took them four days to arrive there.",
    ],
    [
        "There were two hundred men in the fort.",
        "There were two thousand men in the fort.",
    ],
    [
        "It was signed on 4 July 1776 in the city.",
        "It was signed on 4 July 1778 in the city.",
    ],
    [
        "It was signed on the third of the month.",
        "It was signed on the fourth of the month.",
    ],
    [
        "He came in on the 21st of the month.",
        "He came in on the 22nd of the month.",
    ],
    [
        "The tax is set at 5% of all income.",
        "The tax is set at 5 of all income.",
    ],
    [
        "The parcel weighed 12 kg when it came.",
        "The parcel weighed 12 pounds when it came.",
    ],
    [
        "They gave him $50 for the old horse.",
        "They gave him £50 for the old horse.",
    ],
    [
        "It was -5 degrees in the morning.",
        "It was 5 degrees in the morning.",
    ],
    [
        "Please install version 1.2.3 of the tool.",
        "Please install version 1.2.4 of the tool.",
    ],
    [
        "The loan of millions was made by them.",
        "The loan of 7 millions was made by them.",
    ],
    [
        "They went from 5 to 7 in one year.",
        "They went from 7 to 5 in one year.",
    ],
    // Names.
    [
        "The letter was sent to Jefferson at once.",
        "The letter was sent to Madison at once.",
    ],
    [
        "Adams beat Monroe in the first vote.",
        "Monroe beat Adams in the first vote.",
    ],
    [
        "Congress has the power to declare it.",
        "Parliament has the power to declare it.",
    ],
    [
        "The envoy of Spain was heard by them.",
        "The envoy of France was heard by them.",
    ],
    [
        "They sailed for Lisbon in the spring.",
        "They sailed for Porto in the spring.",
    ],
    [
        "We asked the USA for an answer to it.",
        "We asked the UK for an answer to it.",
    ],
    [
        "See what Article II says about the matter.",
        "See what Article III says about the matter.",
    ],
    [
        "We met on Monday in the great hall.",
        "We met on Friday in the great hall.",
    ],
    [
        "The men of the north came home early.",
        "The men of Ohio the north came home early.",
    ],
    // Negations and opposites.
    [
        "The board did approve the plan.",
        "The board did not approve the plan.",
    ],
    [
        "They can leave the house at night.",
        "They can't leave the house at night.",
    ],
    [
        "They can leave the house at night.",
        "They cannot leave the house at night.",
    ],
    [
        "He has been to the old town before.",
        "He has never been to the old town before.",
    ],
    [
        "He came with the money he owed them.",
        "He came without the money he owed them.",
    ],
    [
        "All of the members voted for it.",
        "None of the members voted for it.",
    ],
    [
        "The plan was approved by the board.",
        "The plan was unapproved by the board.",
    ],
    [
        "The plan was approved by the board.",
        "The plan was rejected by the board.",
    ],
    [
        "The duty on wool was increased at once.",
        "The duty on wool was reduced at once.",
    ],
    [
        "The law allows them to enter the port.",
        "The law forbids them to enter the port.",
    ],
    [
        "They left before the vote was taken.",
        "They left after the vote was taken.",
    ],
    [
        "The setting is true for all of them.",
        "The setting is false for all of them.",
    ],
    [
        "The medicine is harmful to the young.",
        "The medicine is harmless to the young.",
    ],
    [
        "Der Rat hat den Plan genehmigt.",
        "Der Rat hat den Plan nicht genehmigt.",
    ],
    [
        "Il a mangé trois pommes ce matin.",
        "Il a mangé quatre pommes ce matin.",
    ],
    // Identifiers and operators.
    [
        "The ticket KV-48213 was closed by them.",
        "The ticket KV-48217 was closed by them.",
    ],
    [
        "Set retry_limit to the value you want.",
        "Set retry_limits to the value you want.",
    ],
    [
        "Call parseHeader with the bytes you got.",
        "Call parseFooter with the bytes you got.",
    ],
    [
        "Open the file src/app/main.rs and look.",
        "Open the file src/app/lib.rs and look.",
    ],
    [
        "Fetch it from https://a.example/x/1 now.",
        "Fetch it from https://b.example/x/1 now.",
    ],
    [
        "Write to anna@example.org about the bill.",
        "Write to hanna@example.org about the bill.",
    ],
    [
        "Look at commit c0ffee12 for the change.",
        "Look at commit c0ffee13 for the change.",
    ],
    [
        "The word at 0x1f4 is the one you want.",
        "The word at 0x1f5 is the one you want.",
    ],
    [
        "while (count == limit) { stop(count); }",
        "while (count != limit) { stop(count); }",
    ],
    [
        "while (count < limit) { stop(count); }",
        "while (count <= limit) { stop(count); }",
    ],
    [
        "let area = width + height; print(area);",
        "let area = width - height; print(area);",
    ],
    [
        "if (ready) { run_all_the_tests(now); }",
        "if (!ready) { run_all_the_tests(now); }",
    ],
    [
        "They served a 4-year term in the house.",
        "They served a 4-yard term in the house.",
    ],
    [
        "The rules of the post-1945 order were kept.",
        "The rules of the pre-1945 order were kept.",
    ],
    // At an end.
    [
        "1812 was the year in which it began.",
        "1813 was the year in which it began.",
    ],
    [
        "The year in which it all began was 1812",
        "The year in which it all began was 1813",
    ],
    [
        "The year in which it began was 1812 indeed",
        "The year in which it began was 1813 indeed",
    ],
];

const UNCHANGED: &[[&str; 2]] = &[
    [
        "It went well, and they were glad of it.",
        "It went well and they were glad of it.",
    ],
    [
        "He said \"yes\" to all that they asked.",
        "He said “yes” to all that they asked.",
    ],
    [
        "They don't know what came of it all.",
        "They do not know what came of it all.",
    ],
    [
        "They can't know what came of it all.",
        "They cannot know what came of it all.",
    ],
    [
        "It's not what the old man had said.",
        "It’s not what the old man had said.",
    ],
    [
        "There were 20 men in the small boat.",
        "There were twenty men in the small boat.",
    ],
    [
        "There were 21 men in the small boat.",
        "There were twenty-one men in the small boat.",
    ],
    [
        "They paid 1,000 for the whole of it.",
        "They paid 1000 for the whole of it.",
    ],
    [
        "They paid 1.5 million for all of it.",
        "They paid 1,500,000 for all of it.",
    ],
    [
        "They paid two hundred and five for it.",
        "They paid 205 for the whole of it.",
    ],
    [
        "They paid $5 for the old brown horse.",
        "They paid 5 dollars for the old brown horse.",
    ],
    [
        "The tax was 5% of all that they had.",
        "The tax was 5 per cent of all that they had.",
    ],
    [
        "They walked 5km on the muddy road.",
        "They walked 5 kilometres on the muddy road.",
    ],
    [
        "It was on the 3rd day of the voyage.",
        "It was on the third day of the voyage.",
    ],
    [
        "The colour of the centre was organised.",
        "The color of the center was organized.",
    ],
    [
        "The Labour party met in the town hall.",
        "The Labor party met in the town hall.",
    ],
    [
        "They began the work on the new road.",
        "They started the work on the new road.",
    ],
    [
        "It was a large house by the river side.",
        "It was a big house by the river side.",
    ],
    [
        "However, they were glad of the answer.",
        "Nevertheless, they were glad of the answer.",
    ],
    [
        "Clearly, they were glad of the answer.",
        "Obviously, they were glad of the answer.",
    ],
    [
        "The Government was glad of the answer.",
        "The government was glad of the answer.",
    ],
    [
        "He saw the fellow-citizens of the town.",
        "He saw the fellow citizens of the town.",
    ],
    [
        "He was not glad of the answer he got.",
        "He was never glad of the answer he got.",
    ],
    [
        "It was not allowed to enter the port.",
        "It was forbidden to enter the port.",
    ],
    [
        "It was not approved by the old board.",
        "It was unapproved by the old board.",
    ],
    [
        "They saw Spain and France in one year.",
        "They saw France and Spain in one year.",
    ],
    [
        "They asked the USA for an answer to it.",
        "They asked the United States for an answer to it.",
    ],
    [
        "They met Mr. Adams in the great hall.",
        "They met Mister Adams in the great hall.",
    ],
    [
        "It was on 4 Jan. that they had met him.",
        "It was on 4 January that they had met him.",
    ],
    [
        "It was a day - a fine one - to travel.",
        "It was a day, a fine one, to travel.",
    ],
    [
        "It was a day -- a fine one -- to travel.",
        "It was a day—a fine one—to travel.",
    ],
    [
        "They  went   home\nby the same road.",
        "They went home by the same road.",
    ],
    [
        "They went home by the same road.",
        "They also went home by the same road.",
    ],
    [
        "a = b + c; print(a); return the result",
        "a=b+c; print(a); return the result",
    ],
    [
        "The **old** road was closed that year.",
        "The old road was closed that year.",
    ],
];

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
