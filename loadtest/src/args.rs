//! What the command can be told.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand};
use kvatlas::config::ServeArgs;

use crate::{
    events::ours::Which,
    prior::PriorShape,
    score::{Algorithm, Model},
};

/// Measures a kvatlas server and judges its answers.
#[derive(Debug, Parser)]
#[command(name = "kvatlas-loadtest", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// GetManifest, unary and streamed, against an empty call as the ceiling.
    Manifest(ManifestArgs),
    /// FindDonor over many donors: latency, memory, and right answers by class of target.
    Donors(DonorsArgs),
    /// FindDonor on every class of target, each answer judged.
    Quality(QualityArgs),
    /// What counting, recording and tracing calls costs.
    Telemetry(TelemetryArgs),
    /// Import of priors, and the start of a server that has many.
    Priors(PriorsArgs),
    /// Online scoring: products and screen against a plain read, numpy, torch, and over gRPC.
    Score(ScoreArgs),
    /// A manifest from query tokens: the encoder of a 3B model's first layer, end to end.
    ScoreTokens(ScoreTokensArgs),
    /// Which selection keeps the block that answers, on synthetic keys.
    KillTest(KillTestArgs),
    /// Engines' events: decoder, view, index, feed and FindWorkers, beside others' indexes.
    Events(EventsArgs),
    /// How long `kvatlas report` reads an audit file, which is made up first.
    Report(ReportArgs),
    /// One index of events.
    #[command(hide = true)]
    EventsChild(EventsChildArgs),
    /// Publishers of events.
    #[command(hide = true)]
    EngineChild(EngineChildArgs),
    /// The collector of spans.
    #[command(hide = true)]
    CollectorChild,
    /// The empty call's server.
    #[command(hide = true)]
    EchoChild,
    /// The server under test.
    #[command(hide = true)]
    ServeChild(Box<ServeArgs>),
}

#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Lines of the file.
    #[arg(
        long,
        default_value_t = 1_000_000,
        value_parser = bounded(1, 100_000_000),
        value_name = "N"
    )]
    pub lines: usize,

    /// Hours that they are spread over.
    #[arg(long, default_value_t = 24, value_parser = bounded(1, 10_000), value_name = "H")]
    pub hours: usize,

    /// The same seed writes the same file.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Where the file is written to and left; gzipped where it ends in .gz.
    #[arg(long, value_name = "PATH")]
    pub keep: Option<PathBuf>,

    /// How often it is read.
    #[arg(long, default_value_t = 3, value_parser = bounded(1, 100), value_name = "N")]
    pub rounds: usize,

    /// One JSON object on standard output instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Which server, and how the result is told.
#[derive(Debug, Clone, Args)]
pub struct CommonArgs {
    /// HOST:PORT of a running server; without it one is started on a free port, with a folder of
    /// its own, and ended with the run.
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,

    /// One JSON object on standard output instead of a table.
    #[arg(long)]
    pub json: bool,

    /// The same seed asks the same questions.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Connections that the calls go over in turn.
    #[arg(long, default_value_t = 1, value_parser = bounded(1, 64), value_name = "N")]
    pub connections: usize,

    /// Threads of the client; one on two cores leaves the other to the server.
    #[arg(long, default_value_t = 1, value_parser = bounded(1, 64), value_name = "N")]
    pub client_workers: usize,

    /// Flags for the server that is started, such as --workers 2.
    #[arg(last = true, value_name = "SERVER FLAGS")]
    pub server: Vec<OsString>,
}

#[derive(Debug, Clone, Args)]
pub struct ManifestArgs {
    #[command(flatten)]
    pub common: CommonArgs,

    /// Priors that the calls ask for at random.
    #[arg(long, default_value_t = 32, value_parser = bounded(1, 10_000), value_name = "N")]
    pub priors: usize,

    #[command(flatten)]
    pub shape: ShapeArgs,

