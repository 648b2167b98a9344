//! One limit on the calls in flight over all connections; one more is refused at once.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use prometheus_client::metrics::counter::Counter;
use tonic::{Status, body::Body};
use tower::{Layer, Service};

/// Probes must see a server that is full.
const HEALTH_PREFIX: &str = "/grpc.health.v1.Health/";

/// Counts calls in flight. Clones share the count.
#[derive(Debug, Clone)]
pub struct Admission {
    in_flight: Arc<AtomicUsize>,
    calls_max: usize,
    refused: Counter,
}

/// Held by a call while it is in flight.
#[derive(Debug)]
pub struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Admission {
    #[must_use]
    pub fn new(calls_max: usize, refused: Counter) -> Admission {
        Admission {
            in_flight: Arc::default(),
            calls_max: calls_max.max(1),
            refused,
        }
    }

    /// A permit, or the refusal.
    pub fn enter(&self) -> Result<Permit, Status> {
        // The permit takes the count back also when it is refused.
        let permit = Permit(Arc::clone(&self.in_flight));
        if self.in_flight.fetch_add(1, Ordering::AcqRel) >= self.calls_max {
            self.refused.inc();
            let message = format!("{} calls are in flight, no more are taken", self.calls_max);
            return Err(Status::resource_exhausted(message));
        }
        Ok(permit)
    }

    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn calls_max(&self) -> usize {
        self.calls_max
    }
}

impl<S> Layer<S> for Admission {
    type Service = Admitted<S>;

    fn layer(&self, inner: S) -> Admitted<S> {
        Admitted {
            inner,
            admission: self.clone(),
        }
    }
}

/// A service behind the limit.
#[derive(Debug, Clone)]
pub struct Admitted<S> {
    inner: S,
    admission: Admission,
}

impl<S, B> Service<http::Request<B>> for Admitted<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Response<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let permit = if request.uri().path().starts_with(HEALTH_PREFIX) {
            None
        } else {
            match self.admission.enter() {
                Ok(permit) => Some(permit),
                Err(status) => {
                    return Response::Refused {
                        status: Some(status),
                    };
                }
            }
        };
        Response::Admitted {
            response: self.inner.call(request),
            permit,
        }
    }
}

pin_project_lite::pin_project! {
    /// A call under way with its permit, or its refusal.
    #[project = ResponseProjection]
    #[derive(Debug)]
    pub enum Response<F> {
        Admitted {
            #[pin]
            response: F,
            permit: Option<Permit>,
        },
        Refused {
            status: Option<Status>,
        },
    }
}

impl<F, E> Future for Response<F>
where
    F: Future<Output = Result<http::Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        match self.project() {
            ResponseProjection::Admitted { response, permit } => {
                let answered = response.poll(context);
                if answered.is_ready() {
                    drop(permit.take());
                }
                answered
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_than_the_limit_is_refused_until_one_leaves() {
        let admission = Admission::new(2, Counter::default());
        let first = admission.enter().unwrap();
        let _second = admission.enter().unwrap();
        let refusal = admission.enter().unwrap_err();
        assert_eq!(refusal.code(), tonic::Code::ResourceExhausted);
        assert_eq!(admission.in_flight(), 2);
        drop(first);
        assert!(admission.enter().is_ok());
    }
}
