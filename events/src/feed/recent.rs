//! The digests of the batches applied last: whether one that comes again is the same.

use std::collections::VecDeque;

/// Batches whose digests are kept: more than engines keep for a replay.
const RECENT_MAX: usize = 16_384;
/// How many are enough where no replay runs.
const QUIET_MAX: usize = 64;

/// Digests of an unbroken run of batches.
#[derive(Debug, Default)]
pub(super) struct Recent {
    digests: VecDeque<u64>,
    last: u64,
}

impl Recent {
    pub(super) fn clear(&mut self) {
        self.digests = VecDeque::new();
    }

    /// The next batch of the run, or the first of another one.
    pub(super) fn push(&mut self, sequence: u64, digest: u64) {
        if self.last.checked_add(1) != Some(sequence) {
            self.digests.clear();
        }
        if self.digests.len() == RECENT_MAX {
            self.digests.pop_front();
        }
        self.digests.push_back(digest);
        self.last = sequence;
    }

    /// Of a batch that is applied and was not forgotten.
    pub(super) fn digest(&self, sequence: u64) -> Option<u64> {
        let back = usize::try_from(self.last.checked_sub(sequence)?).ok()?;
        let at = self.digests.len().checked_sub(back + 1)?;
        self.digests.get(at).copied()
    }

    /// What a replay brought has been joined by what comes live: little can come again.
    pub(super) fn forget(&mut self) {
        if self.digests.len() > 2 * QUIET_MAX {
            self.digests.drain(..self.digests.len() - QUIET_MAX);
            self.digests.shrink_to(4 * QUIET_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(recent: &Recent, known: std::ops::RangeInclusive<u64>) {
        let (first, last) = (*known.start(), *known.end());
        assert_eq!(recent.digest(last + 1), None);
        assert_eq!(recent.digest(first.wrapping_sub(1)), None);
        for sequence in known {
            assert_eq!(recent.digest(sequence), Some(sequence * 10));
        }
    }

    #[test]
    fn the_last_of_an_unbroken_run_are_known() {
        let mut recent = Recent::default();
        assert_eq!(recent.digest(0), None);
        let most = RECENT_MAX as u64;
        for sequence in 5..most + 8 {
            recent.push(sequence, sequence * 10);
        }
        check(&recent, 8..=most + 7);
        recent.forget();
        check(&recent, most + 8 - QUIET_MAX as u64..=most + 7);
        for sequence in 3..6 {
            recent.push(sequence, sequence * 10);
        }
        check(&recent, 3..=5);
        recent.clear();
        assert_eq!(recent.digest(5), None);
    }
}
