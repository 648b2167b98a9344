//! Tokens of donors by slot, packed behind one another in chunks.
//!
//! An allocator would round each donor's bytes up to one of its sizes. A donor that goes leaves a
//! gap in its chunk; once gaps are an eighth of what is held, the chunk with most of them is
//! emptied into the newest one, a little with every change, so that no change takes long.

use kvatlas_kernels::prompt::PADDING_BYTES;

use super::tokens::PackedTokens;

/// Slots of a whole piece of the list of places; the first one grows up to it.
const PIECE_SLOTS: usize = 4_096;
/// Bytes of a chunk where much is held.
const CHUNK_BYTES_MAX: usize = if cfg!(test) { 4 << 10 } else { 1 << 20 };
/// A chunk is at most this part of what is held, so that few donors take little room.
const CHUNK_SHARE: usize = 8;
/// A donor that would fill more than this part of a chunk has one of its own, of its own size: what
/// is left at a chunk's end is no larger.
const OWN_SHARE: usize = 16;
/// Gaps may be this part of the living.
const GAP_SHARE: usize = 8;
/// Bytes moved for each byte that comes or goes. With gaps of an eighth, where donors go at random,
/// less than four are needed to keep up.
const MOVED_SHARE: usize = 4;
/// What looking at a donor that has gone counts for.
const SKIPPED_BYTES: usize = 64;
/// Before a donor's bytes: its slot, and how many bytes follow.
const HEADER_BYTES: usize = 8;

/// Packed tokens by slot.
#[derive(Debug, Default)]
pub(super) struct TokenStore {
    /// In pieces, so that growing moves few.
    places: Vec<Box<[Place]>>,
    chunks: Vec<Chunk>,
    unused: Vec<u32>,
    /// Where donors are put.
    newest: Option<u32>,
    /// The chunk that is being emptied, and how far it is.
    emptying: Option<(u32, u32)>,
    length: usize,
    /// Of the donors that are held, headers included.
    living_bytes: usize,
    /// Of all chunks.
    held_bytes: usize,
}

/// Where a donor's bytes begin; a width of zero is no donor.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    chunk: u32,
    at: u32,
    /// Tokens.
    length: u32,
    width: u8,
}

/// Donors behind one another, and then [`PADDING_BYTES`].
#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    living_bytes: usize,
}

impl TokenStore {
    /// # Panics
    /// When the slot holds tokens.
    pub(super) fn put(&mut self, slot: u32, tokens: &PackedTokens) {
        let (piece, at) = piece_of(slot);
        if piece >= self.places.len() {
            self.places.resize_with(piece + 1, Box::default);
        }
        let piece = &mut self.places[piece];
        if at >= piece.len() {
            let mut more = std::mem::take(piece).into_vec();
            more.resize((at + 1).next_power_of_two(), Place::default());
            *piece = more.into_boxed_slice();
        }
        assert!(piece[at].width == 0, "slot {slot} holds a donor");
        let bytes = tokens.as_bytes();
        let bytes = &bytes[..bytes.len() - PADDING_BYTES];
        let (chunk, from) = self.append(slot, bytes);
        *self.place_mut(slot) = Place {
            chunk,
            at: from,
            length: super::seeds::count_u32(tokens.len()),
            width: tokens.width(),
        };
        self.length += 1;
        self.living_bytes += HEADER_BYTES + bytes.len();
        self.tidy(bytes.len());
    }

    /// False where the slot holds nothing.
    pub(super) fn take(&mut self, slot: u32) -> bool {
        if self.place(slot).is_none() {
            return false;
        }
        let place = std::mem::take(self.place_mut(slot));
        self.length -= 1;
        self.living_bytes -= HEADER_BYTES + place.bytes();
        self.leave(place.chunk, HEADER_BYTES + place.bytes());
        self.tidy(place.bytes());
        true
    }

    pub(super) fn get(&self, slot: u32) -> Option<PackedTokens<&[u8]>> {
        let place = self.place(slot)?;
        let bytes = &self.chunks[place.chunk as usize].bytes[place.at as usize..];
        let bytes = &bytes[..place.bytes() + PADDING_BYTES];
        PackedTokens::of(bytes, place.length as usize, place.width)
    }

