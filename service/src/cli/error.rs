//! What can go wrong with a command, and what to do about it.

use std::{
    io,
    path::{Path, PathBuf},
};

use kvatlas_client::{ClientError, MissReason};

use tonic::Code;

use super::{EXIT_FAILED, EXIT_NOT_FOUND, EXIT_USAGE};

const NOT_RUNNING: &str =
    "Is the server running? Start it with `kvatlas serve`, or name another with --address.";
const NO_TOKEN: &str = "Name the file of a token that the server knows with --token-file.";
const TOO_SLOW: &str = "Give it more time with --timeout-ms, or see `kvatlas status`.";

#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error(transparent)]
    Call(#[from] ClientError),
    /// A look-up that the server did not answer.
    #[error("{detail}")]
    Lookup { reason: MissReason, detail: String },
    /// Something that the command line names does not make sense.
    #[error("{0}")]
    Usage(String),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// Some calls of many were made.
    #[error("{done}, then: {error}")]
    Partly { done: String, error: ClientError },
    #[error("{0}")]
    NotFound(String),
    #[error(transparent)]
    Output(#[from] io::Error),
    #[error("{0}")]
    Server(String),
}

impl CliError {
    pub(super) fn server(error: impl std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            message = format!("{message}: {inner}");
            cause = inner.source();
        }
        Self::Server(message)
    }

    pub(super) fn file(path: &Path, source: io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }

    /// A reader such as `head` that has seen enough.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::File { .. } => EXIT_USAGE,
            Self::NotFound(_) => EXIT_NOT_FOUND,
            Self::Call(error) if error.is_not_found() => EXIT_NOT_FOUND,
            Self::Call(_)
            | Self::Partly { .. }
            | Self::Lookup { .. }
            | Self::Output(_)
            | Self::Server(_) => EXIT_FAILED,
        }
    }

    /// What went wrong and what to do next.
    pub(super) fn advice(&self, address: &str) -> String {
        let next = match self {
            Self::Call(ClientError::Unreachable(_)) => NOT_RUNNING,
            Self::Call(ClientError::Timeout { .. }) => TOO_SLOW,
            Self::Lookup { reason, .. } if *reason == MissReason::ProviderError => NOT_RUNNING,
            Self::Lookup { reason, .. } if *reason == MissReason::ProviderTimeout => TOO_SLOW,
            Self::Call(ClientError::Refused { code, .. }) if *code == Code::Unauthenticated => {
                NO_TOKEN
            }
            Self::Call(
                ClientError::Refused { .. }
                | ClientError::Malformed(_)
                | ClientError::Invalid(_)
                | ClientError::StreamEnded
                | ClientError::File(_),
            )
            | Self::Partly { .. }
            | Self::Lookup { .. }
            | Self::Usage(_)
            | Self::File { .. }
            | Self::NotFound(_)
            | Self::Output(_)
            | Self::Server(_) => return self.to_string(),
        };
        format!("{address}: {self}\n{next}")
    }
}
