//! One source's side of the view: which of its events count, and what they do to the index.

use super::hash::{Namespace, Shape};
use super::index::{Index, Place, Put, Start};
use super::lane::{Lane, Learned};
use super::lanes::{Lanes, Role};
use super::loose::Loose;
use super::node::{Claim, Seat};
use super::orphans::{Orphans, Run, Waited};
use super::resident::is_newly_resident;
use super::run::{self, Refused, Stretch};
use super::tenants::Tenants;
use super::{Change, Counts, GROUPS_MAX, Outcome};
use crate::event::{EngineHash, Event, Kind, Medium, Stored};
use crate::repeats::Repeats;

#[derive(Debug)]
pub(super) struct Source {
    number: u16,
    pub(super) namespace: Namespace,
    /// Tokens of its blocks, where that is known.
    pub(super) block_size: Option<u32>,
    pub(super) lanes: Vec<Lane>,
    /// Groups that announced blocks that are no prefixes.
    pub(super) others: Vec<Option<u32>>,
    pub(super) orphans: Orphans,
    pub(super) loose: Loose,
    tenants: Tenants,
    repeats: Repeats,
    puts: Vec<Put>,
    /// Set for ever: whoever still has a hold of it changes nothing.
    pub(super) is_removed: bool,
    /// The shapes of its lanes that readers were told of.
    pub(super) announced: Vec<Shape>,
    /// The same of its attention groups on the device, where they have several.
    pub(super) several: Vec<Shape>,
    /// A group on the device found no lane: what it holds and drops is not known, and so no block
    /// is known to be there.
    pub(super) is_crowded: bool,
}

/// Consecutive blocks of one chain, by name and by content.
#[derive(Clone, Copy, Debug)]
struct Blocks<'a> {
    hashes: &'a [EngineHash],
    contents: &'a [u64],
    /// They are there, if they pair; else they are known to have been.
    is_sure: bool,
}

/// What a source works on while events are applied.
#[derive(Debug)]
pub(super) struct Around<'a> {
    pub(super) index: &'a Index,
    pub(super) lanes: &'a Lanes,
    pub(super) changes: &'a mut Vec<Change>,
    pub(super) counts: Counts,
    /// Blocks that the source may hold.
    pub(super) blocks_max: usize,
}

impl Source {
    pub(super) fn new(number: u16, namespace: Namespace) -> Self {
        Self {
            number,
            namespace,
            block_size: None,
            lanes: Vec::new(),
            others: Vec::new(),
            orphans: Orphans::default(),
            loose: Loose::default(),
            tenants: Tenants::default(),
            repeats: Repeats::default(),
            puts: Vec::new(),
            is_removed: false,
            announced: Vec::new(),
            several: Vec::new(),
            is_crowded: false,
        }
    }

