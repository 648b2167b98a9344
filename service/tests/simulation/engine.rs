//! One engine process: what it computes, keeps and drops, and the batches that say so.

use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use bytes::Bytes;
use kvatlas_events::{
    event::{Adapter, Batch, EngineHash, Event, Extra, Medium, Removed, Stored},
    feed::Frame,
    wire::{Form, encode},
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    cache::{Cache, Group, Lane, Layout, device},
    content::{Prefix, ROOTS, SIZE},
    random::Random,
};

/// A group that no engine announces.
const UNKNOWN_GROUP: u32 = 9;
/// Blocks that one chunk of a computation stores.
const CHUNK_MAX: usize = 3;

/// How an engine is built and how it speaks.
#[derive(Clone, Debug)]
pub(crate) struct Style {
    pub(crate) layout: Layout,
    pub(crate) ranks: Vec<u32>,
    pub(crate) names_rank: bool,
    pub(crate) removals_name_group: bool,
    pub(crate) salts: Salts,
    /// Batches that can be replayed.
    pub(crate) kept_max: usize,
    /// Announces blocks without having made a copy.
    pub(crate) has_ghosts: bool,
    /// Blocks of lower tiers, as multiples of those on the device.
    pub(crate) lower_stride: usize,
    /// The batch from which on groups beyond the first are used.
    pub(crate) late: usize,
    /// Percent of batches with something that cannot be read.
    pub(crate) damage: u64,
}

/// Where a prompt's salt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Salts {
    InEvents,
    /// Among the extra keys of a chain's first block.
    InFirstBlock,
}

/// How much of a batch can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Damage {
    #[default]
    None,
    /// An event that says nothing: who takes it for a damaged one is right as well.
    Odd,
    /// An event that said something, or all of it.
    Lossy,
}

/// What is true once a batch is out.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) caches: Rc<BTreeMap<u32, Cache>>,
    pub(crate) damage: Damage,
    /// Everything was cleared in it, and all of it can be read.
    pub(crate) is_cleared: bool,
    /// An event so far meant less than it said.
    pub(crate) is_vague: bool,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) style: Style,
    /// What its hashes begin from.
    salt: u64,
    caches: BTreeMap<u32, Cache>,
    pub(crate) kept: VecDeque<Frame<Bytes>>,
    /// By batch.
    pub(crate) moments: Vec<Moment>,
    is_vague: bool,
}

/// A batch that is being made.
#[derive(Debug, Default)]
struct Draft {
    /// Clears stand between them.
    segments: Vec<Vec<Vec<u8>>>,
    damage: Damage,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Compute,
    Announce,
    Remove,
    Flood,
    Clear,
    Offload,
    RemoveUnknown,
    Noise,
    Damage,
}

impl Process {
    pub(crate) fn new(style: Style, random: &mut Random) -> Self {
        // Some engines name blocks alike in every process.
        let salt = match random.percent(50) {
            true => 0,
            false => random.word(),
        };
        Self {
            caches: style
                .ranks
                .iter()
                .map(|&rank| (rank, Cache::default()))
                .collect(),
            style,
            salt,
            kept: VecDeque::new(),
            moments: Vec::new(),
            is_vague: false,
        }
    }

    pub(crate) fn name(&self, last: &Prefix) -> EngineHash {
        let mut bytes = last.root.to_le_bytes().to_vec();
        bytes.extend(&last.path);
        EngineHash(xxh3_64_with_seed(&bytes, self.salt))
    }

    /// The names of a prompt's blocks of the smallest size.
    pub(crate) fn names(&self, prompt: &Prefix) -> Vec<EngineHash> {
        let ends = 1..=prompt.depth();
        ends.map(|end| self.name(&prompt.first(end))).collect()
    }

    /// A prompt that a rank need not compute.
    pub(crate) fn held(&self, rank: u32, random: &mut Random) -> Option<Prefix> {
        let cache = &self.caches[&rank];
        let last = random.pick(&cache.copies(device(0))).cloned()?;
        let hit = cache.hit(self.style.layout, &last);
        (hit > 0).then(|| last.first(hit))
    }

