//! One batch of events as it is understood: what was stored, removed or cleared, in the order sent.

/// An engine's own name of a block: the low 64 bits of its digest. An integer is taken as it is
/// (a negative one by its bits), bytes by their last eight, big endian. It names a block inside
/// one engine only; two engines' names are never compared.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct EngineHash(pub u64);

/// What one payload says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch<'a> {
    /// Seconds since the epoch by the engine's clock; for people, decides nothing.
    pub sent_at_s: f64,
    /// The data-parallel rank, where the payload names one.
    pub rank: Option<u32>,
    /// The events that are well formed, in the order sent.
    pub events: Vec<Event<'a>>,
    /// Those that are not, and were left out.
    pub rejected: Rejected,
}

/// How many events of a batch were left out, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// Of a type that is not known.
    pub unknown: u32,
    /// Of a known type, with a value that cannot be.
    pub malformed: u32,
    /// One of those was no store, and came after the last clear: blocks may be gone that nobody
    /// else told of.
    pub may_hide_removal: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    Stored(Stored<'a>),
    Removed(Removed),
    /// All groups and media of the worker and rank that sent it.
    Cleared,
}

/// Blocks that came into a cache, consecutive ones of one chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored<'a> {
    pub hashes: Vec<EngineHash>,
    pub parent: Option<EngineHash>,
    /// The tokens of all blocks, one after the other. Of bigram pairs the first elements.
    pub tokens: Vec<u32>,
    /// The second element of the last bigram pair: the window of a block is one token longer then.
    pub bigram_end: Option<u32>,
    /// Tokens a block; 0 where an offloading tier does not say.
    pub block_size: u32,
    pub medium: Medium,
    /// The adapter that the blocks were computed with.
    pub adapter: Option<Adapter<'a>>,
    /// The cache salt where the event itself names it (SGLang).
    pub salt: Option<&'a str>,
    /// What else went into each block's hash: one for each block, or empty.
    pub extra: Vec<Extra<'a>>,
    pub group: Option<u32>,
    pub kind: Kind,
    /// Tokens beyond the blocks that their hashes cover (a drafter's look-ahead).
    pub lookahead: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    pub hashes: Vec<EngineHash>,
    pub medium: Medium,
    pub group: Option<u32>,
}

/// By name where there is one, else by the engine's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Adapter<'a> {
    Name(&'a str),
    Id(i64),
}

/// What went into a block's hash besides its tokens and its parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra<'a> {
    pub salt: Option<&'a str>,
    /// Items of other media that begin at an offset from the block's start (it may be negative).
    pub items: Vec<(&'a str, i64)>,
}

/// Where blocks lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Medium {
    /// The engine's device memory; also where none is named.
    #[default]
    Device,
    /// The host's memory.
    Host,
    /// Disks, file systems, object stores, and what is not known.
    Disk,
}

/// What kind of cache group stored blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Not said: taken as attention.
    Absent,
    /// Full, MLA and sink full attention: a hash pairs with a block.
    Attention,
    /// Sliding windows, state-space layers and the like: never a prefix.
    Other,
    /// A kind with a name that is not known: never a prefix, and counted.
    Unknown,
}
