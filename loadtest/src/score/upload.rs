//! A key summary as a safetensors file, made while it is sent.

use std::sync::Arc;

use bytes::Bytes;
use half::f16;
use kvatlas::routing::query::WhichTable;
use kvatlas_kernels::score::{Elements, Table};
use kvatlas_proto::v1::{
    KeySummary, KeySummaryContent, PriorFormat, PutKeySummaryHeader, PutKeySummaryRequest,
    put_key_summary_request::Part, routing_client::RoutingClient,
};
use serde_json::json;
use tonic::transport::Channel;

use super::{keys::Keys, question::summary_shape};
use crate::error::LoadtestError;

/// Largest piece of a file.
const CHUNK_BYTES: usize = 1 << 20;

/// Rotation of the keys, as a header states it.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    pub inv_freq: Vec<f32>,
    pub attention_scaling: f32,
}

/// A tensor of the file, of shape `[layers, kv_heads, blocks, columns]`; the table it comes from
/// has the blocks outermost.
#[derive(Debug, Clone, Copy)]
struct Tensor {
    name: &'static str,
    from: Source,
    columns: usize,
    /// Columns of the table from one (layer, KV head) to the next.
    step: usize,
    /// First of them that belongs to this tensor.
    first: usize,
}

#[derive(Debug, Clone, Copy)]
enum Source {
    Table(WhichTable),
    Magnitudes,
}

/// Stores the keys' first `blocks` blocks under a prefix_hash.
///
/// # Errors
/// When the server refuses them.
pub async fn put(
    channel: &Channel,
    prefix_hash: &str,
    (keys, blocks): (&Arc<Keys>, usize),
    rotation: Rotation,
) -> Result<KeySummary, LoadtestError> {
    let shape = summary_shape(keys.shape, blocks);
    let header = Part::Header(PutKeySummaryHeader {
        prefix_hash: prefix_hash.to_owned(),
        frame: kvatlas_proto::v1::RopeFrame::PostRope.into(),
        pair_layout: kvatlas_proto::v1::PairLayout::Half.into(),
        inv_freq: rotation.inv_freq,
        attention_scaling: rotation.attention_scaling,
        block_size: shape.frame.block_size,
        layer_ids: shape.frame.layer_ids.to_vec(),
        size_bytes: 0,
        content: KeySummaryContent::Summary.into(),
        format: PriorFormat::Safetensors.into(),
    });
    let file = File::of(Arc::clone(keys), blocks);
    let parts = std::iter::once(header).chain(file.chunks().map(Part::Chunk));
    let requests = parts.map(|part| PutKeySummaryRequest { part: Some(part) });
    let answer = RoutingClient::new(channel.clone())
        .put_key_summary(tokio_stream::iter(requests))
        .await
        .map_err(|status| LoadtestError::call("PutKeySummary", status))?;
    answer
        .into_inner()
        .summary
        .ok_or_else(|| LoadtestError::WrongAnswer {
            call: "PutKeySummary",
            reason: "no summary".to_owned(),
        })
}

struct File {
    keys: Arc<Keys>,
    blocks: usize,
    tensors: Vec<Tensor>,
}

impl File {
    fn of(keys: Arc<Keys>, blocks: usize) -> Self {
        let columns = keys.shape.head_dim;
        let of_means = Tensor {
            name: "key_means",
            from: Source::Table(WhichTable::Means),
            columns,
            step: columns,
            first: 0,
        };
        let mut tensors = vec![of_means];
        if !keys.extremes.is_empty() {
            tensors.extend(
                [("key_min", 0), ("key_max", columns)].map(|(name, first)| Tensor {
                    name,
                    from: Source::Table(WhichTable::Extremes),
                    columns,
                    step: columns * 2,
                    first,
                }),
            );
        }
        if !keys.magnitudes.is_empty() {
            tensors.push(Tensor {
                name: "key_magnitudes",
                from: Source::Magnitudes,
                columns: columns / 2,
                step: columns / 2,
                first: 0,
            });
        }
        Self {
            keys,
            blocks,
            tensors,
        }
    }

