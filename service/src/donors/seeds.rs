//! Seeds: a sample of a prompt's windows that does not depend on where in the prompt they stand.
//!
//! Two prompts that share a run of text share the seeds inside it, wherever the run lies in either.

pub(super) use kvatlas_kernels::prompt::{SHORT_WINDOW, WINDOW, finish, short_hash};
use kvatlas_kernels::prompt::{sample_hashes, window_hashes};

/// One window in 2^4 is a seed: about 123 in a prompt of 2,048 tokens.
const SAMPLE_BITS: u32 = 4;
/// One short window in 2^6 is a short seed.
const SHORT_SAMPLE_BITS: u32 = 6;

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
    sample: Vec<u32>,
}

impl Scan {
    /// Replaces the contents by those of `tokens`.
    pub(super) fn scan(&mut self, tokens: &[u32]) {
        window_hashes(
            tokens,
            SAMPLE_BITS,
            &mut self.short_hashes,
            &mut self.sample,
        );
        self.seeds.clear();
        self.seeds.extend(self.sample.iter().map(|&position| Seed {
            position,
            key: key(&tokens[position as usize..][..WINDOW], LONG_DOMAIN),
        }));
    }

    /// Replaces the seeds by the short seeds of the same tokens.
    pub(super) fn use_short(&mut self, tokens: &[u32]) {
        self.seeds.clear();
        sample_hashes(&self.short_hashes, SHORT_SAMPLE_BITS, &mut self.sample);
        self.seeds.extend(self.sample.iter().map(|&position| Seed {
            position,
            key: key(&tokens[position as usize..][..SHORT_WINDOW], SHORT_DOMAIN),
        }));
    }
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
