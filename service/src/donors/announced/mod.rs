//! Donors that other providers announce: found by their vectors, and known by nothing else.
//!
//! They carry no tokens. So they are hints: nothing of them is compared, nominated or leased.

mod event;
mod kept;
pub mod namespace;
pub mod stream;
#[cfg(test)]
mod tests;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;

pub use event::{Announcement, Change, Event, Location, Lost, Position, Scope, Segment, is_within};
use kept::{Kept, NewEntry};
use namespace::AnnouncedNamespace;
use stream::Step;

use super::{
    neighbours::{SEGMENTS_MAX, Vector},
    owners::OwnerKey,
    vocabulary::{DonorEventOutcome, Forgotten, Unfindable},
};

/// How much is kept at most. What was announced longest ago goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// A worker's data-parallel ranks emit one stream each. The one that was silent longest goes
    /// first, with all that it announced.
    pub streams_max: usize,
    pub donors_max: usize,
    pub donors_per_stream_max: usize,
    /// Of vectors, names and what keeps them; an estimate.
    pub bytes_max: usize,
}

impl Default for Capacity {
    fn default() -> Capacity {
        Capacity {
            streams_max: 8_192,
            donors_max: 200_000,
            donors_per_stream_max: 50_000,
            bytes_max: 512 << 20,
        }
    }
}

/// Every announced donor that can be found.
#[derive(Debug)]
pub struct Announced {
    /// Of the vectors that can be asked for; None: there is no model, so that none can be.
    dimensions: Option<usize>,
    capacity: Capacity,
    /// Donors after the last event, for those who must not wait.
    length: AtomicUsize,
    kept: Mutex<Kept>,
}

/// What an event did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub outcome: DonorEventOutcome,
    /// Why the donor that was announced is found by nobody.
    pub unfindable: Option<Unfindable>,
    /// Donors that went: how many, and why.
    pub forgotten: Vec<(Forgotten, usize)>,
}

impl Applied {
    /// An event of which nothing is known.
    #[must_use]
    pub fn refused() -> Applied {
        Applied::new(DonorEventOutcome::Refused)
    }

    fn new(outcome: DonorEventOutcome) -> Applied {
        Applied {
            outcome,
            unfindable: None,
            forgotten: Vec::new(),
        }
    }
}

/// A donor that is near.
#[derive(Debug, Clone, PartialEq)]
pub struct Near {
    pub donor_id: Box<str>,
    /// The worker that holds its KV; None: a store that is no worker's.
    pub holder: Option<Arc<OwnerKey>>,
    /// As [`super::neighbours::Near::score`].
    pub score: f32,
}

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub streams: usize,
    pub donors: usize,
    pub namespaces: usize,
    pub bytes: usize,
}

impl Announced {
    #[must_use]
    pub fn new(dimensions: Option<usize>, capacity: Capacity) -> Announced {
        Announced {
            dimensions,
            capacity,
            length: AtomicUsize::new(0),
            kept: Mutex::default(),
        }
    }

    /// Takes an event, in the order of arrival.
    pub fn apply(&self, event: Event) -> Applied {
        let Event { at, change } = event;
        self.change(|work| {
            if !work.step(&at, matches!(change, Change::Reset)) {
                return;
            }
            match change {
                Change::Registered(announcement) => work.register(&at.stream, *announcement),
                Change::Evicted { donor_id, segments } => {
                    work.evict(&at.stream, &donor_id, segments.as_deref());
                }
                Change::Purged(scope) => work.purge(&at.stream, &scope),
                Change::Reset => {}
            }
        })
    }

    /// Takes note of an event that was refused. It has its place among the emitter's, and what it
    /// may have taken away is gone: the donor that it would have registered anew, or everything.
    pub fn lose(&self, lost: &Lost) -> Applied {
        let mut applied = self.change(|work| {
            if !work.step(&lost.at, false) {
                return;
            }
            match &lost.donor_id {
                Some(donor_id) => {
                    let donor = work.kept.by_id(&lost.at.stream, donor_id);
                    work.forget(donor, Forgotten::Gap);
                }
                None => work.forget_stream(&lost.at.stream, Forgotten::Gap),
            }
        });
        applied.outcome = DonorEventOutcome::Refused;
        applied
    }

    /// Forgets a worker that is no longer there: what it announced, and what others announced as
    /// lying there.
    pub fn forget_worker(&self, worker: &OwnerKey) -> Applied {
        self.change(|work| {
            work.forget_stream(worker, Forgotten::Withdrawn);
            let there = |entry: &kept::Entry| entry.holder.as_deref() == Some(worker);
            work.forget(work.kept.matching(there), Forgotten::Withdrawn);
            work.kept.drop_emitter(worker);
        })
    }

    /// The donors of a namespace that are nearest to a text, by the vectors of its segments.
    ///
    /// # Panics
    /// When these have other dimensions than the model's.
    #[must_use]
    pub fn nearest(
        &self,
        namespace: &AnnouncedNamespace,
        segments: &[Vector],
        wanted: usize,
    ) -> Vec<Near> {
        let Some(shelf) = self.kept.lock().shelves.get(namespace).map(Arc::clone) else {
            return Vec::new();
        };
        // Not under the lock: it looks at all vectors.
        let near = shelf.neighbours.nearest_donors(segments, wanted);
        let kept = self.kept.lock();
        let there = near.into_iter().filter_map(|near| {
            let entry = kept.donors.get(&near.sequence)?;
            Some(Near {
                donor_id: entry.id.clone(),
                holder: entry.holder.clone(),
                score: near.score,
            })
        });
        there.collect()
    }

