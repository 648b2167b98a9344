//! Which donors have a seed: an open-addressed table from seed keys to sorted lists of slots.
//!
//! Most seeds have one donor, so a cell holds its slot inline; the others hold the index of a list.
//! Cells are ordered by fingerprint and a fingerprint's home grows with it, so growing is one pass
//! in order, removal leaves no tombstones, and an absent seed is told at the first larger
//! fingerprint. The table is cut into shards, more as it grows, so that no growth takes long.

use kvatlas_kernels::{prefetch, probe};

use super::listed::{Listed, SlotList};

/// Buckets by the key's first bits; each is a table of its own, cut into shards.
const BUCKETS: usize = 256;
const BUCKET_BITS: u32 = BUCKETS.ilog2();
/// Seeds of a bucket for each of its shards. Moving a shard, when it grows or is split, is the
/// longest pause of an insertion: at most twice as many seeds, some tenths of a millisecond.
const SHARD_SEEDS_MEAN: usize = if cfg!(test) { 2 } else { 24_576 };
/// Postings kept in one sorted list, before there are buckets: those of a dozen donors.
const FEW_MAX: usize = if cfg!(test) { 32 } else { 2_048 };
/// The shard of a [`ListRef`] into [`Few`].
const FEW: u32 = u32::MAX;
/// A full shard grows by one in so many homes: more would leave more of them empty.
const GROWTH: u32 = 5;
/// Cells past the last home, so that no probe wraps around.
const TAIL: usize = 16;
/// Keys whose cells and lists are asked for before any of them is looked at, so that their cache
/// misses overlap.
const AHEAD: usize = 64;
/// Cells of a cache line.
const LINE_CELLS: usize = 8;
/// Lines in which a probe usually ends, and those that a change usually moves cells of: up to the
/// next empty one, ten cells further on average.
const LINES_READ: usize = 2;
const LINES_CHANGED: usize = 6;
/// Marks a cell's value as the index of a list.
const LIST: u32 = 1 << 31;
/// Slots are below this, so that slot + 1 leaves the mark free and zero means an empty cell.
pub(super) const SLOT_MAX: u32 = LIST - 2;

/// All postings of a namespace.
#[derive(Debug, Default)]
pub(super) struct Postings {
    few: Few,
    /// None while there are few.
    buckets: Box<[Bucket]>,
}

/// Pairs of key and slot in ascending order: a namespace with a donor or two must stay small.
#[derive(Debug, Default)]
struct Few {
    keys: Vec<u64>,
    slots: Vec<u32>,
}

/// Shards by the last bits of the fingerprint, in the manner of linear hashing: one more at a
/// time, whose seeds come out of one other.
#[derive(Debug, Default)]
struct Bucket {
    shards: Vec<Shard>,
    used: usize,
}

/// The donors of one seed; good until the next change of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListRef {
    /// The bucket in the first bits, its shard in the others.
    shard: u32,
    value: u32,
}

/// Fingerprint in the upper half, value in the lower; zero is empty.
type Cell = u64;

#[derive(Debug, Default)]
struct Shard {
    cells: Vec<Cell>,
    /// Number of homes; `cells` is longer by [`TAIL`].
    homes: u32,
    used: u32,
    lists: Vec<SlotList>,
    free_lists: Vec<u32>,
    postings: usize,
    list_bytes: usize,
}

impl Postings {
    /// Adds a donor to seeds; nothing changes where it is there.
    pub(super) fn insert_all(&mut self, keys: &[u64], slot: u32) {
        for &key in keys {
            self.insert(key, slot);
        }
    }

    /// Takes a donor from seeds; nothing changes where it is not there.
    pub(super) fn remove_all(&mut self, keys: &[u64], slot: u32) {
        for &key in keys {
            self.remove(key, slot);
        }
    }

    /// Asks for the cells and lists that a change of these keys will touch: in three rounds, none
    /// of which waits for memory that it has asked for itself.
    pub(super) fn read_ahead(&self, keys: &[u64]) {
        let mut lists = [None; AHEAD];
        for keys in keys.chunks(AHEAD) {
            for &key in keys {
                self.ask_for_cells(key, LINES_CHANGED);
            }
            for (list, &key) in lists.iter_mut().zip(keys) {
                *list = self.find(key);
                if let Some(list) = *list {
                    self.ask_for_list(list);
                }
            }
            for &list in lists.iter().take(keys.len()).flatten() {
                self.ask_for_slots(list);
            }
        }
    }

    /// Asks for what [`Self::find`] will read. Asking for all keys first lets their cache misses
    /// overlap.
    pub(super) fn ask_for(&self, key: u64) {
        self.ask_for_cells(key, LINES_READ);
    }

