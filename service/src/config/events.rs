//! Flags on engines' KV events: who is followed.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use kvatlas_events::feed::Source;

use crate::listen;

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

    /// How long a caller may be silent before it is pinged, and then to answer, in milliseconds.
    /// For tests.
    #[arg(
        long,
        env = "KVATLAS_PING_MS",
        hide = true,
        value_parser = clap::value_parser!(u64).range(1..),
        value_name = "MS"
    )]
    pub ping_ms: Option<u64>,
}

impl EventArgs {
    /// How long a caller may be silent.
    #[must_use]
    pub fn ping(&self) -> Duration {
        self.ping_ms.map_or(listen::PING, Duration::from_millis)
    }
}
