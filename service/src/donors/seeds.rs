//! Seeds: a sample of a prompt's windows that does not depend on where in the prompt they stand.
//!
//! Two prompts that share a run of text share the seeds inside it, wherever the run lies in either.

/// Tokens in a seed's window, and the shortest run worth reporting.
pub(super) const WINDOW: usize = 16;
/// Tokens in the window of a short seed, which finds prompts whose longer runs are all broken.
pub(super) const SHORT_WINDOW: usize = 8;
/// One window in 2^4 is a seed: about 123 in a prompt of 2,048 tokens.
const SAMPLE_BITS: u32 = 4;
/// One short window in 2^6 is a short seed.
const SHORT_SAMPLE_BITS: u32 = 6;

/// Windows hashed at a time; a power of two.
const BLOCK: usize = 256;
/// Tokens that the windows of a block reach into.
const LEVEL: usize = BLOCK + WINDOW;

/// Keeps long and short seeds of one table apart.
const LONG_DOMAIN: u64 = 0x6a09_e667_f3bc_c908;
const SHORT_DOMAIN: u64 = 0xbb67_ae85_84ca_a73b;

/// A sampled window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seed {
    /// Where the window begins.
    pub(super) position: u32,
    /// Hash of the window's tokens alone.
    pub(super) key: u64,
}

/// A prompt's seeds, and what finding them leaves for other uses.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// In order of position.
    pub(super) seeds: Vec<Seed>,
    /// A cheap hash of every short window; tables take it through [`finish`].
    pub(super) short_hashes: Vec<u32>,
}

impl Scan {
    /// Replaces the contents by those of `tokens`.
    pub(super) fn scan(&mut self, tokens: &[u32]) {
        self.seeds.clear();
        self.short_hashes.clear();
        let short_windows = (tokens.len() + 1).saturating_sub(SHORT_WINDOW);
        let windows = (tokens.len() + 1).saturating_sub(WINDOW);
        for start in (0..short_windows).step_by(BLOCK) {
            let mut level = short_hashes(&tokens[start..]);
            self.short_hashes
                .extend_from_slice(&level[..BLOCK.min(short_windows - start)]);
            join_level::<8, 17>(&mut level);
            let hashes = &level[..BLOCK.min(windows.saturating_sub(start))];
            pick(hashes, SAMPLE_BITS, |picked| {
                let position = start + picked;
                self.seeds.push(Seed {
                    position: count_u32(position),
                    key: key(&tokens[position..position + WINDOW], LONG_DOMAIN),
                });
            });
        }
    }

    /// Replaces the seeds by the short seeds of the same tokens.
    pub(super) fn use_short(&mut self, tokens: &[u32]) {
        self.seeds.clear();
        for (block, hashes) in self.short_hashes.chunks(BLOCK).enumerate() {
            pick(hashes, SHORT_SAMPLE_BITS, |picked| {
                let position = block * BLOCK + picked;
                self.seeds.push(Seed {
                    position: count_u32(position),
                    key: key(&tokens[position..position + SHORT_WINDOW], SHORT_DOMAIN),
                });
            });
        }
    }
}

/// The cheap hash of one short window.
pub(super) fn short_hash(window: &[u32; SHORT_WINDOW]) -> u32 {
    let spread = window.map(spread);
    let pair = |i: usize| join(spread[i], 7, spread[i + 1]);
    let quad = |i: usize| join(pair(i), 13, pair(i + 2));
    join(quad(0), 23, quad(4))
}

/// Moves the influence of every bit of a cheap hash to the top, where tables and sampling look.
pub(super) fn finish(hash: u32) -> u32 {
    (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca77)
}

/// Calls `keep` with the places, at most [`BLOCK`], whose hash falls into the sample.
fn pick(hashes: &[u32], bits: u32, keep: impl FnMut(usize)) {
    // Written without a branch: a taken one in sixteen would be mispredicted each time.
    let mut picks = [0; BLOCK];
    let mut count = 0;
    for (place, &hash) in hashes.iter().enumerate() {
        picks[count % BLOCK] = place;
        count += usize::from(finish(hash) >> (u32::BITS - bits) == 0);
    }
    picks[..count].iter().copied().for_each(keep);
}

/// The cheap hash of every short window that begins in the first block of `tokens`. It decides
/// what is sampled, and is too short to be a key. Past the end the tokens count as zeros.
///
/// Each step joins neighbouring hashes into hashes of twice the tokens, so a window costs three
/// additions, and the loops have no dependence that keeps them from being vectorized.
fn short_hashes(tokens: &[u32]) -> [u32; LEVEL] {
    let mut level = [0; LEVEL];
    for (hash, &token) in level.iter_mut().zip(tokens) {
        *hash = spread(token);
    }
    join_level::<1, 7>(&mut level);
    join_level::<2, 13>(&mut level);
    join_level::<4, 23>(&mut level);
    level
}

