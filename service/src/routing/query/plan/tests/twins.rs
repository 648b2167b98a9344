//! Random queries and summaries against the formulas, head by head and channel by channel in f64.

use super::*;

/// Of sums in f32 over a few hundred channels.
const TOLERANCE: f32 = 1e-5;

#[derive(Clone, Copy, Debug)]
struct Dimensions {
    layers: usize,
    kv_heads: usize,
    group: usize,
    bands: usize,
    blocks: usize,
}

fn dimensions() -> impl Strategy<Value = Dimensions> {
    (1..4_usize, 1..4_usize, 1..5_usize, 1..9_usize, 1..7_usize).prop_map(
        |(layers, kv_heads, group, bands, blocks)| Dimensions {
            layers,
            kv_heads,
            group,
            bands,
            blocks,
        },
    )
}

/// A summary and a query for those of its layers that have a bit in `mask`, or for its first.
struct World {
    dimensions: Dimensions,
    summary: Summary,
    query: OnlineQuery,
    /// Where the query's layers are in the summary.
    layers: Vec<usize>,
}

impl World {
    fn new(dimensions: Dimensions, seed: u64, mask: usize) -> Self {
        let mut draw = Draw(seed);
        let picked = (0..dimensions.layers).filter(|layer| mask >> layer & 1 == 1);
        let mut layers: Vec<usize> = picked.collect();
        if layers.is_empty() {
            layers.push(0);
        }
        let summary = summary(dimensions, &mut draw);
        let query = query(dimensions, &layers, summary.shape.frame.layout, &mut draw);
        Self {
            dimensions,
            summary,
            query,
            layers,
        }
    }

    /// `[layers, KV heads, blocks]` of the query's layers, by the formulas; and how many times
    /// larger than in a product its relative error may be.
    fn expected(&self, algorithm: Algorithm) -> (Vec<f32>, f32) {
        let mut expected = Vec::new();
        let mut growth = 1.0_f64;
        for at in 0..self.layers.len() {
            for head in 0..self.dimensions.kv_heads {
                let of_query_head = |member| {
                    let blocks = 0..self.dimensions.blocks;
                    let score = |block| self.score(algorithm, (at, head, member), block);
                    let mut scores: Vec<f64> = blocks.map(score).collect();
                    if algorithm == Algorithm::KriT {
                        growth = growth.max(z_scores(&mut scores));
                    }
                    scores
                };
                let group: Vec<_> = (0..self.dimensions.group).map(of_query_head).collect();
                expected.extend((0..self.dimensions.blocks).map(|block| {
                    let scores = group.iter().map(|scores| scores[block]);
                    narrow(match aggregate_of(algorithm) {
                        Aggregate::Mean => scores.sum::<f64>() / count(group.len()),
                        Aggregate::Max => scores.fold(f64::NEG_INFINITY, f64::max),
                    })
                }));
            }
        }
        (expected, narrow(growth))
    }

    /// One query head's score of a block.
    fn score(&self, algorithm: Algorithm, at: (usize, usize, usize), block: usize) -> f64 {
        let (layer_at, head, member) = at;
        let Dimensions {
            layers,
            kv_heads,
            group,
            bands,
            ..
        } = self.dimensions;
        let part = (block * layers + self.layers[layer_at]) * kv_heads + head;
        let query_head = (layer_at * kv_heads + head) * group + member;
        let width = 2 * bands;
        let key = wide(&self.summary.means[part * width..][..width]);
        let query = &self.query.vectors.as_ref().unwrap().values[query_head * width..][..width];
        let query = wide(query);
        match algorithm {
            Algorithm::KriQ {
                similarity: Similarity::Dot,
                ..
            } => dot(&query, &key) / count(width).sqrt(),
            Algorithm::KriQ {
                similarity: Similarity::Cosine,
                ..
            } => {
                let norms = dot(&query, &query) * dot(&key, &key);
                dot(&query, &key) / norms.sqrt()
            }
            Algorithm::Quest { .. } => {
                let extremes = wide(&self.summary.extremes[part * 2 * width..][..2 * width]);
                let (smallest, largest) = extremes.split_at(width);
                let channels = query.iter().zip(smallest.iter().zip(largest));
                channels.map(|(q, (min, max))| (q * min).max(q * max)).sum()
            }
            Algorithm::KriT => {
                let magnitudes = wide(&self.summary.magnitudes[part * bands..][..bands]);
                self.calibrated(query_head, &key, &magnitudes)
            }
        }
    }

