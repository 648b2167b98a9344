//! GetManifest with a query, end to end over TCP: one call at a time, every answer checked.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use kvatlas::routing::query::OnlineQuery;
use kvatlas_proto::v1::{GetManifestRequest, GetManifestResponse, ManifestProvenance};
use prost::Message;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::{
    Algorithm,
    keys::Keys,
    question::{self, summary_shape},
    upload::{self, Rotation},
};
use crate::{
    args::CommonArgs,
    error::LoadtestError,
    measure::{Latencies, in_turn},
    server::Server,
    wire::{Method, connect},
};

pub const PREFIX_HASH: &str = "loadtest-score";
const WARM_UP_CALLS: u64 = 16;
/// So long, however many calls are asked for.
const CALLING_MAX: Duration = Duration::from_secs(20);
const PATH: &str = "/kvatlas.v1.Routing/GetManifest";

/// A request, and the blocks that it must be answered with.
#[derive(Debug)]
pub struct Asked {
    request: Bytes,
    /// Ascending; empty where they are not known beforehand.
    blocks: Vec<u32>,
}

impl Asked {
    #[must_use]
    pub fn new(request: &GetManifestRequest, mut blocks: Vec<u32>) -> Self {
        blocks.sort_unstable();
        Self {
            request: request.encode_to_vec().into(),
            blocks,
        }
    }

    /// Asks with a query, which `best` answers.
    #[must_use]
    pub fn with_query(algorithm: Algorithm, query: &OnlineQuery, k: usize, best: Vec<u32>) -> Self {
        let request = GetManifestRequest {
            prefix_hash: PREFIX_HASH.to_owned(),
            k: u32::try_from(k).expect("arguments are checked"),
            algorithm: algorithm.of_service().name().to_owned(),
            query: Some(Box::new(question::on_wire(query))),
            ..GetManifestRequest::default()
        };
        Self::new(&request, best)
    }

    fn check(&self, answer: &GetManifestResponse) -> Result<(), LoadtestError> {
        let wrong = |reason: String| LoadtestError::WrongAnswer {
            call: "GetManifest",
            reason,
        };
        if answer.provenance() != ManifestProvenance::Online {
            return Err(wrong(format!("came from {:?}", answer.provenance())));
        }
        if self.blocks.is_empty() || answer.block_indices == self.blocks {
            Ok(())
        } else {
            let (found, expected) = (&answer.block_indices, &self.blocks);
            Err(wrong(format!(
                "blocks {found:?}, by the full pass {expected:?}"
            )))
        }
    }
}

/// A server of its own that has the keys.
///
/// # Errors
/// When it cannot be started, or refuses them.
pub async fn serve(
    common: &CommonArgs,
    keys: (&Arc<Keys>, usize),
) -> Result<(Server, Channel), LoadtestError> {
    let server = Server::of(common)?;
    let channel = connect(&server.address, 1).await?.remove(0);
    let frame = summary_shape(keys.0.shape, keys.1).frame;
    let rotation = Rotation {
        inv_freq: frame.inv_freq.into(),
        attention_scaling: frame.attention_scaling,
    };
    upload::put(&channel, PREFIX_HASH, keys, rotation).await?;
    Ok((server, channel))
}

/// Asks in turn, one call at a time.
///
/// # Errors
/// When a call fails, or its answer is wrong.
pub async fn ask(
    channel: Channel,
    asked: &[Asked],
    calls: usize,
) -> Result<Latencies, LoadtestError> {
    let mut method = Method::<GetManifestResponse>::new(channel, PATH);
    let mut latencies = Latencies::default();
    let begun = Instant::now();
    for ordinal in 0..WARM_UP_CALLS + calls as u64 {
        let asked = &asked[in_turn(ordinal, asked.len())];
        let sent = Instant::now();
        let answer = method
            .call(asked.request.clone())
            .await
            .map_err(|status| LoadtestError::call("GetManifest", status))?;
        let latency = sent.elapsed();
        asked.check(&answer)?;
        if ordinal >= WARM_UP_CALLS {
            latencies.record(latency);
        }
        if begun.elapsed() > CALLING_MAX && latencies.count() > 0 {
            break;
        }
    }
    Ok(latencies)
}
