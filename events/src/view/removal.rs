//! What a removal ends: which groups it means, and whether a block is gone with it.

use super::index::Place;
use super::lane::{Forgotten, Lane};
use super::source::{Around, Source};
use super::{Change, Outcome};
use crate::event::{EngineHash, Event, Medium, Removed};

impl Source {
    pub(super) fn remove_all(&mut self, events: &[Event<'_>], around: &mut Around<'_>) {
        let removals = || {
            events.iter().filter_map(|event| match event {
                Event::Removed(removed) => Some(removed),
                Event::Stored(_) | Event::Cleared => None,
            })
        };
        // Most have one hash.
        for removed in removals() {
            for lane in &self.lanes {
                if lane.medium == removed.medium {
                    lane.touch(&removed.hashes);
                }
            }
        }
        for removed in removals() {
            self.remove(removed, around);
        }
    }

    fn remove(&mut self, removed: &Removed, around: &mut Around<'_>) {
        for &hash in &removed.hashes {
            let mut is_known = false;
            let lanes = self.lanes_of(removed, hash);
            for lane in (0..self.lanes.len()).filter(|lane| lanes & 1 << lane != 0) {
                is_known = true;
                for set in self.loose.take(lane, hash) {
                    self.end_loose(lane, set.places, around);
                }
                if let Some(place) = self.lanes[lane].place(hash) {
                    self.forget(lane, hash, around);
                    if self.lanes[lane].place(hash).is_none() {
                        self.leave_loose(lane, place, around);
                    }
                } else if self.orphans.remove(lane, hash) {
                    around.counts.one(Outcome::Unreferenced);
                }
            }
            if !is_known {
                around.counts.one(match self.is_other(removed.group) {
                    true => Outcome::RemovedOther,
                    false => Outcome::RemovedUnknown,
                });
            }
        }
    }

    /// The lanes that a removal ends a block in, as bits. It never reaches a lane that another
    /// group announced; where one of the two names no group, it is taken to be meant.
    fn lanes_of(&self, removed: &Removed, hash: EngineHash) -> u16 {
        let holding = |group: Option<Option<u32>>| {
            let is_meant = |&(_, lane): &(usize, &Lane)| {
                lane.medium == removed.medium && group.is_none_or(|group| group == lane.group)
            };
            let lanes = self.lanes.iter().enumerate().filter(is_meant);
            lanes
                .filter(|&(number, _)| self.holds(number, hash))
                .fold(0, |all, (number, _)| all | 1 << number)
        };
        let same = holding(Some(removed.group));
        if same != 0 || self.is_other(removed.group) {
            return same;
        }
        if removed.group.is_some() {
            holding(Some(None))
        } else {
            holding(None)
        }
    }

    fn holds(&self, lane: usize, hash: EngineHash) -> bool {
        self.lanes[lane].place(hash).is_some()
            || self.loose.has(lane, hash)
            || self.orphans.has(lane, hash)
    }

    /// A group that announced blocks, and none that are prefixes.
    fn is_other(&self, group: Option<u32>) -> bool {
        self.others.contains(&group) && self.lanes.iter().all(|lane| lane.group != group)
    }

    pub(super) fn forget(&mut self, lane: usize, hash: EngineHash, around: &mut Around<'_>) {
        match self.lanes[lane].forget(hash) {
            None => {}
            Some(Forgotten::Kept(place)) => {
                around.counts.one(Outcome::Unreferenced);
                self.doubt(lane, place, around);
            }
            Some(Forgotten::Gone(place)) => {
                around.counts.one(Outcome::Removed);
                self.release(lane, place, around);
            }
        }
    }
    /// Forgets a block that was gone before it was put, as others waited for it.
    pub(super) fn take_back(&mut self, lane: usize, hash: EngineHash, around: &mut Around<'_>) {
        match self.lanes[lane].forget(hash) {
            None => {}
            Some(Forgotten::Kept(_)) => around.counts.one(Outcome::Unreferenced),
            Some(Forgotten::Gone(place)) => {
                around.counts.one(Outcome::Removed);
                self.release(lane, place, around);
            }
        }
    }

    /// A copy went, or may have gone; the lane holds the block still.
    pub(super) fn doubt(&mut self, lane: usize, place: Place, around: &mut Around<'_>) {
        if self.lanes[lane].medium == Medium::Device {
            let own = around.index.doubt(self.seat(lane), place);
            let is_gone = false;
            around.changes.push(Change::Removed { own, is_gone });
        }
    }

    pub(super) fn release(&mut self, lane: usize, place: Place, around: &mut Around<'_>) {
        let own = around.index.release(self.seat(lane), place);
        if self.lanes[lane].medium == Medium::Device {
            around.changes.push(Change::Removed { own, is_gone: true });
        }
    }

    /// A block lost a name that paired with it. Where it is indexed by tokens alone as well, nobody
    /// would tell of its end.
    fn leave_loose(&mut self, lane: usize, place: Place, around: &mut Around<'_>) {
        let lanes = &self.lanes;
        let is_meant = |other: usize| lanes[other].medium == lanes[lane].medium;
        for other in self.loose.leave(place, is_meant) {
            self.end_loose(other, vec![place], around);
        }
    }

    fn end_loose(&mut self, lane: usize, places: Vec<Place>, around: &mut Around<'_>) {
        for place in places {
            if self.lanes[lane].unshare(place) {
                around.counts.one(Outcome::Removed);
                self.release(lane, place, around);
            } else {
                self.doubt(lane, place, around);
            }
        }
    }
}
