//! The messages of a stream that stays open, until the server drains.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{sync::watch, time::Sleep};
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use crate::{
    access::{Access, Pass},
    telemetry::http::{Stage, draining},
};

/// Messages as they come. Connectors keep streams open for as long as they live: so that the drain
/// need not wait for them, the first pause of one ends it, with UNAVAILABLE.
pub struct Incoming<T> {
    messages: Streaming<T>,
    draining: Pin<Box<dyn Future<Output = ()> + Send>>,
    has_ended: bool,
    pace: Option<Pace>,
    /// A message that waits until its token may send it.
    waiting: Option<(T, Pin<Box<Sleep>>)>,
}

/// Whose limit slows a stream down.
#[derive(Debug)]
pub struct Pace {
    pub access: Access,
    pub pass: Pass,
}

impl Pace {
    /// How long the next message has to wait; taken from what is left when it need not.
    fn wait(&self) -> Option<Duration> {
        let refusal = self.access.charge(&self.pass).err()?;
        Some(Duration::from_millis(refusal.retry_after_ms()))
    }
}

// Nothing of it is pinned in place.
impl<T> Unpin for Incoming<T> {}

impl<T> Incoming<T> {
    #[must_use]
    pub fn new(
        messages: Streaming<T>,
        stage: watch::Receiver<Stage>,
        pace: Option<Pace>,
    ) -> Incoming<T> {
        Incoming {
            messages,
            draining: Box::pin(draining(stage)),
            has_ended: false,
            pace,
            waiting: None,
        }
    }
}

impl<T> Incoming<T> {
    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, Status>>> {
        let message = match self.waiting.take() {
            Some((message, mut sleep)) => {
                if sleep.as_mut().poll(context).is_pending() {
                    self.waiting = Some((message, sleep));
                    return Poll::Pending;
                }
                message
            }
            None => match Pin::new(&mut self.messages).poll_next(context) {
                Poll::Ready(Some(Ok(message))) => message,
                none @ (Poll::Ready(None | Some(Err(_))) | Poll::Pending) => return none,
            },
        };
        let Some(wait) = self.pace.as_ref().and_then(Pace::wait) else {
            return Poll::Ready(Some(Ok(message)));
        };
        let mut sleep = Box::pin(tokio::time::sleep(wait));
        // Polled here, so that it wakes.
        let _not_yet = sleep.as_mut().poll(context);
        self.waiting = Some((message, sleep));
        Poll::Pending
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
        if let Poll::Ready(next) = self.poll_message(context) {
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
