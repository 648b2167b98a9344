//! A file on its way to the server: a header, then chunks, read as fast as the server takes them.

use std::{
    io::{self, Read},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::{
    client::{Client, within},
    error::ClientError,
};

impl Client {
    /// Sends a header and a file. A file that cannot be read is told apart from a failed call.
    pub(crate) async fn upload<M, R, T, F>(
        &self,
        (header, file): (M, R),
        chunks: Chunks<M>,
        call: impl FnOnce(Request<Parts<M, R>>) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let (failed, mut failure) = oneshot::channel();
        let parts = Parts {
            header: Some(header),
            rest: Some((file, failed)),
            chunks,
        };
        let answer = within(self.deadlines.upload, parts, call).await;
        match failure.try_recv() {
            Ok(error) => Err(ClientError::File(error)),
            Err(_) => answer,
        }
    }
}

/// How a file is cut.
pub(crate) struct Chunks<M> {
    /// Bytes of the file in one message.
    pub(crate) bytes: usize,
    /// The message with a chunk.
    pub(crate) message: fn(Bytes) -> M,
}

/// The header, then the file. When reading fails, an empty part that the server refuses: it would
/// take the end of the stream, and even its reset, for the end of the file.
pub(crate) struct Parts<M, R> {
    header: Option<M>,
    /// Until the end, or the error that is told aside.
    rest: Option<(R, oneshot::Sender<io::Error>)>,
    chunks: Chunks<M>,
}

impl<M: Default + Unpin, R: Read + Unpin> Stream for Parts<M, R> {
    type Item = M;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<M>> {
        Poll::Ready(self.get_mut().next())
    }
}

impl<M: Default, R: Read> Parts<M, R> {
    fn next(&mut self) -> Option<M> {
        if let Some(header) = self.header.take() {
            return Some(header);
        }
        let (mut file, failed) = self.rest.take()?;
        match read_chunk(&mut file, self.chunks.bytes) {
            Ok(chunk) if chunk.is_empty() => None,
            Ok(chunk) => {
                self.rest = Some((file, failed));
                Some((self.chunks.message)(chunk))
            }
            Err(error) => {
                // Nobody listens once the call is over, and then it does not matter.
                drop(failed.send(error));
                Some(M::default())
            }
        }
    }
}

fn read_chunk(file: &mut impl Read, bytes: usize) -> io::Result<Bytes> {
    let mut chunk = Vec::with_capacity(bytes);
    let limit = u64::try_from(bytes).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut chunk)?;
    Ok(chunk.into())
}
