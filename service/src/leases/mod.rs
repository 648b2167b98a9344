//! Leases: the right to use an answer until a deadline.
//!
//! Time comes in as milliseconds of one clock that the caller chooses and keeps to; a deadline
//! has passed when the clock shows it. Leases do not survive a restart: an id binds the epoch
//! (the store's restart counter), and one of another epoch is stale.

mod claim;
mod device;
mod donor;
mod manifest;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use self::claim::{Claim, OwnerLife};
pub use self::device::{Device, LIVE_TOKENS_MAX, Residency, Sighting, Watch};
pub use self::donor::{
    AcquireError, DonorLeases, Grant, LeaseCounts, LeaseId, LeaseTerms, LeaseTotals, Realm,
};
pub use self::manifest::{ManifestLeases, ManifestToken};

/// Longest life of a lease; a longer one is cut to it.
pub const TTL_MS_MAX: u32 = 600_000;
/// What the edge lets a holder's name be.
pub const HOLDER_BYTES_MAX: usize = 256;

/// What a lease is now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LeaseState {
    Valid {
        remaining_ms: u32,
    },
    /// Its deadline has passed.
    Expired,
    /// What it was given for has changed: a restart, another generation, a donor or a prior that
    /// was replaced or removed, an owner that fell silent, a block that left its device.
    Stale,
    /// Never given, released, or so old that it is forgotten.
    Unknown,
    NotHolder,
}

/// Which of the two tables to ask, by the first byte of an id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LeaseKind {
    Donor = 1,
    Manifest = 2,
}

impl LeaseKind {
    /// None where the id is empty or of neither kind.
    #[must_use]
    pub fn of(id: &[u8]) -> Option<Self> {
        match id.first()? {
            1 => Some(Self::Donor),
            2 => Some(Self::Manifest),
            _ => None,
        }
    }
}

const KIND_BYTES: usize = 1;
const EPOCH_BYTES: usize = 8;

/// What follows kind and epoch in an id of this kind, length and epoch; else what the id is.
fn rest_of_id<const REST: usize>(
    id: &[u8],
    kind: LeaseKind,
    epoch: u64,
) -> Result<[u8; REST], LeaseState> {
    let Some((head, rest)) = id.split_first_chunk::<{ KIND_BYTES + EPOCH_BYTES }>() else {
        return Err(LeaseState::Unknown);
    };
    let [kind_byte, epoch_bytes @ ..] = *head;
    let Ok(rest) = <[u8; REST]>::try_from(rest) else {
        return Err(LeaseState::Unknown);
    };
    if kind_byte != kind as u8 {
        return Err(LeaseState::Unknown);
    }
    if u64::from_le_bytes(epoch_bytes) != epoch {
        return Err(LeaseState::Stale);
    }
    Ok(rest)
}

/// Time left, none where the deadline has passed.
fn remaining_ms(now_ms: u64, deadline_ms: u64) -> Option<u32> {
    let remaining_ms = deadline_ms
        .checked_sub(now_ms)
        .filter(|&remaining_ms| remaining_ms > 0)?;
    Some(u32::try_from(remaining_ms).unwrap_or(u32::MAX))
}

fn deadline_ms(now_ms: u64, ttl_ms: u32) -> u64 {
    now_ms.saturating_add(u64::from(ttl_ms.min(TTL_MS_MAX)))
}
