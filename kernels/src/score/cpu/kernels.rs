//! The text of the kernels, compiled once for each instruction set.
//!
//! An instruction set is a module with `Floats` of `LANES` f32, and the few functions on them that
//! the kernels below are written in. The layout of the partial sums and the order in which they are
//! added depend on the instruction set and the number of columns alone, so a product has the same
//! bits however many rows or heads are worked on at once.

/// Rows that are worked on at once: as many streams from memory, and one load of the query for all.
pub(super) const ROWS: usize = 4;

/// The kernels of one instruction set; takes the attributes that enable it.
macro_rules! kernels {
    ($(#[$feature:meta])*) => {
        $crate::score::cpu::kernels::kernels_of! {
            half::f16, load_f16, [tile_f16, part_f16, heads_f16], $(#[$feature])*
        }
        $crate::score::cpu::kernels::kernels_of! {
            f32, load, [tile_f32, part_f32, heads_f32], $(#[$feature])*
        }

        $(#[$feature])*
        pub(super) fn aggregate(
            how: $crate::score::Aggregate,
            dots: &[$crate::score::cpu::panels::Panel],
            scores: &mut [$crate::score::cpu::panels::Panel],
        ) {
            $crate::score::cpu::panels::aggregate(how, dots, scores);
        }

        $(#[$feature])*
        pub(super) fn standard_max(
            dots: &[$crate::score::cpu::panels::Panel],
            standards: &[$crate::score::cpu::panels::Standard],
            scores: &mut [$crate::score::cpu::panels::Panel],
        ) {
            $crate::score::cpu::panels::standard_max(dots, standards, scores);
        }

        $(#[$feature])*
        pub(super) fn pool(
            scores: &[$crate::score::cpu::panels::Panel],
        ) -> $crate::score::cpu::panels::Panel {
            $crate::score::cpu::panels::pool(scores)
        }

        $(#[$feature])*
        pub(super) fn moments(
            dots: &[$crate::score::cpu::panels::Panel],
            rows: usize,
            moments: &mut [$crate::score::cpu::panels::Moments],
        ) {
            $crate::score::cpu::panels::moments(dots, rows, moments);
        }

        /// The exclusive or of all words, read by the widest loads in as many streams as the
        /// kernels read.
        $(#[$feature])*
        pub(super) fn read(lines: &[[u8; 64]]) -> u64 {
            use $crate::score::cpu::kernels::ROWS;
            let length = lines.len() / ROWS;
            let (streams, rest) = lines.split_at(length * ROWS);
            let mut sums = [no_words(); ROWS];
            for line in 0..length {
                for stream in 0..ROWS {
                    let line = &streams[stream * length..][..length][line];
                    $crate::score::cpu::kernels::prefetch(line);
                    sums[stream] = xor(sums[stream], load_words(line));
                }
            }
            for line in rest {
                sums[0] = xor(sums[0], load_words(line));
            }
            let mut word = 0;
            for sum in sums {
                word ^= fold(sum);
            }
            word
        }
    };
}
pub(super) use kernels;

/// The kernels over tables of one element.
macro_rules! kernels_of {
    ($element:ty, $load:ident, [$tile:ident, $part:ident, $heads:ident], $(#[$feature:meta])*) => {
        /// The products of `R` rows with the query, over the few columns of a tile.
        $(#[$feature])*
        pub(super) fn $tile<const R: usize>(rows: [&[$element]; R], query: &[f32]) -> [f32; R] {
            const STRIDE: usize = CHAINS * LANES;

            #[inline]
            $(#[$feature])*
            fn add<const R: usize>(
                sums: &mut [[Floats; CHAINS]; R],
                rows: [&[$element; STRIDE]; R],
                query: &[f32; STRIDE],
            ) {
                for chain in 0..CHAINS {
                    let query = load(&query.as_chunks().0[chain]);
                    for row in 0..R {
                        let cells = $load(&rows[row].as_chunks().0[chain]);
                        sums[row][chain] = mul_add(cells, query, sums[row][chain]);
                    }
                }
            }

            let mut sums = [[zero(); CHAINS]; R];
            let (whole, rest) = query.as_chunks::<STRIDE>();
            let mut cells = [&[][..]; R];
            for row in 0..R {
                cells[row] = &rows[row].as_chunks::<STRIDE>().0[..whole.len()];
            }
            for (index, query) in whole.iter().enumerate() {
                let strides = std::array::from_fn(|row| &cells[row][index]);
                for stride in strides {
                    $crate::score::cpu::kernels::prefetch(stride);
                }
                add(&mut sums, strides, query);
            }
            if !rest.is_empty() {
                let query = $crate::score::cpu::kernels::padded(rest);
                let cells = rows.map(|row| {
                    $crate::score::cpu::kernels::padded(&row[whole.len() * STRIDE..])
                });
                add(&mut sums, cells.each_ref(), &query);
            }
            let mut totals = [zero(); $crate::score::cpu::kernels::ROWS];
            for row in 0..R {
                totals[row] = total(sums[row]);
            }
            let totals = lane_sums(totals);
            std::array::from_fn(|row| totals[row])
        }

        /// The products of one part of `R` rows with `H` heads, from row `at` of their panels on.
        #[inline]
        $(#[$feature])*
        fn $part<const R: usize, const H: usize>(
            rows: [&[$element]; R],
            heads: &[f32],
            dots: &mut [$crate::score::cpu::panels::Panel],
            at: usize,
        ) {
            let width = rows[0].len();
            let chunks = width / LANES;
            let mut cells = [&[][..]; R];
            for row in 0..R {
                cells[row] = &rows[row].as_chunks::<LANES>().0[..chunks];
            }
            let mut queries = [&[][..]; H];
            for head in 0..H {
                queries[head] = &heads[head * width..].as_chunks::<LANES>().0[..chunks];
            }
            let mut sums = [[zero(); $crate::score::cpu::kernels::ROWS]; H];
            for index in 0..chunks {
                let mut loaded = [zero(); R];
                for row in 0..R {
                    let chunk = &cells[row][index];
                    if index * size_of_val(chunk) % 64 == 0 {
                        $crate::score::cpu::kernels::prefetch(chunk);
                    }
                    loaded[row] = $load(chunk);
                }
                for head in 0..H {
                    let query = load(&queries[head][index]);
                    for row in 0..R {
                        sums[head][row] = mul_add(loaded[row], query, sums[head][row]);
                    }
                }
            }
            if chunks * LANES < width {
                for head in 0..H {
                    let rest = &heads[head * width..][chunks * LANES..width];
                    let query = load(&$crate::score::cpu::kernels::padded(rest));
                    for row in 0..R {
                        let rest = &rows[row][chunks * LANES..];
                        let rest = $load(&$crate::score::cpu::kernels::padded(rest));
                        sums[head][row] = mul_add(rest, query, sums[head][row]);
                    }
                }
            }
            for head in 0..H {
                let products = lane_sums(sums[head]);
                dots[head][at..at + R].copy_from_slice(&products[..R]);
            }
        }

        /// The products of a panel of rows with all query heads: `dots` has a panel for each. Few
        /// rows at a time, since all rows of a table that is as wide as a model's compete for the
        /// same places of the nearest cache.
        $(#[$feature])*
        pub(super) fn $heads(
            rows: &[&[$element]],
            query: &$crate::score::HeadQuery,
            dots: &mut [$crate::score::cpu::panels::Panel],
        ) {
            use $crate::score::cpu::kernels::ROWS;
            let (width, group) = (query.width, query.group);
            let (fours, ones) = rows.as_chunks::<ROWS>();
            for (four, rows) in fours.iter().enumerate() {
                for (index, &start) in query.starts.iter().enumerate() {
                    let parts = rows.map(|row| &row[start..start + width]);
                    let (mut first, end) = (index * group, (index + 1) * group);
                    while first < end {
                        let heads = &query.values[first * width..end * width];
                        let dots = &mut dots[first..end];
                        match end - first {
                            1 => $part::<ROWS, 1>(parts, heads, dots, four * ROWS),
                            2 => $part::<ROWS, 2>(parts, heads, dots, four * ROWS),
                            3 => $part::<ROWS, 3>(parts, heads, dots, four * ROWS),
                            _ => $part::<ROWS, 4>(parts, heads, dots, four * ROWS),
                        }
                        first += 4;
                    }
                }
            }
            for (one, row) in ones.iter().enumerate() {
                for (index, &start) in query.starts.iter().enumerate() {
                    let (part, at) = ([&row[start..start + width]], fours.len() * ROWS + one);
                    for first in index * group..(index + 1) * group {
                        let heads = &query.values[first * width..][..width];
                        $part::<1, 1>(part, heads, &mut dots[first..=first], at);
                    }
                }
            }
        }
    };
}
pub(super) use kernels_of;

/// The last few elements, with zeros up to a whole number of lanes.
pub(super) fn padded<T: Copy + Default, const LANES: usize>(rest: &[T]) -> [T; LANES] {
    let mut padded = [T::default(); LANES];
    padded[..rest.len()].copy_from_slice(rest);
    padded
}

/// How far ahead of the work memory is asked for; twice or half of it makes little difference.
#[cfg(target_arch = "x86_64")]
const PREFETCH_BYTES: usize = 1024;

/// Asks for memory ahead of this place in its stream: the processor guesses too, but only up to the
/// end of a page.
#[cfg(target_arch = "x86_64")]
#[inline]
#[expect(unsafe_code, reason = "a hint that takes a pointer")]
pub(super) fn prefetch<T>(from: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in (0..size_of_val(from)).step_by(64) {
        let ahead = std::ptr::from_ref(from).wrapping_byte_add(PREFETCH_BYTES + line);
        // SAFETY: SSE is a part of x86-64, and a hint reads nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
    }
}

/// Elsewhere there is no stable hint.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn prefetch<T>(_from: &T) {}