    /// Slots that hold tokens.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Heap bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let slots: usize = self.places.iter().map(|piece| piece.len()).sum();
        self.held_bytes
            + self.chunks.capacity() * size_of::<Chunk>()
            + self.unused.capacity() * size_of::<u32>()
            + self.places.capacity() * size_of::<Box<[Place]>>()
            + slots * size_of::<Place>()
    }

    fn place(&self, slot: u32) -> Option<Place> {
        let (piece, at) = piece_of(slot);
        let place = *self.places.get(piece)?.get(at)?;
        (place.width > 0).then_some(place)
    }

    fn place_mut(&mut self, slot: u32) -> &mut Place {
        let (piece, at) = piece_of(slot);
        &mut self.places[piece][at]
    }

    /// Copies a donor's bytes into a chunk; returns which, and where they begin.
    fn append(&mut self, slot: u32, bytes: &[u8]) -> (u32, u32) {
        let needed = HEADER_BYTES + bytes.len();
        let usual = (self.living_bytes / CHUNK_SHARE).min(CHUNK_BYTES_MAX);
        let at = if needed * OWN_SHARE > usual {
            self.add_chunk(needed + PADDING_BYTES)
        } else {
            let newest = self.newest.filter(|&at| {
                let bytes = &self.chunks[at as usize].bytes;
                bytes.capacity() - bytes.len() >= needed
            });
            newest.unwrap_or_else(|| self.add_chunk(usual))
        };
        if needed * OWN_SHARE <= usual {
            self.newest = Some(at);
        }
        let chunk = &mut self.chunks[at as usize];
        chunk.living_bytes += needed;
        let start = chunk.bytes.len().saturating_sub(PADDING_BYTES);
        chunk.bytes.truncate(start);
        chunk.bytes.extend_from_slice(&slot.to_le_bytes());
        let size = super::seeds::count_u32(bytes.len());
        chunk.bytes.extend_from_slice(&size.to_le_bytes());
        chunk.bytes.extend_from_slice(bytes);
        chunk.bytes.extend_from_slice(&[0; PADDING_BYTES]);
        (at, super::seeds::count_u32(start + HEADER_BYTES))
    }

    fn add_chunk(&mut self, capacity: usize) -> u32 {
        let chunk = Chunk {
            bytes: Vec::with_capacity(capacity),
            living_bytes: 0,
        };
        self.held_bytes += chunk.bytes.capacity();
        if let Some(at) = self.unused.pop() {
            self.chunks[at as usize] = chunk;
            return at;
        }
        self.chunks.push(chunk);
        super::seeds::count_u32(self.chunks.len() - 1)
    }

    /// Gives a chunk back when nothing lives in it any more.
    fn leave(&mut self, at: u32, bytes: usize) {
        let chunk = &mut self.chunks[at as usize];
        chunk.living_bytes -= bytes;
        if chunk.living_bytes > 0 {
            return;
        }
        self.held_bytes -= chunk.bytes.capacity();
        *chunk = Chunk::default();
        self.unused.push(at);
        self.newest = self.newest.filter(|&newest| newest != at);
        self.emptying = self.emptying.filter(|&(emptying, _)| emptying != at);
        if self.length == 0 {
            (self.chunks, self.unused) = Default::default();
        }
    }

    /// Empties a chunk further, where gaps are many, after a change of so many bytes.
    fn tidy(&mut self, changed_bytes: usize) {
        let mut budget = changed_bytes * MOVED_SHARE + SKIPPED_BYTES;
        while budget > 0 && self.gap_bytes() > self.living_bytes / GAP_SHARE {
            let Some((chunk, at)) = self.emptying.or_else(|| self.emptiest()) else {
                return;
            };
            let cost = self.move_next(chunk, at);
            budget = budget.saturating_sub(cost);
        }
    }

    /// What is held and neither lives nor waits for the next donors.
    fn gap_bytes(&self) -> usize {
        let spare = self.newest.map_or(0, |newest| {
            let bytes = &self.chunks[newest as usize].bytes;
            bytes.capacity() - bytes.len()
        });
        self.held_bytes - self.living_bytes - spare
    }

    /// The chunk that gives back most; none where emptying one would give back little.
    fn emptiest(&self) -> Option<(u32, u32)> {
        let gap = |chunk: &Chunk| {
            let needed = chunk.living_bytes + PADDING_BYTES;
            chunk.bytes.capacity().saturating_sub(needed)
        };
        let chunks = (0..).zip(&self.chunks);
        let others = chunks.filter(|&(at, _)| self.newest != Some(at));
        let (at, chunk) = others.max_by_key(|(_, chunk)| gap(chunk))?;
        let is_worth_it = gap(chunk) > chunk.bytes.capacity() / OWN_SHARE;
        is_worth_it.then_some((at, 0))
    }

    /// Moves the donor whose header is at `at`, unless it has gone; what that cost in bytes.
    fn move_next(&mut self, chunk: u32, at: u32) -> usize {
        let from = std::mem::take(&mut self.chunks[chunk as usize].bytes);
        let (slot, bytes) = entry(&from[at as usize..]);
        let start = at + super::seeds::count_u32(HEADER_BYTES);
        let lives = self
            .place(slot)
            .is_some_and(|place| (place.chunk, place.at) == (chunk, start));
        let mut cost = SKIPPED_BYTES;
        if lives {
            let (chunk, at) = self.append(slot, bytes);
            let place = self.place_mut(slot);
            (place.chunk, place.at) = (chunk, at);
            cost += bytes.len();
        }
        let moved = HEADER_BYTES + bytes.len();
        self.emptying = Some((chunk, at + super::seeds::count_u32(moved)));
        self.chunks[chunk as usize].bytes = from;
        if lives {
            self.leave(chunk, moved);
        }
        cost
    }
}

