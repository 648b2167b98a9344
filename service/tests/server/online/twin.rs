//! The algorithms as their formulas say, token by token, in f64.

use kvatlas_proto::v1;

use super::cartridge::{BLOCK_SIZE, Cartridge, HEAD_DIM, LAYER_IDS, Random, inv_freq, narrow};

const GROUP: usize = 3;
const BANDS: usize = HEAD_DIM / 2;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Group {
    Mean,
    Max,
}

/// Query vectors of some layers, `[layers, heads, head_dim]`.
pub(super) struct Asked {
    layer_ids: Vec<u32>,
    group: usize,
    values: Vec<f32>,
}

impl Asked {
    /// Group means, or three query heads for each of two KV heads.
    pub(super) fn random(seed: u64, layer_ids: &[u32], group_means: bool) -> Asked {
        let mut random = Random(seed ^ 0x5eed);
        let group = if group_means { 1 } else { GROUP };
        let count = layer_ids.len() * 2 * group * HEAD_DIM;
        Asked {
            layer_ids: layer_ids.to_vec(),
            group,
            values: (0..count).map(|_| random.next()).collect(),
        }
    }

    pub(super) fn vectors(&self) -> v1::QueryVectors {
        v1::QueryVectors {
            frame: v1::RopeFrame::PostRope.into(),
            element_type: v1::ElementType::F32.into(),
            layer_ids: self.layer_ids.clone(),
            heads: 2 * narrow(self.group),
            head_dim: narrow(HEAD_DIM),
            group_mean: self.group == 1,
            vectors: bytes(self.values.iter().copied()),
            ..Default::default()
        }
    }

    /// The same numbers as the statistics of kri-t.
    pub(super) fn statistics(&self, position: u64) -> v1::QueryVectors {
        #[expect(clippy::cast_possible_truncation, reason = "statistics travel in f32")]
        let of = |part: fn(Complex) -> f64| bytes(self.bands().map(move |band| part(band) as f32));
        v1::QueryVectors {
            frame: v1::RopeFrame::PreRope.into(),
            layer_ids: self.layer_ids.clone(),
            heads: 2 * narrow(self.group),
            head_dim: narrow(HEAD_DIM),
            position,
            mean_real: of(|(real, _)| real),
            mean_imaginary: of(|(_, imaginary)| imaginary),
            mean_absolute: of(absolute),
            ..Default::default()
        }
    }

    fn bands(&self) -> impl Iterator<Item = Complex> + '_ {
        let heads = self.values.chunks_exact(HEAD_DIM);
        heads.flat_map(|head| (0..BANDS).map(|band| pair(head, band)))
    }

    fn parts(&self) -> Vec<Part<'_>> {
        let groups = self.values.chunks_exact(self.group * HEAD_DIM);
        let place = |at: usize| {
            let id = self.layer_ids[at / 2];
            LAYER_IDS.iter().position(|layer| *layer == id).unwrap()
        };
        groups
            .enumerate()
            .map(|(at, group)| (place(at), at % 2, group.chunks_exact(HEAD_DIM).collect()))
            .collect()
    }
}

type Complex = (f64, f64);
/// Place in the cartridge's layers, KV head, query heads of the group.
type Part<'a> = (usize, usize, Vec<&'a [f32]>);

/// More than the mean's own magnitude, as that of any queries that differ.
fn absolute((real, imaginary): Complex) -> f64 {
    real.hypot(imaginary) * 1.25 + 0.125
}

fn pair(vector: &[f32], band: usize) -> Complex {
    (f64::from(vector[band]), f64::from(vector[band + BANDS]))
}

pub(super) fn kri_q(cartridge: &Cartridge, asked: &Asked, group: Group, cosine: bool) -> Vec<f64> {
    pooled(cartridge, asked, |layer, head, block, queries| {
        kri_q_of(cartridge.block(layer, head, block), queries, group, cosine)
    })
}

/// For each (layer, KV head) the scores of its blocks.
pub(super) fn kri_q_by_head(cartridge: &Cartridge, asked: &Asked, group: Group) -> Vec<Vec<f64>> {
    let parts = asked.parts();
    let of_part = |(layer, head, queries): &Part<'_>| {
        let blocks = 0..cartridge.blocks;
        let score = |block| kri_q_of(cartridge.block(*layer, *head, block), queries, group, false);
        blocks.map(score).collect()
    };
    parts.iter().map(of_part).collect()
}

