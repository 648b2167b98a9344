//! What ties of donors in device memory cost, and what becomes of their blocks.
//!
//! `cargo bench -p kvatlas --bench residents -- [donors]`

#![expect(
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a bench reads the clock, starts the writer, and prints rates of small numbers"
)]

use std::{error::Error, fs, io::Write as _, slice::from_ref, sync::Arc, time::Instant};

use kvatlas::{
    donors::{
        catalog::{Catalog, Defaults},
        gate::Gates,
        namespace::Namespace,
        owners::OwnerKey,
        vocabulary::{Medium, Mode},
        writer::{Opened, Writer},
        writes::{Capacity, NamespaceName, NewDonor, Writes},
    },
    store::Store,
};
use kvatlas_events::event::{self, EngineHash, Event, Kind, Removed, Stored};
use kvatlas_events::view::SourceId;
use tokio::runtime::Runtime;

const TOKENS: usize = 2048;
const BLOCK: u32 = 16;
const BLOCKS: u64 = TOKENS as u64 / BLOCK as u64;
const VOCABULARY: u64 = 151_936;
/// Donors whose blocks are stored and removed.
const TOLD: usize = 2000;
/// What the engine calls the block that all donors of an owner begin with.
const SHARED: EngineHash = EngineHash(u64::MAX);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"));
    let donors: usize = arguments.next().map_or(Ok(20_000), |n| n.parse())?;
    let folder = std::env::temp_dir().join("kvatlas-bench-residents");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let (store, _) = Store::open(&folder)?;
    let defaults = Defaults {
        mode: Mode::Materialize,
        mode_is_given: true,
        gates: Gates::default(),
    };
    let capacity = Capacity {
        donors_max: u64::MAX,
        tokens_max: u64::MAX,
    };
    let Opened {
        writer,
        writes,
        catalog,
        ..
    } = Writer::open(Arc::new(store), defaults, capacity)?;
    let writer = std::thread::Builder::new().spawn(move || writer.run())?;
    measure(&runtime, &writes, &catalog, donors)?;
    measure_shared(&runtime, &writes, &catalog, donors)?;
    drop(writes);
    writer.join().map_err(|_| "the writer panicked")?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn measure(runtime: &Runtime, writes: &Writes, catalog: &Catalog, donors: usize) -> Outcome {
    register(runtime, writes, (0..donors).map(donor))?;
    let source = follow(catalog, &owner())?;
    // The first block that is stored says how the engine cuts tokens.
    let micros = tell(catalog, source, &[stored(donors)])?;
    say(&format!(
        "tied later: {:.1} us a donor of {BLOCKS} blocks",
        micros / donors as f64
    ))?;

    let told: Vec<Event<'_>> = (0..TOLD).map(stored).collect();
    let micros = tell_each(catalog, source, &told)?;
    let each = (TOLD as u64 * BLOCKS) as f64;
    say(&format!("stored: {:.0} ns a block", micros * 1e3 / each))?;
    let gone: Vec<Event<'_>> = (0..TOLD).map(removed).collect();
    let micros = tell_each(catalog, source, &gone)?;
    say(&format!("removed: {:.0} ns a block", micros * 1e3 / each))?;

    let began = Instant::now();
    register(runtime, writes, (donors + 1..donors + 1 + TOLD).map(donor))?;
    let rate = TOLD as f64 / began.elapsed().as_secs_f64();
    say(&format!("registered while followed: {rate:.0} donors/s"))
}

