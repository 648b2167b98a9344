//! The passages by id: which ones donors draw from, how popular each is, and which stay unseen.

use crate::{
    passages::Passage,
    random::{Random, Zipf},
};

/// A passage of the [`Library`].
pub type PieceId = u32;

/// Donors draw from the first 85 % of the file, negatives from the rest.
const SEEN_PERCENT: usize = 85;
/// A few passages are in many prompts, most in few, as retrieval over a real collection does it.
const POPULARITY_EXPONENT: f64 = 0.8;
/// The smallest prime that is not below the vocabulary: the modulus of a [`Change`].
const CHANGE_MODULUS: u64 = 151_937;

/// Passages, split into those that donors use and those that they never do.
#[derive(Debug)]
pub struct Library {
    /// The file's own; the further ones that donors use are made of them when they are needed.
    seen: Vec<Passage>,
    unseen: Vec<Passage>,
    /// How the token ids of each further generation of passages are changed.
    changes: Vec<Change>,
    popularity: Zipf,
    /// Which seen passage has which popularity rank.
    by_rank: Vec<PieceId>,
}

impl Library {
    /// Splits the passages. Where `distinct` asks for more seen passages than the file has, the
    /// further ones are derived from it by a one-to-one change of token ids, which keeps what the
    /// text repeats and shares nothing with the original.
    #[must_use]
    pub fn new(mut passages: Vec<Passage>, distinct: usize, random: &mut Random) -> Self {
        let unseen = passages.split_off(passages.len() * SEEN_PERCENT / 100);
        let seen = passages;
        let pool = distinct.max(seen.len());
        let generations = pool.div_ceil(seen.len()) as u64;
        let mut by_rank: Vec<PieceId> = (0..).take(pool).collect();
        random.shuffle(&mut by_rank);
        Self {
            changes: (1..generations).map(Change::new).collect(),
            popularity: Zipf::new(pool, POPULARITY_EXPONENT),
            seen,
            unseen,
            by_rank,
        }
    }

    /// Passages that donors draw from.
    #[must_use]
    pub fn seen_count(&self) -> usize {
        self.by_rank.len()
    }

    /// How many tokens a seen passage has.
    #[must_use]
    pub fn length(&self, piece: PieceId) -> usize {
        self.seen[piece as usize % self.seen.len()].len()
    }

    /// Appends the tokens of a seen passage.
    pub fn put(&self, piece: PieceId, into: &mut Vec<u32>) {
        let (generation, original) = (
            piece as usize / self.seen.len(),
            &self.seen[piece as usize % self.seen.len()],
        );
        match generation.checked_sub(1) {
            None => into.extend_from_slice(original),
            Some(change) => {
                let change = self.changes[change];
                into.extend(original.iter().map(|&token| change.of(token)));
            }
        }
    }

    /// Distinct seen passages, popular ones more often.
    pub fn draw_seen(&self, count: usize, random: &mut Random) -> Vec<PieceId> {
        assert!(count <= self.seen_count(), "arguments are checked");
        let mut drawn = Vec::with_capacity(count);
        while drawn.len() < count {
            let piece = self.by_rank[self.popularity.draw(random)];
            if !drawn.contains(&piece) {
                drawn.push(piece);
            }
        }
        drawn
    }

    /// Distinct passages that no donor has.
    pub fn draw_unseen(&self, count: usize, random: &mut Random) -> Vec<&[u32]> {
        assert!(count <= self.unseen.len(), "arguments are checked");
        let mut order: Vec<usize> = (0..self.unseen.len()).collect();
        random.shuffle(&mut order);
        order
            .into_iter()
            .take(count)
            .map(|index| self.unseen[index].as_slice())
            .collect()
    }

    /// How many passages [`Library::draw_seen`] and [`Library::draw_unseen`] can both give.
    #[must_use]
    pub fn draw_max(&self) -> usize {
        self.seen_count().min(self.unseen.len())
    }
}

/// `token -> (factor * token + offset) mod p`, which no two tokens share.
#[derive(Debug, Clone, Copy)]
struct Change {
    factor: u64,
    offset: u64,
}

impl Change {
    fn new(generation: u64) -> Self {
        let mut random = Random::new(generation);
        Self {
            factor: 1 + random.bits() % (CHANGE_MODULUS - 1),
            offset: random.bits() % CHANGE_MODULUS,
        }
    }

    fn of(self, token: u32) -> u32 {
        let moved = (u64::from(token) * self.factor + self.offset) % CHANGE_MODULUS;
        u32::try_from(moved).expect("below a modulus of 18 bits")
    }
}
