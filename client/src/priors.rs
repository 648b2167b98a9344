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

/// A file to import, with what is said of it. Give `size_bytes` where it is known: a server cannot
/// tell an upload that was cut off from a shorter file.
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
        let (failed, mut failure) = oneshot::channel();
        let parts = Parts {
            header: Some(upload.header),
            rest: Some((upload.file, failed)),
        };
        let mut routing = self.routing();
        let answer = within(self.deadlines.upload, parts, |request| async move {
            routing.put_prior(request).await
        })
        .await;
        match failure.try_recv() {
            Ok(error) => Err(ClientError::File(error)),
            Err(_) => answer,
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

/// The header, then the file. When reading fails, an empty part that the server refuses: it would
/// take the end of the stream, and even its reset, for the end of the file.
struct Parts<R> {
    header: Option<v1::PutPriorHeader>,
    /// Until the end, or the error that is told aside.
    rest: Option<(R, oneshot::Sender<io::Error>)>,
}

impl<R: Read + Unpin> Stream for Parts<R> {
    type Item = v1::PutPriorRequest;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.get_mut().next())
    }
}

impl<R: Read> Parts<R> {
    fn next(&mut self) -> Option<v1::PutPriorRequest> {
        use v1::put_prior_request::Part;
        if let Some(header) = self.header.take() {
            let part = Some(Part::Header(header));
            return Some(v1::PutPriorRequest { part });
        }
        let (mut file, failed) = self.rest.take()?;
        let part = match read_chunk(&mut file) {
            Ok(chunk) if chunk.is_empty() => return None,
            Ok(chunk) => {
                self.rest = Some((file, failed));
                Some(Part::Chunk(chunk))
            }
            Err(error) => {
                // Nobody listens once the call is over, and then it does not matter.
                drop(failed.send(error));
                None
            }
        };
        Some(v1::PutPriorRequest { part })
    }
}

fn read_chunk(file: &mut impl Read) -> io::Result<Bytes> {
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    let limit = u64::try_from(CHUNK_BYTES).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut chunk)?;
    Ok(chunk.into())
}
