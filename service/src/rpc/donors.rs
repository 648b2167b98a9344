//! The Donors service: look-ups inline, writes through the one writer.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
};

use kvatlas_proto::v1::{self, donors_server::Donors};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{
    Core,
    convert::{self, leases as lease_wire},
    find::find,
    incoming::Incoming,
    records::{self, Call, Reported},
    status,
};
use crate::{
    access::Pass,
    donors::{
        owners::Announced,
        scope::Namespaces,
        writes::{Admission, NewDonor, PendingRegistration, Registered, Removal, WriteRefusal},
    },
};

/// Registrations of one stream that wait for their acknowledgement.
const STREAM_PENDING_MAX: usize = 1024;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Serves kvatlas.v1.Donors.
#[derive(Debug, Clone)]
pub struct DonorsService(pub Arc<Core>);

#[tonic::async_trait]
impl Donors for DonorsService {
    async fn find_donor(
        &self,
        request: Request<v1::FindDonorRequest>,
    ) -> Result<Response<v1::FindDonorResponse>, Status> {
        let call = Call::unary(&self.0, &request);
        let pass = self.0.pass(request.extensions())?;
        find(&self.0, &pass, request.into_inner(), call)
            .await
            .map(Response::new)
    }

    type FindDonorsStream = Answers<v1::FindDonorsResponse>;

