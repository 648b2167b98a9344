//! KV events of engines behind a sidecar, over one stream.

use std::sync::Arc;

use kvatlas_proto::v1;
use tonic::{Status, Streaming};

use super::{Core, events::Answers};

pub(super) fn publish(
    _core: &Arc<Core>,
    _messages: Streaming<v1::PublishRequest>,
) -> Result<Answers<v1::PublishResponse>, Status> {
    Err(Status::unimplemented("Publish"))
}
