//! Donor leases: a bounded table of who may read which donor until when.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::claim::{Claim, Hold, OwnerLife};
use super::device::Sighting;
use super::{
    EPOCH_BYTES, HOLDER_BYTES_MAX, KIND_BYTES, LeaseKind, LeaseState, deadline_ms, remaining_ms,
    rest_of_id,
};

const RANDOM_BYTES: usize = 16;
const ID_BYTES: usize = KIND_BYTES + EPOCH_BYTES + RANDOM_BYTES;
/// How long after its deadline a lease that has ended is still told from one never given.
const REMEMBERED_MS: u64 = 60_000;
/// Leases that one turn of the lock ends: some 20 us.
const ENDED_PER_TURN_MAX: usize = 64;

/// Kind, epoch (little-endian) and 16 random bytes: nobody can guess another's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LeaseId([u8; ID_BYTES]);

impl AsRef<[u8]> for LeaseId {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Names what donors are kept apart by. Nothing here looks into it.
pub type Realm = [u8; 32];

#[derive(Debug)]
pub struct LeaseTerms<'a> {
    /// At most [`HOLDER_BYTES_MAX`] bytes.
    pub holder: &'a str,
    /// What the donor is one of, for whoever asks who may know of the lease.
    pub realm: Realm,
    pub ttl_ms: u32,
    pub claim: Arc<Claim>,
    pub owner: Arc<OwnerLife>,
    /// The owner's, when the donor was registered.
    pub generation: u64,
    /// Of a donor in device memory, from before the answer was made.
    pub sighting: Option<Sighting>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Grant {
    pub id: LeaseId,
    pub deadline_ms: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AcquireError {
    #[error("the lease table is full")]
    Full,
    #[error("the donor or some of it is gone, or its owner is not live in that generation")]
    Stale,
    #[error("the system gives no random bytes")]
    NoRandomness,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LeaseCounts {
    /// Those included that have run out and were not noticed yet.
    pub held: usize,
    pub capacity: usize,
}

/// How many leases there were, and how they ended, since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LeaseTotals {
    pub granted: u64,
    pub released: u64,
    pub expired: u64,
    pub stale: u64,
}

/// Gives and checks donor leases.
#[derive(Debug)]
pub struct DonorLeases {
    epoch: u64,
    table: Mutex<Table>,
}

type Key = [u8; RANDOM_BYTES];

/// A lease is in `entries` and in one of the two orders.
#[derive(Debug)]
struct Table {
    capacity: usize,
    entries: HashMap<Key, Entry>,
    /// By deadline.
    held: BTreeSet<(u64, Key)>,
    /// By deadline: those that are remembered, no more than may be held.
    ended: BTreeSet<(u64, Key)>,
    totals: LeaseTotals,
}

#[derive(Debug)]
struct Entry {
    holder: Box<str>,
    realm: Realm,
    deadline_ms: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Held {
        hold: Hold,
        owner: Arc<OwnerLife>,
        generation: u64,
        sighting: Option<Sighting>,
    },
    Ended(Ending),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ending {
    Expired,
    Stale,
}

impl DonorLeases {
    #[must_use]
    pub fn new(epoch: u64, capacity_max: usize) -> Self {
        let table = Table {
            capacity: capacity_max,
            entries: HashMap::new(),
            held: BTreeSet::new(),
            ended: BTreeSet::new(),
            totals: LeaseTotals::default(),
        };
        Self {
            epoch,
            table: Mutex::new(table),
        }
    }

    /// Leases a donor. A full table makes room by ending leases that have run out.
    ///
    /// # Errors
    /// Nothing is held after one.
    pub fn acquire(&self, now_ms: u64, terms: LeaseTerms<'_>) -> Result<Grant, AcquireError> {
        debug_assert!(
            terms.holder.len() <= HOLDER_BYTES_MAX,
            "the edge lets no longer one in"
        );
        let LeaseTerms {
            holder,
            realm,
            ttl_ms,
            claim,
            owner,
            generation,
            sighting,
        } = terms;
        let mut key: Key = [0; RANDOM_BYTES];
        getrandom::fill(&mut key).map_err(|_error| AcquireError::NoRandomness)?;
        let deadline_ms = deadline_ms(now_ms, ttl_ms);
        let mut table = self.table.lock();
        let is_there = sighting.is_none_or(|seen| seen.holds(&claim, &owner));
        if !is_there || !owner.is_live(generation, now_ms) {
            return Err(AcquireError::Stale);
        }
        if table.held.len() >= table.capacity {
            table.end_expired(now_ms);
        }
        if table.held.len() >= table.capacity {
            return Err(AcquireError::Full);
        }
        let hold = Hold::take(claim).ok_or(AcquireError::Stale)?;
        let state = State::Held {
            hold,
            owner,
            generation,
            sighting,
        };
        table.entries.insert(
            key,
            Entry {
                holder: holder.into(),
                realm,
                deadline_ms,
                state,
            },
        );
        table.held.insert((deadline_ms, key));
        table.totals.granted += 1;
        Ok(Grant {
            id: self.id(key),
            deadline_ms,
        })
    }

    /// The realm of a lease, for as long as anything is known of it.
    pub fn realm(&self, id: &[u8]) -> Option<Realm> {
        let key = rest_of_id(id, LeaseKind::Donor, self.epoch).ok()?;
        let table = self.table.lock();
        table.entries.get::<Key>(&key).map(|entry| entry.realm)
    }

    /// What the lease is. One that is found expired or stale ends here: it never comes back.
    pub fn validate(&self, now_ms: u64, id: &[u8], holder: Option<&str>) -> LeaseState {
        match rest_of_id(id, LeaseKind::Donor, self.epoch) {
            Ok(key) => self.table.lock().look(now_ms, key, holder),
            Err(state) => state,
        }
    }

    /// Moves the deadline of a valid lease to `ttl_ms` from now.
    pub fn renew(
        &self,
        now_ms: u64,
        id: &[u8],
        holder: &str,
        ttl_ms: u32,
    ) -> (LeaseState, Option<Grant>) {
        let key = match rest_of_id(id, LeaseKind::Donor, self.epoch) {
            Ok(key) => key,
            Err(state) => return (state, None),
        };
        let mut table = self.table.lock();
        let state = table.look(now_ms, key, Some(holder));
        if !matches!(state, LeaseState::Valid { .. }) {
            return (state, None);
        }
        let deadline_ms = deadline_ms(now_ms, ttl_ms);
        table.move_deadline(key, deadline_ms);
        let remaining_ms = remaining_ms(now_ms, deadline_ms).unwrap_or(0);
        (
            LeaseState::Valid { remaining_ms },
            Some(Grant {
                id: self.id(key),
                deadline_ms,
            }),
        )
    }

    /// Ends a valid lease. Says whether it did, and what the lease was before.
    pub fn release(&self, now_ms: u64, id: &[u8], holder: &str) -> (bool, LeaseState) {
        let key = match rest_of_id(id, LeaseKind::Donor, self.epoch) {
            Ok(key) => key,
            Err(state) => return (false, state),
        };
        let mut table = self.table.lock();
        let state = table.look(now_ms, key, Some(holder));
        let is_valid = matches!(state, LeaseState::Valid { .. });
        if is_valid {
            table.remove(key);
            table.totals.released += 1;
        }
        (is_valid, state)
    }

    /// Ends the leases that have run out and forgets those that are long over. Returns how many
    /// it ended; the others ended when somebody asked for them.
    pub fn sweep(&self, now_ms: u64) -> u64 {
        let mut ended = 0;
        loop {
            // The lock is let go in between: a burst of a hundred thousand takes milliseconds.
            let mut table = self.table.lock();
            let ended_now = table.end_expired(now_ms);
            let forgotten_now = table.forget_old(now_ms);
            drop(table);
            ended += ended_now as u64;
            if ended_now.max(forgotten_now) < ENDED_PER_TURN_MAX {
                return ended;
            }
        }
    }

    pub fn counts(&self) -> LeaseCounts {
        let table = self.table.lock();
        LeaseCounts {
            held: table.held.len(),
            capacity: table.capacity,
        }
    }

    pub fn totals(&self) -> LeaseTotals {
        self.table.lock().totals
    }

    fn id(&self, key: Key) -> LeaseId {
        let mut id = [0; ID_BYTES];
        id[0] = LeaseKind::Donor as u8;
        id[KIND_BYTES..KIND_BYTES + EPOCH_BYTES].copy_from_slice(&self.epoch.to_le_bytes());
        id[KIND_BYTES + EPOCH_BYTES..].copy_from_slice(&key);
        LeaseId(id)
    }
}

impl Table {
    fn look(&mut self, now_ms: u64, key: Key, holder: Option<&str>) -> LeaseState {
        let Some(entry) = self.entries.get(&key) else {
            return LeaseState::Unknown;
        };
        let is_forgotten = is_forgotten(now_ms, entry.deadline_ms);
        if !is_forgotten && holder.is_some_and(|holder| holder != &*entry.holder) {
            return LeaseState::NotHolder;
        }
        let state = entry.state_at(now_ms);
        if let (State::Held { .. }, Some(ending)) = (&entry.state, Ending::of(state)) {
            self.end(key, ending);
        }
        if is_forgotten {
            LeaseState::Unknown
        } else {
            state
        }
    }

    fn end(&mut self, key: Key, ending: Ending) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let order = (entry.deadline_ms, key);
        entry.state = State::Ended(ending);
        self.held.remove(&order);
        self.ended.insert(order);
        match ending {
            Ending::Expired => self.totals.expired += 1,
            Ending::Stale => self.totals.stale += 1,
        }
        if self.ended.len() > self.capacity
            && let Some((_deadline_ms, oldest)) = self.ended.pop_first()
        {
            self.entries.remove(&oldest);
        }
    }

    /// Ends what has run out, up to a bound; returns how many.
    fn end_expired(&mut self, now_ms: u64) -> usize {
        for ended in 0..ENDED_PER_TURN_MAX {
            match self.held.first() {
                Some(&(deadline_ms, key)) if deadline_ms <= now_ms => {
                    self.end(key, Ending::Expired);
                }
                _ => return ended,
            }
        }
        ENDED_PER_TURN_MAX
    }

    /// Drops what nobody needs to know any more, up to a bound; returns how many.
    fn forget_old(&mut self, now_ms: u64) -> usize {
        for forgotten in 0..ENDED_PER_TURN_MAX {
            match self.ended.first() {
                Some(&(deadline_ms, key)) if is_forgotten(now_ms, deadline_ms) => {
                    self.ended.pop_first();
                    self.entries.remove(&key);
                }
                _ => return forgotten,
            }
        }
        ENDED_PER_TURN_MAX
    }

    fn move_deadline(&mut self, key: Key, deadline_ms: u64) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        self.held.remove(&(entry.deadline_ms, key));
        self.held.insert((deadline_ms, key));
        entry.deadline_ms = deadline_ms;
    }

    fn remove(&mut self, key: Key) {
        let Some(entry) = self.entries.remove(&key) else {
            return;
        };
        self.held.remove(&(entry.deadline_ms, key));
    }
}

impl Entry {
    fn state_at(&self, now_ms: u64) -> LeaseState {
        let (claim, owner, generation, sighting) = match &self.state {
            State::Held {
                hold,
                owner,
                generation,
                sighting,
            } => (hold.claim(), owner, *generation, sighting),
            State::Ended(Ending::Expired) => return LeaseState::Expired,
            State::Ended(Ending::Stale) => return LeaseState::Stale,
        };
        let Some(remaining_ms) = remaining_ms(now_ms, self.deadline_ms) else {
            return LeaseState::Expired;
        };
        let is_there = sighting.is_none_or(|seen| seen.holds(claim, owner));
        if !is_there || claim.is_retired() || !owner.is_live(generation, now_ms) {
            return LeaseState::Stale;
        }
        LeaseState::Valid { remaining_ms }
    }
}

impl Ending {
    fn of(state: LeaseState) -> Option<Self> {
        match state {
            LeaseState::Expired => Some(Self::Expired),
            LeaseState::Stale => Some(Self::Stale),
            LeaseState::Valid { .. } | LeaseState::Unknown | LeaseState::NotHolder => None,
        }
    }
}

fn is_forgotten(now_ms: u64, deadline_ms: u64) -> bool {
    now_ms.saturating_sub(deadline_ms) >= REMEMBERED_MS
}
