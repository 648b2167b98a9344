//! Queries that are kept under a query_hash for a while.

use std::sync::Arc;

use kvatlas_proto::v1;
use tonic::{Request, Status};

use super::Core;

#[expect(clippy::unused_async, reason = "about to be written")]
pub async fn put(
    _core: &Arc<Core>,
    _request: Request<v1::PutQueryRequest>,
) -> Result<v1::PutQueryResponse, Status> {
    Err(Status::unimplemented("not yet"))
}
