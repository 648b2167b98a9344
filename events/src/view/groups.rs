//! Which lane of a source an event means, and how much each lane counts for.

use super::hash::{OwnHash, Shape};
use super::index::Index;
use super::lane::Lane;
use super::lanes::{LANES_MAX, Lanes, Role};
use super::source::{Around, Source};
use super::{Change, Outcome};
use crate::event::{Kind, Medium, Stored};

impl Source {
    /// The lane of an event. A group has one shape in a medium, the largest it has shown there: the
    /// last page of a chain may be shorter, and may be what comes first. Lower tiers may hold the
    /// same tokens in larger blocks.
    pub(super) fn lane_for(
        &mut self,
        stored: &Stored<'_>,
        shape: Shape,
        around: &mut Around<'_>,
    ) -> Result<usize, Outcome> {
        let is_proof = stored.kind == Kind::Attention;
        let is_it = |lane: &Lane| lane.group == stored.group && lane.medium == stored.medium;
        let lane = match self.lanes.iter().position(is_it) {
            Some(lane) if self.lanes[lane].shape > shape => {
                // What a short page proves of its group it proves all the same.
                self.prove(lane, is_proof, around);
                return Err(Outcome::ShortPage);
            }
            Some(lane) => lane,
            None if self.lanes.len() == LANES_MAX => {
                self.crowd(stored.medium, around);
                return Err(Outcome::Full);
            }
            None => {
                let new = Lane::new(stored.medium, stored.group, shape);
                self.lanes.push(new);
                self.publish_anew(around);
                self.lanes.len() - 1
            }
        };
        if self.lanes[lane].shape < shape {
            self.reshape(lane, shape, around);
        }
        self.prove(lane, is_proof, around);
        Ok(lane)
    }

    fn prove(&mut self, lane: usize, is_proof: bool, around: &mut Around<'_>) {
        if is_proof && !std::mem::replace(&mut self.lanes[lane].is_proven, true) {
            self.publish_anew(around);
        }
    }

    /// Of a group without a lane no removal will be heard.
    fn crowd(&mut self, medium: Medium, around: &mut Around<'_>) {
        if medium == Medium::Device && !std::mem::replace(&mut self.is_crowded, true) {
            self.publish(around.lanes);
            around.changes.push(Change::Cleared);
        }
    }

    fn reshape(&mut self, lane: usize, shape: Shape, around: &mut Around<'_>) {
        let is_device = self.lanes[lane].medium == Medium::Device;
        around.lanes.set(self.seat(lane), Role::Hidden);
        let changes = &mut *around.changes;
        self.empty_lane(lane, around.index, |own| {
            if is_device {
                changes.push(Change::Removed { own, is_gone: true });
            }
        });
        around
            .counts
            .add(Outcome::OrphanDropped, self.orphans.clear(Some(lane)));
        self.lanes[lane].shape = shape;
        self.publish_anew(around);
    }

    pub(super) fn empty_lane(&mut self, lane: usize, index: &Index, mut gone: impl FnMut(OwnHash)) {
        let seat = self.seat(lane);
        let mut places = self.lanes[lane].drain();
        places.extend(
            self.loose
                .take_lane(lane)
                .into_iter()
                .flat_map(|set| set.places),
        );
        for place in places {
            if self.lanes[lane].unshare(place) {
                gone(index.release(seat, place));
            }
        }
    }

    /// Tells readers how each lane counts, and whoever relies on blocks on the device where that
    /// takes more of the groups than before: until those hold a block too it is not there.
    pub(super) fn publish_anew(&self, around: &mut Around<'_>) {
        let before: Vec<Role> = (0..self.lanes.len())
            .map(|lane| around.lanes.role(self.seat(lane)))
            .collect();
        self.publish(around.lanes);
        for (number, lane) in self.lanes.iter().enumerate() {
            let now = around.lanes.role(self.seat(number));
            if lane.medium == Medium::Device && asks_more(before[number], now) {
                around.changes.extend(lane.places().map(|place| {
                    let own = around.index.own(place);
                    Change::Removed {
                        own,
                        is_gone: false,
                    }
                }));
            }
        }
    }

    /// Tells readers how each lane counts.
    pub(super) fn publish(&self, lanes: &Lanes) {
        for (number, lane) in self.lanes.iter().enumerate() {
            let peers = self.peers(lane, |lane| lane.is_proven);
            let role = match (lane.medium, lane.group) {
                (Medium::Host | Medium::Disk, _) => Role::Lower,
                (Medium::Device, _) if self.is_crowded => Role::Hidden,
                (Medium::Device, None) => Role::Device(1 << number),
                (Medium::Device, Some(_)) if peers == 0 => {
                    Role::Device(1 << number | self.peers(lane, |lane| lane.is_paired))
                }
                (Medium::Device, Some(_)) if lane.is_proven => Role::Peer(peers),
                (Medium::Device, Some(_)) => Role::Hidden,
            };
            lanes.set(self.seat(number), role);
        }
    }

    /// The groups on the device that cut tokens as this lane does, as bits.
    fn peers(&self, of: &Lane, is_meant: impl Fn(&Lane) -> bool) -> u16 {
        let is_peer = |lane: &Lane| {
            is_meant(lane)
                && lane.group.is_some()
                && lane.medium == Medium::Device
                && lane.shape == of.shape
        };
        let lanes = self.lanes.iter().enumerate();
        lanes
            .filter(|(_, lane)| is_peer(lane))
            .fold(0, |all, (number, _)| all | 1 << number)
    }
}

/// Whether a block that counted before has to be held by more lanes now, or counts no longer.
fn asks_more(before: Role, now: Role) -> bool {
    let set = |role| match role {
        Role::Hidden | Role::Lower => None,
        Role::Device(set) | Role::Peer(set) => Some(set),
    };
    set(before).is_some_and(|before| set(now).is_none_or(|now| now & !before != 0))
}