    /// Offset by offset and band by band: s (Re(m exp(i (t + d) w) conj(k)) + (a - |m|) |k|).
    fn calibrated(&self, query_head: usize, key: &[f64], magnitudes: &[f64]) -> f64 {
        let bands = self.dimensions.bands;
        let frame = &self.summary.shape.frame;
        let statistics = self.query.calibration.as_ref().unwrap();
        let of = |values: &[f32]| wide(&values[query_head * bands..][..bands]);
        let real = of(&statistics.mean_real);
        let imaginary = of(&statistics.mean_imaginary);
        let absolute = of(&statistics.mean_absolute);
        let mut sum = 0.0;
        for band in 0..bands {
            let (key_real, key_imaginary) = match frame.layout {
                PairLayout::Half => (key[band], key[band + bands]),
                PairLayout::Interleaved => (key[2 * band], key[2 * band + 1]),
            };
            let mean = real[band].hypot(imaginary[band]);
            let mean_angle = imaginary[band].atan2(real[band]);
            let length = key_real.hypot(key_imaginary);
            let key_angle = key_imaginary.atan2(key_real);
            let frequency = f64::from(frame.inv_freq[band]);
            let waves = OFFSETS.iter().map(|offset| {
                let time = count(usize::try_from(statistics.position + offset).unwrap());
                mean * length * (frequency * time + mean_angle - key_angle).cos()
            });
            sum += waves.sum::<f64>() / count(OFFSETS.len());
            sum += (absolute[band] - mean) * magnitudes[band];
        }
        sum * f64::from(frame.attention_scaling)
    }
}

fn summary(dimensions: Dimensions, draw: &mut Draw) -> Summary {
    let Dimensions {
        layers,
        kv_heads,
        group: _,
        bands,
        blocks,
    } = dimensions;
    let parts = blocks * layers * kv_heads;
    let means = draw.numbers(parts * 2 * bands);
    let spread = draw.numbers(parts * 2 * bands);
    let mut extremes = Vec::new();
    let vectors = means.chunks_exact(2 * bands);
    for (means, spread) in vectors.zip(spread.chunks_exact(2 * bands)) {
        let pairs = || means.iter().zip(spread);
        extremes.extend(pairs().map(|(mean, spread)| mean - spread.abs()));
        extremes.extend(pairs().map(|(mean, spread)| mean + spread.abs()));
    }
    let magnitudes = draw.numbers(parts * bands);
    Summary {
        shape: SummaryShape {
            frame: KeyFrame {
                rope: RopeFrame::PostRope,
                layout: [PairLayout::Half, PairLayout::Interleaved][draw.below(2)],
                inv_freq: draw.numbers(bands).iter().map(|x| x.abs() / 4.0).collect(),
                attention_scaling: 1.0 + draw.number().abs(),
                block_size: 16,
                layer_ids: (0..layers).map(layer_id).collect(),
            },
            kv_heads: small(kv_heads),
            head_dim: small(2 * bands),
            blocks: small(blocks),
            has_extremes: true,
            has_magnitudes: true,
        },
        inverse_norms: inverse_norms(&means, 2 * bands),
        means,
        extremes,
        magnitudes: magnitudes.iter().map(|x| x.abs()).collect(),
    }
}

