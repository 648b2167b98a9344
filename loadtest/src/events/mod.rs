//! `events`: the view of engines' caches, its index, its feed and its answers, and others' indexes.

pub mod ask;
mod decode;
pub mod engine;
mod live;
pub mod ours;
pub mod peers;
pub mod report;
pub mod subject;
pub mod trace;

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use clap::ValueEnum;
use tonic::transport::Channel;

use self::{
    engine::Schedule,
    live::Engines,
    ours::Which,
    peers::{NAMES, Peers},
    subject::{CHUNK_BLOCKS, Figures, world::World},
};
use crate::{
    args::{CommonArgs, EventsArgs},
    child::{ServerProcess, answer, this_program},
    error::LoadtestError,
    random::Random,
    server::Server,
    wire::connect,
};
pub use report::EventsReport;

/// Of each kind of prompts, so that none are the same.
const FLEET_ROUND: usize = 0;
const GROWTH_ROUND: usize = 1000;
const CHURN_ROUND: usize = 2000;

/// Measures all of it.
///
/// # Errors
/// When a process cannot be started, or an answer is wrong.
pub async fn measure(args: &EventsArgs) -> Result<EventsReport, LoadtestError> {
    let peers = args.peers.as_deref().map(Peers::compile).transpose()?;
    let decode_gb_per_s = decode::measure(&mut Random::new(args.seed))?;
    let indexes = indexes(args, peers.as_ref())?;
    let live = served(args).await?;
    Ok(EventsReport::new(args, decode_gb_per_s, &indexes, live))
}

/// What each index came to, by round. They take turns, each in a process of its own, so that
/// memory is counted from nothing and a drift of the machine favours none.
type Indexes = BTreeMap<String, Vec<Figures>>;

fn indexes(args: &EventsArgs, peers: Option<&Peers>) -> Result<Indexes, LoadtestError> {
    let mut indexes = Indexes::new();
    for round in 1..=args.rounds {
        for which in Which::value_variants() {
            let name = format!("{which:?}").to_lowercase();
            let figures = ours(&name, args)?;
            indexes.entry(name).or_default().push(figures);
        }
        for name in peers.iter().flat_map(|_| NAMES) {
            let figures = peers.map(|peers| peers.measure(name, args)).transpose()?;
            indexes.entry(name.to_owned()).or_default().extend(figures);
        }
        writeln!(io::stderr(), "indexes: round {round} of {}", args.rounds)?;
    }
    Ok(indexes)
}

fn ours(name: &str, args: &EventsArgs) -> Result<Figures, LoadtestError> {
    let mut program = this_program()?;
    program.args(["events-child", name]);
    for (flag, value) in [
        ("--blocks", args.blocks),
        ("--workers", args.workers),
        ("--look-ups", args.look_ups),
    ] {
        program.args([flag, &value.to_string()]);
    }
    answer("index", program)
}

/// What a server came to that follows engines.
#[derive(Debug, Default)]
pub struct Served {
    pub fleet_batches_per_s: f64,
    pub growth_batches_per_s: f64,
    pub churn_batches_per_s: f64,
    pub asked: ask::Asked,
    pub resident_mb: Option<f64>,
}

async fn served(args: &EventsArgs) -> Result<Served, LoadtestError> {
    let common = CommonArgs {
        address: None,
        json: args.json,
        seed: args.seed,
        connections: 1,
        client_workers: 1,
        server: args.server.clone(),
    };
    let echo_server = ServerProcess::start("echo", ["echo-child".into()])?;
    let server = Server::of(&common)?;
    let channel = connect(&server.address, 1).await?.remove(0);
    let echo = connect(&echo_server.address, 1).await?.remove(0);
    let (fleet, fleet_batches_per_s) = fleet(&channel, args).await?;
    let asked = ask::measure(&channel, &echo, &fleet, args).await?;
    let resident_mb = server.memory()?.map(|memory| memory.resident_mb);
    let growth = ("growth", GROWTH_ROUND);
    let growth_batches_per_s = live::visible(&channel, args, growth, None).await?;
    let (churn, held) = (("churn", CHURN_ROUND), Some(args.churn_blocks));
    let churn_batches_per_s = live::visible(&channel, args, churn, held).await?;
    Ok(Served {
        fleet_batches_per_s,
        growth_batches_per_s,
        churn_batches_per_s,
        asked,
        resident_mb,
    })
}

/// As many engines as workers, which hold all blocks between them.
async fn fleet(channel: &Channel, args: &EventsArgs) -> Result<(Engines, f64), LoadtestError> {
    let schedule = Schedule {
        world: World::of(args.blocks, args.workers),
        round: FLEET_ROUND,
    };
    let mut fleet = Engines::start(channel, "fleet", schedule, None).await?;
    let batches = schedule.world.entries() / CHUNK_BLOCKS;
    let per_s = fleet.send(channel, batches).await?;
    live::check_last(channel, &fleet).await?;
    Ok((fleet, per_s))
}
