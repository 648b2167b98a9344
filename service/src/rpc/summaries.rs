//! Key summaries: put, shown, listed and deleted.
//!
//! A file can be larger than the memory. So one job on a worker thread has an upload for its whole
//! life: it writes the chunks to an unnamed file, maps it, and makes the summary. When the call
//! ends early, so does the job, and the file is gone with it.

use std::sync::Arc;

use bytes::Bytes;
use kvatlas_proto::v1::{self, put_key_summary_request::Part};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot, watch},
};
use tonic::{Request, Status, Streaming};

use super::{
    Core,
    clock::Deadline,
    convert::{
        self, check_length, invalid,
        summaries::{SummaryHeader, header, summary},
    },
    status,
    upload::CHUNK_BYTES_MAX,
};
use crate::{
    routing::{
        priors::PREFIX_HASH_BYTES_MAX,
        summary::{PutOutcome, PutSummaryError, Summaries, SummaryUpload},
    },
    store::Store,
    telemetry::http::{Stage, draining},
};

/// Chunks that wait for the disk.
const CHUNKS_MAX: usize = 4;

pub async fn put(
    core: &Arc<Core>,
    request: Request<Streaming<v1::PutKeySummaryRequest>>,
) -> Result<v1::PutKeySummaryResponse, Status> {
    let deadline = Deadline::of(request.metadata(), &core.clock, core.limits.upload_max);
    let mut parts = request.into_inner();
    let place = Arc::clone(&core.summary_uploads).try_acquire_owned();
    let place = place.map_err(|_| {
        Status::resource_exhausted("too many key summaries are being uploaded: try again later")
    })?;
    let first = deadline.bound(parts.message()).await??;
    let Some(Part::Header(first)) = first.and_then(|message| message.part) else {
        return Err(invalid("header", "must be the first message of the stream"));
    };
    let header = header(first, core.limits.summary_bytes_max)?;
    let size_bytes = header.size_bytes;

    let (chunks, received) = mpsc::channel(CHUNKS_MAX);
    let (reply, replied) = oneshot::channel();
    let job = Job {
        store: Arc::clone(&core.store),
        summaries: Arc::clone(&core.summaries),
        header,
        chunks: received,
        stage: core.stage.clone(),
        runtime: Handle::current(),
        now_unix_ms: core.clock.now_ms(),
    };
    let queued = core.summary_importers.submit(move || {
        let outcome = job.run(&|| !reply.is_closed());
        // Free before the caller knows: it may come again at once.
        drop(place);
        // A caller that has gone needs no answer.
        let _gone = reply.send(outcome);
    });
    queued.map_err(|_| Status::resource_exhausted("the import queue is full"))?;
    let sent = send(core, &mut parts, size_bytes, chunks);
    let sent = deadline.bound(sent).await?;
    // Also after a refusal, so that the caller may come again at once.
    let outcome = deadline.bound(replied).await?;
    sent?;
    let outcome = outcome.unwrap_or_else(|_ended| Err(stopping()));
    let PutOutcome { summary, replaced } = outcome?;
    Ok(v1::PutKeySummaryResponse {
        generation: summary.generation,
        total_blocks: summary.shape.blocks,
        replaced,
        summary: Some(convert::summaries::summary(&summary)),
    })
}

pub fn get(
    core: &Core,
    request: Request<v1::GetKeySummaryRequest>,
) -> Result<v1::KeySummary, Status> {
    core.deadline(request.metadata()).check()?;
    let v1::GetKeySummaryRequest { prefix_hash } = request.into_inner();
    check_length("prefix_hash", &prefix_hash, 1, PREFIX_HASH_BYTES_MAX)?;
    let found = core.summaries.find(&prefix_hash);
    found.map(|found| summary(&found)).ok_or_else(not_found)
}

pub fn list(
    core: &Core,
    request: Request<v1::ListKeySummariesRequest>,
) -> Result<v1::ListKeySummariesResponse, Status> {
    core.deadline(request.metadata()).check()?;
    let v1::ListKeySummariesRequest {
        page_size,
        page_token,
        prefix_hash_begins,
    } = request.into_inner();
    let size = convert::page_size(page_size)?;
    let max = PREFIX_HASH_BYTES_MAX;
    check_length("prefix_hash_begins", &prefix_hash_begins, 0, max)?;
    // The last prefix of the page before.
    check_length("page_token", &page_token, 0, max)?;
    let after = (!page_token.is_empty()).then_some(page_token.as_str());
    // One more than the page tells whether there is a next one.
    let mut found = core.summaries.list(&prefix_hash_begins, after, size + 1);
    let more = found.len() > size;
    found.truncate(size);
    let last = found.last().filter(|_| more);
    Ok(v1::ListKeySummariesResponse {
        next_page_token: last.map_or(String::new(), |last| last.prefix_hash.to_string()),
        summaries: found.iter().map(|found| summary(found)).collect(),
    })
}

