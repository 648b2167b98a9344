//! Keys without a model: blocks of background, one block with a needle, a query that looks for it.

use half::{f16, slice::HalfFloatSliceExt};
use kvatlas::routing::{
    frame::{KeyFrame, PairLayout, RopeFrame, SummaryShape},
    query::{Algorithm, OnlineQuery, Plan, QueryVectors, Similarity, plan},
};
use kvatlas_kernels::score::{Aggregate, Elements, RowQuery, Table};
use serde::Serialize;

use super::Method;
use crate::{
    random::Random,
    score::noise::{normal, rough_normal},
};

/// Different draws of a block's tokens in one channel, which are used again and again.
const NOISES: usize = 1 << 14;
/// Spread of the logarithm of a block's value norms.
const VALUE_NORM_SPREAD: f32 = 0.3;

/// What is taken for granted; lengths of vectors are in units of a key channel's spread.
#[derive(Debug, Clone, Serialize)]
pub struct Assumptions {
    /// The shape of Llama-3.2-1B.
    pub layers: usize,
    pub kv_heads: usize,
    /// Query heads that share a KV head.
    pub group: usize,
    pub head_dim: usize,
    pub block_tokens: usize,
    /// Channels of a head whose keys have a large mean, as those of real models do; all others
    /// have one of about 1. They move all blocks' scores alike.
    pub outlier_channels: usize,
    pub outlier_mean: f32,
    /// Share of a key's variance that the tokens of a block have in common.
    pub topic_share: f32,
    /// Topics spread nearly as Student's t with so many degrees of freedom, all heads of a block
    /// alike: a few blocks stand out for every query.
    pub topic_tail: u32,
    /// Share of a query head's variance that its group has in common.
    pub group_share: f32,
    #[serde(flatten)]
    pub needle: Strength,
}

/// How strong a needle is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Strength {
    /// Share of the (layer, KV head) that retrieve: only there has the needle's key a part in the
    /// query's direction. Which ones is drawn for each needle.
    pub retrieval_share: f32,
    /// What dense reading gives to the needle in those heads: its logit lies
    /// ln T + s^2 / 2 + ln(mass / (1 - mass)) above the background's mean, for T tokens whose
    /// logits are normal with the deviation s.
    pub attention_mass: f32,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            layers: 16,
            kv_heads: 8,
            group: 4,
            head_dim: 64,
            block_tokens: 16,
            outlier_channels: 4,
            outlier_mean: 8.0,
            topic_share: 0.2,
            topic_tail: 5,
            group_share: 0.5,
            needle: Strength {
                retrieval_share: 0.25,
                // Who is asked for one fact, and knows it, reads little else.
                attention_mass: 0.9,
            },
        }
    }
}

impl Assumptions {
    /// All (layer, KV head).
    #[must_use]
    pub const fn heads(&self) -> usize {
        self.layers * self.kv_heads
    }

    /// How far the needle's logit lies above the background's mean, in nats.
    #[must_use]
    pub fn margin(&self, blocks: usize, attention_mass: f32) -> f32 {
        let tokens = (blocks * self.block_tokens) as f32;
        // Queries and keys have channels of variance 1.
        let logit_variance = 1.0;
        tokens.ln() + logit_variance / 2.0 + (attention_mass / (1.0 - attention_mass)).ln()
    }

    /// What the service multiplies summaries with, by [`Method`].
    fn row_queries(&self, values: Vec<f32>) -> [RowQuery; 2] {
        let frame = KeyFrame {
            rope: RopeFrame::PostRope,
            layout: PairLayout::Half,
            inv_freq: vec![1.0; self.head_dim / 2].into(),
            attention_scaling: 1.0,
            block_size: small(self.block_tokens),
            layer_ids: (0..small(self.layers)).collect(),
        };
        let query = OnlineQuery {
            vectors: Some(QueryVectors {
                rope: frame.rope,
                layout: frame.layout,
                layer_ids: frame.layer_ids.clone(),
                heads: small(self.kv_heads * self.group),
                head_dim: small(self.head_dim),
                group_mean: false,
                values: values.into(),
            }),
            calibration: None,
        };
        let shape = SummaryShape {
            frame,
            kv_heads: small(self.kv_heads),
            head_dim: small(self.head_dim),
            blocks: 1,
            has_extremes: true,
            has_magnitudes: false,
        };
        Method::ALL.map(|method| {
            let aggregate = Aggregate::Mean;
            let algorithm = match method {
                Method::KriQ => Algorithm::KriQ {
                    similarity: Similarity::Dot,
                    aggregate,
                },
                Method::Quest => Algorithm::Quest { aggregate },
            };
            match plan(algorithm, &query, &shape, false) {
                Ok(Plan::Rows { query, .. }) => query,
                other => unreachable!("a mean over all heads is one vector: {other:?}"),
            }
        })
    }
}

/// Mean, smallest and largest of some tokens' values in one channel.
#[derive(Debug, Clone, Copy)]
struct Spread {
    mean: f32,
    min: f32,
    max: f32,
}

