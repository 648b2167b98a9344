//! The donor log from the outside: against a plain map, after crashes at any point, and damaged.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const SMALL: Sizes = Sizes {
    segment_bytes_max: 1024,
    cleaned_bytes_min: 300,
};

/// Sequence and payload by key.
type Held = BTreeMap<u8, (u64, Vec<u8>)>;

fn payload(key: u8, sequence: u64, bytes: usize) -> Vec<u8> {
    let start = usize::from(key) + usize::try_from(sequence).unwrap();
    (start..)
        .map(|number| number.to_le_bytes()[0])
        .take(bytes)
        .collect()
}

fn open(folder: &Path) -> (Log, LogReport) {
    Log::open_with(folder, Arc::default(), SMALL).unwrap()
}

/// What a start would read.
fn read(folder: &Path) -> (Held, LogReport, Replayed) {
    let (mut log, report) = open(folder);
    let reader = log.reader();
    let mut held = Held::new();
    let decode = |key: &[u8], payload: &[u8], place| {
        let record = reader.read(place).unwrap().unwrap();
        assert_eq!((&*record.key, &*record.payload), (key, payload));
        Some((key[0], record.sequence, record.payload))
    };
    let replayed = log
        .replay(2, &decode, &mut |(key, sequence, payload)| {
            assert_eq!(
                held.insert(key, (sequence, payload)),
                None,
                "handed out twice"
            );
        })
        .unwrap();
    let live: usize = held
        .values()
        .map(|(_, payload)| frame::frame_bytes(1, payload.len()))
        .sum();
    assert_eq!(log.usage().live_bytes, live as u64);
    (held, report, replayed)
}

/// A log, and a plain map of what it holds.
struct Pair {
    folder: TempDir,
    log: Log,
    held: Held,
    places: BTreeMap<u8, Place>,
    sequence: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, usize),
    Delete(u8),
}

impl Pair {
    fn new() -> Pair {
        let folder = TempDir::new().unwrap();
        let log = open(folder.path()).0;
        Pair {
            folder,
            log,
            held: Held::new(),
            places: BTreeMap::new(),
            sequence: 0,
        }
    }

    fn reopen(&mut self) {
        self.log = open(self.folder.path()).0;
        let mut places = BTreeMap::new();
        let decode = |key: &[u8], _: &[u8], place| Some((key[0], place));
        let mut take = |(key, place)| _ = places.insert(key, place);
        self.log.replay(1, &decode, &mut take).unwrap();
        self.places = places;
    }

    // Replaced in the batch that brought it.
    fn forget_staged(&mut self, place: Option<Place>) {
        place.into_iter().for_each(|place| self.log.forget(place));
    }

