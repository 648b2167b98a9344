//! The thread that brings neighbours up to date behind the acknowledgement of a registration.

use parking_lot::{Condvar, Mutex};

use super::{Neighbours, RefusedVector, Vector};

/// Slots of one shard that are done before the next shard has its turn.
const TURN_SLOTS_MAX: usize = 64;

/// Where marked slots and what belongs into them come from.
///
/// A slot is marked, under the lock of its shard, by whatever changes it. So a mark is taken off
/// before the slot is read: a change in between marks it again.
pub trait Source {
    type Shard;

    fn shards(&self) -> Vec<Self::Shard>;

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
pub fn run(source: &impl Source, bell: &Bell) {
    let mut cursors = Cursors::default();
    while bell.wait() {
        while !bell.is_ended() && turn(source, bell, &mut cursors) > 0 {}
    }
}

/// Where the last turn ended in each shard, by the order in which they are listed: when that
/// changes a turn begins elsewhere, and still ends with every slot done.
#[derive(Debug, Default)]
struct Cursors(Vec<u32>);

/// Gives each shard its turn; the number of slots that were done.
fn turn(source: &impl Source, bell: &Bell, cursors: &mut Cursors) -> usize {
    let shards = source.shards();
    cursors.0.resize(shards.len(), 0);
    let mut done = 0;
    for (shard, cursor) in shards.iter().zip(&mut cursors.0) {
        for _ in 0..TURN_SLOTS_MAX {
            if bell.is_ended() {
                return done;
            }
            let Some(slot) = source.take(shard, *cursor) else {
                break;
            };
            *cursor = slot.wrapping_add(1);
            source.done(shard, slot, renew(source, shard, slot));
            done += 1;
        }
    }
    done
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

/// Wakes the indexer.
#[derive(Debug, Default)]
pub struct Bell {
    state: Mutex<BellState>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct BellState {
    is_rung: bool,
    is_ended: bool,
}

impl Bell {
    /// There is something to do. Cheap, and may be rung by anybody at any time.
    pub fn ring(&self) {
        self.state.lock().is_rung = true;
        self.rung.notify_one();
    }

    /// Lets [`run`] return after the slot that it is at.
    pub fn end(&self) {
        self.state.lock().is_ended = true;
        self.rung.notify_all();
    }

    fn is_ended(&self) -> bool {
        self.state.lock().is_ended
    }

    /// Sleeps until rung; false when it is time to end.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while !state.is_rung && !state.is_ended {
            self.rung.wait(&mut state);
        }
        state.is_rung = false;
        !state.is_ended
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
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
        bell: Bell,
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
        type Shard = Arc<Shard>;

        fn shards(&self) -> Vec<Arc<Shard>> {
            self.shards.clone()
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
            }
        }
        fleet.bell.ring();
        run(&fleet, &fleet.bell);
        assert!(fleet.is_up_to_date());
    }

    #[test]
    fn what_changes_meanwhile_is_done_again() {
        let fleet = Fleet::new(2, 401);
        thread::scope(|scope| {
            scope.spawn(|| run(&fleet, &fleet.bell));
            for slot in 0..200 {
                for shard in &fleet.shards {
                    shard.set(slot, Some(u64::from(slot) + 50));
                    fleet.bell.ring();
                }
                // Never more marks than slots to do: the last one ends the loop.
                while fleet.done.load(Ordering::Relaxed) < 2 * (slot as usize + 1) {
                    thread::yield_now();
                }
            }
            fleet.shards[0].set(7, None);
            fleet.bell.ring();
        });
        assert!(fleet.is_up_to_date());
    }

    #[test]
    fn one_that_is_refused_is_told_and_the_rest_go_on() {
        let fleet = Fleet::new(1, 20);
        for slot in 0..20 {
            fleet.shards[0].set(slot, Some(u64::from(slot)));
        }
        fleet.bell.ring();
        run(&fleet, &fleet.bell);
        assert_eq!(fleet.refused.load(Ordering::Relaxed), 1);
        assert_eq!(fleet.shards[0].neighbours.len(), 19);
    }

    #[test]
    fn an_ended_bell_lets_it_return_at_once() {
        let fleet = Fleet::new(1, usize::MAX);
        fleet.shards[0].set(1, Some(1));
        fleet.bell.ring();
        fleet.bell.end();
        run(&fleet, &fleet.bell);
        assert_eq!(fleet.done.load(Ordering::Relaxed), 0);
    }
}
