//! `donors`: latency and memory of FindDonor as the donors grow, and how often it is right.

pub mod ask;
pub mod contention;
pub mod mixed;
pub mod register;
pub mod report;
pub mod seen;
pub mod size;
pub mod tables;

use std::io::{self, Write};

use crate::{args::DonorsArgs, error::LoadtestError};
pub use report::DonorsReport;

/// Measures one number of donors after another; says on standard error when one is done.
///
/// # Errors
/// When the server cannot be started or reached, or refuses a donor or a look-up.
pub async fn measure(args: &DonorsArgs) -> Result<DonorsReport, LoadtestError> {
    let mut growth = Vec::new();
    for donors in sizes(args.donors_from, args.donors) {
        let size = Box::pin(size::measure(args, donors)).await?;
        writeln!(io::stderr(), "{}", tables::line(&size))?;
        growth.push(size);
    }
    Ok(DonorsReport::new(args, growth))
}

/// The powers of ten from `from` on that are below `last`, then that.
fn sizes(from: usize, last: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (0..)
        .map(|power| 10_usize.saturating_pow(power))
        .take_while(|&size| size < last)
        .filter(|&size| size >= from)
        .collect();
    sizes.push(last);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_by_powers_of_ten_to_the_last() {
        assert_eq!(sizes(1000, 120), [120]);
        assert_eq!(sizes(1000, 2000), [1000, 2000]);
        assert_eq!(sizes(1000, 100_000), [1000, 10_000, 100_000]);
        assert_eq!(sizes(100_000, 1_000_000), [100_000, 1_000_000]);
        assert_eq!(sizes(50_000, 10_000), [10_000]);
    }
}