    /// One batch; `crash` looks at the folder at each moment, knowing what it may hold.
    fn batch(&mut self, steps: &[Step], crash: &mut dyn FnMut(&Path, &[Held])) {
        let places = &self.places;
        let mut holds = |key: &[u8], place| places.get(&key[0]) == Some(&place);
        self.log.clean(&mut holds).unwrap();
        let mut possible = vec![self.held.clone()];
        let mut staged = self.places.clone();
        for step in steps {
            self.sequence += 1;
            let (key, kind, payload) = match *step {
                Step::Put(key, bytes) => (key, Kind::Put, payload(key, self.sequence, bytes)),
                Step::Delete(key) => (key, Kind::Delete, Vec::new()),
            };
            let change = LogChange {
                kind,
                sequence: self.sequence,
                key: &[key],
                parts: &[&payload[..payload.len() / 2], &payload[payload.len() / 2..]],
            };
            let place = self.log.append(&change).unwrap();
            if kind == Kind::Put {
                self.held.insert(key, (self.sequence, payload));
                let before = staged.insert(key, place);
                self.forget_staged(before.filter(|place| self.places.get(&key) != Some(place)));
            } else {
                self.held.remove(&key);
                let before = staged.remove(&key);
                self.forget_staged(before.filter(|place| self.places.get(&key) != Some(place)));
            }
            possible.push(self.held.clone());
        }
        crash(self.folder.path(), &possible);
        self.log.commit().unwrap();
        crash(self.folder.path(), &possible);
        for (key, place) in std::mem::replace(&mut self.places, staged) {
            if self.places.get(&key) != Some(&place) {
                self.log.forget(place);
            }
        }
        let places = &mut self.places;
        self.log
            .settle(&mut |moved| {
                let place = places
                    .get_mut(&moved.key[0])
                    .filter(|place| **place == moved.from);
                place.map(|place| *place = moved.to).is_some()
            })
            .unwrap();
        check(self.folder.path(), std::slice::from_ref(&self.held), 0);
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn copy_of(folder: &Path) -> TempDir {
    let copy = TempDir::new().unwrap();
    for file in files(folder) {
        std::fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
    }
    copy
}

/// A start in a copy of the folder that lacks the last bytes reads one of the possible states.
fn check(folder: &Path, possible: &[Held], cut: usize) {
    let copy = copy_of(folder);
    let last = files(copy.path()).pop().unwrap();
    let bytes = std::fs::read(&last).unwrap();
    std::fs::write(&last, &bytes[..bytes.len() - cut]).unwrap();
    let (held, report, replayed) = read(copy.path());
    assert_eq!((report.damaged, replayed.damaged), (0, 0));
    assert!(possible.contains(&held), "{held:?} is none of {possible:?}");
    let again = read(copy.path());
    assert_eq!(
        (again.0, again.1.torn_bytes),
        (held, 0),
        "the second start differs"
    );
}

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let step = prop_oneof![
        3 => (0_u8..12, 0_usize..200).prop_map(|(key, bytes)| Step::Put(key, bytes)),
        2 => (0_u8..12).prop_map(Step::Delete),
    ];
    prop::collection::vec(prop::collection::vec(step, 0..6), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn holds_what_a_plain_map_holds_whenever_it_is_killed(
        batches in steps(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 80),
        reopen_every in 2_usize..9,
    ) {
        let mut pair = Pair::new();
        let mut cuts = cuts.into_iter().cycle();
        for (number, steps) in batches.iter().enumerate() {
            let durable = pair.log.durable as usize;
            let segment = pair.log.current.number;
            let mut crash = |folder: &Path, possible: &[Held]| {
                let last = files(folder).pop().unwrap();
                let bytes = usize::try_from(std::fs::metadata(&last).unwrap().len()).unwrap();
                let name = last.file_name().unwrap().to_str().unwrap();
                let is_same = segment::parse_name(name).unwrap().0 == segment;
                let begun = bytes - if is_same { durable } else { 0 };
                check(folder, possible, cuts.next().unwrap().index(begun + 1));
            };
            pair.batch(steps, &mut crash);
            if number % reopen_every == 0 {
                pair.reopen();
            }
        }
        let usage = pair.log.usage();
        let segment = SMALL.segment_bytes_max as u64;
        prop_assert!(usage.bytes <= 3 * usage.live_bytes + 8 * segment, "{usage:?}");
    }

    #[test]
    fn no_bytes_whatever_make_it_panic_or_read_what_was_never_written(
        batches in steps(),
        damages in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0_u8..4, any::<u8>()),
            1..6,
        ),
    ) {
        let mut pair = Pair::new();
        for steps in &batches {
            pair.batch(steps, &mut |_, _| {});
        }
        for (file, at, how, byte) in damages {
            let files = files(pair.folder.path());
            let file = &files[file.index(files.len())];
            let mut bytes = std::fs::read(file).unwrap();
            let at = at.index(bytes.len() + 1);
            match how {
                0 => bytes.truncate(at),
                1 => bytes.splice(at..at, [byte; 24]).for_each(drop),
                2 => bytes.splice(at.., vec![byte; 100]).for_each(drop),
                _ => bytes.iter_mut().skip(at).take(1).for_each(|there| *there ^= byte),
            }
            std::fs::write(file, bytes).unwrap();
        }
        for (key, (sequence, bytes)) in read(pair.folder.path()).0 {
            prop_assert_eq!(&bytes, &payload(key, sequence, bytes.len()));
        }
    }
}

fn put(log: &mut Log, sequence: u64, key: &[u8], payload: &[u8]) -> Place {
    let change = LogChange {
        kind: Kind::Put,
        sequence,
        key,
        parts: &[payload],
    };
    log.append(&change).unwrap()
}

/// Twelve records over three segments, each committed by itself.
fn twelve() -> (TempDir, Held) {
    let mut pair = Pair::new();
    for key in 0..12 {
        pair.batch(&[Step::Put(key, 180)], &mut |_, _| {});
    }
    assert_eq!(files(pair.folder.path()).len(), 3);
    (pair.folder, pair.held)
}

#[test]
fn a_flipped_bit_loses_its_record_alone_and_is_counted() {
    let (folder, held) = twelve();
    let first = files(folder.path()).remove(0);
    let bytes = std::fs::read(&first).unwrap();
    for bit in (0..bytes.len() * 8).step_by(13) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&first, flipped).unwrap();
        let (found, report, replayed) = read(folder.path());
        let damaged = report.damaged + replayed.damaged;
        assert_eq!(found.len() as u64 + damaged, held.len() as u64, "bit {bit}");
        assert!(damaged <= 1 && report.torn_bytes == 0, "bit {bit}");
        assert!(
            found
                .iter()
                .all(|(key, record)| held.get(key) == Some(record))
        );
    }
}

