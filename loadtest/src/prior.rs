//! Priors made for the test, with the answers that a manifest drawn from them must have.

use bytes::Bytes;
use kvatlas_proto::v1::{
    DeletePriorRequest, PriorFormat, PriorKey, PutPriorHeader, PutPriorRequest,
    put_prior_request::Part, routing_client::RoutingClient,
};
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::{error::LoadtestError, random::Random, wire::Shown};

/// Blocks that a manifest asks for.
pub const MANIFEST_BLOCKS: usize = 16;
/// The policy in production at 16 blocks: the first, the last two, the best 13 between.
pub const PRODUCTION_POLICY: &str = "A1R2K13";
const ANCHOR_BLOCKS: usize = 1;
const RECENT_BLOCKS: usize = 2;
/// A prior's file is sent in pieces of this size.
const CHUNK_BYTES: usize = 1 << 20;
/// Scores are whole multiples of 1/256 below 1, so that every way of summing them is exact and
/// the answer is known to the last tie.
const SCORE_STEPS: u32 = 256;

/// Shape of a score tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub blocks: usize,
}

/// A prior's file, and what it must lead to.
#[derive(Debug)]
pub struct TestPrior {
    pub prefix_hash: String,
    /// In safetensors form.
    pub file: Bytes,
    pub expected: Expected,
}

/// The blocks of a prior under two policies, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    pub total_blocks: u32,
    pub top_k: Vec<u32>,
    pub production: Vec<u32>,
}

impl TestPrior {
    /// The prior with the number `index` of a seed.
    #[must_use]
    pub fn new(index: usize, shape: PriorShape, random: &mut Random) -> Self {
        let cells = shape.layers * shape.kv_heads * shape.blocks;
        let mut file = safetensors_header(shape, cells * size_of::<f32>());
        let mut sums = vec![0_u32; shape.blocks];
        for _ in 0..shape.layers * shape.kv_heads {
            for sum in &mut sums {
                let steps = random.below_u32(SCORE_STEPS);
                *sum += steps;
                #[expect(clippy::cast_possible_truncation, reason = "8 bits fit a f32 exactly")]
                let score = (f64::from(steps) / f64::from(SCORE_STEPS)) as f32;
                file.extend_from_slice(&score.to_le_bytes());
            }
        }
        Self {
            prefix_hash: prefix_hash(index),
            file: file.into(),
            expected: Expected::of(&sums),
        }
    }

    /// Stores it and says how long that took, in milliseconds.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn put(&self, channel: Channel, shown: &Shown) -> Result<f64, LoadtestError> {
        let header = Part::Header(PutPriorHeader {
            prefix_hash: self.prefix_hash.clone(),
            algorithm: "loadtest".to_owned(),
            format: PriorFormat::Safetensors.into(),
            size_bytes: self.file.len() as u64,
            ..PutPriorHeader::default()
        });
        let chunks = (0..self.file.len()).step_by(CHUNK_BYTES).map(|start| {
            let end = self.file.len().min(start + CHUNK_BYTES);
            Part::Chunk(self.file.slice(start..end))
        });
        let parts: Vec<PutPriorRequest> = std::iter::once(header)
            .chain(chunks)
            .map(|part| PutPriorRequest { part: Some(part) })
            .collect();
        let sent = Instant::now();
        RoutingClient::new(channel)
            .put_prior(shown.with(tokio_stream::iter(parts)))
            .await
            .map_err(|status| LoadtestError::call("PutPrior", status))?;
        Ok(sent.elapsed().as_secs_f64() * 1000.0)
    }
}

/// Removes the prior with the number `index` from a server that others use too.
///
/// # Errors
/// When the server refuses.
pub async fn delete(channel: Channel, index: usize) -> Result<(), LoadtestError> {
    let key = PriorKey {
        prefix_hash: prefix_hash(index),
        ..PriorKey::default()
    };
    RoutingClient::new(channel)
        .delete_prior(DeletePriorRequest { key: Some(key) })
        .await
        .map_err(|status| LoadtestError::call("DeletePrior", status))?;
    Ok(())
}