fn query(
    dimensions: Dimensions,
    layers: &[usize],
    layout: PairLayout,
    draw: &mut Draw,
) -> OnlineQuery {
    let heads = dimensions.kv_heads * dimensions.group;
    let bands = layers.len() * heads * dimensions.bands;
    let layer_ids: Box<[u32]> = layers.iter().map(|&layer| layer_id(layer)).collect();
    let mean_real: Box<[f32]> = draw.numbers(bands).into();
    let mean_imaginary: Box<[f32]> = draw.numbers(bands).into();
    let means = mean_real.iter().zip(&mean_imaginary);
    OnlineQuery {
        vectors: Some(QueryVectors {
            rope: RopeFrame::PostRope,
            layout,
            layer_ids: layer_ids.clone(),
            heads: small(heads),
            head_dim: small(2 * dimensions.bands),
            group_mean: false,
            values: draw.numbers(2 * bands).into(),
        }),
        calibration: Some(Calibration {
            layout,
            layer_ids,
            heads: small(heads),
            head_dim: small(2 * dimensions.bands),
            position: draw.below(200_000) as u64,
            mean_absolute: means
                .map(|(real, imaginary)| real.hypot(*imaginary) * 1.5)
                .collect(),
            mean_real,
            mean_imaginary,
        }),
    }
}

fn layer_id(layer: usize) -> u32 {
    small(3 * layer + 1)
}

fn aggregate_of(algorithm: Algorithm) -> Aggregate {
    match algorithm {
        Algorithm::KriQ { aggregate, .. } | Algorithm::Quest { aggregate } => aggregate,
        Algorithm::KriT => Aggregate::Max,
    }
}

/// Returns the largest score over the deviation: blocks that score almost the same make z-scores of
/// their rounding.
fn z_scores(scores: &mut [f64]) -> f64 {
    let mean = scores.iter().sum::<f64>() / count(scores.len());
    let squares = scores.iter().map(|score| (score - mean).powi(2));
    let deviation = (squares.sum::<f64>() / count(scores.len()))
        .sqrt()
        .max(1e-6);
    let largest = scores
        .iter()
        .fold(0.0, |max: f64, score| max.max(score.abs()));
    for score in scores {
        *score = (*score - mean) / deviation;
    }
    largest / deviation
}

fn all_algorithms() -> Vec<Algorithm> {
    let mut all = vec![Algorithm::KriT];
    for aggregate in AGGREGATES {
        all.push(Algorithm::Quest { aggregate });
        all.extend(SIMILARITIES.map(|similarity| kri_q(similarity, aggregate)));
    }
    all
}

