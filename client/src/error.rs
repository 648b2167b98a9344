//! Why a call did not get its answer.

use std::{error::Error as _, io, time::Duration};

use tonic::{Code, Status};

/// What the caller can act on. No variant carries prompt text, tokens or salts.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no answer within {} ms", budget.as_millis())]
    Timeout { budget: Duration },
    /// The server is not there, or the connection broke.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The server answered with an error status.
    #[error("{message}")]
    Refused { code: Code, message: String },
    /// The server's answer contradicts the contract, so it cannot be used.
    #[error("the server's answer is not valid: {0}")]
    Malformed(String),
    /// The request was not sent because the server would refuse it.
    #[error("the request is not valid: {0}")]
    Invalid(&'static str),
    /// The stream ended before this answer came.
    #[error("the stream has ended")]
    StreamEnded,
    #[error("reading the file failed: {0}")]
    File(#[source] io::Error),
}

impl ClientError {
    /// A status that came after `elapsed` of `budget`.
    pub(crate) fn from_status(status: &Status, elapsed: Duration, budget: Duration) -> Self {
        // tonic enforces the deadline on this side too, and reports it as a cancellation.
        let timed_out = status.code() == Code::DeadlineExceeded
            || (status.code() == Code::Cancelled && elapsed >= budget);
        if timed_out {
            Self::Timeout { budget }
        } else if let Some(source) = status.source() {
            Self::Unreachable(root_cause(source))
        } else {
            Self::Refused {
                code: status.code(),
                message: status.message().to_owned(),
            }
        }
    }

    pub(crate) fn from_call_error(error: kvatlas_proto::v1::CallError) -> Self {
        Self::Refused {
            code: Code::from_i32(error.code),
            message: error.message,
        }
    }

    /// Whether the server said that there is no such thing.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == Code::NotFound)
    }
}

/// The innermost error says the most: "connection refused", not "transport error".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
