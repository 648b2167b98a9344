//! Donors and their owners: announced, registered, removed, and what became of a nomination.

use std::time::Duration;

use bytes::Bytes;
use kvatlas_proto::v1;

use crate::{
    client::{Client, within},
    error::ClientError,
    leases::whole_millis,
    namespace::NamespaceRef,
    tokens::{TOKENS_MAX, Tokens},
};

/// Records that one [`Client::register_donors`] call may carry.
const RECORDS_MAX: usize = 10_000;

/// A prompt whose KV lies in an engine.
#[derive(Debug, Clone)]
pub struct DonorRecord {
    /// Unique in its namespace, 1 to 256 bytes.
    pub donor_id: String,
    pub namespace: NamespaceRef,
    pub owner: v1::Owner,
    /// The owner's when the KV was computed; at least 1.
    pub owner_generation: u64,
    pub tokens: Tokens,
    /// Tokens from the start whose KV can be read, at most all.
    pub captured_tokens: u32,
    /// Of those, how many came from full prefill or exact loads; 0: not said.
    pub exact_tokens: u32,
    pub medium: v1::Medium,
    pub store_id: String,
    /// The request that the prompt came from: its own look-ups never nominate it.
    pub source_request_id: String,
    /// The engine's hashes of the captured blocks, in order; for donors on the device.
    pub block_hashes: Vec<Bytes>,
    /// Kept only where the operator has enabled text.
    pub text: String,
}

/// Which donors to remove.
#[derive(Debug, Clone)]
pub enum RemoveDonors {
    /// 1 to 1000 ids of one namespace.
    Ids(NamespaceRef, Vec<String>),
    Owner(v1::Owner),
    Namespace(NamespaceRef),
}

impl DonorRecord {
    fn to_wire(&self) -> Result<v1::RegisterDonorRequest, ClientError> {
        let tokens = self.tokens.len();
        if !(1..=TOKENS_MAX).contains(&tokens) {
            return Err(ClientError::Invalid("tokens are 1 to 1048576"));
        }
        let captured = usize::try_from(self.captured_tokens).unwrap_or(usize::MAX);
        if captured > tokens || self.exact_tokens > self.captured_tokens {
            return Err(ClientError::Invalid(
                "exact_tokens are at most captured_tokens, and these at most the tokens",
            ));
        }
        Ok(v1::RegisterDonorRequest {
            donor_id: self.donor_id.clone(),
            namespace: Some(self.namespace.to_wire()),
            owner: Some(self.owner.clone()),
            owner_generation: self.owner_generation,
            tokens: Some(self.tokens.to_wire()),
            captured_tokens: self.captured_tokens,
            exact_tokens: self.exact_tokens,
            medium: self.medium.into(),
            store_id: self.store_id.clone(),
            source_request_id: self.source_request_id.clone(),
            block_hashes: self.block_hashes.clone(),
            text: self.text.clone(),
        })
    }
}

impl Client {
    /// Says that an owner lives. To be renewed before the answer's ttl ends.
    ///
    /// # Errors
    /// When the call fails, or a higher generation was announced before.
    pub async fn announce_owner(
        &self,
        owner: &v1::Owner,
        generation: u64,
        ttl: Option<Duration>,
    ) -> Result<v1::AnnounceOwnerResponse, ClientError> {
        let message = v1::AnnounceOwnerRequest {
            owner: Some(owner.clone()),
            generation,
            ttl_ms: ttl.map_or(0, whole_millis),
        };
        let mut donors = self.donors();
        within(self.deadlines.control, message, |request| async move {
            donors.announce_owner(request).await
        })
        .await
    }

    /// Returns when the donor is on the disk and searchable, or why it was not kept.
    ///
    /// # Errors
    /// When the call fails; registering again is safe.
    pub async fn register_donor(
        &self,
        record: &DonorRecord,
    ) -> Result<v1::RegisterDonorResponse, ClientError> {
        let message = record.to_wire()?;
        let mut donors = self.donors();
        within(self.deadlines.control, message, |request| async move {
            donors.register_donor(request).await
        })
        .await
    }

    /// Registers up to 10,000 donors over one stream: one acknowledgement or refusal each, in
    /// order. Runs under the upload deadline.
    ///
    /// # Errors
    /// When the stream fails. Records without an answer may have been kept or not; registering
    /// them again is safe.
    pub async fn register_donors(
        &self,
        records: &[DonorRecord],
    ) -> Result<Vec<Result<v1::RegisterDonorResponse, ClientError>>, ClientError> {
        if records.len() > RECORDS_MAX {
            return Err(ClientError::Invalid("at most 10000 records in one call"));
        }
        let mut messages = Vec::with_capacity(records.len());
        for (correlation_id, record) in (0..).zip(records) {
            messages.push(v1::RegisterDonorsRequest {
                correlation_id,
                request: Some(record.to_wire()?),
            });
        }
        let budget = self.deadlines.upload;
        let exchange = self.exchange(messages, budget);
        match tokio::time::timeout(budget, exchange).await {
            Ok(answers) => answers,
            Err(_) => Err(ClientError::Timeout { budget }),
        }
    }

    async fn exchange(
        &self,
        messages: Vec<v1::RegisterDonorsRequest>,
        budget: Duration,
    ) -> Result<Vec<Result<v1::RegisterDonorResponse, ClientError>>, ClientError> {
        use v1::register_donors_response::Result as Acknowledgement;
        let count = messages.len();
        let mut donors = self.donors();
        let stream = tokio_stream::iter(messages);
        let mut answers = within(budget, stream, |request| async move {
            donors.register_donors(request).await
        })
        .await?;
        let started = tokio::time::Instant::now();
        let mut results = Vec::with_capacity(count);
        while results.len() < count {
            let message = answers
                .message()
                .await
                .map_err(|status| ClientError::from_status(&status, started.elapsed(), budget))?
                .ok_or(ClientError::StreamEnded)?;
            results.push(match message.result {
                Some(Acknowledgement::Acknowledged(acknowledged)) => Ok(acknowledged),
                Some(Acknowledgement::Refused(error)) => Err(ClientError::from_call_error(error)),
                None => Err(ClientError::Malformed("neither kept nor refused".into())),
            });
        }
        Ok(results)
    }

    /// Removes donors and makes their leases stale. Returns how many went.
    ///
    /// # Errors
    /// When the call fails; removing again is safe.
    pub async fn remove_donors(&self, what: &RemoveDonors) -> Result<u64, ClientError> {
        use v1::remove_donors_request::What;
        let what = match what {
            RemoveDonors::Ids(namespace, donor_ids) => What::Donors(v1::DonorIds {
                namespace: Some(namespace.to_wire()),
                donor_ids: donor_ids.clone(),
            }),
            RemoveDonors::Owner(owner) => What::Owner(owner.clone()),
            RemoveDonors::Namespace(namespace) => What::Namespace(namespace.to_wire()),
        };
        let message = v1::RemoveDonorsRequest { what: Some(what) };
        let mut donors = self.donors();
        let answer = within(self.deadlines.control, message, |request| async move {
            donors.remove_donors(request).await
        })
        .await?;
        Ok(answer.removed)
    }

    /// Says what became of a nomination. Returns whether this ended a lease.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn report_reuse(&self, report: v1::ReportReuseRequest) -> Result<bool, ClientError> {
        let mut donors = self.donors();
        let answer = within(self.deadlines.control, report, |request| async move {
            donors.report_reuse(request).await
        })
        .await?;
        Ok(answer.released)
    }
}
