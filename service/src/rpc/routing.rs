//! The Routing service: manifests inline, imports through the import thread.

use std::{pin::Pin, sync::Arc};

use kvatlas_proto::v1::{self, routing_server::Routing};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::{
    Core,
    clock::Deadline,
    convert::{self, check_length, invalid},
    download, encoders, online, queries,
    records::{self, Call},
    status, summaries, upload,
};
use crate::routing::{
    manifest::{Manifest, ManifestError, get_manifest},
    prior::{Prior, PriorKey},
    priors::{ALGORITHM_BYTES_MAX, PREFIX_HASH_BYTES_MAX, QUERY_HASH_BYTES_MAX},
};

/// Serves kvatlas.v1.Routing.
#[derive(Debug, Clone)]
pub struct RoutingService(pub Arc<Core>);

#[tonic::async_trait]
impl Routing for RoutingService {
    async fn get_manifest(
        &self,
        request: Request<v1::GetManifestRequest>,
    ) -> Result<Response<v1::GetManifestResponse>, Status> {
        let call = Call::unary(&self.0, &request);
        let request = request.into_inner();
        let answer = match given(&self.0, &request, &call.deadline) {
            Given::Answer(answer) => {
                records::manifest(&self.0, call, &request.prefix_hash, &answer);
                answer
            }
            Given::LoadFirst(prior) => answer_after_load(&self.0, request, prior, call).await,
            Given::Score => answer_scored(&self.0, request, call).await,
        };
        answer.map(Response::new)
    }

    type GetManifestsStream =
        Pin<Box<dyn Stream<Item = Result<v1::GetManifestsResponse, Status>> + Send>>;

