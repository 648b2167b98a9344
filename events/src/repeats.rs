//! Finds out whether a hash stands in a list twice.

use crate::event::EngineHash;

/// Below this each is compared with each.
const PAIRS_MAX: usize = 12;
/// Looks into the table beyond one a hash after which sorting is the better way: a list that an
/// engine made has few, one that was made to collide has very many.
const LOOKS_SPARE_MAX: usize = 1 << 10;

/// A table of hashes, kept from one list to the next. Zero is an empty place, and so is counted
/// apart.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    table: Vec<u64>,
}

impl Repeats {
    pub(crate) fn any(&mut self, hashes: &[EngineHash]) -> bool {
        if hashes.len() <= PAIRS_MAX {
            let mut tails = (1..).map_while(|next| hashes.get(next..));
            return hashes
                .iter()
                .any(|hash| tails.next().is_some_and(|tail| tail.contains(hash)));
        }
        self.look_up(hashes).unwrap_or_else(|| sorted_any(hashes))
    }

    /// `None` where it would take too long.
    fn look_up(&mut self, hashes: &[EngineHash]) -> Option<bool> {
        let places = (2 * hashes.len()).next_power_of_two();
        self.table.clear();
        self.table.resize(places, 0);
        let mut spare = hashes.len() + LOOKS_SPARE_MAX;
        let mut zeros = 0;
        for &EngineHash(hash) in hashes {
            if hash == 0 {
                zeros += 1;
                continue;
            }
            let mut place = spread(hash) & (places - 1);
            while let Some(taken) = self.table.get_mut(place) {
                if *taken == hash {
                    return Some(true);
                }
                if *taken == 0 {
                    *taken = hash;
                    break;
                }
                spare = spare.checked_sub(1)?;
                place = (place + 1) & (places - 1);
            }
        }
        Some(zeros > 1)
    }
}

/// The upper half of a product is what all bits of the hash have a part in.
fn spread(hash: u64) -> usize {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    usize::try_from(hash.wrapping_mul(GOLDEN) >> 32).unwrap_or(0)
}

fn sorted_any(hashes: &[EngineHash]) -> bool {
    let mut sorted = hashes.to_vec();
    sorted.sort_unstable();
    sorted
        .windows(2)
        .any(|pair| matches!(pair, [one, other] if one == other))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_table_is_right(
            distinct in prop::collection::btree_set(any::<u64>(), 0..300),
            repeated in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut hashes: Vec<_> = distinct.into_iter().map(EngineHash).collect();
            if let Some(repeated) = repeated.filter(|_| !hashes.is_empty()) {
                hashes.insert(repeated.index(hashes.len()), hashes[repeated.index(hashes.len())]);
            }
            // Used twice: what one list left behind is not in the next.
            let mut repeats = Repeats::default();
            for _ in 0..2 {
                prop_assert_eq!(repeats.any(&hashes), sorted_any(&hashes));
            }
        }
    }

    #[test]
    fn zero_is_a_hash_like_others() {
        let mut hashes: Vec<_> = (0..100).map(EngineHash).collect();
        assert!(!Repeats::default().any(&hashes));
        hashes.push(EngineHash(0));
        assert!(Repeats::default().any(&hashes));
    }

    #[test]
    fn hashes_made_to_collide_are_sorted_instead() {
        // All multiples of 2^32 fall on few places.
        let mut hashes: Vec<_> = (1..200_000).map(|high| EngineHash(high << 40)).collect();
        let mut repeats = Repeats::default();
        assert_eq!(repeats.look_up(&hashes), None);
        assert!(!repeats.any(&hashes));
        hashes.push(hashes[7]);
        assert!(repeats.any(&hashes));
    }
}
