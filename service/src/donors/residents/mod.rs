//! Which donors' blocks lie in the owners' device memory, by what the engines publish.
//!
//! ```text
//! engine -> View (what is there) -> changed() -> Ties of the owner -> words of donor and owner
//! writer -> tie()  ------------------------------^                    ^- look-ups and leases
//! ```
//!
//! Every donor in device memory is tied to the blocks that its tokens make. A tie is entered
//! before the view is asked for it, under the lock that changes come in by: so a block that goes
//! is seen by one of the two, whatever the threads do. Look-ups and leases read words alone.
//!
//! Locks: an owner's ties first, then the view's own, or a shard's to read tokens. Ties are wanted
//! by nobody who holds a lock of the catalog.

mod blocks;
#[cfg(test)]
mod tests;
mod ties;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use kvatlas_events::event::EngineHash;
use kvatlas_events::view::{self, Change, OwnHash, SourceId, View};
use parking_lot::{MutexGuard, RwLock};
use siphasher::sip128::SipHasher24;

pub(super) use self::ties::Ties;
use self::ties::{Ask, Tied};
use super::{
    catalog::{Donor, Shard},
    namespace::Namespace,
    owners::Owner,
    vocabulary::Medium,
};
use crate::leases::{Sighting, Watch};

/// Donors that get their chains, and changes that are taken in, in one turn of an owner's lock.
const TURN_MAX: u32 = 64;
/// Donors known by their blocks' names alone that one call looks at again.
const NAMED_PER_CALL_MAX: usize = 32;

/// Ties donors in device memory to the view of their owner's cache.
#[derive(Debug, Default)]
pub struct Residents {
    /// What every followed engine holds.
    pub view: Arc<View>,
    names: Names,
    sources: RwLock<HashMap<SourceId, Arc<Owner>>>,
}

impl Residents {
    /// The name under which blocks of a namespace are in the view; None: of sources without one.
    /// Tenant, adapter and multimodal hashes are no part of it.
    #[must_use]
    pub fn engine_namespace(&self, namespace: Option<&Namespace>) -> view::Namespace {
        self.names.of(namespace)
    }

    /// The owner's cache is in the view under this name from now on. What is known of it is in
    /// doubt until [`Self::set_exact`].
    ///
    /// A second source of one owner takes the place of the first.
    pub fn follow(&self, owner: &Arc<Owner>, source: SourceId, namespace: view::Namespace) {
        self.sources.write().insert(source, Arc::clone(owner));
        let mut ties = owner.ties.lock();
        ties.follow(source, namespace);
        owner.life.device.set(Watch::Doubtful);
        drop(ties);
        self.learn_shapes(owner, source);
    }

    /// What became of blocks of a source's device, after the view has it.
    ///
    /// However often blocks went and came in it, and however many of them donors share, each donor
    /// is seen to at most once for what went, and once for what is there now: what went goes first,
    /// and the view knows already what came of both.
    pub fn changed(&self, source: SourceId, changes: &[Change]) {
        let Some(owner) = self.owner(source) else {
            return;
        };
        if owner.ties.lock().is_empty() {
            return;
        }
        let is_stored = |change: &Change| matches!(change, Change::Stored(_));
        let has_stored = changes.iter().any(is_stored);
        if has_stored {
            self.learn_shapes(&owner, source);
        }
        let ask = self.ask();
        let mut ties = owner.ties.lock();
        if changes.contains(&Change::Cleared) && ties.follows(source) {
            ties.cleared();
        }
        let (mut gone, mut there) = (Vec::new(), Vec::new());
        for some in changes.chunks(TURN_MAX as usize) {
            for &change in some {
                let (own, list) = match change {
                    Change::Stored(own) => (own, &mut there),
                    Change::Removed { own, is_gone: _ } => (own, &mut gone),
                    Change::Cleared => continue,
                };
                // Most are no donor's. Of one that comes later the view is asked then.
                list.extend(ties.place(own).map(|place| (place, own)));
            }
            MutexGuard::bump(&mut ties);
        }
        take_turns(&mut ties, source, gone, Ties::removed);
        take_turns(&mut ties, source, there, |ties, own, turn| {
            ties.stored(&ask, own, turn);
        });
        if has_stored && ties.follows(source) {
            ties.read_names(&ask, NAMED_PER_CALL_MAX);
        }
    }

    /// Whether what the view says of the source is all that the engine published. Told before it
    /// ceases to be, and after it has become so.
    pub fn set_exact(&self, source: SourceId, is_exact: bool) {
        let Some(owner) = self.owner(source) else {
            return;
        };
        let ties = owner.ties.lock();
        if ties.follows(source) {
            owner.life.device.set(if is_exact {
                Watch::Exact
            } else {
                Watch::Doubtful
            });
        }
    }

