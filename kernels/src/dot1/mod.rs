//! Products of a vector of signed bytes with vectors of bits, sixteen of them side by side: exact,
//! so that every kind of instruction gives the same.

#[cfg(target_arch = "x86_64")]
mod x86;

use crate::dot8::DOT8_LENGTH_MAX;

/// Vectors of bits that lie side by side.
pub const DOT1_LANES: usize = 16;
/// Elements in a word of each of them.
pub const DOT1_WORD: usize = u32::BITS as usize;
/// Elements that lie in one bit of a word's bytes, and that are multiplied in one go.
const QUAD: usize = size_of::<u32>();

/// A word of each of the vectors that lie side by side.
pub type Dot1Words = [u32; DOT1_LANES];

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
pub struct Dot1(Way);

/// The word, and the one bit in it, where an element lies.
#[must_use]
pub const fn dot1_place(element: usize) -> (usize, u32) {
    let (word, rest) = (element / DOT1_WORD, element % DOT1_WORD);
    (word, 1 << (rest % QUAD * 8 + rest / QUAD))
}

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

impl Dot1 {
    #[must_use]
    pub fn best() -> Self {
        let best = Way::ALL.iter().rev().copied().find_map(Self::at);
        best.unwrap_or(Self(Way::Scalar))
    }

    fn at(way: Way) -> Option<Self> {
        way.is_here().then_some(Self(way))
    }

    /// `out[p][lane]`: the sum of the query's elements whose bit is set in that vector of panel
    /// `p`. A panel is as many words as the query has ([`dot1_place`]); panels lie one behind
    /// another.
    ///
    /// # Panics
    /// When the query is not whole words, or too long, or `panels` not `out.len()` panels.
    #[cfg_attr(
        target_arch = "x86_64",
        expect(unsafe_code, reason = "calls what the processor was found to have")
    )]
    pub fn panels(self, query: &[i8], panels: &[Dot1Words], out: &mut [[i32; DOT1_LANES]]) {
        assert!(
            (1..=DOT8_LENGTH_MAX).contains(&query.len()) && query.len().is_multiple_of(DOT1_WORD),
            "short vectors of whole words"
        );
        let words = query.len() / DOT1_WORD;
        assert_eq!(panels.len(), words * out.len(), "a panel for each product");
        match self.0 {
            Way::Scalar => {
                for (out, panel) in out.iter_mut().zip(panels.chunks_exact(words)) {
                    *out = dot1_scalar(query, panel);
                }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Dot1` of this way exists only where its instructions were found.
            Way::Avx2 => unsafe { x86::panels_avx2(query, panels, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Way::Avx512Vnni => unsafe { x86::panels_avx512_vnni(query, panels, out) },
        }
    }
}

/// The specification: as one would write it down.
#[must_use]
pub fn dot1_scalar(query: &[i8], panel: &[Dot1Words]) -> [i32; DOT1_LANES] {
    std::array::from_fn(|lane| {
        let is_set = |element: usize| {
            let (word, bit) = dot1_place(element);
            panel[word][lane] & bit != 0
        };
        let set = query.iter().enumerate().filter(|&(at, _)| is_set(at));
        set.map(|(_, &value)| i32::from(value)).sum()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// All ways that are here against the specification.
    fn check(query: &[i8], panels: &[Dot1Words]) {
        let panels_each = panels.chunks_exact(query.len() / DOT1_WORD);
        let wanted: Vec<_> = panels_each.map(|panel| dot1_scalar(query, panel)).collect();
        for dot1 in Way::ALL.iter().copied().filter_map(Dot1::at) {
            let mut out = vec![[7; DOT1_LANES]; wanted.len()];
            dot1.panels(query, panels, &mut out);
            assert_eq!(out, wanted, "{dot1:?}");
        }
    }

    proptest! {
        #[test]
        fn every_way_gives_the_scalar_product(
            words in 1_usize..14,
            query in prop::collection::vec(any::<i8>(), 14 * DOT1_WORD),
            bits in prop::collection::vec(any::<Dot1Words>(), 14 * 5),
            panels in 0_usize..6,
        ) {
            check(&query[..words * DOT1_WORD], &bits[..words * panels.min(5)]);
        }
    }

    #[test]
    fn each_element_has_its_own_bit() {
        let places: BTreeSet<_> = (0..96).map(dot1_place).collect();
        assert_eq!(places.len(), 96);
        assert!(
            places
                .iter()
                .all(|&(word, bit)| word < 3 && bit.count_ones() == 1)
        );
        let mut panel = [[0; DOT1_LANES]; 3];
        let (word, bit) = dot1_place(70);
        panel[word][5] = bit;
        let mut query = [1; 96];
        query[70] = -9;
        let mut wanted = [0; DOT1_LANES];
        wanted[5] = -9;
        assert_eq!(dot1_scalar(&query, &panel), wanted);
    }

    #[test]
    fn no_sum_overflows_at_the_ends_of_the_bytes() {
        for value in [i8::MIN, i8::MAX] {
            for length in [DOT1_WORD, DOT8_LENGTH_MAX] {
                let words = length / DOT1_WORD;
                check(&vec![value; length], &vec![[u32::MAX; DOT1_LANES]; words]);
            }
        }
    }

    #[test]
    #[should_panic(expected = "short vectors of whole words")]
    fn half_a_word_is_refused() {
        Dot1::best().panels(&[1; 48], &[[0; DOT1_LANES]], &mut [[0; DOT1_LANES]]);
    }

    #[test]
    #[should_panic(expected = "a panel for each product")]
    fn half_a_panel_is_refused() {
        Dot1::best().panels(&[1; 64], &[[0; DOT1_LANES]; 3], &mut [[0; DOT1_LANES]; 2]);
    }
}
