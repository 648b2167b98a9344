//! A donor's tokens, packed to the bits that its largest token needs.

use kvatlas_kernels::prompt::{GROUP, PADDING_BYTES, unpack};

use super::align::common_prefix;

/// An immutable token sequence at 1 to 32 bits a token.
///
/// A donor of a 150,000-word vocabulary takes 18 bits a token, little more than half of a `u32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedTokens<Bytes = Box<[u8]>> {
    /// Little-endian bit string: token `i` begins at bit `i * width`. Behind the last group of
    /// tokens come [`PADDING_BYTES`], which may be anything.
    bytes: Bytes,
    length: usize,
    width: u8,
}

impl PackedTokens {
    pub fn pack(tokens: &[u32]) -> Self {
        let used = tokens.iter().fold(0, |used, token| used | token);
        let width = (u32::BITS - used.leading_zeros()).max(1) as usize;
        let length = tokens.len().div_ceil(GROUP) * width + PADDING_BYTES;
        let mut bytes = Vec::with_capacity(length + size_of::<u64>());
        let (mut waiting, mut bits) = (0_u64, 0);
        for &token in tokens {
            waiting |= u64::from(token) << bits;
            bits += width;
            if bits >= 32 {
                let full = (waiting & 0xffff_ffff) as u32;
                bytes.extend_from_slice(&full.to_le_bytes());
                waiting >>= 32;
                bits -= 32;
            }
        }
        bytes.extend_from_slice(&waiting.to_le_bytes());
        // Either zeros to come, or zeros past the last group's padding.
        bytes.resize(length, 0);
        Self {
            bytes: bytes.into_boxed_slice(),
            length: tokens.len(),
            width: u8::try_from(width).expect("a token has at most 32 bits"),
        }
    }

    /// None where `bytes` is not as long as so many tokens of this width make it.
    pub fn from_bytes(bytes: &[u8], length: usize, width: u8) -> Option<Self> {
        PackedTokens::of(bytes, length, width).map(|tokens| Self {
            bytes: tokens.bytes.into(),
            length,
            width,
        })
    }

    /// Bytes of so many tokens of this width, without the padding.
    pub(super) fn bytes_of(length: usize, width: u8) -> usize {
        length.div_ceil(GROUP) * usize::from(width)
    }
}

impl<'a> PackedTokens<&'a [u8]> {
    /// As [`PackedTokens::from_bytes`], without a copy.
    pub(super) fn of(bytes: &'a [u8], length: usize, width: u8) -> Option<Self> {
        let groups = length.div_ceil(GROUP);
        let expected = groups
            .checked_mul(usize::from(width))?
            .checked_add(PADDING_BYTES)?;
        let fits = (1..=32).contains(&width) && bytes.len() == expected;
        fits.then_some(Self {
            bytes,
            length,
            width,
        })
    }
}

