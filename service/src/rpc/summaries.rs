//! Key summaries: put, shown, listed and deleted.

use std::sync::Arc;

use kvatlas_proto::v1;
use tonic::{Request, Status, Streaming};

use super::Core;

#[expect(clippy::unused_async, reason = "about to be written")]
pub async fn put(
    _core: &Arc<Core>,
    _request: Request<Streaming<v1::PutKeySummaryRequest>>,
) -> Result<v1::PutKeySummaryResponse, Status> {
    Err(Status::unimplemented("not yet"))
}

#[expect(clippy::unused_async, reason = "about to be written")]
pub async fn get(
    _core: &Arc<Core>,
    _request: Request<v1::GetKeySummaryRequest>,
) -> Result<v1::KeySummary, Status> {
    Err(Status::unimplemented("not yet"))
}

#[expect(clippy::unused_async, reason = "about to be written")]
pub async fn list(
    _core: &Arc<Core>,
    _request: Request<v1::ListKeySummariesRequest>,
) -> Result<v1::ListKeySummariesResponse, Status> {
    Err(Status::unimplemented("not yet"))
}

#[expect(clippy::unused_async, reason = "about to be written")]
pub async fn delete(
    _core: &Arc<Core>,
    _request: Request<v1::DeleteKeySummaryRequest>,
) -> Result<v1::DeleteKeySummaryResponse, Status> {
    Err(Status::unimplemented("not yet"))
}
