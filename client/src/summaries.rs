//! Stored key summaries: uploaded in chunks, listed, shown, deleted.

use std::{io::Read, time::Duration};

use kvatlas_proto::v1::{self, put_key_summary_request::Part};

use crate::{
    client::{Client, within},
    error::ClientError,
    upload::Chunks,
};

/// Bytes of the file in one message: the most that the server takes.
const CHUNK_BYTES: usize = 1 << 20;

/// A file to make a key summary of, with what is said of it. Give `size_bytes` where it is known: a
/// server cannot tell an upload that was cut off from a shorter file.
#[derive(Debug)]
pub struct SummaryUpload<R> {
    pub header: v1::PutKeySummaryHeader,
    /// Read chunk by chunk, as fast as the server takes them.
    pub file: R,
}

/// One page of [`Client::list_key_summaries`].
#[derive(Debug, Clone, Default)]
pub struct SummaryPage {
    /// 1 to 1000; 0: 100.
    pub page_size: u32,
    /// From the page before; empty: the first page.
    pub page_token: String,
    /// Only prefixes that begin so; empty: all.
    pub prefix_hash_begins: String,
}

impl Client {
    /// The same connection with another deadline for uploads, which large files need.
    #[must_use]
    pub fn with_upload_deadline(mut self, deadline: Duration) -> Self {
        self.deadlines.upload = deadline;
        self
    }

    /// Makes and stores the key summary of a prefix. Returns when it is on the disk. The file is
    /// never held in memory; reading it blocks for a chunk at a time, so give a local file or
    /// bytes.
    ///
    /// # Errors
    /// When the file cannot be read (then nothing is stored), or the call fails.
    pub async fn put_key_summary<R>(
        &self,
        upload: SummaryUpload<R>,
    ) -> Result<v1::PutKeySummaryResponse, ClientError>
    where
        R: Read + Send + Unpin + 'static,
    {
        let chunks = Chunks {
            bytes: CHUNK_BYTES,
            message: |chunk| v1::PutKeySummaryRequest {
                part: Some(Part::Chunk(chunk)),
            },
        };
        let header = v1::PutKeySummaryRequest {
            part: Some(Part::Header(upload.header)),
        };
        let mut routing = self.routing();
        self.upload((header, upload.file), chunks, |request| async move {
            routing.put_key_summary(request).await
        })
        .await
    }

    /// # Errors
    /// When the call fails.
    pub async fn list_key_summaries(
        &self,
        page: SummaryPage,
    ) -> Result<v1::ListKeySummariesResponse, ClientError> {
        let message = v1::ListKeySummariesRequest {
            page_size: page.page_size,
            page_token: page.page_token,
            prefix_hash_begins: page.prefix_hash_begins,
        };
        let mut routing = self.routing();
        within(self.deadlines.control, message, |request| async move {
            routing.list_key_summaries(request).await
        })
        .await
    }

    /// What is known of a prefix's key summary, or `None` when it has none.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn get_key_summary(
        &self,
        prefix_hash: &str,
    ) -> Result<Option<v1::KeySummary>, ClientError> {
        let message = v1::GetKeySummaryRequest {
            prefix_hash: prefix_hash.to_owned(),
        };
        let mut routing = self.routing();
        let answer = within(self.deadlines.control, message, |request| async move {
            routing.get_key_summary(request).await
        })
        .await;
        match answer {
            Ok(summary) => Ok(Some(summary)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes a prefix's key summary. Returns whether there was one.
    ///
    /// # Errors
    /// When the call fails; deleting again is safe.
    pub async fn delete_key_summary(&self, prefix_hash: &str) -> Result<bool, ClientError> {
        let message = v1::DeleteKeySummaryRequest {
            prefix_hash: prefix_hash.to_owned(),
        };
        let mut routing = self.routing();
        let answer = within(self.deadlines.control, message, |request| async move {
            routing.delete_key_summary(request).await
        })
        .await;
        match answer {
            Ok(v1::DeleteKeySummaryResponse {}) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
