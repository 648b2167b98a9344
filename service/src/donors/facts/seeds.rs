//! Where two texts have words in common: windows of words that each of them has once.

use std::ops::Range;

use super::words::Word;

/// Words of a window.
const WINDOW: usize = 6;
/// Windows of a text of which all are looked at; of longer ones a share is.
const WINDOWS_WHOLE_MAX: usize = 1 << 16;
/// One in so many windows of a long text is looked at.
const SHARE: u64 = 4;

/// A window's hash, and 1 + its place in each text; `MANY` where there are several.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    hash: u64,
    places: [u32; 2],
}

const MANY: u32 = u32::MAX;

/// Windows of both texts.
pub(super) struct Seeds {
    cells: Vec<Cell>,
    share: u64,
    /// (place in the second, place in the first), ascending.
    shared: Vec<[usize; 2]>,
}

impl Seeds {
    pub(super) fn new(one: &[Word], two: &[Word]) -> Self {
        let is_long = one.len().max(two.len()) > WINDOWS_WHOLE_MAX;
        let share = if is_long { SHARE } else { 1 };
        let windows = |words: &[Word]| {
            words
                .windows(WINDOW)
                .map(window_hash)
                .enumerate()
                .filter(|(_, hash)| hash % share == 0)
                .collect::<Vec<_>>()
        };
        let windows = [windows(one), windows(two)];
        let count = windows[0].len() + windows[1].len();
        let mut cells = vec![Cell::default(); (count * 2).next_power_of_two().max(2)];
        for (side, windows) in windows.iter().enumerate() {
            for &(at, hash) in windows {
                let place = &mut find(&mut cells, hash).places[side];
                *place = if *place == 0 { place_of(at) } else { MANY };
            }
        }
        let mut shared: Vec<[usize; 2]> = cells
            .iter()
            .filter(|cell| cell.places.iter().all(|&place| place != 0 && place != MANY))
            .map(|cell| [cell.places[1] as usize - 1, cell.places[0] as usize - 1])
            .collect();
        shared.sort_unstable();
        Self {
            cells,
            share,
            shared,
        }
    }

    /// Whether some of one text's words around a gap, `gap` of its `words`, stand in the other
    /// text as well: then they were moved there rather than changed.
    pub(super) fn is_elsewhere(&self, words: &[Word], gap: &Range<usize>, other: usize) -> bool {
        // The windows that have a word of the gap, or its place inside of them.
        let first = (gap.start + 1).saturating_sub(WINDOW);
        (first..gap.end)
            .filter_map(|start| words.get(start..start + WINDOW))
            .map(window_hash)
            .filter(|hash| hash % self.share == 0)
            .any(|hash| self.cells[place(&self.cells, hash)].places[other] != 0)
    }

    /// The first shared window that lies in the second text from `from` up to `end`: its places in
    /// the first and in the second.
    pub(super) fn next(&self, from: usize, end: usize) -> Option<[usize; 2]> {
        let at = self.shared.partition_point(|&[place, _]| place < from);
        let &[place, other] = self.shared.get(at)?;
        (place + WINDOW <= end).then_some([other, place])
    }
}

fn find(cells: &mut [Cell], hash: u64) -> &mut Cell {
    let at = place(cells, hash);
    cells[at].hash = hash;
    &mut cells[at]
}

// Where a window is, or would be.
fn place(cells: &[Cell], hash: u64) -> usize {
    // The low bits choose the windows of long texts.
    let mask = cells.len() - 1;
    let mut at = usize::try_from(hash >> 8).unwrap_or(0) & mask;
    while cells[at].hash != 0 && cells[at].hash != hash {
        at = (at + 1) & mask;
    }
    at
}

fn place_of(at: usize) -> u32 {
    u32::try_from(at + 1).unwrap_or(MANY)
}

// Never zero, which marks a free cell.
fn window_hash(words: &[Word]) -> u64 {
    let step = |hash: u64, word: &Word| {
        (hash.rotate_left(5) ^ word.hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    let hash = words.iter().fold(0, step);
    (hash ^ (hash >> 29)).max(SHARE)
}
