//! A server that follows engines: how fast what they send is visible, and how long it takes to ask.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use kvatlas_proto::v1::{
    AddEventSourceRequest, EventSourceStatus, FindWorkersRequest, ListEventSourcesRequest,
    SourceState, Tokens, WorkerMatch, admin_client::AdminClient,
};
use prost::Message;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;

use super::{
    engine::{PROMPT_BATCHES, Part, Schedule},
    ours::{BLOCK_TOKENS, tokens},
    subject::{
        CHUNK_BLOCKS,
        world::{PROMPT_BLOCKS, Prompt, World},
    },
};
use crate::{
    args::EventsArgs, child::ServerProcess, error::LoadtestError, measure::median, wire::Method,
};

const FIND_PATH: &str = "/kvatlas.v1.Events/FindWorkers";
/// How often the server is asked whether it is there: each time costs it some 50 us.
const ASK_EVERY: Duration = Duration::from_millis(4);
/// Prompts that are asked for, of 32 KiB each.
const QUESTIONS_MAX: usize = 2000;
const PATIENCE: Duration = Duration::from_secs(60);

/// The part of an answer that is checked.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Found {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(super) workers: Vec<Bytes>,
}

/// Engines in one process, and what they send.
#[derive(Debug)]
pub(super) struct Engines {
    process: ServerProcess,
    names: Vec<String>,
    schedule: Schedule,
    sent: usize,
}

impl Engines {
    /// Starts them, and waits until the server follows every one.
    pub(super) async fn start(
        channel: &Channel,
        name: &str,
        schedule: Schedule,
        held: Option<usize>,
    ) -> Result<Self, LoadtestError> {
        let World { workers, prompts } = schedule.world;
        let arguments = [
            ("--engines", workers),
            ("--batches", prompts * PROMPT_BATCHES),
            ("--round", schedule.round),
            ("--held", held.unwrap_or(0)),
        ];
        let arguments = arguments.map(|(flag, value)| [flag.to_owned(), value.to_string()]);
        let arguments = arguments.into_iter().flatten().map(Into::into);
        let process = ServerProcess::start(
            "engines",
            std::iter::once("engine-child".into()).chain(arguments),
        )?;
        let names: Vec<String> = (0..workers).map(|at| format!("{name}-{at}")).collect();
        let mut admin = AdminClient::new(channel.clone());
        for (address, name) in process.addresses.iter().zip(&names) {
            let request = AddEventSourceRequest {
                source: format!("tcp://{address},worker={name}"),
                namespace: None,
            };
            let added = admin.add_event_source(request).await;
            added.map_err(|status| LoadtestError::call("AddEventSource", status))?;
        }
        let engines = Self {
            process,
            names,
            schedule,
            sent: 0,
        };
        let is_followed = |source: &EventSourceStatus| source.state() != SourceState::Stale;
        engines.wait(channel, is_followed).await?;
        Ok(engines)
    }

    /// Lets them send the next batches, and waits until the last of each engine is applied; says
    /// how many that is a second.
    pub(super) async fn send(
        &mut self,
        channel: &Channel,
        batches: usize,
    ) -> Result<f64, LoadtestError> {
        let began = Instant::now();
        self.process.order(batches)?;
        self.sent += batches;
        let mut last = BTreeMap::new();
        for part in self.schedule.parts().take(self.sent) {
            let engine = self.schedule.world.worker(part.prompt);
            let next = last
                .get(self.names[engine].as_str())
                .map_or(0, |last| last + 1);
            last.insert(self.names[engine].as_str(), next);
        }
        self.wait(channel, |source| {
            source.last_sequence == last.get(source.worker_id.as_str()).copied()
        })
        .await?;
        Ok(batches as f64 / began.elapsed().as_secs_f64())
    }

    /// The last whole prompt that was sent, and the number of the engine that holds it.
    pub(super) fn last_prompt(&self) -> Option<(Prompt, usize)> {
        let last = |part: &Part| part.number + 1 == PROMPT_BATCHES;
        let prompt = self.schedule.parts().take(self.sent).filter(last).last()?;
        Some((prompt.prompt, self.schedule.world.worker(prompt.prompt)))
    }

    /// One question for every prompt that they were given.
    pub(super) fn questions(&self) -> Vec<Bytes> {
        let last = self.schedule.parts().take(self.sent);
        let whole = last.filter(|part| part.number + 1 == PROMPT_BATCHES);
        let question = |part: Part| question(self.schedule.world, part.prompt);
        whole.take(QUESTIONS_MAX).map(question).collect()
    }