fn join_level<const STEP: usize, const TURN: u32>(level: &mut [u32; LEVEL]) {
    for i in 0..LEVEL - STEP {
        level[i] = join(level[i], TURN, level[i + STEP]);
    }
}

fn spread(token: u32) -> u32 {
    let product = token.wrapping_add(1).wrapping_mul(0x9e37_79b1);
    product ^ (product >> 15)
}

fn join(left: u32, turn: u32, right: u32) -> u32 {
    left.rotate_left(turn).wrapping_add(right)
}

/// A strong hash of a window: sums of products in the manner of NH and wyhash.
fn key(window: &[u32], domain: u64) -> u64 {
    const SALTS: [(u64, u64); 4] = [
        (0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db),
        (0x8ebc_6af0_9c88_c6e3, 0x5899_65cc_7537_4cc3),
        (0x1d8e_4e27_c47d_124f, 0xeb44_acca_b455_d165),
        (0x9c6e_6877_736c_46e3, 0xd2a9_8b26_625e_ee7b),
    ];
    let (quads, _) = window.as_chunks::<4>();
    let sum = quads
        .iter()
        .zip(SALTS)
        .fold(domain, |sum, (&[a, b, c, d], (left, right))| {
            let ab = u64::from(a) | u64::from(b) << 32;
            let cd = u64::from(c) | u64::from(d) << 32;
            sum.rotate_left(23) ^ fold(ab ^ left, cd ^ right)
        });
    fold(sum ^ SALTS[0].0, domain ^ SALTS[3].1)
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ (product & 0xffff_ffff_ffff_ffff) as u64
}

/// A count or position of tokens as the index stores it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a prompt is bounded far below 2^32 tokens where requests are validated"
)]
pub(super) fn count_u32(count: usize) -> u32 {
    debug_assert!(u32::try_from(count).is_ok());
    count as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scan(tokens: &[u32]) -> Scan {
        let mut scan = Scan::default();
        scan.scan(tokens);
        scan
    }

    fn short_seeds(tokens: &[u32]) -> Vec<Seed> {
        let mut scan = scan(tokens);
        scan.use_short(tokens);
        scan.seeds
    }

    /// The seeds of `inner` are those of its surroundings that lie inside it.
    fn check_independence(before: &[u32], inner: &[u32], after: &[u32]) {
        let whole = [before, inner, after].concat();
        let inside = |seeds: Vec<Seed>, length: usize| -> Vec<(usize, u64)> {
            let window = before.len()..(before.len() + inner.len() + 1).saturating_sub(length);
            let seeds = seeds.iter().map(|seed| (seed.position as usize, seed.key));
            seeds
                .filter(|(position, _)| window.contains(position))
                .collect()
        };
        let alone = |seeds: Vec<Seed>| -> Vec<(usize, u64)> {
            seeds
                .iter()
                .map(|seed| (seed.position as usize + before.len(), seed.key))
                .collect()
        };
        assert_eq!(alone(scan(inner).seeds), inside(scan(&whole).seeds, WINDOW));
        assert_eq!(
            alone(short_seeds(inner)),
            inside(short_seeds(&whole), SHORT_WINDOW)
        );
    }

    proptest! {
        #[test]
        fn seeds_do_not_depend_on_position(
            before in prop::collection::vec(0_u32..1_000, 0..300),
            inner in prop::collection::vec(0_u32..1_000, 0..600),
            after in prop::collection::vec(0_u32..1_000, 0..40),
        ) {
            check_independence(&before, &inner, &after);
        }

        #[test]
        fn the_hash_of_one_window_is_that_of_all(
            tokens in prop::collection::vec(any::<u32>(), 0..600),
        ) {
            let one_by_one: Vec<u32> = tokens
                .windows(SHORT_WINDOW)
                .map(|window| short_hash(window.first_chunk().expect("eight tokens")))
                .collect();
            prop_assert_eq!(scan(&tokens).short_hashes, one_by_one);
        }
    }

    #[test]
    fn the_sample_is_as_dense_as_intended() {
        let tokens: Vec<u32> = (0_u32..200_000).map(|i| i.wrapping_mul(i) >> 7).collect();
        let seeds = scan(&tokens).seeds.len();
        assert!((11_500..13_500).contains(&seeds), "{seeds}, not one in 16");
        let short = short_seeds(&tokens).len();
        assert!((2_700..3_600).contains(&short), "{short}, not one in 64");
    }

    #[test]
    fn any_changed_token_changes_the_key() {
        let window: Vec<u32> = (0..16).collect();
        let mut keys: Vec<u64> = (0..16)
            .map(|i| {
                let mut changed = window.clone();
                changed[i] ^= 64;
                key(&changed, LONG_DOMAIN)
            })
            .chain([key(&window, LONG_DOMAIN), key(&window, SHORT_DOMAIN)])
            .collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 18);
    }
}
