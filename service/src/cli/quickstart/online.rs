//! The tour's online scoring: one old block holds what the request looks for.

use std::io::Cursor;

use kvatlas_client::{
    Client, ManifestQuery, OnlineQuery, PriorUpload, QueryVectors, SummaryUpload, v1,
};
use serde_json::json;

use super::{heading, manifests, show_table};
use crate::cli::{
    error::CliError,
    output::{Align, Table},
};

const PREFIX: &str = "needle";
const KV_HEADS: usize = 2;
const BLOCKS: usize = 64;
const BLOCK_SIZE: usize = 16;
const HEAD_DIM: usize = 32;
/// One token of this block has the key that the query looks for.
const NEEDLE_BLOCK: usize = 37;
const NEEDLE_TOKEN: usize = 9;
const K: u32 = 4;

/// The algorithm of each question, and what it goes by.
const QUESTIONS: [(&str, &str); 3] = [
    ("", "norms of the last keys, baked offline"),
    ("kri-q", "each block's mean attention logit"),
    ("kri-q-quest", "a bound on its largest one"),
];

/// Stores keys, and asks for blocks with a query.
pub(super) async fn show(client: &Client) -> Result<(), CliError> {
    heading(
        3,
        "Online scoring: which blocks does this query attend to?",
        &format!(
            "Random keys of {BLOCKS} blocks; one token of block {NEEDLE_BLOCK} has the query's key."
        ),
    )?;
    let mut random = Random(3);
    let query: Vec<f32> = (0..KV_HEADS * HEAD_DIM).map(|_| random.normal()).collect();
    let keys = keys(&query, &mut random);
    put_prior(client, &keys).await?;
    put_summary(client, &keys).await?;
    let query = OnlineQuery {
        layer_ids: vec![0],
        heads: count(KV_HEADS),
        head_dim: count(HEAD_DIM),
        vectors: Some(QueryVectors {
            group_mean: true,
            ..QueryVectors::of_f32(v1::RopeFrame::PostRope, &query)
        }),
        ..OnlineQuery::default()
    };
    let mut table = Table::new(&[
        ("ALGORITHM", Align::Left),
        ("GOES BY", Align::Left),
        ("BLOCKS", Align::Left),
        ("NOTE", Align::Left),
        ("CALL", Align::Right),
    ]);
    for (algorithm, goes_by) in QUESTIONS {
        let question = ManifestQuery {
            algorithm: algorithm.to_owned(),
            query: (!algorithm.is_empty()).then(|| query.to_wire()),
            ..ManifestQuery::top_k(PREFIX, K)
        };
        let (manifest, took) = manifests::ask(client, &question).await?;
        table.row([
            manifest.algorithm.clone(),
            goes_by.to_owned(),
            manifests::blocks(&manifest),
            manifests::note(&manifest),
            took,
        ]);
    }
    show_table(&table).map_err(CliError::Output)
}

/// `[kv_heads, tokens, head_dim]`.
fn keys(query: &[f32], random: &mut Random) -> Vec<f32> {
    let mut keys: Vec<f32> = (0..KV_HEADS * BLOCKS * BLOCK_SIZE * HEAD_DIM)
        .map(|_| random.normal())
        .collect();
    for (head, query) in query.chunks_exact(HEAD_DIM).enumerate() {
        let token = NEEDLE_BLOCK * BLOCK_SIZE + NEEDLE_TOKEN;
        let at = (head * BLOCKS * BLOCK_SIZE + token) * HEAD_DIM;
        for (key, query) in keys[at..at + HEAD_DIM].iter_mut().zip(query) {
            *key = 2.0 * query;
        }
    }
    keys
}

async fn put_prior(client: &Client, keys: &[f32]) -> Result<(), CliError> {
    // Of the last token: what every block has, and no needle.
    let score = |block: usize| {
        let last = (block * BLOCK_SIZE + BLOCK_SIZE - 1) * HEAD_DIM;
        let key = &keys[last..last + HEAD_DIM];
        key.iter().map(|channel| channel * channel).sum::<f32>()
    };
    let scores: Vec<f32> = (0..BLOCKS).map(score).collect();
    let upload = PriorUpload {
        header: v1::PutPriorHeader {
            prefix_hash: PREFIX.to_owned(),
            algorithm: "key-norm".to_owned(),
            ..v1::PutPriorHeader::default()
        },
        file: Cursor::new(safetensors("block_affinities", &[1, 1, BLOCKS], &scores)),
    };
    client.put_prior(upload).await?;
    Ok(())
}

async fn put_summary(client: &Client, keys: &[f32]) -> Result<(), CliError> {
    let frequencies: Vec<f32> = (0..count(HEAD_DIM / 2))
        .map(|band| 10_000_f64.powf(-2.0 * f64::from(band) / f64::from(count(HEAD_DIM))))
        .map(narrow)
        .collect();
    let shape = [KV_HEADS, BLOCKS * BLOCK_SIZE, HEAD_DIM];
    let file = safetensors("layers.0.keys", &shape, keys);
    let header = v1::PutKeySummaryHeader {
        prefix_hash: PREFIX.to_owned(),
        frame: v1::RopeFrame::PostRope.into(),
        pair_layout: v1::PairLayout::Half.into(),
        inv_freq: frequencies,
        attention_scaling: 1.0,
        block_size: count(BLOCK_SIZE),
        layer_ids: vec![0],
        size_bytes: file.len() as u64,
        ..v1::PutKeySummaryHeader::default()
    };
    let upload = SummaryUpload {
        header,
        file: Cursor::new(file),
    };
    client.put_key_summary(upload).await?;
    Ok(())
}

/// A safetensors file of one tensor.
fn safetensors(name: &str, shape: &[usize], values: &[f32]) -> Vec<u8> {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let tensor = json!({"dtype": "F32", "shape": shape, "data_offsets": [0, bytes.len()]});
    let header = json!({ name: tensor }).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(bytes);
    file
}

/// SplitMix64, from which near-normal numbers are drawn.
struct Random(u64);

impl Random {
    /// Mean 0, deviation 1: the sum of twelve uniform numbers, less six.
    fn normal(&mut self) -> f32 {
        let sum: f64 = (0..12).map(|_| self.uniform()).sum();
        narrow(sum - 6.0)
    }

    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let high = u32::try_from(mixed >> 32).expect("32 bits are left");
        f64::from(high) / f64::from(u32::MAX)
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("the tour is small")
}

#[expect(clippy::cast_possible_truncation, reason = "to the precision of a key")]
fn narrow(number: f64) -> f32 {
    number as f32
}