    /// Clears stand where the engine put them: it sends one together with what it stored after
    /// it. Between two clears the order says nothing: all that is stored goes first, so that a
    /// removal finds its block, and what is left is never more than the engine has.
    pub(super) fn apply(&mut self, events: &[Event<'_>], around: &mut Around<'_>) {
        let is_clear = |event: &Event<'_>| matches!(event, Event::Cleared);
        for (number, settled) in events.split(is_clear).enumerate() {
            if number > 0 {
                around.counts.one(Outcome::Cleared);
                self.clear(around);
            }
            for event in settled {
                if let Event::Stored(stored) = event
                    && !run::is_bare(stored)
                {
                    self.store(stored, around);
                }
            }
            for event in settled {
                if let Event::Stored(stored) = event
                    && run::is_bare(stored)
                {
                    self.store_bare(stored, around);
                }
            }
            self.remove_all(settled, around);
        }
    }

    /// Everything goes; groups stay known.
    pub(super) fn clear(&mut self, around: &mut Around<'_>) {
        // Hidden first: a reader sees all of it or nothing.
        for lane in 0..self.lanes.len() {
            around.lanes.set(self.seat(lane), Role::Hidden);
        }
        for lane in 0..self.lanes.len() {
            self.empty_lane(lane, around.index, |_| {});
        }
        around
            .counts
            .add(Outcome::OrphanDropped, self.orphans.clear(None));
        around.changes.push(Change::Cleared);
        self.publish(around.lanes);
    }

    /// Everything goes, and what was learned about groups too: the engine began anew.
    pub(super) fn reset(&mut self, around: &mut Around<'_>) {
        self.clear(around);
        for lane in 0..self.lanes.len() {
            around.lanes.set(self.seat(lane), Role::Hidden);
        }
        let announced = std::mem::take(&mut self.announced);
        let several = std::mem::take(&mut self.several);
        *self = Self {
            announced,
            several,
            block_size: self.block_size,
            ..Self::new(self.number, self.namespace)
        };
    }

    /// Blocks held by name, over all lanes.
    pub(super) fn blocks(&self) -> usize {
        self.lanes.iter().map(Lane::len).sum()
    }

    /// The block that a hash names on the device, where all groups agree.
    pub(super) fn place_of(&self, hash: EngineHash) -> Option<Place> {
        let device = self
            .lanes
            .iter()
            .filter(|lane| lane.medium == Medium::Device);
        let mut places = device.filter_map(|lane| lane.place(hash));
        let first = places.next()?;
        places.all(|other| other == first).then_some(first)
    }

    /// The shapes of blocks on the device.
    pub(super) fn device_shapes(&self) -> Vec<Shape> {
        self.shapes_where(|lane| lane.medium == Medium::Device)
    }

    /// The shapes of those that groups hold of which it is known that they are attention.
    pub(super) fn proven_shapes(&self) -> Vec<Shape> {
        self.shapes_where(|lane| lane.medium == Medium::Device && lane.is_proven)
    }

    fn shapes_where(&self, is_meant: impl Fn(&Lane) -> bool) -> Vec<Shape> {
        let lanes = self.lanes.iter().filter(|lane| is_meant(lane));
        let mut shapes: Vec<Shape> = lanes.map(|lane| lane.shape).collect();
        shapes.sort_unstable();
        shapes.dedup();
        shapes
    }

    /// The shape of each lane.
    pub(super) fn shapes(&self) -> impl Iterator<Item = Shape> + '_ {
        self.lanes.iter().map(|lane| lane.shape)
    }

    fn store(&mut self, stored: &Stored<'_>, around: &mut Around<'_>) {
        match stored.kind {
            Kind::Absent | Kind::Attention => {}
            Kind::Other => return self.ignore(stored.group, Outcome::IgnoredKind, around),
            Kind::Unknown => return self.ignore(stored.group, Outcome::UnknownKind, around),
        }
        let stretch = match run::read(stored, self.block_size, &mut self.repeats) {
            Ok(stretch) => stretch,
            Err(Refused(outcome)) => return around.counts.one(outcome),
        };
        let lane = match self.lane_for(stored, stretch.shape, around) {
            Ok(lane) => lane,
            Err(outcome) => return around.counts.one(outcome),
        };
        if !stretch.is_paired {
            around.counts.one(Outcome::Mismatch);
            if stretch.contents.is_empty() {
                return;
            }
        }
        let mut learned = Vec::new();
        self.place(lane, stored, stretch, (&mut learned, around));
        self.heal(learned, around);
    }

