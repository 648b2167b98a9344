//! The messages of a stream that stays open, until the server drains.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use crate::telemetry::http::{Stage, draining};

/// Messages as they come. Connectors keep streams open for as long as they live: so that the drain
/// need not wait for them, the first pause of one ends it, with UNAVAILABLE.
pub struct Incoming<T> {
    messages: Streaming<T>,
    draining: Pin<Box<dyn Future<Output = ()> + Send>>,
    has_ended: bool,
}

impl<T> Incoming<T> {
    #[must_use]
    pub fn new(messages: Streaming<T>, stage: watch::Receiver<Stage>) -> Incoming<T> {
        Incoming {
            messages,
            draining: Box::pin(draining(stage)),
            has_ended: false,
        }
    }
}

impl<T> std::fmt::Debug for Incoming<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Incoming")
            .field("has_ended", &self.has_ended)
            .finish_non_exhaustive()
    }
}

impl<T> Stream for Incoming<T> {
    type Item = Result<T, Status>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<T, Status>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        // What has come already is answered.
        if let Poll::Ready(next) = Pin::new(&mut self.messages).poll_next(context) {
            return Poll::Ready(next);
        }
        if self.draining.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.has_ended = true;
        let status = Status::unavailable("the server is stopping: open the stream elsewhere");
        Poll::Ready(Some(Err(status)))
    }
}
