//! The classes are what their table says, token by token.

use super::*;
use crate::{
    judge::{PieceIndex, TargetWindows},
    random::Random,
};

const DONORS: usize = 400;
const TOKENS: usize = 1024;

struct Fixture {
    set: DonorSet,
    random: Random,
}

fn fixture(seed: u64) -> Fixture {
    let mut random = Random::new(seed);
    let passages = (0..120)
        .map(|_| (0..245).map(|_| random.below_u32(VOCABULARY)).collect())
        .collect();
    let library = Library::new(passages, 0, &mut random);
    let set = DonorSet::new(library, DONORS, TOKENS, &mut random);
    Fixture { set, random }
}

/// Makes targets of a class and gives (tokens, tokens that the source covers) of each.
fn check(class: Class) -> Vec<(usize, usize)> {
    let mut at = fixture(11);
    let sources = at.set.members(class.group());
    assert!(sources.len() > 10);
    sources
        .take(40)
        .map(|source| {
            let target = Target::new(class, source, &at.set, &mut at.random);
            let windows = TargetWindows::new(&target.tokens);
            (
                target.tokens.len(),
                windows.covered_by(&at.set.donor(source).tokens),
            )
        })
        .collect()
}

fn check_covered(class: Class, length: std::ops::RangeInclusive<usize>, least_covered: f64) {
    for (tokens, covered) in check(class) {
        assert!(
            length.contains(&tokens),
            "{}: {tokens} tokens",
            class.name()
        );
        let share = covered as f64 / tokens as f64;
        assert!(share >= least_covered, "{}: {share}", class.name());
    }
}

#[test]
fn donors_have_the_length_and_the_groups_asked_for() {
    let at = fixture(5);
    let count = |group| {
        let donors = (0..DONORS).map(|index| at.set.donor(index));
        let members = donors.filter(|donor| donor.group == group);
        members
            .inspect(|donor| assert_eq!(donor.tokens.len(), TOKENS))
            .count()
    };
    assert_eq!(count(Group::Template), 20);
    assert_eq!(count(Group::Crowd), 20);
    assert_eq!(count(Group::Preamble), 40);
    assert_eq!(count(Group::Plain), 320);
}

#[test]
fn the_same_seed_gives_the_same_donors_and_another_does_not() {
    let tokens = |seed| fixture(seed).set.donor(200).tokens;
    assert_eq!(tokens(5), tokens(5));
    assert_ne!(tokens(5), tokens(6));
}

#[test]
fn classes_keep_of_their_donor_what_the_table_says() {
    check_covered(Class::Identical, TOKENS..=TOKENS, 1.0);
    check_covered(Class::Wrapper, TOKENS..=TOKENS, 0.94);
    check_covered(Class::Shift, TOKENS + 1..=TOKENS + 64, 0.94);
    check_covered(Class::Reorder, TOKENS..=TOKENS, 0.93);
    check_covered(Class::Partial, TOKENS..=TOKENS, 0.70);
    check_covered(Class::Edit, TOKENS - 40..=TOKENS + 40, 0.80);
    check_covered(Class::Contained, 512..=560, 0.89);
    check_covered(Class::MultiTurn, TOKENS + 266..=TOKENS + 266, 0.79);
    check_covered(Class::Separator, TOKENS..=TOKENS, 0.98);
    check_covered(Class::Template, TOKENS..=TOKENS, 0.94);
    check_covered(Class::Preamble, TOKENS..=TOKENS, 0.90);
    check_covered(Class::Crowd, TOKENS..=TOKENS, 0.94);
}

#[test]
fn classes_change_what_the_table_says() {
    let changed = |class| {
        check(class)
            .into_iter()
            .all(|(tokens, covered)| covered < tokens)
    };
    for class in Class::ALL {
        assert_eq!(
            changed(class),
            class != Class::Identical,
            "{}",
            class.name()
        );
    }
}

#[test]
fn negatives_share_nothing_with_any_donor() {
    let mut at = fixture(11);
    for _ in 0..4 {
        let target = Target::new(Class::Negative, 0, &at.set, &mut at.random);
        assert_eq!(target.tokens.len(), TOKENS);
        assert_eq!(target.source, None);
        let windows = TargetWindows::new(&target.tokens);
        let most = (0..DONORS)
            .map(|donor| windows.covered_by(&at.set.donor(donor).tokens))
            .max();
        assert_eq!(most, Some(0));
    }
}

#[test]
fn the_best_donor_is_the_best_of_all() {
    let mut at = fixture(11);
    let mut index = PieceIndex::new(&at.set);
    for class in Class::ALL {
        let source = at.set.members(class.group()).end - 1;
        let target = Target::new(class, source, &at.set, &mut at.random);
        let windows = TargetWindows::new(&target.tokens);
        let every = (0..DONORS)
            .map(|donor| windows.covered_by(&at.set.donor(donor).tokens))
            .max();
        let best = index.best_coverage(&target, &at.set);
        assert_eq!(Some(best), every, "{}", class.name());
    }
}

#[test]
fn derived_passages_share_nothing_with_their_originals() {
    let mut random = Random::new(1);
    let passages: Vec<Vec<u32>> = (0..100)
        .map(|_| (0..245).map(|_| random.below_u32(VOCABULARY)).collect())
        .collect();
    let library = Library::new(passages, 255, &mut random);
    assert_eq!(library.seen_count(), 255);
    let tokens = |piece| {
        let mut tokens = Vec::new();
        library.put(piece, &mut tokens);
        assert_eq!(tokens.len(), library.length(piece));
        tokens
    };
    // 85 passages are seen, so 85 is the first of them, changed, and 170 the same, changed again.
    let generations = [tokens(0), tokens(85), tokens(170)];
    let distinct = |tokens: &[u32]| {
        tokens
            .iter()
            .collect::<std::collections::HashSet<_>>()
            .len()
    };
    for (at, derived) in generations.iter().enumerate() {
        assert_eq!(distinct(&generations[0]), distinct(derived));
        for other in &generations[..at] {
            assert_eq!(TargetWindows::new(derived).covered_by(other), 0);
        }
    }
}

#[test]
fn a_donor_is_the_same_whenever_it_is_made_and_holds_the_passages_it_is_said_to() {
    let at = fixture(5);
    let library = &at.set.library;
    // 400 is past the last: made from passages that are kept nowhere.
    for index in [0, 20, 40, 80, 399, 400] {
        let donor = at.set.donor(index);
        assert_eq!(donor, at.set.donor(index));
        let held = TargetWindows::new(&donor.tokens);
        let pieces = at.set.pieces_of(index);
        assert_eq!(pieces.len(), passages_of(TOKENS));
        let together: Vec<u32> = pieces.iter().fold(Vec::new(), |mut all, &piece| {
            library.put(piece, &mut all);
            all
        });
        let covered = held.covered_by(&together);
        assert!(covered > TOKENS * 9 / 10, "donor {index}: {covered}");
    }
}

#[test]
fn a_popular_passage_is_in_a_large_share_of_the_donors() {
    let at = fixture(5);
    let mut holders = vec![0_usize; at.set.library.seen_count()];
    for pieces in at.set.pieces_of_each() {
        for &piece in pieces {
            holders[piece as usize] += 1;
        }
    }
    holders.sort_unstable();
    let (least, most) = (holders[0], holders[holders.len() - 1]);
    assert!(most > DONORS / 5, "{most}");
    assert!(least < DONORS / 20, "{least}");
}
