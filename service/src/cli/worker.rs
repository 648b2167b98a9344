//! `kvatlas worker`: engines whose KV events are followed, and which of them a prompt should go to.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kvatlas_client::{Client, FindWorkers, v1};
use serde_json::{Value, json};

use super::{
    error::CliError,
    input,
    output::{Align, Report, Table, grouped, word},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  kvatlas worker follow tcp://10.0.0.7:5557,replay=tcp://10.0.0.7:5558,worker=vllm-7 \\
    --namespace ns.json
  kvatlas worker ls
  kvatlas worker find --namespace ns.json --tokens prompt.json --pick --request-id r1
  kvatlas worker finish r1")]
pub(super) enum WorkerCommand {
    /// How the sources of events are doing
    Ls,
    /// Follow an engine's events from now on
    Follow(FollowArgs),
    /// Stop following a worker; its donors in device memory go with it
    Unfollow {
        /// As it was given with worker=
        worker: String,
    },
    /// Ask how much of a prompt each worker holds. Exit status 3 when none holds anything
    Find(FindArgs),
    /// Say that requests are done, so that they weigh no longer
    Finish {
        #[arg(required = true, value_name = "REQUEST_ID")]
        request_ids: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(super) struct FollowArgs {
    /// tcp://HOST:PORT[,replay=tcp://HOST:PORT][,worker=ID][,rank=N]
    source: String,
    /// File of the namespace that the engine serves
    #[arg(long, value_name = "FILE")]
    namespace: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct FindArgs {
    /// JSON array of token ids; - for the standard input
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// The namespace's file or id; without it, workers that were configured without one
    #[arg(long, value_name = "FILE|ID")]
    namespace: Option<String>,
    /// Also choose one and charge it with the prompt
    #[arg(long)]
    pick: bool,
    /// The request that the pick is for: it weighs on the worker until `worker finish`
    #[arg(long, requires = "pick", default_value = "", hide_default_value = true)]
    request_id: String,
}

impl WorkerCommand {
    pub(super) async fn run(self, client: &Client) -> Result<Report, CliError> {
        match self {
            Self::Ls => Ok(listed(&client.list_event_sources().await?)),
            Self::Follow(args) => {
                let namespace = args
                    .namespace
                    .map(|path| input::whole_namespace(&path))
                    .transpose()?;
                let added = client
                    .add_event_source(&args.source, namespace.as_ref())
                    .await?;
                let text = match added {
                    true => "followed\n",
                    false => "followed already\n",
                };
                Ok(Report::found(text.into(), json!({ "added": added })))
            }
            Self::Unfollow { worker } => {
                let gone = client.remove_event_source(&worker).await?;
                let (sources, donors) = (gone.removed_sources, gone.removed_donors);
                Ok(Report {
                    text: format!("{sources} sources and {donors} donors removed\n"),
                    json: json!({ "removed_sources": sources, "removed_donors": donors }),
                    found: sources > 0,
                })
            }
            Self::Find(args) => find(client, args).await,
            Self::Finish { request_ids } => {
                let asked = request_ids.len();
                let finished = client.finish_requests(request_ids).await?;
                Ok(Report {
                    text: format!("{finished} of {asked} were in flight\n"),
                    json: json!({ "finished": finished }),
                    found: finished > 0,
                })
            }
        }
    }
}

async fn find(client: &Client, args: FindArgs) -> Result<Report, CliError> {
    let namespace = args
        .namespace
        .as_deref()
        .map(input::namespace)
        .transpose()?;
    let query = FindWorkers {
        pick: args.pick,
        request_id: args.request_id,
        ..FindWorkers::new(input::tokens(&args.tokens)?, namespace)
    };
    let answer = client.find_workers(&query).await?;
    let mut table = Table::new(&[
        ("WORKER", Align::Left),
        ("RANK", Align::Right),
        ("STATE", Align::Left),
        ("TOKENS", Align::Right),
        ("LOWER", Align::Right),
        ("BLOCKS", Align::Right),
        ("LOAD", Align::Right),
        ("", Align::Left),
    ]);
    for row in &answer.workers {
        let owner = row.owner.clone().unwrap_or_default();
        let is_picked = answer.picked.as_ref() == Some(&owner);
        table.row([
            owner.worker_id,
            owner.data_parallel_rank.to_string(),
            state(row.source_state()),
            grouped(row.device_tokens.into()),
            grouped(row.lower_tier_tokens.into()),
            grouped(row.device_blocks.into()),
            grouped(row.load_blocks.into()),
            if is_picked { "picked" } else { "" }.into(),
        ]);
    }
    let text = match table.is_empty() {
        true => "no worker of the namespace is followed\n".into(),
        false => table.to_string(),
    };
    let is_held = |row: &v1::WorkerMatch| row.device_tokens + row.lower_tier_tokens > 0;
    Ok(Report {
        text,
        found: answer.picked.is_some() || answer.workers.iter().any(is_held),
        json: json!({
            "workers": answer.workers.iter().map(row_json).collect::<Vec<_>>(),
            "picked": answer.picked.as_ref().map(owner_json),
            "charged_blocks": answer.charged_blocks,
            "in_flight": answer.in_flight,
        }),
    })
}

fn listed(sources: &[v1::EventSourceStatus]) -> Report {
    let mut table = Table::new(&[
        ("WORKER", Align::Left),
        ("RANKS", Align::Left),
        ("STATE", Align::Left),
        ("EPOCH", Align::Right),
        ("BATCHES", Align::Left),
        ("BLOCKS", Align::Right),
        ("GAPS", Align::Right),
        ("FAILURES", Align::Right),
        ("SOURCE", Align::Left),
    ]);
    for source in sources {
        let ranks: Vec<_> = source
            .data_parallel_ranks
            .iter()
            .map(u32::to_string)
            .collect();
        let batches = match (source.first_sequence, source.last_sequence) {
            (Some(first), Some(last)) => format!("{first}..{last}"),
            _ => String::new(),
        };
        table.row([
            source.worker_id.clone(),
            ranks.join(","),
            state(source.state()),
            source.epoch.to_string(),
            batches,
            grouped(source.blocks),
            grouped(source.gaps),
            grouped(source.connection_failures),
            match source.source.as_str() {
                "" => "Publish".to_owned(),
                source => source.to_owned(),
            },
        ]);
    }
    let text = match table.is_empty() {
        true => "no engine is followed\n".into(),
        false => table.to_string(),
    };
    let json = json!({ "sources": sources.iter().map(source_json).collect::<Vec<_>>() });
    Report::found(text, json)
}

fn state(state: v1::SourceState) -> String {
    word(state.as_str_name(), "SOURCE_STATE_")
}

fn owner_json(owner: &v1::Owner) -> Value {
    json!({ "worker_id": owner.worker_id, "data_parallel_rank": owner.data_parallel_rank })
}

fn row_json(row: &v1::WorkerMatch) -> Value {
    json!({
        "owner": row.owner.as_ref().map(owner_json),
        "source_state": state(row.source_state()),
        "device_blocks": row.device_blocks,
        "device_tokens": row.device_tokens,
        "lower_tier_blocks": row.lower_tier_blocks,
        "lower_tier_tokens": row.lower_tier_tokens,
        "block_size": row.block_size,
        "load_blocks": row.load_blocks,
    })
}

fn source_json(source: &v1::EventSourceStatus) -> Value {
    json!({
        "source": source.source,
        "worker_id": source.worker_id,
        "data_parallel_ranks": source.data_parallel_ranks,
        "state": state(source.state()),
        "epoch": source.epoch,
        "first_sequence": source.first_sequence,
        "last_sequence": source.last_sequence,
        "blocks": source.blocks,
        "batches": source.batches,
        "events": source.events,
        "gaps": source.gaps,
        "replays": source.replays,
        "connections": source.connections,
        "connection_failures": source.connection_failures,
        "unknown_events": source.unknown_events,
        "malformed_events": source.malformed_events,
        "undecodable_batches": source.undecodable_batches,
        "refused_batches": source.refused_batches,
        "malformed_messages": source.malformed_messages,
        "dropped_batches": source.dropped_batches,
        "outcomes": source.outcomes,
    })
}
