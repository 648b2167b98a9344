//! Rotary position embedding: inverse frequencies from a model's parameters, and rotation.
//!
//! The formulas are those of transformers (`modeling_rope_utils`); llama3 is Llama 3.1's, yarn
//! arXiv 2309.00071's. They are evaluated in f32 and in transformers' order, so that most
//! frequencies have the bits that keys were rotated by: what differs in the last bit of a frequency
//! is 0.01 rad at position 10^5.

use std::f64::consts::PI;

/// What config.json says of the rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeParameters {
    /// The base of the frequencies, above 1.
    pub theta: f64,
    pub scaling: RopeScaling,
}

/// How a model stretches its frequencies to more positions.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low_frequency_factor: f64,
        /// Above `low_frequency_factor`.
        high_frequency_factor: f64,
        original_positions: f64,
    },
    Yarn {
        factor: f64,
        /// The factor on cos and sin, where it is given.
        attention_factor: Option<f64>,
        /// mscale and mscale_all_dim, where both are given.
        mscale: Option<(f64, f64)>,
        beta_fast: f64,
        beta_slow: f64,
        original_positions: f64,
        /// Whether the bounds of the ramp are whole bands.
        truncate: bool,
    },
}

/// A model's rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// One for each of the head_dim / 2 bands.
    pub inv_freq: Box<[f32]>,
    /// The factor on cos and sin; 1 without yarn.
    pub attention_scaling: f32,
}

impl Rope {
    /// The rotation of heads of an even `head_dim`. Numbers far out can make it infinite or NaN.
    #[must_use]
    pub fn new(parameters: &RopeParameters, head_dim: u32) -> Self {
        let bands = head_dim / 2;
        let theta = f64::from(narrow(parameters.theta));
        let period = |band: u32| {
            let exponent = narrow(f64::from(2 * band)) / narrow(f64::from(head_dim));
            narrow(theta.powf(f64::from(exponent)))
        };
        let periods = (0..bands).map(period);
        let inv_freq = match parameters.scaling {
            RopeScaling::None => periods.map(f32::recip).collect(),
            RopeScaling::Linear { factor } => {
                let factor = narrow(factor);
                periods.map(|period| period.recip() / factor).collect()
            }
            RopeScaling::Llama3 {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_positions,
            } => {
                let scaled = |f| llama3(f, factor, (low, high), original_positions);
                periods.map(f32::recip).map(scaled).collect()
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_positions,
                truncate,
                attention_factor: _,
                mscale: _,
            } => {
                let bound = |turns: f64| {
                    f64::from(head_dim) * (original_positions / (turns * 2.0 * PI)).ln()
                        / (2.0 * parameters.theta.ln())
                };
                let ramp = ramp((bound(beta_fast), bound(beta_slow)), truncate, head_dim);
                let scaled = |(band, period): (u32, f32)| {
                    let kept = 1.0 - ramp(band);
                    (narrow(factor) * period).recip() * (1.0 - kept) + period.recip() * kept
                };
                (0..bands).zip(periods).map(scaled).collect()
            }
        };
        Self {
            inv_freq,
            attention_scaling: narrow(attention_scaling(&parameters.scaling)),
        }
    }

    /// Whether every frequency is a positive number, and the factor as well.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let sound = |number: &f32| number.is_finite() && *number > 0.0;
        self.inv_freq.iter().all(sound) && sound(&self.attention_scaling)
    }
}

fn llama3(frequency: f32, factor: f64, (low, high): (f64, f64), positions: f64) -> f32 {
    let wavelength = narrow(2.0 * PI) / frequency;
    if wavelength < narrow(positions / high) {
        return frequency;
    }
    let slow = frequency / narrow(factor);
    if wavelength > narrow(positions / low) {
        return slow;
    }
    let smooth = (narrow(positions) / wavelength - narrow(low)) / narrow(high - low);
    (1.0 - smooth) * frequency / narrow(factor) + smooth * frequency
}

/// The share of interpolation in a band: 0 up to the first bound, 1 from the second.
fn ramp((low, high): (f64, f64), truncate: bool, head_dim: u32) -> impl Fn(u32) -> f32 {
    let (low, high) = match truncate {
        true => (low.floor(), high.ceil()),
        false => (low, high),
    };
    let (low, mut high) = (low.max(0.0), high.min(f64::from(head_dim) - 1.0));
    if low.total_cmp(&high).is_eq() {
        high += 0.001;
    }
    move |band| {
        let share = (narrow(f64::from(band)) - narrow(low)) / narrow(high - low);
        share.clamp(0.0, 1.0)
    }
}

fn attention_scaling(scaling: &RopeScaling) -> f64 {
    let RopeScaling::Yarn {
        factor,
        attention_factor,
        mscale,
        ..
    } = *scaling
    else {
        return 1.0;
    };
    let scale = |mscale: f64| match factor <= 1.0 {
        true => 1.0,
        false => 0.1 * mscale * factor.ln() + 1.0,
    };
    match (attention_factor, mscale) {
        (Some(given), _) => given,
        (None, Some((one, all))) => scale(one) / scale(all),
        (None, None) => scale(1.0),
    }
}

/// The rotation at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    cos: Box<[f32]>,
    sin: Box<[f32]>,
}

impl Rotation {
    /// Engines and transformers take the product of position and frequency in f32 before its
    /// cosine, so that keys were rotated by that, up to 0.004 rad from the true phase at 10^5.
    /// The same is done here; only the cosine is taken in f64.
    #[must_use]
    pub fn at(position: u32, inv_freq: &[f32], attention_scaling: f32) -> Self {
        let phase = |&frequency: &f32| f64::from(narrow(f64::from(position)) * frequency);
        let scaled = |value: f64| narrow(value) * attention_scaling;
        Self {
            cos: inv_freq.iter().map(|f| scaled(phase(f).cos())).collect(),
            sin: inv_freq.iter().map(|f| scaled(phase(f).sin())).collect(),
        }
    }

    /// Rotates one head, whose band f is channels f and f + F.
    ///
    /// # Panics
    /// When the head has not two channels for each band.
    pub fn apply(&self, head: &mut [f32]) {
        assert_eq!(head.len(), 2 * self.cos.len());
        let (real, imaginary) = head.split_at_mut(self.cos.len());
        let turns = self.cos.iter().zip(&self.sin);
        for ((x, y), (cos, sin)) in real.iter_mut().zip(imaginary).zip(turns) {
            (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "models keep their rotation in f32"
)]
fn narrow(value: f64) -> f32 {
    value as f32
}
