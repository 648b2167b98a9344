//! Which instructions there are, chosen once, and the kernels made of them.

use half::f16;

#[cfg(target_arch = "aarch64")]
use super::neon;
use super::panels::{Moments, Panel, Standard};
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::score::{Aggregate, HeadQuery};

/// Instructions that the products are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Whatever the compiler may assume; on every machine.
    Scalar,
    /// ARM's.
    Neon,
    /// AVX2 with F16C and FMA.
    Avx2,
    /// AVX-512 F and BW, beside AVX2's.
    Avx512,
}

impl Level {
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    fn is_here(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(not(target_arch = "aarch64"))]
            Self::Neon => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("fma")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_here()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }
}

/// A level that this machine was found to have: only [`Simd::at`] makes one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simd(Level);

impl Simd {
    pub(super) fn best() -> Self {
        let best = Level::ALL.into_iter().rev().find_map(Self::at);
        best.unwrap_or(Self(Level::Scalar))
    }

    pub(super) fn at(level: Level) -> Option<Self> {
        level.is_here().then_some(Self(level))
    }

    pub(super) fn level(self) -> Level {
        self.0
    }
}

/// Calls a kernel of the level that was found.
macro_rules! at_level {
    ($simd:expr, $kernel:ident($($argument:expr),*)) => {
        match $simd.0 {
            Level::Scalar => portable::$kernel($($argument),*),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Simd` of this level exists only where its instructions were found.
            Level::Avx512 => unsafe { avx512::$kernel($($argument),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 => unsafe { avx2::$kernel($($argument),*) },
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::Avx512 => portable::$kernel($($argument),*),
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Level::Neon => unsafe { neon::$kernel($($argument),*) },
            #[cfg(not(target_arch = "aarch64"))]
            Level::Neon => portable::$kernel($($argument),*),
        }
    };
}

/// An element of a table, with its kernels.
pub(super) trait Element: Copy + Sync {
    /// The products of rows with the query, over the few columns of a tile.
    fn tile<const R: usize>(simd: Simd, rows: [&[Self]; R], query: &[f32]) -> [f32; R];

    /// The products of a panel's rows with all query heads: a panel for each.
    fn heads(simd: Simd, rows: &[&[Self]], query: &HeadQuery, dots: &mut [Panel]);
}

#[expect(unsafe_code, reason = "calls what the processor was found to have")]
impl Element for f16 {
    fn tile<const R: usize>(simd: Simd, rows: [&[Self]; R], query: &[f32]) -> [f32; R] {
        at_level!(simd, tile_f16(rows, query))
    }

    fn heads(simd: Simd, rows: &[&[Self]], query: &HeadQuery, dots: &mut [Panel]) {
        at_level!(simd, heads_f16(rows, query, dots));
    }
}

#[expect(unsafe_code, reason = "calls what the processor was found to have")]
impl Element for f32 {
    fn tile<const R: usize>(simd: Simd, rows: [&[Self]; R], query: &[f32]) -> [f32; R] {
        at_level!(simd, tile_f32(rows, query))
    }

    fn heads(simd: Simd, rows: &[&[Self]], query: &HeadQuery, dots: &mut [Panel]) {
        at_level!(simd, heads_f32(rows, query, dots));
    }
}

/// The exclusive or of all words.
#[expect(unsafe_code, reason = "calls what the processor was found to have")]
pub(super) fn read(simd: Simd, lines: &[[u8; 64]]) -> u64 {
    at_level!(simd, read(lines))
}

/// What [`panels`](super::panels) says, and below.
#[expect(unsafe_code, reason = "calls what the processor was found to have")]
pub(super) fn aggregate(simd: Simd, how: Aggregate, dots: &[Panel], scores: &mut [Panel]) {
    at_level!(simd, aggregate(how, dots, scores));
}

#[expect(unsafe_code, reason = "calls what the processor was found to have")]
pub(super) fn standard_max(
    simd: Simd,
    dots: &[Panel],
    standards: &[Standard],
    scores: &mut [Panel],
) {
    at_level!(simd, standard_max(dots, standards, scores));
}

#[expect(unsafe_code, reason = "calls what the processor was found to have")]
pub(super) fn pool(simd: Simd, scores: &[Panel]) -> Panel {
    at_level!(simd, pool(scores))
}

#[expect(unsafe_code, reason = "calls what the processor was found to have")]
pub(super) fn moments(simd: Simd, dots: &[Panel], rows: usize, moments: &mut [Moments]) {
    at_level!(simd, moments(dots, rows, moments));
}