impl Place {
    fn bytes(self) -> usize {
        PackedTokens::bytes_of(self.length as usize, self.width)
    }
}

/// Piece, and place in it.
fn piece_of(slot: u32) -> (usize, usize) {
    (slot as usize / PIECE_SLOTS, slot as usize % PIECE_SLOTS)
}

/// The slot and the bytes of the donor that a chunk goes on with.
fn entry(chunk: &[u8]) -> (u32, &[u8]) {
    let number = |at: usize| {
        let bytes = chunk[at..].first_chunk().expect("a header is whole");
        u32::from_le_bytes(*bytes)
    };
    let size = number(HEADER_BYTES / 2) as usize;
    (number(0), &chunk[HEADER_BYTES..][..size])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn tokens(seed: u32, length: usize) -> Vec<u32> {
        let from = seed.wrapping_mul(2_654_435_761);
        let tokens = (0..).map(|i: u32| from.rotate_left(i) % 151_936);
        tokens.take(length).collect()
    }

    fn check(store: &TokenStore, model: &BTreeMap<u32, Vec<u32>>) {
        assert_eq!(store.len(), model.len());
        for slot in 0..model.keys().last().map_or(3, |last| last + 3) {
            let held = store.get(slot).map(|packed| {
                let mut out = Vec::new();
                packed.unpack_into(&mut out);
                out
            });
            assert_eq!(held.as_ref(), model.get(&slot), "{slot}");
        }
        let chunks = || store.chunks.iter();
        let living: usize = chunks().map(|chunk| chunk.living_bytes).sum();
        assert_eq!(living, store.living_bytes);
        let packed = |tokens: &Vec<u32>| PackedTokens::pack(tokens).as_bytes().len();
        let packed: usize = model.values().map(packed).sum();
        assert_eq!(
            living,
            packed + model.len() * HEADER_BYTES - model.len() * PADDING_BYTES
        );
        let held: usize = chunks().map(|chunk| chunk.bytes.capacity()).sum();
        assert_eq!(held, store.held_bytes);
    }

    proptest! {
        #[test]
        fn holds_what_a_plain_map_holds(
            steps in prop::collection::vec(
                (0_u32..150, prop::option::weighted(0.6, (any::<u32>(), 1_usize..200))),
                0..600,
            )
        ) {
            let (mut store, mut model) = (TokenStore::default(), BTreeMap::new());
            for (slot, put) in steps {
                prop_assert_eq!(store.take(slot), model.remove(&slot).is_some());
                if let Some((seed, length)) = put {
                    let tokens = tokens(seed, length);
                    store.put(slot, &PackedTokens::pack(&tokens));
                    model.insert(slot, tokens);
                }
            }
            check(&store, &model);
            for slot in 0..150 {
                prop_assert_eq!(store.take(slot), model.remove(&slot).is_some());
            }
            check(&store, &model);
            prop_assert_eq!((store.held_bytes, store.chunks.capacity()), (0, 0));
        }
    }

    /// Donors go at random, in order, or all but some: what is held stays near what lives.
    #[test]
    fn memory_is_flat_under_churn() {
        const SLOTS: u32 = 1_000;
        let lengths = |step: u32| 16 + (step.wrapping_mul(2_654_435_761) >> 25) as usize;
        let random = |step: u32| (step.wrapping_mul(2_246_822_519) >> 7) % SLOTS;
        let in_order = |step: u32| step % SLOTS;
        let some = |step: u32| step * 16 % SLOTS + step % 13;
        let mut store = TokenStore::default();
        let mut held = Vec::new();
        for (number, pick) in [random, in_order, some].into_iter().enumerate() {
            let mut most: f64 = 0.0;
            for step in 0..SLOTS * 10 {
                let slot = pick(step) % SLOTS;
                store.take(slot);
                let tokens = tokens(step, lengths(step));
                store.put(slot, &PackedTokens::pack(&tokens));
                if step > SLOTS * 4 {
                    let slack = 2 * CHUNK_BYTES_MAX;
                    let beyond = store.held_bytes.saturating_sub(slack);
                    most = most.max(beyond as f64 / store.living_bytes as f64);
                }
            }
            assert!(
                most < 1.0 + 1.0 / GAP_SHARE as f64 + 0.02,
                "{number}: {most}"
            );
            held.push(store.held_bytes);
        }
        assert!(held.iter().max() < held.iter().min().map(|least| least * 11 / 10).as_ref());
    }
}
