//! Query vectors and calibration statistics from the wire.

use bytes::Bytes;
use half::{f16, slice::HalfFloatSliceExt};
use kvatlas_proto::v1;
use tonic::Status;

use super::{check_length, invalid};
use crate::routing::{
    frame::{PairLayout, RopeFrame},
    priors::QUERY_HASH_BYTES_MAX,
    query::{
        Calibration, ELEMENT_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, MEAN_EXCESS_MAX,
        OnlineQuery, POSITION_MAX, QueryVectors, TTL_MS_MAX,
    },
};

/// What is asked to be kept.
#[derive(Debug)]
pub struct PutQuery {
    pub query_hash: String,
    pub query: OnlineQuery,
    pub ttl_ms: u32,
}

/// Checks a query to keep; `ttl_ms` counts where it names no time.
pub fn put_query(request: v1::PutQueryRequest, ttl_ms: u32) -> Result<PutQuery, Status> {
    let v1::PutQueryRequest {
        query_hash,
        query,
        ttl_ms: wanted_ttl_ms,
    } = request;
    check_length("query_hash", &query_hash, 1, QUERY_HASH_BYTES_MAX)?;
    let ttl_ms = match wanted_ttl_ms {
        0 => ttl_ms,
        1..=TTL_MS_MAX => wanted_ttl_ms,
        _ => {
            let problem = format!("{wanted_ttl_ms} ms, at most {TTL_MS_MAX}");
            return Err(invalid("ttl_ms", problem));
        }
    };
    let query = query.ok_or_else(|| invalid("query", "must be given"))?;
    Ok(PutQuery {
        query_hash,
        query: online_query(&query)?,
        ttl_ms,
    })
}

/// Checks a query's shape and every element. In messages its fields begin with `query.`.
pub fn online_query(wire: &v1::QueryVectors) -> Result<OnlineQuery, Status> {
    let v1::QueryVectors {
        frame,
        element_type,
        layer_ids,
        heads,
        head_dim,
        group_mean,
        vectors,
        position,
        mean_real,
        mean_imaginary,
        mean_absolute,
        pair_layout,
    } = wire;
    let statistics = [mean_real, mean_imaginary, mean_absolute];
    let has_statistics = statistics.iter().any(|array| !array.is_empty());
    if vectors.is_empty() && !has_statistics {
        return Err(invalid(
            "query",
            "neither vectors nor calibration statistics (mean_real, mean_imaginary, \
             mean_absolute) are given",
        ));
    }
    let layout = layout(*pair_layout)?;
    let shape = Shape::new(layer_ids, *heads, *head_dim)?;
    let vectors = if vectors.is_empty() {
        None
    } else {
        Some(QueryVectors {
            rope: rope_frame(*frame)?,
            layout,
            layer_ids: layer_ids.as_slice().into(),
            heads: *heads,
            head_dim: *head_dim,
            group_mean: *group_mean,
            values: shape.vectors(vectors, *element_type)?,
        })
    };
    let calibration = if has_statistics {
        if *position > POSITION_MAX {
            let problem = format!("{position}, at most {POSITION_MAX}");
            return Err(invalid("query.position", problem));
        }
        let [mean_real, mean_imaginary, mean_absolute] = shape.statistics(statistics)?;
        Some(Calibration {
            layout,
            layer_ids: layer_ids.as_slice().into(),
            heads: *heads,
            head_dim: *head_dim,
            position: *position,
            mean_real,
            mean_imaginary,
            mean_absolute,
        })
    } else {
        None
    };
    Ok(OnlineQuery {
        vectors,
        calibration,
    })
}

fn rope_frame(frame: i32) -> Result<RopeFrame, Status> {
    match v1::RopeFrame::try_from(frame) {
        Ok(v1::RopeFrame::PreRope) => Ok(RopeFrame::PreRope),
        Ok(v1::RopeFrame::PostRope) => Ok(RopeFrame::PostRope),
        Ok(v1::RopeFrame::Unspecified) => Err(invalid("query.frame", "must be given")),
        Err(_) => Err(invalid("query.frame", format!("{frame} is not a frame"))),
    }
}

fn layout(layout: i32) -> Result<PairLayout, Status> {
    match v1::PairLayout::try_from(layout) {
        Ok(v1::PairLayout::Unspecified | v1::PairLayout::Half) => Ok(PairLayout::Half),
        Ok(v1::PairLayout::Interleaved) => Ok(PairLayout::Interleaved),
        Err(_) => Err(invalid(
            "query.pair_layout",
            format!("{layout} is not a layout"),
        )),
    }
}

