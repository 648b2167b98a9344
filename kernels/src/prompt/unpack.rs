//! Tokens out of a little-endian bit string.

/// Numbers unpacked at a time. Eight of any width fill whole bytes.
pub const GROUP: usize = 8;
/// Every number is read as eight bytes, so the last group has this much behind it.
pub const PADDING_BYTES: usize = 8;

/// The specification of [`super::unpack`]: one number after the other.
///
/// # Panics
/// As [`super::unpack`].
pub fn unpack_scalar(bytes: &[u8], width: usize, out: &mut [u32]) {
    check(bytes, width, out);
    let mask = u64::from(u32::MAX) >> (32 - width);
    for (i, number) in out.iter_mut().enumerate() {
        let bit = i * width;
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[bit / 8..][..8]);
        let value = (u64::from_le_bytes(word) >> (bit % 8)) & mask;
        *number = (value & 0xffff_ffff) as u32;
    }
}

pub(super) fn check(bytes: &[u8], width: usize, out: &[u32]) {
    assert!((1..=32).contains(&width), "numbers of {width} bits");
    assert!(out.len().is_multiple_of(GROUP), "whole groups");
    let least = out.len() / GROUP * width + PADDING_BYTES;
    assert!(bytes.len() >= least, "{} bytes, not {least}", bytes.len());
}