    /// Calls in flight.
    #[arg(long, default_value_t = 64, value_parser = bounded(1, 4096), value_name = "N")]
    pub concurrency: usize,

    /// Calls a second instead of as many as are answered; latency then counts from the time a
    /// call was to be sent.
    #[arg(long, value_parser = parse_rate, value_name = "PER SECOND")]
    pub rate: Option<f64>,

    /// Rounds; in each of them the empty call, the unary call and the stream take turns.
    #[arg(long, default_value_t = 15, value_parser = bounded(1, 1000), value_name = "N")]
    pub rounds: usize,

    /// Length of a turn.
    #[arg(long, default_value_t = 800, value_parser = bounded(10, 600_000), value_name = "MS")]
    pub turn_ms: usize,

    /// Tokens in a file that the server which is started lets in by; calls show the last of them.
    #[arg(long, default_value_t = 0, value_parser = bounded(0, 4096), value_name = "N")]
    pub tokens: usize,
}

#[derive(Debug, Clone, Args)]
pub struct TelemetryArgs {
    #[command(flatten)]
    pub common: CommonArgs,

    /// Manifests in flight.
    #[arg(long, default_value_t = 64, value_parser = bounded(1, 4096), value_name = "N")]
    pub concurrency: usize,

    /// Look-ups in flight, where it is not one.
    #[arg(long, default_value_t = 8, value_parser = bounded(1, 4096), value_name = "N")]
    pub finds_in_flight: usize,

    /// Donors registered, of 2,048 tokens each.
    #[arg(long, default_value_t = 2000, value_parser = bounded(40, 100_000), value_name = "N")]
    pub donors: usize,

    /// Share of calls that are traced.
    #[arg(long, default_value_t = 0.01, value_name = "SHARE")]
    pub trace_ratio: f64,

    /// Rounds; in each of them the three servers take turns.
    #[arg(long, default_value_t = 15, value_parser = bounded(1, 1000), value_name = "N")]
    pub rounds: usize,

    /// Length of a turn.
    #[arg(long, default_value_t = 800, value_parser = bounded(10, 600_000), value_name = "MS")]
    pub turn_ms: usize,
}

#[derive(Debug, Clone, Args)]
pub struct DonorsArgs {
    #[command(flatten)]
    pub common: CommonArgs,

    /// Donors registered at last; before that every power of ten below it is measured.
    #[arg(long, default_value_t = 10_000, value_parser = bounded(40, 1_000_000), value_name = "N")]
    pub donors: usize,

    /// The smallest power of ten measured.
    #[arg(long, default_value_t = 1000, value_parser = bounded(40, 1_000_000), value_name = "N")]
    pub donors_from: usize,

    /// Tokens of a donor, and of most look-ups.
    #[arg(long, default_value_t = 2048, value_parser = bounded(1024, 65_536), value_name = "N")]
    pub tokens: usize,

    /// Passages that prompts are made of: gzipped JSON lines of {doc, part, text, tokens}. Without
    /// it, a built-in sample.
    #[arg(long, value_name = "PATH")]
    pub passages: Option<PathBuf>,

    /// Distinct passages that donors draw from, where the file has fewer: the others are derived
    /// from it by a change of token ids. Without it, as many as donors.
    #[arg(long, value_parser = bounded(0, 1 << 20), value_name = "N")]
    pub distinct_passages: Option<usize>,

    /// Look-ups of each class; all of them are kept, some 16 KiB each at 2,048 tokens.
    #[arg(long, default_value_t = 500, value_parser = bounded(1, 10_000), value_name = "N")]
    pub queries: usize,

    /// Look-ups in flight while latency is measured.
    #[arg(long, default_value_t = 8, value_parser = bounded(1, 4096), value_name = "N")]
    pub concurrency: usize,

    /// Look-ups a second instead of as many as are answered; latency then counts from the time a
    /// look-up was to be sent.
    #[arg(long, value_parser = parse_rate, value_name = "PER SECOND")]
    pub rate: Option<f64>,

