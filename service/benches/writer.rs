//! Registration, start-up and removal at fleet speed.
//!
//! `cargo bench -p kvatlas --bench writer -- [donors] [folder]`: the folder, on the disk that is
//! to be measured, is emptied before and after.

#![expect(
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a bench reads the clock, starts the writer, and prints rates of small numbers"
)]

use std::{
    collections::VecDeque,
    error::Error,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Instant,
};

use kvatlas::{
    donors::{
        catalog::Defaults,
        gate::Gates,
        namespace::Namespace,
        owners::OwnerKey,
        vocabulary::{Medium, Mode},
        writer::{Opened, Writer},
        writes::{Capacity, NamespaceName, NewDonor, Removal, Writes},
    },
    store::{Change, Store, Table},
};
use tokio::runtime::Runtime;

const TOKENS: usize = 2048;
const VOCABULARY: u64 = 151_936;
const OWNERS: usize = 50;
/// Registrations that wait for their acknowledgement.
const IN_FLIGHT: usize = 2048;
const SLED_BATCH: usize = 512;
const SLED_BATCHES: usize = 20;
/// A record of 2,048 tokens of 18 bits.
const SLED_VALUE_BYTES: usize = 4668;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"));
    let donors: usize = arguments.next().map_or(Ok(100_000), |n| n.parse())?;
    let folder = arguments.next().map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| std::env::temp_dir().join("kvatlas-bench-writer"));
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    sled(&folder.join("sled"))?;
    let (data, log) = (folder.join("data"), folder.join("data/donors"));

    let before = resident_bytes()?;
    let running = Running::open(&data)?;
    let rate = register(&runtime, &running.writes, donors)?;
    let memory = resident_bytes()?.saturating_sub(before) / donors;
    let disk = bytes_in(&log)? / donors as u64;
    say(&format!("registered {rate:.0} donors/s"))?;
    say(&format!("{memory} bytes of memory and {disk} of disk each"))?;
    running.stop()?;

    let began = Instant::now();
    let running = Running::open(&data)?;
    let seconds = began.elapsed().as_secs_f64();
    say(&format!(
        "started with {} donors in {seconds:.2} s",
        running.loaded
    ))?;
    let rate = remove(&runtime, &running.writes)?;
    let disk = bytes_in(&log)? >> 20;
    say(&format!(
        "removed {rate:.0} donors/s by owner, {disk} MiB of disk are left"
    ))?;
    running.stop()?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

// The same records, were they to lie in sled: a sync a batch.
fn sled(folder: &Path) -> Outcome {
    let (store, _) = Store::open(folder)?;
    let payload = vec![7; SLED_VALUE_BYTES];
    let began = Instant::now();
    for batch in 0..SLED_BATCHES {
        let numbers = batch * SLED_BATCH..(batch + 1) * SLED_BATCH;
        let keys: Vec<_> = numbers
            .map(|number| format!("{:032}donor-{number}", 7))
            .collect();
        let put = |key| Change::Put {
            table: Table::Donors,
            key,
            payload: &payload,
        };
        let changes: Vec<_> = keys.iter().map(|key| put(key.as_bytes())).collect();
        store.write(&changes)?;
        store.commit()?;
    }
    let records = SLED_BATCH * SLED_BATCHES;
    let rate = records as f64 / began.elapsed().as_secs_f64();
    let disk = bytes_in(folder)? / records as u64;
    say(&format!(
        "sled: {rate:.0} records/s, {disk} bytes of disk each"
    ))
}

struct Running {
    writes: Writes,
    writer: JoinHandle<()>,
    loaded: u64,
}

impl Running {
    fn open(folder: &Path) -> Outcome<Running> {
        let (store, _) = Store::open(folder)?;
        let defaults = Defaults {
            mode: Mode::DiscoveryOnly,
            mode_is_given: false,
            gates: Gates::default(),
        };
        let capacity = Capacity {
            donors_max: u64::MAX,
            tokens_max: u64::MAX,
        };
        let Opened {
            writer,
            writes,
            loaded,
            ..
        } = Writer::open(Arc::new(store), defaults, capacity)?;
        Ok(Running {
            writes,
            writer: std::thread::Builder::new().spawn(move || writer.run())?,
            loaded: loaded.donors,
        })
    }

    fn stop(self) -> Outcome {
        drop(self.writes);
        self.writer.join().map_err(|_| "the writer panicked".into())
    }
}

// Donors a second. The prompts are made beforehand, a part at a time.
fn register(runtime: &Runtime, writes: &Writes, donors: usize) -> Outcome<f64> {
    const PART: usize = 20_000;
    let mut seconds = 0.0;
    for first in (0..donors).step_by(PART) {
        let part: Vec<_> = (first..donors.min(first + PART)).map(donor).collect();
        let began = Instant::now();
        let registered: Outcome = runtime.block_on(async {
            let mut pending = VecDeque::with_capacity(IN_FLIGHT);
            for donor in part {
                pending.push_back(writes.register_when_free(donor).await?);
                if pending.len() == IN_FLIGHT
                    && let Some(first) = pending.pop_front()
                {
                    first.await??;
                }
            }
            for last in pending {
                last.await??;
            }
            Ok(())
        });
        registered?;
        seconds += began.elapsed().as_secs_f64();
    }
    Ok(donors as f64 / seconds)
}

fn remove(runtime: &Runtime, writes: &Writes) -> Outcome<f64> {
    let began = Instant::now();
    let mut removed = 0;
    for number in 0..OWNERS {
        let removal = Removal::Owner(owner(number));
        removed += runtime.block_on(writes.remove(removal))?;
    }
    Ok(removed as f64 / began.elapsed().as_secs_f64())
}

fn donor(number: usize) -> NewDonor {
    let mut random = number as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let captured = (0..TOKENS).map(|_| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        u32::try_from((random >> 33) % VOCABULARY).unwrap_or(0)
    });
    NewDonor {
        donor_id: format!("request-{number:08}").into(),
        namespace: NamespaceName::Full(Box::new(Namespace {
            model: "model".into(),
            tenant_key: "semblend:tenant:v1:none".into(),
            block_size: 16,
            ..Namespace::default()
        })),
        owner: owner(number % OWNERS),
        owner_generation: 1,
        captured: captured.collect(),
        exact_tokens: 0,
        medium: Medium::Host,
        store_id: "host-a".into(),
        source_request_id: format!("source-{number:08}").into(),
        block_names: Vec::new(),
        text: None,
        now_ms: 1,
    }
}

fn owner(number: usize) -> OwnerKey {
    OwnerKey {
        worker_id: format!("worker-{number}").into(),
        data_parallel_rank: 0,
    }
}

fn bytes_in(folder: &Path) -> Outcome<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() {
            bytes_in(&entry.path())?
        } else {
            metadata.len()
        };
    }
    Ok(bytes)
}

fn resident_bytes() -> Outcome<usize> {
    const PAGE_BYTES: usize = 4096;
    let pages = fs::read_to_string("/proc/self/statm")?;
    let resident = pages.split(' ').nth(1).ok_or("statm has a second number")?;
    Ok(resident.parse::<usize>()? * PAGE_BYTES)
}

fn say(line: &str) -> Outcome {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