pub async fn delete(
    core: &Arc<Core>,
    request: Request<v1::DeleteKeySummaryRequest>,
) -> Result<v1::DeleteKeySummaryResponse, Status> {
    let deadline = core.deadline(request.metadata());
    deadline.check()?;
    let v1::DeleteKeySummaryRequest { prefix_hash } = request.into_inner();
    check_length("prefix_hash", &prefix_hash, 1, PREFIX_HASH_BYTES_MAX)?;
    let summaries = Arc::clone(&core.summaries);
    let (reply, done) = oneshot::channel();
    // Not on the threads of the uploads, which can take minutes.
    let queued = core.importers.submit(move || {
        // A caller that has gone needs no answer.
        let _gone = reply.send(summaries.delete(&prefix_hash));
    });
    queued.map_err(|_| Status::resource_exhausted("the import queue is full"))?;
    let deleted = deadline
        .bound(done)
        .await?
        .map_err(|_| Status::unavailable("the server is stopping"))?
        .map_err(|error| status::failed("a key summary could not be deleted", &error))?;
    match deleted {
        true => Ok(v1::DeleteKeySummaryResponse {}),
        false => Err(not_found()),
    }
}

fn not_found() -> Status {
    Status::not_found("no key summary is stored for this prefix_hash")
}

/// What an upload's job is told.
enum Received {
    Chunk(Bytes),
    /// The whole file has come.
    End,
}

/// Hands the file to the job. A job that has failed takes no more: its reply says why.
async fn send(
    core: &Core,
    parts: &mut Streaming<v1::PutKeySummaryRequest>,
    size_bytes: u64,
    chunks: mpsc::Sender<Received>,
) -> Result<(), Status> {
    let bytes_max = core.limits.summary_bytes_max;
    let mut received = 0_u64;
    while let Some(message) = parts.message().await? {
        let chunk = match message.part {
            Some(Part::Chunk(chunk)) => chunk,
            Some(Part::Header(_)) => return Err(invalid("header", "was given twice")),
            None => return Err(invalid("chunk", "must be given after the header")),
        };
        let size = chunk.len();
        if size == 0 || size > CHUNK_BYTES_MAX {
            let problem = format!("{size} bytes, must be 1 to {CHUNK_BYTES_MAX}");
            return Err(invalid("chunk", problem));
        }
        received += size as u64;
        if received > bytes_max {
            let problem = format!("the file exceeds {bytes_max} bytes");
            return Err(invalid("chunk", problem));
        }
        if chunks.send(Received::Chunk(chunk)).await.is_err() {
            return Ok(());
        }
    }
    if size_bytes != 0 && size_bytes != received {
        let problem = format!("{size_bytes}, but {received} bytes came");
        return Err(invalid("size_bytes", problem));
    }
    if received == 0 {
        return Err(invalid("chunk", "no byte of the file came"));
    }
    let _failed = chunks.send(Received::End).await;
    Ok(())
}

/// One upload, on a thread that may block.
struct Job {
    store: Arc<Store>,
    summaries: Arc<Summaries>,
    header: SummaryHeader,
    chunks: mpsc::Receiver<Received>,
    stage: watch::Receiver<Stage>,
    runtime: Handle,
    now_unix_ms: u64,
}

impl Job {
    fn run(self, is_wanted: &dyn Fn() -> bool) -> Result<PutOutcome, Status> {
        let Self {
            store,
            summaries,
            header,
            mut chunks,
            stage,
            runtime,
            now_unix_ms,
        } = self;
        let failed = |error: PutSummaryError| status::put_summary(&error);
        let mut scratch = store.scratch().map_err(|error| failed(error.into()))?;
        loop {
            // A server that drains does not wait for a caller that pauses.
            let received = runtime.block_on(async {
                tokio::select! {
                    biased;
                    received = chunks.recv() => Ok(received),
                    () = draining(stage.clone()) => Err(stopping()),
                }
            });
            match received? {
                Some(Received::Chunk(chunk)) => {
                    let appended = scratch.append(&chunk);
                    appended.map_err(|error| failed(error.into()))?;
                }
                Some(Received::End) => break,
                None => return Err(failed(PutSummaryError::Unwanted)),
            }
        }
        let file = scratch.into_map().map_err(|error| failed(error.into()))?;
        let upload = SummaryUpload {
            prefix_hash: &header.prefix_hash,
            frame: header.frame,
            content: header.content,
            format: header.format,
            file: &file,
            now_unix_ms,
            is_wanted,
        };
        summaries.put(upload).map_err(failed)
    }
}

fn stopping() -> Status {
    Status::unavailable("the server is stopping: put the key summary elsewhere, or later")
}
