//! The Events service: announced on the wire, not yet served.

use kvatlas_proto::v1::{self, events_server::Events};
use tokio_stream::Empty;
use tonic::{Request, Response, Status, Streaming};

/// Answers every call UNIMPLEMENTED, with the reason.
#[derive(Debug, Clone, Copy)]
pub struct EventsService;

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

    type PublishDonorEventsStream = Empty<Result<v1::PublishDonorEventsResponse, Status>>;

    async fn publish_donor_events(
        &self,
        _request: Request<Streaming<v1::PublishDonorEventsRequest>>,
    ) -> Result<Response<Self::PublishDonorEventsStream>, Status> {
        Err(Status::unimplemented("PublishDonorEvents"))
    }

    async fn finish_requests(
        &self,
        _request: Request<v1::FinishRequestsRequest>,
    ) -> Result<Response<v1::FinishRequestsResponse>, Status> {
        Err(Status::unimplemented("FinishRequests"))
    }
}
