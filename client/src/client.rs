//! One handle to the server, and the deadline that every call runs under.

use std::time::Duration;

use kvatlas_proto::v1::{
    admin_client::AdminClient, donors_client::DonorsClient, events_client::EventsClient,
    leases_client::LeasesClient, routing_client::RoutingClient,
};
use tokio::time::{Instant, timeout};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;

use crate::{
    channel::{Endpoint, Transport},
    error::ClientError,
};

/// An answer may be as long as a page of the largest records.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A handle to one server. Cloning is cheap, and clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    channel: Transport,
    pub(crate) deadlines: Deadlines,
}

/// How long calls may take. Each is sent to the server and enforced on this side too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Look-ups: donors, manifests, and checking a lease.
    pub lookup: Duration,
    /// Everything else but uploads.
    pub control: Duration,
    /// The upload of a file.
    pub upload: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            lookup: Duration::from_millis(5),
            control: Duration::from_secs(5),
            upload: Duration::from_secs(120),
        }
    }
}

impl Client {
    /// A handle that connects when it is first used and reconnects by itself. Must be called
    /// within a tokio runtime; nothing can fail here.
    ///
    /// The first look-up pays for the connection. Call [`Client::status`] once to pay before.
    pub fn connect(endpoint: &Endpoint) -> Self {
        Self {
            channel: endpoint.channel(),
            deadlines: Deadlines::default(),
        }
    }

    /// The same connection under other deadlines.
    #[must_use]
    pub fn with_deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// The same connection with another deadline for look-ups.
    #[must_use]
    pub fn with_lookup_deadline(mut self, deadline: Duration) -> Self {
        self.deadlines.lookup = deadline;
        self
    }

    pub(crate) fn routing(&self) -> RoutingClient<Transport> {
        RoutingClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(crate) fn donors(&self) -> DonorsClient<Transport> {
        DonorsClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(crate) fn leases(&self) -> LeasesClient<Transport> {
        LeasesClient::new(self.channel.clone())
    }

    pub(crate) fn events(&self) -> EventsClient<Transport> {
        EventsClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(crate) fn admin(&self) -> AdminClient<Transport> {
        AdminClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(crate) fn health(&self) -> HealthClient<Transport> {
        HealthClient::new(self.channel.clone())
    }
}

/// Makes one call: the server learns the deadline, and the caller is freed at it either way.
pub(crate) async fn within<M, T, F>(
    budget: Duration,
    message: M,
    call: impl FnOnce(Request<M>) -> F,
) -> Result<T, ClientError>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let mut request = Request::new(message);
    request.set_timeout(budget);
    let started = Instant::now();
    match timeout(budget, call(request)).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(ClientError::from_status(&status, started.elapsed(), budget)),
        Err(_) => Err(ClientError::Timeout { budget }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_never_gets_a_connection_ends_at_its_deadline() {
        let budget = Duration::from_millis(10);
        let nothing = |_| std::future::pending::<Result<Response<()>, Status>>();
        let answer = within(budget, (), nothing).await;
        assert!(
            matches!(answer, Err(ClientError::Timeout { .. })),
            "{answer:?}"
        );
    }
}
