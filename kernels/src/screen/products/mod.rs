//! Products of codes and integers: exact, so that every kind of instruction gives the same.

#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use super::GROUP;
use super::query::IntegerQuery;
use crate::score::Level;

/// Rows that are multiplied together, so that the query is read once for all of them.
pub(super) const ROWS: usize = 4;

/// Ways to multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
}

/// A way that this machine was found to have: only [`Instructions::at`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instructions(Way);

/// A query in the form that the instructions want.
#[derive(Debug)]
pub(super) struct Products<'a> {
    query: &'a IntegerQuery,
    form: Form,
}

/// The query's groups, for the way that multiplies them: only [`Products::new`] makes one.
#[derive(Debug)]
enum Form {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(Vec<x86::Words>),
    #[cfg(target_arch = "x86_64")]
    Avx512(Vec<x86::Words>),
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Vec<x86::Bytes>),
}

/// Codes of a group of columns.
type Codes = [u8; GROUP];

impl Way {
    pub(super) const ALL: &'static [Self] = &[
        Self::Scalar,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512Vnni,
    ];

    fn is_here(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => Self::Avx512.is_here() && is_x86_feature_detected!("avx512vnni"),
        }
    }

    fn level(self) -> Level {
        match self {
            Self::Scalar => Level::Scalar,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Level::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Vnni => Level::Avx512,
        }
    }
}

impl Instructions {
    /// The best that there are, up to the level.
    pub(super) fn up_to(level: Level) -> Self {
        let ways = Way::ALL.iter().rev().filter(|way| way.level() <= level);
        ways.copied()
            .find_map(Self::at)
            .unwrap_or(Self(Way::Scalar))
    }

    pub(super) fn at(way: Way) -> Option<Self> {
        way.is_here().then_some(Self(way))
    }
}

impl<'a> Products<'a> {
    pub(super) fn new(instructions: Instructions, query: &'a IntegerQuery) -> Self {
        let groups = &query.groups[..];
        let form = match instructions.0 {
            Way::Scalar => Form::Scalar,
            #[cfg(target_arch = "x86_64")]
            Way::Avx2 => Form::Avx2(x86::words(groups)),
            #[cfg(target_arch = "x86_64")]
            Way::Avx512 => Form::Avx512(x86::words(groups)),
            #[cfg(target_arch = "x86_64")]
            Way::Avx512Vnni => Form::Avx512Vnni(x86::bytes(groups)),
        };
        Self { query, form }
    }

    /// Codes of a row.
    pub(super) fn width(&self) -> usize {
        self.query.width
    }

    /// The products of rows of codes with the query.
    pub(super) fn of<const R: usize>(&self, rows: [&[u8]; R]) -> [i64; R] {
        let split = rows.map(|row| row.as_chunks::<GROUP>());
        let whole = self.query.width / GROUP;
        let mut sums = [self.query.offset; R];
        for run in &self.query.runs {
            let end = run.end.min(whole);
            let groups = split.map(|(groups, _)| &groups[run.start..end]);
            self.add_groups(groups, run.start..end, &mut sums);
            if end < run.end {
                let last = split.map(|(_, rest)| [padded(rest)]);
                self.add_groups(
                    last.each_ref().map(|last| &last[..]),
                    end..run.end,
                    &mut sums,
                );
            }
        }
        sums
    }

