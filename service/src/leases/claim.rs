//! What a donor lease hangs on: the donor's claim and the life of its owner, both lock-free.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::device::{Device, Residency};

/// Whether an owner still holds what it announced.
#[derive(Debug, Default)]
pub struct OwnerLife {
    /// How well the blocks in its device memory are known.
    pub device: Device,
    generation: AtomicU64,
    deadline_ms: AtomicU64,
}

impl OwnerLife {
    /// The owner says that `generation` lives until `deadline_ms`. False where a higher
    /// generation was announced before: then nothing changes.
    pub fn announce(&self, generation: u64, deadline_ms: u64) -> bool {
        if self.generation.fetch_max(generation, AcqRel) > generation {
            return false;
        }
        self.deadline_ms.store(deadline_ms, Release);
        true
    }

    /// A generation is known of before it is announced, from a donor that was registered in it: a
    /// lower one is refused from now on, and none is live until the next announcement.
    pub fn know(&self, generation: u64) {
        if self.generation.load(Acquire) < generation {
            self.deadline_ms.store(0, Release);
            self.generation.fetch_max(generation, AcqRel);
        }
    }

    /// The highest generation that is known; 0 before the first.
    pub fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Whether the last announcement lasts, of whatever generation.
    pub fn is_announced(&self, now_ms: u64) -> bool {
        now_ms < self.deadline_ms.load(Acquire)
    }

    /// The deadline is read before the generation, and written after it: so nobody pairs an old
    /// generation with the deadline of a new one.
    pub fn is_live(&self, generation: u64, now_ms: u64) -> bool {
        let deadline_ms = self.deadline_ms.load(Acquire);
        now_ms < deadline_ms && self.generation.load(Relaxed) == generation
    }
}

/// Whether a donor may still be leased, and by how many leases it is. In one word, so that
/// retiring an unleased donor and leasing it exclude each other.
#[derive(Debug, Default)]
pub struct Claim {
    /// Of a donor in device memory: how much of it is there.
    pub residency: Residency,
    state: AtomicU64,
}

const RETIRED: u64 = 1 << 63;

impl Claim {
    /// The donor is replaced or removed: its leases are stale, and no new one is given.
    pub fn retire(&self) {
        self.state.fetch_or(RETIRED, AcqRel);
    }

    /// Retires a donor that is neither leased nor retired; false where it is.
    pub fn retire_if_unleased(&self) -> bool {
        self.state
            .compare_exchange(0, RETIRED, AcqRel, Acquire)
            .is_ok()
    }

    pub fn is_retired(&self) -> bool {
        self.state.load(Acquire) & RETIRED != 0
    }

    /// Leases that count, those included that have run out and were not noticed yet.
    pub fn leases(&self) -> u64 {
        self.state.load(Acquire) & !RETIRED
    }
}

/// One lease's count on a claim, given back when dropped.
#[derive(Debug)]
pub(super) struct Hold {
    claim: Arc<Claim>,
}

impl Hold {
    /// None where the claim is retired.
    pub(super) fn take(claim: Arc<Claim>) -> Option<Self> {
        let count_one = |state| (state & RETIRED == 0).then_some(state + 1);
        claim.state.fetch_update(AcqRel, Acquire, count_one).ok()?;
        Some(Self { claim })
    }

    pub(super) fn claim(&self) -> &Claim {
        &self.claim
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let before = self.claim.state.fetch_sub(1, AcqRel);
        debug_assert!(before & !RETIRED > 0, "a count was given back twice");
    }
}