    /// Does some things and publishes them; `prompt` says what is computed next.
    pub(crate) fn publish(
        &mut self,
        random: &mut Random,
        prompt: &mut dyn FnMut(&mut Random) -> Prefix,
    ) -> Frame<Bytes> {
        let rank = *random.pick(&self.style.ranks).unwrap();
        let mut cache = self.caches.remove(&rank).unwrap();
        let mut draft = Draft {
            segments: vec![Vec::new()],
            damage: Damage::None,
        };
        for _ in 0..random.between(1, 3) {
            self.act((&mut cache, &mut draft), random, prompt);
        }
        cache.end_batch();
        self.caches.insert(rank, cache);
        let payload = self.payload(rank, &mut draft, random);
        let frame = Frame::new(self.moments.len() as u64, payload);
        self.kept.push_back(frame.clone());
        while self.kept.len() > self.style.kept_max {
            self.kept.pop_front();
        }
        self.moments.push(Moment {
            caches: Rc::new(self.caches.clone()),
            damage: draft.damage,
            is_cleared: draft.segments.len() > 1 && draft.damage < Damage::Lossy,
            is_vague: self.is_vague,
        });
        frame
    }

    fn act(
        &mut self,
        (cache, draft): (&mut Cache, &mut Draft),
        random: &mut Random,
        prompt: &mut dyn FnMut(&mut Random) -> Prefix,
    ) {
        let damage = u32::try_from(self.style.damage).unwrap();
        let act = random.weighed(&[
            (34, Act::Compute),
            (10, Act::Announce),
            (26, Act::Remove),
            (2, Act::Flood),
            (1, Act::Clear),
            (6, Act::Offload),
            (3, Act::RemoveUnknown),
            (4, Act::Noise),
            (damage, Act::Damage),
        ]);
        match act {
            Act::Compute => self.compute((cache, draft), &prompt(random), random),
            Act::Announce => self.announce((cache, draft), &prompt(random), random),
            Act::Remove => self.remove((cache, draft), 3, random),
            Act::Flood => self.remove((cache, draft), usize::MAX, random),
            Act::Clear => {
                cache.clear();
                draft.segments.push(Vec::new());
            }
            Act::Offload => self.offload((cache, draft), &prompt(random), random),
            Act::RemoveUnknown => self.remove_unknown((cache, draft), random),
            Act::Noise => self.noise(draft, random),
            Act::Damage => {
                // What it did is lost on whoever reads.
                let mut lost = Draft {
                    segments: vec![Vec::new()],
                    damage: Damage::None,
                };
                self.remove((cache, &mut lost), 2, random);
                draft.damage = Damage::Lossy;
                let forms: [&[u8]; 2] = [b"\x92\xacBlockRemoved\xa1x", b"\xc0"];
                draft.push(random.pick(&forms).unwrap().to_vec());
            }
        }
    }

    /// What the prompt lacks is stored in every group, with what lies behind it.
    fn compute(
        &mut self,
        (cache, draft): (&mut Cache, &mut Draft),
        prompt: &Prefix,
        random: &mut Random,
    ) {
        let hit = cache.hit(self.style.layout, prompt);
        let mut from = hit;
        while from < prompt.depth() {
            let to = (from + random.between(1, CHUNK_MAX)).min(prompt.depth());
            for number in self.groups() {
                self.store(
                    (cache, draft),
                    (device(number), from..to, true),
                    prompt,
                    random,
                );
            }
            from = to;
        }
    }

    /// The groups in use.
    fn groups(&self) -> std::ops::Range<usize> {
        match self.moments.len() < self.style.late {
            true => 0..1,
            false => 0..self.style.layout.groups().len(),
        }
    }

    /// A hit is announced again: with a copy of its own, or without.
    fn announce(
        &mut self,
        (cache, draft): (&mut Cache, &mut Draft),
        prompt: &Prefix,
        random: &mut Random,
    ) {
        let hit = cache.hit(self.style.layout, prompt);
        if hit == 0 {
            return;
        }
        let has_copy = !self.style.has_ghosts || random.percent(50);
        let from = random.below(hit);
        let groups = self.style.layout.groups();
        for number in self.groups().filter(|&number| !groups[number].is_state) {
            self.store(
                (cache, draft),
                (device(number), from..hit, has_copy),
                prompt,
                random,
            );
        }
    }

