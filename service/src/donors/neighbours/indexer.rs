//! The thread that brings neighbours up to date behind the acknowledgement of a registration.

use std::{collections::BTreeMap, ops::Bound};

use parking_lot::{Condvar, Mutex};

use super::{Neighbours, RefusedVector, Vector};

/// Slots of one shard that are done before the next shard has its turn.
const TURN_SLOTS_MAX: usize = 64;

/// Where marked slots and what belongs into them come from.
///
/// A slot is marked, under the lock of its shard, by whatever changes it. So a mark is taken off
/// before the slot is read: a change in between marks it again.
pub trait Source {
    /// Tells shards apart.
    type Key: Copy + Ord;
    type Shard;

    /// `None` when there is no such shard any more.
    fn shard(&self, key: Self::Key) -> Option<Self::Shard>;

    fn neighbours<'a>(&self, shard: &'a Self::Shard) -> &'a Neighbours;

    /// Takes the mark off the next marked slot at or after this one, behind the last off the first
    /// of all ([`super::pending::SlotSet::next_from`]).
    fn take(&self, shard: &Self::Shard, from: u32) -> Option<u32>;

    /// The sequence of the donor that is in the slot now and its vectors, made outside any lock;
    /// `None` when the slot is empty. A donor may have no vectors.
    fn vectors(&self, shard: &Self::Shard, slot: u32) -> Option<(u64, Vec<Vector>)>;

    /// Is told of every slot that is done.
    fn done(&self, shard: &Self::Shard, slot: u32, outcome: Result<(), RefusedVector>);
}

/// Works off what is marked, one shard after another, and sleeps until the bell is rung; returns
/// when told to end.
pub fn run<S: Source>(source: &S, bell: &Bell<S::Key>) {
    let mut last = None;
    while let Some((key, from)) = bell.wait(last) {
        last = Some(key);
        let Some(shard) = source.shard(key) else {
            continue;
        };
        if let Some(next) = turn(source, bell, &shard, from) {
            bell.leave(key, next);
        }
    }
}

/// Gives a shard its turn; the slot to go on from when it is not done.
fn turn<S: Source>(source: &S, bell: &Bell<S::Key>, shard: &S::Shard, from: u32) -> Option<u32> {
    let mut from = from;
    for _ in 0..TURN_SLOTS_MAX {
        if bell.is_ended() {
            break;
        }
        let slot = source.take(shard, from)?;
        from = slot.wrapping_add(1);
        source.done(shard, slot, renew(source, shard, slot));
    }
    Some(from)
}

fn renew<S: Source>(source: &S, shard: &S::Shard, slot: u32) -> Result<(), RefusedVector> {
    let neighbours = source.neighbours(shard);
    match source.vectors(shard, slot) {
        Some((sequence, vectors)) => neighbours.update(slot, sequence, &vectors),
        None => {
            neighbours.remove(slot);
            Ok(())
        }
    }
}

/// Wakes the indexer, and tells it in which shards slots are marked: never more of them than there
/// are shards.
#[derive(Debug)]
pub struct Bell<K> {
    state: Mutex<BellState<K>>,
    rung: Condvar,
}

#[derive(Debug)]
struct BellState<K> {
    /// Shards that may have marked slots, and the slot to go on from.
    marked: BTreeMap<K, u32>,
    is_ended: bool,
}

impl<K> Default for Bell<K> {
    fn default() -> Bell<K> {
        let state = BellState {
            marked: BTreeMap::new(),
            is_ended: false,
        };
        Bell {
            state: Mutex::new(state),
            rung: Condvar::new(),
        }
    }
}

impl<K: Copy + Ord> Bell<K> {
    /// A slot of this shard was marked. Cheap, and may be rung by anybody at any time.
    pub fn ring(&self, shard: K) {
        self.state.lock().marked.entry(shard).or_insert(0);
        self.rung.notify_one();
    }

    /// The shard is gone.
    pub fn forget(&self, shard: K) {
        self.state.lock().marked.remove(&shard);
    }

    /// Lets [`run`] return after the slot that it is at.
    pub fn end(&self) {
        self.state.lock().is_ended = true;
        self.rung.notify_all();
    }

    fn is_ended(&self) -> bool {
        self.state.lock().is_ended
    }

    /// Puts a shard back that is not done.
    fn leave(&self, shard: K, from: u32) {
        self.state.lock().marked.insert(shard, from);
    }

    /// Takes the next shard after this one, behind the last the first of all; sleeps while there
    /// is none. `None` when it is time to end.
    ///
    /// It is taken before its marks are: what is marked meanwhile rings again.
    fn wait(&self, after: Option<K>) -> Option<(K, u32)> {
        let mut state = self.state.lock();
        while state.marked.is_empty() && !state.is_ended {
            self.rung.wait(&mut state);
        }
        if state.is_ended {
            return None;
        }
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = state.marked.range((start, Bound::Unbounded)).next();
        let &key = behind.or_else(|| state.marked.iter().next())?.0;
        state.marked.remove_entry(&key)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
    };

    use super::{
        super::{Shape, pending::SlotSet},
        *,
    };

    const SHAPE: Shape = Shape {
        dimensions: 4,
        segments_max: 1,
    };

    /// Donors by slot, and the slots that are marked.
    type Slots = (BTreeMap<u32, u64>, SlotSet);

    struct Shard {
        slots: Mutex<Slots>,
        neighbours: Neighbours,
    }

    impl Shard {
        fn set(&self, slot: u32, sequence: Option<u64>) {
            let mut slots = self.slots.lock();
            match sequence {
                Some(sequence) => slots.0.insert(slot, sequence),
                None => slots.0.remove(&slot),
            };
            slots.1.insert(slot);
        }
    }

