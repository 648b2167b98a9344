//! gRPC at the edge: the only place that knows generated types, `Status` or metadata.
//!
//! A handler is five moves: convert, admit and set the deadline, call, record, convert back.

pub mod access;
pub mod admin;
pub mod admission;
pub mod clock;
pub mod convert;
mod donor_events;
pub mod donors;
mod download;
pub mod encoders;
pub mod events;
mod find;
pub mod incoming;
pub mod leases;
pub mod near;
pub mod online;
mod publish;
pub mod queries;
pub mod records;
pub mod routing;
pub mod status;
pub mod summaries;
pub mod traced;
pub mod upload;
mod window;

use std::{sync::Arc, time::Duration};

use kvatlas_proto::v1;
use tokio::sync::{Semaphore, watch};
use tonic::{Streaming, metadata::MetadataMap, service::Routes};
use tonic_reflection::pb;

use self::{
    admission::Admission,
    clock::{Clock, Deadline},
    incoming::{Incoming, Pace},
};
use crate::{
    access::{Access, Pass},
    config::Exposure,
    donor_events::intake::Intake,
    donors::{
        catalog::Catalog,
        repeats::Repeats,
        writes::{Capacity, Writes},
    },
    events::feeds::Feeds,
    leases::{DonorLeases, ManifestLeases},
    routing::{
        encoder::registry::Encoders, priors::Priors, query::Queries, scorer::Scorer,
        summary::Summaries,
    },
    store::Store,
    supervise::{Supervisor, Workers},
    telemetry::{http::Stage, metrics::Metrics, recorder::Recorder, traces::Traces},
};

/// What the handlers work with.
#[derive(Debug)]
pub struct Core {
    pub store: Arc<Store>,
    pub priors: Arc<Priors>,
    pub summaries: Arc<Summaries>,
    pub encoders: Arc<Encoders>,
    pub scorer: Scorer,
    /// Put before they are used.
    pub queries: Queries,
    pub catalog: Arc<Catalog>,
    pub writes: Writes,
    pub donor_leases: DonorLeases,
    pub manifest_leases: ManifestLeases,
    pub repeats: Repeats,
    /// For imports of priors and encoders.
    pub importers: Workers,
    /// Priors on their way in or out: each is held in memory until it is imported or sent.
    pub uploads: Arc<Semaphore>,
    /// For uploads of key summaries, each on a thread for as long as it lasts.
    pub summary_importers: Workers,
    /// Key summaries being uploaded: each has a file of its own until it is imported.
    pub summary_uploads: Arc<Semaphore>,
    /// For look-ups of long prompts.
    pub finders: Workers,
    /// For what the seeds do not find.
    pub near: near::NearParts,
    /// The engines whose events are followed.
    pub feeds: Feeds,
    /// For events about donors of other providers.
    pub donor_events: Arc<Intake>,
    pub supervisor: Supervisor,
    pub metrics: Metrics,
    /// None where calls are neither counted nor recorded.
    pub recorder: Option<Arc<Recorder>>,
    /// None where nothing is traced.
    pub traces: Option<Arc<Traces>>,
    pub admission: Admission,
    /// Who may call.
    pub access: Access,
    pub clock: Clock,
    /// Where the server is in its life.
    pub stage: watch::Receiver<Stage>,
    pub limits: Limits,
    /// Records that could not be read at the start.
    pub damaged_records: u64,
}

/// What the operator set.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub message_bytes_max: usize,
    pub prior_bytes_max: u64,
    pub summary_bytes_max: u64,
    pub call_max: Duration,
    /// Of the upload of a key summary, which may be many GiB.
    pub upload_max: Duration,
    /// Milliseconds, when the request names none.
    pub lease_ttl_ms: u32,
    /// Milliseconds that a query is kept, when the request names none.
    pub query_ttl_ms: u32,
    pub capacity: Capacity,
}

impl Core {
    /// The deadline of a call.
    #[must_use]
    pub fn deadline(&self, metadata: &MetadataMap) -> Deadline {
        Deadline::of(metadata, &self.clock, self.limits.call_max)
    }

    /// The messages of a stream that stays open.
    pub fn incoming<T>(&self, messages: Streaming<T>) -> Incoming<T> {
        Incoming::new(messages, self.stage.clone(), None)
    }

    /// The same, of a stream that is slowed down where its token's limit is reached: refusing one
    /// of its messages would lose it.
    pub fn paced<T>(&self, messages: Streaming<T>, pass: &Pass) -> Incoming<T> {
        let pace = Pace {
            access: self.access.clone(),
            pass: pass.clone(),
        };
        Incoming::new(messages, self.stage.clone(), Some(pace))
    }

    /// The deadline of one message of a stream: the stream's own is for all of them.
    #[must_use]
    pub fn message_deadline(&self) -> Deadline {
        Deadline::of(&MetadataMap::new(), &self.clock, self.limits.call_max)
    }
}

/// Every kvatlas.v1 service and reflection, for one listener.
pub fn routes(core: &Arc<Core>) -> Result<Routes, tonic_reflection::server::Error> {
    let max = core.limits.message_bytes_max;
    let routing = routing::RoutingService(Arc::clone(core));
    let donors = donors::DonorsService(Arc::clone(core));
    let leases = leases::LeasesService(Arc::clone(core));
    let admin = admin::AdminService(Arc::clone(core));
    let events = v1::events_server::EventsServer::new(events::EventsService(Arc::clone(core)));
    // Each tells of the other as well.
    let reflection = |other| {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(other)
            .register_encoded_file_descriptor_set(kvatlas_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let routes =
        Routes::new(v1::routing_server::RoutingServer::new(routing).max_decoding_message_size(max))
            .add_service(
                v1::donors_server::DonorsServer::new(donors).max_decoding_message_size(max),
            )
            .add_service(
                v1::leases_server::LeasesServer::new(leases).max_decoding_message_size(max),
            )
            .add_service(events.max_decoding_message_size(max))
            .add_service(v1::admin_server::AdminServer::new(admin).max_decoding_message_size(max));
    if core.access.reflection == Exposure::Off {
        return Ok(routes);
    }
    // grpcurl before 1.9 and Python speak only the older one.
    Ok(routes
        .add_service(reflection(pb::v1alpha::FILE_DESCRIPTOR_SET).build_v1()?)
        .add_service(reflection(pb::v1::FILE_DESCRIPTOR_SET).build_v1alpha()?))
}
