//! Prefix hits on a trace in the format of Mooncake's, by policy:
//! `cargo bench -p kvatlas-events --bench mooncake -- TRACE.jsonl [workers] [speed]`.
//! A speed of 2 lets requests come twice as fast. Without a trace there is nothing to do.

#[path = "mooncake/replay.rs"]
mod replay;

use std::fmt::Write as _;
use std::io::Write as _;

use replay::{Fleet, Policy, Report, Request, ideal_hits, replay};
use serde_json::Value;

const SEEDS: u64 = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"));
    let Some(path) = arguments.next() else {
        return Ok(());
    };
    let fleet = Fleet {
        workers: arguments.next().map_or(Ok(8), |n| n.parse())?,
        worker_blocks: 20_000,
        block_tokens: 512,
        prefill_tokens_per_s: 10_000,
        decode_tokens_per_s: 30,
    };
    let speed: f64 = arguments.next().map_or(Ok(1.0), |n| n.parse())?;
    let trace = std::fs::read_to_string(path)?
        .lines()
        .map(|line| request(&serde_json::from_str(line)?, speed))
        .collect::<Result<Vec<Request>, Box<dyn std::error::Error>>>()?;

    let blocks: usize = trace.iter().map(|request| request.blocks.len()).sum();
    let ideal = ideal_hits(&trace, &fleet);
    let mut out = String::new();
    writeln!(
        out,
        "{} requests, {blocks} blocks, ideal hits {ideal}",
        trace.len()
    )?;
    writeln!(
        out,
        "policy       hits  share  imbalance  first token: mean   p50    p99 s"
    )?;
    let mut line = |name: &str, report: &Report| {
        let waits = &report.waits_s;
        writeln!(
            out,
            "{name:12} {:6} {:5.3} {:10.3} {:18.2} {:5.2} {:6.2}",
            report.hits,
            report.hits as f64 / ideal as f64,
            report.imbalance(),
            waits.iter().sum::<f64>() / waits.len() as f64,
            waits[waits.len() / 2],
            waits[waits.len() * 99 / 100],
        )
    };
    line("round robin", &replay(&trace, &fleet, Policy::RoundRobin))?;
    line("least load", &replay(&trace, &fleet, Policy::LeastLoad))?;
    for seed in 0..SEEDS {
        let report = replay(&trace, &fleet, Policy::Pick(seed << 32));
        line(&format!("pick, seed {seed}"), &report)?;
    }
    std::io::stdout().write_all(out.as_bytes())?;
    Ok(())
}

fn request(line: &Value, speed: f64) -> Result<Request, Box<dyn std::error::Error>> {
    let number = |name: &str| line[name].as_u64().ok_or(format!("{name} is no number"));
    let blocks = line["hash_ids"].as_array().ok_or("hash_ids is no list")?;
    let blocks = blocks
        .iter()
        .map(|block| block.as_u64().and_then(|block| u32::try_from(block).ok()));
    Ok(Request {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an hour in microseconds"
        )]
        at_us: (number("timestamp")? as f64 * 1000.0 / speed) as u64,
        input_tokens: number("input_length")?,
        output_tokens: number("output_length")?,
        blocks: blocks
            .collect::<Option<Vec<u32>>>()
            .ok_or("hash_ids has something that is no block")?,
    })
}
