//! Engines whose KV events the server follows, and which of them a prompt should go to.

use kvatlas_proto::v1;

use crate::{
    client::{Client, within},
    error::ClientError,
    namespace::{Namespace, NamespaceRef},
    tokens::Tokens,
};

/// What workers are asked by.
#[derive(Debug, Clone)]
pub struct FindWorkers {
    pub tokens: Tokens,
    /// None: the workers that were configured without one.
    pub namespace: Option<NamespaceRef>,
    /// Also choose one and charge it.
    pub pick: bool,
    /// For the pick: weighs on the worker until it is finished. Empty: the prompt's computing only.
    pub request_id: String,
    /// Images and the like, in the order of their starts.
    pub items: Vec<v1::MultimodalItem>,
}

impl FindWorkers {
    #[must_use]
    pub fn new(tokens: Tokens, namespace: Option<NamespaceRef>) -> Self {
        Self {
            tokens,
            namespace,
            pick: false,
            request_id: String::new(),
            items: Vec::new(),
        }
    }
}

impl Client {
    /// How much of a prompt each worker holds; under the deadline of look-ups.
    ///
    /// # Errors
    /// When the call fails. A router sends the prompt anywhere then.
    pub async fn find_workers(
        &self,
        query: &FindWorkers,
    ) -> Result<v1::FindWorkersResponse, ClientError> {
        let message = v1::FindWorkersRequest {
            tokens: Some(query.tokens.to_wire()),
            namespace: query.namespace.as_ref().map(NamespaceRef::to_wire),
            pick: query.pick,
            request_id: query.request_id.clone(),
            items: query.items.clone(),
        };
        let mut events = self.events();
        within(self.deadlines.lookup, message, |request| async move {
            events.find_workers(request).await
        })
        .await
    }

    /// Says that requests are done; returns how many of them were in flight.
    ///
    /// # Errors
    /// When the call fails; saying it again is safe.
    pub async fn finish_requests(&self, request_ids: Vec<String>) -> Result<u32, ClientError> {
        let message = v1::FinishRequestsRequest { request_ids };
        let mut events = self.events();
        within(self.deadlines.control, message, |request| async move {
            events.finish_requests(request).await
        })
        .await
        .map(|answer| answer.finished)
    }

    /// Has an engine's events followed; false when they are already.
    ///
    /// # Errors
    /// When the call fails, or another source brings the same worker and rank.
    pub async fn add_event_source(
        &self,
        source: &str,
        namespace: Option<&Namespace>,
    ) -> Result<bool, ClientError> {
        let message = v1::AddEventSourceRequest {
            source: source.to_owned(),
            namespace: namespace.map(|namespace| namespace.wire().clone()),
        };
        let mut admin = self.admin();
        within(self.deadlines.control, message, |request| async move {
            admin.add_event_source(request).await
        })
        .await
        .map(|answer| answer.added)
    }

    /// Ends that for all sources of a worker; its donors in device memory go too.
    ///
    /// # Errors
    /// When the call fails; removing again is safe.
    pub async fn remove_event_source(
        &self,
        worker_id: &str,
    ) -> Result<v1::RemoveEventSourceResponse, ClientError> {
        let worker_id = worker_id.to_owned();
        let message = v1::RemoveEventSourceRequest { worker_id };
        let mut admin = self.admin();
        within(self.deadlines.control, message, |request| async move {
            admin.remove_event_source(request).await
        })
        .await
    }

    /// How every source is doing.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn list_event_sources(&self) -> Result<Vec<v1::EventSourceStatus>, ClientError> {
        let message = v1::ListEventSourcesRequest {};
        let mut admin = self.admin();
        within(self.deadlines.control, message, |request| async move {
            admin.list_event_sources(request).await
        })
        .await
        .map(|answer| answer.sources)
    }
}