    fn ask_for_cells(&self, key: u64, lines: usize) {
        let wanted = fingerprint(key);
        let bucket = self.buckets.get(bucket_of(key));
        let shard = bucket.and_then(|bucket| bucket.shards.get(bucket.shard_of(wanted)));
        if let Some(shard) = shard {
            let cells = &shard.cells[shard.home(wanted).min(shard.cells.len())..];
            for line in cells.chunks(LINE_CELLS).take(lines) {
                prefetch(&line[0]);
            }
        }
    }

    /// Asks for what [`Self::ask_for_slots`] will read.
    pub(super) fn ask_for_list(&self, list: ListRef) {
        if let Some(list) = self.list(list) {
            prefetch(list);
        }
    }

    /// Asks for a list's number and its ends.
    pub(super) fn ask_for_slots(&self, list: ListRef) {
        if let Some(list) = self.list(list) {
            list.ask_for_slots();
        }
    }

    /// None where the key has only one donor, or all of them few.
    fn list(&self, list: ListRef) -> Option<&SlotList> {
        let is_list = list.shard != FEW && list.value & LIST != 0;
        is_list.then(|| {
            let (bucket, shard) = (list.shard as usize % BUCKETS, list.shard as usize / BUCKETS);
            &self.buckets[bucket].shards[shard].lists[(list.value & !LIST) as usize]
        })
    }

    fn insert(&mut self, key: u64, slot: u32) {
        assert!(slot <= SLOT_MAX, "slot {slot} is above {SLOT_MAX}");
        if self.buckets.is_empty() {
            self.few.insert(key, slot);
            if self.few.keys.len() > FEW_MAX {
                self.buckets = (0..BUCKETS).map(|_| Bucket::default()).collect();
                let few = std::mem::take(&mut self.few);
                for (key, slot) in few.keys.into_iter().zip(few.slots) {
                    self.buckets[bucket_of(key)].insert(fingerprint(key), slot);
                }
            }
        } else {
            self.buckets[bucket_of(key)].insert(fingerprint(key), slot);
        }
    }

    fn remove(&mut self, key: u64, slot: u32) {
        if let Some(bucket) = self.buckets.get_mut(bucket_of(key)) {
            bucket.remove(fingerprint(key), slot);
        } else {
            self.few.remove(key, slot);
        }
    }

    /// Who has the seed.
    pub(super) fn find(&self, key: u64) -> Option<ListRef> {
        if self.buckets.is_empty() {
            return self.few.find(key);
        }
        let wanted = fingerprint(key);
        let bucket_at = bucket_of(key);
        let bucket = &self.buckets[bucket_at];
        let shard_at = bucket.shard_of(wanted);
        let shard = bucket.shards.get(shard_at)?;
        if shard.used == 0 {
            return None;
        }
        let cell = shard.cells[shard.place(wanted)];
        if cell == 0 || fingerprint_of(cell) != wanted {
            return None;
        }
        let shard = u32::try_from(shard_at * BUCKETS + bucket_at);
        Some(ListRef {
            shard: shard.expect("2^31 slots fill fewer than 2^24 shards of a bucket"),
            value: value_of(cell),
        })
    }

    pub(super) fn listed(&self, list: ListRef) -> Listed<'_> {
        if list.shard == FEW {
            Listed::Sorted(self.few.slots(list.value as usize))
        } else if let Some(list) = self.list(list) {
            list.listed()
        } else {
            Listed::One(list.value - 1)
        }
    }

    /// Pairs of seed and donor.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let shards = self.buckets.iter().flat_map(|bucket| &bucket.shards);
        self.few.keys.len() + shards.map(|shard| shard.postings).sum::<usize>()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let shards = |bucket: &Bucket| {
            let spare = bucket.shards.capacity() - bucket.shards.len();
            let used: usize = bucket.shards.iter().map(Shard::memory_bytes).sum();
            size_of::<Bucket>() + spare * size_of::<Shard>() + used
        };
        self.few.keys.capacity() * size_of::<u64>()
            + self.few.slots.capacity() * size_of::<u32>()
            + self.buckets.iter().map(shards).sum::<usize>()
    }
}

impl Few {
    /// Where the pair is, or where it would be.
    fn place(&self, key: u64, slot: u32) -> Result<usize, usize> {
        let start = self.keys.partition_point(|&other| other < key);
        let slots = self.slots(start);
        if self.keys.get(start) != Some(&key) {
            return Err(start);
        }
        match slots.binary_search(&slot) {
            Ok(at) => Ok(start + at),
            Err(at) => Err(start + at),
        }
    }

    fn insert(&mut self, key: u64, slot: u32) {
        if let Err(place) = self.place(key, slot) {
            self.keys.insert(place, key);
            self.slots.insert(place, slot);
        }
    }

