//! Random events go to the view and to its twin, and both are asked the same.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::twin::Twin;
use crate::event::{EngineHash, Event, Kind, Medium, Removed, Stored};
use crate::view::{Change, Namespace, OwnHash, Prompt, Shape, SourceId, View, chain};

pub(super) const SIZE: usize = 2;
const SHAPE: Shape = Shape {
    block_size: 2,
    lookahead: 0,
};
const MODEL: Namespace = Namespace(7);

/// Everybody's first blocks, before those that vary. With 30 of them nodes of the index end
/// among those that vary.
fn preamble(blocks: usize) -> Vec<u32> {
    vec![2; blocks * SIZE]
}

fn preamble_event(blocks: usize) -> Event<'static> {
    let tokens = preamble(blocks);
    let hashes = (1..=blocks)
        .map(|end| engine_hash(&tokens[..end * SIZE], 0))
        .collect();
    Event::Stored(Stored {
        hashes,
        tokens,
        ..stored()
    })
}

fn stored() -> Stored<'static> {
    Stored {
        hashes: Vec::new(),
        parent: None,
        tokens: Vec::new(),
        bigram_end: None,
        block_size: 2,
        medium: Medium::Device,
        adapter: None,
        salt: None,
        extra: Vec::new(),
        group: None,
        kind: Kind::Absent,
        lookahead: Vec::new(),
    }
}

/// An engine's hash: some blocks have two, as where a prefix was split and stored again.
fn engine_hash(prefix: &[u32], variant: u64) -> EngineHash {
    let fold = |all: u64, &token: &u32| all.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(token);
    EngineHash(prefix.iter().fold(variant + 1, fold))
}

fn any_event(shared: usize) -> impl Strategy<Value = Event<'static>> {
    let tokens = prop::collection::vec(0..2_u32, 12);
    let group = prop_oneof![3 => Just(None), 2 => Just(Some(0)), 1 => Just(Some(1))];
    let medium = prop_oneof![4 => Just(Medium::Device), 1 => Just(Medium::Host)];
    let kind = prop_oneof![
        3 => Just(Kind::Absent),
        3 => Just(Kind::Attention),
        1 => Just(Kind::Other)
    ];
    let place = (tokens, 0..5_usize, 1..4_usize, 0..8_u64);
    let who = (group, medium, kind, 0..32_u8);
    (place, who).prop_map(
        move |((varied, first, blocks, variants), (group, medium, kind, what))| {
            let blocks = blocks.min(6 - first);
            let first = shared + first;
            let tokens = [preamble(shared), varied].concat();
            let hash = |block: usize| {
                let variant = u64::from(variants == 0 && block.is_multiple_of(2));
                engine_hash(&tokens[..(block + 1) * SIZE], variant)
            };
            let mut hashes: Vec<EngineHash> = (first..first + blocks).map(hash).collect();
            if what < 12 {
                return Event::Removed(Removed {
                    hashes,
                    medium,
                    group,
                });
            }
            if what == 12 {
                return Event::Cleared;
            }
            let parent = first.checked_sub(1).map(hash);
            let run = &tokens[first * SIZE..(first + blocks) * SIZE];
            let stored = Stored {
                parent,
                medium,
                group,
                kind,
                ..stored()
            };
            if what == 13 {
                return Event::Stored(Stored {
                    hashes,
                    block_size: 0,
                    ..stored
                });
            }
            if what == 14 && blocks > 1 {
                hashes.remove(0);
            }
            Event::Stored(Stored {
                hashes,
                tokens: run.to_vec(),
                ..stored
            })
        },
    )
}