fn prefix_hash(index: usize) -> String {
    format!("loadtest-prior-{index}")
}

impl Expected {
    /// The answers for pooled scores: highest first, of equal ones the lower index.
    fn of(scores: &[u32]) -> Self {
        let best = |from: usize, upto: usize, count: usize| -> Vec<usize> {
            let mut blocks: Vec<usize> = (from..upto).collect();
            blocks.sort_by(|&left, &right| scores[right].cmp(&scores[left]).then(left.cmp(&right)));
            blocks.truncate(count);
            blocks
        };
        let total = scores.len();
        let mut production = best(
            ANCHOR_BLOCKS,
            total - RECENT_BLOCKS,
            MANIFEST_BLOCKS - ANCHOR_BLOCKS - RECENT_BLOCKS,
        );
        production.extend(0..ANCHOR_BLOCKS);
        production.extend(total - RECENT_BLOCKS..total);
        Self {
            total_blocks: u32::try_from(total).expect("arguments are checked"),
            top_k: ascending(best(0, total, MANIFEST_BLOCKS)),
            production: ascending(production),
        }
    }
}

fn ascending(mut blocks: Vec<usize>) -> Vec<u32> {
    blocks.sort_unstable();
    blocks
        .into_iter()
        .map(|block| u32::try_from(block).expect("arguments are checked"))
        .collect()
}

fn safetensors_header(shape: PriorShape, data_bytes: usize) -> Vec<u8> {
    let PriorShape {
        layers,
        kv_heads,
        blocks,
    } = shape;
    let mut header = format!(
        "{{\"block_affinities\":{{\"dtype\":\"F32\",\"shape\":[{layers},{kv_heads},{blocks}],\
         \"data_offsets\":[0,{data_bytes}]}}}}"
    );
    while header.len() % 8 > 0 {
        header.push(' ');
    }
    let mut file = Vec::with_capacity(8 + header.len() + data_bytes);
    file.extend_from_slice(&(header.len() as u64).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lower_block() {
        let mut scores = vec![5; 40];
        scores[7] = 9;
        scores[39] = 1;
        let expected = Expected::of(&scores);
        assert_eq!(expected.top_k, (0..16).collect::<Vec<u32>>());
        let middle: Vec<u32> = (0..=13).chain([38, 39]).collect();
        assert_eq!(expected.production, middle);
    }

    #[test]
    fn the_best_blocks_win() {
        let scores: Vec<u32> = (0..100).collect();
        let expected = Expected::of(&scores);
        assert_eq!(expected.top_k, (84..100).collect::<Vec<u32>>());
        let middle: Vec<u32> = [0].into_iter().chain(85..100).collect();
        assert_eq!(expected.production, middle);
    }

    #[test]
    fn the_file_is_safetensors_and_holds_the_scores() {
        let shape = PriorShape {
            layers: 2,
            kv_heads: 3,
            blocks: 32,
        };
        let prior = TestPrior::new(1, shape, &mut Random::new(9));
        let header_length =
            usize::try_from(u64::from_le_bytes(prior.file[..8].try_into().unwrap())).unwrap();
        let header: serde_json::Value =
            serde_json::from_slice(&prior.file[8..8 + header_length]).unwrap();
        assert_eq!(
            header["block_affinities"]["shape"],
            serde_json::json!([2, 3, 32])
        );
        let data = &prior.file[8 + header_length..];
        assert_eq!(header["block_affinities"]["data_offsets"][1], data.len());
        let mut sums = [0.0_f32; 32];
        for (at, score) in data.chunks_exact(4).enumerate() {
            sums[at % 32] += f32::from_le_bytes(score.try_into().unwrap());
        }
        let mut best: Vec<usize> = (0..32).collect();
        best.sort_by(|&left, &right| sums[right].total_cmp(&sums[left]).then(left.cmp(&right)));
        best.truncate(16);
        assert_eq!(ascending(best), prior.expected.top_k);
    }
}
