//! The text of the kernels, compiled once for each instruction set.
//!
//! An instruction set is a module with `Floats` of `LANES` f32, and the few functions on them that
//! the kernels below are written in. The layout of the partial sums and the order in which they are
//! added depend on the instruction set and the number of columns alone, so a product has the same
//! bits however many rows or heads are worked on at once.

/// Rows that are worked on at once: as many streams from memory, and one load of the query for all.
pub(super) const ROWS: usize = 4;

/// 64-byte lines that a plain read loads at once.
pub(super) const LINES: usize = 8;

/// The kernels of one instruction set; takes the attributes that enable it.
macro_rules! kernels {
    ($(#[$feature:meta])*) => {
        $crate::score::cpu::kernels::kernels_of! {
            half::f16, load_f16, tile_f16, heads_f16, $(#[$feature])*
        }
        $crate::score::cpu::kernels::kernels_of! {
            f32, load, tile_f32, heads_f32, $(#[$feature])*
        }

        /// The exclusive or of all words, read in order by the widest loads.
        $(#[$feature])*
        pub(super) fn read(lines: &[[u8; 64]]) -> u64 {
            let (groups, rest) = lines.as_chunks::<{ $crate::score::cpu::kernels::LINES }>();
            let mut sums = [no_words(); $crate::score::cpu::kernels::LINES];
            for group in groups {
                for (sum, line) in sums.iter_mut().zip(group) {
                    *sum = xor(*sum, load_words(line));
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
    ($element:ty, $load:ident, $tile:ident, $heads:ident, $(#[$feature:meta])*) => {
        /// The products of `R` rows with the query, over the few columns of a tile.
        $(#[$feature])*
        pub(super) fn $tile<const R: usize>(rows: [&[$element]; R], query: &[f32]) -> [f32; R] {
            let columns = query.len();
            let chunks = columns / LANES;
            let query = query.as_chunks::<LANES>();
            let mut sums = [[zero(); CHAINS]; R];
            for first in (0..chunks).step_by(CHAINS) {
                for chain in 0..CHAINS.min(chunks - first) {
                    let query = load(&query.0[first + chain]);
                    for row in 0..R {
                        let cells = &rows[row][..columns].as_chunks::<LANES>().0[first + chain];
                        sums[row][chain] = mul_add($load(cells), query, sums[row][chain]);
                    }
                }
            }
            if !query.1.is_empty() {
                let query = load(&$crate::score::cpu::kernels::padded(query.1));
                for row in 0..R {
                    let cells = rows[row][..columns].as_chunks::<LANES>().1;
                    let cells = $load(&$crate::score::cpu::kernels::padded(cells));
                    sums[row][0] = mul_add(cells, query, sums[row][0]);
                }
            }
            let mut totals = [zero(); $crate::score::cpu::kernels::ROWS];
            for row in 0..R {
                totals[row] = total(sums[row]);
            }
            let totals = lane_sums(totals);
            std::array::from_fn(|row| totals[row])
        }

        /// The products of `R` rows with all query heads, part by part.
        $(#[$feature])*
        pub(super) fn $heads<const R: usize>(
            rows: [&[$element]; R],
            query: &$crate::score::HeadQuery,
            mut dots: [&mut [f32]; R],
        ) {
            /// The products of one part of `R` rows with `H` heads, into each row's place.
            #[inline]
            $(#[$feature])*
            fn part<const R: usize, const H: usize>(
                rows: [&[$element]; R],
                heads: &[f32],
                dots: &mut [&mut [f32]; R],
                at: usize,
            ) {
                let width = rows[0].len();
                let chunks = width / LANES;
                let mut sums = [[zero(); $crate::score::cpu::kernels::ROWS]; H];
                for index in 0..chunks {
                    let mut cells = [zero(); R];
                    for row in 0..R {
                        cells[row] = $load(&rows[row][..width].as_chunks::<LANES>().0[index]);
                    }
                    for head in 0..H {
                        let query = &heads[head * width..][..width];
                        let query = load(&query.as_chunks::<LANES>().0[index]);
                        for row in 0..R {
                            sums[head][row] = mul_add(cells[row], query, sums[head][row]);
                        }
                    }
                }
                if chunks * LANES < width {
                    for head in 0..H {
                        let query = heads[head * width..][..width].as_chunks::<LANES>().1;
                        let query = load(&$crate::score::cpu::kernels::padded(query));
                        for row in 0..R {
                            let cells = rows[row].as_chunks::<LANES>().1;
                            let cells = $load(&$crate::score::cpu::kernels::padded(cells));
                            sums[head][row] = mul_add(cells, query, sums[head][row]);
                        }
                    }
                }
                for head in 0..H {
                    let products = lane_sums(sums[head]);
                    for row in 0..R {
                        dots[row][at + head] = products[row];
                    }
                }
            }

            let (width, group) = (query.width, query.group);
            for (index, &start) in query.starts.iter().enumerate() {
                let mut parts = rows;
                for row in 0..R {
                    parts[row] = &rows[row][start..][..width];
                }
                let (mut at, end) = (index * group, (index + 1) * group);
                while at < end {
                    let heads = &query.values[at * width..end * width];
                    match end - at {
                        1 => part::<R, 1>(parts, heads, &mut dots, at),
                        2 => part::<R, 2>(parts, heads, &mut dots, at),
                        3 => part::<R, 3>(parts, heads, &mut dots, at),
                        _ => part::<R, 4>(parts, heads, &mut dots, at),
                    }
                    at += 4;
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