/// A batch, and the place of the source it goes to.
type ToSource = (usize, Vec<Event<'static>>);

/// A number of shared blocks, and batches of events that go on from there.
fn any_batches() -> impl Strategy<Value = (usize, Vec<ToSource>)> {
    prop_oneof![Just(0), Just(30)].prop_flat_map(|shared| {
        let batch = (0..3_usize, prop::collection::vec(any_event(shared), 1..5));
        (Just(shared), prop::collection::vec(batch, 1..24))
    })
}

fn chains(shared: usize) -> impl Iterator<Item = (Vec<u32>, Vec<OwnHash>)> {
    let varied = |bits: u32| (0..12).map(move |at| bits >> at & 1);
    (0..1_u32 << 12).step_by(41).map(move |bits| {
        let tokens: Vec<u32> = preamble(shared).into_iter().chain(varied(bits)).collect();
        let prompt = Prompt {
            namespace: MODEL,
            adapter: None,
            tenant: None,
            items: &[],
            tokens: &tokens,
        };
        let names = chain(&prompt, SHAPE);
        (tokens, names)
    })
}

fn found(view: &View, names: &[OwnHash], source: SourceId) -> (usize, usize) {
    let found = view
        .matches(SHAPE, names)
        .into_iter()
        .find(|found| found.source == source);
    found.map_or((0, 0), |found| {
        let any = found.device_blocks + found.lower_blocks;
        (found.device_blocks as usize, any as usize)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_finds_what_its_twin_finds((shared, batches) in any_batches()) {
        let view = View::default();
        let mut sources: Vec<(SourceId, Twin)> =
            (0..3).map(|_| (view.add(MODEL).expect("room"), Twin::default())).collect();
        let first = (0..3).map(|source| (source, vec![preamble_event(shared)]));
        for (number, events) in first.chain(batches) {
            let (source, twin) = &mut sources[number];
            if shared > 0 || events != [preamble_event(0)] {
                view.apply(*source, &events, &mut Vec::new());
                twin.apply(&events);
            }
        }
        for (tokens, names) in chains(shared) {
            for (source, twin) in &sources {
                let (device, any) = found(&view, &names, *source);
                prop_assert_eq!((device, any), twin.matches(&tokens));
                let resident = view.resident(*source, SHAPE, &names);
                prop_assert_eq!(resident, twin.resident(&tokens));
                prop_assert!(resident <= device);
            }
        }
        for (source, _) in &sources {
            view.remove(*source, &mut Vec::new());
        }
        prop_assert_eq!(view.index.blocks(), 0, "blocks that nobody holds");
    }

    /// What is told as changes adds up to what leases may rest on, once the groups are known: one
    /// without a kind, or two of attention.
    #[test]
    fn changes_tell_what_is_resident((shared, batches) in any_batches(), are_groups: bool) {
        let (kind, groups) = if are_groups {
            (Kind::Attention, vec![Some(0), Some(1)])
        } else {
            (Kind::Absent, vec![None])
        };
        let view = View::default();
        let source = view.add(MODEL).expect("room");
        let (mut twin, mut told) = (Twin::default(), BTreeSet::new());
        let meant = |group: Option<u32>| if are_groups { group.or(Some(0)) } else { None };
        let begins = groups.iter().map(|&group| {
            let (tokens, hashes) = (vec![9; SIZE], vec![EngineHash(9)]);
            Event::Stored(Stored { hashes, tokens, group, kind, ..stored() })
        });
        let begins: Vec<_> = begins.chain([Event::Cleared]).collect();
        view.apply(source, &begins, &mut Vec::new());
        twin.apply(&begins);
        let batches = batches.into_iter().map(|(_, events)| events);
        for mut events in [vec![preamble_event(shared)]].into_iter().chain(batches) {
            for event in &mut events {
                match event {
                    Event::Stored(stored) => {
                        stored.group = meant(stored.group);
                        stored.kind = kind;
                    }
                    Event::Removed(removed) => removed.group = meant(removed.group),
                    Event::Cleared => {}
                }
            }
            events.retain(|event| !matches!(
                event,
                Event::Stored(stored) if stored.hashes.is_empty()
            ));
            let mut changes = Vec::new();
            view.apply(source, &events, &mut changes);
            twin.apply(&events);
            for change in changes {
                match change {
                    Change::Stored(own) => prop_assert!(told.insert(own), "told twice"),
                    Change::Removed { own, .. } => {
                        told.remove(&own);
                    }
                    Change::Cleared => told.clear(),
                }
            }
        }
        for (tokens, names) in chains(shared) {
            for (at, name) in names.iter().enumerate() {
                let prefix = &tokens[..(at + 1) * SIZE];
                prop_assert_eq!(told.contains(name), twin.is_sure(prefix));
            }
        }
    }

    /// All that stands between two clears may come in any order.
    #[test]
    fn the_order_inside_a_batch_does_not_matter(
        before in prop::collection::vec(any_event(0), 0..8),
        batches in prop::collection::vec(any_event(0), 2..7).prop_flat_map(|mut events| {
            events.retain(|event| *event != Event::Cleared);
            (Just(events.clone()), Just(events).prop_shuffle())
        }),
    ) {
        let [one, other] = [&batches.0, &batches.1].map(|batch| {
            let view = View::default();
            let source = view.add(MODEL).expect("room");
            view.apply(source, &before, &mut Vec::new());
            view.apply(source, batch, &mut Vec::new());
            chains(0).map(|(_, names)| found(&view, &names, source)).collect::<Vec<_>>()
        });
        prop_assert_eq!(one, other);
    }
}
