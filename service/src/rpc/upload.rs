//! A prior on its way in: a header, then the file in chunks, within limits of size and number.

use std::sync::Arc;

use bytes::Bytes;
use kvatlas_proto::v1::{self, put_prior_request::Part};
use tonic::{Status, Streaming};

use super::{
    Core,
    clock::Deadline,
    convert::{
        invalid,
        routing::{UploadHeader, upload_header},
    },
    status,
};
use crate::routing::priors::{PriorUpload, PutOutcome};

/// Largest chunk, in bytes.
pub(super) const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Receives a prior and hands it to the import thread.
pub async fn put_prior(
    core: &Arc<Core>,
    mut parts: Streaming<v1::PutPriorRequest>,
    deadline: Deadline,
) -> Result<PutOutcome, Status> {
    let _place = Arc::clone(&core.uploads).try_acquire_owned().map_err(|_| {
        Status::resource_exhausted("too many priors are being uploaded: try again later")
    })?;
    let (header, file) = deadline.bound(receive(core, &mut parts)).await??;
    let (reply, imported) = tokio::sync::oneshot::channel();
    let priors = Arc::clone(&core.priors);
    let now_unix_ms = core.clock.now_ms();
    let queued = core.importers.submit(move || {
        let upload = PriorUpload {
            prefix_hash: &header.prefix_hash,
            query_hash: &header.query_hash,
            algorithm: &header.algorithm,
            format: header.format,
            pooling: header.pooling,
            repair: header.repair,
            bytes: &file,
            now_unix_ms,
        };
        // A caller that has gone needs no answer; the prior is stored all the same.
        let _gone = reply.send(priors.put(&upload));
    });
    queued.map_err(|_| Status::resource_exhausted("the import queue is full"))?;
    let imported = deadline.bound(imported).await?;
    let outcome = imported
        .map_err(|_| Status::unavailable("the server is stopping"))?
        .map_err(|error| status::put_prior(&error))?;
    core.metrics.priors_put.inc();
    Ok(outcome)
}

async fn receive(
    core: &Core,
    parts: &mut Streaming<v1::PutPriorRequest>,
) -> Result<(UploadHeader, Vec<u8>), Status> {
    let bytes_max = core.limits.prior_bytes_max;
    let first = parts.message().await?.and_then(|message| message.part);
    let Some(Part::Header(header)) = first else {
        return Err(invalid("header", "must be the first message of the stream"));
    };
    let header = upload_header(header, bytes_max)?;
    let mut file = Vec::new();
    while let Some(message) = parts.message().await? {
        match message.part {
            Some(Part::Chunk(chunk)) => append(&mut file, &chunk, bytes_max)?,
            Some(Part::Header(_)) => return Err(invalid("header", "was given twice")),
            None => return Err(invalid("chunk", "must be given after the header")),
        }
    }
    let size = file.len() as u64;
    if header.size_bytes != 0 && header.size_bytes != size {
        let problem = format!("{}, but {size} bytes came", header.size_bytes);
        return Err(invalid("size_bytes", problem));
    }
    if file.is_empty() {
        return Err(invalid("chunk", "no byte of the file came"));
    }
    Ok((header, file))
}

fn append(file: &mut Vec<u8>, chunk: &Bytes, bytes_max: u64) -> Result<(), Status> {
    let size = chunk.len();
    if size == 0 || size > CHUNK_BYTES_MAX {
        return Err(invalid(
            "chunk",
            format!("{size} bytes, must be 1 to {CHUNK_BYTES_MAX}"),
        ));
    }
    if file.len() as u64 + size as u64 > bytes_max {
        return Err(invalid(
            "chunk",
            format!("the file exceeds {bytes_max} bytes"),
        ));
    }
    file.extend_from_slice(chunk);
    Ok(())
}
