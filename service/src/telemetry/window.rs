//! The newest records, kept in memory for whoever asks.

use std::collections::VecDeque;

use super::record::{Line, Record};

/// Records kept; some 16 MB once it is full.
pub const WINDOW_RECORDS_MAX: usize = 65_536;
/// Of these, manifests: there can be a hundred for each look-up, and they must not push it out.
const MANIFESTS_MAX: usize = WINDOW_RECORDS_MAX / 4;

/// Two rings with one numbering.
#[derive(Debug, Default)]
pub struct Window {
    manifests: VecDeque<(u64, Line)>,
    others: VecDeque<(u64, Line)>,
    next: u64,
}

impl Window {
    pub fn push(&mut self, line: Line) {
        let (ring, most) = match line.record {
            Record::Manifest(_) => (&mut self.manifests, MANIFESTS_MAX),
            Record::Start(_) | Record::Lookup(_) | Record::Reuse(_) | Record::Sources(_) => {
                (&mut self.others, WINDOW_RECORDS_MAX - MANIFESTS_MAX)
            }
        };
        if ring.len() >= most {
            ring.pop_front();
        }
        ring.push_back((self.next, line));
        self.next += 1;
    }

    /// The number of the oldest of the newest `records_max` that began at `since_ms` or later.
    #[must_use]
    pub fn first_of(&self, since_ms: u64, records_max: usize) -> u64 {
        let newest_first = merged(
            self.manifests.iter().rev(),
            self.others.iter().rev(),
            |left, right| left > right,
        );
        let wanted = newest_first.filter(|(_, line)| line.at_ms >= since_ms);
        let last = wanted.take(records_max).last();
        last.map_or(self.next, |(number, _)| *number)
    }

    /// Up to `most` records from number `from` on, and the number to go on from; none at the end.
    #[must_use]
    pub fn page(&self, from: u64, since_ms: u64, most: usize) -> (Vec<Line>, Option<u64>) {
        let after = |ring: &VecDeque<(u64, Line)>| ring.partition_point(|(it, _)| *it < from);
        let oldest_first = merged(
            self.manifests.range(after(&self.manifests)..),
            self.others.range(after(&self.others)..),
            |left, right| left < right,
        );
        let mut lines = Vec::new();
        for (number, line) in oldest_first {
            if lines.len() == most {
                return (lines, Some(*number));
            }
            if line.at_ms >= since_ms {
                lines.push(line.clone());
            }
        }
        (lines, None)
    }

    /// Up to `most` of the records from number `from` on, and the number after the last of them.
    #[must_use]
    pub fn after(&self, from: u64, most: usize) -> (Vec<Line>, u64) {
        let (lines, more) = self.page(from, 0, most);
        (lines, more.unwrap_or(self.next))
    }
}

fn merged<'a>(
    left: impl Iterator<Item = &'a (u64, Line)>,
    right: impl Iterator<Item = &'a (u64, Line)>,
    is_first: impl Fn(u64, u64) -> bool,
) -> impl Iterator<Item = &'a (u64, Line)> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    std::iter::from_fn(move || match (left.peek(), right.peek()) {
        (Some((one, _)), Some((other, _))) if is_first(*one, *other) => left.next(),
        (Some(_), None) => left.next(),
        _ => right.next(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{
        record::{Decimal, Hex, Manifest, Sources, VERSION},
        words::ManifestOutcome,
    };

    fn manifest(at_ms: u64) -> Line {
        Line {
            v: VERSION,
            at_ms,
            record: Record::Manifest(Manifest {
                request: None,
                took_us: Decimal(0),
                outcome: ManifestOutcome::Miss,
                reason: None,
                prefix: Hex(0),
                algorithm: None,
                policy: None,
                provenance: None,
                k: 0,
                total_blocks: 0,
            }),
        }
    }

    fn other(at_ms: u64) -> Line {
        Line {
            v: VERSION,
            at_ms,
            record: Record::Sources(Sources {
                exact: 0,
                degraded: 0,
                stale: 0,
                sources: Vec::new(),
            }),
        }
    }

    // What a reader gets in pages of `page`.
    fn check(window: &Window, since_ms: u64, records_max: usize, page: usize) -> Vec<u64> {
        let mut next = Some(window.first_of(since_ms, records_max));
        let mut seen = Vec::new();
        while let Some(from) = next {
            let (lines, more) = window.page(from, since_ms, page);
            assert!(lines.len() <= page);
            seen.extend(lines.into_iter().map(|line| line.at_ms));
            next = more;
        }
        seen
    }

    #[test]
    fn the_newest_come_in_their_order_whatever_the_page() {
        let mut window = Window::default();
        assert_eq!(check(&window, 0, 10, 3), [0_u64; 0]);
        for at_ms in 0..10 {
            let is_manifest = at_ms % 3 == 0;
            window.push(if is_manifest {
                manifest(at_ms)
            } else {
                other(at_ms)
            });
        }
        for page in [1, 2, 3, 100] {
            assert_eq!(check(&window, 0, 100, page), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
            assert_eq!(check(&window, 0, 4, page), [6, 7, 8, 9]);
            assert_eq!(check(&window, 8, 4, page), [8, 9]);
            assert_eq!(check(&window, 11, 4, page), [0_u64; 0]);
        }
    }

    #[test]
    fn manifests_push_out_nothing_but_manifests() {
        let mut window = Window::default();
        window.push(other(0));
        for at_ms in 1..=MANIFESTS_MAX as u64 + 1 {
            window.push(manifest(at_ms));
        }
        let seen = check(&window, 0, usize::MAX, 1000);
        assert_eq!(seen.len(), MANIFESTS_MAX + 1);
        assert_eq!(seen[..2], [0, 2]);
        for at_ms in 0..WINDOW_RECORDS_MAX as u64 {
            window.push(other(at_ms));
        }
        assert_eq!(
            check(&window, 0, usize::MAX, 1000).len(),
            WINDOW_RECORDS_MAX
        );
    }
}
