//! Reads donors' texts back from the log: they are kept nowhere else.

use super::{catalog::Donor, record::LoggedDonor};
use crate::store::log::{LogReader, Place};

/// Moves of a donor's record that one read follows.
const TRIES_MAX: usize = 4;

/// The texts of all donors, on the disk.
#[derive(Debug, Clone)]
pub struct DonorTexts {
    log: LogReader,
}

impl DonorTexts {
    pub(super) fn new(log: LogReader) -> DonorTexts {
        DonorTexts { log }
    }

    /// The text of a donor; none where it has none or where it cannot be read. Reads the disk.
    #[must_use]
    pub fn of(&self, donor: &Donor) -> Option<String> {
        if !donor.has_text {
            return None;
        }
        let mut place = donor.place.get();
        for _ in 0..TRIES_MAX {
            if let Some(text) = self.read(place) {
                return Some(text);
            }
            // The log may have moved it meanwhile.
            let now = donor.place.get();
            if now == place {
                return None;
            }
            place = now;
        }
        None
    }

    /// The text of the record at a place; none once it has gone from there. Reads the disk.
    #[must_use]
    pub fn read(&self, place: Place) -> Option<String> {
        let record = self
            .log
            .read(place)
            .inspect_err(|error| tracing::warn!(%error, "a donor's text could not be read"))
            .ok()??;
        let text = LoggedDonor::decode(&record.payload)?.text;
        (!text.is_empty()).then(|| text.to_owned())
    }
}