/// One channel of a block's tokens.
#[derive(Debug, Clone, Copy)]
struct Tokens {
    /// Of all but the last of them.
    others: Spread,
    last: f32,
}

impl Tokens {
    fn draw(count: usize, random: &mut Random) -> Self {
        let others = count - 1;
        let none = Spread {
            mean: 0.0,
            min: f32::INFINITY,
            max: f32::NEG_INFINITY,
        };
        let with_one_more = |spread: Spread, _| {
            let value = normal(random);
            Spread {
                mean: spread.mean + value / others as f32,
                min: spread.min.min(value),
                max: spread.max.max(value),
            }
        };
        Self {
            others: (0..others).fold(none, with_one_more),
            last: normal(random),
        }
    }

    fn map(self, to: impl Fn(f32) -> f32) -> Self {
        Self {
            others: Spread {
                mean: to(self.others.mean),
                min: to(self.others.min),
                max: to(self.others.max),
            },
            last: to(self.last),
        }
    }

    /// Of all of them, `count` with the last.
    fn spread(self, count: usize) -> Spread {
        let Self { others, last } = self;
        Spread {
            mean: others.mean + (last - others.mean) / count as f32,
            min: others.min.min(last),
            max: others.max.max(last),
        }
    }
}

/// What tokens add to their block's topic, of unit variance. All blocks draw from the same, the
/// needle's too: what the draws have in common tells no block from another.
#[derive(Debug)]
pub struct Noise(Vec<Tokens>);

impl Noise {
    #[must_use]
    pub fn draw(assumptions: &Assumptions, random: &mut Random) -> Self {
        let tokens = |_| Tokens::draw(assumptions.block_tokens, random);
        Self((0..NOISES).map(tokens).collect())
    }
}

/// Rows of key means, and of smallest and largest keys, as a key summary has them.
#[derive(Debug, Default)]
pub struct Summaries {
    means: Vec<f16>,
    extremes: Vec<f16>,
    width: usize,
}

impl Summaries {
    fn new(width: usize, blocks: usize) -> Self {
        Self {
            means: Vec::with_capacity(blocks * width),
            extremes: Vec::with_capacity(blocks * width * 2),
            width,
        }
    }

    /// What a method reads.
    #[must_use]
    pub fn table(&self, method: Method) -> Table<'_> {
        match method {
            Method::KriQ => Table::new(Elements::F16(&self.means), self.width),
            Method::Quest => Table::new(Elements::F16(&self.extremes), self.width * 2),
        }
    }

    fn push_head(&mut self, channels: &[Spread]) {
        let mut push = |into: fn(&mut Self) -> &mut Vec<f16>, value: fn(&Spread) -> f32| {
            let values: Vec<f32> = channels.iter().map(value).collect();
            let cells = into(self);
            let at = cells.len();
            cells.resize(at + values.len(), f16::ZERO);
            cells[at..].convert_from_f32_slice(&values);
        };
        push(|row| &mut row.means, |channel| channel.mean);
        push(|row| &mut row.extremes, |channel| channel.min);
        push(|row| &mut row.extremes, |channel| channel.max);
    }
}

/// All blocks without a needle.
#[derive(Debug)]
pub struct Haystack<'a> {
    pub assumptions: &'a Assumptions,
    noise: &'a Noise,
    pub summaries: Summaries,
    blocks: usize,
    /// `[heads, head_dim]`.
    channel_means: Vec<f32>,
}

/// A block with a needle in it, before it is known how strong that is.
#[derive(Debug)]
pub struct Needle {
    pub block: u32,
    /// `[heads, head_dim]`, with the needle's key last, as it were if it answered nothing.
    channels: Vec<Tokens>,
    /// All heads; the first of them retrieve.
    heads: Vec<usize>,
}

/// A query, and the vectors that summaries are multiplied with.
#[derive(Debug)]
pub struct Question {
    /// `[heads, head_dim]`: means over the query heads of a group.
    group_means: Vec<f32>,
    row_queries: [RowQuery; 2],
}

impl Question {
    #[must_use]
    pub fn row_query(&self, method: Method) -> &RowQuery {
        &self.row_queries[method as usize]
    }
}

impl<'a> Haystack<'a> {
    /// Draws the background of so many blocks.
    #[must_use]
    pub fn draw(
        assumptions: &'a Assumptions,
        blocks: usize,
        noise: &'a Noise,
        random: &mut Random,
    ) -> Self {
        let width = assumptions.heads() * assumptions.head_dim;
        let mut haystack = Self {
            assumptions,
            noise,
            summaries: Summaries::new(width, blocks),
            blocks,
            channel_means: channel_means(assumptions, random),
        };
        let mut channels = Vec::with_capacity(assumptions.head_dim);
        for _ in 0..blocks {
            let topic_scale = topic_scale(assumptions, random);
            for means in haystack.channel_means.chunks_exact(assumptions.head_dim) {
                channels.clear();
                let tokens = means.iter().map(|&mean| {
                    let tokens = haystack.tokens(mean, topic_scale, random);
                    tokens.spread(assumptions.block_tokens)
                });
                channels.extend(tokens);
                haystack.summaries.push_head(&channels);
            }
        }
        haystack
    }