/// Layers, heads and channels within their limits.
struct Shape {
    layers: usize,
    heads: usize,
    head_dim: usize,
}

impl Shape {
    fn new(layer_ids: &[u32], heads: u32, head_dim: u32) -> Result<Self, Status> {
        let layers = layer_ids.len();
        if !(1..=LAYERS_MAX).contains(&layers) {
            let problem = format!("{layers} layers, must be 1 to {LAYERS_MAX}");
            return Err(invalid("query.layer_ids", problem));
        }
        if !layer_ids.is_sorted_by(|before, after| before < after) {
            let problem = "must be ascending, none twice";
            return Err(invalid("query.layer_ids", problem));
        }
        if !(1..=HEADS_MAX).contains(&heads) {
            let problem = format!("{heads}, must be 1 to {HEADS_MAX}");
            return Err(invalid("query.heads", problem));
        }
        if !(2..=HEAD_DIM_MAX).contains(&head_dim) || !head_dim.is_multiple_of(2) {
            let problem = format!("{head_dim}, must be even, 2 to {HEAD_DIM_MAX}");
            return Err(invalid("query.head_dim", problem));
        }
        Ok(Self {
            layers,
            heads: heads as usize,
            head_dim: head_dim as usize,
        })
    }

    fn vectors(&self, bytes: &Bytes, element_type: i32) -> Result<Box<[f32]>, Status> {
        let field = "query.vectors";
        let size = |size| self.check_bytes(field, bytes, (self.head_dim, size));
        let values = match v1::ElementType::try_from(element_type) {
            Ok(v1::ElementType::F32) => size(4).map(|()| from_f32(bytes))?,
            Ok(v1::ElementType::F16) => size(2).map(|()| from_f16(bytes))?,
            Ok(v1::ElementType::Bf16) => size(2).map(|()| from_bf16(bytes))?,
            Ok(v1::ElementType::Unspecified) => {
                return Err(invalid("query.element_type", "must be given with vectors"));
            }
            Err(_) => {
                let problem = format!("{element_type} is not an element type");
                return Err(invalid("query.element_type", problem));
            }
        };
        check_elements(field, &values)?;
        Ok(values.into())
    }

    fn statistics(&self, arrays: [&Bytes; 3]) -> Result<[Box<[f32]>; 3], Status> {
        const FIELDS: [&str; 3] = [
            "query.mean_real",
            "query.mean_imaginary",
            "query.mean_absolute",
        ];
        let mut read: [Box<[f32]>; 3] = Default::default();
        for ((field, bytes), values) in FIELDS.into_iter().zip(arrays).zip(&mut read) {
            self.check_bytes(field, bytes, (self.head_dim / 2, 4))?;
            *values = from_f32(bytes).into();
            check_elements(field, values)?;
        }
        let [real, imaginary, absolute] = &read;
        let sides = real.iter().zip(imaginary).zip(absolute);
        let fit = sides.filter(|((real, imaginary), absolute)| {
            let limit = *absolute * (1.0 + MEAN_EXCESS_MAX);
            (**absolute >= 0.0) & (*real * *real + *imaginary * *imaginary <= limit * limit)
        });
        if fit.count() != real.len() {
            let problem = "E|q| must nowhere be below |E[q]|";
            return Err(invalid("query.mean_absolute", problem));
        }
        Ok(read)
    }

    fn check_bytes(
        &self,
        field: &str,
        bytes: &Bytes,
        (width, size): (usize, usize),
    ) -> Result<(), Status> {
        let &Self { layers, heads, .. } = self;
        // Far below 2^64: each factor has its limit.
        let wanted = layers * heads * width * size;
        if bytes.len() == wanted {
            return Ok(());
        }
        let found = bytes.len();
        let problem = format!(
            "{found} bytes, must be {wanted}: {layers} layers * {heads} heads * {width} of {size} \
             bytes"
        );
        Err(invalid(field, problem))
    }
}

fn from_f32(bytes: &[u8]) -> Vec<f32> {
    let (elements, _) = bytes.as_chunks();
    elements.iter().copied().map(f32::from_le_bytes).collect()
}

// Through the processor's own conversion, where it has one.
fn from_f16(bytes: &[u8]) -> Vec<f32> {
    const CHUNK: usize = 512;
    let (elements, _) = bytes.as_chunks();
    let mut values = Vec::with_capacity(elements.len());
    let (mut halves, mut wide) = ([f16::ZERO; CHUNK], [0.0; CHUNK]);
    for elements in elements.chunks(CHUNK) {
        for (half, &element) in halves.iter_mut().zip(elements) {
            *half = f16::from_le_bytes(element);
        }
        let wide = &mut wide[..elements.len()];
        halves[..elements.len()].convert_to_f32_slice(wide);
        values.extend_from_slice(wide);
    }
    values
}