    async fn get_manifests(
        &self,
        request: Request<Streaming<v1::GetManifestsRequest>>,
    ) -> Result<Response<Self::GetManifestsStream>, Status> {
        let core = Arc::clone(&self.0);
        let seat = records::seat(&core, &request);
        let pass = core.pass(request.extensions())?;
        let answers = self.0.incoming(request.into_inner()).then(move |message| {
            let (core, pass) = (Arc::clone(&core), pass.clone());
            let call = Call::message(&core, seat.as_deref());
            async move {
                let v1::GetManifestsRequest {
                    correlation_id,
                    request,
                } = message?;
                let given = match core.enter(&pass) {
                    Ok(_permit) => {
                        let request = request.unwrap_or_default();
                        match given(&core, &request, &call.deadline) {
                            Given::Answer(answer) => {
                                records::manifest(&core, call, &request.prefix_hash, &answer);
                                answer
                            }
                            Given::LoadFirst(prior) => {
                                answer_after_load(&core, request, prior, call).await
                            }
                            Given::Score => answer_scored(&core, request, call).await,
                        }
                    }
                    Err(status) => Err(status),
                };
                let result = Some(match given {
                    Ok(manifest) => v1::get_manifests_response::Result::Manifest(manifest),
                    Err(status) => v1::get_manifests_response::Result::Error(status::call(&status)),
                });
                Ok(v1::GetManifestsResponse {
                    correlation_id,
                    result,
                })
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn put_prior(
        &self,
        request: Request<Streaming<v1::PutPriorRequest>>,
    ) -> Result<Response<v1::PutPriorResponse>, Status> {
        let deadline = self.0.deadline(request.metadata());
        let outcome = upload::put_prior(&self.0, request.into_inner(), deadline).await?;
        Ok(Response::new(v1::PutPriorResponse {
            prior: Some(convert::routing::prior(&outcome.prior)),
            replaced: outcome.replaced,
        }))
    }

    async fn get_prior(
        &self,
        request: Request<v1::GetPriorRequest>,
    ) -> Result<Response<v1::Prior>, Status> {
        let key = key(request.into_inner().key)?;
        let found = self
            .0
            .priors
            .get(&key.prefix_hash, &key.query_hash, &key.algorithm);
        let prior = found.ok_or_else(|| Status::not_found("no prior is stored under this key"))?;
        Ok(Response::new(convert::routing::prior(&prior)))
    }

    async fn list_priors(
        &self,
        request: Request<v1::ListPriorsRequest>,
    ) -> Result<Response<v1::ListPriorsResponse>, Status> {
        let v1::ListPriorsRequest {
            page_size,
            page_token,
            prefix_hash_begins,
        } = request.into_inner();
        let size = convert::page_size(page_size)?;
        check_length(
            "prefix_hash_begins",
            &prefix_hash_begins,
            0,
            PREFIX_HASH_BYTES_MAX,
        )?;
        let after = if page_token.is_empty() {
            None
        } else {
            Some(read_token(&page_token)?)
        };
        // One more than the page tells whether there is a next one.
        let mut priors = self
            .0
            .priors
            .list(&prefix_hash_begins, after.as_ref(), size + 1);
        let more = priors.len() > size;
        priors.truncate(size);
        let next_page_token = priors
            .last()
            .filter(|_| more)
            .map(|prior| token(&prior.key))
            .unwrap_or_default();
        let priors = priors
            .iter()
            .map(|prior: &Arc<Prior>| convert::routing::prior(prior));
        Ok(Response::new(v1::ListPriorsResponse {
            priors: priors.collect(),
            next_page_token,
        }))
    }

    async fn delete_prior(
        &self,
        request: Request<v1::DeletePriorRequest>,
    ) -> Result<Response<v1::DeletePriorResponse>, Status> {
        let core = &self.0;
        let deadline = core.deadline(request.metadata());
        deadline.check()?;
        let key = key(request.into_inner().key)?;
        let priors = Arc::clone(&core.priors);
        let (reply, done) = tokio::sync::oneshot::channel();
        let queued = core.importers.submit(move || {
            let deleted = priors.delete(&key.prefix_hash, &key.query_hash, &key.algorithm);
            // A caller that has gone needs no answer.
            let _gone = reply.send(deleted);
        });
        queued.map_err(|_| Status::resource_exhausted("the import queue is full"))?;
        let deleted = deadline
            .bound(done)
            .await?
            .map_err(|_| Status::unavailable("the server is stopping"))?
            .map_err(|error| status::failed("a prior could not be deleted", &error))?;
        if deleted == 0 {
            return Err(Status::not_found("no prior is stored under this key"));
        }
        let deleted = u32::try_from(deleted).unwrap_or(u32::MAX);
        Ok(Response::new(v1::DeletePriorResponse { deleted }))
    }

    type ReadPriorStream = download::Parts;

    async fn read_prior(
        &self,
        request: Request<v1::ReadPriorRequest>,
    ) -> Result<Response<Self::ReadPriorStream>, Status> {
        download::read_prior(&self.0, request)
            .await
            .map(Response::new)
    }

    async fn put_key_summary(
        &self,
        request: Request<Streaming<v1::PutKeySummaryRequest>>,
    ) -> Result<Response<v1::PutKeySummaryResponse>, Status> {
        summaries::put(&self.0, request).await.map(Response::new)
    }

    async fn get_key_summary(
        &self,
        request: Request<v1::GetKeySummaryRequest>,
    ) -> Result<Response<v1::KeySummary>, Status> {
        summaries::get(&self.0, request).map(Response::new)
    }

    async fn list_key_summaries(
        &self,
        request: Request<v1::ListKeySummariesRequest>,
    ) -> Result<Response<v1::ListKeySummariesResponse>, Status> {
        summaries::list(&self.0, request).map(Response::new)
    }

    async fn delete_key_summary(
        &self,
        request: Request<v1::DeleteKeySummaryRequest>,
    ) -> Result<Response<v1::DeleteKeySummaryResponse>, Status> {
        summaries::delete(&self.0, request).await.map(Response::new)
    }

    async fn put_query(
        &self,
        request: Request<v1::PutQueryRequest>,
    ) -> Result<Response<v1::PutQueryResponse>, Status> {
        queries::put(&self.0, request).await.map(Response::new)
    }

    async fn put_encoder(
        &self,
        request: Request<v1::PutEncoderRequest>,
    ) -> Result<Response<v1::PutEncoderResponse>, Status> {
        encoders::put(&self.0, request).await.map(Response::new)
    }

    async fn list_encoders(
        &self,
        request: Request<v1::ListEncodersRequest>,
    ) -> Result<Response<v1::ListEncodersResponse>, Status> {
        encoders::list(&self.0, request).await.map(Response::new)
    }

    async fn delete_encoder(
        &self,
        request: Request<v1::DeleteEncoderRequest>,
    ) -> Result<Response<v1::DeleteEncoderResponse>, Status> {
        encoders::delete(&self.0, request).await.map(Response::new)
    }
}

// The one way to wait, on a prior's per-head rankings at their first use. It is boxed: every other
// call would carry its state.
fn answer_after_load(
    core: &Arc<Core>,
    request: v1::GetManifestRequest,
    prior: Arc<Prior>,
    call: Call,
) -> Pin<Box<dyn Future<Output = Result<v1::GetManifestResponse, Status>> + Send>> {
    let core = Arc::clone(core);
    Box::pin(async move {
        let loaded = load_per_head(&core, prior, call.deadline).await;
        let answer = match loaded.map(|()| given(&core, &request, &call.deadline)) {
            Ok(Given::Answer(answer)) => answer,
            Ok(Given::LoadFirst(_) | Given::Score) => {
                Err(Status::unavailable("the prior was replaced meanwhile"))
            }
            Err(status) => Err(status),
        };
        records::manifest(&core, call, &request.prefix_hash, &answer);
        answer
    })
}

enum Given {
    Answer(Result<v1::GetManifestResponse, Status>),
    LoadFirst(Arc<Prior>),
    Score,
}

// Converts, answers, converts back.
fn given(core: &Core, request: &v1::GetManifestRequest, deadline: &Deadline) -> Given {
    if convert::online::is_online(request) {
        return Given::Score;
    }
    match manifest(core, request, deadline) {
        Ok(manifest) => Given::Answer(Ok(manifest)),
        Err(Refusal::LoadFirst(prior)) => Given::LoadFirst(prior),
        Err(Refusal::Status(status)) => Given::Answer(Err(status)),
    }
}

// Boxed, as above.
fn answer_scored(
    core: &Arc<Core>,
    request: v1::GetManifestRequest,
    call: Call,
) -> Pin<Box<dyn Future<Output = Result<v1::GetManifestResponse, Status>> + Send>> {
    let core = Arc::clone(core);
    Box::pin(async move {
        let answer = online::manifest(&core, &request, call.deadline).await;
        records::manifest(&core, call, &request.prefix_hash, &answer);
        answer
    })
}

enum Refusal {
    Status(Status),
    LoadFirst(Arc<Prior>),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal::Status(status)
    }
}

fn manifest(
    core: &Core,
    request: &v1::GetManifestRequest,
    deadline: &Deadline,
) -> Result<v1::GetManifestResponse, Refusal> {
    deadline.check()?;
    convert::online::check_not_asked(request)?;
    let (query, ttl_ms) = convert::routing::query(request, core.limits.lease_ttl_ms)?;
    let manifest = match get_manifest(&core.priors, &query) {
        Ok(manifest) => manifest,
        Err(ManifestError::LoadPerHead(prior)) => return Err(Refusal::LoadFirst(prior)),
        Err(error) => return Err(status::manifest(&error).into()),
    };
    Ok(leased(core, manifest, deadline, ttl_ms))
}

/// The answer with its lease.
pub(super) fn leased(
    core: &Core,
    manifest: Manifest,
    deadline: &Deadline,
    ttl_ms: u32,
) -> v1::GetManifestResponse {
    let token = core
        .manifest_leases
        .issue(deadline.began_ms, ttl_ms, manifest.generation());
    let lease = convert::routing::lease(&token, deadline.began_ms, ttl_ms);
    convert::routing::manifest(manifest, lease)
}

pub(super) async fn load_per_head(
    core: &Arc<Core>,
    prior: Arc<Prior>,
    deadline: Deadline,
) -> Result<(), Status> {
    let (reply, loaded) = tokio::sync::oneshot::channel();
    let store = Arc::clone(&core.store);
    let queued = core.importers.submit(move || {
        // A caller that has gone needs no answer.
        let _gone = reply.send(prior.load_per_head(&store));
    });
    queued.map_err(|_| Status::resource_exhausted("the import queue is full"))?;
    let loaded = deadline.bound(loaded).await?;
    loaded
        .map_err(|_| Status::unavailable("the server is stopping"))?
        .map_err(|error| status::per_head(&error))
}

pub(super) fn key(key: Option<v1::PriorKey>) -> Result<PriorKey, Status> {
    let Some(v1::PriorKey {
        prefix_hash,
        query_hash,
        algorithm,
    }) = key
    else {
        return Err(invalid("key", "must be given"));
    };
    check_length("key.prefix_hash", &prefix_hash, 1, PREFIX_HASH_BYTES_MAX)?;
    check_length("key.query_hash", &query_hash, 0, QUERY_HASH_BYTES_MAX)?;
    check_length("key.algorithm", &algorithm, 0, ALGORITHM_BYTES_MAX)?;
    Ok(PriorKey {
        prefix_hash: prefix_hash.into(),
        query_hash: query_hash.into(),
        algorithm: algorithm.into(),
    })
}

// A page token is the last key of the page: lengths first, so that any bytes can be in it.
fn token(key: &PriorKey) -> String {
    let PriorKey {
        prefix_hash,
        query_hash,
        algorithm,
    } = key;
    format!(
        "{}:{}:{prefix_hash}{query_hash}{algorithm}",
        prefix_hash.len(),
        query_hash.len()
    )
}

fn read_token(token: &str) -> Result<PriorKey, Status> {
    let parts = || {
        let (prefix, rest) = token.split_once(':')?;
        let (query, rest) = rest.split_once(':')?;
        let (prefix, query): (usize, usize) = (prefix.parse().ok()?, query.parse().ok()?);
        let (prefix_hash, rest) = rest.split_at_checked(prefix)?;
        let (query_hash, algorithm) = rest.split_at_checked(query)?;
        Some(PriorKey {
            prefix_hash: prefix_hash.into(),
            query_hash: query_hash.into(),
            algorithm: algorithm.into(),
        })
    };
    parts().ok_or_else(|| invalid("page_token", "is not one that a page gave"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_token_reads_back_as_the_key_it_was_made_of() {
        for (prefix, query, algorithm) in [("p", "", ""), ("1:2:", ":", "é:"), ("é", "é", "x")] {
            let key = PriorKey {
                prefix_hash: prefix.into(),
                query_hash: query.into(),
                algorithm: algorithm.into(),
            };
            assert_eq!(read_token(&token(&key)).unwrap(), key);
        }
        for bad in ["", "1", "1:", "9:0:x", "1:0:é", "x:0:"] {
            assert!(read_token(bad).is_err(), "{bad}");
        }
    }
}
