//! The measured calls: empty, unary, streamed; every answer is compared with the known one.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use kvatlas_proto::v1::{CallError, GetManifestRequest};
use prost::Message;
use tokio::time::Instant;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::transport::Channel;

use crate::{
    echo::{self, Empty},
    measure::{Caller, Load, Outstanding, Slice, Told, in_turn},
    prior::{MANIFEST_BLOCKS, PRODUCTION_POLICY, TestPrior},
    wire::{Method, Shown, correlated},
};

const UNARY_PATH: &str = "/kvatlas.v1.Routing/GetManifest";
const STREAM_PATH: &str = "/kvatlas.v1.Routing/GetManifests";

/// A request, encoded, and the answer it must get.
#[derive(Debug)]
pub struct Asked {
    request: Bytes,
    blocks: usize,
    /// As the answer spells them.
    packed_blocks: Vec<u8>,
    total_blocks: u32,
}

fn packed(blocks: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &block in blocks {
        prost::encoding::encode_varint(block.into(), &mut bytes);
    }
    bytes
}

/// The part of a manifest that is checked in every answer, decoded as far as the check needs: the
/// client must not become what is measured.
#[derive(Clone, PartialEq, prost::Message)]
struct ManifestAnswer {
    /// A packed list is on the wire what bytes are.
    #[prost(bytes = "vec", tag = "1")]
    block_indices: Vec<u8>,
    #[prost(uint32, tag = "2")]
    total_blocks: u32,
    #[prost(uint32, tag = "3")]
    effective_k: u32,
    #[prost(uint64, tag = "6")]
    prior_generation: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StreamAnswer {
    #[prost(uint64, tag = "1")]
    correlation_id: u64,
    #[prost(message, optional, tag = "2")]
    manifest: Option<ManifestAnswer>,
    #[prost(message, optional, tag = "3")]
    error: Option<CallError>,
}

impl Asked {
    /// The two requests that a prior is asked for with.
    pub fn about(prior: &TestPrior) -> [Self; 2] {
        let expected = &prior.expected;
        [
            ("top-k", &expected.top_k),
            (PRODUCTION_POLICY, &expected.production),
        ]
        .map(|(policy, blocks)| {
            let request = GetManifestRequest {
                prefix_hash: prior.prefix_hash.clone(),
                k: u32::try_from(MANIFEST_BLOCKS).expect("a small constant"),
                policy: policy.to_owned(),
                ..GetManifestRequest::default()
            };
            Self {
                request: request.encode_to_vec().into(),
                blocks: blocks.len(),
                packed_blocks: packed(blocks),
                total_blocks: expected.total_blocks,
            }
        })
    }

    fn check(&self, answer: &ManifestAnswer) -> Result<Told, String> {
        if answer.block_indices == self.packed_blocks
            && answer.total_blocks == self.total_blocks
            && answer.effective_k as usize == self.blocks
            && answer.prior_generation > 0
        {
            Ok(Told::default())
        } else {
            Err(format!(
                "GetManifest: {} blocks of {}, not the ones that its scores say",
                answer.effective_k, answer.total_blocks
            ))
        }
    }
}

fn methods<A: Message + Default + 'static>(
    channels: &[Channel],
    path: &'static str,
) -> Vec<Method<A>> {
    channels
        .iter()
        .map(|channel| Method::new(channel.clone(), path))
        .collect()
}

/// Empty calls.
#[derive(Debug, Clone)]
pub struct EchoCaller {
    methods: Vec<Method<Empty>>,
}

impl EchoCaller {
    pub fn new(channels: &[Channel]) -> Self {
        Self {
            methods: methods(channels, echo::PATH),
        }
    }
}

impl Caller for EchoCaller {
    async fn call(&mut self, ordinal: u64) -> Result<Told, String> {
        let turn = in_turn(ordinal, self.methods.len());
        match self.methods[turn].call(Bytes::new()).await {
            Ok(Empty {}) => Ok(Told::default()),
            Err(status) => Err(format!("echo: {status}")),
        }
    }
}

/// Unary calls.
#[derive(Debug, Clone)]
pub struct ManifestCaller {
    methods: Vec<Method<ManifestAnswer>>,
    asked: Arc<[Asked]>,
}

impl ManifestCaller {
    pub fn new(channels: &[Channel], asked: Arc<[Asked]>) -> Self {
        Self {
            methods: methods(channels, UNARY_PATH),
            asked,
        }
    }

    /// The same, with what its calls show.
    pub fn showing(self, shown: &Shown) -> Self {
        let methods = self.methods.into_iter();
        Self {
            methods: methods.map(|it| it.showing(shown.clone())).collect(),
            ..self
        }
    }
}

