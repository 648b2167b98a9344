//! Flags on engines' KV events: who is followed.

use std::path::PathBuf;

use clap::Args;
use kvatlas_events::feed::Source;

/// Whose KV events are followed.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Engine events")]
pub struct EventArgs {
    /// An engine that publishes KV events: tcp://HOST:PORT, then, each after a comma,
    /// replay=tcp://HOST:PORT, worker=ID (as its donors name their owner; else HOST:PORT), rank=N,
    /// namespace=FILE. May be given several times; in the environment a semicolon parts them.
    #[arg(
        long,
        env = "KVATLAS_KV_EVENTS",
        value_delimiter = ';',
        value_name = "SOURCE"
    )]
    pub kv_events: Vec<Source>,

    /// File with one such source a line. Read again on SIGHUP: sources that are no longer in it
    /// are dropped, and their donors in device memory with them.
    #[arg(long, env = "KVATLAS_KV_EVENTS_FILE", value_name = "PATH")]
    pub kv_events_file: Option<PathBuf>,
}