proptest! {
    #[test]
    fn scores_are_the_formulas(
        dimensions in dimensions(),
        seed: u64,
        mask in 0..8_usize,
    ) {
        let world = World::new(dimensions, seed, mask);
        let blocks = dimensions.blocks;
        for algorithm in all_algorithms() {
            let (expected, growth) = world.expected(algorithm);
            let tolerance = TOLERANCE * growth;
            let heads = expected.len() / blocks;
            let pooled: Vec<f32> = (0..blocks)
                .map(|block| {
                    let of_block = expected.iter().skip(block).step_by(blocks);
                    narrow(of_block.map(|&score| f64::from(score)).sum::<f64>() / count(heads))
                })
                .collect();
            let what = format!("{algorithm:?}");
            let fast = plan(algorithm, &world.query, &world.summary.shape, false).unwrap();
            let fast = scores(&fast, &world.summary.tables());
            check_close(&fast.pooled, &pooled, tolerance, &what);
            let full = plan(algorithm, &world.query, &world.summary.shape, true).unwrap();
            let is_fast = matches!(full, Plan::Rows { .. });
            prop_assert!(!is_fast);
            let full = scores(&full, &world.summary.tables());
            check_close(&full.pooled, &pooled, tolerance, &what);
            check_close(&full.per_head, &expected, tolerance, &what);
        }
    }

    /// Group means are as good as the heads that they are of, where the mean is asked for.
    #[test]
    fn group_means_score_as_their_heads_do(
        dimensions in dimensions(),
        seed: u64,
        mask in 0..8_usize,
        per_head: bool,
    ) {
        let world = World::new(dimensions, seed, mask);
        let mut means = world.query.clone();
        let vectors = means.vectors.as_mut().unwrap();
        let width = 2 * dimensions.bands;
        vectors.values = group_means(&vectors.values, width, dimensions.group).into();
        vectors.heads = world.summary.shape.kv_heads;
        vectors.group_mean = true;
        let algorithm = kri_q(Similarity::Dot, Aggregate::Mean);
        let plan = |query| plan(algorithm, query, &world.summary.shape, per_head).unwrap();
        prop_assert_eq!(plan(&means), plan(&world.query));
    }

    /// A query that never changes makes the statistics exact: at any one offset the score of a
    /// token is its logit, q turned to its position times the key turned to its own.
    #[test]
    fn a_constant_query_scores_its_exact_logits(
        bands in 1..33_usize,
        seed: u64,
        position in 0..131_072_u64,
        interleaved: bool,
    ) {
        let mut draw = Draw(seed);
        let layout = [PairLayout::Half, PairLayout::Interleaved][usize::from(interleaved)];
        let inv_freq: Vec<f32> = draw.numbers(bands).iter().map(|x| x.abs()).collect();
        let scaling = 1.0 + draw.number().abs();
        let (query, key) = (draw.numbers(2 * bands), draw.numbers(2 * bands));
        let pairs = |x: &[f32]| -> Vec<(f64, f64)> {
            let pair = |band: usize| match layout {
                PairLayout::Half => (x[band], x[band + bands]),
                PairLayout::Interleaved => (x[2 * band], x[2 * band + 1]),
            };
            (0..bands).map(pair).map(|(a, b)| (a.into(), b.into())).collect()
        };
        let turned = |pairs: &[(f64, f64)], position: u64| -> Vec<(f64, f64)> {
            let time = count(usize::try_from(position).unwrap());
            let turn = |(&(real, imaginary), &frequency): (&(f64, f64), &f32)| {
                let (sin, cos) = (time * f64::from(frequency)).sin_cos();
                let scaling = f64::from(scaling);
                (
                    scaling * (real * cos - imaginary * sin),
                    scaling * (real * sin + imaginary * cos),
                )
            };
            pairs.iter().zip(&inv_freq).map(turn).collect()
        };
        let before = pairs(&query);
        let statistics = |part: fn((f64, f64)) -> f64| before.iter().map(move |&z| narrow(part(z)));
        let calibration = Calibration {
            layout,
            layer_ids: [0].into(),
            heads: 1,
            head_dim: small(2 * bands),
            position,
            mean_real: statistics(|z| z.0).collect(),
            mean_imaginary: statistics(|z| z.1).collect(),
            mean_absolute: statistics(|z| z.0.hypot(z.1)).collect(),
        };
        let key = turned(&pairs(&key), position / 2);
        for offset in [0, 1, 64, 65_536] {
            let fold = Fold::new(&calibration, &inv_freq, scaling, &[offset]);
            let product: f64 = pairs(&fold.means)
                .iter()
                .zip(&key)
                .map(|(a, b)| a.0 * b.0 + a.1 * b.1)
                .sum();
            let extra: f64 = wide(&fold.magnitudes)
                .iter()
                .zip(&key)
                .map(|(factor, key)| factor * key.0.hypot(key.1))
                .sum();
            let exact_query = turned(&before, position + offset);
            let exact: f64 = exact_query
                .iter()
                .zip(&key)
                .map(|(a, b)| a.0 * b.0 + a.1 * b.1)
                .sum();
            let length = |x: &[(f64, f64)]| x.iter().map(|z| z.0 * z.0 + z.1 * z.1).sum::<f64>();
            let scale = (length(&exact_query) * length(&key)).sqrt();
            let error = (product + extra - exact).abs() / scale.max(1e-30);
            prop_assert!(error <= 1e-6, "{error} at {offset}");
        }
    }
}

/// SplitMix64, as numbers between -1 and 1.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn number(&mut self) -> f32 {
        let steps = i16::try_from(self.next() >> 49).unwrap();
        f32::from(steps) / f32::from(i16::MAX) * 2.0 - 1.0
    }

    fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| value.into()).collect()
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn count(number: usize) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, reason = "to what is compared")]
fn narrow(number: f64) -> f32 {
    number as f32
}