impl Caller for ManifestCaller {
    async fn call(&mut self, ordinal: u64) -> Result<Told, String> {
        let turn = in_turn(ordinal, self.methods.len());
        let asked = &self.asked[in_turn(ordinal, self.asked.len())];
        match self.methods[turn].call(asked.request.clone()).await {
            Ok(answer) => asked.check(&answer),
            Err(status) => Err(format!("GetManifest: {status}")),
        }
    }
}

/// One stream with so many requests outstanding, for a while. Its failures end it.
pub async fn stream_loop(
    channel: Channel,
    shown: &Shown,
    asked: Arc<[Asked]>,
    load: Load,
) -> Slice {
    let method = Method::new(channel, STREAM_PATH).showing(shown.clone());
    // On a worker, as the unary callers are.
    let mut worker = tokio::task::JoinSet::new();
    worker.spawn(async move {
        let mut seen = Slice::default();
        let start = Instant::now();
        if let Err(failure) = converse(method, &asked, load, &mut seen).await {
            seen.record(Duration::ZERO, Err(format!("GetManifests: {failure}")));
        }
        seen.elapsed = start.elapsed();
        seen
    });
    match worker.join_next().await {
        Some(Ok(seen)) => seen,
        Some(Err(died)) => {
            let mut seen = Slice::default();
            seen.record(Duration::ZERO, Err(died.to_string()));
            seen
        }
        None => Slice::default(),
    }
}

async fn converse(
    mut method: Method<StreamAnswer>,
    asked: &[Asked],
    load: Load,
    seen: &mut Slice,
) -> Result<(), String> {
    let (requests, outbound) = tokio::sync::mpsc::channel(load.concurrency);
    let mut outstanding = Outstanding::default();
    let end = Instant::now() + load.turn;
    let request = |ordinal: u64| {
        let body = &asked[in_turn(ordinal, asked.len())].request;
        correlated(ordinal, body)
    };
    let mut next = 0;
    while next < load.concurrency as u64 {
        outstanding.sent(next, Instant::now());
        requests
            .try_send(request(next))
            .map_err(|full| full.to_string())?;
        next += 1;
    }
    let mut answers = method
        .stream(ReceiverStream::new(outbound))
        .await
        .map_err(|status| status.to_string())?;
    let mut requests = Some(requests);
    while let Some(answer) = answers.next().await {
        let answer = answer.map_err(|status| status.to_string())?;
        let now = Instant::now();
        let latency = outstanding.answered(answer.correlation_id, now)?;
        seen.record(latency, checked(asked, &answer));
        if now >= end {
            // The server ends its side when ours is closed and all is answered.
            requests = None;
        }
        if let Some(requests) = &requests {
            outstanding.sent(next, now);
            requests
                .send(request(next))
                .await
                .map_err(|closed| closed.to_string())?;
            next += 1;
        }
    }
    if outstanding.is_empty() {
        Ok(())
    } else {
        Err("ended with requests unanswered".to_owned())
    }
}

fn checked(asked: &[Asked], answer: &StreamAnswer) -> Result<Told, String> {
    let about = &asked[in_turn(answer.correlation_id, asked.len())];
    match (&answer.manifest, &answer.error) {
        (Some(manifest), None) => about.check(manifest),
        (_, Some(error)) => Err(format!("code {}: {}", error.code, error.message)),
        (None, None) => Err("neither an answer nor an error".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use kvatlas_proto::v1::GetManifestResponse;

    use super::*;
    use crate::{prior::PriorShape, random::Random};

    fn prior() -> TestPrior {
        let shape = PriorShape {
            layers: 1,
            kv_heads: 2,
            blocks: 64,
        };
        TestPrior::new(0, shape, &mut Random::new(1))
    }

    /// An answer as a server encodes it, after a change.
    fn check(change: impl FnOnce(&mut GetManifestResponse)) -> Result<Told, String> {
        let prior = prior();
        let [asked, _production] = Asked::about(&prior);
        let mut answer = GetManifestResponse {
            block_indices: prior.expected.top_k.clone(),
            total_blocks: 64,
            effective_k: 16,
            algorithm: "loadtest".to_owned(),
            policy: "top-k".to_owned(),
            prior_generation: 3,
            ..GetManifestResponse::default()
        };
        change(&mut answer);
        let seen = ManifestAnswer::decode(answer.encode_to_vec().as_slice()).unwrap();
        asked.check(&seen)
    }

    #[test]
    fn the_right_answer_passes_and_every_wrong_one_is_noticed() {
        assert_eq!(check(|_| {}), Ok(Told::default()));
        assert!(check(|answer| answer.block_indices.swap(0, 1)).is_err());
        assert!(check(|answer| answer.block_indices.truncate(15)).is_err());
        assert!(check(|answer| answer.block_indices[15] = 63).is_err());
        assert!(check(|answer| answer.total_blocks = 65).is_err());
        assert!(check(|answer| answer.effective_k = 15).is_err());
        assert!(check(|answer| answer.prior_generation = 0).is_err());
    }
}
