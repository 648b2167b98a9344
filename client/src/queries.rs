//! PutQuery: query vectors and calibration statistics for online scoring.

use bytes::Bytes;
use kvatlas_proto::v1;

use crate::{
    client::{Client, within},
    error::ClientError,
};

/// What online scoring multiplies with a prefix's key summary: vectors for kri-q and kri-q-quest,
/// statistics for kri-t, or both.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OnlineQuery {
    /// Model layers, ascending; each must be in the key summary.
    pub layer_ids: Vec<u32>,
    /// Query heads per layer, or KV heads when the vectors are group means.
    pub heads: u32,
    pub head_dim: u32,
    /// Of the key summary. Unspecified: half.
    pub pair_layout: v1::PairLayout,
    pub vectors: Option<QueryVectors>,
    pub calibration: Option<Calibration>,
}

/// The request's own query vectors, `[layers, heads, head_dim]`, finite.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueryVectors {
    /// Must be the key summary's.
    pub frame: v1::RopeFrame,
    /// They are means over the query heads that share a KV head: less to send, and kri-q with means
    /// needs no more.
    pub group_mean: bool,
    pub element_type: v1::ElementType,
    /// Little endian.
    pub bytes: Bytes,
}

/// Calibration statistics of queries before RoPE, `[layers, heads, head_dim / 2]` each.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calibration {
    /// Of the next token.
    pub position: u64,
    /// The real part of E\[q_f\].
    pub mean_real: Vec<f32>,
    /// Its imaginary part.
    pub mean_imaginary: Vec<f32>,
    /// E|q_f|.
    pub mean_absolute: Vec<f32>,
}

impl QueryVectors {
    /// Vectors of every query head in f32.
    pub fn of_f32(frame: v1::RopeFrame, values: &[f32]) -> Self {
        Self {
            frame,
            group_mean: false,
            element_type: v1::ElementType::F32,
            bytes: little_endian(values),
        }
    }
}

impl OnlineQuery {
    /// As messages carry it, such as a manifest's query.
    pub fn to_wire(&self) -> v1::QueryVectors {
        let mut wire = v1::QueryVectors {
            layer_ids: self.layer_ids.clone(),
            heads: self.heads,
            head_dim: self.head_dim,
            pair_layout: self.pair_layout.into(),
            ..v1::QueryVectors::default()
        };
        if let Some(QueryVectors {
            frame,
            group_mean,
            element_type,
            bytes,
        }) = &self.vectors
        {
            wire.frame = (*frame).into();
            wire.group_mean = *group_mean;
            wire.element_type = (*element_type).into();
            wire.vectors = bytes.clone();
        }
        if let Some(Calibration {
            position,
            mean_real,
            mean_imaginary,
            mean_absolute,
        }) = &self.calibration
        {
            wire.position = *position;
            wire.mean_real = little_endian(mean_real);
            wire.mean_imaginary = little_endian(mean_imaginary);
            wire.mean_absolute = little_endian(mean_absolute);
        }
        wire
    }
}

impl Client {
    /// Keeps a query under its hash, in place of the one before, so that later manifests need only
    /// name it. `ttl_ms`: how long; 0: the server's default. Returns when it ends, in milliseconds
    /// since 1970 (UTC).
    ///
    /// # Errors
    /// When the call fails, or the server keeps as many queries as it may.
    pub async fn put_query(
        &self,
        query_hash: &str,
        query: v1::QueryVectors,
        ttl_ms: u32,
    ) -> Result<u64, ClientError> {
        let message = v1::PutQueryRequest {
            query_hash: query_hash.to_owned(),
            query: Some(query),
            ttl_ms,
        };
        let mut routing = self.routing();
        let answer = within(self.deadlines.control, message, |request| async move {
            routing.put_query(request).await
        })
        .await?;
        Ok(answer.expires_unix_ms)
    }
}

fn little_endian(values: &[f32]) -> Bytes {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_reach_the_wire_and_neither_is_made_up() {
        let vectors = QueryVectors::of_f32(v1::RopeFrame::PostRope, &[1.0, -2.0]);
        let calibration = Calibration {
            position: 9,
            mean_real: vec![3.0],
            mean_imaginary: vec![4.0],
            mean_absolute: vec![5.0],
        };
        let shape = OnlineQuery {
            layer_ids: vec![7],
            heads: 1,
            head_dim: 2,
            pair_layout: v1::PairLayout::Interleaved,
            ..OnlineQuery::default()
        };
        let shape_only = v1::QueryVectors {
            layer_ids: vec![7],
            heads: 1,
            head_dim: 2,
            pair_layout: v1::PairLayout::Interleaved.into(),
            ..v1::QueryVectors::default()
        };
        assert_eq!(shape.to_wire(), shape_only);
        let full = OnlineQuery {
            vectors: Some(vectors),
            calibration: Some(calibration),
            ..shape
        };
        let expected = v1::QueryVectors {
            frame: v1::RopeFrame::PostRope.into(),
            element_type: v1::ElementType::F32.into(),
            vectors: Bytes::from_static(&[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]),
            position: 9,
            mean_real: Bytes::from_static(&[0, 0, 0x40, 0x40]),
            mean_imaginary: Bytes::from_static(&[0, 0, 0x80, 0x40]),
            mean_absolute: Bytes::from_static(&[0, 0, 0xa0, 0x40]),
            ..shape_only
        };
        assert_eq!(full.to_wire(), expected);
    }
}
