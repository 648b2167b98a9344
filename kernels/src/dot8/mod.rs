//! Products of vectors of signed bytes: exact, so that every kind of instruction gives the same.

#[cfg(target_arch = "x86_64")]
mod x86;

/// Longest vectors: so short that no sum leaves an `i32`, whatever the bytes.
pub const DOT8_LENGTH_MAX: usize = 1 << 16;

/// Ways to multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
}

/// The best way that this machine was found to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dot8(Way);

impl Way {
    const ALL: &'static [Self] = &[
        Self::Scalar,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512Vnni,
    ];

    fn is_here(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
            }
        }
    }
}

impl Dot8 {
    #[must_use]
    pub fn best() -> Self {
        let best = Way::ALL.iter().rev().copied().find_map(Self::at);
        best.unwrap_or(Self(Way::Scalar))
    }

    fn at(way: Way) -> Option<Self> {
        way.is_here().then_some(Self(way))
    }

    /// The product of two vectors.
    ///
    /// # Panics
    /// When their lengths differ, or exceed [`DOT8_LENGTH_MAX`].
    #[must_use]
    #[inline]
    #[cfg_attr(
        target_arch = "x86_64",
        expect(unsafe_code, reason = "calls what the processor was found to have")
    )]
    pub fn dot(self, a: &[i8], b: &[i8]) -> i32 {
        assert_eq!(a.len(), b.len(), "vectors of one length");
        assert!(a.len() <= DOT8_LENGTH_MAX, "short vectors");
        match self.0 {
            Way::Scalar => dot8_scalar(a, b),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Dot8` of this way exists only where its instructions were found.
            Way::Avx2 => unsafe { x86::dot_avx2(a, b) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Way::Avx512Vnni => unsafe { x86::dot_avx512_vnni(a, b) },
        }
    }

    /// `out[i]`: the product of the query with row `i` of `rows`, which lie one behind another.
    ///
    /// # Panics
    /// When `rows` is not `out.len()` rows of the query's length, or those are too long.
    #[cfg_attr(
        target_arch = "x86_64",
        expect(unsafe_code, reason = "calls what the processor was found to have")
    )]
    pub fn rows(self, query: &[i8], rows: &[i8], out: &mut [i32]) {
        assert_eq!(
            rows.len(),
            query.len() * out.len(),
            "a row for each product"
        );
        assert!(
            (1..=DOT8_LENGTH_MAX).contains(&query.len()),
            "short vectors"
        );
        match self.0 {
            Way::Scalar => {
                for (out, row) in out.iter_mut().zip(rows.chunks_exact(query.len())) {
                    *out = dot8_scalar(query, row);
                }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Dot8` of this way exists only where its instructions were found.
            Way::Avx2 => unsafe { x86::rows_avx2(query, rows, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Way::Avx512Vnni => unsafe { x86::rows_avx512_vnni(query, rows, out) },
        }
    }
}

/// The specification: as one would write it down.
#[must_use]
pub fn dot8_scalar(a: &[i8], b: &[i8]) -> i32 {
    let pairs = a.iter().zip(b);
    pairs.map(|(&a, &b)| i32::from(a) * i32::from(b)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All ways that are here against the specification, on one vector and on rows of it.
    fn check(a: &[i8], b: &[i8]) {
        let wanted = dot8_scalar(a, b);
        for dot8 in Way::ALL.iter().copied().filter_map(Dot8::at) {
            assert_eq!(dot8.dot(a, b), wanted, "{dot8:?}");
            if a.is_empty() {
                continue;
            }
            let rows = [b, a, b].concat();
            let mut out = [7; 3];
            dot8.rows(a, &rows, &mut out);
            assert_eq!(out, [wanted, dot8_scalar(a, a), wanted], "{dot8:?}");
        }
    }

    proptest! {
        #[test]
        fn every_way_gives_the_scalar_product(
            a in prop::collection::vec(any::<i8>(), 0..400),
            b in prop::collection::vec(any::<i8>(), 400),
        ) {
            check(&a, &b[..a.len()]);
        }
    }

    #[test]
    fn no_sum_overflows_at_the_ends_of_the_bytes() {
        for (a, b) in [(-128, -128), (-128, 127), (127, 127), (127, -128)] {
            for length in [1, 31, 32, 63, 64, 65, 127, 128, 384, DOT8_LENGTH_MAX] {
                check(&vec![a; length], &vec![b; length]);
            }
        }
    }

    #[test]
    #[should_panic(expected = "vectors of one length")]
    fn vectors_of_two_lengths_are_refused() {
        let _ = Dot8::best().dot(&[1; 64], &[1; 63]);
    }

    #[test]
    #[should_panic(expected = "a row for each product")]
    fn half_a_row_is_refused() {
        Dot8::best().rows(&[1; 64], &[1; 100], &mut [0; 2]);
    }
}
