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
