//! The classes are what their table says, token by token.

use super::*;
use crate::{
    judge::{PieceIndex, TargetWindows},
    random::Random,
};

const DONORS: usize = 400;
const TOKENS: usize = 1024;

struct Fixture {
    library: Library,
    set: DonorSet,
    random: Random,
}

fn fixture(seed: u64) -> Fixture {
    let mut random = Random::new(seed);
    let passages = (0..120)
        .map(|_| (0..245).map(|_| random.below_u32(VOCABULARY)).collect())
        .collect();
    let library = Library::new(passages, 0, &mut random);
    let set = DonorSet::new(&library, DONORS, TOKENS, &mut random);
    Fixture {
        library,
        set,
        random,
    }
}

/// Makes targets of a class and gives (tokens, tokens that the source covers) of each.
fn check(class: Class) -> Vec<(usize, usize)> {
    let mut at = fixture(11);
    let sources: Vec<usize> = (0..DONORS)
        .filter(|&index| at.set.donors[index].group == class.group())
        .take(40)
        .collect();
    assert!(sources.len() > 10);
    sources
        .into_iter()
        .map(|source| {
            let target = Target::new(class, source, &at.set, &at.library, &mut at.random);
            let windows = TargetWindows::new(&target.tokens);
            (
                target.tokens.len(),
                windows.covered_by(&at.set.donors[source].tokens),
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
    assert_eq!(at.set.donors.len(), DONORS);
    assert!(
        at.set
            .donors
            .iter()
            .all(|donor| donor.tokens.len() == TOKENS)
    );
    let count = |group| {
        at.set
            .donors
            .iter()
            .filter(|donor| donor.group == group)
            .count()
    };
    assert_eq!(count(Group::Template), 20);
    assert_eq!(count(Group::Crowd), 20);
    assert_eq!(count(Group::Preamble), 40);
    assert_eq!(count(Group::Plain), 320);
}

#[test]
fn the_same_seed_gives_the_same_donors_and_another_does_not() {
    let tokens = |seed| fixture(seed).set.donors[200].tokens.clone();
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
    for _ in 0..20 {
        let target = Target::new(Class::Negative, 0, &at.set, &at.library, &mut at.random);
        assert_eq!(target.tokens.len(), TOKENS);
        assert_eq!(target.source, None);
        let windows = TargetWindows::new(&target.tokens);
        let most = at
            .set
            .donors
            .iter()
            .map(|donor| windows.covered_by(&donor.tokens))
            .max();
        assert_eq!(most, Some(0));
    }
}

#[test]
fn the_best_donor_is_the_best_of_all() {
    let mut at = fixture(11);
    let index = PieceIndex::new(&at.set, &at.library);
    for class in Class::ALL {
        let Some(source) = (0..DONORS).rfind(|&i| at.set.donors[i].group == class.group()) else {
            continue;
        };
        let target = Target::new(class, source, &at.set, &at.library, &mut at.random);
        let windows = TargetWindows::new(&target.tokens);
        let every = at
            .set
            .donors
            .iter()
            .map(|donor| windows.covered_by(&donor.tokens))
            .max();
        let best = index.best_coverage(&target, &at.set, &at.library);
        assert_eq!(Some(best), every, "{}", class.name());
    }
}

#[test]
fn derived_passages_share_nothing_with_their_originals() {
    let mut random = Random::new(1);
    let passages: Vec<Vec<u32>> = (0..100)
        .map(|_| (0..245).map(|_| random.below_u32(VOCABULARY)).collect())
        .collect();
    let library = Library::new(passages, 200, &mut random);
    assert_eq!(library.seen_count(), 200);
    let original = library.tokens(0);
    let derived = library.tokens(85);
    assert_eq!(TargetWindows::new(derived).covered_by(original), 0);
    let distinct = |tokens: &[u32]| {
        tokens
            .iter()
            .collect::<std::collections::HashSet<_>>()
            .len()
    };
    assert_eq!(distinct(original), distinct(derived));
}