    /// What is asked for a prompt, and who holds it.
    pub(super) fn question(&self, prompt: Prompt) -> (Bytes, &str) {
        let engine = self.schedule.world.worker(prompt);
        (question(self.schedule.world, prompt), &self.names[engine])
    }

    async fn wait(
        &self,
        channel: &Channel,
        is_there: impl Fn(&EventSourceStatus) -> bool,
    ) -> Result<(), LoadtestError> {
        let began = Instant::now();
        let mut admin = AdminClient::new(channel.clone());
        loop {
            let listed = admin.list_event_sources(ListEventSourcesRequest {}).await;
            let listed =
                listed.map_err(|status| LoadtestError::call("ListEventSources", status))?;
            let sources = listed.into_inner().sources;
            let ours = sources
                .iter()
                .filter(|source| self.names.contains(&source.worker_id));
            if ours.filter(|source| is_there(source)).count() == self.names.len() {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                let (call, reason) = ("ListEventSources", "batches are not applied".to_owned());
                return Err(LoadtestError::WrongAnswer { call, reason });
            }
            sleep(ASK_EVERY).await;
        }
    }
}

/// Batches a second from an engine's socket until they are seen, on a server that follows others.
pub(super) async fn visible(
    channel: &Channel,
    args: &EventsArgs,
    (name, round): (&str, usize),
    held: Option<usize>,
) -> Result<f64, LoadtestError> {
    let turn = args.turn_batches.next_multiple_of(PROMPT_BATCHES);
    let fill = held.map_or(turn, |held| turn + held / CHUNK_BLOCKS);
    let batches = fill + turn * args.turns;
    let world = World::of(batches * CHUNK_BLOCKS, 1);
    let schedule = Schedule { world, round };
    let mut engine = Engines::start(channel, name, schedule, held).await?;
    engine
        .send(channel, fill.next_multiple_of(PROMPT_BATCHES))
        .await?;
    let mut rates = Vec::with_capacity(args.turns);
    for _ in 0..args.turns {
        rates.push(engine.send(channel, turn).await?);
        check_last(channel, &engine).await?;
    }
    Ok(median(&rates))
}

/// What was applied has to be found.
pub(super) async fn check_last(channel: &Channel, engines: &Engines) -> Result<(), LoadtestError> {
    let Some((prompt, _)) = engines.last_prompt() else {
        return Ok(());
    };
    let (request, worker) = engines.question(prompt);
    let mut find = Method::<Found>::new(channel.clone(), FIND_PATH);
    let found = find.call(request).await;
    let found = found.map_err(|status| LoadtestError::call("FindWorkers", status))?;
    check(&found, Some(worker)).map_err(|reason| LoadtestError::WrongAnswer {
        call: "FindWorkers",
        reason,
    })
}

/// The best worker has to hold the whole prompt, and to be who is wanted.
pub(super) fn check(found: &Found, wanted: Option<&str>) -> Result<(), String> {
    let first = found.workers.first().ok_or("no worker is found")?;
    let best = WorkerMatch::decode(first.clone()).map_err(|error| error.to_string())?;
    let owner = best.owner.unwrap_or_default();
    let blocks = usize::try_from(best.device_blocks).unwrap_or(usize::MAX);
    if blocks != PROMPT_BLOCKS {
        return Err(format!(
            "FindWorkers: {blocks} blocks of {PROMPT_BLOCKS} are found"
        ));
    }
    if wanted.is_some_and(|wanted| wanted != owner.worker_id) {
        return Err(format!(
            "FindWorkers: {wanted:?} holds it, not {}",
            owner.worker_id
        ));
    }
    Ok(())
}

pub(super) fn method(channel: &Channel) -> Method<Found> {
    Method::new(channel.clone(), FIND_PATH)
}

/// A prompt's 8,192 tokens as bytes.
fn question(world: World, prompt: Prompt) -> Bytes {
    let blocks = world.blocks(prompt);
    let mut packed = Vec::with_capacity(PROMPT_BLOCKS * BLOCK_TOKENS * 4);
    for token in blocks.iter().flat_map(|block| tokens(block.content)) {
        packed.extend(token.to_le_bytes());
    }
    let request = FindWorkersRequest {
        tokens: Some(Tokens {
            ids: Vec::new(),
            packed: packed.into(),
        }),
        ..FindWorkersRequest::default()
    };
    request.encode_to_vec().into()
}
