//! Turns away who may not call, before anything else is done for them.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::HttpBody;
use bytes::Bytes;
use http::{Extensions, HeaderMap, header::AUTHORIZATION};
use http_body::{Frame, SizeHint};
use tonic::{Status, body::Body};
use tower::{Layer, Service};

use super::{Core, admission::Permit, status};
use crate::{
    access::{Access, Bearer, Gate, Pass, Refusal, grant},
    donors::{
        namespace::{Namespace, NamespaceId},
        owners::OwnerKey,
        scope::Namespaces,
        writes::{NamespaceName, WriteRefusal},
    },
};

impl Core {
    /// Under whose token a call is made.
    pub fn pass(&self, extensions: &Extensions) -> Result<Pass, Status> {
        match (self.access.gate(), extensions.get::<Pass>()) {
            (None, _) => Ok(Pass::default()),
            (Some(_), Some(pass)) => Ok(pass.clone()),
            // Cannot happen: the layer lets nobody through without. Nobody is let through here.
            (Some(_), None) => Err(status::access(&Refusal::NoToken)),
        }
    }

    /// Whether a call may name a namespace, given in full or by an id.
    #[must_use]
    pub fn covers(&self, pass: &Pass, id: NamespaceId, whole: Option<&Namespace>) -> bool {
        let scope = pass.scope();
        if scope.namespaces == Namespaces::All {
            return true;
        }
        let is_covered = match whole {
            Some(whole) => scope.namespaces.cover(id, &whole.tenant_key),
            None => {
                let shard = self.catalog.shard(id);
                let tenant = shard.as_ref().map_or("", |it| &it.namespace.tenant_key);
                scope.namespaces.cover(id, tenant)
            }
        };
        if !is_covered {
            self.note_denied();
        }
        is_covered
    }

    fn covers_name(&self, pass: &Pass, name: &NamespaceName) -> bool {
        match name {
            NamespaceName::Full(whole) => self.covers(pass, whole.id(), Some(whole)),
            NamespaceName::Id(id) => self.covers(pass, *id, None),
        }
    }

    /// A place for one message of a stream, as a call of its own would have to have it.
    pub fn enter(&self, pass: &Pass) -> Result<Permit, Status> {
        self.access
            .charge(pass)
            .map_err(|refusal| status::access(&refusal))?;
        self.admission.enter()
    }

    /// What a call may write into. A namespace that is not its token's is refused alike whether it
    /// exists or not; an id of one is as unknown as any other.
    pub fn writable(&self, pass: &Pass, name: NamespaceName) -> Result<NamespaceName, Status> {
        if self.covers_name(pass, &name) {
            return Ok(name);
        }
        Err(match name {
            NamespaceName::Full(_) => status::access(&Refusal::Namespace),
            NamespaceName::Id(_) => status::write(&WriteRefusal::UnknownNamespace),
        })
    }

    /// What a call may read: of a namespace that is not its token's nothing is there, as of one
    /// that does not exist.
    #[must_use]
    pub fn readable(&self, pass: &Pass, name: NamespaceName) -> NamespaceName {
        if self.covers_name(pass, &name) {
            return name;
        }
        NamespaceName::Id(NOBODYS)
    }

    /// The worker that a call speaks for.
    pub fn speaks_for(&self, pass: &Pass, owner: &OwnerKey) -> Result<(), Status> {
        if pass.scope().workers.cover(&owner.worker_id) {
            return Ok(());
        }
        self.note_denied();
        Err(status::access(&Refusal::Worker))
    }

    /// Whether a donor lease is one of a namespace that a call may name. One that is not known is
    /// nobody's secret.
    #[must_use]
    pub fn may_see_lease(&self, pass: &Pass, lease_id: &[u8]) -> bool {
        if pass.scope().namespaces == Namespaces::All {
            return true;
        }
        let namespace = self.donor_leases.realm(lease_id).map(NamespaceId);
        namespace.is_none_or(|id| self.covers(pass, id, None))
    }

    fn note_denied(&self) {
        if let Some(gate) = self.access.gate() {
            gate.denied();
        }
    }
}

/// No namespace has this id: it is no hash that anybody knows an encoding of.
pub(super) const NOBODYS: NamespaceId = NamespaceId([0; 32]);

/// Puts the gate in front of every call of a listener.
#[derive(Debug, Clone)]
pub struct AccessLayer(pub Access);