#[test]
fn damage_before_the_last_batch_is_no_torn_end() {
    let (folder, held) = twelve();
    let last = files(folder.path()).pop().unwrap();
    let bytes = std::fs::read(&last).unwrap();
    let mut flipped = bytes.clone();
    flipped[60] ^= 1;
    std::fs::write(&last, &flipped).unwrap();
    let (found, report, replayed) = read(folder.path());
    assert_eq!(
        (found.len(), replayed.damaged, report.torn_bytes),
        (held.len() - 1, 1, 0)
    );

    let mut torn = bytes.clone();
    torn[bytes.len() - 30] ^= 1;
    std::fs::write(&last, &torn).unwrap();
    let (found, report, replayed) = read(folder.path());
    let frame = frame::frame_bytes(1, 180) as u64;
    assert_eq!(
        (found.len(), replayed.damaged, report.torn_bytes),
        (held.len() - 1, 0, frame)
    );
    assert_eq!(
        std::fs::metadata(&last).unwrap().len(),
        bytes.len() as u64 - frame
    );
}

#[test]
fn a_damaged_record_does_not_bring_back_the_one_it_replaced() {
    let mut pair = Pair::new();
    pair.batch(&[Step::Put(1, 100)], &mut |_, _| {});
    pair.batch(&[Step::Put(1, 101)], &mut |_, _| {});
    pair.batch(&[Step::Put(2, 100)], &mut |_, _| {});
    let file = files(pair.folder.path()).remove(0);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[frame::frame_bytes(1, 100) + frame::HEADER_BYTES + 20] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (found, _, replayed) = read(pair.folder.path());
    assert_eq!(
        (found.keys().copied().collect::<Vec<_>>(), replayed.damaged),
        (vec![2], 1)
    );
}

#[test]
fn a_missing_segment_is_counted() {
    let (folder, held) = twelve();
    std::fs::remove_file(&files(folder.path())[1]).unwrap();
    let (found, report, _) = read(folder.path());
    assert_eq!((found.len(), report.damaged), (held.len() - 4, 1));
}

#[test]
fn after_a_failed_write_that_cannot_be_undone_nothing_is_written() {
    let folder = TempDir::new().unwrap();
    let failed = Arc::new(AtomicBool::new(false));
    let (mut log, _) = Log::open_with(folder.path(), Arc::clone(&failed), SMALL).unwrap();
    put(&mut log, 1, b"a", b"first");
    log.commit().unwrap();
    // A handle that can only read: neither the write nor the cut can succeed.
    let path = log.current.path.clone();
    let file = std::fs::File::open(&path).unwrap();
    let (number, seed) = (log.current.number, log.current.seed);
    log.current = Arc::new(Segment {
        number,
        seed,
        file,
        path,
    });
    put(&mut log, 2, b"b", b"second");
    assert!(matches!(
        log.commit(),
        Err(StoreError::Io {
            action: "write",
            ..
        })
    ));
    assert!(failed.load(Relaxed));
    assert!(matches!(log.commit(), Err(StoreError::SyncFailed { .. })));
    let (found, ..) = read(folder.path());
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [b'a']);
}

#[test]
fn a_record_is_read_at_its_place_until_it_has_moved() {
    let mut pair = Pair::new();
    pair.batch(&[Step::Put(1, 150)], &mut |_, _| {});
    let reader = pair.log.reader();
    let place = pair.places[&1];
    assert_eq!(
        reader.read(place).unwrap().unwrap().payload,
        pair.held[&1].1
    );
    for sequence in 0..60 {
        pair.batch(&[Step::Put(2, 150 + sequence)], &mut |_, _| {});
    }
    let now = pair.places[&1];
    assert!(now.segment > place.segment, "it was copied");
    assert_eq!(reader.read(place).unwrap(), None);
    assert_eq!(reader.read(now).unwrap().unwrap().payload, pair.held[&1].1);
    let wrong = Place {
        offset: now.offset + 8,
        ..now
    };
    assert_eq!(reader.read(wrong).unwrap(), None);
}

#[test]
fn what_is_over_a_limit_is_refused() {
    let folder = TempDir::new().unwrap();
    let (mut log, _) = open(folder.path());
    let key = [0; KEY_BYTES_MAX + 1];
    let change = LogChange {
        kind: Kind::Put,
        sequence: 1,
        key: &key,
        parts: &[],
    };
    assert!(matches!(
        log.append(&change),
        Err(StoreError::TooLarge { .. })
    ));
    let long = vec![0; RECORD_BYTES_MAX / 2 + 1];
    let change = LogChange {
        kind: Kind::Put,
        sequence: 1,
        key: b"a",
        parts: &[&long, &long],
    };
    assert!(matches!(
        log.append(&change),
        Err(StoreError::TooLarge { .. })
    ));
    // Longer than a segment is to be: it gets one of its own.
    put(&mut log, 1, b"a", &[7; 3000]);
    put(&mut log, 2, b"b", b"next");
    log.commit().unwrap();
    assert_eq!(read(folder.path()).0.len(), 2);
}
