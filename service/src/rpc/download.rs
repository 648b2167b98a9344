//! A stored prior on its way out: what is known of it, then its file in chunks.

use std::{iter, pin::Pin, sync::Arc};

use bytes::Bytes;
use kvatlas_proto::v1::{self, read_prior_response::Part};
use tokio_stream::Stream;
use tonic::{Request, Status};

use super::{Core, clock::Deadline, convert, routing::key, status};
use crate::routing::stored;

/// Largest chunk, in bytes.
const CHUNK_BYTES_MAX: usize = 256 << 10;

pub(super) type Parts = Pin<Box<dyn Stream<Item = Result<v1::ReadPriorResponse, Status>> + Send>>;

/// Makes the file on the import thread, and sends it as fast as the caller takes it.
pub(super) async fn read_prior(
    core: &Arc<Core>,
    request: Request<v1::ReadPriorRequest>,
) -> Result<Parts, Status> {
    let deadline = Deadline::of(request.metadata(), &core.clock, core.limits.upload_max);
    deadline.check()?;
    let key = key(request.into_inner().key)?;
    let place = Arc::clone(&core.uploads).try_acquire_owned().map_err(|_| {
        Status::resource_exhausted("too many priors are being sent: try again later")
    })?;
    let found = core
        .priors
        .get(&key.prefix_hash, &key.query_hash, &key.algorithm);
    let prior = found.ok_or_else(|| Status::not_found("no prior is stored under this key"))?;
    let known = Part::Prior(convert::routing::prior(&prior));
    let (reply, made) = tokio::sync::oneshot::channel();
    let store = Arc::clone(&core.store);
    let queued = core.importers.submit(move || {
        // A caller that has gone needs no answer.
        let _gone = reply.send(stored::file(&prior, &store));
    });
    queued.map_err(|_| Status::resource_exhausted("the import queue is full"))?;
    let made = deadline.bound(made).await?;
    let file = made
        .map_err(|_| Status::unavailable("the server is stopping"))?
        .map_err(|error| status::per_head(&error))?;
    let parts = iter::once(known).chain(chunks(file.into()).map(Part::Chunk));
    Ok(Box::pin(tokio_stream::iter(parts.map(move |part| {
        // As long as the file is held.
        let _held = &place;
        Ok(v1::ReadPriorResponse { part: Some(part) })
    }))))
}

fn chunks(file: Bytes) -> impl Iterator<Item = Bytes> {
    let starts = (0..file.len()).step_by(CHUNK_BYTES_MAX);
    starts.map(move |start| file.slice(start..file.len().min(start + CHUNK_BYTES_MAX)))
}
