//! What `kvatlas serve` can be told, by flags and by environment.

mod access;
mod events;
mod namespace_file;
mod telemetry;
mod text;

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use clap::{Args, ValueEnum, builder::RangedU64ValueParser};
use kvatlas_kernels::{cuda::DeviceChoice, score::THREADS_MAX};

pub use self::access::{AccessArgs, AccessArgsError, Exposure, HttpTls, TlsFiles, caller_file};
pub use self::events::EventArgs;
pub use self::namespace_file::NamespaceFile;
pub use self::telemetry::TelemetryArgs;
pub use self::text::{TextArgs, TextArgsError};
use crate::{
    donor_events::nats::{BadSource, NatsSource, SOURCES_MAX},
    donors::gate::Gates,
    routing::query,
};

/// Where the server listens for gRPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenAddress, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("unix: must be followed by a path".into());
            }
            return Ok(ListenAddress::Unix(path.into()));
        }
        text.parse()
            .map(ListenAddress::Tcp)
            .map_err(|_| "must be IP:PORT (such as 127.0.0.1:50051) or unix:PATH".into())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => write!(out, "{address}"),
            ListenAddress::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

/// What a donor look-up may lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServeMode {
    /// Full search and telemetry, no lease, nothing to materialize.
    DiscoveryOnly,
    /// Answers carry leases.
    Materialize,
    /// Every donor look-up is a miss with provider_disabled.
    Disabled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// More threads than any machine makes use of; very many cannot be started at all.
const WORKERS_MAX: u64 = 1024;

