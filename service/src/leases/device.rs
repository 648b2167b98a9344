//! What is known of blocks in an owner's device memory, in words that are read without a lock.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

use super::claim::{Claim, OwnerLife};

/// How many of a donor's tokens lie on its owner's device, from its start, and how often some of
/// them went. Both in one word, so that nobody pairs the one with another time's other. One writer
/// at a time.
#[derive(Debug, Default)]
pub struct Residency {
    word: AtomicU64,
}

/// Bits of the tokens, which are kept with one added: zero is a donor of which nobody has said
/// that its blocks are there. The bits above are the round; it comes round after 10^12 removals.
const TOKEN_BITS: u32 = 24;
const TOKENS: u64 = (1 << TOKEN_BITS) - 1;
/// Tokens that can be told of one donor; a longer one counts as so long.
pub const LIVE_TOKENS_MAX: u32 = (1 << TOKEN_BITS) - 2;

impl Residency {
    /// None where nobody has said that any of the blocks is there.
    pub fn live_tokens(&self) -> Option<u32> {
        tokens_of(self.word.load(Acquire))
    }

    /// So many tokens are there: at least as many as before.
    pub fn grow(&self, tokens: u32) {
        let word = self.word.load(Acquire);
        debug_assert!(
            tokens_of(word).is_none_or(|before| before <= tokens),
            "what shrinks begins a round"
        );
        self.word.store(word & !TOKENS | field_of(tokens), Release);
    }

    /// Some went, and so many are left at most: leases end. Of what was never confirmed nothing is
    /// known still.
    pub fn shrink(&self, tokens: u32) {
        let word = self.word.load(Acquire);
        let left = tokens_of(word).map_or(0, |before| field_of(before.min(tokens)));
        self.begin_round(word, left);
    }

    /// Nothing is known any more.
    pub fn doubt(&self) {
        self.begin_round(self.word.load(Acquire), 0);
    }

    fn begin_round(&self, word: u64, field: u64) {
        let round = (word >> TOKEN_BITS).wrapping_add(1);
        self.word.store(round << TOKEN_BITS | field, Release);
    }
}

fn tokens_of(word: u64) -> Option<u32> {
    let tokens = u32::try_from(word & TOKENS).ok()?;
    tokens.checked_sub(1)
}

fn field_of(tokens: u32) -> u64 {
    u64::from(tokens.min(LIVE_TOKENS_MAX)) + 1
}

/// How well an owner's device is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Watch {
    /// Nobody listens to what its engine stores and removes.
    Unfollowed,
    /// Some of it may have been missed.
    Doubtful,
    /// All of it was heard.
    Exact,
}

/// How well an owner's device is known, and how often it ceased to be known. One writer at a time.
#[derive(Debug, Default)]
pub struct Device {
    word: AtomicU64,
}

const WATCH_BITS: u32 = 2;
const WATCH: u64 = (1 << WATCH_BITS) - 1;
const DOUBTFUL: u64 = 1;
const EXACT: u64 = 2;

impl Device {
    pub fn watch(&self) -> Watch {
        watch_of(self.word.load(Acquire))
    }

    /// Whatever was leased ends, unless the device is exact and stays so.
    pub fn set(&self, watch: Watch) {
        let word = self.word.load(Acquire);
        let left = u64::from(word & WATCH == EXACT && watch != Watch::Exact);
        let round = (word >> WATCH_BITS).wrapping_add(left);
        let watch = match watch {
            Watch::Unfollowed => 0,
            Watch::Doubtful => DOUBTFUL,
            Watch::Exact => EXACT,
        };
        self.word.store(round << WATCH_BITS | watch, Release);
    }
}

fn watch_of(word: u64) -> Watch {
    match word & WATCH {
        EXACT => Watch::Exact,
        DOUBTFUL => Watch::Doubtful,
        _ => Watch::Unfollowed,
    }
}

/// What somebody saw of a donor on its owner's device. A lease holds for as long as it stays true.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sighting {
    residency: u64,
    device: u64,
}

impl Sighting {
    pub fn take(claim: &Claim, owner: &OwnerLife) -> Self {
        Self {
            residency: claim.residency.word.load(Acquire),
            device: owner.device.word.load(Acquire),
        }
    }

