//! Measures one of the other indexes as `kvatlas-loadtest events` measures ours, which starts this
//! for `--peers`: `kvatlas-compare-events NAME BLOCKS WORKERS LOOK_UPS` prints one JSON object.
//!
//! It is a program of its own and no bench of the workspace: with what they need the two crates are
//! 97 packages and three minutes of processor time, 24 of them new to the workspace and two in a
//! second version. Whoever builds or tests kvatlas pays nothing for them. What is measured, and
//! how, is the very same source file.

#[path = "../../../src/events/subject/mod.rs"]
mod subject;

mod dynamo;
mod kv_index;

use std::{env, error::Error};

use subject::{Figures, Filled, world::World};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, blocks, workers, look_ups] = arguments.as_slice() else {
        return Err("wanted: NAME BLOCKS WORKERS LOOK_UPS".into());
    };
    let world = World::of(blocks.parse()?, workers.parse()?);
    let figures = measure(name, world, look_ups.parse()?)?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

fn measure(name: &str, world: World, look_ups: usize) -> Result<Figures, Box<dyn Error>> {
    match name {
        // It belongs to one thread: who looks up waits for the events before.
        "dynamo-radix" => {
            let mut filled = Filled::new(dynamo::Radix::default, world)?;
            filled.finds(look_ups)?;
            filled.chunks();
            Ok(filled.figures)
        }
        "dynamo-concurrent" => shared(Filled::new(dynamo::Concurrent::default, world)?, look_ups),
        "dynamo-positional" => shared(Filled::new(dynamo::positional, world)?, look_ups),
        "kv-index" => shared(
            Filled::new(|| kv_index::Chains::new(world.workers), world)?,
            look_ups,
        ),
        _ => Err(format!("{name} is not known").into()),
    }
}

fn shared<S: subject::Finds + Sync>(
    mut filled: Filled<S>,
    look_ups: usize,
) -> Result<Figures, Box<dyn Error>> {
    filled.finds(look_ups)?;
    filled.finds_beside_writer(look_ups)?;
    filled.chunks();
    Ok(filled.figures)
}
