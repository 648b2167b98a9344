//! Passes that take turns, and whether the screened one always agrees.

use std::hint::black_box;

use kvatlas_kernels::screen::{OwnedScreen, Screened};
use tokio::time::Instant;

use super::pass::Pass;

const WARM_UP_ROUNDS: usize = 3;

/// Milliseconds of each round.
#[derive(Debug, Default)]
pub struct Rounds {
    pub full: Vec<f64>,
    pub plain_read: Vec<f64>,
    /// Empty where there is no screen.
    pub screened: Vec<f64>,
}

impl Rounds {
    /// Measures; each pass is first, second and last equally often.
    #[must_use]
    pub fn run(pass: &Pass<'_>, screen: Option<&OwnedScreen>, rounds: usize) -> Self {
        let mut all = Self::default();
        for round in 0..WARM_UP_ROUNDS + rounds {
            let mut times = [None; 3];
            for turn in 0..3 {
                let which = (round + turn) % 3;
                times[which] = match (which, screen) {
                    (0, _) => Some(milliseconds(|| black_box(pass.full()))),
                    (1, _) => Some(milliseconds(|| black_box(pass.plain_read()))),
                    (_, Some(screen)) => Some(milliseconds(|| black_box(pass.screened(screen)))),
                    (_, None) => None,
                };
            }
            if round >= WARM_UP_ROUNDS {
                let into = [&mut all.full, &mut all.plain_read, &mut all.screened];
                for (times, time) in into.into_iter().zip(times) {
                    times.extend(time);
                }
            }
        }
        all
    }
}

fn milliseconds<T>(pass: impl FnOnce() -> T) -> f64 {
    let begun = Instant::now();
    pass();
    begun.elapsed().as_secs_f64() * 1e3
}

/// How often the screened choice was compared with the full pass's, and how often it was the same.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub compared: usize,
    pub identical: usize,
    /// Blocks that the screen left, over all.
    pub survivors: usize,
}

impl Identity {
    pub fn compare(&mut self, best: &[u32], screened: Option<Screened>) {
        if let Some(screened) = screened {
            self.compared += 1;
            self.identical += usize::from(screened.best == best);
            self.survivors += screened.survivors;
        }
    }
}
