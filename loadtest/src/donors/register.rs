//! Registers donors over one stream, several in flight.

use bytes::Bytes;
use kvatlas_proto::v1::{
    Admission, AnnounceOwnerRequest, Medium, NamespaceSelector, Owner, RegisterDonorRequest,
    RegisterDonorsRequest, RegisterDonorsResponse, Tokens, donors_client::DonorsClient,
    register_donors_response::Result as Answer,
};
use tokio::time::Instant;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::transport::Channel;

use crate::{error::LoadtestError, measure::Outstanding, prompts::DonorSet};

/// Tokens of a KV block.
pub const BLOCK_TOKENS: u32 = 16;
/// Records sent and not acknowledged.
const IN_FLIGHT: usize = 256;
/// Longer than any run.
const OWNER_TTL_MS: u32 = 3_600_000;
const OWNER_GENERATION: u64 = 1;
const CALL: &str = "RegisterDonors";

/// How registering went.
#[derive(Debug, Clone, Copy)]
pub struct Registered {
    pub donors: usize,
    pub per_second: f64,
}

/// Announces the owner and registers every donor.
///
/// # Errors
/// When one is refused or not kept.
pub async fn all(
    channel: Channel,
    set: &DonorSet,
    namespace: &NamespaceSelector,
) -> Result<Registered, LoadtestError> {
    let mut client = DonorsClient::new(channel);
    let owner = Owner {
        worker_id: format!("loadtest-{}", std::process::id()),
        data_parallel_rank: 0,
    };
    client
        .announce_owner(AnnounceOwnerRequest {
            owner: Some(owner.clone()),
            generation: OWNER_GENERATION,
            ttl_ms: OWNER_TTL_MS,
        })
        .await
        .map_err(|status| LoadtestError::call("AnnounceOwner", status))?;

    let mut records = (0..)
        .zip(&set.donors)
        .map(|(index, donor)| record(index, &donor.tokens, namespace.clone(), owner.clone()));
    let began = Instant::now();
    let (send, outbound) = tokio::sync::mpsc::channel(IN_FLIGHT);
    let mut outstanding = Outstanding::default();
    for record in records.by_ref().take(IN_FLIGHT) {
        outstanding.sent(record.correlation_id, began);
        send.try_send(record)
            .map_err(|full| wrong(full.to_string()))?;
    }
    let mut answers = client
        .register_donors(ReceiverStream::new(outbound))
        .await
        .map_err(|status| LoadtestError::call(CALL, status))?
        .into_inner();
    let mut send = Some(send);
    while let Some(answer) = answers.next().await {
        let answer = answer.map_err(|status| LoadtestError::call(CALL, status))?;
        outstanding
            .answered(answer.correlation_id, Instant::now())
            .map_err(wrong)?;
        check(answer)?;
        match (&send, records.next()) {
            (Some(send), Some(record)) => {
                outstanding.sent(record.correlation_id, Instant::now());
                send.send(record)
                    .await
                    .map_err(|closed| wrong(closed.to_string()))?;
            }
            (None, _) | (_, None) => send = None,
        }
    }
    if !outstanding.is_empty() {
        return Err(wrong("ended with records unanswered".to_owned()));
    }
    Ok(Registered {
        donors: set.donors.len(),
        per_second: set.donors.len() as f64 / began.elapsed().as_secs_f64(),
    })
}

/// The id of the donor with an index.
#[must_use]
pub fn donor_id(index: u64) -> String {
    format!("loadtest-{index}")
}

/// The index of the donor with an id.
#[must_use]
pub fn donor_index(id: &str) -> Option<usize> {
    id.strip_prefix("loadtest-")?.parse().ok()
}

/// Tokens as connectors send them.
#[must_use]
pub fn packed(tokens: &[u32]) -> Tokens {
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect();
    Tokens {
        ids: Vec::new(),
        packed: Bytes::from(bytes),
    }
}

fn record(
    index: u64,
    tokens: &[u32],
    namespace: NamespaceSelector,
    owner: Owner,
) -> RegisterDonorsRequest {
    let captured = u32::try_from(tokens.len()).expect("arguments are checked");
    RegisterDonorsRequest {
        correlation_id: index,
        request: Some(RegisterDonorRequest {
            donor_id: donor_id(index),
            namespace: Some(namespace),
            owner: Some(owner),
            owner_generation: OWNER_GENERATION,
            tokens: Some(packed(tokens)),
            captured_tokens: captured,
            exact_tokens: captured,
            medium: Medium::Host.into(),
            store_id: "loadtest".to_owned(),
            ..RegisterDonorRequest::default()
        }),
    }
}

fn check(answer: RegisterDonorsResponse) -> Result<(), LoadtestError> {
    match answer.result {
        Some(Answer::Acknowledged(kept)) => match (kept.admission(), kept.evicted) {
            (Admission::Added | Admission::Replaced, 0) => Ok(()),
            (admission, evicted) => Err(wrong(format!("{admission:?}, {evicted} evicted"))),
        },
        Some(Answer::Refused(error)) => {
            Err(wrong(format!("code {}: {}", error.code, error.message)))
        }
        None => Err(wrong("neither acknowledged nor refused".to_owned())),
    }
}

fn wrong(reason: String) -> LoadtestError {
    LoadtestError::WrongAnswer { call: CALL, reason }
}
