//! Where a probe of an open-addressed table of 64-bit cells ends: several cells are told at once,
//! since the processor guesses wrong where such a loop ends.

#[cfg(target_arch = "x86_64")]
mod x86;

/// The index of the first cell that is zero or not below `least`; the number of cells where there
/// is none.
#[must_use]
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls what the processor was found to have")
)]
pub fn probe(cells: &[u64], least: u64) -> usize {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has what was just asked for.
        return unsafe { x86::probe_avx512(cells, least) };
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { x86::probe_avx2(cells, least) };
    }
    probe_scalar(cells, least)
}

/// The specification of [`probe`]: one cell after another.
#[must_use]
pub fn probe_scalar(cells: &[u64], least: u64) -> usize {
    let ends = |&cell: &u64| cell == 0 || cell >= least;
    cells.iter().position(ends).unwrap_or(cells.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(cells: &[u64], least: u64) {
        let wanted = probe_scalar(cells, least);
        assert_eq!(probe(cells, least), wanted, "with the best instructions");
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            #[expect(unsafe_code, reason = "instructions that not every processor has")]
            // SAFETY: the processor has what was just asked for.
            let avx2 = unsafe { x86::probe_avx2(cells, least) };
            assert_eq!(avx2, wanted, "with AVX2");
        }
    }

    fn cell() -> impl Strategy<Value = u64> {
        let edges = [0, 1, i64::MAX as u64, 1 << 63, u64::MAX];
        prop_oneof![
            1 => prop::sample::select(edges.to_vec()),
            9 => 1..20_u64,
            9 => (1..20_u64).prop_map(|low| 1 << 63 | low),
        ]
    }

    proptest! {
        #[test]
        fn a_probe_ends_as_specified(
            cells in prop::collection::vec(cell(), 0..40),
            least in cell(),
        ) {
            check(&cells, least);
            check(&cells, u64::MAX);
        }
    }

    #[test]
    fn every_place_of_the_end_is_found() {
        for length in 0..40 {
            for end in 0..=length {
                let mut cells = vec![5; length];
                if let Some(cell) = cells.get_mut(end) {
                    *cell = 0;
                    check(&cells, 7);
                    check(&cells, u64::MAX);
                }
                if let Some(cell) = cells.get_mut(end) {
                    *cell = 7;
                }
                check(&cells, 7);
            }
        }
    }
}
