//! A token bucket in one number: when the next call would be due if all were evenly spaced.
//!
//! This is the generic cell rate algorithm (ITU-T I.371), which admits exactly what a bucket admits
//! that holds `burst` calls and is filled at the rate.

const NANOS: u64 = 1_000_000_000;

/// Highest rate, in calls a second.
pub const CALLS_PER_SECOND_MAX: u32 = 1_000_000;
/// Largest burst, in calls.
pub const BURST_MAX: u32 = 10_000_000;

/// How many calls a token may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// 1 to [`CALLS_PER_SECOND_MAX`].
    pub calls_per_second_max: u32,
    /// Calls that may come at once after a pause, 1 to [`BURST_MAX`].
    pub burst: u32,
}

impl Rate {
    fn interval_ns(self) -> u64 {
        NANOS / u64::from(self.calls_per_second_max.max(1))
    }

    /// Takes one call. `due_ns` is what the call before returned, 0 at first.
    ///
    /// # Errors
    /// How long to wait until there is room, in nanoseconds; nothing was taken.
    pub fn take(self, due_ns: u64, now_ns: u64) -> Result<u64, u64> {
        let interval_ns = self.interval_ns();
        let room_ns = interval_ns.saturating_mul(u64::from(self.burst.max(1)));
        let next_ns = due_ns.max(now_ns).saturating_add(interval_ns);
        match next_ns.saturating_sub(now_ns).checked_sub(room_ns) {
            None | Some(0) => Ok(next_ns),
            Some(wait_ns) => Err(wait_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// A bucket of nanoseconds of credit, as the text books have it.
    struct Bucket {
        rate: Rate,
        credit_ns: u64,
        at_ns: u64,
    }

    impl Bucket {
        fn take(&mut self, now_ns: u64) -> bool {
            let full_ns = self.rate.interval_ns() * u64::from(self.rate.burst);
            self.credit_ns = (self.credit_ns + (now_ns - self.at_ns)).min(full_ns);
            self.at_ns = now_ns;
            let is_enough = self.credit_ns >= self.rate.interval_ns();
            if is_enough {
                self.credit_ns -= self.rate.interval_ns();
            }
            is_enough
        }
    }

    proptest! {
        #[test]
        fn it_admits_what_a_bucket_admits(
            calls_per_second_max in 1_u32..=2000,
            burst in 1_u32..=50,
            pauses_us in vec(0_u64..=3000, 1..200),
        ) {
            let rate = Rate { calls_per_second_max, burst };
            let full_ns = rate.interval_ns() * u64::from(burst);
            let mut bucket = Bucket { rate, credit_ns: full_ns, at_ns: 0 };
            let (mut due_ns, mut now_ns) = (0, 0);
            for pause_us in pauses_us {
                now_ns += pause_us * 1000;
                let taken = rate.take(due_ns, now_ns);
                prop_assert_eq!(taken.is_ok(), bucket.take(now_ns));
                match taken {
                    Ok(next_ns) => due_ns = next_ns,
                    Err(wait_ns) => {
                        prop_assert!(rate.take(due_ns, now_ns + wait_ns - 1).is_err());
                        prop_assert!(rate.take(due_ns, now_ns + wait_ns).is_ok());
                    }
                }
            }
        }
    }

    #[test]
    fn the_burst_comes_at_once_and_then_the_rate() {
        let rate = Rate {
            calls_per_second_max: 10,
            burst: 3,
        };
        let mut due_ns = 0;
        for _ in 0..3 {
            due_ns = rate.take(due_ns, 5).unwrap();
        }
        assert_eq!(rate.take(due_ns, 5), Err(NANOS / 10));
        let later_ns = 5 + NANOS / 10;
        due_ns = rate.take(due_ns, later_ns).unwrap();
        assert!(rate.take(due_ns, later_ns).is_err());
        // However long the pause, no more than the burst.
        let much_later_ns = later_ns + 3600 * NANOS;
        for _ in 0..3 {
            due_ns = rate.take(due_ns, much_later_ns).unwrap();
        }
        assert!(rate.take(due_ns, much_later_ns).is_err());
    }
}
