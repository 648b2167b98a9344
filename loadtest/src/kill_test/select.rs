//! The selections that are compared, each by the service's own policies and rankings.

use std::collections::BTreeMap;

use kvatlas::routing::{
    policy::Policy,
    ranking::Ranking,
    resolve::{PriorBlocks, budget, resolve},
};
use kvatlas_kernels::rank;

use super::Method;
use crate::error::LoadtestError;

/// What a selection goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    Positions,
    /// A static prior.
    ValueNorms,
    Query(Method),
}

/// A way to choose blocks, with the name that reports give it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    pub name: &'static str,
    pub basis: Basis,
    /// The policy's tag; SEED stands for the needle's own.
    pub tag: String,
    pub keep: u32,
}

const SEED: &str = "SEED";

impl Selection {
    /// All that are compared, each of `keep` blocks.
    ///
    /// # Errors
    /// When a policy cannot be had with so few.
    pub fn all(keep: u32) -> Result<Vec<Self>, LoadtestError> {
        let rest = |pinned: u32| {
            keep.checked_sub(pinned)
                .ok_or_else(|| refused(format!("keeps {keep} blocks, {pinned} are pinned")))
        };
        let selections = [
            (
                "random",
                Basis::Positions,
                format!("random-middle:0,0,{SEED}"),
            ),
            ("recency", Basis::Positions, "recency".to_owned()),
            ("hybrid", Basis::Positions, format!("hybrid:2,{}", rest(2)?)),
            ("a1r2k13", Basis::ValueNorms, format!("A1R2K{}", rest(3)?)),
            ("kri_q", Basis::Query(Method::KriQ), "top-k".to_owned()),
            ("quest", Basis::Query(Method::Quest), "top-k".to_owned()),
        ];
        Ok(selections
            .into_iter()
            .map(|(name, basis, tag)| Self {
                name,
                basis,
                tag,
                keep,
            })
            .collect())
    }
}

/// What there is to go by in one case.
#[derive(Debug)]
pub struct Scores {
    /// By [`Method`].
    pub by_query: [Vec<f32>; 2],
    pub value_norms: Vec<f64>,
    /// Of the random selection.
    pub seed: u64,
}

impl Scores {
    /// Whether a selection keeps the block.
    ///
    /// # Errors
    /// When the service refuses the policy.
    pub fn keep(&self, selection: &Selection, block: u32) -> Result<bool, LoadtestError> {
        let ranked = match selection.basis {
            Basis::Query(method) => rank(&self.by_query[method as usize]),
            Basis::Positions | Basis::ValueNorms => rank(&self.value_norms),
        };
        let tag = selection.tag.replace(SEED, &self.seed.to_string());
        let policy = Policy::parse(&tag).map_err(|error| refused(error.to_string()))?;
        let prior = PriorBlocks {
            total_blocks: u32::try_from(ranked.len()).ok(),
            ranking: Some(Ranking::pack(&ranked)),
            per_k: BTreeMap::new(),
            legacy: Box::default(),
        };
        let resolved = budget(&policy, selection.keep)
            .and_then(|budget| resolve(&policy, budget, 0, Some(&prior)))
            .map_err(|error| refused(error.to_string()))?;
        assert_eq!(resolved.effective_k, selection.keep, "all keep as many");
        Ok(resolved.blocks.binary_search(&block).is_ok())
    }
}

fn refused(reason: String) -> LoadtestError {
    LoadtestError::Argument {
        argument: "policy",
        reason,
    }
}
