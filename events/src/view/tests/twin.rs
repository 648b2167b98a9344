//! A twin of the view that is slow and obvious: it remembers whole prefixes instead of hashes,
//! and looks through lists. Random events go to both, and both are asked the same.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::event::{EngineHash, Event, Kind, Medium, Removed, Stored};
use crate::view::{Change, Namespace, OwnHash, Prompt, Shape, SourceId, View, chain};

const SIZE: usize = 2;
const SHAPE: Shape = Shape {
    block_size: 2,
    lookahead: 0,
};
const MODEL: Namespace = Namespace(7);

type Lane = (Medium, Option<u32>);
type Prefix = Vec<u32>;

#[derive(Clone, Debug)]
struct Waiting {
    lane: Lane,
    parent: EngineHash,
    hashes: Vec<EngineHash>,
    tokens: Vec<u32>,
}

impl Waiting {
    fn is_paired(&self) -> bool {
        self.hashes.len() * SIZE == self.tokens.len()
    }
}

#[derive(Debug, Default)]
struct Twin {
    proven: Vec<Lane>,
    lanes: Vec<Lane>,
    others: Vec<Option<u32>>,
    held: BTreeMap<(Lane, EngineHash), (Prefix, u32)>,
    waiting: Vec<Waiting>,
    waiting_references: BTreeMap<(Lane, EngineHash), u32>,
    /// Removed while they waited, and not stored since.
    waiting_doubted: BTreeSet<(Lane, EngineHash)>,
    /// Stored, and no copy removed since.
    sure: BTreeSet<(Lane, Prefix)>,
    /// Lanes whose hashes paired with blocks.
    named: Vec<Lane>,
    loose: Vec<(Lane, Vec<EngineHash>, Vec<Prefix>)>,
}