/// Donors that all begin with one block, which goes and comes.
fn measure_shared(runtime: &Runtime, writes: &Writes, catalog: &Catalog, donors: usize) -> Outcome {
    let owner = OwnerKey {
        worker_id: "other".into(),
        data_parallel_rank: 0,
    };
    let beginning = tokens(usize::MAX);
    let sharing = |number: usize| {
        let captured = [&beginning[..BLOCK as usize], &tokens(number)].concat();
        NewDonor {
            owner: owner.clone(),
            donor_id: format!("sharing-{number:08}").into(),
            captured,
            ..donor(number)
        }
    };
    register(runtime, writes, (0..donors).map(sharing))?;
    let source = follow(catalog, &owner)?;
    let come = Event::Stored(Stored {
        hashes: vec![SHARED],
        tokens: beginning[..BLOCK as usize].to_vec(),
        ..stores(0)
    });
    let go = Event::Removed(Removed {
        hashes: vec![SHARED],
        medium: event::Medium::Device,
        group: None,
    });
    tell(catalog, source, from_ref(&come))?;
    let once = tell(catalog, source, from_ref(&go))? / 1e3;
    say(&format!(
        "a block that all begin with, removed: {once:.2} ms"
    ))?;
    let back = tell(catalog, source, from_ref(&come))? / 1e3;
    say(&format!(
        "a block that all begin with, stored: {back:.2} ms"
    ))?;
    let copies = [vec![come; 200], vec![go; 200]].concat();
    let often = tell(catalog, source, &copies)? / 1e3;
    say(&format!(
        "200 copies of it stored and removed in one batch: {often:.2} ms"
    ))
}

fn follow(catalog: &Catalog, owner: &OwnerKey) -> Outcome<SourceId> {
    let residents = &catalog.residents;
    let name = residents.engine_namespace(Some(&namespace()));
    let source = residents.view.add(name).ok_or("room for one source")?;
    residents.follow(&catalog.owners.get_or_add(owner, 1)?, source, name);
    Ok(source)
}

/// Microseconds for the donors' side of it alone.
fn tell(catalog: &Catalog, source: SourceId, events: &[Event<'_>]) -> Outcome<f64> {
    let residents = &catalog.residents;
    let mut changes = Vec::new();
    let applied = residents.view.apply(source, events, &mut changes);
    applied.ok_or("the source is followed")?;
    let began = Instant::now();
    residents.changed(source, &changes);
    Ok(began.elapsed().as_secs_f64() * 1e6)
}

fn tell_each(catalog: &Catalog, source: SourceId, events: &[Event<'_>]) -> Outcome<f64> {
    let each = events
        .iter()
        .map(|event| tell(catalog, source, from_ref(event)));
    each.sum()
}

fn register(runtime: &Runtime, writes: &Writes, donors: impl Iterator<Item = NewDonor>) -> Outcome {
    runtime.block_on(async {
        let mut pending = Vec::new();
        for donor in donors {
            pending.push(writes.register_when_free(donor).await?);
        }
        for one in pending {
            one.await??;
        }
        Ok(())
    })
}

fn donor(number: usize) -> NewDonor {
    NewDonor {
        donor_id: format!("request-{number:08}").into(),
        namespace: NamespaceName::Full(Box::new(namespace())),
        owner: owner(),
        owner_generation: 1,
        captured: tokens(number),
        exact_tokens: 0,
        medium: Medium::Device,
        store_id: "device-a".into(),
        source_request_id: format!("source-{number:08}").into(),
        block_names: Vec::new(),
        text: None,
        now_ms: 1,
    }
}

fn namespace() -> Namespace {
    Namespace {
        model: "model".into(),
        adapter: "none".into(),
        tenant_key: "semblend:tenant:v1:none".into(),
        block_size: BLOCK,
        ..Namespace::default()
    }
}

fn owner() -> OwnerKey {
    OwnerKey {
        worker_id: "worker".into(),
        data_parallel_rank: 0,
    }
}

fn tokens(number: usize) -> Vec<u32> {
    let mut random = number as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let token = |_| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        u32::try_from((random >> 33) % VOCABULARY).unwrap_or(0)
    };
    (0..TOKENS).map(token).collect()
}

fn names(number: usize) -> Vec<EngineHash> {
    let first = number as u64 * BLOCKS;
    (first..first + BLOCKS).map(EngineHash).collect()
}

fn stored(number: usize) -> Event<'static> {
    Event::Stored(stores(number))
}

fn stores(number: usize) -> Stored<'static> {
    Stored {
        hashes: names(number),
        parent: None,
        tokens: tokens(number),
        bigram_end: None,
        block_size: BLOCK,
        medium: event::Medium::Device,
        adapter: None,
        salt: None,
        extra: Vec::new(),
        group: None,
        kind: Kind::Absent,
        lookahead: Vec::new(),
    }
}

fn removed(number: usize) -> Event<'static> {
    Event::Removed(Removed {
        hashes: names(number),
        medium: event::Medium::Device,
        group: None,
    })
}

fn say(line: &str) -> Outcome {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
