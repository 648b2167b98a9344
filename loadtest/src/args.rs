//! What the command can be told.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand};
use kvatlas::config::ServeArgs;

use crate::prior::PriorShape;

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
    /// Import of priors, and the start of a server that has many.
    Priors(PriorsArgs),
    /// The empty call's server.
    #[command(hide = true)]
    EchoChild,
    /// The server under test.
    #[command(hide = true)]
    ServeChild(Box<ServeArgs>),
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
}

#[derive(Debug, Clone, Args)]
pub struct DonorsArgs {
    #[command(flatten)]
    pub common: CommonArgs,

    /// Donors registered.
    #[arg(long, default_value_t = 10_000, value_parser = bounded(40, 1_000_000), value_name = "N")]
    pub donors: usize,

    /// Tokens of a donor, and of most look-ups.
    #[arg(long, default_value_t = 2048, value_parser = bounded(1024, 65_536), value_name = "N")]
    pub tokens: usize,

    /// Passages that prompts are made of: gzipped JSON lines of {doc, part, text, tokens}. Without
    /// it, a built-in sample.
    #[arg(long, value_name = "PATH")]
    pub passages: Option<PathBuf>,

    /// Distinct passages that donors draw from, where the file has fewer: the others are derived
    /// from it by a change of token ids.
    #[arg(long, default_value_t = 0, value_parser = bounded(0, 1 << 20), value_name = "N")]
    pub distinct_passages: usize,

    /// Look-ups of each class.
    #[arg(long, default_value_t = 500, value_parser = bounded(1, 100_000), value_name = "N")]
    pub queries: usize,

    /// Look-ups in flight while latency is measured.
    #[arg(long, default_value_t = 8, value_parser = bounded(1, 4096), value_name = "N")]
    pub concurrency: usize,

    /// Look-ups a second instead of as many as are answered; latency then counts from the time a
    /// look-up was to be sent.
    #[arg(long, value_parser = parse_rate, value_name = "PER SECOND")]
    pub rate: Option<f64>,

    /// How long latency is measured.
    #[arg(long, default_value_t = 10_000, value_parser = bounded(10, 600_000), value_name = "MS")]
    pub load_ms: usize,
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
