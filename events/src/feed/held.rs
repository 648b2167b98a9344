//! Frames that wait for a replay to end: bounded for each source, and over all.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::inputs::Frame;

/// Frames of one source that wait for a replay to end.
pub const HELD_FRAMES_MAX: usize = 4096;
/// Bytes that those take.
pub const HELD_BYTES_MAX: usize = 64 << 20;
/// Bytes that the waiting frames of all sources take.
pub const WAITING_BYTES_MAX: usize = 256 << 20;
/// What a frame takes besides its payload.
pub const FRAME_BYTES: usize = 128;

/// Room for the frames that wait, of all sources.
///
/// No source takes more than it leaves free: however many hold as much as they can, one more finds
/// as much as each of them has, and who is refused is one of those that hold most.
#[derive(Debug)]
pub struct Room {
    bytes_max: usize,
    taken: AtomicUsize,
}

impl Default for Room {
    fn default() -> Self {
        Self::new(WAITING_BYTES_MAX)
    }
}

impl Room {
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            taken: AtomicUsize::new(0),
        }
    }

    /// Bytes that are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// False where a source that has some room cannot have so much more.
    fn take(&self, bytes: usize, has: usize) -> bool {
        let taken = self.taken.try_update(Relaxed, Relaxed, |taken| {
            let taken = taken.checked_add(bytes)?;
            let left = self.bytes_max.checked_sub(taken)?;
            (has + bytes <= left).then_some(taken)
        });
        taken.is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Relaxed);
    }
}

/// The frames of one source that wait, in their order.
#[derive(Debug)]
pub(super) struct Held<P: AsRef<[u8]>> {
    room: Arc<Room>,
    frames: VecDeque<Frame<P>>,
    bytes: usize,
    /// Frames for which there was no room.
    pub(super) dropped: u64,
}

impl<P: AsRef<[u8]> + From<Vec<u8>>> Held<P> {
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self {
            room,
            frames: VecDeque::new(),
            bytes: 0,
            dropped: 0,
        }
    }

    /// The first frame that waits.
    pub(super) fn front(&self) -> Option<&Frame<P>> {
        self.frames.front()
    }

    /// Adds one behind the others.
    pub(super) fn push_back(&mut self, frame: &Frame<P>) {
        self.push(frame, VecDeque::push_back);
    }

    /// Adds one before the others.
    pub(super) fn push_front(&mut self, frame: &Frame<P>) {
        self.push(frame, VecDeque::push_front);
    }

    pub(super) fn pop_front(&mut self) -> Option<Frame<P>> {
        let frame = self.frames.pop_front()?;
        self.give_back(cost(&frame));
        Some(frame)
    }

    /// Where there is no room the frame is dropped, and leaves a gap that is found later.
    fn push(&mut self, frame: &Frame<P>, add: fn(&mut VecDeque<Frame<P>>, Frame<P>)) {
        let bytes = cost(frame);
        let is_small = self.frames.len() < HELD_FRAMES_MAX && self.bytes + bytes <= HELD_BYTES_MAX;
        if !is_small || !self.room.take(bytes, self.bytes) {
            self.dropped += 1;
            return;
        }
        self.bytes += bytes;
        // A payload is a part of what was received at once, and would keep the whole of it.
        let payload = P::from(frame.payload.as_ref().to_vec());
        let &Frame {
            sequence, digest, ..
        } = frame;
        let frame = Frame {
            sequence,
            digest,
            payload,
        };
        add(&mut self.frames, frame);
    }
}

impl<P: AsRef<[u8]>> Held<P> {
    pub(super) fn clear(&mut self) {
        self.frames = VecDeque::new();
        self.give_back(self.bytes);
    }

    fn give_back(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.room.give_back(bytes);
    }
}

impl<P: AsRef<[u8]>> Drop for Held<P> {
    fn drop(&mut self) {
        self.clear();
    }
}

fn cost<P: AsRef<[u8]>>(frame: &Frame<P>) -> usize {
    frame.payload.as_ref().len() + FRAME_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD_BYTES: usize = 1000 - FRAME_BYTES;

    /// Lets as many frames of a thousand bytes wait as can, and says how many do.
    fn fill(held: &mut Held<Vec<u8>>) -> usize {
        let before = held.dropped;
        while held.dropped == before {
            let payload = vec![0; PAYLOAD_BYTES];
            let (sequence, digest) = (0, 0);
            held.push_back(&Frame {
                sequence,
                digest,
                payload,
            });
        }
        held.frames.len()
    }

    #[test]
    fn nobody_takes_more_than_is_left_for_one_more() {
        let room = Arc::new(Room::new(60_000));
        let mut sources: Vec<Held<Vec<u8>>> =
            (0..5).map(|_| Held::new(Arc::clone(&room))).collect();
        let held: Vec<usize> = sources.iter_mut().map(fill).collect();
        assert_eq!(held, [30, 15, 7, 4, 2]);
        assert_eq!(room.taken(), 58_000);
        // Who holds most gets nothing more, also where others could still have some.
        assert_eq!(fill(&mut sources[0]), 30);
        let mut late = Held::new(Arc::clone(&room));
        assert_eq!(fill(&mut late), 1);
        drop(late);
        assert_eq!(room.taken(), 58_000);
        // What one gives back others can have.
        sources[0].clear();
        assert_eq!(fill(&mut sources[1]), 23);
        while sources[1].pop_front().is_some() {}
        assert_eq!(room.taken(), 13_000);
        drop(sources);
        assert_eq!(room.taken(), 0);
    }

    #[test]
    fn each_source_has_its_own_bounds() {
        let mut held = Held::<Vec<u8>>::new(Arc::default());
        assert_eq!(fill(&mut held), HELD_FRAMES_MAX);
        held.clear();
        let frame = |bytes: usize| Frame {
            sequence: 0,
            digest: 0,
            payload: vec![0; bytes],
        };
        for bytes in [HELD_BYTES_MAX - FRAME_BYTES, 0] {
            held.push_front(&frame(bytes));
        }
        assert_eq!((held.frames.len(), held.dropped), (1, 2));
        assert_eq!(held.room.taken(), HELD_BYTES_MAX);
    }
}
