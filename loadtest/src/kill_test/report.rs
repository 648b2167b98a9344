//! What the kill test found, for programs and for people.

use serde::Serialize;

use super::{
    Method, Variant,
    haystack::Assumptions,
    select::{Basis, Selection, keeps},
};
use crate::{error::LoadtestError, table::Table};

/// What `kill-test --json` prints.
#[derive(Debug, Serialize)]
pub struct KillTestReport {
    /// Always true: no model ran.
    pub synthetic: bool,
    pub assumptions: Assumptions,
    pub variants: Vec<VariantReport>,
}

/// One variant.
#[derive(Debug, Serialize)]
pub struct VariantReport {
    pub blocks: usize,
    pub keep: u32,
    pub seeds: usize,
    /// Share of the needles whose block was kept, by selection.
    pub recall: Recall,
    /// The policies' tags as they were resolved.
    pub policies: Policies,
    /// The same for other needles: fewer heads that retrieve, or that attend to it less.
    pub sweep: Vec<SweepPoint>,
    #[serde(skip)]
    kept: Vec<u32>,
}

/// Share of the needles whose block was kept.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize)]
pub struct Recall {
    pub random: f64,
    pub recency: f64,
    pub hybrid: f64,
    /// With a static prior.
    pub a1r2k13: f64,
    pub kri_q: f64,
    pub quest: f64,
}
