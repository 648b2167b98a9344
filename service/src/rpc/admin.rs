//! The Admin service: what the server holds, and the modes and gates that operators set.

use std::sync::Arc;

use kvatlas_proto::v1::{self, admin_server::Admin};
use tonic::{Request, Response, Status};

use super::{
    Core,
    convert::{
        self,
        donors::{gate_overrides, gates_to_wire, mode_to_wire},
        namespace,
    },
    events::remove_device_donors,
    status, window,
};
use crate::{
    access::Refusal,
    donors::{
        catalog::Shard, gate::GateOverrides, namespace::NamespaceId, owners::WORKER_ID_BYTES_MAX,
        record::Settings, writes::NamespaceName,
    },
};

/// Serves kvatlas.v1.Admin.
#[derive(Debug, Clone)]
pub struct AdminService(pub Arc<Core>);

#[tonic::async_trait]
impl Admin for AdminService {
    async fn get_status(
        &self,
        request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        let core = &self.0;
        let pass = core.pass(request.extensions())?;
        let now_ms = core.clock.now_ms();
        let (mode, gates) = core.catalog.rules(None);
        let leases = core.donor_leases.counts();
        let whole = v1::GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: core.catalog.epoch,
            uptime_ms: core.clock.uptime_ms(),
            mode: mode_to_wire(mode).into(),
            priors: core.priors.len() as u64,
            donors: core.catalog.donors(),
            donors_max: core.limits.capacity.donors_max,
            donor_tokens: core.catalog.tokens(),
            donor_tokens_max: core.limits.capacity.tokens_max,
            namespaces: core.catalog.namespaces() as u64,
            leases_held: leases.held as u64,
            leases_max: leases.capacity as u64,
            owners_live: core.catalog.owners.live(now_ms) as u64,
            calls_in_flight: core.admission.in_flight() as u64,
            calls_in_flight_max: core.admission.calls_max() as u64,
            damaged_records: core.damaged_records,
            gates: Some(gates_to_wire(&gates)),
            scoring_device: "cpu".to_owned(),
        };
        Ok(Response::new(if pass.scope().is_everything() {
            whole
        } else {
            uncounted(whole)
        }))
    }

    async fn list_namespaces(
        &self,
        request: Request<v1::ListNamespacesRequest>,
    ) -> Result<Response<v1::ListNamespacesResponse>, Status> {
        let pass = self.0.pass(request.extensions())?;
        let v1::ListNamespacesRequest {
            page_size,
            page_token,
        } = request.into_inner();
        let size = convert::page_size(page_size)?;
        let after = if page_token.is_empty() {
            None
        } else {
            let id = NamespaceId::parse(&page_token);
            Some(id.ok_or_else(|| convert::invalid("page_token", "is not one that a page gave"))?)
        };
        let core = &self.0;
        let mut shards = core.catalog.shards();
        let mine = &pass.scope().namespaces;
        shards.retain(|shard| {
            after.is_none_or(|after| shard.id > after)
                && mine.cover(shard.id, &shard.namespace.tenant_key)
        });
        let more = shards.len() > size;
        shards.truncate(size);
        let next_page_token = shards
            .last()
            .filter(|_| more)
            .map(|shard| shard.id.to_string())
            .unwrap_or_default();
        let namespaces = shards.iter().map(|shard| describe(core, shard)).collect();
        Ok(Response::new(v1::ListNamespacesResponse {
            namespaces,
            next_page_token,
        }))
    }

    async fn set_mode(
        &self,
        request: Request<v1::SetModeRequest>,
    ) -> Result<Response<v1::SetModeResponse>, Status> {
        let core = &self.0;
        let deadline = core.deadline(request.metadata());
        let pass = core.pass(request.extensions())?;
        let v1::SetModeRequest {
            namespace,
            mode,
            gates,
        } = request.into_inner();
        let mode = convert::donors::mode(mode)?;
        let gates = gates.as_ref().map(gate_overrides).transpose()?;
        let name = match namespace {
            None if !pass.scope().is_everything() => return Err(status::access(&Refusal::Scope)),
            None => None,
            Some(selector) => Some(core.writable(&pass, namespace::required(Some(selector))?)?),
        };
        let id = name.as_ref().map(|name| match name {
            NamespaceName::Id(id) => *id,
            NamespaceName::Full(namespace) => namespace.id(),
        });
        if name.is_none() && mode.is_none() && gates.is_none() {
            return Err(convert::invalid("mode", "must be given when gates are not"));
        }
        let follow = name.is_some();
        let change = move |old: Settings| Settings {
            mode: if follow && gates.is_none() {
                mode
            } else {
                mode.or(old.mode)
            },
            gates: gates.unwrap_or(GateOverrides::default()).or(&old.gates),
        };
        let set = deadline.bound(core.writes.set(name, change)).await?;
        set.map_err(|refusal| status::write(&refusal))?;
        let shard = id.and_then(|id| core.catalog.shard(id));
        let (mode, gates) = core.catalog.rules(shard.as_deref());
        Ok(Response::new(v1::SetModeResponse {
            mode: mode_to_wire(mode).into(),
            gates: Some(gates_to_wire(&gates)),
        }))
    }

    async fn add_event_source(
        &self,
        request: Request<v1::AddEventSourceRequest>,
    ) -> Result<Response<v1::AddEventSourceResponse>, Status> {
        let named = convert::events::named_source(request.into_inner())?;
        let added = self.0.feeds.follow(named, false);
        let added = added.map_err(|refusal| status::follow(&refusal))?;
        Ok(Response::new(v1::AddEventSourceResponse { added }))
    }

    async fn remove_event_source(
        &self,
        request: Request<v1::RemoveEventSourceRequest>,
    ) -> Result<Response<v1::RemoveEventSourceResponse>, Status> {
        let core = &self.0;
        let deadline = core.deadline(request.metadata());
        let worker = request.into_inner().worker_id;
        convert::check_length("worker_id", &worker, 1, WORKER_ID_BYTES_MAX)?;
        let (ranks, sources) = deadline.bound(core.feeds.unfollow(&worker)).await?;
        let removed = deadline.bound(remove_device_donors(core, &worker, &ranks));
        Ok(Response::new(v1::RemoveEventSourceResponse {
            removed_sources: u32::try_from(sources).unwrap_or(u32::MAX),
            removed_donors: removed.await??,
        }))
    }

    type ReadWindowStream = tokio_stream::Iter<window::Pages>;

    async fn read_window(
        &self,
        request: Request<v1::ReadWindowRequest>,
    ) -> Result<Response<Self::ReadWindowStream>, Status> {
        let pages = window::read(&self.0, request.into_inner())?;
        Ok(Response::new(tokio_stream::iter(pages)))
    }

    async fn list_event_sources(
        &self,
        _request: Request<v1::ListEventSourcesRequest>,
    ) -> Result<Response<v1::ListEventSourcesResponse>, Status> {
        let statuses = self.0.feeds.statuses();
        let sources = statuses.into_iter().map(convert::events::source_to_wire);
        Ok(Response::new(v1::ListEventSourcesResponse {
            sources: sources.collect(),
        }))
    }
}

// Counts over all tenants are not for who may name some: what others do would show in them.
fn uncounted(whole: v1::GetStatusResponse) -> v1::GetStatusResponse {
    v1::GetStatusResponse {
        priors: 0,
        donors: 0,
        donor_tokens: 0,
        namespaces: 0,
        leases_held: 0,
        owners_live: 0,
        calls_in_flight: 0,
        damaged_records: 0,
        ..whole
    }
}

fn describe(core: &Core, shard: &Shard) -> v1::NamespaceStatus {
    let (mode, gates) = core.catalog.rules(Some(shard));
    let donors = shard.read();
    v1::NamespaceStatus {
        namespace_id: shard.id.to_string(),
        namespace: Some(namespace::to_wire(&shard.namespace)),
        mode: mode_to_wire(mode).into(),
        mode_is_own: shard.settings.read().mode.is_some(),
        donors: donors.len() as u64,
        donor_tokens: donors.tokens(),
        gates: Some(gates_to_wire(&gates)),
    }
}
