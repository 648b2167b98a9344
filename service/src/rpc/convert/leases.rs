//! Lease messages from and to the wire.

use kvatlas_proto::v1;
use tonic::Status;

use super::{check_length, invalid};
use crate::leases::{Grant, HOLDER_BYTES_MAX, LeaseState};

/// Longest lease id, in bytes.
pub const LEASE_ID_BYTES_MAX: usize = 128;
pub fn check_lease_id(id: &[u8]) -> Result<(), Status> {
    match id.len() {
        0 => Err(invalid("lease_id", "must not be empty")),
        1..=LEASE_ID_BYTES_MAX => Ok(()),
        size => Err(invalid(
            "lease_id",
            format!("{size} bytes, at most {LEASE_ID_BYTES_MAX}"),
        )),
    }
}

/// A holder that must be named.
pub fn check_holder(holder: &str) -> Result<(), Status> {
    check_length("holder", holder, 1, HOLDER_BYTES_MAX)
}

#[must_use]
pub fn grant(grant: &Grant, now_ms: u64) -> v1::Lease {
    v1::Lease {
        id: grant.id.as_ref().to_vec().into(),
        ttl_ms: u32::try_from(grant.deadline_ms.saturating_sub(now_ms)).unwrap_or(u32::MAX),
        deadline_unix_ms: grant.deadline_ms,
    }
}

/// The state on the wire, and what is left of a valid lease.
#[must_use]
pub fn state(state: LeaseState) -> (v1::LeaseState, u32) {
    match state {
        LeaseState::Valid { remaining_ms } => (v1::LeaseState::Valid, remaining_ms),
        LeaseState::Expired => (v1::LeaseState::Expired, 0),
        LeaseState::Stale => (v1::LeaseState::Stale, 0),
        LeaseState::Unknown => (v1::LeaseState::Unknown, 0),
        LeaseState::NotHolder => (v1::LeaseState::NotHolder, 0),
    }
}