    fn place(
        &mut self,
        lane: usize,
        stored: &Stored<'_>,
        stretch: Stretch,
        (learned, around): (&mut Vec<EngineHash>, &mut Around<'_>),
    ) {
        let Stretch {
            contents,
            shape,
            is_paired,
        } = stretch;
        let blocks = |from: usize| Blocks {
            hashes: &stored.hashes[from..],
            contents: &contents[from..],
            is_sure: true,
        };
        let Some(parent) = stored.parent else {
            let start = Start::Root(self.tenants.root_of(self.namespace, shape, stored));
            return self.put(lane, start, blocks(0), (learned, around));
        };
        let first = stored.hashes.first().copied().filter(|_| is_paired);
        if let Some((start, known)) = self.start_of(lane, parent, first) {
            for &hash in &stored.hashes[..known] {
                self.again(lane, hash, around);
                around.counts.one(Outcome::Referenced);
            }
            return self.put(lane, start, blocks(known), (learned, around));
        }
        let run = Run {
            lane,
            parent,
            hashes: stored.hashes.clone(),
            contents,
        };
        around.counts.add(Outcome::OrphanHeld, run.contents.len());
        around
            .counts
            .add(Outcome::OrphanDropped, self.orphans.hold(run));
    }

    /// Puts blocks into the index and learns their names; those new to the lane go to `learned`.
    fn put(
        &mut self,
        lane: usize,
        start: Start,
        blocks: Blocks<'_>,
        (learned, around): (&mut Vec<EngineHash>, &mut Around<'_>),
    ) {
        let Blocks {
            hashes, contents, ..
        } = blocks;
        let is_paired = hashes.len() == contents.len();
        if is_paired && !std::mem::replace(&mut self.lanes[lane].is_paired, true) {
            self.publish_anew(around);
        }
        let room = around.blocks_max.saturating_sub(self.blocks());
        let contents = if is_paired {
            &contents[..contents.len().min(room)]
        } else if self.loose.has_room(contents.len().max(hashes.len())) {
            contents
        } else {
            &[]
        };
        let claim = Claim {
            seat: self.seat(lane),
            is_sure: blocks.is_sure && is_paired,
        };
        let mut puts = std::mem::take(&mut self.puts);
        self.lanes[lane].touch(hashes);
        around.index.put_as(claim, start, contents, &mut puts);
        if is_paired {
            let (hashes, refused) = hashes.split_at(puts.len());
            for (&hash, put) in hashes.iter().zip(&puts) {
                self.learn(lane, hash, *put, around);
            }
            if !self.orphans.is_empty() {
                learned.extend(hashes);
            }
            self.refuse(lane, refused, around);
        } else {
            around.counts.add(Outcome::Loose, puts.len());
            for &put in &puts {
                self.lanes[lane].share(put);
            }
            if !puts.is_empty() {
                self.loose
                    .add(lane, hashes, puts.iter().map(|put| put.place).collect());
            }
        }
        self.puts = puts;
    }

    /// There is no room. What the hashes named before they may name no longer.
    fn refuse(&mut self, lane: usize, hashes: &[EngineHash], around: &mut Around<'_>) {
        around.counts.add(Outcome::Full, hashes.len());
        for &hash in hashes {
            if let Some(place) = self.lanes[lane].place(hash) {
                self.doubt(lane, place, around);
            }
        }
    }

    fn learn(&mut self, lane: usize, hash: EngineHash, put: Put, around: &mut Around<'_>) {
        match self.lanes[lane].learn(hash, put) {
            Learned::New => around.counts.one(Outcome::Stored),
            Learned::Again => around.counts.one(Outcome::Referenced),
            Learned::Moved { old, is_gone } => {
                around.counts.one(Outcome::Conflict);
                if is_gone {
                    self.release(lane, old, around);
                } else {
                    self.doubt(lane, old, around);
                }
            }
        }
        self.tell_stored(lane, &put, around);
    }

    /// A block that is known was stored once more.
    fn again(&mut self, lane: usize, hash: EngineHash, around: &mut Around<'_>) {
        let Some(place) = self.lanes[lane].place(hash) else {
            return;
        };
        self.lanes[lane].again(hash);
        let claim = Claim {
            seat: self.seat(lane),
            is_sure: true,
        };
        let put = around.index.hold(claim, place);
        self.tell_stored(lane, &put, around);
    }

    fn tell_stored(&self, lane: usize, put: &Put, around: &mut Around<'_>) {
        let is_told = match (self.lanes[lane].medium, self.lanes.len()) {
            (Medium::Host | Medium::Disk, _) => false,
            (Medium::Device, 1) => put.is_newly_sure,
            (Medium::Device, _) => {
                is_newly_resident(around.index, around.lanes, self.seat(lane), put)
            }
        };
        if is_told {
            around.changes.push(Change::Stored(put.own));
        }
    }

    /// Gives the blocks that waited for any of these to the index, and those that waited for them.
    /// Those that were removed meanwhile go last: others may wait for them.
    fn heal(&mut self, mut learned: Vec<EngineHash>, around: &mut Around<'_>) {
        let mut removed = Vec::new();
        while let Some(hash) = learned.pop() {
            let mut orphans = std::mem::take(&mut self.orphans);
            let start_of = |run: &Run| self.start_of(run.lane, run.parent, run.first());
            let runs = orphans.take(hash, |run| start_of(run).is_some());
            self.orphans = orphans;
            for (run, waited) in runs {
                let Some((start, known)) = self.start_of(run.lane, run.parent, run.first()) else {
                    continue;
                };
                around.counts.add(Outcome::OrphanHealed, run.contents.len());
                self.put_healed(&run, &waited, (start, known), (&mut learned, around));
                for (at, (&hash, waited)) in run.hashes.iter().zip(waited).enumerate() {
                    let counted = u16::from(at >= known);
                    for _ in counted..waited.references {
                        self.lanes[run.lane].again(hash);
                    }
                    if waited.references < counted {
                        removed.push((run.lane, hash));
                    }
                }
            }
        }
        for (lane, hash) in removed {
            self.take_back(lane, hash, around);
        }
    }

    /// All at once where all are sure, else one by one. What became of a block that is held
    /// already is known better than from the time when it waited.
    fn put_healed(
        &mut self,
        run: &Run,
        waited: &[Waited],
        (start, known): (Start, usize),
        (learned, around): (&mut Vec<EngineHash>, &mut Around<'_>),
    ) {
        let is_sure = |source: &Self, at: usize| {
            waited[at].is_sure() && source.lanes[run.lane].place(run.hashes[at]).is_none()
        };
        let all = known..waited.len();
        if !run.is_paired() || all.clone().all(|at| is_sure(self, at)) {
            let blocks = Blocks {
                hashes: &run.hashes[known..],
                contents: &run.contents[known..],
                is_sure: true,
            };
            return self.put(run.lane, start, blocks, (learned, around));
        }
        let mut start = start;
        for at in all {
            let block = Blocks {
                hashes: &run.hashes[at..=at],
                contents: &run.contents[at..=at],
                is_sure: is_sure(self, at),
            };
            self.put(run.lane, start, block, (learned, around));
            let Some(put) = self.puts.last() else { return };
            start = Start::After(put.place);
        }
    }

    /// What a run goes on from, and how many of its blocks lie before that: without its parent, a
    /// block that is known is still the block that it was.
    fn start_of(
        &self,
        lane: usize,
        parent: EngineHash,
        first: Option<EngineHash>,
    ) -> Option<(Start, usize)> {
        if let Some(parent) = self.find(lane, parent) {
            return Some((Start::After(parent), 0));
        }
        Some((Start::After(self.lanes[lane].place(first?)?), 1))
    }

    /// Blocks of a lower tier that are named by hash alone.
    fn store_bare(&mut self, stored: &Stored<'_>, around: &mut Around<'_>) {
        match stored.kind {
            Kind::Absent | Kind::Attention => {}
            Kind::Other => return self.ignore(stored.group, Outcome::IgnoredKind, around),
            Kind::Unknown => return self.ignore(stored.group, Outcome::UnknownKind, around),
        }
        // A block of that name in a shape that the group does not have is another group's.
        let of_group = self.lanes.iter().filter(|lane| lane.group == stored.group);
        let shapes: Vec<Shape> = of_group.map(|lane| lane.shape).collect();
        for &hash in &stored.hashes {
            let mut meant = self
                .lanes
                .iter()
                .filter(|lane| shapes.is_empty() || shapes.contains(&lane.shape));
            let known = meant.find_map(|lane| Some((lane.place(hash)?, lane.shape)));
            let Some((place, shape)) = known else {
                around.counts.one(Outcome::BareUnknown);
                continue;
            };
            let lane = match self.lane_for(stored, shape, around) {
                Ok(lane) => lane,
                Err(outcome) => {
                    around.counts.one(outcome);
                    continue;
                }
            };
            around.counts.one(Outcome::Bare);
            let claim = Claim {
                seat: self.seat(lane),
                is_sure: true,
            };
            let put = around.index.hold(claim, place);
            self.learn(lane, hash, put, around);
        }
    }

    /// Where the parent of blocks in a lane lies: in that lane, or another one of their shape.
    fn find(&self, lane: usize, hash: EngineHash) -> Option<Place> {
        let own = &self.lanes[lane];
        own.place(hash).or_else(|| {
            self.lanes
                .iter()
                .filter(|lane| lane.shape == own.shape)
                .find_map(|lane| lane.place(hash))
        })
    }

    fn ignore(&mut self, group: Option<u32>, outcome: Outcome, around: &mut Around<'_>) {
        around.counts.one(outcome);
        if !self.others.contains(&group) && self.others.len() < GROUPS_MAX {
            self.others.push(group);
        }
    }

    pub(super) fn number(&self) -> usize {
        self.number.into()
    }

    pub(super) fn seat(&self, lane: usize) -> Seat {
        Seat::new(
            self.number,
            u8::try_from(lane).expect("fewer than LANES_MAX"),
        )
    }
}
