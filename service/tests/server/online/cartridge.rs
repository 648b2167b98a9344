//! A small cartridge of random keys, and its summary.

use bytes::Bytes;
use kvatlas_proto::v1;
use serde_json::json;
use tonic::Status;

use super::{Clients, within};

pub(super) const LAYER_IDS: [u32; 3] = [2, 5, 9];
pub(super) const HEAD_DIM: usize = 8;
pub(super) const BLOCK_SIZE: usize = 4;
const KV_HEADS: usize = 2;
const BLOCKS: usize = 12;

/// Name, shape, elements.
pub(super) type Tensor<'a> = (String, Vec<usize>, &'a [f32]);

/// Keys after RoPE, `[layers, kv_heads, tokens, head_dim]`; every value is exact in f16.
pub(super) struct Cartridge {
    pub(super) keys: Vec<f32>,
    pub(super) kv_heads: usize,
    pub(super) blocks: usize,
}

impl Cartridge {
    pub(super) fn random(seed: u64) -> Cartridge {
        let mut random = Random(seed);
        let count = LAYER_IDS.len() * KV_HEADS * BLOCKS * BLOCK_SIZE * HEAD_DIM;
        Cartridge {
            // Sixteenths: their means over four are exact as well.
            keys: (0..count)
                .map(|_| (random.next() * 16.0).round() / 16.0)
                .collect(),
            kv_heads: KV_HEADS,
            blocks: BLOCKS,
        }
    }

    /// The keys of a block, token after token.
    pub(super) fn block(&self, layer: usize, head: usize, block: usize) -> &[f32] {
        let width = BLOCK_SIZE * HEAD_DIM;
        let at = ((layer * self.kv_heads + head) * self.blocks + block) * width;
        &self.keys[at..at + width]
    }

    pub(super) async fn put(
        &self,
        clients: &Clients,
        prefix_hash: &str,
    ) -> Result<v1::PutKeySummaryResponse, Status> {
        let tokens = self.blocks * BLOCK_SIZE;
        let per_layer = self.kv_heads * tokens * HEAD_DIM;
        let tensors: Vec<_> = (0..LAYER_IDS.len())
            .map(|layer| {
                let keys = &self.keys[layer * per_layer..][..per_layer];
                (
                    format!("layers.{layer}.keys"),
                    vec![self.kv_heads, tokens, HEAD_DIM],
                    keys,
                )
            })
            .collect();
        let header = v1::PutKeySummaryHeader {
            prefix_hash: prefix_hash.into(),
            frame: v1::RopeFrame::PostRope.into(),
            pair_layout: v1::PairLayout::Half.into(),
            inv_freq: inv_freq().to_vec(),
            attention_scaling: 1.0,
            block_size: narrow(BLOCK_SIZE),
            layer_ids: LAYER_IDS.to_vec(),
            content: v1::KeySummaryContent::Cartridge.into(),
            ..Default::default()
        };
        put_summary(clients, header, &tensors).await
    }
}

pub(super) fn inv_freq() -> [f32; HEAD_DIM / 2] {
    std::array::from_fn(|band| 10_000_f32.powf(-2.0 * band as f32 / HEAD_DIM as f32))
}

pub(super) async fn put_summary(
    clients: &Clients,
    header: v1::PutKeySummaryHeader,
    tensors: &[Tensor<'_>],
) -> Result<v1::PutKeySummaryResponse, Status> {
    use v1::put_key_summary_request::Part;
    let parts = [Part::Header(header), Part::Chunk(safetensors(tensors))];
    let parts = parts.map(|part| v1::PutKeySummaryRequest { part: Some(part) });
    let mut routing = clients.routing.clone();
    let put = within(routing.put_key_summary(tokio_stream::iter(parts))).await;
    put.map(tonic::Response::into_inner)
}

/// Stores pooled scores as a prior.
pub(super) async fn put_prior(clients: &Clients, prefix_hash: &str, scores: &[f32]) {
    put_prior_of(clients, prefix_hash, &[1, 1, scores.len()], scores).await;
}

/// Stores scores `[layers, kv_heads, blocks]` as a prior.
pub(super) async fn put_prior_of(
    clients: &Clients,
    prefix_hash: &str,
    shape: &[usize],
    scores: &[f32],
) {
    use v1::put_prior_request::Part;
    let tensors = [("block_affinities".to_owned(), shape.to_vec(), scores)];
    let header = v1::PutPriorHeader {
        prefix_hash: prefix_hash.into(),
        ..Default::default()
    };
    let parts = [Part::Header(header), Part::Chunk(safetensors(&tensors))];
    let parts = parts.map(|part| v1::PutPriorRequest { part: Some(part) });
    let mut routing = clients.routing.clone();
    within(routing.put_prior(tokio_stream::iter(parts)))
        .await
        .unwrap();
}

/// A safetensors file of f32.
fn safetensors(tensors: &[Tensor<'_>]) -> Bytes {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let offsets = [start, data.len()];
        header.insert(
            name.clone(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": offsets}),
        );
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    file.into()
}

/// SplitMix64, as numbers from -1 to 1.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    }
}

/// What a test counts is small.
pub(super) fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap()
}