    /// Adds the products of groups of codes with the query's groups at these indices.
    #[cfg_attr(
        target_arch = "x86_64",
        expect(unsafe_code, reason = "calls what the processor was found to have")
    )]
    fn add_groups<const R: usize>(
        &self,
        rows: [&[Codes]; R],
        at: Range<usize>,
        sums: &mut [i64; R],
    ) {
        let products = match &self.form {
            Form::Scalar => rows.map(|row| groups_scalar(row, &self.query.groups[at.clone()])),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a form exists only where its instructions were found.
            Form::Avx2(words) => unsafe { x86::words_avx2(rows, &words[at]) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Form::Avx512(words) => unsafe { x86::words_avx512(rows, &words[at]) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Form::Avx512Vnni(bytes) => unsafe { x86::bytes_avx512_vnni(rows, &bytes[at]) },
        };
        for (sum, product) in sums.iter_mut().zip(products) {
            *sum += product;
        }
    }
}

/// The specification: as one would write it down.
fn groups_scalar(codes: &[Codes], integers: &[[i32; GROUP]]) -> i64 {
    let pairs = codes.as_flattened().iter().zip(integers.as_flattened());
    pairs
        .map(|(&code, &integer)| i64::from(code) * i64::from(integer))
        .sum()
}

/// The last few codes of a row, with zeros up to a whole group.
fn padded(rest: &[u8]) -> Codes {
    let mut padded = [0; GROUP];
    padded[..rest.len()].copy_from_slice(rest);
    padded
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use proptest::prelude::*;

    use super::*;
    use crate::screen::WIDTH_MAX;
    use crate::screen::query::{Bound, INTEGER_MAX};

    /// One row by every way there is, alone and with others, against the sum as it is defined.
    fn check(codes: &[u8], integers: &[i32], runs: &[Range<usize>]) {
        let width = codes.len();
        let mut groups = vec![[0; GROUP]; width.div_ceil(GROUP)];
        for run in runs {
            let columns = run.start * GROUP..(run.end * GROUP).min(width);
            groups.as_flattened_mut()[columns.clone()].copy_from_slice(&integers[columns]);
        }
        let offset = 12_345;
        let pairs = codes.iter().zip(groups.as_flattened());
        let expected = pairs.map(|(&code, &integer)| i64::from(code) * i64::from(integer));
        let expected = offset + expected.sum::<i64>();
        let query = IntegerQuery {
            runs: runs.to_vec(),
            width,
            groups,
            offset,
            bound: NO_BOUND,
        };
        let others = [
            vec![0; width],
            vec![255; width],
            codes.iter().rev().copied().collect(),
        ];
        for instructions in Way::ALL.iter().copied().filter_map(Instructions::at) {
            let products = Products::new(instructions, &query);
            assert_eq!(products.of([codes]), [expected], "{instructions:?}");
            let rows = [&others[0], &others[1], codes, &others[2]];
            assert_eq!(products.of(rows)[2], expected, "{instructions:?}");
        }
    }

    const NO_BOUND: Bound = Bound {
        centre: 0.0,
        step: 0.0,
        chance: 0.0,
        rounding: 0.0,
        full_pass: 0.0,
        constant: 0.0,
        norm_max: 0.0,
    };

    proptest! {
        #[test]
        fn all_ways_agree(
            codes in prop::collection::vec(any::<u8>(), 1..700),
            integers in prop::collection::vec(-INTEGER_MAX..=INTEGER_MAX, 700),
            cut in any::<prop::sample::Index>(),
            gap in 0_usize..3,
        ) {
            let groups = codes.len().div_ceil(GROUP);
            let cut = cut.index(groups);
            // All of the row, its start, its end, and both with a gap.
            let (start, end) = (0..cut, (cut + gap).min(groups)..groups);
            let runs = [start, end].into_iter().filter(|run| !run.is_empty());
            check(&codes, &integers, &runs.collect::<Vec<_>>());
            check(&codes, &integers, from_ref(&(0..groups)));
        }
    }

    /// Digits at their ends in all lanes, over more groups than a lane of words can add.
    #[test]
    fn no_lane_overflows() {
        let low_words = [-(1 << 14), (1 << 14) - 1];
        let bytes = [-0x80_8080, 0x7f_7f7f];
        for integer in [-INTEGER_MAX, INTEGER_MAX]
            .into_iter()
            .chain(low_words)
            .chain(bytes)
        {
            let groups = 0..3 * 64 + 1;
            let width = 3 * 64 * GROUP + 17;
            check(&vec![255; width], &vec![integer; width], from_ref(&groups));
        }
        let groups = 0..WIDTH_MAX / GROUP;
        check(
            &vec![255; WIDTH_MAX],
            &vec![-0x80_8080; WIDTH_MAX],
            from_ref(&groups),
        );
    }

    #[test]
    fn never_above_the_level() {
        assert_eq!(
            Instructions::up_to(Level::Scalar),
            Instructions(Way::Scalar)
        );
        for level in Level::ALL {
            assert!(Instructions::up_to(level).0.level() <= level);
        }
    }
}
