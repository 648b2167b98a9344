//! What is kept of announced donors: by emitter, by age, and by namespace.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{
    event::{Location, Position},
    namespace::AnnouncedNamespace,
    stream::{Step, Stream},
};
use crate::donors::{
    neighbours::{Neighbours, SEGMENTS_MAX, Shape, Vector},
    owners::OwnerKey,
    slots::Slots,
};

/// What a donor takes beside its vectors and texts, in bytes; and a namespace beside its texts.
const DONOR_BYTES: usize = 512;
const SHELF_BYTES: usize = 1024;

/// Everything, under one lock. Sequences are given to donors and to emitters' last words alike: the
/// higher, the later; none is given twice.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) emitters: HashMap<Arc<OwnerKey>, Emitter>,
    /// Emitters by when they were last heard.
    heard: BTreeMap<u64, Arc<OwnerKey>>,
    /// By when they were announced.
    pub(super) donors: BTreeMap<u64, Entry>,
    pub(super) shelves: HashMap<Arc<AnnouncedNamespace>, Arc<Shelf>>,
    pub(super) bytes: usize,
    sequence: u64,
}

/// Who emits events.
#[derive(Debug)]
pub(super) struct Emitter {
    stream: Stream,
    heard: u64,
    /// The sequences of its donors.
    ids: HashMap<Box<str>, u64>,
    /// The same, by age.
    pub(super) announced: BTreeSet<u64>,
}

/// A donor that can be found.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: Box<str>,
    pub(super) stream: Arc<OwnerKey>,
    pub(super) holder: Option<Arc<OwnerKey>>,
    /// [`Location::fingerprint`].
    pub(super) location: u64,
    shelf: Arc<Shelf>,
    slot: u32,
    /// Of the segments whose vectors are in the slot, in the same order.
    pub(super) segments: Box<[u32]>,
    bytes: usize,
}

/// The vectors of one namespace's donors.
#[derive(Debug)]
pub(super) struct Shelf {
    namespace: Arc<AnnouncedNamespace>,
    pub(super) neighbours: Neighbours,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    slots: Slots<()>,
    taken: usize,
}

/// A donor to be kept.
#[derive(Debug)]
pub(super) struct NewEntry {
    pub(super) id: Box<str>,
    pub(super) namespace: AnnouncedNamespace,
    pub(super) location: Location,
    /// With the numbers of their segments; at least one, and all of the same dimensions.
    pub(super) vectors: Vec<(u32, Vector)>,
}

impl Kept {
    /// What an event is to what its emitter said before. One that was not heard before is known
    /// from now on.
    pub(super) fn step(&mut self, at: &Position, is_reset: bool) -> Step {
        let heard = self.next_sequence();
        let Some(emitter) = self.emitters.get_mut(&at.stream) else {
            let key = Arc::new(at.stream.clone());
            self.heard.insert(heard, Arc::clone(&key));
            let emitter = Emitter {
                stream: Stream::new(at.event_id, at.generation),
                heard,
                ids: HashMap::new(),
                announced: BTreeSet::new(),
            };
            self.emitters.insert(key, emitter);
            return Step::Next;
        };
        let step = emitter.stream.step(at.event_id, at.generation, is_reset);
        let is_applied = match step {
            Step::Next | Step::AfterGap | Step::Began => true,
            Step::Duplicate | Step::OldGeneration => false,
        };
        if is_applied && let Some(key) = self.heard.remove(&emitter.heard) {
            emitter.heard = heard;
            self.heard.insert(heard, key);
        }
        step
    }

    /// Keeps a donor that is not there, of an emitter that was heard.
    pub(super) fn put(&mut self, stream: &OwnerKey, donor: NewEntry) {
        let sequence = self.next_sequence();
        let Some((key, _)) = self.emitters.get_key_value(stream) else {
            return;
        };
        let stream = Arc::clone(key);
        let NewEntry {
            id,
            namespace,
            location,
            vectors,
        } = donor;
        let (segments, vectors): (Vec<u32>, Vec<Vector>) = vectors.into_iter().unzip();
        let Some(dimensions) = vectors.first().map(Vector::dimensions) else {
            return;
        };
        let shelf = self.shelf(namespace, dimensions);
        let slot = shelf.take_place();
        if let Err(error) = shelf.neighbours.update(slot, sequence, &vectors) {
            tracing::warn!(%error, "an announced donor is not found by its vectors");
        }
        // Mostly the emitter itself: then one name serves both.
        let holder = location.holder.map(|holder| {
            if holder == *stream {
                Arc::clone(&stream)
            } else {
                Arc::new(holder)
            }
        });
        let mut entry = Entry {
            // Twice: here and by its emitter.
            bytes: DONOR_BYTES + 2 * id.len(),
            id: id.clone(),
            stream: Arc::clone(&stream),
            holder,
            location: location.fingerprint,
            shelf,
            slot,
            segments: segments.into(),
        };
        entry.bytes += entry.segments.len() * vector_bytes(dimensions);
        self.bytes += entry.bytes;
        self.donors.insert(sequence, entry);
        if let Some(emitter) = self.emitters.get_mut(&stream) {
            emitter.ids.insert(id, sequence);
            emitter.announced.insert(sequence);
        }
    }