impl<Bytes: AsRef<[u8]>> PackedTokens<Bytes> {
    /// What [`PackedTokens::from_bytes`] reads back: a little-endian bit string, and the bits of a
    /// token.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// Bits of a token.
    pub fn width(&self) -> u8 {
        self.width
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Replaces what `out` holds by the tokens; its capacity is reused.
    pub fn unpack_into(&self, out: &mut Vec<u32>) {
        out.resize(self.length.next_multiple_of(GROUP), 0);
        self.unpack_groups(0, out);
        out.truncate(self.length);
    }

    /// True when the first tokens are all of `prefix`.
    pub fn starts_with(&self, prefix: &[u32]) -> bool {
        self.has_at(0, prefix)
    }

    /// True when the tokens from `start` on begin with all of `wanted`.
    pub fn has_at(&self, start: usize, wanted: &[u32]) -> bool {
        /// Small enough to tell a stranger early, large enough to amortize the call.
        const STEP: usize = 64;
        if start.saturating_add(wanted.len()) > self.length {
            return false;
        }
        let mut buffer = [0; STEP + GROUP];
        wanted.chunks(STEP).enumerate().all(|(i, wanted)| {
            let at = start + i * STEP;
            let offset = at % GROUP;
            let there = &mut buffer[..(offset + wanted.len()).next_multiple_of(GROUP)];
            self.unpack_groups(at / GROUP, there);
            there[offset..][..wanted.len()] == *wanted
        })
    }

    /// How many tokens from `start` on are the first of `wanted`.
    pub fn shared_at(&self, start: usize, wanted: &[u32]) -> usize {
        /// Small enough to tell a stranger early, large enough to amortize the call.
        const STEP: usize = 64;
        let wanted = &wanted[..wanted.len().min(self.length.saturating_sub(start))];
        let mut buffer = [0; STEP + GROUP];
        let mut shared = 0;
        for wanted in wanted.chunks(STEP) {
            let at = start + shared;
            let offset = at % GROUP;
            let there = &mut buffer[..(offset + wanted.len()).next_multiple_of(GROUP)];
            self.unpack_groups(at / GROUP, there);
            let equal = common_prefix(&there[offset..], wanted);
            shared += equal;
            if equal < wanted.len() {
                break;
            }
        }
        shared
    }

    /// The byte where token `at` begins, or one shortly before; none where there is no such token.
    pub(super) fn byte_of(&self, at: usize) -> Option<&u8> {
        let first = at / GROUP * usize::from(self.width);
        self.as_bytes().get(first).filter(|_| at < self.length)
    }

    /// Fills `out`, a whole number of groups, from group `first` on.
    fn unpack_groups(&self, first: usize, out: &mut [u32]) {
        let width = usize::from(self.width);
        unpack(&self.as_bytes()[first * width..], width, out);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(tokens: &[u32]) {
        let packed = PackedTokens::pack(tokens);
        let mut out = vec![7; 3];
        packed.unpack_into(&mut out);
        assert_eq!(out, tokens);
        assert_eq!(packed.len(), tokens.len());
    }

    #[test]
    fn every_width_and_awkward_lengths_survive() {
        for width in 1..=32 {
            let largest = u32::MAX >> (32 - width);
            for length in [0, 1, 7, 8, 9, 63, 64, 65, 130] {
                let tokens: Vec<u32> = (0..length)
                    .map(|i| largest.wrapping_sub(i * 3) & largest)
                    .collect();
                check(&tokens);
            }
        }
    }

    #[test]
    fn the_width_is_that_of_the_largest_token() {
        let packed = PackedTokens::pack(&[151_935; 2048]);
        assert_eq!(packed.bytes.len(), 2048 * 18 / 8 + PADDING_BYTES);
    }

    #[test]
    fn a_prefix_is_told_from_a_near_prefix() {
        let tokens: Vec<u32> = (0..200).map(|i| i * 701).collect();
        let packed = PackedTokens::pack(&tokens);
        for length in [0, 1, 63, 64, 65, 128, 199, 200] {
            assert!(packed.starts_with(&tokens[..length]), "{length}");
            if length > 0 {
                let mut other = tokens[..length].to_vec();
                other[length - 1] += 1;
                assert!(!packed.starts_with(&other), "{length}");
            }
        }
        let longer: Vec<u32> = tokens.iter().copied().chain([0]).collect();
        assert!(!packed.starts_with(&longer), "padding is not a token");
    }

    #[test]
    fn tokens_are_compared_from_any_place() {
        let tokens: Vec<u32> = (0..200).map(|i| i * 701).collect();
        let packed = PackedTokens::pack(&tokens);
        for start in 0..200 {
            for length in [0, 1, 15, 16, 64, 71, 72] {
                let there = tokens.get(start..start + length);
                assert_eq!(
                    packed.has_at(start, there.unwrap_or(&[0; 72])),
                    there.is_some()
                );
                if let Some([.., last]) = there {
                    let mut other = tokens[start..start + length].to_vec();
                    other[length - 1] = last + 1;
                    assert!(!packed.has_at(start, &other), "{start} {length}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_tokens_survive(
            tokens in prop::collection::vec(any::<u32>(), 0..100),
            shift in 0u32..32,
        ) {
            check(&tokens.iter().map(|t| t >> shift).collect::<Vec<_>>());
        }
    }
}