impl Twin {
    fn apply(&mut self, events: &[Event<'_>]) {
        for (number, settled) in events.split(|event| *event == Event::Cleared).enumerate() {
            if number > 0 {
                self.held.clear();
                self.waiting.clear();
                self.waiting_references.clear();
                self.waiting_doubted.clear();
                self.sure.clear();
                self.loose.clear();
            }
            for event in settled {
                if let Event::Stored(stored) = event
                    && !stored.tokens.is_empty()
                {
                    self.store(stored);
                }
            }
            for event in settled {
                if let Event::Stored(stored) = event
                    && stored.tokens.is_empty()
                {
                    self.store_bare(stored);
                }
            }
            for event in settled {
                if let Event::Removed(removed) = event {
                    self.remove(removed);
                }
            }
        }
    }

    fn lane(&mut self, stored: &Stored<'_>) -> Option<Lane> {
        if matches!(stored.kind, Kind::Other | Kind::Unknown) {
            self.others.push(stored.group);
            return None;
        }
        let lane = (stored.medium, stored.group);
        self.lanes.push(lane);
        if stored.kind == Kind::Attention {
            self.proven.push(lane);
        }
        Some(lane)
    }

    fn store(&mut self, stored: &Stored<'_>) {
        let Some(lane) = self.lane(stored) else {
            return;
        };
        let Stored { hashes, tokens, .. } = stored.clone();
        let Some(parent) = stored.parent else {
            let run = Waiting {
                lane,
                parent: EngineHash(0),
                hashes,
                tokens,
            };
            return self.put_and_heal(&run, Vec::new());
        };
        let run = Waiting {
            lane,
            parent,
            hashes,
            tokens,
        };
        if let Some(prefix) = self.before(&run) {
            return self.put_and_heal(&run, prefix);
        }
        if run.is_paired() {
            for &hash in &run.hashes {
                *self.waiting_references.entry((lane, hash)).or_default() += 1;
                self.waiting_doubted.remove(&(lane, hash));
            }
        }
        self.waiting.push(run);
    }

    fn put_and_heal(&mut self, run: &Waiting, prefix: Prefix) {
        self.put(run, prefix, &vec![(1, true); run.hashes.len()]);
        let removed = self.heal();
        self.forget_all(&removed);
    }

    /// What the blocks of a run follow, by its parent or else by its first block.
    fn before(&self, run: &Waiting) -> Option<Prefix> {
        self.prefix(run.lane, run.parent).or_else(|| {
            let (first, _) = self
                .held
                .get(&(run.lane, run.hashes[0]))
                .filter(|_| run.is_paired())?;
            Some(first[..first.len() - SIZE].to_vec())
        })
    }

    /// The references that each block gets, and whether it is surely there.
    fn put(&mut self, run: &Waiting, mut prefix: Prefix, references: &[(u32, bool)]) {
        let Waiting {
            lane,
            hashes,
            tokens,
            ..
        } = run;
        let mut prefixes = Vec::new();
        for block in tokens.chunks_exact(SIZE) {
            prefix.extend(block);
            prefixes.push(prefix.clone());
        }
        if run.is_paired() {
            self.named.push(*lane);
            for ((&hash, prefix), &(more, is_sure)) in hashes.iter().zip(prefixes).zip(references) {
                if is_sure {
                    self.sure.insert((*lane, prefix.clone()));
                }
                self.held.entry((*lane, hash)).or_insert((prefix, 0)).1 += more;
            }
        } else {
            self.loose.push((*lane, hashes.clone(), prefixes));
        }
    }

    fn heal(&mut self) -> Vec<(Lane, EngineHash)> {
        let mut removed = Vec::new();
        while let Some(at) = self
            .waiting
            .iter()
            .position(|run| self.before(run).is_some())
        {
            let prefix = self.before(&self.waiting[at]).expect("just found");
            let run = self.waiting.remove(at);
            let waited = |&hash: &EngineHash| {
                let key = (run.lane, hash);
                let references = self.waiting_references.remove(&key).unwrap_or(0);
                let is_doubted = self.waiting_doubted.remove(&key);
                let is_sure = references > 0 && !is_doubted && !self.held.contains_key(&key);
                (references, is_sure)
            };
            let references: Vec<(u32, bool)> = run.hashes.iter().map(waited).collect();
            self.put(&run, prefix, &references);
            removed.extend(run.hashes.iter().map(|&hash| (run.lane, hash)));
        }
        removed
    }

    fn forget_all(&mut self, removed: &[(Lane, EngineHash)]) {
        for key in removed {
            if self
                .held
                .get(key)
                .is_some_and(|(_, references)| *references == 0)
            {
                self.held.remove(key);
            }
        }
    }

    fn store_bare(&mut self, stored: &Stored<'_>) {
        for &hash in &stored.hashes {
            let known = self.held.iter().find(|((_, held), _)| *held == hash);
            let Some((_, (prefix, _))) = known else {
                continue;
            };
            let prefix = prefix.clone();
            if let Some(lane) = self.lane(stored) {
                self.sure.insert((lane, prefix.clone()));
                self.held.entry((lane, hash)).or_insert((prefix, 0)).1 += 1;
            }
        }
        if matches!(stored.kind, Kind::Other | Kind::Unknown) {
            self.others.push(stored.group);
        }
    }

    fn remove(&mut self, removed: &Removed) {
        for &hash in &removed.hashes {
            let lanes = self.meant(removed, hash);
            for lane in lanes {
                for (of, hashes, prefixes) in std::mem::take(&mut self.loose) {
                    if of == lane && hashes.contains(&hash) {
                        for prefix in prefixes {
                            self.sure.remove(&(lane, prefix));
                        }
                    } else {
                        self.loose.push((of, hashes, prefixes));
                    }
                }
                if let Some((prefix, references)) = self.held.get_mut(&(lane, hash)) {
                    self.sure.remove(&(lane, prefix.clone()));
                    *references -= 1;
                    if *references == 0 {
                        self.held.remove(&(lane, hash));
                    }
                } else if let Some(references) = self.waiting_references.get_mut(&(lane, hash)) {
                    *references = references.saturating_sub(1);
                    self.waiting_doubted.insert((lane, hash));
                }
                self.waiting.retain(|run| {
                    run.lane != lane || run.is_paired() || !run.hashes.contains(&hash)
                });
            }
        }
    }

    fn meant(&self, removed: &Removed, hash: EngineHash) -> Vec<Lane> {
        let holding: Vec<Lane> = [Medium::Device, Medium::Host, Medium::Disk]
            .into_iter()
            .flat_map(|medium| [None, Some(0), Some(1), Some(2)].map(|group| (medium, group)))
            .filter(|&lane| lane.0 == removed.medium && self.holds(lane, hash))
            .collect();
        let same = (removed.medium, removed.group);
        let is_other = self.others.contains(&removed.group)
            && self.lanes.iter().all(|lane| lane.1 != removed.group);
        if holding.contains(&same) {
            vec![same]
        } else if is_other {
            Vec::new()
        } else if removed.group.is_none() {
            holding
        } else {
            holding
                .into_iter()
                .filter(|lane| lane.1.is_none())
                .collect()
        }
    }

    fn holds(&self, lane: Lane, hash: EngineHash) -> bool {
        self.held.contains_key(&(lane, hash))
            || self
                .loose
                .iter()
                .any(|(of, hashes, _)| *of == lane && hashes.contains(&hash))
            || self
                .waiting
                .iter()
                .any(|run| run.lane == lane && run.hashes.contains(&hash))
    }

    fn prefix(&self, lane: Lane, hash: EngineHash) -> Option<Prefix> {
        let own = self.held.get(&(lane, hash));
        let any = || {
            self.held
                .iter()
                .find(|((_, held), _)| *held == hash)
                .map(|(_, held)| held)
        };
        own.or_else(any).map(|(prefix, _)| prefix.clone())
    }

    fn lane_has(&self, lane: Lane, prefix: &[u32]) -> bool {
        self.held
            .iter()
            .any(|((of, _), (held, _))| *of == lane && held == prefix)
            || self
                .loose
                .iter()
                .any(|(of, _, all)| *of == lane && all.iter().any(|p| p == prefix))
    }

    fn on_device(&self, prefix: &[u32]) -> bool {
        let proven: Vec<Lane> = self
            .proven
            .iter()
            .copied()
            .filter(|lane| lane.0 == Medium::Device && lane.1.is_some())
            .collect();
        let has = |lane| self.lane_has(lane, prefix);
        if has((Medium::Device, None)) {
            return true;
        }
        if proven.is_empty() {
            return (0..3).any(|group| has((Medium::Device, Some(group))));
        }
        proven.into_iter().all(has)
    }

    /// Leases may rest on it.
    fn is_sure(&self, prefix: &[u32]) -> bool {
        let has = |lane| self.sure.contains(&(lane, prefix.to_vec()));
        let groups = |lanes: &[Lane]| -> Vec<Lane> {
            let lanes = lanes.iter().copied();
            lanes
                .filter(|lane| lane.0 == Medium::Device && lane.1.is_some())
                .collect()
        };
        let proven = groups(&self.proven);
        let meant = if proven.is_empty() {
            groups(&self.named)
        } else {
            proven
        };
        has((Medium::Device, None)) || (!meant.is_empty() && meant.into_iter().all(has))
    }

    fn resident(&self, tokens: &[u32]) -> usize {
        let prefixes = (1..=tokens.len() / SIZE).map(|blocks| &tokens[..blocks * SIZE]);
        prefixes.take_while(|prefix| self.is_sure(prefix)).count()
    }

    fn on_lower(&self, prefix: &[u32]) -> bool {
        [Medium::Host, Medium::Disk]
            .into_iter()
            .flat_map(|medium| [None, Some(0), Some(1), Some(2)].map(|group| (medium, group)))
            .any(|lane| self.lane_has(lane, prefix))
    }

    fn matches(&self, tokens: &[u32]) -> (usize, usize) {
        let prefixes = || (1..=tokens.len() / SIZE).map(|blocks| &tokens[..blocks * SIZE]);
        let device = prefixes()
            .take_while(|prefix| self.on_device(prefix))
            .count();
        let any = prefixes()
            .take_while(|prefix| self.on_device(prefix) || self.on_lower(prefix))
            .count();
        (device, any)
    }
}

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