    /// Blocks of one lane that end in a range of the prompt's.
    fn store(
        &self,
        (cache, draft): (&mut Cache, &mut Draft),
        (lane, range, has_copy): (Lane, std::ops::Range<usize>, bool),
        prompt: &Prefix,
        random: &mut Random,
    ) {
        let mut group = self.style.layout.groups()[lane.1];
        if lane.0 != Medium::Device {
            group.stride *= self.style.lower_stride;
        }
        let (from, to) = match group.is_state {
            true => (range.start, range.end),
            false => {
                let whole = |end: usize| end / group.stride * group.stride;
                (whole(range.start), whole(range.end))
            }
        };
        if from >= to {
            return;
        }
        if lane.0 == Medium::Device {
            cache.show(self.style.layout, lane.1);
        }
        let blocks = match group.is_state {
            true => to - from,
            false => group.stride,
        };
        let ends: Vec<usize> = (from + blocks..=to).step_by(blocks).collect();
        for &end in &ends {
            cache.store(lane, &prompt.first(end), blocks, has_copy);
        }
        let event = self.stored((lane.0, group), (from, &ends), &prompt.first(to));
        draft.push(self.encode(&event, random));
    }

    fn stored(
        &self,
        (medium, group): (Medium, Group),
        (from, ends): (usize, &[usize]),
        prompt: &Prefix,
    ) -> Event<'static> {
        let root = ROOTS[prompt.root];
        let (salt, first) = match self.style.salts {
            Salts::InEvents => (root.salt, None),
            Salts::InFirstBlock => (None, root.salt.filter(|_| from == 0)),
        };
        let mut extra = Vec::new();
        if first.is_some() {
            extra.resize(ends.len(), Extra::default());
            extra[0].salt = first;
        }
        Event::Stored(Stored {
            hashes: ends
                .iter()
                .map(|&end| self.name(&prompt.first(end)))
                .collect(),
            parent: (from > 0).then(|| self.name(&prompt.first(from))),
            tokens: prompt.tokens(from),
            bigram_end: None,
            block_size: u32::try_from(group.stride * SIZE).unwrap(),
            medium,
            adapter: root.adapter.map(Adapter::Name),
            salt,
            extra,
            group: group.number,
            kind: group.kind,
            lookahead: Vec::new(),
        })
    }

    /// Copies of some blocks of one lane go.
    fn remove(
        &mut self,
        (cache, draft): (&mut Cache, &mut Draft),
        most: usize,
        random: &mut Random,
    ) {
        let groups = self.style.layout.groups();
        let medium = match random.percent(15) {
            true => Medium::Host,
            false => Medium::Device,
        };
        let lane = (medium, random.below(groups.len()));
        let mut hashes = Vec::new();
        for _ in 0..random.between(1, 3).min(most) {
            // Mostly what lies deeper, as engines do.
            let copies = cache.copies(lane);
            let tries = random.between(1, 3);
            let some = (0..tries).filter_map(|_| random.pick(&copies));
            let Some(last) = some.max_by_key(|last| last.depth()).cloned() else {
                break;
            };
            cache.remove(self.style.layout, lane, &last);
            hashes.push(self.name(&last));
        }
        if most == usize::MAX {
            for last in cache.copies(lane) {
                cache.remove(self.style.layout, lane, &last);
                hashes.push(self.name(&last));
            }
        }
        if hashes.is_empty() {
            return;
        }
        let named = groups[lane.1]
            .number
            .filter(|_| self.style.removals_name_group);
        self.is_vague |= named.is_none() && groups.len() > 1;
        let event = Event::Removed(Removed {
            hashes,
            medium,
            group: named,
        });
        draft.push(self.encode(&event, random));
    }

    /// Copies of some blocks come onto the host, by name alone or with their tokens.
    fn offload(
        &mut self,
        (cache, draft): (&mut Cache, &mut Draft),
        prompt: &Prefix,
        random: &mut Random,
    ) {
        let hit = cache.hit(self.style.layout, prompt);
        let lane = (Medium::Host, 0);
        if hit == 0 {
            return;
        }
        let from = random.below(hit);
        if self.style.lower_stride > 1 || random.percent(60) {
            return self.store((cache, draft), (lane, from..hit, true), prompt, random);
        }
        let ends: Vec<usize> = (from + 1..=hit).collect();
        for &end in &ends {
            cache.store(lane, &prompt.first(end), 1, true);
        }
        let group = self.style.layout.groups()[0];
        let mut event = self.stored((Medium::Host, group), (from, &ends), &prompt.first(hit));
        if let Event::Stored(stored) = &mut event {
            stored.tokens = Vec::new();
            stored.block_size = 0;
            stored.parent = None;
            stored.extra = Vec::new();
        }
        draft.push(self.encode(&event, random));
    }

    /// A removal of what was never there, or by a group that nobody knows.
    fn remove_unknown(&mut self, (cache, draft): (&mut Cache, &mut Draft), random: &mut Random) {
        let groups = self.style.layout.groups();
        let known = random.pick(&cache.copies(device(0))).cloned();
        let (hash, group) = match known.filter(|_| random.percent(60)) {
            Some(last) => (self.name(&last), Some(UNKNOWN_GROUP)),
            None => (
                EngineHash(random.word()),
                random.pick(groups).unwrap().number,
            ),
        };
        self.is_vague |= groups.iter().any(|group| group.number.is_none());
        let event = Event::Removed(Removed {
            hashes: vec![hash],
            medium: Medium::Device,
            group,
        });
        draft.push(self.encode(&event, random));
    }

    /// What says nothing about blocks.
    fn noise(&self, draft: &mut Draft, random: &mut Random) {
        let prompt = Prefix::any(random);
        let group = *random.pick(self.style.layout.groups()).unwrap();
        let ends: Vec<usize> = (1..=prompt.depth()).collect();
        let mut event = self.stored((Medium::Device, group), (0, &ends), &prompt);
        if let Event::Stored(stored) = &mut event {
            let kinds = if self.style.damage > 0 { 4 } else { 1 };
            match random.below(kinds) {
                0 => return draft.push(b"\x92\xabBlockPinned\xc0".to_vec()),
                3 => {
                    draft.damage = draft.damage.max(Damage::Odd);
                    let form = b"\x82\xa4type\xabBlockStored\xacblock_hashes\xc0";
                    return draft.push(form.to_vec());
                }
                // Its own parent.
                1 => stored.parent = stored.hashes.last().copied(),
                _ => stored.hashes.push(stored.hashes[0]),
            }
            stored.extra = Vec::new();
        }
        draft.damage = draft.damage.max(Damage::Odd);
        draft.push(self.encode(&event, random));
    }

    fn encode(&self, event: &Event<'static>, random: &mut Random) -> Vec<u8> {
        let form = match random.percent(50) || self.style.salts == Salts::InEvents {
            true => Form::Map,
            false => Form::Positional,
        };
        let batch = Batch {
            events: vec![event.clone()],
            ..Batch::default()
        };
        let payload = encode(&batch, form);
        payload[HEAD_BYTES + 1..payload.len() - 1].to_vec()
    }

    /// Events between two clears come in any order.
    fn payload(&self, rank: u32, draft: &mut Draft, random: &mut Random) -> Bytes {
        let mut events = Vec::new();
        for (at, segment) in draft.segments.iter_mut().enumerate() {
            if at > 0 {
                events.push(b"\x91\xb0AllBlocksCleared".to_vec());
            }
            if random.percent(50) {
                random.shuffle(segment);
            }
            events.append(segment);
        }
        let mut payload = vec![0x93, 0xcb];
        // No two batches are alike.
        payload.extend((random.word() >> 12).to_be_bytes());
        payload.push(0xdc);
        payload.extend(u16::try_from(events.len()).unwrap().to_be_bytes());
        payload.extend(events.concat());
        payload.push(match self.style.names_rank {
            true => u8::try_from(rank).unwrap(),
            false => 0xc0,
        });
        if draft.damage == Damage::Lossy && random.percent(20) {
            payload.pop();
        }
        payload.into()
    }
}

/// A list of three and a time, before the list of events.
const HEAD_BYTES: usize = 10;

impl Draft {
    fn push(&mut self, event: Vec<u8>) {
        self.segments.last_mut().unwrap().push(event);
    }
}