impl<S> Layer<S> for AccessLayer {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded {
            inner,
            access: self.0.clone(),
        }
    }
}

/// A service behind the gate.
#[derive(Debug, Clone)]
pub struct Guarded<S> {
    inner: S,
    access: Access,
}

impl<S, B> Service<http::Request<B>> for Guarded<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Response<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        let Some(gate) = self.access.gate() else {
            let response = self.inner.call(request);
            return Response::Short { response };
        };
        match admit(&self.access, gate, &request) {
            Err(refusal) => Response::Refused {
                status: Some(status::access(&refusal)),
            },
            Ok(Admitted::Open) => Response::Short {
                response: self.inner.call(request),
            },
            Ok(Admitted::Once(bearer)) => {
                request.extensions_mut().insert(Pass(Some(bearer)));
                let response = self.inner.call(request);
                Response::Short { response }
            }
            Ok(Admitted::Stream(bearer)) => {
                let watch = Watch::new(Arc::clone(&bearer));
                request.extensions_mut().insert(Pass(Some(bearer)));
                Response::Long {
                    response: self.inner.call(request),
                    watch: Some(watch),
                }
            }
        }
    }
}

enum Admitted {
    /// Without a token.
    Open,
    Once(Arc<Bearer>),
    Stream(Arc<Bearer>),
}

fn admit<B>(access: &Access, gate: &Gate, request: &http::Request<B>) -> Result<Admitted, Refusal> {
    let call = grant::call(request.uri().path());
    if call.is_some_and(|call| access.is_open(call)) {
        return Ok(Admitted::Open);
    }
    let credentials = request.headers().get(AUTHORIZATION);
    let bearer = gate.enter(call, credentials.map(http::HeaderValue::as_bytes))?;
    Ok(match call {
        Some(call) if call.is_stream => Admitted::Stream(bearer),
        Some(_) | None => Admitted::Once(bearer),
    })
}

/// Waits for the end of a token.
struct Watch {
    bearer: Arc<Bearer>,
    ends: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Watch {
    fn new(bearer: Arc<Bearer>) -> Watch {
        Watch {
            ends: Box::pin(bearer.ends()),
            bearer,
        }
    }

    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        self.bearer.has_ended() || self.ends.as_mut().poll(context).is_ready()
    }
}

pin_project_lite::pin_project! {
    /// A call under way, or its refusal.
    #[project = ResponseProjection]
    pub enum Response<F> {
        Short {
            #[pin]
            response: F,
        },
        Long {
            #[pin]
            response: F,
            watch: Option<Watch>,
        },
        Refused {
            status: Option<Status>,
        },
    }
}

impl<F> std::fmt::Debug for Response<F> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Response").finish_non_exhaustive()
    }
}

impl<F, E> Future for Response<F>
where
    F: Future<Output = Result<http::Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        match self.project() {
            ResponseProjection::Short { response } => response.poll(context),
            ResponseProjection::Long { response, watch } => {
                if watch.as_mut().is_some_and(|watch| watch.is_over(context)) {
                    return Poll::Ready(Ok(status::access(&Refusal::Ended).into_http()));
                }
                let Poll::Ready(answered) = response.poll(context) else {
                    return Poll::Pending;
                };
                let watch = watch.take().expect("a finished future is not polled again");
                Poll::Ready(answered.map(|answer| {
                    answer.map(|inner| {
                        Body::new(Ending {
                            inner,
                            watch: Some(watch),
                        })
                    })
                }))
            }
            ResponseProjection::Refused { status } => {
                let status = status
                    .take()
                    .expect("a finished future is not polled again");
                Poll::Ready(Ok(status.into_http()))
            }
        }
    }
}

/// Answers of a stream, until its token ends.
struct Ending {
    inner: Body,
    /// None: it has ended.
    watch: Option<Watch>,
}

impl HttpBody for Ending {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(watch) = &mut self.watch else {
            return Poll::Ready(None);
        };
        if watch.is_over(context) {
            self.watch = None;
            // What still works for the call is dropped with it.
            self.inner = Body::empty();
            let mut trailers = HeaderMap::new();
            let written = status::access(&Refusal::Ended).add_header(&mut trailers);
            return Poll::Ready(Some(written.map(|()| Frame::trailers(trailers))));
        }
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.watch.is_none() || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