    /// Rings when this many slots have been done.
    struct Fleet {
        shards: Vec<Arc<Shard>>,
        done: AtomicUsize,
        refused: AtomicUsize,
        enough: usize,
        bell: Bell<usize>,
    }

    impl Fleet {
        fn new(shards: usize, enough: usize) -> Fleet {
            let shard = |_| {
                Arc::new(Shard {
                    slots: Mutex::default(),
                    neighbours: Neighbours::new(SHAPE),
                })
            };
            Fleet {
                shards: (0..shards).map(shard).collect(),
                done: AtomicUsize::new(0),
                refused: AtomicUsize::new(0),
                enough,
                bell: Bell::default(),
            }
        }

        fn is_up_to_date(&self) -> bool {
            self.shards.iter().all(|shard| {
                let slots = shard.slots.lock();
                let near = shard.neighbours.nearest(&unit(), 1_000);
                let found: BTreeMap<u32, u64> =
                    near.iter().map(|near| (near.slot, near.sequence)).collect();
                slots.1.is_empty() && found == slots.0
            })
        }
    }

    impl Source for Fleet {
        type Key = usize;
        type Shard = Arc<Shard>;

        fn shard(&self, key: usize) -> Option<Arc<Shard>> {
            self.shards.get(key).cloned()
        }

        fn neighbours<'a>(&self, shard: &'a Arc<Shard>) -> &'a Neighbours {
            &shard.neighbours
        }

        fn take(&self, shard: &Arc<Shard>, from: u32) -> Option<u32> {
            let mut slots = shard.slots.lock();
            let slot = slots.1.next_from(from)?;
            slots.1.remove(slot);
            Some(slot)
        }

        fn vectors(&self, shard: &Arc<Shard>, slot: u32) -> Option<(u64, Vec<Vector>)> {
            let sequence = *shard.slots.lock().0.get(&slot)?;
            let vectors = match sequence {
                13 => vec![unit(), unit()],
                _ => vec![unit()],
            };
            Some((sequence, vectors))
        }

        fn done(&self, _: &Arc<Shard>, _: u32, outcome: Result<(), RefusedVector>) {
            self.refused
                .fetch_add(usize::from(outcome.is_err()), Ordering::Relaxed);
            if self.done.fetch_add(1, Ordering::Relaxed) + 1 == self.enough {
                self.bell.end();
            }
        }
    }

    fn unit() -> Vector {
        Vector::new(&[1.0, 2.0, 3.0, 4.0]).unwrap()
    }

    #[test]
    fn every_marked_slot_of_every_shard_is_brought_up_to_date() {
        let fleet = Fleet::new(3, 600);
        for (number, shard) in (0..).zip(&fleet.shards) {
            for slot in 0..200 {
                shard.set(
                    slot,
                    (slot % 3 != number).then_some(1_000 + u64::from(slot)),
                );
                fleet.bell.ring(number as usize);
            }
        }
        run(&fleet, &fleet.bell);
        assert!(fleet.is_up_to_date());
    }

    #[test]
    fn what_changes_meanwhile_is_done_again() {
        let fleet = Fleet::new(2, 401);
        thread::scope(|scope| {
            scope.spawn(|| run(&fleet, &fleet.bell));
            for slot in 0..200 {
                for (key, shard) in fleet.shards.iter().enumerate() {
                    shard.set(slot, Some(u64::from(slot) + 50));
                    fleet.bell.ring(key);
                }
                // Never more marks than slots to do: the last one ends the loop.
                while fleet.done.load(Ordering::Relaxed) < 2 * (slot as usize + 1) {
                    thread::yield_now();
                }
            }
            fleet.shards[0].set(7, None);
            fleet.bell.ring(0);
        });
        assert!(fleet.is_up_to_date());
    }

    #[test]
    fn one_that_is_refused_is_told_and_the_rest_go_on() {
        let fleet = Fleet::new(1, 20);
        for slot in 0..20 {
            fleet.shards[0].set(slot, Some(u64::from(slot)));
        }
        fleet.bell.ring(0);
        run(&fleet, &fleet.bell);
        assert_eq!(fleet.refused.load(Ordering::Relaxed), 1);
        assert_eq!(fleet.shards[0].neighbours.len(), 19);
    }

    /// So that a shard with a long backlog does not hold up the others; and none is met that was
    /// forgotten, or rung for and is not there.
    #[test]
    fn shards_have_their_turns_in_order() {
        let bell = Bell::default();
        for shard in [5, 2, 9, 2] {
            bell.ring(shard);
        }
        let mut met = Vec::new();
        let mut last = None;
        for _ in 0..5 {
            let (shard, from) = bell.wait(last).unwrap();
            bell.leave(shard, from + 64);
            met.push((shard, from));
            last = Some(shard);
        }
        assert_eq!(met, [(2, 0), (5, 0), (9, 0), (2, 64), (5, 64)]);
        bell.forget(9);
        assert_eq!(bell.wait(last), Some((2, 128)));
        bell.ring(7);
        bell.ring(5);
        assert_eq!(bell.wait(Some(2)), Some((5, 128)), "a ring keeps the place");
        assert_eq!(bell.wait(Some(9)), Some((7, 0)));

        let fleet = Fleet::new(2, 1);
        fleet.shards[1].set(3, Some(3));
        fleet.bell.ring(7);
        fleet.bell.ring(1);
        run(&fleet, &fleet.bell);
        assert!(fleet.is_up_to_date());
    }

    #[test]
    fn an_ended_bell_lets_it_return_at_once() {
        let fleet = Fleet::new(1, usize::MAX);
        fleet.shards[0].set(1, Some(1));
        fleet.bell.ring(0);
        fleet.bell.end();
        run(&fleet, &fleet.bell);
        assert_eq!(fleet.done.load(Ordering::Relaxed), 0);
    }
}
