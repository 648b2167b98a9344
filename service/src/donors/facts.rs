//! Do two texts that are otherwise alike differ in a number, a name, a negation or an identifier?
//!
//! The words of both are aligned by runs that they share. What lies between two neighbouring runs
//! is a change, and counts when the facts in it are not the same on both sides. So other
//! instructions, reordered passages and added ones do not count, and neither do punctuation, case,
//! spelling of numbers, contractions and ordinary words.

mod words;

use std::collections::HashMap;

use words::{Fact, Word, are_opposite, words};

/// Words of a run that makes two places the same place.
const ANCHOR_WORDS: usize = 4;
/// Words of a change, on either side, at most: what is longer is another text.
const CHANGE_WORDS_MAX: usize = 12;
/// Words that stand on one side alone, at most: more are an addition.
const ADDED_WORDS_MAX: usize = 4;
/// Places of one anchor that are tried.
const PLACES_MAX: usize = 8;

/// Whether the texts are near duplicates somewhere, and state different facts there.
///
/// The same whichever comes first; false for equal texts. Takes time in proportion to their
/// lengths.
#[must_use]
pub fn facts_differ(donor_text: &str, target_text: &str) -> bool {
    if donor_text == target_text {
        return false;
    }
    // One order for both, so that the answer does not depend on who asks.
    let (left, right) = if donor_text <= target_text {
        (words(donor_text), words(target_text))
    } else {
        (words(target_text), words(donor_text))
    };
    let names = Names::of(&left, &right);
    let runs = runs(&left, &right);
    runs.windows(2).any(|pair| {
        let [before, after] = pair else { return false };
        if after.left < before.left_end() {
            return false;
        }
        let left = &left[before.left_end()..after.left];
        let right = &right[before.right_end()..after.right];
        is_change(left, right) && differ(left, right, &names)
    })
}

/// Words that both texts have in a row.
#[derive(Debug, Clone, Copy)]
struct Run {
    left: usize,
    right: usize,
    length: usize,
}

impl Run {
    fn left_end(&self) -> usize {
        self.left + self.length
    }

    fn right_end(&self) -> usize {
        self.right + self.length
    }
}

/// Shared runs in the order of the right text, each extended as far as it goes. Of several places
/// the one that follows the last run closely is taken, else the one with the longest run.
fn runs(left: &[Word<'_>], right: &[Word<'_>]) -> Vec<Run> {
    let mut places: HashMap<[u64; ANCHOR_WORDS], Vec<usize>> = HashMap::new();
    for (place, anchor) in left.windows(ANCHOR_WORDS).enumerate() {
        let known = places.entry(key(anchor)).or_default();
        known.push(place);
    }
    let mut runs: Vec<Run> = Vec::new();
    let mut at = 0;
    while let Some(anchor) = right.get(at..at + ANCHOR_WORDS) {
        let found = places.get(&key(anchor)).and_then(|places| {
            let end = runs.last().map_or(0, Run::left_end);
            choose(places, end, |place| common(&left[place..], &right[at..]))
        });
        match found {
            Some((place, length)) => {
                runs.push(Run {
                    left: place,
                    right: at,
                    length,
                });
                at += length;
            }
            None => at += 1,
        }
    }
    runs
}

fn choose(
    places: &[usize],
    end: usize,
    length_at: impl Fn(usize) -> usize,
) -> Option<(usize, usize)> {
    let next = places.partition_point(|&place| place < end);
    if let Some(&place) = places.get(next)
        && place - end <= CHANGE_WORDS_MAX
    {
        return Some((place, length_at(place)));
    }
    let tried = places.iter().take(PLACES_MAX);
    tried
        .map(|&place| (place, length_at(place)))
        .max_by_key(|&(place, length)| (length, std::cmp::Reverse(place)))
}

fn key(anchor: &[Word<'_>]) -> [u64; ANCHOR_WORDS] {
    let mut key = [0; ANCHOR_WORDS];
    for (part, word) in key.iter_mut().zip(anchor) {
        *part = word.hash;
    }
    key
}

fn common(left: &[Word<'_>], right: &[Word<'_>]) -> usize {
    left.iter()
        .zip(right)
        .take_while(|(left, right)| left.hash == right.hash)
        .count()
}

fn is_change(left: &[Word<'_>], right: &[Word<'_>]) -> bool {
    let (shorter, longer) = (left.len().min(right.len()), left.len().max(right.len()));
    longer <= CHANGE_WORDS_MAX && (shorter > 0 || longer <= ADDED_WORDS_MAX)
}

fn differ(left: &[Word<'_>], right: &[Word<'_>], names: &Names) -> bool {
    facts_of(left, names) != facts_of(right, names)
        || left
            .iter()
            .any(|left| right.iter().any(|right| are_opposite(left, right)))
}

/// The facts of a change, in an order of their own: 0 stands for any negation.
fn facts_of(change: &[Word<'_>], names: &Names) -> Vec<u64> {
    let mut facts: Vec<u64> = change
        .iter()
        .filter_map(|word| match word.fact {
            Fact::Negation => Some(0),
            Fact::Number | Fact::Identifier => Some(word.hash),
            Fact::Capitalized { .. } => names.has(word).then_some(word.hash),
            Fact::None => None,
        })
        .collect();
    facts.sort_unstable();
    facts
}

/// Which capitalised words are names: those that are capitalised where no sentence begins.
#[derive(Debug, Default)]
struct Names(HashMap<u64, bool>);

impl Names {
    fn of(left: &[Word<'_>], right: &[Word<'_>]) -> Names {
        let mut names = HashMap::new();
        for word in left.iter().chain(right) {
            if let Fact::Capitalized { begins_sentence } = word.fact {
                *names.entry(word.hash).or_insert(false) |= !begins_sentence;
            }
        }
        Names(names)
    }

    fn has(&self, word: &Word<'_>) -> bool {
        self.0.get(&word.hash).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests;
