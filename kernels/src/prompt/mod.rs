//! Passes over the tokens of prompts: hashes of their windows, and tokens unpacked from bits.
//!
//! The same code is compiled for the instructions that a processor may have; which of it runs is
//! chosen at run time. [`window_hashes_scalar`] and [`unpack_scalar`] are the specification.

mod unpack;
mod windows;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use unpack::{GROUP, PADDING_BYTES, unpack_scalar};
pub use windows::{SHORT_WINDOW, WINDOW, finish, short_hash, window_hashes_scalar};

/// Replaces `short_hashes` by the hash of every window of [`SHORT_WINDOW`] tokens, and `sample` by
/// where those windows of [`WINDOW`] tokens begin whose hash falls into the sample of one in
/// 2^`sample_bits`, in rising order.
///
/// # Panics
/// When `sample_bits` is not 1 to 31, or a place does not fit a `u32`.
pub fn window_hashes(
    tokens: &[u32],
    sample_bits: u32,
    short_hashes: &mut Vec<u32>,
    sample: &mut Vec<u32>,
) {
    #[cfg(target_arch = "x86_64")]
    if x86::window_hashes(tokens, sample_bits, short_hashes, sample) {
        return;
    }
    window_hashes_scalar(tokens, sample_bits, short_hashes, sample);
}

/// Replaces `sample` by the places of those hashes, through [`finish`], that fall into the sample
/// of one in 2^`sample_bits`, in rising order.
///
/// # Panics
/// As [`window_hashes`].
pub fn sample_hashes(hashes: &[u32], sample_bits: u32, sample: &mut Vec<u32>) {
    assert!(
        (1..32).contains(&sample_bits),
        "a sample of 2^{sample_bits}"
    );
    sample.clear();
    #[cfg(target_arch = "x86_64")]
    if x86::pick(hashes, sample_bits, sample) {
        return;
    }
    windows::pick(hashes, 0, sample_bits, sample);
}

/// Fills `out`, a whole number of groups of [`GROUP`], with little-endian numbers of `width` bits.
///
/// # Panics
/// When `width` is not 1 to 32, `out` has another length, or `bytes` are not longer than the groups
/// by at least [`PADDING_BYTES`].
pub fn unpack(bytes: &[u8], width: usize, out: &mut [u32]) {
    #[cfg(target_arch = "x86_64")]
    if x86::unpack(bytes, width, out) {
        return;
    }
    unpack_scalar(bytes, width, out);
}

#[cfg(test)]
mod tests;
