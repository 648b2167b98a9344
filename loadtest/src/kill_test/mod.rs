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
//! fewer heads retrieve or they attend to it less. It matters: heads that copy from a needle are
//! reported to be fewer than one in twenty (arXiv 2404.15574), more heads than those match a key
//! that answers, and how many more is an assumption. A mean over all heads of the mean key, which
//! is KRI-Q, needs many of them; Quest's bound, which one strong key moves further, needs few.

pub mod haystack;
pub mod report;
pub mod select;

use kvatlas_kernels::score::Cpu;

use crate::{args::KillTestArgs, error::LoadtestError, random::Random};
use haystack::{Assumptions, Haystack, Needle, Noise, Question, Strength, Summaries};
use report::Tally;
pub use report::{KillTestReport, SweepPoint, VariantReport};
use select::Scores;

/// Needles that are hidden in one haystack, one after the other, before a new one is drawn.
const NEEDLES_PER_HAYSTACK: usize = 100;
/// Shares of the heads that retrieve, in the sweep.
const RETRIEVAL_SHARES: [f32; 5] = [0.031_25, 0.062_5, 0.125, 0.25, 0.5];
/// What dense reading gives to the needle in those heads, in the sweep.
const ATTENTION_MASSES: [f32; 4] = [0.01, 0.1, 0.5, 0.9];
/// With fewer blocks a haystack costs no more than a needle.
const SMALL_BLOCKS: usize = 256;
const HAYSTACKS: u64 = 1;
const NEEDLES: u64 = 2;
const NOISE: u64 = 3;
const THREADS: usize = 2;

/// How many blocks there are, and how many a manifest keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    pub blocks: u32,
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
        variants.push(run(
            &assumptions,
            (variant, args.seeds),
            &strengths(),
            &random,
        )?);
    }
    Ok(KillTestReport {
        synthetic: true,
        assumptions,
        variants,
    })
}

/// One variant over `seeds` needles, and over the same needles made stronger or weaker.
///
/// # Errors
/// When no threads can be had.
pub fn run(
    assumptions: &Assumptions,
    (variant, seeds): (Variant, usize),
    sweep: &[Strength],
    random: &Random,
) -> Result<VariantReport, LoadtestError> {
    let cpu = Cpu::start(THREADS)?;
    let mut tally = Tally::new(variant, sweep)?;
    let noise = Noise::draw(assumptions, &mut random.branch(NOISE));
    let haystacks = random.branch(HAYSTACKS);
    let needles = random.branch(NEEDLES);
    let purpose = |number: usize| (number as u64) << 32 | u64::from(variant.blocks);
    let together = NEEDLES_PER_HAYSTACK.min(variant.blocks as usize / SMALL_BLOCKS + 1);
    for first in (0..seeds).step_by(together) {
        let mut random = haystacks.branch(purpose(first));
        let haystack = Haystack::draw(assumptions, variant.blocks as usize, &noise, &mut random);
        let mut cases: Vec<Case> = (first..seeds.min(first + together))
            .map(|seed| Case::draw(&haystack, variant, &mut needles.branch(purpose(seed))))
            .collect();
        score_all(&cpu, &haystack.summaries, &mut cases);
        for case in &mut cases {
            case.judge(&cpu, &haystack, sweep, &mut tally)?;
        }
    }
    Ok(tally.report())
}

/// One needle and the query that looks for it.
struct Case {
    question: Question,
    needle: Needle,
    scores: Scores,
}

impl Case {
    fn draw(haystack: &Haystack<'_>, variant: Variant, random: &mut Random) -> Self {
        // Old: neither the first block, nor among the last as many as are kept.
        let block = 1 + random.below_u32(variant.blocks - 1 - variant.keep);
        Self {
            question: haystack.question(random),
            needle: haystack.needle(block, random),
            scores: Scores {
                by_query: Default::default(),
                value_norms: haystack.value_norms(random),
                seed: random.bits(),
            },
        }
    }

    fn judge(
        &mut self,
        cpu: &Cpu,
        haystack: &Haystack<'_>,
        sweep: &[Strength],
        tally: &mut Tally,
    ) -> Result<(), LoadtestError> {
        for (point, &strength) in sweep.iter().enumerate() {
            self.hide(cpu, haystack, strength);
            tally.count_at(point, &self.scores, self.needle.block);
        }
        self.hide(cpu, haystack, haystack.assumptions.needle);
        tally.count(&self.scores, self.needle.block)
    }

    /// Scores the needle's block anew for a needle so strong.
    fn hide(&mut self, cpu: &Cpu, haystack: &Haystack<'_>, strength: Strength) {
        let row = haystack.row_with(&self.needle, &self.question, strength);
        for method in Method::ALL {
            let scores = &mut self.scores.by_query[method as usize];
            let score = std::slice::from_mut(&mut scores[self.needle.block as usize]);
            cpu.row_dots(
                &row.table(method),
                &[self.question.row_query(method)],
                score,
            );
        }
    }
}

/// The needles of the sweep.
fn strengths() -> Vec<Strength> {
    let of_share = |retrieval_share| {
        ATTENTION_MASSES.map(|attention_mass| Strength {
            retrieval_share,
            attention_mass,
        })
    };
    RETRIEVAL_SHARES.into_iter().flat_map(of_share).collect()
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
            case.scores.by_query[method as usize] = scores.to_vec();
        }
    }
}

#[cfg(test)]
mod tests;