    /// The source is no longer in the view.
    pub fn forget(&self, source: SourceId) {
        let Some(owner) = self.sources.write().remove(&source) else {
            return;
        };
        let mut ties = owner.ties.lock();
        if ties.follows(source) {
            owner.life.device.set(Watch::Unfollowed);
            ties.unfollow();
        }
    }

    /// Ties a donor that has become visible in this slot. `names` are the engine's of its full
    /// blocks, or none.
    pub(super) fn tie(&self, shard: &Arc<Shard>, donor: &Donor, slot: u32, names: Vec<EngineHash>) {
        if donor.medium != Medium::Device {
            return;
        }
        let tied = Tied::new(shard, donor, slot, names);
        donor
            .owner
            .ties
            .lock()
            .add(&self.ask(), donor.sequence, tied);
    }

    fn ask(&self) -> Ask<'_> {
        Ask {
            view: &self.view,
            names: &self.names,
        }
    }

    fn owner(&self, source: SourceId) -> Option<Arc<Owner>> {
        self.sources.read().get(&source).map(Arc::clone)
    }

    // Donors that lack a chain of a shape get it, some at a time: registrations wait in between.
    fn learn_shapes(&self, owner: &Owner, source: SourceId) {
        let ask = self.ask();
        let mut ties = owner.ties.lock();
        if !ties.learn_shapes(&ask, source) {
            return;
        }
        let mut first = 0;
        while let Some(next) = ties.chain_some(&ask, first..first + TURN_MAX) {
            first = next;
            MutexGuard::unlock_fair(ties);
            ties = owner.ties.lock();
            if !ties.follows(source) {
                return;
            }
        }
    }
}

/// Takes in what became of blocks, those before others first, some at a time: registrations wait in
/// between.
fn take_turns(
    ties: &mut MutexGuard<'_, Ties>,
    source: SourceId,
    mut blocks: Vec<(u32, OwnHash)>,
    mut take: impl FnMut(&mut Ties, OwnHash, u64),
) {
    blocks.sort_unstable();
    blocks.dedup();
    let turn = ties.begin_turn();
    for some in blocks.chunks(TURN_MAX as usize) {
        if !ties.follows(source) {
            return;
        }
        for &(_, own) in some {
            take(ties, own, turn);
        }
        MutexGuard::bump(ties);
    }
}

/// Lets a donor's ties go.
pub(super) fn part(donor: &Donor) {
    if donor.medium == Medium::Device {
        donor.owner.ties.lock().remove(donor.sequence);
    }
}

/// Why a donor in device memory cannot be leased, by what was seen of it.
pub(super) fn doubt(seen: Sighting) -> Option<&'static str> {
    match (seen.watch(), seen.live_tokens()) {
        (Watch::Unfollowed, _) => {
            Some("the donor lies in device memory, and its owner's KV events are not followed")
        }
        (Watch::Doubtful, _) => {
            Some("the donor lies in device memory, and its owner's KV events may have gaps")
        }
        (Watch::Exact, None) => {
            Some("no KV event has said that the donor's blocks are in device memory")
        }
        (Watch::Exact, Some(0)) => Some("the donor's blocks have left the device memory"),
        (Watch::Exact, Some(_)) => None,
    }
}

/// Names of namespaces in the view, under a key of this process: nobody can look for two prompts
/// whose blocks have one name.
#[derive(Debug)]
pub(super) struct Names {
    key: [u64; 2],
    unnamed: view::Namespace,
}

impl Default for Names {
    fn default() -> Names {
        let random = RandomState::new();
        let key = [random.hash_one(0), random.hash_one(1)];
        let unnamed = view::Namespace(keyed(key, &[]));
        Names { key, unnamed }
    }
}

impl Names {
    fn of(&self, namespace: Option<&Namespace>) -> view::Namespace {
        namespace.map_or(self.unnamed, |namespace| {
            view::Namespace(keyed(self.key, &namespace.engine_encoding()))
        })
    }

    /// Whether a source of this name can hold blocks of the namespace. One that has none is
    /// trusted by the name of its worker.
    fn can_hold(&self, source: view::Namespace, namespace: &Namespace) -> bool {
        source == self.unnamed || source == self.of(Some(namespace))
    }
}

fn keyed([one, other]: [u64; 2], bytes: &[u8]) -> u128 {
    let hash = SipHasher24::new_with_keys(one, other).hash(bytes);
    u128::from(hash.h1) << 64 | u128::from(hash.h2)
}
