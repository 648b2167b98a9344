//! What is truly in one engine's cache, copy by copy: what the service may claim, and must.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas_events::event::{Kind, Medium};

use crate::content::Prefix;

/// How an engine's layers share its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// No groups, no kinds.
    Plain,
    /// One attention group.
    Attention,
    /// Two attention groups, with blocks of one size.
    TwoAttention,
    /// Two attention groups, the second with blocks of twice the size.
    TwoSizes,
    /// Attention, and states whose hashes equal those of attention blocks.
    Hybrid,
    /// The same, and the kinds are not said.
    SilentHybrid,
    /// Two attention groups whose kinds are not said.
    SilentTwo,
}

impl Layout {
    pub(crate) const ALL: [(u32, Layout); 7] = [
        (4, Layout::Plain),
        (3, Layout::Attention),
        (4, Layout::TwoAttention),
        (3, Layout::TwoSizes),
        (4, Layout::Hybrid),
        (2, Layout::SilentHybrid),
        (2, Layout::SilentTwo),
    ];

    pub(crate) fn groups(self) -> &'static [Group] {
        const fn group(number: u32, kind: Kind, stride: usize, is_state: bool) -> Group {
            Group {
                number: Some(number),
                kind,
                stride,
                is_state,
            }
        }
        use Kind::{Absent, Attention, Other};
        match self {
            Layout::Plain => {
                const {
                    &[Group {
                        number: None,
                        kind: Absent,
                        stride: 1,
                        is_state: false,
                    }]
                }
            }
            Layout::Attention => const { &[group(0, Attention, 1, false)] },
            Layout::TwoAttention => {
                const { &[group(0, Attention, 1, false), group(1, Attention, 1, false)] }
            }
            Layout::TwoSizes => {
                const { &[group(0, Attention, 1, false), group(1, Attention, 2, false)] }
            }
            Layout::Hybrid => const { &[group(0, Attention, 1, false), group(1, Other, 1, true)] },
            Layout::SilentHybrid => {
                const { &[group(0, Absent, 1, false), group(1, Absent, 1, true)] }
            }
            Layout::SilentTwo => {
                const { &[group(0, Absent, 1, false), group(1, Absent, 1, false)] }
            }
        }
    }

    /// Several groups, and nothing says which of them are attention.
    pub(crate) fn is_silent(self) -> bool {
        matches!(self, Layout::SilentHybrid | Layout::SilentTwo)
    }

    /// Every group's blocks, as multiples of the smallest.
    pub(crate) fn strides(self) -> BTreeSet<usize> {
        self.groups().iter().map(|group| group.stride).collect()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) number: Option<u32>,
    pub(crate) kind: Kind,
    /// Smallest blocks to a block.
    pub(crate) stride: usize,
    /// One hash for all blocks of a chunk, that of the last.
    pub(crate) is_state: bool,
}

/// A medium and a group, by its place among the layout's.
pub(crate) type Lane = (Medium, usize);

/// One block, or one state, of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    copies: u32,
    /// Announcements without a copy. An engine that made one sends fewer removals than the view
    /// counts references.
    ghosts: u32,
    /// Smallest blocks that it stands for.
    blocks: usize,
    /// A copy was removed since it was last stored.
    is_doubted: bool,
}

/// One rank's cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache {
    lanes: BTreeMap<Lane, BTreeMap<Prefix, Held>>,
    /// Removed within the batch that is being made: its order says nothing.
    removed_now: BTreeSet<(Lane, Prefix)>,
    /// How often an attention block on the device lost a copy, and how often all were cleared.
    went: BTreeMap<Prefix, u64>,
    cleared: u64,
    /// Attention groups that have stored anything on the device. The others count for nothing.
    shown: BTreeSet<usize>,
    /// How often one showed after another: it has no block of that one's.
    joined: u64,
}

impl Cache {
    /// A group stores something on the device.
    pub(crate) fn show(&mut self, layout: Layout, number: usize) {
        let groups = layout.groups();
        if !groups[number].is_state && self.shown.insert(number) {
            self.joined += u64::from(self.shown.len() > 1);
        }
    }

    fn attention(&self, layout: Layout) -> impl Iterator<Item = (usize, &'static Group)> {
        let groups = layout.groups().iter().enumerate();
        groups.filter(|(number, _)| self.shown.contains(number))
    }

    /// A block of a lane is announced, with a copy or without.
    pub(crate) fn store(&mut self, lane: Lane, last: &Prefix, blocks: usize, has_copy: bool) {
        let is_doubted = self.removed_now.contains(&(lane, last.clone()));
        let held = self.lanes.entry(lane).or_default();
        let held = held.entry(last.clone()).or_default();
        // A state may have been told of with more blocks before.
        held.blocks = held.blocks.max(blocks);
        held.is_doubted = is_doubted;
        match has_copy {
            true => held.copies += 1,
            false => held.ghosts += 1,
        }
    }