    fn header(&self) -> Bytes {
        let shape = self.keys.shape;
        let mut entries = serde_json::Map::new();
        let mut offset = 0;
        for tensor in &self.tensors {
            let end = offset + shape.parts() * self.blocks * tensor.columns * size_of::<f16>();
            entries.insert(
                tensor.name.to_owned(),
                json!({
                    "dtype": "F16",
                    "shape": [shape.layers, shape.kv_heads, self.blocks, tensor.columns],
                    "data_offsets": [offset, end],
                }),
            );
            offset = end;
        }
        safetensors_start(entries).into()
    }

    /// The file in order, in pieces.
    fn chunks(self) -> impl Iterator<Item = Bytes> + Send + 'static {
        let header = std::iter::once(self.header());
        let Self {
            keys,
            blocks,
            tensors,
        } = self;
        let parts = keys.shape.parts();
        let pieces = tensors.into_iter().flat_map(move |tensor| {
            let each = CHUNK_BYTES / (tensor.columns * size_of::<f16>());
            (0..parts).flat_map(move |part| {
                (0..blocks)
                    .step_by(each)
                    .map(move |first| (tensor, part, first..blocks.min(first + each)))
            })
        });
        header.chain(pieces.map(move |(tensor, part, rows)| {
            let table = tensor.table(&keys, blocks);
            let start = part * tensor.step + tensor.first;
            let Elements::F16(elements) = table.elements else {
                unreachable!("keys are drawn in f16")
            };
            rows.flat_map(|row| &elements[row * table.width + start..][..tensor.columns])
                .flat_map(|element| element.to_le_bytes())
                .collect()
        }))
    }
}

/// What a safetensors file begins with: the length of its header, then that, padded.
#[must_use]
pub fn safetensors_start(entries: serde_json::Map<String, serde_json::Value>) -> Vec<u8> {
    let mut text = serde_json::Value::Object(entries).to_string();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let mut start = (text.len() as u64).to_le_bytes().to_vec();
    start.extend_from_slice(text.as_bytes());
    start
}

impl Tensor {
    fn table(self, keys: &Keys, blocks: usize) -> Table<'_> {
        match self.from {
            Source::Table(which) => keys.table(which, blocks),
            Source::Magnitudes => keys.magnitudes(blocks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        random::Random,
        score::{ModelShape, keys::Further},
    };

    #[test]
    fn the_file_holds_the_tables_heads_first() {
        let shape = ModelShape {
            layers: 2,
            query_heads: 6,
            kv_heads: 3,
            head_dim: 8,
        };
        let further = Further {
            extremes: true,
            magnitudes: true,
        };
        let keys = Arc::new(Keys::draw(shape, 9, further, 1, &Random::new(2)));
        // Less than all of them.
        let blocks = 7;
        let file: Vec<u8> = File::of(Arc::clone(&keys), blocks)
            .chunks()
            .flatten()
            .collect();
        let length = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
        let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
        let data = &file[8 + length..];
        let value = |name: &str, index: usize| {
            let offset = header[name]["data_offsets"][0].as_u64().unwrap();
            let at = usize::try_from(offset).unwrap() + index * 2;
            f16::from_le_bytes([data[at], data[at + 1]]).to_f32()
        };
        let means = keys.table(WhichTable::Means, blocks);
        let extremes = keys.table(WhichTable::Extremes, blocks);
        for part in 0..6 {
            for block in 0..blocks {
                for column in 0..8 {
                    let index = (part * blocks + block) * 8 + column;
                    let expected = [
                        ("key_means", means.get(block, part * 8 + column)),
                        ("key_min", extremes.get(block, part * 16 + column)),
                        ("key_max", extremes.get(block, part * 16 + 8 + column)),
                    ];
                    for (name, expected) in expected {
                        assert!((value(name, index) - expected).abs() < 1e-9, "{name}");
                    }
                }
                for band in 0..4 {
                    let index = (part * blocks + block) * 4 + band;
                    let expected = keys.magnitudes(blocks).get(block, part * 4 + band);
                    assert!((value("key_magnitudes", index) - expected).abs() < 1e-9);
                }
            }
        }
        assert_eq!(header["key_magnitudes"]["data_offsets"][1], data.len());
        assert_eq!(header["key_max"]["shape"], json!([2, 3, 7, 8]));
    }
}
