//! Structured logs on standard error.

use tracing_subscriber::{EnvFilter, util::SubscriberInitExt};

use crate::config::LogFormat;

/// The log filter is malformed.
#[derive(Debug, thiserror::Error)]
#[error("--log: {0}")]
pub struct BadFilter(#[from] tracing_subscriber::filter::ParseError);

/// Sends logs to standard error, once per process; a second call changes nothing.
pub fn init(filter: &str, format: LogFormat) -> Result<(), BadFilter> {
    let filter: EnvFilter = filter.parse()?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let already = match format {
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
        LogFormat::Text => lines.finish().try_init(),
    };
    // Tests and quickstart share one process with whatever was set up first.
    let _already = already;
    Ok(())
}
