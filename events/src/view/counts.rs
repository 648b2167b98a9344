//! What became of events, counted by reason.

use std::ops::AddAssign;

/// One reason. Those of blocks count blocks, the others events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Blocks new to their place.
    Stored,
    /// Blocks stored again: one reference more.
    Referenced,
    /// Blocks of a lower tier that were named by hash alone, and known.
    Bare,
    /// The same, not known.
    BareUnknown,
    /// Blocks that were indexed though hashes and tokens do not pair: they end together.
    Loose,
    /// Events whose hashes and tokens do not pair, and prove nothing that could be removed again.
    Mismatch,
    /// Events of a group that holds no prefixes.
    IgnoredKind,
    /// Events of a kind with an unknown name.
    UnknownKind,
    /// Events without any block.
    Empty,
    /// Events with blocks that are shorter than their group's: a last page.
    ShortPage,
    /// Events with blocks of a size that engines do not use (they use powers of two and multiples
    /// of eight) and that the source's namespace does not say: most likely a last page. Where the
    /// engine does use it, nothing of it is indexed until the namespace says so.
    OddSize,
    /// Events that name their parent among their blocks.
    SelfParent,
    /// Events that name a block twice.
    DuplicateHash,
    /// Events whose lists do not fit together.
    Malformed,
    /// Blocks held back because their parent is not known.
    OrphanHeld,
    /// Blocks held back before whose parent came.
    OrphanHealed,
    /// Blocks held back that were given up, for room or at a clear.
    OrphanDropped,
    /// Blocks whose hash had named another content before: the old pairing is gone.
    Conflict,
    /// Blocks or events refused because a limit is reached.
    Full,
    /// Blocks whose last reference was removed.
    Removed,
    /// Blocks that lost one of several references.
    Unreferenced,
    /// Hashes removed that are not held.
    RemovedUnknown,
    /// Hashes removed by a group that holds no prefixes.
    RemovedOther,
    /// Clears.
    Cleared,
}

impl Outcome {
    pub const ALL: [(Outcome, &'static str); 24] = [
        (Self::Stored, "stored"),
        (Self::Referenced, "referenced"),
        (Self::Bare, "bare"),
        (Self::BareUnknown, "bare_unknown"),
        (Self::Loose, "loose"),
        (Self::Mismatch, "mismatch"),
        (Self::IgnoredKind, "ignored_kind"),
        (Self::UnknownKind, "unknown_kind"),
        (Self::Empty, "empty"),
        (Self::ShortPage, "short_page"),
        (Self::OddSize, "odd_size"),
        (Self::SelfParent, "self_parent"),
        (Self::DuplicateHash, "duplicate_hash"),
        (Self::Malformed, "malformed"),
        (Self::OrphanHeld, "orphan_held"),
        (Self::OrphanHealed, "orphan_healed"),
        (Self::OrphanDropped, "orphan_dropped"),
        (Self::Conflict, "conflict"),
        (Self::Full, "full"),
        (Self::Removed, "removed"),
        (Self::Unreferenced, "unreferenced"),
        (Self::RemovedUnknown, "removed_unknown"),
        (Self::RemovedOther, "removed_other"),
        (Self::Cleared, "cleared"),
    ];
}

/// How often each [`Outcome`] came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; Outcome::ALL.len()]);

impl Counts {
    #[must_use]
    pub fn get(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize]
    }

    pub(super) fn add(&mut self, outcome: Outcome, count: usize) {
        self.0[outcome as usize] += count as u64;
    }

    pub(super) fn one(&mut self, outcome: Outcome) {
        self.add(outcome, 1);
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}