    /// Whether any donor of the namespace can be found.
    #[must_use]
    pub fn has(&self, namespace: &AnnouncedNamespace) -> bool {
        self.kept.lock().shelves.contains_key(namespace)
    }

    /// Waits for nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length.load(Ordering::Relaxed) == 0
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        let kept = self.kept.lock();
        Counts {
            streams: kept.emitters.len(),
            donors: kept.donors.len(),
            namespaces: kept.shelves.len(),
            bytes: kept.bytes,
        }
    }

    fn change(&self, change: impl FnOnce(&mut Work<'_>)) -> Applied {
        let mut kept = self.kept.lock();
        let mut work = Work {
            announced: self,
            kept: &mut kept,
            applied: Applied::new(DonorEventOutcome::Applied),
        };
        change(&mut work);
        work.make_room();
        let applied = work.applied;
        self.length.store(kept.donors.len(), Ordering::Relaxed);
        applied
    }
}

/// One event while it is applied.
struct Work<'a> {
    announced: &'a Announced,
    kept: &'a mut Kept,
    applied: Applied,
}

impl Work<'_> {
    // Whether the event is to be applied.
    fn step(&mut self, at: &Position, is_reset: bool) -> bool {
        let step = self.kept.step(at, is_reset);
        let (outcome, is_applied) = match step {
            Step::Next | Step::Began => (DonorEventOutcome::Applied, true),
            Step::AfterGap => (DonorEventOutcome::AppliedAfterGap, true),
            Step::Duplicate => (DonorEventOutcome::Duplicate, false),
            Step::OldGeneration => (DonorEventOutcome::Refused, false),
        };
        self.applied.outcome = outcome;
        match step {
            Step::AfterGap => self.forget_stream(&at.stream, Forgotten::Gap),
            Step::Began => self.forget_stream(&at.stream, Forgotten::Generation),
            Step::Next | Step::Duplicate | Step::OldGeneration => {}
        }
        is_applied
    }

    fn register(&mut self, stream: &OwnerKey, announcement: Announcement) {
        let Announcement {
            donor_id,
            namespace,
            location,
            segments,
        } = announcement;
        let earlier = self.kept.by_id(stream, &donor_id);
        self.forget(earlier, Forgotten::Replaced);
        let findable = namespace.and_then(|namespace| Ok((namespace, self.vectors(segments)?)));
        match findable {
            Err(unfindable) => self.applied.unfindable = Some(unfindable),
            Ok((namespace, vectors)) => {
                let donor = NewEntry {
                    id: donor_id,
                    namespace,
                    location,
                    vectors,
                };
                self.kept.put(stream, donor);
                self.make_room_of(stream);
            }
        }
    }

    // Those that can be asked for.
    fn vectors(&self, segments: Vec<Segment>) -> Result<Vec<(u32, Vector)>, Unfindable> {
        let vectors = segments.into_iter();
        let vectors = vectors.filter_map(|segment| Some((segment.id, segment.vector?)));
        let mut vectors: Vec<_> = vectors.collect();
        if vectors.is_empty() {
            return Err(Unfindable::NoVector);
        }
        let dimensions = self.announced.dimensions.ok_or(Unfindable::NoModel)?;
        vectors.retain(|(_, vector)| vector.dimensions() == dimensions);
        vectors.truncate(SEGMENTS_MAX as usize);
        if vectors.is_empty() {
            return Err(Unfindable::OtherDimensions);
        }
        Ok(vectors)
    }

    fn evict(&mut self, stream: &OwnerKey, donor_id: &str, segments: Option<&[u32]>) {
        let Some(donor) = self.kept.by_id(stream, donor_id) else {
            return;
        };
        let is_whole = segments.is_none_or(|segments| self.kept.drop_segments(donor, segments));
        if is_whole {
            self.forget([donor], Forgotten::Withdrawn);
        }
    }

    fn purge(&mut self, stream: &OwnerKey, scope: &Scope) {
        let donors = match scope {
            Scope::Stream => self.kept.of_stream(stream),
            Scope::Location(location) => self.kept.matching(|entry| entry.location == *location),
            Scope::Worker(worker) => self.kept.matching(|entry| {
                let holder = entry.holder.as_ref();
                holder.is_some_and(|holder| holder.worker_id == *worker)
            }),
        };
        self.forget(donors, Forgotten::Withdrawn);
    }

    fn make_room_of(&mut self, stream: &OwnerKey) {
        let most = self.announced.capacity.donors_per_stream_max;
        let announced = self.kept.emitters.get(stream).map(|it| &it.announced);
        let oldest = announced.filter(|all| all.len() > most);
        let oldest = oldest.and_then(|all| all.first().copied());
        self.forget(oldest, Forgotten::Room);
    }

    fn make_room(&mut self) {
        let capacity = self.announced.capacity;
        while self.kept.donors.len() > capacity.donors_max || self.kept.bytes > capacity.bytes_max {
            let Some((&oldest, _)) = self.kept.donors.first_key_value() else {
                break;
            };
            self.forget([oldest], Forgotten::Room);
        }
        while self.kept.emitters.len() > capacity.streams_max {
            let Some(silent) = self.kept.most_silent() else {
                break;
            };
            self.forget_stream(&silent, Forgotten::Room);
            self.kept.drop_emitter(&silent);
        }
    }

    fn forget_stream(&mut self, stream: &OwnerKey, why: Forgotten) {
        let donors = self.kept.of_stream(stream);
        self.forget(donors, why);
    }

    fn forget(&mut self, donors: impl IntoIterator<Item = u64>, why: Forgotten) {
        let mut count = 0;
        for donor in donors {
            self.kept.drop_donor(donor);
            count += 1;
        }
        if count > 0 {
            self.applied.forgotten.push((why, count));
        }
    }
}