    /// How long latency is measured, under look-ups alone and again under the mixed load.
    #[arg(long, default_value_t = 10_000, value_parser = bounded(10, 600_000), value_name = "MS")]
    pub load_ms: usize,

    /// Longest wait after the registrations until the server has done what it does behind them,
    /// which for a million donors is many minutes.
    #[arg(
        long,
        default_value_t = 1_800_000,
        value_parser = bounded(0, 3_600_000),
        value_name = "MS"
    )]
    pub settle_ms: usize,

    /// Where this many donors are reached, look-ups are measured beside registrations, and
    /// registrations against removals; 0: nowhere.
    #[arg(long, default_value_t = 10_000, value_parser = bounded(0, 1_000_000), value_name = "N")]
    pub contention_donors: usize,

    /// Where this many donors are reached, the server is started anew; 0: nowhere.
    #[arg(long, default_value_t = 100_000, value_parser = bounded(0, 1_000_000), value_name = "N")]
    pub restart_donors: usize,
}

#[derive(Debug, Clone, Args)]
pub struct QualityArgs {
    #[command(flatten)]
    pub common: CommonArgs,

    /// Donors of token ids registered; those with text come on top.
    #[arg(long, default_value_t = 1000, value_parser = bounded(40, 100_000), value_name = "N")]
    pub donors: usize,

    /// Tokens of such a donor, and of most look-ups.
    #[arg(long, default_value_t = 2048, value_parser = bounded(1024, 65_536), value_name = "N")]
    pub tokens: usize,

    /// Look-ups of each class.
    #[arg(long, default_value_t = 200, value_parser = bounded(1, 10_000), value_name = "N")]
    pub queries: usize,

    /// Passages that prompts are made of: gzipped JSON lines of {doc, part, text, tokens}. Without
    /// it, a built-in sample.
    #[arg(long, value_name = "PATH")]
    pub passages: Option<PathBuf>,

    /// The same verses in two translations, for the class of paraphrases: JSON lines of
    /// {verse, kjv, asv}.
    #[arg(long, value_name = "PATH")]
    pub verses: Option<PathBuf>,

    /// Folder of the text embedding model that the server is started with.
    #[arg(long, value_name = "DIR")]
    pub embedding_model: Option<PathBuf>,

    /// ONNX Runtime library that the server loads.
    #[arg(long, value_name = "PATH")]
    pub onnxruntime: Option<PathBuf>,

    /// Also writes what is registered and asked to donors.jsonl and targets.jsonl in this folder.
    #[arg(long, value_name = "DIR")]
    pub dump: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct PriorsArgs {
    #[command(flatten)]
    pub common: CommonArgs,

    /// Priors put before the server is started anew.
    #[arg(long, default_value_t = 1000, value_parser = bounded(1, 10_000), value_name = "N")]
    pub count: usize,

    #[command(flatten)]
    pub shape: ShapeArgs,
}

#[derive(Debug, Clone, Args)]
pub struct ScoreArgs {
    /// Model whose layers, heads and head dimension the keys have.
    #[arg(long, value_enum, default_value_t = Model::Llama32_3b)]
    pub model: Model,

    /// Blocks of the prefix.
    #[arg(long, default_value_t = 8192, value_parser = bounded(16, 65_536), value_name = "N")]
    pub blocks: usize,

    /// Blocks chosen.
    #[arg(long, default_value_t = 16, value_parser = bounded(1, 4096), value_name = "N")]
    pub k: usize,

    #[arg(long, value_enum, default_value_t = Algorithm::KriQ)]
    pub algorithm: Algorithm,

    /// Threads of the products, of the plain read, and of numpy and torch.
    #[arg(long, default_value_t = 2, value_parser = bounded(1, 256), value_name = "N")]
    pub threads: usize,

