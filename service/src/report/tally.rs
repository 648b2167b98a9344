//! Counts that add up: whatever is counted in two halves is the same counted at once.

use std::collections::HashMap;

use crate::telemetry::record::Share;

/// What two halves of the lines are put together by.
pub trait Merge {
    fn merge(&mut self, other: &Self);
}

/// How values between 0 and 1 spread, in twenty equal steps; the last includes 1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shares(pub [u64; SHARE_STEPS]);

pub const SHARE_STEPS: usize = 20;

impl Shares {
    pub fn add(&mut self, share: Share) {
        let place = share.0 * SHARE_STEPS as u64 / Share::of(1.0).0;
        let place = usize::try_from(place).unwrap_or(SHARE_STEPS);
        if let Some(count) = self.0.get_mut(place.min(SHARE_STEPS - 1)) {
            *count += 1;
        }
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Merge for Shares {
    fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

/// What was counted by digest, in bounded memory: beyond `ROWS_MAX` digests new ones share a row.
#[derive(Debug, Clone, Default)]
pub struct ByDigest<T> {
    rows: HashMap<u64, T>,
    /// Of digests that found no room.
    pub beyond: T,
}

/// A million digests take some 50 MB.
pub const ROWS_MAX: usize = 1 << 20;

impl<T: Default + Merge> ByDigest<T> {
    pub fn row(&mut self, digest: u64) -> &mut T {
        if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&digest) {
            return &mut self.beyond;
        }
        self.rows.entry(digest).or_default()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The first `most` rows by `weight`, heaviest first; equal ones by digest.
    pub fn top(&self, most: usize, weight: impl Fn(&T) -> u64) -> Vec<(u64, &T)> {
        let mut rows: Vec<_> = self.rows.iter().map(|(key, row)| (*key, row)).collect();
        let order = |(key, row): &(u64, &T)| (std::cmp::Reverse(weight(row)), *key);
        if (1..rows.len()).contains(&most) {
            rows.select_nth_unstable_by_key(most - 1, order);
        }
        rows.truncate(most);
        rows.sort_unstable_by_key(order);
        rows
    }
}

impl<T: Default + Merge> Merge for ByDigest<T> {
    fn merge(&mut self, other: &Self) {
        for (digest, row) in &other.rows {
            self.row(*digest).merge(row);
        }
        self.beyond.merge(&other.beyond);
    }
}

/// How often each value of a closed set came, in the order in which they first did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts<T>(Vec<(T, u64)>);

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy + PartialEq> Counts<T> {
    pub fn add(&mut self, value: T, count: u64) {
        match self.0.iter_mut().find(|(mine, _)| *mine == value) {
            Some((_, mine)) => *mine += count,
            None => self.0.push((value, count)),
        }
    }

    #[must_use]
    pub fn get(&self, value: T) -> u64 {
        let found = self.0.iter().find(|(mine, _)| *mine == value);
        found.map_or(0, |(_, count)| *count)
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// The most frequent first; equal ones by name.
    pub fn sorted(&self, name: impl Fn(T) -> &'static str) -> Vec<(T, u64)> {
        let mut sorted = self.0.clone();
        sorted.sort_by_key(|(value, count)| (std::cmp::Reverse(*count), name(*value)));
        sorted
    }
}

impl<T: Copy + PartialEq> Merge for Counts<T> {
    fn merge(&mut self, other: &Self) {
        for (value, count) in &other.0 {
            self.add(*value, *count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_hold_their_lower_end_and_the_last_its_upper_one_too() {
        for (share, place) in [
            (0.0, 0),
            (0.0499, 0),
            (0.05, 1),
            (0.6, 12),
            (0.95, 19),
            (1.0, 19),
        ] {
            let mut shares = Shares::default();
            shares.add(Share::of(share));
            assert_eq!(
                shares.0.iter().position(|count| *count == 1),
                Some(place),
                "{share}"
            );
        }
    }

    #[derive(Default, PartialEq, Debug)]
    struct Count(u64);

    impl Merge for Count {
        fn merge(&mut self, other: &Self) {
            self.0 += other.0;
        }
    }

    #[test]
    fn the_heaviest_come_first_and_equal_ones_by_digest() {
        let mut rows = ByDigest::<Count>::default();
        for digest in [7, 3, 9, 3, 5, 5] {
            rows.row(digest).0 += 1;
        }
        let top =
            |most| -> Vec<u64> { rows.top(most, |row| row.0).iter().map(|it| it.0).collect() };
        assert_eq!(top(3), [3, 5, 7]);
        assert_eq!(top(99), [3, 5, 7, 9]);
        assert_eq!(top(0), [0_u64; 0]);
    }

    #[test]
    fn digests_beyond_the_bound_share_a_row() {
        let mut rows = ByDigest::<Count>::default();
        for digest in 0..ROWS_MAX as u64 + 10 {
            rows.row(digest).0 += 1;
        }
        rows.row(0).0 += 1;
        assert_eq!((rows.len(), rows.beyond.0), (ROWS_MAX, 10));
        assert_eq!(rows.row(0).0, 2);
    }
}
