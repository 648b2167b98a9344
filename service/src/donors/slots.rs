//! A growing list of slots whose growth never moves what it holds.

/// Slots of a chunk. Only the last chunk grows, up to this.
const CHUNK: usize = 1024;

/// Values by slot, in chunks.
#[derive(Debug)]
pub(super) struct Slots<T> {
    chunks: Vec<Vec<Option<T>>>,
    /// Slots that held something once and hold nothing now.
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots {
            chunks: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        let slot = slot as usize;
        self.chunks.get(slot / CHUNK)?.get(slot % CHUNK)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let slot = slot as usize;
        self.chunks
            .get_mut(slot / CHUNK)?
            .get_mut(slot % CHUNK)?
            .as_mut()
    }

    /// Slots that hold something or did: each is below this.
    pub(super) fn end(&self) -> u32 {
        let full = self.chunks.len().saturating_sub(1) * CHUNK;
        u32::try_from(full + self.chunks.last().map_or(0, Vec::len)).unwrap_or(u32::MAX)
    }

    /// Takes a value out; its slot is free from then on.
    pub(super) fn take(&mut self, slot: u32) -> Option<T> {
        let at = slot as usize;
        let taken = self
            .chunks
            .get_mut(at / CHUNK)?
            .get_mut(at % CHUNK)?
            .take()?;
        self.free.push(slot);
        Some(taken)
    }

    /// Puts a value into a free slot, or into a new one, and returns which.
    pub(super) fn put(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            let at = slot as usize;
            self.chunks[at / CHUNK][at % CHUNK] = Some(value);
            return slot;
        }
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
            self.chunks.push(Vec::new());
        }
        let chunk = self.chunks.len() - 1;
        let last = &mut self.chunks[chunk];
        last.push(Some(value));
        // The capacity keeps donors far below 2^32.
        u32::try_from(chunk * CHUNK + last.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_nothing_moves() {
        let mut slots = Slots::default();
        let count = u32::try_from(CHUNK * 2 + 3).unwrap();
        for slot in 0..count {
            assert_eq!(slots.put(slot), slot);
        }
        for slot in [0, 1023, 1024, count - 1] {
            assert_eq!(slots.get(slot), Some(&slot));
            assert_eq!(slots.take(slot), Some(slot));
            assert_eq!(slots.get(slot), None);
            assert_eq!(slots.take(slot), None);
        }
        assert_eq!(slots.get(count), None);
        assert_eq!(slots.iter().count(), count as usize - 4);
        assert_eq!(slots.put(7), count - 1);
        assert_eq!((slots.put(7), slots.put(7), slots.put(7)), (1024, 1023, 0));
        assert_eq!(slots.put(9), count);
        assert_eq!(slots.get(1024), Some(&7));
    }
}
