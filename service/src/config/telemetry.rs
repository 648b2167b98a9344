//! What is recorded of calls and where it goes: flags and environment.

use std::path::PathBuf;

use clap::Args;

use super::parse_share;

/// A file holds at least some chunks of lines.
const AUDIT_BYTES_LEAST: u64 = 1 << 20;

/// Records, audit log and traces.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Telemetry")]
pub struct TelemetryArgs {
    /// Folder for the audit log: one line of JSON for each look-up, manifest and report, without
    /// tokens or text (docs/audit.md). Without it nothing is written.
    #[arg(long, env = "KVATLAS_AUDIT", value_name = "PATH")]
    pub audit: Option<PathBuf>,

    /// A file of the audit log ends before it grows beyond this, in bytes.
    #[arg(
        long,
        env = "KVATLAS_AUDIT_BYTES_MAX",
        default_value_t = 256 << 20,
        value_parser = clap::value_parser!(u64).range(AUDIT_BYTES_LEAST..),
        value_name = "BYTES"
    )]
    pub audit_bytes_max: u64,

    /// And when it is so old, in seconds.
    #[arg(
        long,
        env = "KVATLAS_AUDIT_AGE_S_MAX",
        default_value_t = 86_400,
        value_parser = clap::value_parser!(u32).range(1..),
        value_name = "S"
    )]
    pub audit_age_s_max: u32,

    /// Files of the audit log that are kept; the oldest of more are removed.
    #[arg(
        long,
        env = "KVATLAS_AUDIT_FILES_MAX",
        default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        value_name = "N"
    )]
    pub audit_files_max: u32,

    /// Where spans go, over OTLP by gRPC, such as http://127.0.0.1:4317. Without it none is made.
    #[arg(
        long,
        env = "KVATLAS_OTLP_ENDPOINT",
        value_parser = parse_endpoint,
        value_name = "URL"
    )]
    pub otlp_endpoint: Option<String>,

    /// Share of calls that are traced where the caller's traceparent does not say whether.
    #[arg(
        long,
        env = "KVATLAS_TRACE_RATIO",
        default_value_t = 0.01,
        value_parser = parse_share,
        value_name = "SHARE"
    )]
    pub trace_ratio: f32,

    /// Whether calls are counted and recorded at all. False only to measure what that costs.
    #[arg(
        long,
        env = "KVATLAS_TELEMETRY",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_name = "BOOL"
    )]
    pub telemetry: bool,
}

impl Default for TelemetryArgs {
    fn default() -> TelemetryArgs {
        TelemetryArgs {
            audit: None,
            audit_bytes_max: 256 << 20,
            audit_age_s_max: 86_400,
            audit_files_max: 16,
            otlp_endpoint: None,
            trace_ratio: 0.01,
            telemetry: true,
        }
    }
}

fn parse_endpoint(text: &str) -> Result<String, String> {
    let is_plain = text.parse::<http::Uri>().is_ok_and(|uri| {
        let is_http = uri.scheme_str() == Some("http");
        is_http && uri.authority().is_some_and(|it| !it.as_str().contains('@'))
    });
    if is_plain {
        Ok(text.to_owned())
    } else {
        Err("must be http://HOST:PORT; for TLS, run a collector beside the server".into())
    }
}