// The upper half of an f32.
fn from_bf16(bytes: &[u8]) -> Vec<f32> {
    let (elements, _) = bytes.as_chunks();
    let wide = |element| f32::from_bits(u32::from(u16::from_le_bytes(element)) << 16);
    elements.iter().copied().map(wide).collect()
}

/// Finite and not too large. Which element it is is not told: it would be one of the query's.
fn check_elements(field: &str, values: &[f32]) -> Result<(), Status> {
    // Without a way out of the loop it is a few elements an instruction. NaN is not at most.
    let good = |value: &&f32| value.abs() <= ELEMENT_MAX;
    if values.iter().filter(good).count() == values.len() {
        return Ok(());
    }
    let problem = format!("every element must be finite, of a magnitude of at most {ELEMENT_MAX}");
    Err(invalid(field, problem))
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;

    fn wire(element_type: v1::ElementType, vectors: Vec<u8>) -> v1::QueryVectors {
        v1::QueryVectors {
            frame: v1::RopeFrame::PostRope.into(),
            element_type: element_type.into(),
            layer_ids: vec![3],
            heads: 1,
            head_dim: 2,
            vectors: vectors.into(),
            ..v1::QueryVectors::default()
        }
    }

    fn read(element_type: v1::ElementType, vectors: Vec<u8>) -> Result<[f32; 2], Status> {
        let query = online_query(&wire(element_type, vectors))?;
        Ok((*query.vectors.unwrap().values).try_into().unwrap())
    }

    /// Every half there is, next to a one: its number, or the refusal when it is none or too large.
    #[test]
    fn halves_are_what_their_bits_say() {
        for bits in 0..=u16::MAX {
            let (half, one) = (f16::from_bits(bits), f16::ONE.to_le_bytes());
            let bytes = [half.to_le_bytes(), one].concat();
            check(read(v1::ElementType::F16, bytes), half.to_f32());
            let (brain, one) = (bf16::from_bits(bits), bf16::ONE.to_le_bytes());
            let bytes = [brain.to_le_bytes(), one].concat();
            check(read(v1::ElementType::Bf16, bytes), brain.to_f32());
        }
    }

    proptest! {
        #[test]
        fn singles_are_what_their_bits_say(bits: u32) {
            let single = f32::from_bits(bits);
            let bytes = [single.to_le_bytes(), 1_f32.to_le_bytes()].concat();
            check(read(v1::ElementType::F32, bytes), single);
        }
    }

    fn check(found: Result<[f32; 2], Status>, expected: f32) {
        match found {
            Ok(found) => {
                assert_eq!(found.map(f32::to_bits), [expected, 1.0].map(f32::to_bits));
                assert!(expected.is_finite() && expected.abs() <= ELEMENT_MAX);
            }
            Err(status) => {
                let good = expected.is_finite() && expected.abs() <= ELEMENT_MAX;
                assert!(!good, "{expected}: {status}");
                assert!(status.message().starts_with("query.vectors: every element"));
            }
        }
    }

    #[test]
    fn statistics_alone_need_no_frame_and_rounding_is_forgiven() {
        let bytes = |number: f32| Bytes::copy_from_slice(&number.to_le_bytes());
        let statistics = |absolute: f32| v1::QueryVectors {
            layer_ids: vec![0],
            heads: 1,
            head_dim: 2,
            position: 7,
            mean_real: bytes(3.0),
            mean_imaginary: bytes(-4.0),
            mean_absolute: bytes(absolute),
            pair_layout: v1::PairLayout::Interleaved.into(),
            ..v1::QueryVectors::default()
        };
        for (absolute, good) in [(5.0, true), (4.999, true), (4.98, false), (-5.0, false)] {
            assert_eq!(
                online_query(&statistics(absolute)).is_ok(),
                good,
                "{absolute}"
            );
        }
        let calibration = online_query(&statistics(6.0)).unwrap().calibration.unwrap();
        assert_eq!(calibration.layout, PairLayout::Interleaved);
        assert_eq!(calibration.position, 7);
        let arrays = [
            calibration.mean_real,
            calibration.mean_imaginary,
            calibration.mean_absolute,
        ];
        assert_eq!(arrays.concat(), [3.0, -4.0, 6.0]);
    }
}
