//! Registers and removes donors, and measures the server's part of it: the messages are made
//! before the clock runs, in pieces of a bounded size.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use kvatlas_proto::v1::{
    Admission, AnnounceOwnerRequest, DonorIds, Medium, Namespace, NamespaceSelector, Owner,
    RegisterDonorRequest, RegisterDonorResponse, RegisterDonorsResponse, RemoveDonorsRequest,
    Tokens, donors_client::DonorsClient, namespace_selector::Selector,
    register_donors_response::Result as Answer, remove_donors_request::What,
};
use prost::Message;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

use crate::{
    child::own_cpu_time,
    error::LoadtestError,
    prompts::DonorSet,
    wire::{Method, correlated},
};

/// Tokens of a KV block.
pub const BLOCK_TOKENS: u32 = 16;
/// Records handed to the connection and not sent.
const IN_FLIGHT: usize = 256;
/// Messages made ahead of being sent, at most.
const PIECE_BYTES_MAX: usize = 64 << 20;
/// Donors removed by one call.
const REMOVED_IDS: usize = 1000;
/// Longer than any run.
const OWNER_TTL_MS: u32 = 3_600_000;
const OWNER_GENERATION: u64 = 1;
/// A paced stream sends what is due this often: the timer's own grain.
const PACE: Duration = Duration::from_millis(1);
const CALL: &str = "RegisterDonors";
const PATH: &str = "/kvatlas.v1.Donors/RegisterDonors";
/// The same for one donor, unary.
pub const UNARY_PATH: &str = "/kvatlas.v1.Donors/RegisterDonor";

/// How registering went.
#[derive(Debug, Clone, Copy)]
pub struct Registered {
    pub donors: usize,
    pub per_second: f64,
    /// What making and encoding one donor took, outside of the time measured.
    pub generate_us: f64,
    /// Processor time that this process used per second of the time measured.
    pub client_cpu_share: f64,
}

/// Makes donors into requests.
#[derive(Debug, Clone)]
pub struct Registrar {
    set: Arc<DonorSet>,
    namespace: NamespaceSelector,
    owner: Owner,
}

impl Registrar {
    #[must_use]
    pub fn new(set: Arc<DonorSet>, namespace: NamespaceSelector) -> Self {
        Self {
            set,
            namespace,
            owner: Owner {
                worker_id: format!("loadtest-{}", std::process::id()),
                data_parallel_rank: 0,
            },
        }
    }

    /// Announces the owner of all donors; says how many of its donors the server holds.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn announce(&self, channel: Channel) -> Result<u64, LoadtestError> {
        let announced = DonorsClient::new(channel)
            .announce_owner(AnnounceOwnerRequest {
                owner: Some(self.owner.clone()),
                generation: OWNER_GENERATION,
                ttl_ms: OWNER_TTL_MS,
            })
            .await
            .map_err(|status| LoadtestError::call("AnnounceOwner", status))?;
        Ok(announced.into_inner().held_donors)
    }

    /// The encoded request that registers a donor.
    #[must_use]
    pub fn request(&self, index: usize) -> Bytes {
        let tokens = self.set.donor(index).tokens;
        let captured = u32::try_from(tokens.len()).expect("arguments are checked");
        let request = RegisterDonorRequest {
            donor_id: donor_id(index as u64),
            namespace: Some(self.namespace.clone()),
            owner: Some(self.owner.clone()),
            owner_generation: OWNER_GENERATION,
            tokens: Some(packed(&tokens)),
            captured_tokens: captured,
            exact_tokens: captured,
            medium: Medium::Host.into(),
            store_id: "loadtest".to_owned(),
            ..RegisterDonorRequest::default()
        };
        request.encode_to_vec().into()
    }

    /// Registers donors over one stream, as fast as they are taken.
    ///
    /// # Errors
    /// When one is refused or not kept.
    pub async fn bulk(
        &self,
        channel: Channel,
        donors: Range<usize>,
    ) -> Result<Registered, LoadtestError> {
        let piece = (PIECE_BYTES_MAX / (4 * self.set.tokens_each)).max(1);
        let mut stream = RegisterStream::open(channel).await?;
        let [mut generated, mut sent, mut own] = [Duration::ZERO; 3];
        for first in donors.clone().step_by(piece) {
            let began = Instant::now();
            let messages = self.messages(first..donors.end.min(first + piece));
            generated += began.elapsed();
            let (began, own_before) = (Instant::now(), own_cpu_time()?);
            stream.exchange(messages, first as u64, None).await?;
            sent += began.elapsed();
            own += own_cpu_time()?.saturating_sub(own_before);
        }
        Ok(Registered {
            donors: donors.len(),
            per_second: donors.len() as f64 / sent.as_secs_f64(),
            generate_us: generated.as_secs_f64() * 1e6 / donors.len() as f64,
            client_cpu_share: own.as_secs_f64() / sent.as_secs_f64(),
        })
    }

    /// The messages of a stream that register donors.
    #[must_use]
    pub fn messages(&self, donors: Range<usize>) -> Vec<Bytes> {
        donors
            .map(|index| correlated(index as u64, &self.request(index)))
            .collect()
    }

    /// Removes donors by id; says how many a second.
    ///
    /// # Errors
    /// When a call is refused, or a donor was not there.
    pub async fn remove(
        &self,
        channel: Channel,
        donors: Range<usize>,
    ) -> Result<f64, LoadtestError> {
        const REMOVE: &str = "RemoveDonors";
        let mut client = DonorsClient::new(channel);
        let began = Instant::now();
        for first in donors.clone().step_by(REMOVED_IDS) {
            let some = first..donors.end.min(first + REMOVED_IDS);
            let count = some.len() as u64;
            let what = What::Donors(DonorIds {
                namespace: Some(self.namespace.clone()),
                donor_ids: some.map(|index| donor_id(index as u64)).collect(),
            });
            let removed = client
                .remove_donors(RemoveDonorsRequest { what: Some(what) })
                .await
                .map_err(|status| LoadtestError::call(REMOVE, status))?
                .into_inner()
                .removed;
            if removed != count {
                return Err(LoadtestError::WrongAnswer {
                    call: REMOVE,
                    reason: format!("{removed} of {count} removed"),
                });
            }
        }
        Ok(donors.len() as f64 / began.elapsed().as_secs_f64())
    }
}

