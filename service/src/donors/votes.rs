//! Votes: which donors share the most seeds with a target, rarest seeds first.

use super::postings::{ListRef, Postings};

/// Postings read before the donors seen are compared with the longer lists only.
const POSTINGS_MAX: usize = 2_048;
/// Postings read before the leader's lead may end the reading.
const POSTINGS_MIN: usize = 64;
/// Look-ups of a donor in a long list.
const LOOKUPS_MAX: usize = 16_384;
/// Cells of the tally; a power of two, at least twice the donors that can be in it.
const TALLY_CELLS: u32 = 4_096;

/// A seed of the target that some donor has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hit {
    /// Where its window begins in the target.
    pub(super) position: u32,
    pub(super) list: ListRef,
    /// Number of donors, and the first and the last of them.
    pub(super) donors: u32,
    pub(super) ends: (u32, u32),
}

/// Neighbouring seeds that the same donors have, by all we can tell: one passage.
#[derive(Debug, Clone, Copy)]
struct Group {
    list: ListRef,
    donors: u32,
    seeds: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) slot: u32,
    pub(super) votes: u32,
}

/// Counts votes for one target after another, reusing its room.
#[derive(Debug, Default)]
pub(super) struct Votes {
    groups: Vec<Group>,
    tally: Tally,
    slots: Vec<u32>,
    candidates: Vec<Candidate>,
}

impl Votes {
    /// Eligible donors that may have the most of the hits, by falling votes.
    ///
    /// Rare seeds tell donors apart and cost little, so they vote; of the seeds that many donors
    /// have, only those donors are looked up that can still win.
    pub(super) fn nominate(
        &mut self,
        postings: &Postings,
        hits: &[Hit],
        is_eligible: &dyn Fn(u32) -> bool,
    ) -> &[Candidate] {
        group(hits, &mut self.groups);
        self.tally.clear();
        let mut unread: u32 = self.groups.iter().map(|group| group.seeds).sum();
        let mut postings_read = 0;
        let mut groups_read = 0;
        for group in &self.groups {
            let over = postings_read + group.donors as usize > POSTINGS_MAX;
            let decided = self.tally.top > unread && postings_read > POSTINGS_MIN;
            if (over && postings_read > 0) || decided {
                break;
            }
            let listed = postings.listed(group.list);
            self.slots.clear();
            listed.last_into(POSTINGS_MAX, &mut self.slots);
            for &slot in &self.slots {
                self.tally.add(slot, group.seeds, is_eligible);
            }
            postings_read += self.slots.len();
            groups_read += 1;
            unread -= group.seeds;
        }
        self.tally
            .leaders(self.tally.top.saturating_sub(unread), &mut self.candidates);
        if self.candidates.len() > 1 && unread > 0 {
            self.refine(postings, groups_read, unread, is_eligible);
        }
        self.candidates.retain(|candidate| candidate.votes > 0);
        self.candidates
            .sort_unstable_by_key(|c| (std::cmp::Reverse(c.votes), c.slot));
        &self.candidates
    }

    /// Looks the candidates up in the lists not read, shortest first, dropping those that cannot
    /// win any more.
    fn refine(
        &mut self,
        postings: &Postings,
        groups_read: usize,
        mut unread: u32,
        is_eligible: &dyn Fn(u32) -> bool,
    ) {
        self.candidates
            .sort_unstable_by_key(|candidate| candidate.slot);
        let mut top = self.tally.top;
        let mut lookups = 0;
        for group in &self.groups[groups_read..] {
            lookups += self.candidates.len();
            if lookups > LOOKUPS_MAX {
                break;
            }
            let mut listed = postings.listed(group.list).ascending();
            for candidate in &mut self.candidates {
                if listed.has(candidate.slot) && candidate.votes > 0 {
                    candidate.votes += group.seeds;
                    if candidate.votes > top {
                        if is_eligible(candidate.slot) {
                            top = candidate.votes;
                        } else {
                            candidate.votes = 0;
                        }
                    }
                }
            }
            unread -= group.seeds;
            self.candidates
                .retain(|candidate| candidate.votes + unread >= top);
            if self.candidates.len() <= 1 {
                break;
            }
        }
    }
}

/// Groups neighbouring hits and orders the groups by rising number of donors.
///
/// A group of a longer list is split between its first and its last seed, so that a donor that
/// has only some of the seeds is not counted for all of them.
fn group(hits: &[Hit], groups: &mut Vec<Group>) {
    groups.clear();
    for alike in hits.chunk_by(|a, b| a.donors == b.donors && a.ends == b.ends) {
        let [first, .., last] = alike else {
            groups.extend(alike.iter().map(|hit| Group {
                list: hit.list,
                donors: hit.donors,
                seeds: 1,
            }));
            continue;
        };
        let seeds = super::seeds::count_u32(alike.len());
        let second = if first.donors > 2 { seeds / 2 } else { 0 };
        groups.push(Group {
            list: first.list,
            donors: first.donors,
            seeds: seeds - second,
        });
        if second > 0 {
            groups.push(Group {
                list: last.list,
                donors: last.donors,
                seeds: second,
            });
        }
    }
    groups.sort_unstable_by_key(|group| group.donors);
}

/// Votes by slot: a small open-addressed table.
#[derive(Debug, Default)]
struct Tally {
    /// Slot + 1 in the upper half, flags and votes in the lower; zero is empty.
    cells: Vec<u64>,
    touched: Vec<u32>,
    /// Most votes of an eligible donor.
    top: u32,
}

/// The donor was found eligible.
const ELIGIBLE: u64 = 1 << 31;
/// The donor was found not to be eligible.
const BARRED: u64 = 1 << 30;
const VOTES: u64 = BARRED - 1;

impl Tally {
    fn clear(&mut self) {
        self.cells.resize(TALLY_CELLS as usize, 0);
        for at in self.touched.drain(..) {
            self.cells[at as usize] = 0;
        }
        self.top = 0;
    }

    /// Whether a donor is eligible is asked when it would take the lead, which few do.
    fn add(&mut self, slot: u32, votes: u32, is_eligible: &dyn Fn(u32) -> bool) {
        const SHIFT: u32 = u32::BITS - TALLY_CELLS.ilog2();
        let name = u64::from(slot + 1) << 32;
        let mut at = slot.wrapping_mul(0x9e37_79b1) >> SHIFT;
        let cell = loop {
            let cell = &mut self.cells[at as usize];
            if *cell == 0 {
                *cell = name;
                self.touched.push(at);
                break cell;
            }
            if *cell >> 32 == name >> 32 {
                break cell;
            }
            at = (at + 1) % TALLY_CELLS;
        };
        *cell += u64::from(votes);
        let votes = (*cell & VOTES) as u32;
        if votes > self.top && *cell & BARRED == 0 {
            if *cell & ELIGIBLE != 0 || is_eligible(slot) {
                *cell |= ELIGIBLE;
                self.top = votes;
            } else {
                *cell |= BARRED;
            }
        }
    }

    /// Donors that are not barred and have at least so many votes.
    fn leaders(&self, least: u32, out: &mut Vec<Candidate>) {
        out.clear();
        out.extend(self.touched.iter().filter_map(|&at| {
            let cell = self.cells[at as usize];
            let votes = (cell & VOTES) as u32;
            let slot = (cell >> 32) as u32 - 1;
            (cell & BARRED == 0 && votes >= least).then_some(Candidate { slot, votes })
        }));
    }
}