    /// Tables, with four queries each, on which the screened choice must be the full pass's.
    #[arg(long, default_value_t = 4, value_parser = bounded(1, 10_000), value_name = "N")]
    pub seeds: usize,

    /// Rounds; in each of them full pass, plain read and screened pass take turns.
    #[arg(long, default_value_t = 40, value_parser = bounded(1, 10_000), value_name = "N")]
    pub rounds: usize,

    /// Measured GetManifest calls, one at a time; 0: no server is started.
    #[arg(long, default_value_t = 200, value_parser = bounded(0, 100_000), value_name = "N")]
    pub calls: usize,

    /// Interpreter whose numpy and torch are compared with, where it has them.
    #[arg(long, default_value = "python3", value_name = "PATH")]
    pub python: PathBuf,

    /// Measures powers of two of blocks up to --blocks as well, for the picture; no calls.
    #[arg(long)]
    pub sweep: bool,

    /// One JSON object on standard output instead of a table.
    #[arg(long)]
    pub json: bool,

    /// The same seed makes the same keys and queries.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Flags for the server that is started, such as --workers 2.
    #[arg(last = true, value_name = "SERVER FLAGS")]
    pub server: Vec<OsString>,
}

#[derive(Debug, Clone, Args)]
pub struct ScoreTokensArgs {
    /// Blocks of the prefix.
    #[arg(long, default_value_t = 8192, value_parser = bounded(16, 65_536), value_name = "N")]
    pub blocks: usize,

    /// Blocks chosen.
    #[arg(long, default_value_t = 16, value_parser = bounded(1, 4096), value_name = "N")]
    pub k: usize,

    /// Measured calls, one at a time.
    #[arg(long, default_value_t = 500, value_parser = bounded(1, 100_000), value_name = "N")]
    pub calls: usize,

    /// One JSON object on standard output instead of a table.
    #[arg(long)]
    pub json: bool,

    /// The same seed makes the same model, keys and tokens.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Flags for the server that is started.
    #[arg(last = true, value_name = "SERVER FLAGS")]
    pub server: Vec<OsString>,
}

#[derive(Debug, Clone, Args)]
pub struct KillTestArgs {
    /// Needles, each with a query of its own, in each of the two variants.
    #[arg(long, default_value_t = 100, value_parser = bounded(1, 100_000), value_name = "N")]
    pub seeds: usize,

    /// The first of the seeds.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// One JSON object on standard output instead of a table.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct EventsArgs {
    /// Blocks of 16 tokens that the workers hold between them.
    #[arg(
        long,
        default_value_t = 1_000_000,
        value_parser = bounded(2048, 10_000_000),
        value_name = "N"
    )]
    pub blocks: usize,

    #[arg(long, default_value_t = 100, value_parser = bounded(1, 1000), value_name = "N")]
    pub workers: usize,

    /// Look-ups of each kind, in each index.
    #[arg(
        long,
        default_value_t = 100_000,
        value_parser = bounded(10, 10_000_000),
        value_name = "N"
    )]
    pub look_ups: usize,

    /// Rounds in which the indexes take turns.
    #[arg(long, default_value_t = 3, value_parser = bounded(1, 100), value_name = "N")]
    pub rounds: usize,

    /// Also measures other indexes (dynamo-kv-router 1.6.1, kv-index 2.0.0), by the program in this
    /// folder, which cargo compiles first.
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = concat!(env!("CARGO_MANIFEST_DIR"), "/compare/events"),
        value_name = "DIR"
    )]
    pub peers: Option<PathBuf>,

    /// Batches of a turn from an engine's socket until they are seen.
    #[arg(long, default_value_t = 4000, value_parser = bounded(4, 20_000), value_name = "N")]
    pub turn_batches: usize,

    /// Such turns, growing and at capacity.
    #[arg(long, default_value_t = 5, value_parser = bounded(1, 20), value_name = "N")]
    pub turns: usize,

    /// Blocks that the engine at capacity holds.
    #[arg(
        long,
        default_value_t = 102_400,
        value_parser = bounded(1024, 1_000_000),
        value_name = "N"
    )]
    pub churn_blocks: usize,

    /// Rounds in which FindWorkers and the echoes take turns.
    #[arg(long, default_value_t = 15, value_parser = bounded(1, 1000), value_name = "N")]
    pub rpc_rounds: usize,

    /// Length of such a turn.
    #[arg(long, default_value_t = 300, value_parser = bounded(10, 600_000), value_name = "MS")]
    pub turn_ms: usize,

    #[command(flatten)]
    pub trace: TraceArgs,

    /// One JSON object on standard output instead of a table.
    #[arg(long)]
    pub json: bool,

    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Flags for the server that is started, such as --workers 2.
    #[arg(last = true, value_name = "SERVER FLAGS")]
    pub server: Vec<OsString>,
}

