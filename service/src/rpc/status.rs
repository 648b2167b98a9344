//! The one table from errors to gRPC status codes. No wildcard arm: a new error must be placed.

use kvatlas_proto::v1;
use tonic::{Code, Status};

use crate::{
    access::Refusal,
    donors::{owners::OwnerRefusal, writes::WriteRefusal},
    events::feeds::FollowError,
    routing::{
        encoder::{EncoderError, registry},
        manifest::ManifestError,
        prior::PerHeadError,
        priors::PutError,
        query::{PlanError, QueriesFull},
        resolve::ResolveError,
        scorer::ScoreError,
        summary::{PutSummaryError, SummaryError},
    },
};

/// Why a caller was turned away.
#[must_use]
pub fn access(refusal: &Refusal) -> Status {
    let code = match refusal {
        Refusal::NoToken | Refusal::NotBearer | Refusal::UnknownToken | Refusal::Ended => {
            Code::Unauthenticated
        }
        Refusal::Role(_) | Refusal::Scope | Refusal::Namespace | Refusal::Worker => {
            Code::PermissionDenied
        }
        Refusal::Rate { .. } => Code::ResourceExhausted,
    };
    let mut status = Status::new(code, refusal.to_string());
    if code == Code::ResourceExhausted {
        // For people and proxies, and for clients that try again by themselves.
        let metadata = status.metadata_mut();
        metadata.insert("retry-after", refusal.retry_after_s().into());
        metadata.insert("grpc-retry-pushback-ms", refusal.retry_after_ms().into());
    }
    status
}

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
        WriteRefusal::TooManyTokens { .. } | WriteRefusal::BlockHashes { .. } => {
            Code::InvalidArgument
        }
        WriteRefusal::AllLeased | WriteRefusal::TooManyNamespaces | WriteRefusal::QueueFull => {
            Code::ResourceExhausted
        }
        WriteRefusal::Store(error) => return failed("the donor was not stored", error),
        WriteRefusal::Stopping => Code::Unavailable,
    };
    Status::new(code, refusal.to_string())
}

#[must_use]
pub fn follow(refusal: &FollowError) -> Status {
    let code = match refusal {
        FollowError::Taken { .. } | FollowError::Pushed => Code::AlreadyExists,
        FollowError::TooMany => Code::ResourceExhausted,
        FollowError::Stopping => Code::Unavailable,
    };
    Status::new(code, refusal.to_string())
}

#[must_use]
pub fn manifest(error: &ManifestError) -> Status {
    let code = match error {
        ManifestError::Length { .. }
        | ManifestError::Policy(_)
        | ManifestError::FallbackPolicy(_)
        | ManifestError::FallbackNeedsPrior { .. }
        | ManifestError::FallbackNeedsTotalBlocks => Code::InvalidArgument,
        ManifestError::Resolve(error) => resolve(error),
        ManifestError::NotFound { .. } => Code::NotFound,
        ManifestError::QueryMissing => Code::InvalidArgument,
        ManifestError::QueryUnknown
        | ManifestError::EncoderMissing
        | ManifestError::SummaryMissing => Code::NotFound,
        ManifestError::EncoderBroken => Code::FailedPrecondition,
        // The handler loads and asks again; a prior that cannot be loaded is reported there.
        ManifestError::LoadPerHead(_) => Code::Internal,
    };
    Status::new(code, error.to_string())
}

/// Why a task was not scored.
#[must_use]
pub fn score(error: &ScoreError) -> Status {
    match error {
        ScoreError::Plan(error) => plan(error),
        ScoreError::Encoder(error) => encoder(error),
        ScoreError::Summary(error) => load_summary(error),
    }
}

fn resolve(error: &ResolveError) -> Code {
    match error {
        ResolveError::KMissing { .. }
        | ResolveError::KTooLarge { .. }
        | ResolveError::KNotTheBudget { .. }
        | ResolveError::KBelowPins { .. }
        | ResolveError::KTooLargePerHead { .. }
        | ResolveError::TotalBlocksTooLarge { .. }
        | ResolveError::TotalBlocksMissing => Code::InvalidArgument,
        // The request is sound; the prior that is stored cannot serve it.
        ResolveError::KBelowLists { .. }
        | ResolveError::TotalBlocksDiffer { .. }
        | ResolveError::NothingListed { .. }
        | ResolveError::PriorMissing { .. }
        | ResolveError::ScoresMissing { .. } => Code::FailedPrecondition,
    }
}

