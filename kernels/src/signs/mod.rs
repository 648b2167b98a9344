//! Sums of weights, each with the signs that the bits of a few words stand for: exact, so that
//! every kind of instruction gives the same.

#[cfg(target_arch = "x86_64")]
mod x86;

/// Signs that a word stands for.
pub const SIGNS_LANES: usize = u64::BITS as usize;
/// Terms whose weights an `i16` can add up.
const BLOCK: usize = 128;
const _: () = assert!(u8::MAX as usize * BLOCK <= i16::MAX as usize);

/// A weight, and the words whose bits say where it is added (1) and where subtracted (0).
pub type Signed<const WORDS: usize> = ([u64; WORDS], u8);

/// Adds the terms to `sums[word][bit]`.
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls what the processor was found to have")
)]
pub fn add_signed<const WORDS: usize>(
    terms: &[Signed<WORDS>],
    sums: &mut [[i32; SIGNS_LANES]; WORDS],
) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
        // SAFETY: the processor has what was just asked for.
        return unsafe { x86::add_signed_avx512(terms, sums) };
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { x86::add_signed_avx2(terms, sums) };
    }
    add_signed_scalar(terms, sums);
}

/// The specification of [`add_signed`]: as one would write it down.
pub fn add_signed_scalar<const WORDS: usize>(
    terms: &[Signed<WORDS>],
    sums: &mut [[i32; SIGNS_LANES]; WORDS],
) {
    for (words, weight) in terms {
        for (word, sums) in words.iter().zip(sums.iter_mut()) {
            for (bit, sum) in sums.iter_mut().enumerate() {
                let weight = i32::from(*weight);
                *sum += if word >> bit & 1 == 1 {
                    weight
                } else {
                    -weight
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(terms: &[Signed<3>]) {
        let start = [-9, 70_000, 0].map(|sum| [sum; SIGNS_LANES]);
        let mut wanted = start;
        add_signed_scalar(terms, &mut wanted);
        let mut best = start;
        add_signed(terms, &mut best);
        assert_eq!(best, wanted, "with the best instructions");
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            let mut avx2 = start;
            #[expect(unsafe_code, reason = "instructions that not every processor has")]
            // SAFETY: the processor has what was just asked for.
            unsafe {
                x86::add_signed_avx2(terms, &mut avx2);
            }
            assert_eq!(avx2, wanted, "with AVX2");
        }
    }

    proptest! {
        #[test]
        fn sums_are_as_specified(terms in prop::collection::vec(any::<Signed<3>>(), 0..400)) {
            check(&terms);
        }
    }

    #[test]
    fn the_largest_weights_with_one_sign_do_not_overflow() {
        for word in [0, u64::MAX, 1, 1 << 63] {
            check(&[([word; 3], u8::MAX); 3 * BLOCK + 1]);
        }
    }
}
