//! Random numbers by counter: those of any group of columns can be made without the others.

use super::GROUP;

/// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
/// 2011), keyed by the seed; its counter is the row and the column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dither {
    pub seed: u64,
    pub row: u64,
}

/// Counters that are worked on together; each gives [`WORDS`] numbers.
const LANES: usize = GROUP / WORDS;
const WORDS: usize = 4;

impl Dither {
    /// Uniform numbers, one for each column of the group.
    #[inline(always)]
    pub(super) fn group(self, group: u32) -> [[u32; LANES]; WORDS] {
        let mut lanes = [0; LANES];
        for (lane, number) in lanes.iter_mut().zip(0..) {
            *lane = number;
        }
        let row = [low(self.row), high(self.row)].map(|word| [word; LANES]);
        philox(self.seed, [lanes, [group; LANES], row[0], row[1]])
    }
}

#[inline(always)]
fn philox<const N: usize>(seed: u64, counters: [[u32; N]; WORDS]) -> [[u32; N]; WORDS] {
    const ROUNDS: usize = 10;
    const FACTORS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    let mut key = [low(seed), high(seed)];
    let [mut a, mut b, mut c, mut d] = counters;
    for _ in 0..ROUNDS {
        for lane in 0..N {
            let first = u64::from(FACTORS[0]) * u64::from(a[lane]);
            let second = u64::from(FACTORS[1]) * u64::from(c[lane]);
            a[lane] = high(second) ^ b[lane] ^ key[0];
            b[lane] = low(second);
            c[lane] = high(first) ^ d[lane] ^ key[1];
            d[lane] = low(first);
        }
        key = [
            key[0].wrapping_add(KEY_STEPS[0]),
            key[1].wrapping_add(KEY_STEPS[1]),
        ];
    }
    [a, b, c, d]
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn low(bits: u64) -> u32 {
    bits as u32
}

#[inline(always)]
fn high(bits: u64) -> u32 {
    low(bits >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with their code.
    #[test]
    fn known_answers() {
        let check = |seed: u64, counter: [u32; WORDS], expected: [u32; WORDS]| {
            assert_eq!(
                philox(seed, counter.map(|word| [word])).map(|[word]| word),
                expected
            );
        };
        check(
            0,
            [0; 4],
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        );
        check(
            u64::MAX,
            [u32::MAX; 4],
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        );
        check(
            0x299f_31d0_a409_3822,
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn rows_and_columns_have_their_own_numbers() {
        let group = |seed, row, group| Dither { seed, row }.group(group);
        let mut all: Vec<u32> = [(0, 0), (0, 1), (1, 0), (1 << 32, 0)]
            .into_iter()
            .flat_map(|(row, at)| group(7, row, at).into_iter().flatten())
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4 * GROUP);
        assert_ne!(group(7, 0, 0), group(8, 0, 0));
    }
}
