//! Stored priors: uploaded in chunks, listed, shown, deleted.

use std::{
    io::{self, Read},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use kvatlas_proto::v1;
use tokio::sync::oneshot;
use tokio_stream::Stream;

use crate::{
    client::{Client, within},
    error::ClientError,
};

/// Bytes of the file in one message.
const CHUNK_BYTES: usize = 256 << 10;

/// A file to import, with what is said of it.
#[derive(Debug)]
pub struct PriorUpload<R> {
    pub header: v1::PutPriorHeader,
    /// Read chunk by chunk, as fast as the server takes them.
    pub file: R,
}

/// One page of [`Client::list_priors`].
#[derive(Debug, Clone, Default)]
pub struct PriorPage {
    /// 1 to 1000; 0: 100.
    pub page_size: u32,
    /// From the page before; empty: the first page.
    pub page_token: String,
    /// Only prefixes that begin so; empty: all.
    pub prefix_hash_begins: String,
}

impl Client {
    /// Imports a prior. Returns when it is on the disk. Reading the file blocks for a chunk at a
    /// time, so give a local file or bytes.
    ///
    /// # Errors
    /// When the file cannot be read (then nothing is stored), or the call fails.
    pub async fn put_prior<R>(
        &self,
        upload: PriorUpload<R>,
    ) -> Result<v1::PutPriorResponse, ClientError>
    where
        R: Read + Send + Unpin + 'static,
    {
        let (failed, failure) = oneshot::channel();
        let parts = Parts {
            header: Some(upload.header),
            file: upload.file,
            failed: Some(failed),
        };
        let mut routing = self.routing();
        let call = within(self.deadlines.upload, parts, |request| async move {
            routing.put_prior(request).await
        });
        tokio::select! {
            // Dropping the call resets the stream, so a file that was cut off is never stored.
            Ok(error) = failure => Err(ClientError::File(error)),
            answer = call => answer,
        }
    }

    /// # Errors
    /// When the call fails.
    pub async fn list_priors(
        &self,
        page: PriorPage,
    ) -> Result<v1::ListPriorsResponse, ClientError> {
        let message = v1::ListPriorsRequest {
            page_size: page.page_size,
            page_token: page.page_token,
            prefix_hash_begins: page.prefix_hash_begins,
        };
        let mut routing = self.routing();
        within(self.deadlines.control, message, |request| async move {
            routing.list_priors(request).await
        })
        .await
    }

    /// What is known of a prior, or `None` when there is no such prior.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn get_prior(&self, key: v1::PriorKey) -> Result<Option<v1::Prior>, ClientError> {
        let message = v1::GetPriorRequest { key: Some(key) };
        let mut routing = self.routing();
        let answer = within(self.deadlines.control, message, |request| async move {
            routing.get_prior(request).await
        })
        .await;
        match answer {
            Ok(prior) => Ok(Some(prior)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes a prior; with an empty algorithm, every prior under the two hashes. Returns how many
    /// went.
    ///
    /// # Errors
    /// When the call fails; deleting again is safe.
    pub async fn delete_prior(&self, key: v1::PriorKey) -> Result<u32, ClientError> {
        let message = v1::DeletePriorRequest { key: Some(key) };
        let mut routing = self.routing();
        let answer = within(self.deadlines.control, message, |request| async move {
            routing.delete_prior(request).await
        })
        .await;
        match answer {
            Ok(answer) => Ok(answer.deleted),
            Err(error) if error.is_not_found() => Ok(0),
            Err(error) => Err(error),
        }
    }
}

/// The header, then the file. Stops short of its end when reading fails, and says so aside.
struct Parts<R> {
    header: Option<v1::PutPriorHeader>,
    file: R,
    failed: Option<oneshot::Sender<io::Error>>,
}

impl<R: Read + Unpin> Stream for Parts<R> {
    type Item = v1::PutPriorRequest;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        use v1::put_prior_request::Part;
        let parts = self.get_mut();
        let part = match parts.header.take() {
            Some(header) => Part::Header(header),
            None => match read_chunk(&mut parts.file) {
                Ok(chunk) if chunk.is_empty() => return Poll::Ready(None),
                Ok(chunk) => Part::Chunk(chunk),
                Err(error) => {
                    if let Some(failed) = parts.failed.take() {
                        // Nobody listens once the call is over, and then it does not matter.
                        drop(failed.send(error));
                    }
                    // Not the end: the end would tell the server that the file is complete.
                    return Poll::Pending;
                }
            },
        };
        Poll::Ready(Some(v1::PutPriorRequest { part: Some(part) }))
    }
}

fn read_chunk(file: &mut impl Read) -> io::Result<Bytes> {
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    let limit = u64::try_from(CHUNK_BYTES).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut chunk)?;
    Ok(chunk.into())
}
