//! The right to use an answer: checked before use, renewed, released.

use std::time::Duration;

use bytes::Bytes;
use kvatlas_proto::v1;
use tokio::time::Instant;
use v1::LeaseState;

use crate::{
    client::{Client, within},
    error::ClientError,
};

const LEASE_ID_BYTES_MAX: usize = 128;

/// A lease as this side counts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub id: Bytes,
    pub ttl: Duration,
    /// Counted from when the request was sent, so that it never ends later than the server's.
    pub valid_until: Instant,
}

/// What came of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    Renewed(Lease),
    /// The lease is as it was: this state, never `Valid`.
    Refused(LeaseState),
}

impl Lease {
    pub(crate) fn from_wire(wire: v1::Lease, sent: Instant) -> Result<Self, &'static str> {
        let v1::Lease {
            id,
            ttl_ms,
            deadline_unix_ms: _,
        } = wire;
        if id.is_empty() || id.len() > LEASE_ID_BYTES_MAX {
            return Err("a lease id of 0 or more than 128 bytes");
        }
        if ttl_ms == 0 {
            return Err("a lease that has already ended");
        }
        let ttl = Duration::from_millis(ttl_ms.into());
        Ok(Self {
            id,
            ttl,
            valid_until: sent + ttl,
        })
    }
}

impl Client {
    /// What a lease is now. Anything but `Valid` means: do not materialize. A call that fails
    /// counts as `Stale`, so that a doubt is never a yes.
    pub async fn validate_lease(&self, lease_id: &Bytes, holder: &str) -> LeaseState {
        let checked = self.check_lease(lease_id, holder).await;
        checked.map_or(LeaseState::Stale, |answer| answer.state())
    }

    /// The same with what is left of it, for people; an error is an error.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn check_lease(
        &self,
        lease_id: &Bytes,
        holder: &str,
    ) -> Result<v1::ValidateResponse, ClientError> {
        let message = v1::ValidateRequest {
            lease_id: lease_id.clone(),
            holder: holder.to_owned(),
        };
        let mut leases = self.leases();
        within(self.deadlines.lookup, message, |request| async move {
            leases.validate(request).await
        })
        .await
    }

    /// Moves the deadline of a donor lease to `ttl` from now; `None`: the server's default.
    ///
    /// # Errors
    /// When the call fails. The lease may then have been renewed or not.
    pub async fn renew_lease(
        &self,
        lease_id: &Bytes,
        holder: &str,
        ttl: Option<Duration>,
    ) -> Result<Renewal, ClientError> {
        let message = v1::RenewRequest {
            lease_id: lease_id.clone(),
            holder: holder.to_owned(),
            ttl_ms: ttl.map_or(0, whole_millis),
        };
        let sent = Instant::now();
        let mut leases = self.leases();
        let answer = within(self.deadlines.control, message, |request| async move {
            leases.renew(request).await
        })
        .await?;
        match (answer.state(), answer.lease) {
            (LeaseState::Valid, Some(lease)) => Lease::from_wire(lease, sent)
                .map(Renewal::Renewed)
                .map_err(|what| ClientError::Malformed(what.to_owned())),
            (LeaseState::Valid, None) => {
                Err(ClientError::Malformed("a renewal without its lease".into()))
            }
            (state, _) => Ok(Renewal::Refused(state)),
        }
    }

    /// Ends a donor lease; a second release changes nothing.
    ///
    /// # Errors
    /// When the call fails. The lease ends by itself at its deadline.
    pub async fn release_lease(
        &self,
        lease_id: &Bytes,
        holder: &str,
    ) -> Result<v1::ReleaseResponse, ClientError> {
        let message = v1::ReleaseRequest {
            lease_id: lease_id.clone(),
            holder: holder.to_owned(),
        };
        let mut leases = self.leases();
        within(self.deadlines.control, message, |request| async move {
            leases.release(request).await
        })
        .await
    }
}

/// Never 0 for a time that is not 0, since 0 means the default.
pub(crate) fn whole_millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis())
        .unwrap_or(u32::MAX)
        .max(1)
}
