//! KV events of engines behind a sidecar, over one stream.
//!
//! The stream is read on the thread that follows engines: applying a batch is work for a processor,
//! and look-ups must not wait for it.

use std::{sync::Arc, time::Duration};

use kvatlas_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Status, Streaming};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Core,
    convert::{
        donors::owner_key,
        events::{self as wire},
        invalid,
    },
    events::{Answers, whole},
    incoming::Incoming,
};
use crate::{
    access::Pass,
    donors::owners::OwnerKey,
    events::pushed::{Introduction, Message, PushRefusal, PushStream, Standing},
};

/// Answers that wait for the caller to read them; then no more is read from it.
const ANSWERS_MAX: usize = 256;

/// Takes the stream; its answers end when it does.
pub(super) fn publish(
    core: &Arc<Core>,
    pass: Pass,
    messages: Streaming<v1::PublishRequest>,
) -> Result<Answers<v1::PublishResponse>, Status> {
    let (sender, answers) = mpsc::channel(ANSWERS_MAX);
    let messages = core.paced(messages, &pass);
    let reading = read((Arc::clone(core), pass), messages, sender);
    core.feeds
        .run(reading)
        .map_err(|_stopping| Status::unavailable("the server is stopping"))?;
    Ok(Box::pin(ReceiverStream::new(answers)))
}

type Sender = mpsc::Sender<Result<v1::PublishResponse, Status>>;

async fn read(
    (core, pass): (Arc<Core>, Pass),
    mut messages: Incoming<v1::PublishRequest>,
    answers: Sender,
) {
    let mut stream = core.feeds.pushed.open();
    loop {
        let now_ms = core.clock.now_ms();
        let due = stream.deadline_ms();
        let pause = due.map(|due| Duration::from_millis(due.saturating_sub(now_ms)));
        let given = tokio::select! {
            message = messages.next() => match message {
                None => return,
                Some(Err(status)) => vec![Err(status)],
                Some(Ok(request)) => vec![take((&core, &pass), &mut stream, request)],
            },
            () = after(pause) => {
                let wanted = stream.tick(core.clock.now_ms());
                wanted.iter().map(|(owner, standing)| Ok(answer(owner, standing))).collect()
            }
            () = answers.closed() => return,
        };
        for answer in given {
            let is_last = answer.is_err();
            if answers.send(answer).await.is_err() || is_last {
                return;
            }
        }
    }
}

async fn after(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

fn take(
    (core, pass): (&Core, &Pass),
    stream: &mut PushStream,
    request: v1::PublishRequest,
) -> Result<v1::PublishResponse, Status> {
    let v1::PublishRequest {
        owner,
        sequence,
        payload,
        namespace,
        replayed,
        replay_ended,
        can_replay,
    } = request;
    let key = owner_key(owner)?;
    core.speaks_for(pass, &key)?;
    if sequence == u64::MAX {
        return Err(invalid("sequence", "must be below 2^64 - 1"));
    }
    if replay_ended && !payload.is_empty() {
        return Err(invalid("payload", "must be empty with replay_ended"));
    }
    let now_ms = core.clock.now_ms();
    let mut wanted = None;
    if !stream.knows(&key) {
        if core.feeds.follows(&key.worker_id) {
            return Ok(refused(&key, PushRefusal::Followed));
        }
        let name = wire::selected(namespace)?;
        let name = name.map(|name| core.writable(pass, name)).transpose()?;
        let whole = whole(&core.catalog, name.as_ref())?;
        let introduction = Introduction {
            namespace: core.catalog.residents.engine_namespace(whole.as_ref()),
            block_size: whole.map(|whole| whole.block_size),
            has_replay: can_replay,
        };
        wanted = match stream.introduce(&key, introduction, now_ms) {
            Ok(wanted) => wanted,
            Err(refusal) => return Ok(refused(&key, refusal)),
        };
    }
    let message = match (replay_ended, payload.is_empty()) {
        (true, _) => Message::ReplayEnded,
        (false, true) => Message::Question,
        (false, false) => Message::Batch {
            sequence,
            digest: xxh3_64(&payload),
            payload,
            is_replayed: replayed,
        },
    };
    Ok(match stream.take(&key, message, now_ms) {
        Ok(mut standing) => {
            standing.replay_from = standing.replay_from.or(wanted);
            answer(&key, &standing)
        }
        Err(refusal) => refused(&key, refusal),
    })
}

fn answer(owner: &OwnerKey, standing: &Standing) -> v1::PublishResponse {
    let progress = standing.progress;
    v1::PublishResponse {
        owner: Some(wire::owner_to_wire(owner)),
        applied_sequence: progress.applied.map(|(_, last)| last),
        replay_from: standing.replay_from,
        source_state: wire::state_to_wire(progress.state).into(),
        source_epoch: progress.epoch,
        refusal: v1::PublishRefusal::Unspecified.into(),
    }
}

// An answer about this owner alone: whatever else the stream brings goes on.
fn refused(owner: &OwnerKey, refusal: PushRefusal) -> v1::PublishResponse {
    v1::PublishResponse {
        owner: Some(wire::owner_to_wire(owner)),
        source_state: v1::SourceState::Stale.into(),
        refusal: wire::refusal_to_wire(refusal).into(),
        ..v1::PublishResponse::default()
    }
}