    /// Drops a donor.
    pub(super) fn drop_donor(&mut self, sequence: u64) {
        let Some(entry) = self.donors.remove(&sequence) else {
            return;
        };
        self.bytes -= entry.bytes;
        if let Some(emitter) = self.emitters.get_mut(&entry.stream) {
            emitter.ids.remove(&entry.id);
            emitter.announced.remove(&sequence);
        }
        let shelf = entry.shelf;
        shelf.neighbours.remove(entry.slot);
        if shelf.give_place_back(entry.slot) {
            self.shelves.remove(&shelf.namespace);
            self.bytes -= SHELF_BYTES + shelf.namespace.memory_bytes();
        }
    }

    /// Drops some segments of a donor. True when none is left that it could be found by: then the
    /// donor is still to be dropped.
    pub(super) fn drop_segments(&mut self, sequence: u64, numbers: &[u32]) -> bool {
        let Some(entry) = self.donors.get_mut(&sequence) else {
            return false;
        };
        let neighbours = &entry.shelf.neighbours;
        let vectors = neighbours.vectors(entry.slot);
        let there = entry.segments.iter().copied().zip(vectors);
        let left = there.filter(|(segment, _)| !numbers.contains(segment));
        let (segments, vectors): (Vec<u32>, Vec<Vector>) = left.unzip();
        if segments.len() == entry.segments.len() || segments.is_empty() {
            return segments.is_empty();
        }
        let freed = entry.segments.len() - segments.len();
        let freed = freed * vector_bytes(vectors[0].dimensions());
        entry.bytes -= freed;
        self.bytes -= freed;
        entry.segments = segments.into();
        // Fewer of the same shape.
        let _updated = neighbours.update(entry.slot, sequence, &vectors);
        false
    }

    pub(super) fn by_id(&self, stream: &OwnerKey, donor_id: &str) -> Option<u64> {
        self.emitters.get(stream)?.ids.get(donor_id).copied()
    }

    /// All that an emitter announced, oldest first.
    pub(super) fn of_stream(&self, stream: &OwnerKey) -> Vec<u64> {
        let emitter = self.emitters.get(stream);
        emitter.map_or_else(Vec::new, |emitter| {
            emitter.announced.iter().copied().collect()
        })
    }

    pub(super) fn matching(&self, is_meant: impl Fn(&Entry) -> bool) -> Vec<u64> {
        let all = self.donors.iter();
        all.filter(|(_, entry)| is_meant(entry))
            .map(|(sequence, _)| *sequence)
            .collect()
    }

    /// The emitter that was silent longest.
    pub(super) fn most_silent(&self) -> Option<Arc<OwnerKey>> {
        self.heard.first_key_value().map(|(_, key)| Arc::clone(key))
    }

    /// Forgets an emitter that has no donors.
    pub(super) fn drop_emitter(&mut self, stream: &OwnerKey) {
        if let Some(emitter) = self.emitters.remove(stream) {
            self.heard.remove(&emitter.heard);
        }
    }

    fn shelf(&mut self, namespace: AnnouncedNamespace, dimensions: usize) -> Arc<Shelf> {
        if let Some(shelf) = self.shelves.get(&namespace) {
            return Arc::clone(shelf);
        }
        self.bytes += SHELF_BYTES + namespace.memory_bytes();
        let namespace = Arc::new(namespace);
        let shelf = Arc::new(Shelf {
            namespace: Arc::clone(&namespace),
            neighbours: Neighbours::new(Shape {
                dimensions,
                segments_max: SEGMENTS_MAX,
            }),
            places: Mutex::default(),
        });
        self.shelves.insert(namespace, Arc::clone(&shelf));
        shelf
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

impl Shelf {
    fn take_place(&self) -> u32 {
        let mut places = self.places.lock();
        places.taken += 1;
        places.slots.put(())
    }

    // True when it was the last that was taken.
    fn give_place_back(&self, slot: u32) -> bool {
        let mut places = self.places.lock();
        places.taken -= 1;
        places.slots.take(slot);
        places.taken == 0
    }
}

// A byte an element, a bit for its sign, and its key and place.
fn vector_bytes(dimensions: usize) -> usize {
    dimensions + dimensions / 8 + 16
}
