//! The signs of many vectors, side by side: what a scan looks at first.

use kvatlas_kernels::{DOT1_LANES, DOT1_WORD, Dot1, Dot1Words, dot1_place};

use super::{room, vector::Vector};

/// Panels whose products are made before they are looked at.
const BLOCK_PANELS: usize = 64;
/// Panels from which it is estimated what the best reach.
const SAMPLE_PANELS: usize = 1_024;
/// So many times the wanted are collected before the worse of them are dropped.
const COLLECTED_TIMES: usize = 4;

/// One bit for each element of vectors of one length. Sixteen vectors make a panel.
#[derive(Debug, Default)]
pub(super) struct Signs {
    panels: Vec<Dot1Words>,
    vectors: usize,
}

impl Signs {
    pub(super) fn push(&mut self, vector: &[i8]) {
        let words = words(vector.len());
        if self.vectors.is_multiple_of(DOT1_LANES) {
            room::make(&mut self.panels, words);
            let length = self.panels.len() + words;
            self.panels.resize(length, [0; DOT1_LANES]);
        }
        let (panel, lane) = (self.vectors / DOT1_LANES, self.vectors % DOT1_LANES);
        let panel = &mut self.panels[panel * words..];
        for (element, _) in vector.iter().enumerate().filter(|&(_, &value)| value > 0) {
            let (word, bit) = dot1_place(element);
            panel[word][lane] |= bit;
        }
        self.vectors += 1;
    }

    /// Removes a vector of this length, and puts the last in its place.
    pub(super) fn swap_remove(&mut self, place: usize, length: usize) {
        let words = words(length);
        let last = self.vectors - 1;
        let (from, to) = (last / DOT1_LANES * words, place / DOT1_LANES * words);
        for word in 0..words {
            let moved = std::mem::take(&mut self.panels[from + word][last % DOT1_LANES]);
            if place != last {
                self.panels[to + word][place % DOT1_LANES] = moved;
            }
        }
        self.vectors = last;
        self.panels.truncate(last.div_ceil(DOT1_LANES) * words);
        room::give_back(&mut self.panels);
    }

    /// The places, in ascending order, of about as many vectors as wanted, whose signs agree best
    /// with the query's elements, which are not rounded to signs themselves. At the least, those
    /// that are among the best of the sample.
    pub(super) fn best(&self, query: &Vector, wanted: usize) -> Vec<usize> {
        let mut padded = query.bytes().to_vec();
        padded.resize(words(padded.len()) * DOT1_WORD, 0);
        let mut least = self.estimate(&padded, wanted);
        let mut found: Vec<(i32, usize)> = Vec::with_capacity(wanted * 2);
        let mut products = [[0; DOT1_LANES]; BLOCK_PANELS];
        let blocks = self.panels.chunks(BLOCK_PANELS * words(padded.len()));
        let block_starts = (0..).step_by(BLOCK_PANELS * DOT1_LANES);
        for (block, start) in blocks.zip(block_starts) {
            let products = &mut products[..block.len() / words(padded.len())];
            Dot1::best().panels(&padded, block, products);
            for (panel, start) in products.iter().zip((start..).step_by(DOT1_LANES)) {
                if panel.iter().all(|&product| product < least) {
                    continue;
                }
                let good = panel.iter().copied().zip(start..self.vectors);
                found.extend(good.filter(|&(product, _)| product >= least));
            }
            if found.len() >= wanted * COLLECTED_TIMES {
                least = drop_worse(&mut found, wanted).saturating_add(1);
            }
        }
        let mut places: Vec<usize> = found.into_iter().map(|(_, place)| place).collect();
        places.sort_unstable();
        places
    }

    /// What about as many as wanted reach, told from panels that are spread evenly.
    fn estimate(&self, query: &[i8], wanted: usize) -> i32 {
        let words = query.len() / DOT1_WORD;
        // Without the last one, which may not be full.
        let panels = self.vectors / DOT1_LANES;
        let sampled = panels.min(SAMPLE_PANELS);
        let mut products = vec![[0; DOT1_LANES]; sampled];
        for (at, product) in products.iter_mut().enumerate() {
            let panel = at * panels / sampled * words;
            let panel = &self.panels[panel..][..words];
            Dot1::best().panels(query, panel, std::slice::from_mut(product));
        }
        let products = products.as_flattened_mut();
        let rank = products.len() * wanted / self.vectors.max(1);
        if rank >= products.len() {
            return i32::MIN;
        }
        let (_, &mut least, _) = products.select_nth_unstable_by(rank, |a, b| b.cmp(a));
        least
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.panels.capacity() * size_of::<Dot1Words>()
    }
}

/// Keeps the best `wanted`; what the worst of them has.
fn drop_worse(found: &mut Vec<(i32, usize)>, wanted: usize) -> i32 {
    let (_, &mut (least, _), _) = found.select_nth_unstable_by(wanted - 1, |a, b| b.cmp(a));
    found.truncate(wanted);
    least
}

fn words(elements: usize) -> usize {
    elements.div_ceil(DOT1_WORD)
}
