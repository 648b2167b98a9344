//! Numbers that `tests/data/online/make_plans.py` made from the definitions, token by token.

use serde::Deserialize;

use super::*;

/// Of the f32 in the tables and in the products.
const TOLERANCE: f32 = 1e-5;

#[derive(Deserialize)]
struct Golden {
    worlds: Vec<World>,
}

#[derive(Deserialize)]
struct World {
    layout: String,
    attention_scaling: f32,
    position: u64,
    inv_freq: Vec<f32>,
    layer_ids: Vec<u32>,
    kv_heads: u32,
    head_dim: u32,
    block_size: u32,
    means: Vec<f32>,
    extremes: Vec<f32>,
    magnitudes: Vec<f32>,
    query: Vec<f32>,
    group_means: Vec<f32>,
    mean_real: Vec<f32>,
    mean_imaginary: Vec<f32>,
    mean_absolute: Vec<f32>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    algorithm: String,
    #[serde(default)]
    similarity: String,
    #[serde(default)]
    vectors: String,
    aggregate: String,
    layer_ids: Vec<u32>,
    per_head: Vec<f32>,
    pooled: Vec<f32>,
}

#[test]
fn scores_are_those_of_the_definitions() {
    let golden: Golden =
        serde_json::from_str(include_str!("../../../../../tests/data/online/plans.json")).unwrap();
    for world in &golden.worlds {
        let summary = world.summary();
        for case in &world.cases {
            let query = world.query(case);
            for per_head in [false, true] {
                check(world, case, &query, (&summary, per_head));
            }
        }
    }
    let cases: usize = golden.worlds.iter().map(|world| world.cases.len()).sum();
    assert_eq!(cases, 2 * 3 * 10);
}

fn check(world: &World, case: &Case, query: &OnlineQuery, (summary, per_head): (&Summary, bool)) {
    let plan = plan(case.algorithm(), query, &summary.shape, per_head).unwrap();
    let found = scores(&plan, &summary.tables());
    let what = format!(
        "{} {} {} {} of {:?}, {}",
        case.algorithm, case.similarity, case.aggregate, case.vectors, case.layer_ids, world.layout
    );
    check_close(&found.pooled, &case.pooled, TOLERANCE, &what);
    if per_head {
        check_close(&found.per_head, &case.per_head, TOLERANCE, &what);
    }
    let is_linear = case.aggregate == "mean" && case.similarity != "cosine";
    let is_fast = matches!(plan, Plan::Rows { .. });
    assert_eq!(is_fast, is_linear && !per_head, "{what}");
}

impl World {
    fn layout(&self) -> PairLayout {
        match self.layout.as_str() {
            "half" => PairLayout::Half,
            "interleaved" => PairLayout::Interleaved,
            other => panic!("no layout: {other}"),
        }
    }

    fn summary(&self) -> Summary {
        let parts = self.layer_ids.len() * self.kv_heads as usize;
        let blocks = self.means.len() / (parts * self.head_dim as usize);
        Summary {
            shape: SummaryShape {
                frame: KeyFrame {
                    rope: RopeFrame::PostRope,
                    layout: self.layout(),
                    inv_freq: self.inv_freq.as_slice().into(),
                    attention_scaling: self.attention_scaling,
                    block_size: self.block_size,
                    layer_ids: self.layer_ids.as_slice().into(),
                },
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
                blocks: u32::try_from(blocks).unwrap(),
                has_extremes: true,
                has_magnitudes: true,
            },
            means: self.means.clone(),
            extremes: self.extremes.clone(),
            magnitudes: self.magnitudes.clone(),
            inverse_norms: inverse_norms(&self.means, self.head_dim as usize),
        }
    }

    /// The part of the query that is of the case's layers.
    fn query(&self, case: &Case) -> OnlineQuery {
        let of_layers = |values: &[f32]| -> Box<[f32]> {
            let width = values.len() / self.layer_ids.len();
            let layers = self.layer_ids.iter().zip(values.chunks_exact(width));
            layers
                .filter(|(layer, _)| case.layer_ids.contains(layer))
                .flat_map(|(_, values)| values.iter().copied())
                .collect()
        };
        let group_mean = case.vectors == "group_means";
        let values = if group_mean {
            &self.group_means
        } else {
            &self.query
        };
        let heads_of = |values: &[f32], width: usize| {
            u32::try_from(values.len() / self.layer_ids.len() / width).unwrap()
        };
        let head_dim = self.head_dim as usize;
        OnlineQuery {
            vectors: Some(QueryVectors {
                rope: RopeFrame::PostRope,
                layout: self.layout(),
                layer_ids: case.layer_ids.as_slice().into(),
                heads: heads_of(values, head_dim),
                head_dim: self.head_dim,
                group_mean,
                values: of_layers(values),
            }),
            calibration: Some(Calibration {
                layout: self.layout(),
                layer_ids: case.layer_ids.as_slice().into(),
                heads: heads_of(&self.mean_real, head_dim / 2),
                head_dim: self.head_dim,
                position: self.position,
                mean_real: of_layers(&self.mean_real),
                mean_imaginary: of_layers(&self.mean_imaginary),
                mean_absolute: of_layers(&self.mean_absolute),
            }),
        }
    }
}

impl Case {
    fn algorithm(&self) -> Algorithm {
        let aggregate = match self.aggregate.as_str() {
            "mean" => Aggregate::Mean,
            "max" => Aggregate::Max,
            other => panic!("no aggregate: {other}"),
        };
        match (self.algorithm.as_str(), self.similarity.as_str()) {
            ("kri-q", "dot") => kri_q(Similarity::Dot, aggregate),
            ("kri-q", "cosine") => kri_q(Similarity::Cosine, aggregate),
            ("kri-q-quest", _) => Algorithm::Quest { aggregate },
            ("kri-t", _) => Algorithm::KriT,
            (other, _) => panic!("no algorithm: {other}"),
        }
    }
}
