//! Products of codes and integers: exact, so that every kind of instruction gives the same.

#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use super::GROUP;
use super::query::IntegerQuery;
#[cfg(target_arch = "x86_64")]
use super::vectors::vectorized;
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
    Avx2(Vec<Words>),
    #[cfg(target_arch = "x86_64")]
    Avx512(Vec<Words>),
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Vec<Bytes>),
}

/// Codes of a group of columns.
type Codes = [u8; GROUP];

/// Integers of a group as low + high * 2^[`WORD_BITS`].
type Words = [[i16; GROUP]; 2];

/// Integers of a group as digits to the base 256, lowest first.
type Bytes = [[i8; GROUP]; 3];

/// A signed low word of 15 bits: so small that a lane of AVX2 (four pairs of products a group) can
/// add those of [`WORD_GROUPS`] groups in i32.
const WORD_BITS: u32 = 15;
const WORD_GROUPS: usize = 64;
const _: () = assert!(255 * (1_i64 << (WORD_BITS - 1)) * 8 * WORD_GROUPS as i64 <= i32::MAX as i64);

// A lane of AVX-512 (four products a group) can add digits over the widest row.
const _: () = assert!(255 * 128 * 4 * (super::WIDTH_MAX / GROUP) as i64 <= i32::MAX as i64);

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
            Way::Avx2 => Form::Avx2(words(groups)),
            #[cfg(target_arch = "x86_64")]
            Way::Avx512 => Form::Avx512(words(groups)),
            #[cfg(target_arch = "x86_64")]
            Way::Avx512Vnni => Form::Avx512Vnni(bytes(groups)),
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

#[cfg(target_arch = "x86_64")]
vectorized! {
    fn words(groups: &[[i32; GROUP]]) -> Vec<Words> {
        let mut all = vec![[[0; GROUP]; 2]; groups.len()];
        for (words, integers) in all.iter_mut().zip(groups) {
            for (column, &integer) in integers.iter().enumerate() {
                let low = lowest(integer, WORD_BITS);
                words[0][column] = word(low);
                words[1][column] = word((integer - low) >> WORD_BITS);
            }
        }
        all
    }
}

#[cfg(target_arch = "x86_64")]
vectorized! {
    fn bytes(groups: &[[i32; GROUP]]) -> Vec<Bytes> {
        let mut all = vec![[[0; GROUP]; 3]; groups.len()];
        for (bytes, integers) in all.iter_mut().zip(groups) {
            for (column, &integer) in integers.iter().enumerate() {
                let low = lowest(integer, u8::BITS);
                let rest = (integer - low) >> u8::BITS;
                let middle = lowest(rest, u8::BITS);
                bytes[0][column] = byte(low);
                bytes[1][column] = byte(middle);
                bytes[2][column] = byte((rest - middle) >> u8::BITS);
            }
        }
        all
    }
}

/// The number's lowest bits as a signed digit.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn lowest(number: i32, bits: u32) -> i32 {
    let unused = i32::BITS - bits;
    number << unused >> unused
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "a digit of at most 15 bits"
)]
fn word(digit: i32) -> i16 {
    digit as i16
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a digit of at most 8 bits")]
fn byte(digit: i32) -> i8 {
    digit as i8
}

/// The last few codes of a row, with zeros up to a whole group.
fn padded(rest: &[u8]) -> Codes {
    let mut padded = [0; GROUP];
    padded[..rest.len()].copy_from_slice(rest);
    padded
}
