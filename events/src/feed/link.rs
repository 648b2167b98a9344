//! A connection in its whole life: a pause, the way up, messages, and its end.

use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

use super::zmtp::{Hello, Line, LineError};

/// What came over a link.
#[derive(Debug)]
pub(super) enum Heard {
    Opened,
    Message(Vec<Bytes>),
    /// It could not be made, or is over. Nothing more comes.
    Failed(LineError),
}

pub(super) enum Link {
    Opening(Pin<Box<dyn Future<Output = Result<Line, LineError>> + Send>>),
    Open(Line),
    Closed,
}

impl Link {
    /// Connects after a pause.
    pub(super) fn open(address: String, hello: Hello, pause: Duration) -> Self {
        Self::Opening(Box::pin(async move {
            tokio::time::sleep(pause).await;
            Line::open(&address, hello).await
        }))
    }

    pub(super) fn closed() -> Self {
        Self::Closed
    }

    /// What comes next; for ever pending when closed. Nothing is lost where this is dropped before
    /// it is done.
    pub(super) async fn next(&mut self) -> Heard {
        let failed = match self {
            Self::Opening(opening) => match opening.await {
                Ok(line) => {
                    *self = Self::Open(line);
                    return Heard::Opened;
                }
                Err(error) => error,
            },
            Self::Open(line) => match line.message().await {
                Ok(message) => return Heard::Message(message),
                Err(error) => error,
            },
            Self::Closed => pending().await,
        };
        *self = Self::Closed;
        Heard::Failed(failed)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Opening(_) => "Opening",
            Self::Open(_) => "Open",
            Self::Closed => "Closed",
        })
    }
}