/// A stream of registrations.
#[derive(Debug)]
pub struct RegisterStream {
    send: mpsc::Sender<Bytes>,
    answers: Streaming<RegisterDonorsResponse>,
}

impl RegisterStream {
    /// Opens it.
    ///
    /// # Errors
    /// When the call is refused.
    pub async fn open(channel: Channel) -> Result<Self, LoadtestError> {
        let (send, outbound) = mpsc::channel(IN_FLIGHT);
        let answers = Method::new(channel, PATH)
            .stream(ReceiverStream::new(outbound))
            .await
            .map_err(|status| LoadtestError::call(CALL, status))?;
        Ok(Self { send, answers })
    }

    /// Sends messages, whose correlation ids count from `first`, at so many a second or at once,
    /// and waits until all are acknowledged.
    ///
    /// # Errors
    /// When a donor is refused or not kept, or an answer is not the next one.
    pub async fn exchange(
        &mut self,
        messages: Vec<Bytes>,
        first: u64,
        per_second: Option<f64>,
    ) -> Result<(), LoadtestError> {
        let Self { send, answers } = self;
        let expected = first..first + messages.len() as u64;
        let sending = async {
            let start = Instant::now();
            for (at, message) in messages.into_iter().enumerate() {
                if let Some(per_second) = per_second {
                    let due = start + Duration::from_secs_f64(at as f64 / per_second);
                    if due > Instant::now() + PACE {
                        sleep_until(due).await;
                    }
                }
                let closed = |_| wrong("ended with records unanswered".to_owned());
                send.send(message).await.map_err(closed)?;
            }
            Ok(())
        };
        let receiving = async {
            for correlation_id in expected {
                let answer = answers
                    .message()
                    .await
                    .map_err(|status| LoadtestError::call(CALL, status))?
                    .ok_or_else(|| wrong("ended with records unanswered".to_owned()))?;
                check(answer, correlation_id)?;
            }
            Ok(())
        };
        // Whichever fails first ends both.
        tokio::try_join!(sending, receiving).map(|((), ())| ())
    }
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

/// Whether a donor was kept, and none made room for it.
///
/// # Errors
/// When not.
pub fn kept(registered: &RegisterDonorResponse) -> Result<(), String> {
    match (registered.admission(), registered.evicted) {
        (Admission::Added | Admission::Replaced, 0) => Ok(()),
        (admission, evicted) => Err(format!("{admission:?}, {evicted} evicted")),
    }
}

fn check(answer: RegisterDonorsResponse, correlation_id: u64) -> Result<(), LoadtestError> {
    if answer.correlation_id != correlation_id {
        let given = answer.correlation_id;
        return Err(wrong(format!("answer {given} instead of {correlation_id}")));
    }
    match answer.result {
        Some(Answer::Acknowledged(registered)) => kept(&registered).map_err(wrong),
        Some(Answer::Refused(error)) => {
            Err(wrong(format!("code {}: {}", error.code, error.message)))
        }
        None => Err(wrong("neither acknowledged nor refused".to_owned())),
    }
}

fn wrong(reason: String) -> LoadtestError {
    LoadtestError::WrongAnswer { call: CALL, reason }
}

/// A namespace that no other run uses, also on a server that runs elsewhere.
#[must_use]
pub fn namespace(purpose: &str) -> Namespace {
    let text = str::to_owned;
    Namespace {
        model: format!("loadtest-{purpose}-{}", std::process::id()),
        model_revision: text("main"),
        tokenizer: text("loadtest"),
        tokenizer_revision: text("main"),
        tokenization: text("none"),
        chat_template: text("none"),
        dtype: text("bfloat16"),
        kv_cache_dtype: text("auto"),
        block_size: BLOCK_TOKENS,
        kv_layout: text("NHD"),
        attention_backend: text("flash_attn"),
        tensor_parallel_size: 1,
        pipeline_parallel_size: 1,
        adapter: text("none"),
        rope_scaling: text("none"),
        multimodal_hashes: Vec::new(),
        tenant_key: text("semblend:tenant:v1:none"),
    }
}

/// The namespace as calls name it.
#[must_use]
pub const fn selector(namespace: Namespace) -> NamespaceSelector {
    NamespaceSelector {
        selector: Some(Selector::Namespace(namespace)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(correlation_id: u64, admission: Admission, evicted: u32) -> RegisterDonorsResponse {
        RegisterDonorsResponse {
            correlation_id,
            result: Some(Answer::Acknowledged(RegisterDonorResponse {
                admission: admission.into(),
                evicted,
                ..RegisterDonorResponse::default()
            })),
        }
    }

    #[test]
    fn only_a_kept_donor_in_its_turn_passes() {
        assert!(check(answer(7, Admission::Added, 0), 7).is_ok());
        assert!(check(answer(8, Admission::Added, 0), 7).is_err());
        assert!(check(answer(7, Admission::Added, 1), 7).is_err());
        assert!(check(answer(7, Admission::Covered, 0), 7).is_err());
        let neither = RegisterDonorsResponse {
            correlation_id: 7,
            result: None,
        };
        assert!(check(neither, 7).is_err());
    }
}
