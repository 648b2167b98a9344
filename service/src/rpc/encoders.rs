//! Encoders: model folders that are registered, listed and deleted.

use std::sync::Arc;

use kvatlas_proto::v1;
use tonic::{Request, Status};

use super::Core;

#[expect(clippy::unused_async, reason = "about to be written")]
pub async fn put(
    _core: &Arc<Core>,
    _request: Request<v1::PutEncoderRequest>,
) -> Result<v1::PutEncoderResponse, Status> {
    Err(Status::unimplemented("not yet"))
}

#[expect(clippy::unused_async, reason = "about to be written")]
pub async fn list(
    _core: &Arc<Core>,
    _request: Request<v1::ListEncodersRequest>,
) -> Result<v1::ListEncodersResponse, Status> {
    Err(Status::unimplemented("not yet"))
}

#[expect(clippy::unused_async, reason = "about to be written")]
pub async fn delete(
    _core: &Arc<Core>,
    _request: Request<v1::DeleteEncoderRequest>,
) -> Result<v1::DeleteEncoderResponse, Status> {
    Err(Status::unimplemented("not yet"))
}
