//! Batches a second from an engine's socket until they are visible in the view:
//! `cargo bench -p kvatlas-events --bench zmq -- [batches] [engines]`.
//! Each batch stores 128 blocks of 16 tokens that nobody has, ids spread over a vocabulary of
//! 151,936; with eviction it also removes as many, one hash an event, so that an engine stays at
//! 100,000 blocks. Each engine is a thread that writes ZMTP frames it made before; the feeds share
//! one thread, as they would in a service on two cores.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kvatlas_events::event::{Batch, EngineHash, Event, Kind, Medium, Removed, Stored};
use kvatlas_events::feed::{Feed, News, Reply, Shared, State};
use kvatlas_events::view::{Namespace, Prompt, Shape, chain};
use kvatlas_events::wire::{Form, encode};

const MODEL: Namespace = Namespace(0x5eed);
const BLOCKS: u64 = 128;
const BLOCK_TOKENS: u64 = 16;
const SHAPE: Shape = Shape {
    block_size: 16,
    lookahead: 0,
};
/// Batches that an engine holds where it evicts.
const HELD_BATCHES: u64 = 100_000 / BLOCKS;
/// What an engine writes at once at most.
const WRITE_BYTES: usize = 256 << 10;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let numbers: Vec<u64> = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let batches = numbers.first().copied().unwrap_or(16_000);
    let engines = numbers.get(1).copied().unwrap_or(1);
    let mut out = String::new();
    for (name, evicts) in [("new blocks", false), ("with eviction", true)] {
        let rate = measure(batches / engines, engines, evicts)?;
        let blocks = rate * BLOCKS as f64 / 1e6;
        writeln!(
            out,
            "zmq to visible, {name}: {rate:.0} batches/s, {blocks:.2} M blocks/s stored"
        )?;
    }
    io::stdout().write_all(out.as_bytes())?;
    Ok(())
}

/// Batches a second over all engines, from the first byte to when all can be found.
fn measure(batches: u64, engines: u64, evicts: bool) -> Result<f64, Error> {
    let streams: Vec<Vec<Vec<u8>>> = (0..engines)
        .map(|engine| {
            (0..batches)
                .map(|batch| frames(engine, batch, evicts))
                .collect()
        })
        .collect();
    let shared = Shared::default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let mut listeners = Vec::new();
    let mut all_progress = Vec::new();
    for _ in 0..engines {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let source = format!("tcp://{}", listener.local_addr()?).parse()?;
        let feed = Feed::new(source, MODEL, None, shared.clone(), |_: News<'_>| {
            Reply::Heard
        });
        all_progress.push(feed.progress());
        runtime.spawn(feed.run(std::future::pending()));
        listeners.push(listener);
    }
    let subscribers = listeners
        .iter()
        .map(|listener| greet(listener.accept()?.0))
        .collect::<io::Result<Vec<_>>>()?;
    let seconds = std::thread::scope(|scope| {
        let start = Instant::now();
        for (subscriber, frames) in subscribers.iter().zip(&streams) {
            scope.spawn(|| publish(subscriber, frames));
        }
        let is_visible = |progress: &tokio::sync::watch::Receiver<_>| {
            let progress: kvatlas_events::feed::Progress = *progress.borrow();
            progress.state == State::Exact && progress.applied == Some((0, batches - 1))
        };
        while !all_progress.iter().all(is_visible) {
            std::thread::sleep(Duration::from_millis(1));
        }
        start.elapsed().as_secs_f64()
    });
    for engine in 0..engines {
        let tokens = tokens(engine, batches - 1);
        let prompt = Prompt {
            namespace: MODEL,
            adapter: None,
            tenant: None,
            items: &[],
            tokens: &tokens,
        };
        let found = shared.view.matches(SHAPE, &chain(&prompt, SHAPE));
        assert!(found.len() == 1 && u64::from(found[0].device_blocks) == BLOCKS);
    }
    let met: Vec<_> = all_progress
        .iter()
        .map(|progress| progress.borrow().met)
        .collect();
    assert!(met.iter().all(|met| met.gaps == 0 && met.connections == 1));
    runtime.shutdown_background();
    Ok((batches * engines) as f64 / seconds)
}

/// Answers a subscriber as a publisher does.
fn greet(mut stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    let mut greeting = [0; 64];
    greeting[..12].copy_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1]);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting)?;
    stream.read_exact(&mut greeting)?;
    let ready = b"\x05READY\x0bSocket-Type\0\0\0\x03PUB";
    stream.write_all(&[4, u8::try_from(ready.len()).unwrap_or(0)])?;
    stream.write_all(ready)?;
    // Its own ready, and what it subscribes to.
    for _ in 0..2 {
        let mut header = [0; 2];
        stream.read_exact(&mut header)?;
        stream.read_exact(&mut vec![0; header[1].into()])?;
    }
    Ok(stream)
}

fn publish(mut subscriber: &TcpStream, batches: &[Vec<u8>]) -> io::Result<()> {
    let mut out = Vec::with_capacity(2 * WRITE_BYTES);
    for batch in batches {
        out.extend_from_slice(batch);
        if out.len() >= WRITE_BYTES {
            subscriber.write_all(&out)?;
            out.clear();
        }
    }
    subscriber.write_all(&out)
}

/// A batch as it goes over the socket: topic, number, payload.
fn frames(engine: u64, batch: u64, evicts: bool) -> Vec<u8> {
    let mut events = vec![stored(engine, batch)];
    if let Some(old) = batch.checked_sub(HELD_BATCHES).filter(|_| evicts) {
        events.extend((0..BLOCKS).rev().map(|block| removed(engine, old, block)));
    }
    let payload = encode(
        &Batch {
            sent_at_s: 1.0,
            events,
            ..Batch::default()
        },
        Form::Map,
    );
    let mut frames = vec![1, 0, 1, 8];
    frames.extend(batch.to_be_bytes());
    frames.push(2);
    frames.extend((payload.len() as u64).to_be_bytes());
    frames.extend(payload);
    frames
}

fn tokens(engine: u64, batch: u64) -> Vec<u32> {
    let first = (engine << 32 | batch) << 12;
    (first..first + BLOCKS * BLOCK_TOKENS)
        .map(|at| u32::try_from(mix(at) % 151_936).unwrap_or_default())
        .collect()
}

fn hash(engine: u64, batch: u64, block: u64) -> EngineHash {
    EngineHash(mix((engine << 32 | batch) << 8 | block | 1 << 63))
}

fn stored(engine: u64, batch: u64) -> Event<'static> {
    Event::Stored(Stored {
        hashes: (0..BLOCKS)
            .map(|block| hash(engine, batch, block))
            .collect(),
        parent: None,
        tokens: tokens(engine, batch),
        bigram_end: None,
        block_size: 16,
        medium: Medium::Device,
        adapter: None,
        salt: None,
        extra: Vec::new(),
        group: Some(0),
        kind: Kind::Attention,
        lookahead: Vec::new(),
    })
}

fn removed(engine: u64, batch: u64, block: u64) -> Event<'static> {
    Event::Removed(Removed {
        hashes: vec![hash(engine, batch, block)],
        medium: Medium::Device,
        group: Some(0),
    })
}

/// SplitMix64's.
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
