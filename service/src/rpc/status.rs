//! The one table from errors to gRPC status codes. No wildcard arm: a new error must be placed.

use kvatlas_proto::v1;
use tonic::{Code, Status};

use crate::donors::{owners::OwnerRefusal, writer::WriteRefusal};

#[must_use]
pub fn owner(refusal: &OwnerRefusal) -> Status {
    let code = match refusal {
        OwnerRefusal::OldGeneration { .. } => Code::FailedPrecondition,
        OwnerRefusal::TooMany => Code::ResourceExhausted,
    };
    Status::new(code, refusal.to_string())
}

#[must_use]
pub fn write(refusal: &WriteRefusal) -> Status {
    let code = match refusal {
        WriteRefusal::Owner(refusal) => return owner(refusal),
        WriteRefusal::UnknownNamespace => Code::NotFound,
        WriteRefusal::TooManyTokens { .. } => Code::InvalidArgument,
        WriteRefusal::AllLeased
        | WriteRefusal::TooManyNamespaces
        | WriteRefusal::QueueFull => Code::ResourceExhausted,
        WriteRefusal::Store(error) => {
            tracing::error!(%error, "a donor write failed");
            Code::Internal
        }
        WriteRefusal::Stopping => Code::Unavailable,
    };
    Status::new(code, refusal.to_string())
}

/// A refusal inside a stream.
#[must_use]
pub fn call(status: &Status) -> v1::CallError {
    v1::CallError { code: status.code().into(), message: status.message().to_owned() }
}
