//! The Events service: what engines hold, and which of them a prompt should go to.

use std::{pin::Pin, sync::Arc};

use kvatlas_proto::v1::{self, events_server::Events};
use tokio::sync::oneshot;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    Core,
    access::NOBODYS,
    clock::Deadline,
    convert::events::{self as wire, WorkerLookup},
    donor_events,
};
use crate::{
    access::Pass,
    donors::{
        catalog::Catalog,
        namespace::Namespace,
        owners::OwnerKey,
        writes::{NamespaceName, Removal, WriteRefusal},
    },
};

/// Longer prompts are hashed on a worker thread: they would hold up an async one too long.
const INLINE_TOKENS_MAX: usize = 32_768;

/// Serves kvatlas.v1.Events.
#[derive(Debug, Clone)]
pub struct EventsService(pub Arc<Core>);

pub(super) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Events for EventsService {
    type PublishStream = Answers<v1::PublishResponse>;

    async fn publish(
        &self,
        request: Request<Streaming<v1::PublishRequest>>,
    ) -> Result<Response<Self::PublishStream>, Status> {
        let pass = self.0.pass(request.extensions())?;
        super::publish::publish(&self.0, pass, request.into_inner()).map(Response::new)
    }

    async fn find_workers(
        &self,
        request: Request<v1::FindWorkersRequest>,
    ) -> Result<Response<v1::FindWorkersResponse>, Status> {
        let core = &self.0;
        let deadline = core.deadline(request.metadata());
        deadline.check()?;
        let pass = core.pass(request.extensions())?;
        let lookup = wire::worker_lookup(request.into_inner())?;
        let whole = searched(core, &pass, lookup.namespace.as_ref())?;
        let answer = if lookup.tokens.len() <= INLINE_TOKENS_MAX {
            find((core, &pass), &lookup, whole.as_ref())
        } else {
            find_aside((core, pass), lookup, whole, deadline).await?
        };
        Ok(Response::new(answer))
    }

    async fn finish_requests(
        &self,
        request: Request<v1::FinishRequestsRequest>,
    ) -> Result<Response<v1::FinishRequestsResponse>, Status> {
        let ids = wire::finished(request.into_inner())?;
        let finished = self.0.feeds.fleet.finish(&ids);
        Ok(Response::new(v1::FinishRequestsResponse {
            finished: u32::try_from(finished).unwrap_or(u32::MAX),
        }))
    }

    type PublishDonorEventsStream = donor_events::Answers;

    async fn publish_donor_events(
        &self,
        request: Request<Streaming<v1::PublishDonorEventsRequest>>,
    ) -> Result<Response<Self::PublishDonorEventsStream>, Status> {
        let pass = self.0.pass(request.extensions())?;
        let answers = donor_events::publish(&self.0, &pass, request.into_inner());
        Ok(Response::new(answers))
    }
}

/// The namespace that a selector names, in full.
pub(super) fn whole(
    catalog: &Catalog,
    name: Option<&NamespaceName>,
) -> Result<Option<Namespace>, Status> {
    match name {
        None => Ok(None),
        Some(NamespaceName::Full(namespace)) => Ok(Some(Namespace::clone(namespace))),
        Some(NamespaceName::Id(id)) => match catalog.shard(*id) {
            Some(shard) => Ok(Some(shard.namespace.clone())),
            None => Err(super::status::write(&WriteRefusal::UnknownNamespace)),
        },
    }
}

// The namespace whose workers are searched. One that is not the caller's has none, as one that does
// not exist; and its id is not known.
fn searched(
    core: &Core,
    pass: &Pass,
    name: Option<&NamespaceName>,
) -> Result<Option<Namespace>, Status> {
    let is_covered = match name {
        None => pass.scope().namespaces.cover_tenantless(),
        Some(NamespaceName::Full(whole)) => core.covers(pass, whole.id(), Some(whole)),
        Some(NamespaceName::Id(id)) => core.covers(pass, *id, None),
    };
    match name {
        _ if is_covered => whole(&core.catalog, name),
        Some(NamespaceName::Id(_)) => whole(&core.catalog, Some(&NamespaceName::Id(NOBODYS))),
        // Incomplete, so that nobody can have it.
        Some(NamespaceName::Full(asked)) => Ok(Some(nobodys(asked.block_size))),
        None => Ok(Some(nobodys(1))),
    }
}

fn nobodys(block_size: u32) -> Namespace {
    Namespace {
        block_size,
        ..Namespace::default()
    }
}

/// Removes the donors in a worker's device memory, and those that were announced of it.
pub(crate) async fn remove_device_donors(
    core: &Core,
    worker_id: &str,
    ranks: &[u32],
) -> Result<u64, Status> {
    let mut removed = 0;
    for &data_parallel_rank in ranks {
        let worker_id = worker_id.into();
        let owner = OwnerKey {
            worker_id,
            data_parallel_rank,
        };
        core.donor_events.forget_worker(&owner);
        let gone = core.writes.remove(Removal::OnDevice(owner)).await;
        removed += gone.map_err(|refusal| super::status::write(&refusal))?;
    }
    Ok(removed)
}

fn find(
    (core, pass): (&Core, &Pass),
    lookup: &WorkerLookup,
    whole: Option<&Namespace>,
) -> v1::FindWorkersResponse {
    let started_ns = core.clock.now_ns();
    let namespace = core.catalog.residents.engine_namespace(whole);
    let items = lookup.items();
    let visible = &pass.scope().workers;
    let query = lookup.query(&items, namespace, whole, visible);
    let request = lookup.pick.then_some(lookup.request_id.as_str());
    let fleet = &core.feeds.fleet;
    let (workers, picked) = fleet.find(&query, request, core.clock.now_ms());
    let held = workers
        .first()
        .map_or(0, |best| best.holding.device_tokens());
    let took_ns = core.clock.now_ns().saturating_sub(started_ns);
    core.metrics.workers.found(took_ns, held, picked.is_some());
    v1::FindWorkersResponse {
        workers: workers.iter().map(wire::worker_to_wire).collect(),
        picked: picked
            .as_ref()
            .map(|picked| wire::owner_to_wire(&picked.owner)),
        charged_blocks: picked.as_ref().map_or(0, |picked| picked.charged_blocks),
        in_flight: picked.is_some_and(|picked| picked.is_in_flight),
    }
}

async fn find_aside(
    (core, pass): (&Arc<Core>, Pass),
    lookup: WorkerLookup,
    whole: Option<Namespace>,
    deadline: Deadline,
) -> Result<v1::FindWorkersResponse, Status> {
    let (reply, found) = oneshot::channel();
    let there = Arc::clone(core);
    let work = move || {
        if !reply.is_closed() {
            // The caller may have gone meanwhile.
            let _gone = reply.send(find((&there, &pass), &lookup, whole.as_ref()));
        }
    };
    core.finders
        .submit(work)
        .map_err(|_full| Status::resource_exhausted("the queue for long prompts is full"))?;
    deadline
        .bound(found)
        .await?
        .map_err(|_stopping| Status::unavailable("the server is stopping"))
}