/// A replay of requests in place of the rest.
#[derive(Debug, Clone, Args)]
pub struct TraceArgs {
    /// Replays a trace of requests instead, in Mooncake's format: FAST25-release/traces/
    /// conversation_trace.jsonl of github.com/kvcache-ai/Mooncake.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    #[arg(long, default_value_t = 8, value_parser = bounded(1, 1000), value_name = "N")]
    pub trace_workers: usize,

    /// Blocks of 512 tokens that each of them holds.
    #[arg(
        long,
        default_value_t = 20_000,
        value_parser = bounded(1, 10_000_000),
        value_name = "N"
    )]
    pub trace_worker_blocks: usize,

    /// How many times as fast the requests come.
    #[arg(long, default_value_t = 1.0, value_parser = parse_speed, value_name = "TIMES")]
    pub trace_speed: f64,

    /// Replays of FindWorkers, which differ in how equals are told apart.
    #[arg(long, default_value_t = 8, value_parser = bounded(1, 1000), value_name = "N")]
    pub trace_seeds: usize,
}

#[derive(Debug, Clone, Args)]
pub struct EventsChildArgs {
    #[arg(value_enum)]
    pub which: Which,

    #[arg(long)]
    pub blocks: usize,

    #[arg(long)]
    pub workers: usize,

    #[arg(long)]
    pub look_ups: usize,
}

#[derive(Debug, Clone, Args)]
pub struct EngineChildArgs {
    #[arg(long)]
    pub engines: usize,

    /// Of all of them.
    #[arg(long)]
    pub batches: usize,

    #[arg(long)]
    pub round: usize,

    /// Blocks that each holds at most; 0: all.
    #[arg(long)]
    pub held: usize,
}

/// Shape of a prior's score tensor; the default is a file of 7 MB.
#[derive(Debug, Clone, Copy, Args)]
pub struct ShapeArgs {
    #[arg(long, default_value_t = 28, value_parser = bounded(1, 256), value_name = "N")]
    pub layers: usize,

    #[arg(long, default_value_t = 8, value_parser = bounded(1, 256), value_name = "N")]
    pub kv_heads: usize,

    #[arg(long, default_value_t = 8192, value_parser = bounded(32, 65_536), value_name = "N")]
    pub blocks: usize,
}

impl From<ShapeArgs> for PriorShape {
    fn from(args: ShapeArgs) -> Self {
        let ShapeArgs {
            layers,
            kv_heads,
            blocks,
        } = args;
        Self {
            layers,
            kv_heads,
            blocks,
        }
    }
}

fn bounded(least: usize, most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| {
        text.parse()
            .ok()
            .filter(|value| (least..=most).contains(value))
            .ok_or_else(|| format!("must be a whole number from {least} to {most}"))
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate| (1.0..=10_000_000.0).contains(rate))
        .ok_or_else(|| "must be a number from 1 to 10000000".to_owned())
}

fn parse_speed(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|speed| (0.001..=1000.0).contains(speed))
        .ok_or_else(|| "must be a number from 0.001 to 1000".to_owned())
}