fn kri_q_of(keys: &[f32], queries: &[&[f32]], group: Group, cosine: bool) -> f64 {
    let mean = mean_key(keys);
    let score = |query: &&[f32]| {
        let dot: f64 = query
            .iter()
            .zip(&mean)
            .map(|(q, k)| f64::from(*q) * k)
            .sum();
        if cosine {
            let of_query = query
                .iter()
                .map(|q| f64::from(*q).powi(2))
                .sum::<f64>()
                .sqrt();
            let of_key = mean.iter().map(|k| k * k).sum::<f64>().sqrt();
            dot / of_query.max(1e-12) / of_key.max(1e-12)
        } else {
            dot / (HEAD_DIM as f64).sqrt()
        }
    };
    together(queries.iter().map(score), group)
}

pub(super) fn quest(cartridge: &Cartridge, asked: &Asked, group: Group) -> Vec<f64> {
    pooled(cartridge, asked, |layer, head, block, queries| {
        let keys = cartridge.block(layer, head, block);
        let bound = |query: &&[f32]| {
            let of_channel = |channel: usize| {
                let products = keys
                    .chunks_exact(HEAD_DIM)
                    .map(|key| f64::from(query[channel]) * f64::from(key[channel]));
                products.fold(f64::NEG_INFINITY, f64::max)
            };
            (0..HEAD_DIM).map(of_channel).sum()
        };
        together(queries.iter().map(bound), group)
    })
}

pub(super) fn kri_t(cartridge: &Cartridge, asked: &Asked, position: u64) -> Vec<f64> {
    let parts = asked.parts();
    let mut pooled = vec![0.0; cartridge.blocks];
    for (layer, head, queries) in &parts {
        let mut best = vec![f64::NEG_INFINITY; cartridge.blocks];
        for query in queries {
            let blocks = 0..cartridge.blocks;
            let score = |block| kri_t_of(cartridge.block(*layer, *head, block), query, position);
            let scores: Vec<f64> = blocks.map(score).collect();
            let count = scores.len() as f64;
            let mean = scores.iter().sum::<f64>() / count;
            let variance = scores
                .iter()
                .map(|score| (score - mean).powi(2))
                .sum::<f64>()
                / count;
            for (best, score) in best.iter_mut().zip(&scores) {
                *best = best.max((score - mean) / variance.sqrt().max(1e-6));
            }
        }
        for (pooled, best) in pooled.iter_mut().zip(best) {
            *pooled += best / parts.len() as f64;
        }
    }
    pooled
}

/// The mean over the block's keys and over the offsets 1, 2, 4 .. 65536.
fn kri_t_of(keys: &[f32], query: &[f32], position: u64) -> f64 {
    let mut sum = 0.0;
    for key in keys.chunks_exact(HEAD_DIM) {
        for (band, frequency) in inv_freq().into_iter().enumerate() {
            let (mean, key) = (pair(query, band), pair(key, band));
            let (of_mean, of_key) = (mean.0.hypot(mean.1), key.0.hypot(key.1));
            // The key's angle has its own position in it already.
            let angle = mean.1.atan2(mean.0) - key.1.atan2(key.0);
            for step in 0..17 {
                let at = (position + (1_u64 << step)) as f64;
                let phase = at * f64::from(frequency) + angle;
                sum += of_mean * of_key * phase.cos() / 17.0;
            }
            sum += (absolute(mean) - of_mean) * of_key;
        }
    }
    sum / BLOCK_SIZE as f64
}

fn pooled(
    cartridge: &Cartridge,
    asked: &Asked,
    score: impl Fn(usize, usize, usize, &[&[f32]]) -> f64,
) -> Vec<f64> {
    let parts = asked.parts();
    let of_block = |block| {
        let scores = parts
            .iter()
            .map(|(layer, head, queries)| score(*layer, *head, block, queries));
        scores.sum::<f64>() / parts.len() as f64
    };
    (0..cartridge.blocks).map(of_block).collect()
}

fn together(scores: impl ExactSizeIterator<Item = f64>, group: Group) -> f64 {
    let count = scores.len() as f64;
    match group {
        Group::Mean => scores.sum::<f64>() / count,
        Group::Max => scores.fold(f64::NEG_INFINITY, f64::max),
    }
}

fn mean_key(keys: &[f32]) -> Vec<f64> {
    let of_channel = |channel: usize| {
        let values = keys
            .chunks_exact(HEAD_DIM)
            .map(|key| f64::from(key[channel]));
        values.sum::<f64>() / BLOCK_SIZE as f64
    };
    (0..HEAD_DIM).map(of_channel).collect()
}

fn bytes(values: impl Iterator<Item = f32>) -> bytes::Bytes {
    values.flat_map(f32::to_le_bytes).collect::<Vec<_>>().into()
}
