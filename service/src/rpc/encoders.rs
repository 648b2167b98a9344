//! Encoders: model folders that are registered, listed and deleted.

use std::sync::Arc;

use kvatlas_proto::v1;
use tonic::{Request, Status};

use super::{Core, clock::Deadline, convert, status};
use crate::routing::encoder::registry::{Encoders, NAME_BYTES_MAX};

pub async fn put(
    core: &Arc<Core>,
    request: Request<v1::PutEncoderRequest>,
) -> Result<v1::PutEncoderResponse, Status> {
    let deadline = core.deadline(request.metadata());
    let v1::PutEncoderRequest { name, model_dir } = request.into_inner();
    let put = move |encoders: &Encoders| encoders.put(&name, &model_dir);
    let outcome = aside(core, deadline, put).await?;
    let outcome = outcome.map_err(|error| status::put_encoder(&error))?;
    Ok(v1::PutEncoderResponse {
        encoder: Some(convert::encoders::encoder(&outcome.encoder)),
        replaced: outcome.replaced,
    })
}

#[expect(clippy::unused_async, reason = "as its siblings")]
pub async fn list(
    core: &Arc<Core>,
    request: Request<v1::ListEncodersRequest>,
) -> Result<v1::ListEncodersResponse, Status> {
    let v1::ListEncodersRequest {} = request.into_inner();
    let encoders = core.encoders.list();
    let encoders = encoders.iter().map(Arc::as_ref);
    Ok(v1::ListEncodersResponse {
        encoders: encoders.map(convert::encoders::encoder).collect::<Vec<_>>(),
    })
}

pub async fn delete(
    core: &Arc<Core>,
    request: Request<v1::DeleteEncoderRequest>,
) -> Result<v1::DeleteEncoderResponse, Status> {
    let deadline = core.deadline(request.metadata());
    let v1::DeleteEncoderRequest { name } = request.into_inner();
    convert::check_length("name", &name, 1, NAME_BYTES_MAX)?;
    let deleted = aside(core, deadline, move |encoders| encoders.delete(&name)).await?;
    let deleted =
        deleted.map_err(|error| status::failed("an encoder could not be deleted", &error))?;
    if !deleted {
        return Err(Status::not_found("no encoder has this name"));
    }
    Ok(v1::DeleteEncoderResponse {})
}

/// Runs what blocks on the disk on the import thread. It finishes there even when the deadline
/// passes.
async fn aside<T: Send + 'static>(
    core: &Core,
    deadline: Deadline,
    work: impl FnOnce(&Encoders) -> T + Send + 'static,
) -> Result<T, Status> {
    deadline.check()?;
    let encoders = Arc::clone(&core.encoders);
    let (reply, done) = tokio::sync::oneshot::channel();
    let queued = core.importers.submit(move || {
        // A caller that has gone needs no answer.
        let _gone = reply.send(work(&encoders));
    });
    queued.map_err(|_| Status::resource_exhausted("the import queue is full"))?;
    let done = deadline.bound(done).await?;
    done.map_err(|_| Status::unavailable("the server is stopping"))
}
