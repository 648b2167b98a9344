//! KRI-T: calibration statistics and a position become query vectors.
//!
//! With z_f the complex number of a pair of channels, RoPE turns the key at position p into
//! k~_f = s k_f exp(i p w_f), where s is the attention scaling that YaRN brings (1 without), and
//! likewise the query at position t + d. TriAttention (arXiv 2604.04921, equations 6 to 13) scores
//! that key for the next query, d positions ahead of t, by
//!
//! ```text
//! S_d(k) = s^2 [ sum_f |m_f| |k_f| cos(w_f (t + d - p) + arg m_f - arg k_f)
//!              + sum_f (a_f - |m_f|) |k_f| ],      m_f = E[q_f], a_f = E|q_f|
//! ```
//!
//! The cosine term is Re(m_f exp(i (t + d) w_f) conj(k_f exp(i p w_f))), which is linear in the key
//! after RoPE. So its mean over the offsets d is one dot product, and so is a block's mean:
//!
//! ```text
//! mean_d S_d(k) = sum_f Re(w~_f conj(k~_f)) + sum_f s (a_f - |m_f|) |k~_f|
//! w~_f = s m_f mean_d exp(i (t + d) w_f)
//! ```
//!
//! Re(x conj(y)) is the real dot product of the pairs (Re, Im), so that w~ is laid out as the keys
//! are. At t + d = 131,072 a phase in f32 is wrong by 0.006 radians: phases are made in f64.

use super::super::frame::PairLayout;
use super::Calibration;

/// How far ahead the queries are that a key is scored for: 1, 2, 4 up to 65,536.
pub const OFFSETS: [u64; 17] = offsets();

const fn offsets() -> [u64; 17] {
    let mut offsets = [1; 17];
    let mut at = 1;
    while at < offsets.len() {
        offsets[at] = 2 * offsets[at - 1];
        at += 1;
    }
    offsets
}

/// Query vectors for keys after RoPE, and for the keys' mean magnitudes.
#[derive(Clone, Debug, PartialEq)]
pub struct Fold {
    /// `[layers, heads, head_dim]`: w~.
    pub means: Vec<f32>,
    /// `[layers, heads, head_dim / 2]`: s (a - |m|).
    pub magnitudes: Vec<f32>,
}

impl Fold {
    /// Folds the mean over the `offsets` into the statistics.
    ///
    /// # Panics
    /// When there is no offset, or the inverse frequencies are not one for each band.
    #[must_use]
    pub fn new(
        calibration: &Calibration,
        inv_freq: &[f32],
        attention_scaling: f32,
        offsets: &[u64],
    ) -> Self {
        let Calibration {
            layout,
            layer_ids: _,
            heads: _,
            head_dim,
            position,
            mean_real,
            mean_imaginary,
            mean_absolute,
        } = calibration;
        let bands = inv_freq.len();
        assert_eq!(bands * 2, *head_dim as usize, "a frequency for each band");
        let scaling = f64::from(attention_scaling);
        let turns =
            turns(*position, inv_freq, offsets).map(|(cos, sin)| (scaling * cos, scaling * sin));
        let turns: Vec<(f64, f64)> = turns.collect();
        let mut means = Vec::with_capacity(2 * mean_real.len());
        let mut magnitudes = Vec::with_capacity(mean_real.len());
        let heads = mean_real
            .chunks_exact(bands)
            .zip(mean_imaginary.chunks_exact(bands))
            .zip(mean_absolute.chunks_exact(bands));
        for ((real, imaginary), absolute) in heads {
            let pairs = || {
                let pairs = real.iter().zip(imaginary);
                pairs.map(|(&real, &imaginary)| (f64::from(real), f64::from(imaginary)))
            };
            let turned_real = pairs()
                .zip(&turns)
                .map(|((x, y), (cos, sin))| x * cos - y * sin);
            let turned_imaginary = pairs()
                .zip(&turns)
                .map(|((x, y), (cos, sin))| x * sin + y * cos);
            match layout {
                PairLayout::Half => {
                    means.extend(turned_real.map(narrow));
                    means.extend(turned_imaginary.map(narrow));
                }
                PairLayout::Interleaved => {
                    let turned = turned_real.zip(turned_imaginary);
                    means.extend(
                        turned
                            .flat_map(|(real, imaginary)| [real, imaginary])
                            .map(narrow),
                    );
                }
            }
            magnitudes.extend(pairs().zip(absolute).map(|((x, y), &absolute)| {
                // The square of an f32 neither overflows nor vanishes in f64.
                let mean = (x * x + y * y).sqrt();
                // Never negative but for rounding, see MEAN_EXCESS_MAX.
                narrow(scaling * (f64::from(absolute) - mean).max(0.0))
            }));
        }
        Self { means, magnitudes }
    }
}

/// For each band, the mean over the offsets d of exp(i (t + d) w), as cosine and sine.
fn turns(position: u64, inv_freq: &[f32], offsets: &[u64]) -> impl Iterator<Item = (f64, f64)> {
    assert!(!offsets.is_empty(), "a mean is over something");
    let count = exact(offsets.len() as u64);
    inv_freq.iter().map(move |&frequency| {
        let sum = offsets.iter().fold((0.0, 0.0), |(cos, sin), &offset| {
            let phase = exact(position + offset) * f64::from(frequency);
            (cos + phase.cos(), sin + phase.sin())
        });
        (sum.0 / count, sum.1 / count)
    })
}

#[expect(clippy::cast_precision_loss, reason = "positions are far below 2^53")]
fn exact(number: u64) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "to the precision of a query's elements"
)]
fn narrow(number: f64) -> f32 {
    number as f32
}
