//! A server that follows engines, and one way to ask it.

use kvatlas_proto::v1::{self, admin_client::AdminClient, events_client::EventsClient};
use tonic::{Status, transport::Channel};

use crate::{
    common::{self, Clients, InProcess, until, within},
    engine::Engine,
};

pub(crate) struct Harness {
    pub(crate) events: EventsClient<Channel>,
    pub(crate) admin: AdminClient<Channel>,
    /// Ends when dropped; absent where the server is another process.
    _server: Option<InProcess>,
}

impl Harness {
    pub(crate) fn start() -> Harness {
        let server = common::start();
        let mut harness = Harness::on(&server.clients);
        harness._server = Some(server);
        harness
    }

    /// Asks a server that somebody else has started.
    pub(crate) fn on(clients: &Clients) -> Harness {
        Harness {
            events: EventsClient::new(clients.channel.clone()),
            admin: clients.admin.clone(),
            _server: None,
        }
    }

    /// Follows an engine in the namespace of the tests.
    pub(crate) async fn follow(&mut self, source: String) -> Result<bool, Status> {
        let request = v1::AddEventSourceRequest {
            source,
            namespace: Some(common::namespace()),
        };
        let added = within(self.admin.add_event_source(request)).await?;
        Ok(added.into_inner().added)
    }

    pub(crate) async fn unfollow(&mut self, worker: &str) -> v1::RemoveEventSourceResponse {
        let worker_id = worker.to_owned();
        let request = v1::RemoveEventSourceRequest { worker_id };
        let removed = within(self.admin.remove_event_source(request)).await;
        removed.unwrap().into_inner()
    }

    pub(crate) async fn sources(&mut self) -> Vec<v1::EventSourceStatus> {
        let listed = self
            .admin
            .list_event_sources(v1::ListEventSourcesRequest {});
        within(listed).await.unwrap().into_inner().sources
    }

    pub(crate) async fn source(&mut self, worker: &str) -> Option<v1::EventSourceStatus> {
        let mut sources = self.sources().await;
        sources.retain(|source| source.worker_id == worker);
        sources.pop()
    }

    /// Waits until all that was published is applied, or all that anything was heard of, over as
    /// many connections.
    pub(crate) async fn settle(&mut self, worker: &str, engine: &Engine, connections: u64) {
        let admin = self.admin.clone();
        let latest = engine.latest();
        let is_settled = || {
            let mut admin = admin.clone();
            async move {
                let listed = admin.list_event_sources(v1::ListEventSourcesRequest {});
                let sources = within(listed).await.unwrap().into_inner().sources;
                sources.iter().any(|source| {
                    source.worker_id == worker
                        && source.state() != v1::SourceState::Stale
                        && source.connections == connections
                        && source.last_sequence == latest
                })
            }
        };
        within(until(is_settled)).await;
    }

    pub(crate) async fn find(
        &mut self,
        request: v1::FindWorkersRequest,
    ) -> v1::FindWorkersResponse {
        let found = within(self.events.find_workers(request)).await;
        found.unwrap().into_inner()
    }
}

/// The address of an engine, with its replay socket or without.
pub(crate) fn address(engine: &Engine, worker: &str, has_replay: bool) -> String {
    let (events, replay) = engine.ports;
    let mut source = format!("tcp://127.0.0.1:{events},worker={worker}");
    if has_replay {
        source += &format!(",replay=tcp://127.0.0.1:{replay}");
    }
    source
}

/// A question for the workers of the tests' namespace.
pub(crate) fn question(tokens: impl IntoIterator<Item = u32>) -> v1::FindWorkersRequest {
    let packed: Vec<u8> = tokens.into_iter().flat_map(u32::to_le_bytes).collect();
    v1::FindWorkersRequest {
        tokens: Some(v1::Tokens {
            ids: Vec::new(),
            packed: packed.into(),
        }),
        namespace: common::selector(common::namespace()),
        ..v1::FindWorkersRequest::default()
    }
}