    /// None where nobody has said that any of the blocks is there.
    pub fn live_tokens(self) -> Option<u32> {
        tokens_of(self.residency)
    }

    pub fn watch(self) -> Watch {
        watch_of(self.device)
    }

    /// Whether some of the donor was there, as sure as can be.
    pub fn is_sure(self) -> bool {
        self.watch() == Watch::Exact && self.live_tokens().is_some_and(|tokens| tokens > 0)
    }

    /// Whether all that was seen is still so, and always was since. What went began a round, also
    /// where it came again; within a round there is only more.
    pub fn holds(self, claim: &Claim, owner: &OwnerLife) -> bool {
        let now = Self::take(claim, owner);
        self.is_sure()
            && self.device == now.device
            && self.residency >> TOKEN_BITS == now.residency >> TOKEN_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A donor whose first `tokens` tokens are there, and its exact owner.
    fn scene(tokens: u32) -> (Claim, OwnerLife) {
        let (claim, owner) = (Claim::default(), OwnerLife::default());
        owner.device.set(Watch::Doubtful);
        owner.device.set(Watch::Exact);
        claim.residency.grow(tokens);
        (claim, owner)
    }

    #[track_caller]
    fn check(happens: impl FnOnce(&Claim, &OwnerLife), holds: bool, live_tokens: Option<u32>) {
        let (claim, owner) = scene(512);
        let seen = Sighting::take(&claim, &owner);
        assert_eq!(
            (seen.live_tokens(), seen.watch()),
            (Some(512), Watch::Exact)
        );
        happens(&claim, &owner);
        assert_eq!(seen.holds(&claim, &owner), holds);
        assert_eq!(claim.residency.live_tokens(), live_tokens);
    }

    #[test]
    fn a_sighting_holds_until_something_of_it_went() {
        check(|_, _| {}, true, Some(512));
        check(|claim, _| claim.residency.grow(1024), true, Some(1024));
        check(|claim, _| claim.residency.shrink(256), false, Some(256));
        check(|claim, _| claim.residency.shrink(512), false, Some(512));
        check(|claim, _| claim.residency.shrink(0), false, Some(0));
        check(|claim, _| claim.residency.doubt(), false, None);
        let comes_again = |claim: &Claim, _: &OwnerLife| {
            claim.residency.shrink(0);
            claim.residency.grow(512);
        };
        check(comes_again, false, Some(512));
    }

    #[test]
    fn a_sighting_ends_when_the_device_is_in_doubt_and_does_not_come_back() {
        for watch in [Watch::Doubtful, Watch::Unfollowed] {
            let leaves = |_: &Claim, owner: &OwnerLife| owner.device.set(watch);
            check(leaves, false, Some(512));
            let comes_back = |_: &Claim, owner: &OwnerLife| {
                owner.device.set(watch);
                owner.device.set(Watch::Exact);
            };
            check(comes_back, false, Some(512));
        }
        check(|_, owner| owner.device.set(Watch::Exact), true, Some(512));
    }

    #[test]
    fn only_what_is_there_for_sure_can_be_leased() {
        let (claim, owner) = scene(0);
        assert!(!Sighting::take(&claim, &owner).is_sure(), "nothing is left");
        claim.residency.doubt();
        assert!(!Sighting::take(&claim, &owner).is_sure(), "unconfirmed");
        claim.residency.grow(16);
        assert!(Sighting::take(&claim, &owner).is_sure());
        owner.device.set(Watch::Doubtful);
        let seen = Sighting::take(&claim, &owner);
        assert!(!seen.is_sure() && !seen.holds(&claim, &owner));
    }

    #[test]
    fn a_removal_confirms_nothing() {
        let claim = Claim::default();
        claim.residency.shrink(16);
        assert_eq!(claim.residency.live_tokens(), None);
    }

    #[test]
    fn a_donor_of_any_length_can_be_told() {
        for tokens in [0, 1, LIVE_TOKENS_MAX, u32::MAX] {
            let claim = Claim::default();
            claim.residency.grow(tokens);
            let expected = Some(tokens.min(LIVE_TOKENS_MAX));
            assert_eq!(claim.residency.live_tokens(), expected);
        }
    }
}
