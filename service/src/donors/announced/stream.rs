//! The order of one emitter's events: which are applied, and what a missing one takes away.

/// How far one emitter's events have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    last_event_id: u64,
    generation: u64,
}

/// What an event is to what came before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The next, or the first that is heard of the emitter.
    Next,
    /// Events before it are missing. What was announced before may have been evicted by one of
    /// them: all of it goes, and then the event is applied.
    AfterGap,
    /// A generation begins: all that was announced before goes, and numbers may start anywhere.
    Began,
    /// Seen before, or older: nothing happens.
    Duplicate,
    /// Of a generation that has ended: nothing happens.
    OldGeneration,
}

impl Stream {
    /// Heard of first with an event that has this number.
    #[must_use]
    pub fn new(event_id: u64, generation: Option<u64>) -> Stream {
        Stream {
            last_event_id: event_id,
            generation: generation.unwrap_or(0),
        }
    }

    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Takes the next event that arrives.
    ///
    /// An emitter that starts again counts from its first number, and some do so in the same
    /// generation. So a reset with an older number begins a generation too, where any other event
    /// with one is taken for a duplicate: at worst hints are lost. Sent twice in a row it is one.
    pub fn step(&mut self, event_id: u64, generation: Option<u64>, is_reset: bool) -> Step {
        let generation = generation.unwrap_or(self.generation);
        if generation < self.generation {
            return Step::OldGeneration;
        }
        let last = self.last_event_id;
        let begins = generation > self.generation || (is_reset && event_id < last);
        if !begins && event_id <= last {
            return Step::Duplicate;
        }
        *self = Stream {
            last_event_id: event_id,
            generation,
        };
        if begins {
            Step::Began
        } else if event_id == last + 1 {
            Step::Next
        } else {
            Step::AfterGap
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each event: number, generation, whether it is a reset, and what it is.
    fn check(events: &[(u64, Option<u64>, bool, Step)]) {
        let (first, _, _, _) = events[0];
        let mut stream = Stream::new(first, events[0].1);
        for (at, &(event_id, generation, is_reset, expected)) in events.iter().enumerate().skip(1) {
            let step = stream.step(event_id, generation, is_reset);
            assert_eq!(step, expected, "event {at} of {events:?}");
        }
    }

    const FIRST: Step = Step::Next;

    #[test]
    fn numbers_rise_by_one() {
        use Step::{AfterGap, Duplicate, Next};
        check(&[
            (7, Some(1), false, FIRST),
            (8, Some(1), false, Next),
            (8, Some(1), false, Duplicate),
            (3, Some(1), false, Duplicate),
            (9, None, false, Next),
            (11, Some(1), false, AfterGap),
            (10, Some(1), false, Duplicate),
            (12, Some(1), false, Next),
            (u64::MAX, Some(1), false, AfterGap),
            (u64::MAX, Some(1), false, Duplicate),
        ]);
    }

    #[test]
    fn a_generation_begins_with_any_event_of_it_and_any_number() {
        use Step::{AfterGap, Began, Duplicate, Next, OldGeneration};
        check(&[
            (7, Some(1), false, FIRST),
            (0, Some(2), true, Began),
            (8, Some(1), false, OldGeneration),
            (1, Some(2), false, Next),
            (0, Some(1), true, OldGeneration),
            (5, Some(4), false, Began),
            (5, Some(4), true, Duplicate),
            (6, Some(4), true, Next),
            (9, Some(4), true, AfterGap),
            (10, Some(9), true, Began),
            (11, None, false, Next),
        ]);
    }

    #[test]
    fn an_emitter_that_counts_anew_in_its_generation_says_so_by_a_reset() {
        use Step::{Began, Duplicate, Next};
        check(&[
            (0, Some(0), true, FIRST),
            (0, Some(0), true, Duplicate),
            (1, Some(0), false, Next),
            (2, Some(0), false, Next),
            (0, Some(0), true, Began),
            (1, Some(0), false, Next),
            (0, Some(0), false, Duplicate),
        ]);
    }
}