/// Flags of `kvatlas serve`; each can also be given as KVATLAS_... in the environment.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Address for gRPC: IP:PORT or unix:PATH. May be given several times. Port 0 picks a free one.
    #[arg(
        long,
        env = "KVATLAS_LISTEN",
        default_value = "127.0.0.1:50051",
        value_delimiter = ',',
        value_name = "ADDRESS"
    )]
    pub listen: Vec<ListenAddress>,

    /// Address for HTTP: /healthz and /metrics.
    #[arg(
        long,
        env = "KVATLAS_HTTP_LISTEN",
        default_value = "127.0.0.1:9464",
        value_name = "IP:PORT"
    )]
    pub http_listen: SocketAddr,

    /// Folder for priors, key summaries and donors. One server at a time may use it, and nobody
    /// else may write into it: its large files are mapped.
    #[arg(
        long,
        env = "KVATLAS_DATA_DIR",
        default_value = "kvatlas-data",
        value_name = "PATH"
    )]
    pub data_dir: PathBuf,

    /// Folder that model folders lie below, for `kvatlas encoder put`. Their files are mapped:
    /// nobody may write into them while the server runs (replace them, and put them again).
    /// Without it, no encoder can be put.
    #[arg(long, env = "KVATLAS_MODELS_DIR", value_name = "PATH")]
    pub models_dir: Option<PathBuf>,

    /// What FindDonor may lead to. Without it, the mode last set by SetMode, at first
    /// discovery-only.
    #[arg(long, env = "KVATLAS_MODE", value_enum)]
    pub mode: Option<ServeMode>,

    /// Threads that serve calls; 0: one on up to two cores, else one less than there are cores.
    #[arg(
        long,
        env = "KVATLAS_WORKERS",
        default_value_t = 0,
        value_parser = RangedU64ValueParser::<usize>::new().range(..=WORKERS_MAX),
        value_name = "N"
    )]
    pub workers: usize,

    /// Calls in flight over all connections; one more is answered RESOURCE_EXHAUSTED at once.
    #[arg(
        long,
        env = "KVATLAS_CALLS_IN_FLIGHT_MAX",
        default_value_t = 4096,
        value_parser = one_or_more::<usize>(),
        value_name = "N",
        help_heading = "Limits"
    )]
    pub calls_in_flight_max: usize,

    /// Largest request message, in bytes.
    #[arg(
        long,
        env = "KVATLAS_MESSAGE_BYTES_MAX",
        default_value_t = 8 << 20,
        value_parser = one_or_more::<usize>(),
        value_name = "BYTES",
        help_heading = "Limits"
    )]
    pub message_bytes_max: usize,

    /// Longest time a call may take when the caller sets no deadline, in milliseconds.
    #[arg(
        long,
        env = "KVATLAS_CALL_MS_MAX",
        default_value_t = 30_000,
        value_parser = one_or_more::<u64>(),
        value_name = "MS",
        help_heading = "Limits"
    )]
    pub call_ms_max: u64,

    /// Largest prior file, in bytes.
    #[arg(
        long,
        env = "KVATLAS_PRIOR_BYTES_MAX",
        default_value_t = 256 << 20,
        value_parser = one_or_more::<u64>(),
        value_name = "BYTES",
        help_heading = "Limits"
    )]
    pub prior_bytes_max: u64,

    /// Largest file that a key summary is made from, in bytes. While it comes in it lies in the
    /// data folder, two files at a time.
    #[arg(
        long,
        env = "KVATLAS_SUMMARY_BYTES_MAX",
        default_value_t = 16 << 30,
        value_parser = clap::value_parser!(u64).range(1..),
        value_name = "BYTES",
        help_heading = "Limits"
    )]
    pub summary_bytes_max: u64,

    /// Longest time that the upload of a key summary may take, in milliseconds.
    #[arg(
        long,
        env = "KVATLAS_UPLOAD_MS_MAX",
        default_value_t = 600_000,
        value_parser = clap::value_parser!(u64).range(1..),
        value_name = "MS",
        help_heading = "Limits"
    )]
    pub upload_ms_max: u64,

    /// Donors kept; beyond it the least recently hit one without a lease makes room.
    #[arg(
        long,
        env = "KVATLAS_DONORS_MAX",
        default_value_t = 100_000,
        value_parser = one_or_more::<u64>(),
        value_name = "N",
        help_heading = "Limits"
    )]
    pub donors_max: u64,

    /// Tokens kept over all donors; beyond it donors make room likewise. About 5 bytes each.
    #[arg(
        long,
        env = "KVATLAS_DONOR_TOKENS_MAX",
        default_value_t = 500_000_000,
        value_parser = one_or_more::<u64>(),
        value_name = "N",
        help_heading = "Limits"
    )]
    pub donor_tokens_max: u64,

    /// Donor leases held at a time; beyond it a look-up is a miss.
    #[arg(
        long,
        env = "KVATLAS_LEASES_MAX",
        default_value_t = 100_000,
        value_parser = one_or_more::<usize>(),
        value_name = "N",
        help_heading = "Limits"
    )]
    pub leases_max: usize,

    /// Lease given when the request names no time, in milliseconds.
    #[arg(
        long,
        env = "KVATLAS_LEASE_TTL_MS",
        default_value_t = 30_000,
        value_parser = clap::value_parser!(u32).range(1..=600_000),
        value_name = "MS",
        help_heading = "Limits"
    )]
    pub lease_ttl_ms: u32,

    /// Queries kept at a time under their query_hash; one more is answered RESOURCE_EXHAUSTED.
    #[arg(
        long,
        env = "KVATLAS_QUERIES_MAX",
        default_value_t = 4096,
        value_parser = one_or_more::<usize>(),
        value_name = "N",
        help_heading = "Limits"
    )]
    pub queries_max: usize,

    /// Memory for kept queries, in bytes; beyond it likewise.
    #[arg(
        long,
        env = "KVATLAS_QUERY_BYTES_MAX",
        default_value_t = 512 << 20,
        value_parser = one_or_more::<usize>(),
        value_name = "BYTES",
        help_heading = "Limits"
    )]
    pub query_bytes_max: usize,

    /// Time that a query is kept when PutQuery names none, in milliseconds.
    #[arg(
        long,
        env = "KVATLAS_QUERY_TTL_MS",
        default_value_t = 60_000,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(query::TTL_MS_MAX)),
        value_name = "MS",
        help_heading = "Limits"
    )]
    pub query_ttl_ms: u32,

    /// Time that calls in flight get to finish after SIGTERM, in milliseconds.
    #[arg(
        long,
        env = "KVATLAS_DRAIN_MS",
        default_value_t = 10_000,
        value_name = "MS",
        help_heading = "Limits"
    )]
    pub drain_ms: u64,

    /// Whether donors that share vocabulary with a prompt but no long run are looked for, by a
    /// sketch of their tokens. It needs no text and no model.
    #[arg(
        long,
        env = "KVATLAS_SKETCHES",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_name = "BOOL"
    )]
    pub sketches: bool,

    /// NATS server that other providers publish donor events on, as
    /// nats://HOST:PORT[,subject=semantic-kv-events]; USER:PASSWORD@ or TOKEN@ before the host,
    /// tls:// to encrypt. May be given several times; in the environment, with spaces between.
    #[arg(
        long = "donor-events",
        env = "KVATLAS_DONOR_EVENTS",
        hide_env_values = true,
        value_delimiter = ' ',
        value_name = "URL"
    )]
    pub donor_events: Vec<Hidden>,

    #[command(flatten)]
    pub access: AccessArgs,

    #[command(flatten)]
    pub gates: GateArgs,

    #[command(flatten)]
    pub score: ScoreArgs,

    #[command(flatten)]
    pub text: TextArgs,

    #[command(flatten)]
    pub events: EventArgs,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,

    /// What to log, in tracing's filter language.
    #[arg(
        long,
        env = "KVATLAS_LOG",
        default_value = "info",
        value_name = "FILTER",
        help_heading = "Logs"
    )]
    pub log: String,

    #[arg(
        long,
        env = "KVATLAS_LOG_FORMAT",
        value_enum,
        default_value = "json",
        help_heading = "Logs"
    )]
    pub log_format: LogFormat,
}

