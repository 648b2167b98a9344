//! The donors of a run, with and without text, in several namespaces, and how they are registered.

use kvatlas_proto::v1::{
    Admission, AnnounceOwnerRequest, Medium, Namespace, NamespaceSelector, Owner,
    RegisterDonorRequest, RegisterDonorsRequest, RegisterDonorsResponse,
    donors_client::DonorsClient, register_donors_response::Result as Answer,
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::transport::Channel;

use crate::{
    donors::register::{donor_id, donor_index, packed},
    error::LoadtestError,
};

/// Records sent and not acknowledged.
const IN_FLIGHT: usize = 64;
/// Longer than any run.
const OWNER_TTL_MS: u32 = 3_600_000;
const OWNER_GENERATION: u64 = 1;
const CALL: &str = "RegisterDonors";

/// A donor to register.
#[derive(Debug, Clone)]
pub struct Planted {
    pub id: String,
    pub namespace: NamespaceSelector,
    pub tokens: Vec<u32>,
    /// Empty where it carries none.
    pub text: String,
}

impl Planted {
    /// The donor with an id; ids are unique in the run, whatever the namespace.
    #[must_use]
    pub fn of_id<'a>(id: &str, donors: &'a [Self]) -> Option<&'a Self> {
        donors.get(donor_index(id)?)
    }

    /// Adds a donor; says its index.
    pub fn plant(
        donors: &mut Vec<Self>,
        namespace: &NamespaceSelector,
        tokens: Vec<u32>,
        text: String,
    ) -> usize {
        let index = donors.len();
        donors.push(Self {
            id: donor_id(index as u64),
            namespace: namespace.clone(),
            tokens,
            text,
        });
        index
    }

    fn record(&self, correlation_id: u64, owner: &Owner) -> RegisterDonorsRequest {
        let captured = u32::try_from(self.tokens.len()).expect("arguments are checked");
        RegisterDonorsRequest {
            correlation_id,
            request: Some(RegisterDonorRequest {
                donor_id: self.id.clone(),
                namespace: Some(self.namespace.clone()),
                owner: Some(owner.clone()),
                owner_generation: OWNER_GENERATION,
                tokens: Some(packed(&self.tokens)),
                captured_tokens: captured,
                exact_tokens: captured,
                medium: Medium::Host.into(),
                store_id: "loadtest".to_owned(),
                text: self.text.clone(),
                ..RegisterDonorRequest::default()
            }),
        }
    }
}

/// Announces the owner and registers every donor.
///
/// # Errors
/// When one is refused or not kept.
pub async fn register(channel: Channel, donors: &[Planted]) -> Result<(), LoadtestError> {
    let mut client = DonorsClient::new(channel);
    let owner = Owner {
        worker_id: format!("quality-{}", std::process::id()),
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
        .zip(donors)
        .map(|(at, donor)| donor.record(at, &owner));
    let (send, outbound) = tokio::sync::mpsc::channel(IN_FLIGHT);
    for record in records.by_ref().take(IN_FLIGHT) {
        send.try_send(record)
            .map_err(|full| wrong(full.to_string()))?;
    }
    let mut answers = client
        .register_donors(ReceiverStream::new(outbound))
        .await
        .map_err(|status| LoadtestError::call(CALL, status))?
        .into_inner();
    let mut acknowledged = 0;
    let mut send = Some(send);
    while let Some(answer) = answers.next().await {
        check(answer.map_err(|status| LoadtestError::call(CALL, status))?)?;
        acknowledged += 1;
        match (&send, records.next()) {
            (Some(open), Some(record)) => open
                .send(record)
                .await
                .map_err(|closed| wrong(closed.to_string()))?,
            (None, _) | (_, None) if acknowledged == donors.len() => send = None,
            (None, _) | (_, None) => {}
        }
    }
    if acknowledged == donors.len() {
        Ok(())
    } else {
        Err(wrong("ended with records unanswered".to_owned()))
    }
}

fn check(answer: RegisterDonorsResponse) -> Result<(), LoadtestError> {
    match answer.result {
        Some(Answer::Acknowledged(kept)) => match (kept.admission(), kept.evicted) {
            (Admission::Added, 0) => Ok(()),
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

/// Every namespace that differs from one in a single field.
#[must_use]
pub fn neighbouring_namespaces(namespace: &Namespace) -> Vec<Namespace> {
    let other = || "other".to_owned();
    let changes: [fn(&mut Namespace, String); 17] = [
        |at, other| at.model = other,
        |at, other| at.model_revision = other,
        |at, other| at.tokenizer = other,
        |at, other| at.tokenizer_revision = other,
        |at, other| at.tokenization = other,
        |at, other| at.chat_template = other,
        |at, other| at.dtype = other,
        |at, other| at.kv_cache_dtype = other,
        |at, _| at.block_size *= 2,
        |at, other| at.kv_layout = other,
        |at, other| at.attention_backend = other,
        |at, _| at.tensor_parallel_size += 1,
        |at, _| at.pipeline_parallel_size += 1,
        |at, other| at.adapter = other,
        |at, other| at.rope_scaling = other,
        |at, _| at.multimodal_hashes.push("other".into()),
        |at, _| at.tenant_key = "semblend:tenant:v1:9332cc3fc0ec09d0f04fa8e1e08637b5".to_owned(),
    ];
    changes
        .into_iter()
        .map(|change| {
            let mut changed = namespace.clone();
            change(&mut changed, other());
            changed
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::donors::register::namespace;

    #[test]
    fn each_neighbouring_namespace_is_one_of_its_own() {
        let all = neighbouring_namespaces(&namespace("test"));
        for (at, one) in all.iter().enumerate() {
            assert_ne!(*one, namespace("test"));
            assert!(all[..at].iter().all(|other| other != one));
        }
    }
}