    /// One copy goes.
    pub(crate) fn remove(&mut self, layout: Layout, lane: Lane, last: &Prefix) {
        let blocks = self.lanes.entry(lane).or_default();
        let held = blocks.get_mut(last).unwrap();
        held.copies -= 1;
        held.is_doubted = true;
        if held.copies + held.ghosts == 0 {
            blocks.remove(last);
        }
        self.removed_now.insert((lane, last.clone()));
        // What layers that hold no prefixes drop is nobody's block.
        if lane.0 == Medium::Device && !layout.groups()[lane.1].is_state {
            *self.went.entry(last.clone()).or_default() += 1;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.lanes.clear();
        self.removed_now.clear();
        self.cleared += 1;
    }

    pub(crate) fn end_batch(&mut self) {
        self.removed_now.clear();
    }

    /// What a lane has copies of.
    pub(crate) fn copies(&self, lane: Lane) -> Vec<Prefix> {
        let held = self.lanes.get(&lane).into_iter().flatten();
        let copied = held.filter(|(_, held)| held.copies > 0);
        copied.map(|(last, _)| last.clone()).collect()
    }

    pub(crate) fn has(&self, lane: Lane, last: &Prefix) -> bool {
        self.held(lane, last).is_some_and(|held| held.copies > 0)
    }

    /// Blocks from a prompt's start that the engine need not compute.
    pub(crate) fn hit(&self, layout: Layout, prompt: &Prefix) -> usize {
        let reach = |(number, group): (usize, &Group)| {
            let ends = (1..=prompt.depth() / group.stride).map(|end| end * group.stride);
            let held = ends.take_while(|&end| self.has(device(number), &prompt.first(end)));
            match held.last().unwrap_or(0) {
                // What is left over fills no block.
                whole if prompt.depth() - whole < group.stride => prompt.depth(),
                part => part,
            }
        };
        self.attention(layout).map(reach).min().unwrap_or(0)
    }

    /// Whether a block of this stride may be claimed: it is there, or a copyless announcement of it
    /// is all that tells otherwise.
    pub(crate) fn may_match(&self, layout: Layout, stride: usize, last: &Prefix) -> bool {
        let is_told = |held: &Held| held.copies + held.ghosts > 0;
        if layout.is_silent() {
            return self.is_anywhere(Medium::Device, last, is_told);
        }
        self.is_in_all(layout, stride, last, is_told)
    }

    /// Whether it is there in every group of that stride.
    pub(crate) fn is_there(&self, layout: Layout, stride: usize, last: &Prefix) -> bool {
        self.is_in_all(layout, stride, last, |held| held.copies > 0)
    }

    /// Whether a lease may rest on it, by what the engine has announced.
    pub(crate) fn is_sure(&self, layout: Layout, stride: usize, last: &Prefix) -> bool {
        let is_sure = |held: &Held| held.copies > 0 && !held.is_doubted;
        self.is_in_all(layout, stride, last, is_sure)
    }

    pub(crate) fn may_be_lower(&self, last: &Prefix) -> bool {
        let is_told = |held: &Held| held.copies + held.ghosts > 0;
        self.is_anywhere(Medium::Host, last, is_told)
    }

    /// Whether so many of a prompt's first smallest blocks are there in every group.
    pub(crate) fn has_first(&self, layout: Layout, prompt: &Prefix, blocks: usize) -> bool {
        let strides = self.attention(layout).map(|(_, group)| group.stride);
        let strides: BTreeSet<usize> = strides.collect();
        let is_held = |&stride: &usize| {
            let mut ends = (1..=blocks / stride).map(|end| end * stride);
            ends.all(|end| self.is_there(layout, stride, &prompt.first(end)))
        };
        blocks == 0 || (!strides.is_empty() && strides.iter().all(is_held))
    }

    /// Numbers that stay the same for as long as no copy of these blocks goes.
    pub(crate) fn went(&self, prompt: &Prefix, blocks: usize) -> (u64, u64) {
        let of = |end| self.went.get(&prompt.first(end)).copied().unwrap_or(0);
        (self.cleared + self.joined, (1..=blocks).map(of).sum())
    }

    fn is_in_all(
        &self,
        layout: Layout,
        stride: usize,
        last: &Prefix,
        holds: impl Fn(&Held) -> bool,
    ) -> bool {
        let groups = self.attention(layout);
        let mut groups = groups
            .filter(|(_, group)| group.stride == stride)
            .peekable();
        groups.peek().is_some()
            && groups.all(|(number, _)| self.held(device(number), last).is_some_and(&holds))
    }

    fn is_anywhere(&self, medium: Medium, last: &Prefix, holds: impl Fn(&Held) -> bool) -> bool {
        let lanes = self.lanes.iter().filter(|(lane, _)| lane.0 == medium);
        let mut all = lanes.flat_map(|(_, held)| held);
        all.any(|(end, held)| {
            last.begins(end) && end.depth() - held.blocks < last.depth() && holds(held)
        })
    }

    fn held(&self, lane: Lane, last: &Prefix) -> Option<&Held> {
        self.lanes.get(&lane)?.get(last)
    }
}

pub(crate) fn device(group: usize) -> Lane {
    (Medium::Device, group)
}
