//! Stored priors: uploaded in chunks, listed, shown, deleted.

use std::io::Read;

use kvatlas_proto::v1::{self, put_prior_request::Part, read_prior_response};
use tonic::{Response, Status, Streaming};

use crate::{
    client::{Client, within},
    error::ClientError,
    upload::Chunks,
};

/// Bytes of the file in one message.
const CHUNK_BYTES: usize = 256 << 10;
/// The longest file that is taken from a server, in bytes: rankings may be longer than the file of
/// scores that they were made from.
const STORED_BYTES_MAX: usize = 1 << 30;

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
        let chunks = Chunks {
            bytes: CHUNK_BYTES,
            message: |chunk| v1::PutPriorRequest {
                part: Some(Part::Chunk(chunk)),
            },
        };
        let header = v1::PutPriorRequest {
            part: Some(Part::Header(upload.header)),
        };
        let mut routing = self.routing();
        self.upload((header, upload.file), chunks, |request| async move {
            routing.put_prior(request).await
        })
        .await
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

    /// A stored prior as a file that [`Client::put_prior`] takes again, or `None` when there is no
    /// such prior. The whole file is held in memory.
    ///
    /// # Errors
    /// When the call fails, or the answer is not one prior and its file.
    pub async fn read_prior(&self, key: v1::PriorKey) -> Result<Option<StoredPrior>, ClientError> {
        let message = v1::ReadPriorRequest { key: Some(key) };
        let mut routing = self.routing();
        let answer = within(self.deadlines.upload, message, |request| async move {
            let mut parts = routing.read_prior(request).await?.into_inner();
            gather(&mut parts).await.map(Response::new)
        })
        .await;
        match answer {
            Ok(Some(stored)) => Ok(Some(stored)),
            Ok(None) => Err(ClientError::Malformed(
                "a stored prior is what is known of it, then one file".into(),
            )),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A prior as it was read from a server.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredPrior {
    pub prior: v1::Prior,
    /// For [`Client::put_prior`].
    pub file: Vec<u8>,
}

/// `None` when the parts do not come in their order, or too many.
async fn gather(
    parts: &mut Streaming<v1::ReadPriorResponse>,
) -> Result<Option<StoredPrior>, Status> {
    let first = parts.message().await?.and_then(|message| message.part);
    let Some(read_prior_response::Part::Prior(prior)) = first else {
        return Ok(None);
    };
    let mut file = Vec::new();
    while let Some(message) = parts.message().await? {
        match message.part {
            Some(read_prior_response::Part::Chunk(chunk))
                if file.len() + chunk.len() <= STORED_BYTES_MAX =>
            {
                file.extend_from_slice(&chunk);
            }
            Some(read_prior_response::Part::Chunk(_) | read_prior_response::Part::Prior(_))
            | None => return Ok(None),
        }
    }
    Ok(Some(StoredPrior { prior, file }))
}
