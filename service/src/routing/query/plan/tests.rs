//! Plans against numbers made from the definitions, against slow twins, and what they refuse.

use kvatlas_kernels::score::{Elements, Table};
use proptest::prelude::*;

use super::*;
use crate::routing::{
    frame::KeyFrame,
    query::twin::{Tables, scores},
};

mod golden;
mod refusals;
mod twins;

/// A key summary in f32, with everything in it.
#[derive(Debug)]
struct Summary {
    shape: SummaryShape,
    means: Vec<f32>,
    extremes: Vec<f32>,
    magnitudes: Vec<f32>,
    inverse_norms: Vec<f32>,
}

impl Summary {
    fn tables(&self) -> Tables<'_> {
        let parts = self.shape.frame.layer_ids.len() * self.shape.kv_heads as usize;
        let head_dim = self.shape.head_dim as usize;
        let table = |elements, width| Table::new(Elements::F32(elements), parts * width);
        Tables {
            means: table(&self.means, head_dim),
            extremes: Some(table(&self.extremes, 2 * head_dim)),
            magnitudes: Some(table(&self.magnitudes, head_dim / 2)),
            inverse_norms: &self.inverse_norms,
        }
    }
}

/// One over the length of each vector of `width`.
fn inverse_norms(values: &[f32], width: usize) -> Vec<f32> {
    let norms = values.chunks_exact(width).map(|vector| {
        let squares: f32 = vector.iter().map(|value| value * value).sum();
        1.0 / squares.sqrt().max(1e-12)
    });
    norms.collect()
}

fn kri_q(similarity: Similarity, aggregate: Aggregate) -> Algorithm {
    Algorithm::KriQ {
        similarity,
        aggregate,
    }
}

const AGGREGATES: [Aggregate; 2] = [Aggregate::Mean, Aggregate::Max];
const SIMILARITIES: [Similarity; 2] = [Similarity::Dot, Similarity::Cosine];

/// Fails where a number is further from the expected than `tolerance`, relative to 1 or to the
/// largest that is expected.
fn check_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1.0_f32, |max, x| max.max(x.abs()));
    for (found, expected) in found.iter().zip(expected) {
        let error = (found - expected).abs() / scale;
        assert!(error <= tolerance, "{what}: {found}, not {expected}");
    }
}
