//! What another provider says of its donors, one event at a time, in the domain's terms.

use super::namespace::AnnouncedNamespace;
use crate::donors::{neighbours::Vector, owners::OwnerKey, scope, vocabulary::Unfindable};

/// An event that has been checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub at: Position,
    pub change: Change,
}

/// Where an event stands among those of its emitter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Who emits it. Each has a numbering of its own.
    pub stream: OwnerKey,
    pub event_id: u64,
    /// The emitter's generation; None: that of the event before.
    pub generation: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    Registered(Box<Announcement>),
    Evicted {
        donor_id: Box<str>,
        /// None: the whole donor.
        segments: Option<Vec<u32>>,
    },
    Purged(Scope),
    /// A generation begins.
    Reset,
}

/// A donor as it is announced.
#[derive(Debug, Clone, PartialEq)]
pub struct Announcement {
    pub donor_id: Box<str>,
    /// Or why no look-up can be compared with it.
    pub namespace: Result<AnnouncedNamespace, Unfindable>,
    pub location: Location,
    pub segments: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    pub id: u32,
    pub vector: Option<Vector>,
}

/// Where a donor's KV lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The worker that holds it; None: a store that is no worker's.
    pub holder: Option<OwnerKey>,
    /// A hash of all that is said of the place.
    pub fingerprint: u64,
}

/// Which donors a purge is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Those whose KV this worker holds, whoever announced them.
    Worker(Box<str>),
    /// Those whose KV lies just there, whoever announced them.
    Location(u64),
    /// All of the emitter.
    Stream,
}

/// An event of which only the head was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    pub at: Position,
    /// The donor that it registers. None: it may have taken any of the emitter's away.
    pub donor_id: Option<Box<str>>,
}

/// Whether a caller may name all that an event is about: its emitter, the workers that hold the
/// donors, their tenant. Of an event that was not understood only the emitter is known.
#[must_use]
pub fn is_within(scope: &scope::Scope, at: &Position, change: Option<&Change>) -> bool {
    if scope.is_everything() {
        return true;
    }
    let may_name = |worker: &str| scope.workers.cover(worker);
    let of_change = match change {
        None | Some(Change::Evicted { .. } | Change::Purged(Scope::Stream) | Change::Reset) => true,
        Some(Change::Registered(announcement)) => {
            let holder = announcement.location.holder.as_ref();
            let namespace = announcement.namespace.as_ref();
            holder.is_none_or(|holder| may_name(&holder.worker_id))
                && namespace.map_or(true, |it| scope.namespaces.cover_tenant(&it.tenant_key))
        }
        Some(Change::Purged(Scope::Worker(worker))) => may_name(worker),
        // Whoever holds what lies there.
        Some(Change::Purged(Scope::Location(_))) => scope.workers == scope::Workers::All,
    };
    may_name(&at.stream.worker_id) && of_change
}
