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

/// Replaces `out` by the seeds of `tokens`, in order of position.
pub(super) fn sample(tokens: &[u32], out: &mut Vec<Seed>) {
    out.clear();
    sample_windows::<WINDOW>(tokens, out);
}

/// Replaces `out` by the short seeds of `tokens`, in order of position.
pub(super) fn sample_short(tokens: &[u32], out: &mut Vec<Seed>) {
    out.clear();
    sample_windows::<SHORT_WINDOW>(tokens, out);
}

/// Calls `visit` with the cheap hash of every short window, [`BLOCK`] of them at a time.
pub(super) fn hash_short_windows(tokens: &[u32], mut visit: impl FnMut(usize, &[u32])) {
    let windows = (tokens.len() + 1).saturating_sub(SHORT_WINDOW);
    for start in (0..windows).step_by(BLOCK) {
        let level = window_hashes::<SHORT_WINDOW>(&tokens[start..]);
        visit(start, &level[..BLOCK.min(windows - start)]);
    }
}

/// The cheap hash of one short window, as [`hash_short_windows`] computes it.
pub(super) fn hash_short_window(window: &[u32; SHORT_WINDOW]) -> u32 {
    let spread = window.map(spread);
    let pair = |i: usize| join(spread[i], 7, spread[i + 1]);
    let quad = |i: usize| join(pair(i), 13, pair(i + 2));
    finish(join(quad(0), 23, quad(4)))
}

fn sample_windows<const LENGTH: usize>(tokens: &[u32], out: &mut Vec<Seed>) {
    let (bits, domain) = if LENGTH == WINDOW {
        (SAMPLE_BITS, LONG_DOMAIN)
    } else {
        (SHORT_SAMPLE_BITS, SHORT_DOMAIN)
    };
    let windows = (tokens.len() + 1).saturating_sub(LENGTH);
    for start in (0..windows).step_by(BLOCK) {
        let level = window_hashes::<LENGTH>(&tokens[start..]);
        // Written without a branch: a taken one in sixteen would be mispredicted each time.
        let mut picks = [0_u8; BLOCK];
        let mut count = 0;
        for (i, hash) in (0..=u8::MAX).zip(&level[..BLOCK.min(windows - start)]) {
            picks[count % BLOCK] = i;
            count += usize::from(hash >> (u32::BITS - bits) == 0);
        }
        out.extend(picks[..count].iter().map(|&pick| {
            let position = start + usize::from(pick);
            let window = &tokens[position..position + LENGTH];
            Seed {
                position: count_u32(position),
                key: key(window, domain),
            }
        }));
    }
}

/// A cheap hash of every window that begins in the first block of `tokens`; decides what is
/// sampled, and is too short to be a key. Past the end the tokens count as zeros.
///
/// Each step joins neighbouring hashes into hashes of twice the tokens, so a window costs four
/// additions, and the loops have no dependence that keeps them from being vectorized.
fn window_hashes<const LENGTH: usize>(tokens: &[u32]) -> [u32; LEVEL] {
    let mut level = [0; LEVEL];
    for (hash, &token) in level.iter_mut().zip(tokens) {
        *hash = spread(token);
    }
    join_level::<1, 7>(&mut level);
    join_level::<2, 13>(&mut level);
    join_level::<4, 23>(&mut level);
    if LENGTH == WINDOW {
        join_level::<8, 17>(&mut level);
    }
    for hash in &mut level {
        *hash = finish(*hash);
    }
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

/// Moves the influence of every bit to the top, where sampling looks.
fn finish(hash: u32) -> u32 {
    (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca77)
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