/// The server's thresholds for donor look-ups; SetMode and requests can override them.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Gates")]
pub struct GateArgs {
    /// Tokens that a prompt must have.
    #[arg(
        long,
        env = "KVATLAS_MIN_PROMPT_TOKENS",
        default_value_t = 512,
        value_name = "N"
    )]
    pub min_prompt_tokens: u32,

    /// Tokens that must be reusable.
    #[arg(
        long,
        env = "KVATLAS_MIN_REUSE_TOKENS",
        default_value_t = 512,
        value_name = "N"
    )]
    pub min_reuse_tokens: u32,

    /// Verified tokens / prompt tokens beyond the exact prefix.
    #[arg(
        long,
        env = "KVATLAS_MIN_SIMILARITY",
        default_value_t = 0.60,
        value_parser = parse_share,
        value_name = "SHARE"
    )]
    pub min_similarity: f32,

    /// Tokens reusable under the outcome / prompt tokens.
    #[arg(
        long,
        env = "KVATLAS_MIN_REUSE_RATIO",
        default_value_t = 0.50,
        value_parser = parse_share,
        value_name = "SHARE"
    )]
    pub min_reuse_ratio: f32,

    /// The search is skipped when the engine's own prefix covers this share of the prompt.
    #[arg(
        long,
        env = "KVATLAS_EXACT_PREFIX_SKIP_RATIO",
        default_value_t = 0.50,
        value_parser = parse_share,
        value_name = "SHARE"
    )]
    pub exact_prefix_skip_ratio: f32,
}

/// As many as the kernels start at most.
const SCORE_THREADS_MAX: u32 = 256;
const _: () = assert!(SCORE_THREADS_MAX as usize == THREADS_MAX);
/// The queue's places are there from the start, some hundred bytes each.
const SCORE_QUEUE_DEPTH_LIMIT: u32 = 1 << 16;

/// How requests are scored online.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Online scoring")]
pub struct ScoreArgs {
    /// Where scores are computed: auto (a GPU where there is one), cpu or cuda:N.
    #[arg(
        long = "device",
        env = "KVATLAS_DEVICE",
        default_value = "auto",
        value_name = "DEVICE"
    )]
    pub device: DeviceChoice,

    /// Threads that score on the processor; 0: one for each core.
    #[arg(
        long = "score-threads",
        env = "KVATLAS_SCORE_THREADS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=i64::from(SCORE_THREADS_MAX)),
        value_name = "N"
    )]
    pub threads: u32,

    /// Requests that may wait to be scored; one more is answered RESOURCE_EXHAUSTED at once.
    #[arg(
        long = "score-queue-depth-max",
        env = "KVATLAS_SCORE_QUEUE_DEPTH_MAX",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SCORE_QUEUE_DEPTH_LIMIT)),
        value_name = "N"
    )]
    pub queue_depth_max: u32,
}