    fn remove(&mut self, key: u64, slot: u32) {
        if let Ok(place) = self.place(key, slot) {
            self.keys.remove(place);
            self.slots.remove(place);
            if self.keys.is_empty() {
                *self = Self::default();
            }
        }
    }

    fn find(&self, key: u64) -> Option<ListRef> {
        let start = self.keys.partition_point(|&other| other < key);
        (self.keys.get(start) == Some(&key)).then(|| ListRef {
            shard: FEW,
            value: super::seeds::count_u32(start),
        })
    }

    /// The slots of the key at `start`.
    fn slots(&self, start: usize) -> &[u32] {
        let keys = &self.keys[start..];
        let alike = keys.iter().take_while(|&key| Some(key) == keys.first());
        &self.slots[start..][..alike.count()]
    }
}

impl Bucket {
    fn insert(&mut self, wanted: u32, slot: u32) {
        if self.used >= self.shards.len() * SHARD_SEEDS_MEAN {
            self.add_shard();
        }
        let at = self.shard_of(wanted);
        let before = self.shards[at].used;
        self.shards[at].insert(wanted, slot);
        self.used += (self.shards[at].used - before) as usize;
    }

    fn remove(&mut self, wanted: u32, slot: u32) {
        let at = self.shard_of(wanted);
        let Some(shard) = self.shards.get_mut(at) else {
            return;
        };
        let before = shard.used;
        shard.remove(wanted, slot);
        self.used -= (before - shard.used) as usize;
        if self.used == 0 {
            self.shards = Vec::new();
        }
    }

    /// Zero when there is no shard.
    fn shard_of(&self, fingerprint: u32) -> usize {
        let bits = self.shards.len().next_power_of_two() - 1;
        let at = fingerprint as usize & bits;
        // Where that shard is still to come, its seeds are in the one that it will be split from.
        if at < self.shards.len() {
            at
        } else {
            at & (bits >> 1)
        }
    }

    fn add_shard(&mut self) {
        let new = self.shards.len();
        self.shards.push(Shard::default());
        if new > 0 {
            let bits = (new + 1).next_power_of_two() - 1;
            let old = new & (bits >> 1);
            let parted = self.shards[old].split(|fingerprint| fingerprint as usize & bits == new);
            self.shards[new] = parted;
        }
    }
}

impl Shard {
    fn insert(&mut self, wanted: u32, slot: u32) {
        if self.used * 6 >= self.homes * 5 {
            self.rebuild(self.homes + self.homes / GROWTH + 8);
        }
        let place = self.place(wanted);
        let cell = self.cells[place];
        if cell == 0 || fingerprint_of(cell) != wanted {
            self.open(place, pack(wanted, slot + 1));
            self.postings += 1;
            return;
        }
        let value = value_of(cell);
        if value & LIST != 0 {
            let list = &mut self.lists[(value & !LIST) as usize];
            let before = list.memory_bytes();
            self.postings += usize::from(list.insert(slot));
            self.list_bytes = self.list_bytes + list.memory_bytes() - before;
        } else if value - 1 != slot {
            let list = SlotList::of_two(slot, value - 1);
            self.list_bytes += list.memory_bytes();
            let index = self.add_list(list);
            self.cells[place] = pack(wanted, index | LIST);
            self.postings += 1;
        }
    }

    fn remove(&mut self, wanted: u32, slot: u32) {
        if self.used == 0 {
            return;
        }
        let place = self.place(wanted);
        let cell = self.cells[place];
        if cell == 0 || fingerprint_of(cell) != wanted {
            return;
        }
        let value = value_of(cell);
        if value & LIST == 0 {
            if value - 1 == slot {
                self.postings -= 1;
                self.close(place);
            }
            return;
        }
        let index = value & !LIST;
        let list = &mut self.lists[index as usize];
        let before = list.memory_bytes();
        self.postings -= usize::from(list.remove(slot));
        self.list_bytes = self.list_bytes + list.memory_bytes() - before;
        if let Listed::Sorted(&[last]) = list.listed() {
            self.list_bytes -= list.memory_bytes();
            *list = SlotList::Sorted(Vec::new());
            self.free_list(index);
            self.cells[place] = pack(wanted, last + 1);
        }
    }

    /// The first cell from the home on that is empty or has no smaller fingerprint.
    fn place(&self, wanted: u32) -> usize {
        let home = self.home(wanted);
        home + probe(&self.cells[home..], u64::from(wanted) << 32)
    }

    fn home(&self, fingerprint: u32) -> usize {
        ((u64::from(fingerprint) * u64::from(self.homes)) >> 32) as usize
    }

