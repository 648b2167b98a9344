//! The Leases service: donor leases from the table, manifest leases from their own bytes.

use std::sync::Arc;

use kvatlas_proto::v1::{self, leases_server::Leases};
use tonic::{Request, Response, Status};

use super::{
    Core,
    convert::{
        self,
        leases::{check_holder, check_lease_id, grant, state},
    },
};
use crate::leases::{LeaseKind, LeaseState};

/// Serves kvatlas.v1.Leases.
#[derive(Debug, Clone)]
pub struct LeasesService(pub Arc<Core>);

#[tonic::async_trait]
impl Leases for LeasesService {
    async fn validate(
        &self,
        request: Request<v1::ValidateRequest>,
    ) -> Result<Response<v1::ValidateResponse>, Status> {
        let core = &self.0;
        let pass = core.pass(request.extensions())?;
        let v1::ValidateRequest { lease_id, holder } = request.into_inner();
        check_lease_id(&lease_id)?;
        convert::check_length("holder", &holder, 0, crate::leases::HOLDER_BYTES_MAX)?;
        let now_ms = core.clock.now_ms();
        let found = if LeaseKind::of(&lease_id) == Some(LeaseKind::Manifest) {
            core.manifest_leases
                .validate(now_ms, &lease_id, |generation| {
                    core.priors.is_current_generation(generation)
                        || core.summaries.is_current_generation(generation)
                })
        } else if !core.may_see_lease(&pass, &lease_id) {
            LeaseState::Unknown
        } else {
            let holder = (!holder.is_empty()).then_some(holder.as_str());
            core.donor_leases.validate(now_ms, &lease_id, holder)
        };
        let (state, remaining_ms) = state(found);
        Ok(Response::new(v1::ValidateResponse {
            state: state.into(),
            remaining_ms,
        }))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewRequest>,
    ) -> Result<Response<v1::RenewResponse>, Status> {
        let core = &self.0;
        let pass = core.pass(request.extensions())?;
        let v1::RenewRequest {
            lease_id,
            holder,
            ttl_ms,
        } = request.into_inner();
        check_lease_id(&lease_id)?;
        check_holder(&holder)?;
        if LeaseKind::of(&lease_id) == Some(LeaseKind::Manifest) {
            let problem = "a manifest lease cannot be renewed: ask for the manifest again";
            return Err(convert::invalid("lease_id", problem));
        }
        let ttl_ms = convert::ttl("ttl_ms", ttl_ms, core.limits.lease_ttl_ms)?;
        let now_ms = core.clock.now_ms();
        let (found, renewed) = if core.may_see_lease(&pass, &lease_id) {
            core.donor_leases.renew(now_ms, &lease_id, &holder, ttl_ms)
        } else {
            (LeaseState::Unknown, None)
        };
        let lease = renewed.as_ref().map(|renewed| grant(renewed, now_ms));
        Ok(Response::new(v1::RenewResponse {
            state: state(found).0.into(),
            lease,
        }))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseResponse>, Status> {
        let core = &self.0;
        let pass = core.pass(request.extensions())?;
        let v1::ReleaseRequest { lease_id, holder } = request.into_inner();
        check_lease_id(&lease_id)?;
        check_holder(&holder)?;
        if LeaseKind::of(&lease_id) == Some(LeaseKind::Manifest) {
            let problem = "a manifest lease ends by itself: it holds nothing to release";
            return Err(convert::invalid("lease_id", problem));
        }
        let (released, found) = if core.may_see_lease(&pass, &lease_id) {
            let now_ms = core.clock.now_ms();
            core.donor_leases.release(now_ms, &lease_id, &holder)
        } else {
            (false, LeaseState::Unknown)
        };
        Ok(Response::new(v1::ReleaseResponse {
            released,
            state: state(found).0.into(),
        }))
    }
}
