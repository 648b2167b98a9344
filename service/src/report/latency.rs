//! How long things took: quantiles from a histogram of bounded size.

use hdrhistogram::Histogram;

use super::tally::Merge;

/// Longer times count as this.
const US_MAX: u64 = 600_000_000;
/// Quantiles are right to a hundredth.
const DIGITS: u8 = 2;

#[derive(Debug, Clone)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        let bounded = Histogram::new_with_bounds(1, US_MAX, DIGITS);
        Self(bounded.expect("1 to 600,000,000 with two digits is a range that it takes"))
    }
}

/// Microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Quantiles {
    pub count: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

impl Times {
    pub fn add(&mut self, us: u64) {
        self.0.saturating_record(us);
    }

    /// None where nothing was timed.
    #[must_use]
    pub fn quantiles(&self) -> Option<Quantiles> {
        (!self.0.is_empty()).then(|| Quantiles {
            count: self.0.len(),
            p50: self.0.value_at_quantile(0.5),
            p90: self.0.value_at_quantile(0.9),
            p99: self.0.value_at_quantile(0.99),
            p999: self.0.value_at_quantile(0.999),
            max: self.0.max(),
        })
    }
}

impl Merge for Times {
    fn merge(&mut self, other: &Self) {
        // Both have the same bounds, so that everything of the other fits.
        let _fits = self.0.add(&other.0);
    }
}
