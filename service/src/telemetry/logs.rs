//! Structured logs on standard error.

use tracing_subscriber::{
    EnvFilter, filter::filter_fn, layer::SubscriberExt, util::SubscriberInitExt,
};

use crate::config::LogFormat;

/// The log filter is malformed.
#[derive(Debug, thiserror::Error)]
#[error("--log: {0}")]
pub struct BadFilter(#[from] tracing_subscriber::filter::ParseError);

/// What this crate tells may be a message, or quote a password. Its states are told by ours.
const NEVER_HEARD: &str = "async_nats";

/// Sends logs to standard error, once per process; a second call changes nothing.
pub fn init(filter: &str, format: LogFormat) -> Result<(), BadFilter> {
    let filter: EnvFilter = filter.parse()?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let heard = filter_fn(|line| !line.target().starts_with(NEVER_HEARD));
    let already = match format {
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).finish();
            lines.with(heard).try_init()
        }
        LogFormat::Text => lines.finish().with(heard).try_init(),
    };
    // Tests and quickstart share one process with whatever was set up first.
    let _already = already;
    Ok(())
}
