//! A layer that gives sampled calls their span; one that is not sampled passes through.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tonic::body::Body;
use tower::{Layer, Service};

use super::clock::Clock;
use crate::telemetry::traces::{Seat, Traces};

/// Probes come by the second and say nothing.
const HEALTH_PREFIX: &str = "/grpc.health.v1.Health/";
const TRACEPARENT: &str = "traceparent";
const GRPC_STATUS: &str = "grpc-status";
/// gRPC's UNKNOWN, for a status that is no number.
const UNKNOWN: i32 = 2;

/// Samples calls. Clones share the sampler.
#[derive(Debug, Clone)]
pub struct Traced {
    /// None: nothing is traced.
    pub traces: Option<Arc<Traces>>,
    pub clock: Clock,
}

impl<S> Layer<S> for Traced {
    type Service = TracedService<S>;

    fn layer(&self, inner: S) -> TracedService<S> {
        TracedService {
            inner,
            traced: self.clone(),
        }
    }
}

#[derive(Debug, Clone)]
pub struct TracedService<S> {
    inner: S,
    traced: Traced,
}

impl<S, B> Service<http::Request<B>> for TracedService<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Answer<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        let open = self.traced.open(&request);
        if let Some(open) = &open {
            request.extensions_mut().insert(open.seat.clone());
        }
        Answer {
            answer: self.inner.call(request),
            open,
        }
    }
}

/// A span that has begun.
#[derive(Debug)]
pub struct Open {
    seat: Box<Seat>,
    path: Box<str>,
    traces: Arc<Traces>,
    clock: Clock,
}

impl Traced {
    fn open<B>(&self, request: &http::Request<B>) -> Option<Box<Open>> {
        let traces = self.traces.as_ref()?;
        let path = request.uri().path();
        if path.starts_with(HEALTH_PREFIX) {
            return None;
        }
        let parent = request.headers().get(TRACEPARENT);
        let mut seat = traces.sample(parent.and_then(|it| it.to_str().ok()))?;
        seat.began_unix_ns = self.clock.unix_ns(self.clock.now_ns());
        Some(Box::new(Open {
            seat,
            path: path.into(),
            traces: Arc::clone(traces),
            clock: self.clock,
        }))
    }
}

impl Open {
    // A status that comes behind the body is not waited for: only a call that succeeds has one.
    fn end(&self, headers: &http::HeaderMap) {
        let code = headers.get(GRPC_STATUS).map_or(0, |status| {
            let number = status.to_str().ok().and_then(|it| it.parse().ok());
            number.unwrap_or(UNKNOWN)
        });
        let now = self.clock.unix_ns(self.clock.now_ns());
        self.traces.answered(&self.seat, &self.path, code, now);
    }
}

pin_project_lite::pin_project! {
    /// A call under way, with its span if it has one.
    #[derive(Debug)]
    pub struct Answer<F> {
        #[pin]
        answer: F,
        open: Option<Box<Open>>,
    }
}

impl<F, E> Future for Answer<F>
where
    F: Future<Output = Result<http::Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let answered = this.answer.poll(context);
        if let (Poll::Ready(Ok(answer)), Some(open)) = (&answered, &this.open) {
            open.end(answer.headers());
        }
        answered
    }
}