    /// Draws one channel of a block.
    fn tokens(&self, mean: f32, topic_scale: f32, random: &mut Random) -> Tokens {
        let token_scale = (1.0 - self.assumptions.topic_share).sqrt();
        let middle = mean + topic_scale * rough_normal(random);
        let Noise(noises) = self.noise;
        noises[random.below(noises.len())].map(|value| middle + token_scale * value)
    }

    /// Draws a query.
    #[must_use]
    pub fn question(&self, random: &mut Random) -> Question {
        let Assumptions {
            group,
            group_share,
            head_dim,
            ..
        } = *self.assumptions;
        let own = (1.0 - group_share).sqrt();
        let mut values = Vec::with_capacity(self.channel_means.len() * group);
        let mut group_means = Vec::with_capacity(self.channel_means.len());
        for _ in 0..self.assumptions.heads() {
            let common: Vec<f32> = (0..head_dim)
                .map(|_| group_share.sqrt() * normal(random))
                .collect();
            let mut sums = vec![0.0; head_dim];
            for _ in 0..group {
                for (sum, value) in sums.iter_mut().zip(&common) {
                    let value = value + own * normal(random);
                    *sum += value;
                    values.push(value);
                }
            }
            group_means.extend(sums.iter().map(|sum| sum / group as f32));
        }
        Question {
            group_means,
            row_queries: self.assumptions.row_queries(values),
        }
    }

    /// Draws the block that a needle is in.
    #[must_use]
    pub fn needle(&self, block: u32, random: &mut Random) -> Needle {
        let topic_scale = topic_scale(self.assumptions, random);
        let channels = (self.channel_means.iter())
            .map(|&mean| self.tokens(mean, topic_scale, random))
            .collect();
        let mut heads: Vec<usize> = (0..self.assumptions.heads()).collect();
        random.shuffle(&mut heads);
        Needle {
            block,
            channels,
            heads,
        }
    }

    /// The summary of the needle's block, where so many heads retrieve so much.
    #[must_use]
    pub fn row_with(&self, needle: &Needle, question: &Question, strength: Strength) -> Summaries {
        let assumptions = self.assumptions;
        let head_dim = assumptions.head_dim;
        let margin = assumptions.margin(self.blocks, strength.attention_mass);
        let mut channels = needle.channels.clone();
        for &head in needle.retrieving(strength.retrieval_share) {
            let columns = head * head_dim..(head + 1) * head_dim;
            let query = &question.group_means[columns.clone()];
            let square: f32 = query.iter().map(|value| value * value).sum();
            let length = margin * (head_dim as f32).sqrt() / square;
            for (tokens, value) in channels[columns].iter_mut().zip(query) {
                tokens.last += length * value;
            }
        }
        let mut row = Summaries::new(channels.len(), 1);
        for head in channels.chunks_exact(head_dim) {
            let spread = |tokens: &Tokens| tokens.spread(assumptions.block_tokens);
            row.push_head(&head.iter().map(spread).collect::<Vec<Spread>>());
        }
        row
    }

    /// A static prior, one score a block: norms of values, which differ from block to block and
    /// know nothing of the query. The needle's block is one like any other.
    #[must_use]
    pub fn value_norms(&self, random: &mut Random) -> Vec<f64> {
        let norm = |_| f64::from(VALUE_NORM_SPREAD * normal(random)).exp();
        (0..self.blocks).map(norm).collect()
    }
}

fn small(number: usize) -> u32 {
    u32::try_from(number).expect("the assumptions are small")
}

impl Needle {
    fn retrieving(&self, share: f32) -> &[usize] {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a small number"
        )]
        let count = (self.heads.len() as f32 * share).round() as usize;
        &self.heads[..count]
    }
}

fn channel_means(assumptions: &Assumptions, random: &mut Random) -> Vec<f32> {
    let mut means = Vec::with_capacity(assumptions.heads() * assumptions.head_dim);
    for _ in 0..assumptions.heads() {
        let start = means.len();
        means.extend((0..assumptions.head_dim).map(|_| normal(random)));
        for _ in 0..assumptions.outlier_channels {
            let channel = start + random.below(assumptions.head_dim);
            means[channel] = assumptions.outlier_mean * normal(random).signum();
        }
    }
    means
}

/// How far a block's topic lies from the mean: with a normal direction, Student's t of the
/// variance that topics have.
fn topic_scale(assumptions: &Assumptions, random: &mut Random) -> f32 {
    let freedom = assumptions.topic_tail as f32;
    let squares: f32 = (0..assumptions.topic_tail)
        .map(|_| normal(random).powi(2))
        .sum();
    (assumptions.topic_share * (freedom - 2.0) / squares).sqrt()
}
