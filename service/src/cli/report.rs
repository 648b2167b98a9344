//! `kvatlas report`: what records of look-ups, manifests and reuse amount to, and what to do next.

use std::path::{Path, PathBuf};

use clap::Args;
use kvatlas_client::Client;

use super::{
    error::CliError,
    output::{Report, terminal_columns},
};
use crate::report::{
    html,
    picture::Picture,
    read,
    summary::{Assumptions, Summary, summarize},
    text,
};

/// Columns where the output is no terminal.
const COLUMNS: usize = 80;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvatlas report /var/lib/kvatlas/audit
  kvatlas report audit/ --prefill-tokens-per-second 12000 --cost-per-gpu-hour 2.5 --html report.html
  kvatlas report --live
  kvatlas report --json audit-1772431200000.jsonl | jq .verdict

A folder stands for its audit-*.jsonl and audit-*.jsonl.gz files. Lines that are damaged are left
out, counted and told; so are those of a vLLM connector's own audit, which is another file.")]
pub(super) struct ReportArgs {
    /// Audit files, and folders of them
    #[arg(value_name = "FILE|DIR", required_unless_present = "live")]
    paths: Vec<PathBuf>,
    /// Of the server's newest records instead
    #[arg(long, conflicts_with = "paths")]
    live: bool,
    /// The same as --output json
    #[arg(long)]
    json: bool,
    /// Also write the report as one HTML page that needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// What one engine prefills, to reckon the time that reuse would save
    #[arg(long, value_name = "N", value_parser = positive)]
    prefill_tokens_per_second: Option<f64>,
    /// What one engine costs, to reckon the cost that reuse would save
    #[arg(
        long,
        value_name = "COST",
        value_parser = positive,
        requires = "prefill_tokens_per_second"
    )]
    cost_per_gpu_hour: Option<f64>,
    /// What the cost is in
    #[arg(long, value_name = "TEXT", default_value = "USD")]
    currency: String,
}

impl ReportArgs {
    /// Whether the server is asked.
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    /// Whether JSON was asked for here, and not only by the flag of all commands.
    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// Of the server's newest records.
    pub(super) async fn ask(self, client: &Client) -> Result<Report, CliError> {
        let mut picture = Picture::default();
        for line in client.read_window(None, 0).await? {
            picture.add(&line);
        }
        self.told(&picture, "the server's newest records".into())
    }

    /// Of files.
    pub(super) fn run(self) -> Result<Report, CliError> {
        let picture = read::read(&self.paths).map_err(|error| match error {
            read::ReadError::Unreadable { path, error } => CliError::File {
                path,
                source: error,
            },
            read::ReadError::NoFiles { .. } | read::ReadError::TooMany => {
                CliError::Usage(error.to_string())
            }
        })?;
        let source = source(&self.paths);
        self.told(&picture, source)
    }

    fn told(self, picture: &Picture, source: String) -> Result<Report, CliError> {
        let assumptions = Assumptions {
            prefill_tokens_per_second: self.prefill_tokens_per_second,
            cost_per_gpu_hour: self.cost_per_gpu_hour,
            currency: self.currency,
        };
        told(
            &summarize(picture, source, assumptions),
            self.html.as_deref(),
        )
    }
}

fn told(summary: &Summary, page: Option<&Path>) -> Result<Report, CliError> {
    let columns = terminal_columns().unwrap_or(COLUMNS);
    let mut text = text::text(summary, columns);
    if let Some(path) = page {
        std::fs::write(path, html::page(summary)).map_err(|source| CliError::File {
            path: path.to_owned(),
            source,
        })?;
        text += &format!("\nwritten: {}\n", path.display());
    }
    let json = serde_json::to_value(summary).map_err(CliError::server)?;
    Ok(Report::found(text, json))
}

// Names of files alone: a page may travel, and paths say where it came from.
fn source(paths: &[PathBuf]) -> String {
    let name = |path: &PathBuf| match path.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => path.display().to_string(),
    };
    match paths {
        [one] => name(one),
        [] | [..] => format!("{} files and folders", paths.len()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number.is_finite() && number > 0.0 {
        Ok(number)
    } else {
        Err("expected a number above 0".into())
    }
}
