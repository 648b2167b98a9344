//! Decoding of batches as engines send them, on one thread: long stores with ids of several
//! distributions, and removals of one hash each.

use std::hint::black_box;

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use kvatlas_events::{
    event::{Batch, EngineHash, Event, Kind, Medium, Rejected, Removed, Stored},
    wire::{Form, decode, encode},
};

const EVENTS: usize = 8;
const BLOCKS: usize = 128;
const BLOCK_TOKENS: usize = 16;

/// SplitMix64, so that every run decodes the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn within(&mut self, from: u32, to: u32) -> u32 {
        from + u32::try_from(self.next() % u64::from(to - from)).unwrap_or(0)
    }
}

/// One id of a vocabulary of 151,936, as frequent as such ids are: ranks by Zipf's law, and ids by
/// rank, which is how tokenizers number what they merge.
fn zipf(random: &mut Random) -> u32 {
    let uniform = f64::from(random.within(0, 1 << 24)) / f64::from(1 << 24);
    let id = 151_936_f64.powf(uniform);
    (0..=17).rev().fold(0, |found, bit| {
        let next = found | 1 << bit;
        if f64::from(next) <= id { next } else { found }
    })
}

type Ids = fn(&mut Random) -> u32;

fn stored(random: &mut Random, id: Ids) -> Event<'static> {
    Event::Stored(Stored {
        hashes: (0..BLOCKS).map(|_| EngineHash(random.next())).collect(),
        parent: Some(EngineHash(random.next())),
        tokens: (0..BLOCKS * BLOCK_TOKENS).map(|_| id(random)).collect(),
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

fn removed(random: &mut Random) -> Event<'static> {
    let hashes = vec![EngineHash(random.next())];
    Event::Removed(Removed {
        hashes,
        medium: Medium::Device,
        group: Some(0),
    })
}

fn payload(events: Vec<Event<'static>>) -> Vec<u8> {
    let batch = Batch {
        sent_at_s: 1.0,
        rank: Some(0),
        events,
        rejected: Rejected::default(),
    };
    encode(&batch, Form::Map)
}

fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    let ids: [(&str, Ids); 5] = [
        ("stored/two_bytes", |random| random.within(256, 1 << 16)),
        ("stored/uniform", |random| random.within(0, 151_936)),
        ("stored/zipf", zipf),
        ("stored/one_in_20_large", |random| {
            let range = if random.next().is_multiple_of(20) {
                (1 << 16, 151_936)
            } else {
                (256, 1 << 16)
            };
            random.within(range.0, range.1)
        }),
        ("stored/four_bytes", |random| {
            random.within(1 << 16, 1 << 18)
        }),
    ];
    for (name, id) in ids {
        let mut random = Random(7);
        let events = (0..EVENTS).map(|_| stored(&mut random, id)).collect();
        measure(&mut group, name, &payload(events));
    }
    let mut random = Random(7);
    let events = (0..1000).map(|_| removed(&mut random)).collect();
    measure(&mut group, "removed", &payload(events));
}

fn measure(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, payload: &[u8]) {
    assert!(decode(payload).is_ok_and(|batch| batch.rejected == Rejected::default()));
    group.throughput(Throughput::Bytes(payload.len() as u64));
    group.bench_function(name, |bencher| bencher.iter(|| decode(black_box(payload))));
}

criterion_group!(benches, bench);
criterion_main!(benches);
