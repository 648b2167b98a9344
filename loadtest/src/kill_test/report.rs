//! What the kill test found, for programs and for people.

use std::collections::BTreeMap;

use kvatlas_kernels::score::best;
use serde::Serialize;

use super::{
    Method, Variant,
    haystack::{Assumptions, Strength},
    select::{Scores, Selection},
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

/// One variant. Recall is the share of the needles whose block was kept.
#[derive(Debug, Serialize)]
pub struct VariantReport {
    pub blocks: u32,
    pub keep: u32,
    pub seeds: u32,
    pub recall: BTreeMap<&'static str, f64>,
    /// The tags that the selections were resolved by.
    pub policies: BTreeMap<&'static str, String>,
    /// Recall for other needles: in more or fewer heads, attended to more or less.
    pub sweep: Vec<SweepPoint>,
}

/// Recall where so many heads give so much of their attention to the needle.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SweepPoint {
    #[serde(flatten)]
    pub needle: Strength,
    pub kri_q: f64,
    pub quest: f64,
}

/// What was kept so far.
#[derive(Debug)]
pub struct Tally {
    variant: Variant,
    seeds: u32,
    /// With how often each kept the needle's block.
    selections: Vec<(Selection, u32)>,
    /// The same by [`Method`], for each needle of the sweep.
    points: Vec<(Strength, [u32; 2])>,
}

impl Tally {
    /// # Errors
    /// When so few blocks cannot be kept.
    pub fn new(
        variant: Variant,
        points: impl IntoIterator<Item = Strength>,
    ) -> Result<Self, LoadtestError> {
        let selections = Selection::all(variant.keep)?;
        Ok(Self {
            variant,
            seeds: 0,
            selections: selections.into_iter().map(|each| (each, 0)).collect(),
            points: points.into_iter().map(|point| (point, [0, 0])).collect(),
        })
    }

    /// Counts one needle under the assumptions.
    ///
    /// # Errors
    /// When the service refuses a policy.
    pub fn count(&mut self, scores: &Scores, block: u32) -> Result<(), LoadtestError> {
        self.seeds += 1;
        for (selection, kept) in &mut self.selections {
            *kept += u32::from(scores.keep(selection, block)?);
        }
        Ok(())
    }

    /// Counts one needle at a point of the sweep.
    pub fn count_at(&mut self, point: usize, scores: &Scores, block: u32) {
        let (_, kept) = &mut self.points[point];
        for method in Method::ALL {
            let scores = &scores.by_query[method as usize];
            let chosen = best(scores, 0..scores.len(), self.variant.keep as usize);
            kept[method as usize] += u32::from(chosen.contains(&block));
        }
    }

    /// What it comes to.
    #[must_use]
    pub fn report(self) -> VariantReport {
        let share = |kept: u32| f64::from(kept) / f64::from(self.seeds.max(1));
        let point = |&(needle, kept): &(Strength, [u32; 2])| SweepPoint {
            needle,
            kri_q: share(kept[Method::KriQ as usize]),
            quest: share(kept[Method::Quest as usize]),
        };
        VariantReport {
            blocks: self.variant.blocks,
            keep: self.variant.keep,
            seeds: self.seeds,
            recall: (self.selections.iter())
                .map(|(selection, kept)| (selection.name, share(*kept)))
                .collect(),
            sweep: self.points.iter().map(point).collect(),
            policies: (self.selections.into_iter())
                .map(|(selection, _)| (selection.name, selection.tag))
                .collect(),
        }
    }
}

impl KillTestReport {
    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let Assumptions {
            layers,
            kv_heads,
            group,
            head_dim,
            block_tokens,
            outlier_channels,
            outlier_mean,
            topic_share,
            topic_tail,
            group_share,
            needle:
                Strength {
                    retrieval_share,
                    attention_mass,
                },
        } = self.assumptions;
        let mut text = format!(
            "Synthetic: no model runs; keys, queries and needles are drawn as assumed here.\n\
             - {layers} layers, {kv_heads} KV heads with {group} query heads each, head dimension \
             {head_dim}, {block_tokens} tokens a block\n\
             - keys: normal, {outlier_channels} channels a head with a mean of {outlier_mean}; \
             {topic_share} of the variance is common to a block (Student's t, {topic_tail} degrees \
             of freedom)\n\
             - queries: normal, {group_share} of the variance is common to a group; heads are \
             independent\n\
             - one needle key in an old block; in {retrieval_share} of the heads dense reading \
             would give {attention_mass} of its attention to it\n"
        );
        for variant in &self.variants {
            text.push('\n');
            text.push_str(&variant.table(&self.assumptions));
        }
        text
    }
}

impl VariantReport {
    fn table(&self, assumptions: &Assumptions) -> String {
        let Self {
            blocks,
            keep,
            seeds,
            ..
        } = self;
        let margin = assumptions.margin(*blocks as usize, assumptions.needle.attention_mass);
        let mut recall = Table::new(&["selection", "policy", "recall"]);
        for (name, value) in &self.recall {
            recall.row([
                (*name).to_owned(),
                self.policies[name].clone(),
                format!("{value:.3}"),
            ]);
        }
        let mut sweep = Table::new(&["retrieving heads", "attention", "kri_q", "quest"]);
        for point in &self.sweep {
            sweep.row([
                format!("{}", point.needle.retrieval_share),
                format!("{}", point.needle.attention_mass),
                format!("{:.3}", point.kri_q),
                format!("{:.3}", point.quest),
            ]);
        }
        format!(
            "keep {keep} of {blocks} blocks, {seeds} seeds; the needle's logit is {margin:.1} nats \
             above the mean\n{}\nother needles\n{}",
            recall.render(),
            sweep.render()
        )
    }
}
