//! Cheap hashes of all windows of a prompt, and the sample that they decide.

/// Tokens in a window that may be sampled.
pub const WINDOW: usize = 16;
/// Tokens in a short window.
pub const SHORT_WINDOW: usize = 8;

/// Windows hashed at a time; a whole number of [`PICKED`].
const BLOCK: usize = 256;
/// Tokens that the windows of a block reach into.
const LEVEL: usize = BLOCK + WINDOW;
/// Windows picked from at a time: one bit each.
const PICKED: usize = u64::BITS as usize;

/// The cheap hash of one short window.
#[must_use]
#[inline]
pub fn short_hash(window: &[u32; SHORT_WINDOW]) -> u32 {
    let spread = window.map(spread);
    let pair = |i: usize| join(spread[i], 7, spread[i + 1]);
    let quad = |i: usize| join(pair(i), 13, pair(i + 2));
    join(quad(0), 23, quad(4))
}

/// Moves the influence of every bit of a cheap hash to the top, where tables and sampling look.
#[must_use]
#[inline]
pub fn finish(hash: u32) -> u32 {
    (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca77)
}

/// The specification of [`super::window_hashes`]: one window after the other.
///
/// # Panics
/// As [`super::window_hashes`].
pub fn window_hashes_scalar(
    tokens: &[u32],
    sample_bits: u32,
    short_hashes: &mut Vec<u32>,
    sample: &mut Vec<u32>,
) {
    assert!(
        (1..32).contains(&sample_bits),
        "a sample of 2^{sample_bits}"
    );
    short_hashes.clear();
    short_hashes.extend(
        tokens
            .windows(SHORT_WINDOW)
            .filter_map(|window| Some(short_hash(window.first_chunk()?))),
    );
    sample.clear();
    let halves = short_hashes
        .iter()
        .zip(short_hashes.iter().skip(SHORT_WINDOW));
    for (place, (&left, &right)) in (0..).zip(halves) {
        if finish(join(left, 17, right)) >> (u32::BITS - sample_bits) == 0 {
            sample.push(place);
        }
    }
}

/// As [`window_hashes_scalar`], in steps that have no dependence that keeps the compiler from
/// vectorizing them: each joins neighbouring hashes into hashes of twice the tokens, so that a
/// window costs four additions.
#[inline(always)]
pub(super) fn in_blocks(
    tokens: &[u32],
    sample_bits: u32,
    short_hashes: &mut Vec<u32>,
    sample: &mut Vec<u32>,
) {
    assert!(
        (1..32).contains(&sample_bits),
        "a sample of 2^{sample_bits}"
    );
    let short_windows = (tokens.len() + 1).saturating_sub(SHORT_WINDOW);
    let windows = (tokens.len() + 1).saturating_sub(WINDOW);
    short_hashes.clear();
    sample.clear();
    for start in (0..short_windows).step_by(BLOCK) {
        let mut level = [0; LEVEL];
        spread_all(&tokens[start..], &mut level);
        join_level::<1, 7>(&mut level);
        join_level::<2, 13>(&mut level);
        join_level::<4, 23>(&mut level);
        let short = BLOCK.min(short_windows - start);
        short_hashes.extend_from_slice(&level[..short]);
        join_level::<8, 17>(&mut level);
        let count = BLOCK.min(windows.saturating_sub(start));
        pick(&level[..count], start, sample_bits, sample);
    }
}

/// Past the end the tokens count as zeros.
#[inline(always)]
fn spread_all(tokens: &[u32], level: &mut [u32; LEVEL]) {
    if let Some(tokens) = tokens.first_chunk::<LEVEL>() {
        for (hash, &token) in level.iter_mut().zip(tokens) {
            *hash = spread(token);
        }
    } else {
        for (hash, &token) in level.iter_mut().zip(tokens) {
            *hash = spread(token);
        }
    }
}

/// Adds the places, counted from `start`, of the hashes that fall into the sample.
#[inline(always)]
pub(super) fn pick(hashes: &[u32], start: usize, bits: u32, sample: &mut Vec<u32>) {
    for (at, chunk) in (start..).step_by(PICKED).zip(hashes.chunks(PICKED)) {
        let mut picked = if let Some(chunk) = chunk.first_chunk::<PICKED>() {
            picked_of(chunk, bits)
        } else {
            picked_of(chunk, bits)
        };
        let base = u32::try_from(at).expect("a prompt has less than 2^32 tokens");
        while picked != 0 {
            sample.push(base + picked.trailing_zeros());
            picked &= picked - 1;
        }
    }
}

/// A bit for each hash that falls into the sample.
#[inline(always)]
fn picked_of(hashes: &[u32], bits: u32) -> u64 {
    let mut picked = 0_u64;
    for (i, &hash) in hashes.iter().enumerate() {
        picked |= u64::from(finish(hash) >> (u32::BITS - bits) == 0) << i;
    }
    picked
}

#[inline(always)]
fn join_level<const STEP: usize, const TURN: u32>(level: &mut [u32; LEVEL]) {
    for i in 0..LEVEL - STEP {
        level[i] = join(level[i], TURN, level[i + STEP]);
    }
}

#[inline(always)]
fn spread(token: u32) -> u32 {
    let product = token.wrapping_add(1).wrapping_mul(0x9e37_79b1);
    product ^ (product >> 15)
}

#[inline(always)]
fn join(left: u32, turn: u32, right: u32) -> u32 {
    left.rotate_left(turn).wrapping_add(right)
}
