//! `kill-test`: which selection keeps the one block that answers, on synthetic keys.
//!
//! A replica of the published kill test by its outline alone: one fact in one old block of a
//! prefix, and a manifest that keeps 7 of 28 blocks; the harder variant keeps 16 of 8,192. No
//! model runs here. Keys, queries and the fact are drawn from the assumptions that
//! [`haystack::Assumptions`] states and every report prints, so the figures say what a selection
//! can do when they hold, not how well a model answers.
//!
//! How strong the fact is decides everything, so it is not chosen but derived: the attention that
//! dense reading would give to it, in the heads that retrieve. The sweep shows what happens where
//! fewer heads retrieve or they attend to it less.

pub mod haystack;
mod report;
mod select;

use kvatlas_kernels::score::Cpu;

use crate::{args::KillTestArgs, error::LoadtestError, random::Random};
use haystack::{Assumptions, Haystack, Needle, Question, Summaries};
pub use report::{KillTestReport, Recall, SweepPoint, VariantReport};
use select::{Selection, keeps};

/// Needles that are hidden in one haystack, one after the other, before a new one is drawn.
const NEEDLES_PER_HAYSTACK: usize = 25;
/// Shares of the heads that retrieve; the assumed one is among them.
const RETRIEVAL_SHARES: [f32; 5] = [0.031_25, 0.062_5, 0.125, 0.25, 0.5];
/// What dense reading gives to the needle in those heads; the assumed one is among them.
const ATTENTION_MASSES: [f32; 4] = [0.01, 0.1, 0.5, 0.9];
const HAYSTACKS: u64 = 1;
const NEEDLES: u64 = 2;
const THREADS: usize = 2;

/// How many blocks there are, and how many a manifest keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    pub blocks: usize,
    pub keep: u32,
}

/// The published setting, then the hard one.
pub const VARIANTS: [Variant; 2] = [
    Variant {
        blocks: 28,
        keep: 7,
    },
    Variant {
        blocks: 8192,
        keep: 16,
    },
];

/// Runs both variants.
///
/// # Errors
/// When no threads can be had.
pub fn measure(args: &KillTestArgs) -> Result<KillTestReport, LoadtestError> {
    let assumptions = Assumptions::default();
    let random = Random::new(args.seed);
    let mut variants = Vec::with_capacity(VARIANTS.len());
    for variant in VARIANTS {
        variants.push(run(&assumptions, variant, args.seeds, &random)?);
    }
    Ok(KillTestReport {
        synthetic: true,
        assumptions,
        variants,
    })
}

/// One variant over `seeds` needles.
///
/// # Errors
/// When no threads can be had.
pub fn run(
    assumptions: &Assumptions,
    variant: Variant,
    seeds: usize,
    random: &Random,
) -> Result<VariantReport, LoadtestError> {
    let cpu = Cpu::start(THREADS)?;
    let selections = Selection::all(variant.keep)?;
    let mut report = VariantReport::new(variant, seeds, &selections);
    let haystacks = random.branch(HAYSTACKS);
    let needles = random.branch(NEEDLES);
    let purpose = |number: usize| (number * VARIANTS[1].blocks + variant.blocks) as u64;
    // A small haystack costs no more than a needle.
    let together = NEEDLES_PER_HAYSTACK.min(variant.blocks.div_ceil(VARIANTS[0].blocks));
    for first in (0..seeds).step_by(together) {
        let mut random = haystacks.branch(purpose(first));
        let haystack = Haystack::draw(assumptions, variant.blocks, &mut random);
        let mut cases: Vec<Case> = (first..seeds.min(first + together))
            .map(|seed| Case::draw(&haystack, variant, &mut needles.branch(purpose(seed))))
            .collect();
        score_all(&cpu, &haystack.summaries, &mut cases);
        for case in &mut cases {
            case.judge(&cpu, &haystack, &selections, &mut report)?;
        }
    }
    Ok(report)
}

/// One needle and the query that looks for it.
struct Case {
    question: Question,
    needle: Needle,
    /// Of the haystack without the needle, by [`Method`].
    scores: [Vec<f32>; 2],
    /// Independent of the query.
    value_norms: Vec<f64>,
    seed: u64,
}

impl Case {
    fn draw(haystack: &Haystack<'_>, variant: Variant, random: &mut Random) -> Self {
        // Old: neither the first block, nor among the last as many as are kept.
        let block = 1 + random.below(variant.blocks - 1 - variant.keep as usize);
        let question = haystack.question(random);
        let needle = haystack.needle(block, random);
        Self {
            question,
            needle,
            scores: Default::default(),
            value_norms: haystack.value_norms(random),
            seed: random.bits(),
        }
    }

    fn judge(
        &mut self,
        cpu: &Cpu,
        haystack: &Haystack<'_>,
        selections: &[Selection],
        report: &mut VariantReport,
    ) -> Result<(), LoadtestError> {
        let assumed = haystack.assumptions;
        let block = self.needle.block;
        for share in RETRIEVAL_SHARES {
            for mass in ATTENTION_MASSES {
                let row = haystack.row_with(&self.needle, &self.question, share, mass);
                for method in Method::ALL {
                    let mut score = [0.0];
                    let query = self.question.row_query(method);
                    cpu.row_dots(&row.table(method), &[query], &mut score);
                    self.scores[method as usize][block] = score[0];
                }
                report.count_sweep(share, mass, &self.scores, block)?;
                if share.to_bits() == assumed.retrieval_share.to_bits()
                    && mass.to_bits() == assumed.attention_mass.to_bits()
                {
                    for selection in selections {
                        let scores = (&self.scores, &self.value_norms[..]);
                        let kept = keeps(selection, scores, self.seed, block)?;
                        report.count(selection, kept);
                    }
                }
            }
        }
        Ok(())
    }
}

/// How blocks are scored against the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    KriQ = 0,
    Quest = 1,
}

impl Method {
    pub const ALL: [Self; 2] = [Self::KriQ, Self::Quest];
}

fn score_all(cpu: &Cpu, summaries: &Summaries, cases: &mut [Case]) {
    for method in Method::ALL {
        let table = summaries.table(method);
        let mut scores = vec![0.0; cases.len() * table.rows()];
        let queries: Vec<_> = cases
            .iter()
            .map(|case| case.question.row_query(method))
            .collect();
        cpu.row_dots(&table, &queries, &mut scores);
        for (case, scores) in cases.iter_mut().zip(scores.chunks_exact(table.rows())) {
            case.scores[method as usize] = scores.to_vec();
        }
    }
}

#[cfg(test)]
mod tests;
