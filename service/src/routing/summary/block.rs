//! One block of one head: sums over its keys, and what must hold of the figures.

use super::content::{MAGNITUDES, MAX, MEANS, MIN};
use super::error::ValueProblem;
use crate::routing::frame::PairLayout;
use crate::routing::import::Element;

/// The largest finite f16.
pub(super) const F16_MAX: f32 = 65_504.0;

/// What is known of a block of a head, `[head_dim]` each but the magnitudes, which have half.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures {
    pub mean: Vec<f32>,
    pub min: Vec<f32>,
    pub max: Vec<f32>,
    /// Mean |k_f|.
    pub magnitude: Vec<f32>,
}

impl Figures {
    pub(super) fn new(head_dim: usize) -> Self {
        Self {
            mean: vec![0.0; head_dim],
            min: vec![0.0; head_dim],
            max: vec![0.0; head_dim],
            magnitude: vec![0.0; head_dim / 2],
        }
    }
}

/// Sums over the keys of a block, in f64: f32 ones would be off by the number of tokens.
#[derive(Clone, Debug)]
pub(super) struct KeySums {
    layout: PairLayout,
    tokens: u32,
    sum: Vec<f64>,
    min: Vec<f32>,
    max: Vec<f32>,
    magnitude: Vec<f64>,
}

impl KeySums {
    pub(super) fn new(head_dim: usize, layout: PairLayout) -> Self {
        Self {
            layout,
            tokens: 0,
            sum: vec![0.0; head_dim],
            min: vec![f32::INFINITY; head_dim],
            max: vec![f32::NEG_INFINITY; head_dim],
            magnitude: vec![0.0; head_dim / 2],
        }
    }

    pub(super) fn add(&mut self, key: &[f32]) {
        self.tokens += 1;
        for (sum, &value) in self.sum.iter_mut().zip(key) {
            *sum += f64::from(value);
        }
        for ((min, max), &value) in self.min.iter_mut().zip(&mut self.max).zip(key) {
            // Not f32::min, whose care for NaN costs: a NaN shows in the sum.
            *min = if value < *min { value } else { *min };
            *max = if value > *max { value } else { *max };
        }
        // No overflow that is not refused: a value whose square does is far beyond f16.
        let length = |x: f32, y: f32| f64::from((x * x + y * y).sqrt());
        match self.layout {
            PairLayout::Half => {
                let (first, second) = key.split_at(self.magnitude.len());
                for ((sum, &x), &y) in self.magnitude.iter_mut().zip(first).zip(second) {
                    *sum += length(x, y);
                }
            }
            PairLayout::Interleaved => {
                for (sum, &[x, y]) in self.magnitude.iter_mut().zip(key.as_chunks().0) {
                    *sum += length(x, y);
                }
            }
        }
    }

    /// Gives the figures of the keys since the last time.
    ///
    /// # Errors
    /// A key that is not finite or beyond f16.
    pub(super) fn finish(&mut self, figures: &mut Figures) -> Result<(), ValueProblem> {
        let tokens = f64::from(self.tokens);
        let narrow = |sum: f64| {
            #[expect(clippy::cast_possible_truncation, reason = "to the precision of keys")]
            let mean = (sum / tokens) as f32;
            mean
        };
        let means = self.sum.iter().map(|&sum| narrow(sum));
        figures
            .mean
            .iter_mut()
            .zip(means)
            .for_each(|(mean, of)| *mean = of);
        let magnitudes = self.magnitude.iter().map(|&sum| narrow(sum));
        let into = figures.magnitude.iter_mut();
        into.zip(magnitudes)
            .for_each(|(magnitude, of)| *magnitude = of);
        figures.min.copy_from_slice(&self.min);
        figures.max.copy_from_slice(&self.max);
        self.tokens = 0;
        self.sum.fill(0.0);
        self.min.fill(f32::INFINITY);
        self.max.fill(f32::NEG_INFINITY);
        self.magnitude.fill(0.0);
        // A NaN and an infinity turn the sum, and so the mean, into one of them.
        if !figures.mean.iter().all(|mean| mean.is_finite()) {
            return Err(ValueProblem::NotFinite);
        }
        [&figures.min, &figures.max, &figures.magnitude]
            .into_iter()
            .try_for_each(|values| check_range(values))
    }
}

/// Refuses figures from a file: which of its tensors is wrong, and how.
pub(super) fn check(
    figures: &Figures,
    elements: [Element; 3],
    (has_extremes, has_magnitudes): (bool, bool),
) -> Result<(), (&'static str, ValueProblem)> {
    let Figures {
        mean,
        min,
        max,
        magnitude,
    } = figures;
    let range = |field, values: &[f32]| check_range(values).map_err(|problem| (field, problem));
    range(MEANS, mean)?;
    if has_extremes {
        range(MIN, min)?;
        range(MAX, max)?;
        check_order(figures, elements).map_err(|problem| (MEANS, problem))?;
    }
    if has_magnitudes {
        range(MAGNITUDES, magnitude)?;
        if let Some(&found) = magnitude.iter().find(|&&value| value < 0.0) {
            return Err((MAGNITUDES, ValueProblem::BelowZero { found }));
        }
    }
    Ok(())
}

fn check_range(values: &[f32]) -> Result<(), ValueProblem> {
    // Without a way out on the way, so that the compiler takes many at a time. NaN is not within.
    let is_within = |value: f32| value.abs() <= F16_MAX;
    if values
        .iter()
        .fold(true, |all, &value| all & is_within(value))
    {
        return Ok(());
    }
    let found = values.iter().copied().find(|&value| !is_within(value));
    Err(match found {
        Some(found) if found.is_finite() => ValueProblem::BeyondF16 { found },
        Some(_) | None => ValueProblem::NotFinite,
    })
}

/// Twice the distance of two neighbouring f16 near 0.
const SUBNORMAL_SLACK: f32 = 1.0 / 8_388_608.0;

/// The mean may leave the range by what the elements were rounded by.
fn check_order(figures: &Figures, elements: [Element; 3]) -> Result<(), ValueProblem> {
    let slack = elements.map(rounding).into_iter().fold(0.0, f32::max);
    let triples = figures.min.iter().zip(&figures.mean).zip(&figures.max);
    for ((&min, &mean), &max) in triples {
        let slack = slack * min.abs().max(max.abs()) + SUBNORMAL_SLACK;
        if !(min - slack <= mean && mean <= max + slack && min <= max) {
            return Err(ValueProblem::OutOfOrder { min, mean, max });
        }
    }
    Ok(())
}

/// How far two numbers of a type that should be equal may be apart, relative to their size: a few
/// units in the last place, and for f32 the error of a sum that was made in it.
fn rounding(element: Element) -> f32 {
    match element {
        Element::F16 => 1.0 / 512.0,
        Element::Bf16 => 1.0 / 64.0,
        Element::F32
        | Element::F64
        | Element::Bool
        | Element::U8
        | Element::I8
        | Element::U16
        | Element::I16
        | Element::U32
        | Element::I32
        | Element::U64
        | Element::I64 => 1.0 / 65_536.0,
    }
}