#[must_use]
pub fn put_prior(error: &PutError) -> Status {
    let code = match error {
        PutError::PrefixHash { .. }
        | PutError::QueryHash { .. }
        | PutError::Algorithm { .. }
        | PutError::RepairName { .. }
        | PutError::RepairRatio
        | PutError::Import(_)
        | PutError::Stored(_)
        | PutError::NoBlocks => Code::InvalidArgument,
        PutError::Full | PutError::TooManyAlgorithms => Code::ResourceExhausted,
        PutError::BlocksDiffer(_) => Code::FailedPrecondition,
        PutError::Store(error) => return failed("the prior was not stored", error),
    };
    Status::new(code, error.to_string())
}

/// The rankings of a stored prior's heads that cannot be read.
#[must_use]
pub fn per_head(error: &PerHeadError) -> Status {
    tracing::error!(%error, "per-head rankings could not be read");
    Status::data_loss(error.to_string())
}

#[must_use]
pub fn queries_full(full: &QueriesFull) -> Status {
    let code = match full {
        QueriesFull::Number { .. } | QueriesFull::Bytes { .. } => Code::ResourceExhausted,
    };
    Status::new(code, full.to_string())
}

/// Why a query cannot be scored: on its own, or against the key summary that is stored.
#[must_use]
pub fn plan(error: &PlanError) -> Status {
    let code = if error.is_of_request() {
        Code::InvalidArgument
    } else {
        Code::FailedPrecondition
    };
    Status::new(code, error.to_string())
}

#[must_use]
pub fn put_encoder(error: &registry::PutError) -> Status {
    let code = match error {
        registry::PutError::Name { .. }
        | registry::PutError::ModelDir { .. }
        | registry::PutError::NotBelow
        | registry::PutError::Model(_) => Code::InvalidArgument,
        registry::PutError::NoModelsDir => Code::FailedPrecondition,
        registry::PutError::Full => Code::ResourceExhausted,
        registry::PutError::Store(error) => {
            return failed("the encoder was not stored", error);
        }
    };
    Status::new(code, error.to_string())
}

#[must_use]
pub fn put_summary(error: &PutSummaryError) -> Status {
    let code = match error {
        PutSummaryError::PrefixHash { .. }
        | PutSummaryError::Frame(_)
        | PutSummaryError::Import(_)
        | PutSummaryError::Unknown { .. }
        | PutSummaryError::FrozenTwice
        | PutSummaryError::OtherKeys { .. }
        | PutSummaryError::Missing { .. }
        | PutSummaryError::Shape { .. }
        | PutSummaryError::Dimension { .. }
        | PutSummaryError::HeadDim { .. }
        | PutSummaryError::RowElements { .. }
        | PutSummaryError::TableBytes { .. }
        | PutSummaryError::Value { .. } => Code::InvalidArgument,
        PutSummaryError::BlocksDiffer(_) => Code::FailedPrecondition,
        PutSummaryError::Full => Code::ResourceExhausted,
        PutSummaryError::Unwanted => Code::Cancelled,
        PutSummaryError::NoRandomness
        | PutSummaryError::Unreadable(_)
        | PutSummaryError::Store(_) => {
            return failed("the key summary was not stored", error);
        }
    };
    Status::new(code, error.to_string())
}

#[must_use]
pub fn encoder(error: &EncoderError) -> Status {
    let code = if error.is_of_request() {
        Code::InvalidArgument
    } else {
        // What is stored does not go together, or not any more.
        Code::FailedPrecondition
    };
    Status::new(code, error.to_string())
}

/// A stored key summary that cannot be read.
#[must_use]
pub fn load_summary(error: &SummaryError) -> Status {
    tracing::error!(%error, "a key summary could not be read");
    let code = match error {
        SummaryError::Damaged { .. } => Code::DataLoss,
        SummaryError::Store(_) => Code::Internal,
    };
    Status::new(code, error.to_string())
}

/// A refusal inside a stream.
#[must_use]
pub fn call(status: &Status) -> v1::CallError {
    v1::CallError {
        code: status.code().into(),
        message: status.message().to_owned(),
    }
}

/// What the operator must act on: the log gets all causes, the caller no path of the server's.
pub fn failed(what: &'static str, error: &dyn std::error::Error) -> Status {
    let mut causes = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        causes = format!("{causes}: {inner}");
        cause = inner.source();
    }
    tracing::error!(error = causes, "{what}");
    Status::internal(format!("{what}: the server's log says why"))
}