    async fn find_donors(
        &self,
        request: Request<Streaming<v1::FindDonorsRequest>>,
    ) -> Result<Response<Self::FindDonorsStream>, Status> {
        let core = Arc::clone(&self.0);
        let seat = records::seat(&core, &request);
        let pass = core.pass(request.extensions())?;
        let answers = self.0.incoming(request.into_inner()).then(move |message| {
            let (core, pass) = (Arc::clone(&core), pass.clone());
            let call = Call::message(&core, seat.as_deref());
            async move {
                let v1::FindDonorsRequest {
                    correlation_id,
                    request,
                } = message?;
                let found = match core.enter(&pass) {
                    Ok(_permit) => find(&core, &pass, request.unwrap_or_default(), call).await,
                    Err(status) => Err(status),
                };
                let result = Some(match found {
                    Ok(answer) => v1::find_donors_response::Result::Answer(answer),
                    Err(status) => v1::find_donors_response::Result::Error(status::call(&status)),
                });
                Ok(v1::FindDonorsResponse {
                    correlation_id,
                    result,
                })
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn announce_owner(
        &self,
        request: Request<v1::AnnounceOwnerRequest>,
    ) -> Result<Response<v1::AnnounceOwnerResponse>, Status> {
        let core = &self.0;
        let deadline = core.deadline(request.metadata());
        deadline.check()?;
        let pass = core.pass(request.extensions())?;
        let (key, generation, ttl_ms) = convert::donors::announcement(request.into_inner())?;
        core.speaks_for(&pass, &key)?;
        let now_ms = core.clock.now_ms();
        let until_ms = now_ms + u64::from(ttl_ms);
        let (owner, announced) = core
            .catalog
            .owners
            .announce(&key, generation, until_ms, now_ms)
            .map_err(|refusal| status::owner(&refusal))?;
        let dropped_donors = match announced {
            Announced::Renewed => 0,
            // Their leases are stale already: the generation has changed.
            Announced::Began => {
                let older = Removal::OlderThan(key, generation);
                let removed = deadline.bound(core.writes.remove(older)).await?;
                let removed = removed.map_err(|refusal| status::write(&refusal))?;
                owner.swept_below.fetch_max(generation, Ordering::AcqRel);
                removed
            }
        };
        Ok(Response::new(v1::AnnounceOwnerResponse {
            epoch: core.catalog.epoch,
            dropped_donors,
            held_donors: owner.donors.load(Ordering::Relaxed),
            ttl_ms,
        }))
    }

    async fn register_donor(
        &self,
        request: Request<v1::RegisterDonorRequest>,
    ) -> Result<Response<v1::RegisterDonorResponse>, Status> {
        let core = &self.0;
        let deadline = core.deadline(request.metadata());
        deadline.check()?;
        let pass = core.pass(request.extensions())?;
        let donor = new_donor(core, &pass, request.into_inner())?;
        let pending = core
            .writes
            .try_register(donor)
            .map_err(|refusal| status::write(&refusal))?;
        let registered = deadline.bound(settled(core, pending)).await??;
        Ok(Response::new(convert::donors::registered(registered)))
    }

    type RegisterDonorsStream = Answers<v1::RegisterDonorsResponse>;

    async fn register_donors(
        &self,
        request: Request<Streaming<v1::RegisterDonorsRequest>>,
    ) -> Result<Response<Self::RegisterDonorsStream>, Status> {
        let core = Arc::clone(&self.0);
        let (sender, receiver) = mpsc::channel(STREAM_PENDING_MAX);
        let pass = core.pass(request.extensions())?;
        let messages = self.0.paced(request.into_inner(), &pass);
        let reader = (Arc::clone(&self.0), pass);
        // Ends with the stream: the receiver goes when the call does.
        self.0
            .supervisor
            .task("register-stream", queue_all(reader, messages, sender));
        let answers = ReceiverStream::new(receiver).then(move |(correlation_id, queued)| {
            let core = Arc::clone(&core);
            async move {
                let settled = match queued {
                    Queued::Refused(status) => Err(status),
                    Queued::Broken(status) => return Err(status),
                    Queued::Pending(pending) => settled(&core, pending).await,
                };
                let result = Some(match settled {
                    Ok(registered) => v1::register_donors_response::Result::Acknowledged(
                        convert::donors::registered(registered),
                    ),
                    Err(status) => {
                        v1::register_donors_response::Result::Refused(status::call(&status))
                    }
                });
                Ok(v1::RegisterDonorsResponse {
                    correlation_id,
                    result,
                })
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn remove_donors(
        &self,
        request: Request<v1::RemoveDonorsRequest>,
    ) -> Result<Response<v1::RemoveDonorsResponse>, Status> {
        let core = &self.0;
        let deadline = core.deadline(request.metadata());
        let pass = core.pass(request.extensions())?;
        let removal = convert::donors::removal(request.into_inner())?;
        let removal = within(core, &pass, removal)?;
        match deadline.bound(core.writes.remove(removal)).await? {
            Ok(removed) => Ok(Response::new(v1::RemoveDonorsResponse { removed })),
            // Nothing is known of the namespace, so nothing of it is left.
            Err(WriteRefusal::UnknownNamespace) => {
                Ok(Response::new(v1::RemoveDonorsResponse { removed: 0 }))
            }
            Err(refusal) => Err(status::write(&refusal)),
        }
    }

    async fn report_reuse(
        &self,
        request: Request<v1::ReportReuseRequest>,
    ) -> Result<Response<v1::ReportReuseResponse>, Status> {
        let core = &self.0;
        let call = Call::unary(core, &request);
        let pass = core.pass(request.extensions())?;
        let message = request.into_inner();
        let v1::ReportReuseRequest {
            request_id,
            holder,
            lease_id,
            provenance,
            reason,
            tokens_loaded,
            invalid_blocks,
        } = message;
        convert::check_length("request_id", &request_id, 0, convert::donors::ID_BYTES_MAX)?;
        let reason = convert::donors::reason(reason)?;
        let provenance = convert::donors::provenance(provenance)?;
        let released = if lease_id.is_empty() {
            false
        } else {
            lease_wire::check_lease_id(&lease_id)?;
            lease_wire::check_holder(&holder)?;
            let release = || {
                let now_ms = core.clock.now_ms();
                core.donor_leases.release(now_ms, &lease_id, &holder).0
            };
            core.may_see_lease(&pass, &lease_id) && release()
        };
        let reported = Reported {
            request_id: &request_id,
            provenance,
            reason,
            tokens_loaded,
            invalid_blocks,
            released,
        };
        records::reuse(core, call, reported);
        Ok(Response::new(v1::ReportReuseResponse { released }))
    }
}

// What of a removal its caller may ask for: of what is not its own there is nothing to remove.
fn within(core: &Core, pass: &Pass, removal: Removal) -> Result<Removal, Status> {
    Ok(match removal {
        Removal::Ids(name, ids) => Removal::Ids(core.readable(pass, name), ids),
        Removal::Namespace(name) => Removal::Namespace(core.readable(pass, name)),
        Removal::Owner(owner) => {
            core.speaks_for(pass, &owner)?;
            match &pass.scope().namespaces {
                Namespaces::All => Removal::Owner(owner),
                some @ Namespaces::Of { .. } => Removal::OwnerIn(owner, some.clone()),
            }
        }
        Removal::OwnerIn(..) | Removal::OnDevice(_) | Removal::OlderThan(..) => removal,
    })
}

#[derive(Debug)]
enum Queued {
    Pending(PendingRegistration),
    Refused(Status),
    /// The stream itself is at an end.
    Broken(Status),
}

async fn queue_all(
    (core, pass): (Arc<Core>, Pass),
    mut messages: Incoming<v1::RegisterDonorsRequest>,
    sender: mpsc::Sender<(u64, Queued)>,
) {
    loop {
        let (correlation_id, queued) = match messages.next().await {
            None => return,
            Some(Err(status)) => (0, Queued::Broken(status)),
            Some(Ok(v1::RegisterDonorsRequest {
                correlation_id,
                request,
            })) => (
                correlation_id,
                queue_one(&core, &pass, request.unwrap_or_default()).await,
            ),
        };
        let is_last = matches!(queued, Queued::Broken(_));
        if sender.send((correlation_id, queued)).await.is_err() || is_last {
            return;
        }
    }
}

fn new_donor(
    core: &Core,
    pass: &Pass,
    request: v1::RegisterDonorRequest,
) -> Result<NewDonor, Status> {
    let now_ms = core.clock.now_ms();
    let mut donor = convert::donors::registration(request, now_ms, core.near.texts.is_some())?;
    core.speaks_for(pass, &donor.owner)?;
    donor.namespace = core.writable(pass, donor.namespace)?;
    // A lease that has run out keeps no donor from making room.
    core.donor_leases.sweep(now_ms);
    Ok(donor)
}

async fn queue_one(core: &Core, pass: &Pass, request: v1::RegisterDonorRequest) -> Queued {
    let donor = match new_donor(core, pass, request) {
        Ok(donor) => donor,
        Err(status) => return Queued::Refused(status),
    };
    match core.writes.register_when_free(donor).await {
        Ok(pending) => Queued::Pending(pending),
        Err(refusal) => Queued::Refused(status::write(&refusal)),
    }
}

async fn settled(core: &Core, pending: PendingRegistration) -> Result<Registered, Status> {
    let registered = pending
        .await
        .map_err(|_| status::write(&WriteRefusal::Stopping))?
        .map_err(|refusal| status::write(&refusal))?;
    let counted = match &registered.admission {
        Admission::Added | Admission::Replaced => &core.metrics.donor_registrations,
        Admission::Covered(_) => &core.metrics.donors_unstored.covered,
        Admission::NothingCaptured => &core.metrics.donors_unstored.nothing_captured,
    };
    counted.inc();
    core.metrics
        .donor_evictions
        .inc_by(u64::from(registered.evicted));
    Ok(registered)
}
