//! The passes against their specifications.

use proptest::prelude::*;

use super::*;

fn check_windows(tokens: &[u32], bits: u32) {
    let mut wanted = (vec![], vec![]);
    window_hashes_scalar(tokens, bits, &mut wanted.0, &mut wanted.1);
    let mut blocks = (vec![7], vec![7]);
    windows::in_blocks(tokens, bits, &mut blocks.0, &mut blocks.1);
    assert_eq!(blocks, wanted, "in blocks");
    let mut best = (vec![7], vec![7]);
    window_hashes(tokens, bits, &mut best.0, &mut best.1);
    assert_eq!(best, wanted, "with the best instructions");
    let mut short = vec![7];
    sample_hashes(&wanted.0, bits, &mut short);
    let is_sampled = |place: &u32| finish(wanted.0[*place as usize]) >> (32 - bits) == 0;
    let count = u32::try_from(wanted.0.len()).expect("few");
    let expected: Vec<u32> = (0..count).filter(is_sampled).collect();
    assert_eq!(short, expected, "short windows");
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") {
        let mut avx2 = (vec![7], vec![7]);
        #[expect(unsafe_code, reason = "instructions that not every processor has")]
        // SAFETY: the processor has what was just asked for.
        unsafe {
            x86::window_hashes_avx2(tokens, bits, &mut avx2.0, &mut avx2.1);
        }
        assert_eq!(avx2, wanted, "with AVX2");
    }
}

fn check_unpack(numbers: &[u32], width: usize) {
    let bits = numbers.len() * width;
    let mut bytes = vec![0_u8; bits.div_ceil(8) + PADDING_BYTES];
    for (i, number) in numbers.iter().enumerate() {
        for bit in (0..width).filter(|bit| number >> bit & 1 == 1) {
            let at = i * width + bit;
            bytes[at / 8] |= 1 << (at % 8);
        }
    }
    let mut out = vec![7; numbers.len()];
    unpack(&bytes, width, &mut out);
    assert_eq!(out, numbers, "with the best instructions");
    out.fill(7);
    unpack_scalar(&bytes, width, &mut out);
    assert_eq!(out, numbers, "one by one");
}

proptest! {
    #[test]
    fn windows_are_hashed_as_specified(
        tokens in prop::collection::vec(any::<u32>(), 0..700),
        bits in 1_u32..8,
    ) {
        check_windows(&tokens, bits);
    }

    #[test]
    fn numbers_of_every_width_are_unpacked(
        groups in 0_usize..9,
        width in 1_usize..=32,
        seed in any::<u32>(),
    ) {
        let number = |i: usize| {
            let i = u32::try_from(i).expect("few numbers");
            (i ^ seed).wrapping_mul(0x9e37_79b1) >> (32 - width)
        };
        check_unpack(&(0..groups * GROUP).map(number).collect::<Vec<_>>(), width);
    }
}

#[test]
#[should_panic(expected = "9 bytes, not 26")]
fn bytes_that_are_too_few_are_refused() {
    unpack(&[0; 9], 18, &mut [0; GROUP]);
}
