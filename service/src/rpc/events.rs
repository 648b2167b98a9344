//! The Events service: announced on the wire, not yet served.

use std::sync::Arc;

use kvatlas_proto::v1::{self, events_server::Events};
use tokio_stream::Empty;
use tonic::{Request, Response, Status, Streaming};

use super::{Core, donor_events};

/// Answers most calls UNIMPLEMENTED, with the reason.
#[derive(Debug, Clone)]
pub struct EventsService(pub Arc<Core>);

#[tonic::async_trait]
impl Events for EventsService {
    type PublishStream = Empty<Result<v1::PublishResponse, Status>>;

    async fn publish(
        &self,
        _request: Request<Streaming<v1::PublishRequest>>,
    ) -> Result<Response<Self::PublishStream>, Status> {
        Err(Status::unimplemented(
            "Publish: this version does not read engine KV events yet",
        ))
    }

    async fn find_workers(
        &self,
        _request: Request<v1::FindWorkersRequest>,
    ) -> Result<Response<v1::FindWorkersResponse>, Status> {
        Err(Status::unimplemented(
            "FindWorkers: this version does not read engine KV events yet, so it has no view of \
             the workers",
        ))
    }

    type PublishDonorEventsStream = donor_events::Answers;

    async fn publish_donor_events(
        &self,
        request: Request<Streaming<v1::PublishDonorEventsRequest>>,
    ) -> Result<Response<Self::PublishDonorEventsStream>, Status> {
        let answers = donor_events::publish(&self.0, request.into_inner());
        Ok(Response::new(answers))
    }

    async fn finish_requests(
        &self,
        _request: Request<v1::FinishRequestsRequest>,
    ) -> Result<Response<v1::FinishRequestsResponse>, Status> {
        Err(Status::unimplemented("FinishRequests"))
    }
}
