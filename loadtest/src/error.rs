//! What can end a run.

use std::io;

/// Why a run could not be finished, or was finished and failed.
#[derive(Debug, thiserror::Error)]
pub enum LoadtestError {
    #[error("passages, line {line}: {reason}")]
    Passages { line: usize, reason: String },
    #[error("argument {argument}: {reason}")]
    Argument {
        argument: &'static str,
        reason: String,
    },
    #[error("{role} process: {reason}")]
    Child { role: &'static str, reason: String },
    #[error("{role} could not be started: {source}")]
    Spawn {
        role: &'static str,
        source: io::Error,
    },
    #[error("file or socket: {0}")]
    Io(#[from] io::Error),
    #[error("connection: {0}")]
    Transport(#[from] tonic::transport::Error),
    #[error("{call}: {status}")]
    Call {
        call: &'static str,
        // Boxed: a status is much larger than the rest.
        status: Box<tonic::Status>,
    },
    #[error("{call}: wrong answer: {reason}")]
    WrongAnswer { call: &'static str, reason: String },
    #[error("{count} calls failed; the first: {first}")]
    Failed { count: u64, first: String },
    #[error("{count} spans were reported that are not there")]
    FalseSpans { count: u64 },
    #[error("report: {0}")]
    Report(#[from] serde_json::Error),
    #[error("server: {0}")]
    Serve(String),
}

impl LoadtestError {
    /// A refused or broken call.
    #[must_use]
    pub fn call(call: &'static str, status: tonic::Status) -> Self {
        Self::Call {
            call,
            status: Box::new(status),
        }
    }
}