    /// Moves the cells from `place` up to the next empty one on by one, to make room.
    fn open(&mut self, place: usize, cell: Cell) {
        // No cell is the largest number: lists are far fewer than 2^31.
        let empty = place + probe(&self.cells[place..], Cell::MAX);
        self.cells.copy_within(place..empty, place + 1);
        self.cells[place] = cell;
        self.used += 1;
        // The last cell stays empty: it ends every probe.
        if empty + 1 == self.cells.len() {
            lengthen(&mut self.cells, empty + 1 + TAIL);
        }
    }

    /// Empties a cell and moves those after it, as far as they are away from home, back by one.
    fn close(&mut self, place: usize) {
        let mut end = place + 1;
        while self.cells[end] != 0 && self.home(fingerprint_of(self.cells[end])) < end {
            end += 1;
        }
        self.cells.copy_within(place + 1..end, place);
        self.cells[end - 1] = 0;
        self.used -= 1;
        if self.used == 0 {
            *self = Self::default();
        } else if self.used * 4 < self.homes {
            self.rebuild(self.used * 2 + 8);
        }
    }

    fn rebuild(&mut self, homes: u32) {
        self.homes = homes;
        let mut cells = vec![0; homes as usize + 2 * TAIL];
        let mut next = 0;
        for &cell in self.cells.iter().filter(|&&cell| cell != 0) {
            next = self.home(fingerprint_of(cell)).max(next);
            if next == cells.len() {
                lengthen(&mut cells, next + TAIL);
            }
            cells[next] = cell;
            next += 1;
        }
        lengthen(&mut cells, (homes as usize).max(next) + TAIL);
        self.cells = cells;
    }

    /// Takes the seeds out whose fingerprint is wanted.
    fn split(&mut self, is_wanted: impl Fn(u32) -> bool) -> Self {
        let mut parts = [Self::default(), Self::default()];
        let mut cells = [Vec::new(), Vec::new()];
        for cell in std::mem::take(&mut self.cells) {
            if cell == 0 {
                continue;
            }
            let to = usize::from(is_wanted(fingerprint_of(cell)));
            let mut value = value_of(cell);
            let mut postings = 1;
            if value & LIST != 0 {
                let list = &mut self.lists[(value & !LIST) as usize];
                let list = std::mem::replace(list, SlotList::Sorted(Vec::new()));
                postings = list.listed().count();
                parts[to].list_bytes += list.memory_bytes();
                value = parts[to].add_list(list) | LIST;
            }
            parts[to].postings += postings;
            parts[to].used += 1;
            cells[to].push(pack(fingerprint_of(cell), value));
        }
        for (part, cells) in parts.iter_mut().zip(cells) {
            part.cells = cells;
            part.rebuild(part.used + part.used / 4 + 8);
            part.lists.shrink_to_fit();
        }
        let [rest, wanted] = parts;
        *self = rest;
        wanted
    }

    fn add_list(&mut self, list: SlotList) -> u32 {
        if let Some(index) = self.free_lists.pop() {
            self.lists[index as usize] = list;
            return index;
        }
        if self.lists.len() == self.lists.capacity() {
            self.lists.reserve_exact(self.lists.len() / 8 + 4);
        }
        self.lists.push(list);
        u32::try_from(self.lists.len() - 1).expect("a shard has fewer lists than 2^31 postings")
    }

    /// Remembers an unused list; the trailing ones are given back.
    fn free_list(&mut self, index: u32) {
        self.free_lists.push(index);
        if self.free_lists.len() == self.lists.len() {
            self.lists = Vec::new();
            self.free_lists = Vec::new();
        }
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.cells.capacity() * size_of::<Cell>()
            + self.lists.capacity() * size_of::<SlotList>()
            + self.list_bytes
            + self.free_lists.capacity() * size_of::<u32>()
    }
}

/// Adds empty cells up to a length. A vector left to itself would take room for twice as many.
fn lengthen(cells: &mut Vec<Cell>, length: usize) {
    cells.reserve_exact(length.saturating_sub(cells.len()));
    cells.resize(length.max(cells.len()), 0);
}

fn bucket_of(key: u64) -> usize {
    (key >> (u64::BITS - BUCKET_BITS)) as usize
}

fn fingerprint(key: u64) -> u32 {
    ((key << BUCKET_BITS) >> 32) as u32
}

fn fingerprint_of(cell: Cell) -> u32 {
    (cell >> 32) as u32
}

fn value_of(cell: Cell) -> u32 {
    (cell & 0xffff_ffff) as u32
}

fn pack(fingerprint: u32, value: u32) -> Cell {
    u64::from(fingerprint) << 32 | u64::from(value)
}
