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
/// The smallest prime that is not below the vocabulary: the modulus of [`derive`].
const DERIVE_MODULUS: u64 = 151_937;

/// Passages, split into those that donors use and those that they never do.
#[derive(Debug)]
pub struct Library {
    seen: Vec<Passage>,
    unseen: Vec<Passage>,
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
        let mut seen = passages;
        let originals = seen.len();
        for index in originals..distinct {
            let derived = derive(&seen[index % originals], (index / originals) as u64);
            seen.push(derived);
        }
        let mut by_rank: Vec<PieceId> = (0..).take(seen.len()).collect();
        random.shuffle(&mut by_rank);
        Self {
            popularity: Zipf::new(seen.len(), POPULARITY_EXPONENT),
            seen,
            unseen,
            by_rank,
        }
    }

    /// Passages that donors draw from.
    #[must_use]
    pub fn seen_count(&self) -> usize {
        self.seen.len()
    }

    /// The tokens of a seen passage.
    #[must_use]
    pub fn tokens(&self, piece: PieceId) -> &[u32] {
        &self.seen[piece as usize]
    }

    /// Distinct seen passages, popular ones more often.
    pub fn draw_seen(&self, count: usize, random: &mut Random) -> Vec<PieceId> {
        assert!(count <= self.seen.len(), "arguments are checked");
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
        self.seen.len().min(self.unseen.len())
    }
}

/// The passage under `token -> (a * token + b) mod p`, with a and b drawn from `generation`.
fn derive(passage: &[u32], generation: u64) -> Passage {
    let mut random = Random::new(generation);
    let factor = 1 + random.bits() % (DERIVE_MODULUS - 1);
    let offset = random.bits() % DERIVE_MODULUS;
    passage
        .iter()
        .map(|&token| {
            let moved = (u64::from(token) * factor + offset) % DERIVE_MODULUS;
            u32::try_from(moved).expect("below a modulus of 18 bits")
        })
        .collect()
}
