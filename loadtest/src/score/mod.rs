//! `score`: online scoring at the speed of memory, and what it is compared with.
//!
//! One process measures three things in turn, round after round, on the same keys with the same
//! threads: the full pass (products with every row, and the choice of the best blocks), a plain
//! read of the same bytes, and the pass that an int8 screen goes ahead of. The keys are those that
//! [`keys`] describes, in memory of the process itself; a server that is asked over the wire has
//! them in the mapped files that it made of an upload. numpy and torch multiply matrices of the
//! same shape in f32, which they are fastest in, before and after nothing else: a library whose
//! threads spin while they wait would slow down what it takes turns with.

pub mod keys;
mod model;
pub mod noise;
pub mod pass;
pub mod python;
pub mod question;
pub mod report;
mod rounds;
pub mod rpc;
pub mod tokens;
pub mod upload;

use std::sync::Arc;

use kvatlas::routing::query::OnlineQuery;
use kvatlas_kernels::score::Cpu;

pub use model::{Algorithm, Model, ModelShape};
use pass::Pass;
use report::{ScoreReport, ScoreReports};
use rounds::{Identity, Rounds};
use rpc::Asked;

use crate::{
    args::{CommonArgs, ScoreArgs},
    error::LoadtestError,
    random::Random,
};
use keys::{Further, Keys};

/// Queries to a table.
pub const QUERIES: usize = 4;
/// The fewest blocks in a sweep.
const SWEEP_BLOCKS_MIN: usize = 128;
const KEYS: u64 = 1;
const QUERY: u64 = 2;
const SCREEN: u64 = 3;

/// Measures one number of blocks, or a sweep over them.
///
/// # Errors
/// When a process cannot be started, or a call is refused.
pub async fn measure(args: &ScoreArgs) -> Result<ScoreReports, LoadtestError> {
    let bench = Bench {
        args,
        cpu: Cpu::start(args.threads)?,
        random: Random::new(args.seed),
    };
    let keys = bench.keys(0);
    if !args.sweep {
        let report = bench.point(&keys, args.blocks).await?;
        return Ok(ScoreReports::One(Box::new(report)));
    }
    let mut points = Vec::new();
    let doubled = std::iter::successors(Some(SWEEP_BLOCKS_MIN), |blocks| Some(blocks * 2));
    for blocks in doubled.take_while(|&blocks| blocks < args.blocks) {
        points.push(bench.point(&keys, blocks).await?);
    }
    points.push(bench.point(&keys, args.blocks).await?);
    Ok(ScoreReports::Sweep { points })
}

struct Bench<'a> {
    args: &'a ScoreArgs,
    cpu: Cpu,
    random: Random,
}

impl Bench<'_> {
    async fn point(&self, keys: &Arc<Keys>, blocks: usize) -> Result<ScoreReport, LoadtestError> {
        let args = self.args;
        let queries = self.queries(0);
        let pass = self.pass((keys, blocks), &queries[0])?;
        let screen = pass.screen(self.random.branch(SCREEN).bits());
        let rounds = Rounds::run(&pass, screen.as_ref(), args.rounds);
        let mut identity = Identity::default();
        let mut asked = Vec::with_capacity(QUERIES);
        for query in &queries {
            let pass = self.pass((keys, blocks), query)?;
            let best = pass.full();
            if let Some(screen) = &screen {
                identity.compare(&best, pass.screened(screen));
            }
            asked.push(Asked::with_query(args.algorithm, query, args.k, best));
        }
        let bytes = pass.bytes();
        drop(screen);
        if !args.sweep {
            for seed in 1..args.seeds {
                self.compare_on(seed, &mut identity)?;
            }
        }
        let compared = python::compare(
            &args.python,
            python::Products {
                algorithm: args.algorithm,
                shape: keys.shape,
                blocks,
                threads: args.threads,
                rounds: args.rounds,
            },
        )?;
        let latencies = if args.calls == 0 || args.sweep {
            None
        } else {
            let (_server, channel) = rpc::serve(&self.common(), (keys, blocks)).await?;
            Some(rpc::ask(channel, &asked, args.calls).await?)
        };
        let instructions = self.cpu.level();
        Ok(ScoreReport::new(
            (args, blocks),
            (instructions, bytes),
            (&rounds, identity),
            compared,
            latencies.as_ref(),
        ))
    }

    /// Whether the screen changes nothing on another table.
    fn compare_on(&self, seed: usize, identity: &mut Identity) -> Result<(), LoadtestError> {
        let keys = self.keys(seed);
        let mut screen = None;
        for query in self.queries(seed) {
            let pass = self.pass((&keys, keys.blocks), &query)?;
            if screen.is_none() {
                screen = pass.screen(self.random.branch(SCREEN).branch(seed as u64).bits());
            }
            let Some(screen) = &screen else {
                return Ok(());
            };
            identity.compare(&pass.full(), pass.screened(screen));
        }
        Ok(())
    }

    fn keys(&self, seed: usize) -> Arc<Keys> {
        let args = self.args;
        let further = Further {
            extremes: args.algorithm == Algorithm::Quest,
            magnitudes: args.algorithm == Algorithm::KriT,
        };
        let random = self.random.branch(KEYS).branch(seed as u64);
        let shape = args.model.shape();
        Arc::new(Keys::draw(
            shape,
            args.blocks,
            further,
            args.threads,
            &random,
        ))
    }

    fn queries(&self, seed: usize) -> Vec<OnlineQuery> {
        let args = self.args;
        let mut random = self.random.branch(QUERY).branch(seed as u64);
        (0..QUERIES)
            .map(|_| question::draw(args.algorithm, args.model.shape(), args.blocks, &mut random))
            .collect()
    }

    fn pass<'a>(
        &'a self,
        keys: (&'a Keys, usize),
        query: &OnlineQuery,
    ) -> Result<Pass<'a>, LoadtestError> {
        let Self { args, cpu, .. } = self;
        Pass::new(cpu, keys, (args.algorithm, args.k), query).map_err(|error| {
            LoadtestError::Argument {
                argument: "--algorithm",
                reason: error.to_string(),
            }
        })
    }

    /// The server computes with as many threads as the passes did.
    fn common(&self) -> CommonArgs {
        let args = self.args;
        let threads = ["--score-threads".into(), args.threads.to_string().into()];
        CommonArgs {
            address: None,
            json: args.json,
            seed: args.seed,
            connections: 1,
            client_workers: 1,
            server: threads.into_iter().chain(args.server.clone()).collect(),
        }
    }
}