impl ScoreArgs {
    /// Threads that score on the processor.
    #[must_use]
    pub fn cpu_threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            threads => threads as usize,
        }
    }
}

impl From<GateArgs> for Gates {
    fn from(args: GateArgs) -> Gates {
        let GateArgs {
            min_prompt_tokens,
            min_reuse_tokens,
            min_similarity,
            min_reuse_ratio,
            exact_prefix_skip_ratio,
        } = args;
        Gates {
            min_prompt_tokens,
            min_reuse_tokens,
            min_similarity,
            min_reuse_ratio,
            exact_prefix_skip_ratio,
        }
    }
}

impl Default for ServeArgs {
    /// What `kvatlas serve` without flags or environment would use.
    fn default() -> ServeArgs {
        let gates = Gates::default();
        ServeArgs {
            listen: vec![ListenAddress::Tcp(SocketAddr::from((
                [127, 0, 0, 1],
                50_051,
            )))],
            http_listen: SocketAddr::from(([127, 0, 0, 1], 9464)),
            data_dir: "kvatlas-data".into(),
            models_dir: None,
            mode: None,
            sketches: true,
            donor_events: Vec::new(),
            workers: 0,
            calls_in_flight_max: 4096,
            message_bytes_max: 8 << 20,
            call_ms_max: 30_000,
            prior_bytes_max: 256 << 20,
            summary_bytes_max: 16 << 30,
            upload_ms_max: 600_000,
            donors_max: 100_000,
            donor_tokens_max: 500_000_000,
            leases_max: 100_000,
            lease_ttl_ms: 30_000,
            queries_max: 4096,
            query_bytes_max: 512 << 20,
            query_ttl_ms: 60_000,
            drain_ms: 10_000,
            access: AccessArgs::default(),
            gates: GateArgs {
                min_prompt_tokens: gates.min_prompt_tokens,
                min_reuse_tokens: gates.min_reuse_tokens,
                min_similarity: gates.min_similarity,
                min_reuse_ratio: gates.min_reuse_ratio,
                exact_prefix_skip_ratio: gates.exact_prefix_skip_ratio,
            },
            score: ScoreArgs {
                device: DeviceChoice::Auto,
                threads: 0,
                queue_depth_max: 64,
            },
            text: TextArgs::default(),
            events: EventArgs::default(),
            telemetry: TelemetryArgs::default(),
            log: "info".into(),
            log_format: LogFormat::Json,
        }
    }
}

impl ServeArgs {
    /// Where donor events of other providers come from.
    ///
    /// # Errors
    /// When a source is not understood; it is not quoted.
    pub fn donor_event_sources(&self) -> Result<Vec<NatsSource>, BadSource> {
        if self.donor_events.len() > SOURCES_MAX {
            return Err(BadSource::TooMany);
        }
        let sources = self.donor_events.iter();
        sources
            .map(|Hidden(text)| NatsSource::parse(text))
            .collect()
    }

    /// Threads that serve calls: more than one on two cores only steals from the callers.
    #[must_use]
    pub fn runtime_workers(&self) -> usize {
        if self.workers > 0 {
            return self.workers;
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if cores <= 2 { 1 } else { cores - 1 }
    }
}

/// What may hold a password: never shown. Reading it cannot fail, since the message would quote it.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(pub String);

impl From<String> for Hidden {
    fn from(text: String) -> Hidden {
        Hidden(text)
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("(hidden)")
    }
}

// A limit of nothing is a mistake that the start can tell.
fn one_or_more<N>() -> RangedU64ValueParser<N>
where
    N: TryFrom<u64, Error: std::error::Error + Send + Sync> + Clone + Send + Sync + 'static,
{
    RangedU64ValueParser::new().range(1..)
}

fn parse_share(text: &str) -> Result<f32, String> {
    let share: f32 = text
        .parse()
        .map_err(|_| "must be a number from 0 to 1".to_owned())?;
    if (0.0..=1.0).contains(&share) {
        Ok(share)
    } else {
        Err("must be a number from 0 to 1".into())
    }
}

#[cfg(test)]
mod tests;
