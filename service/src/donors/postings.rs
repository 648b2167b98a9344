//! Which donors have a seed: an open-addressed table from seed keys to sorted lists of slots.
//!
//! Most seeds have one donor, so a cell holds its slot inline; the others hold the index of a list.
//! Cells are ordered by fingerprint and a fingerprint's home grows with it, so growing is one pass
//! in order, removal leaves no tombstones, and an absent seed is told at the first larger
//! fingerprint. The shards keep the growth of one table short.

/// Shards by the key's first bits. A shard of a million donors of 2,000 tokens has about half a
/// million cells.
const SHARDS: usize = 256;
const SHARD_BITS: u32 = SHARDS.ilog2();
/// Cells past the last home, so that no probe wraps around.
const TAIL: usize = 16;
/// Marks a cell's value as the index of a list.
const LIST: u32 = 1 << 31;
/// Slots are below this, so that slot + 1 leaves the mark free and zero means an empty cell.
pub(super) const SLOT_MAX: u32 = LIST - 2;

/// All postings of a namespace.
#[derive(Debug)]
pub(super) struct Postings {
    shards: Box<[Shard]>,
}

/// The donors of one seed; good until the next change of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListRef {
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
    /// Slots in ascending order, two or more in a list in use.
    lists: Vec<Vec<u32>>,
    free_lists: Vec<u32>,
    postings: usize,
    list_capacity: usize,
}

impl Postings {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        }
    }

    /// Adds a donor to a seed; nothing changes when it is there.
    pub(super) fn insert(&mut self, key: u64, slot: u32) {
        assert!(slot <= SLOT_MAX, "slot {slot} is above {SLOT_MAX}");
        self.shards[shard_of(key)].insert(fingerprint(key), slot);
    }

    /// Takes a donor from a seed; nothing changes when it is not there.
    pub(super) fn remove(&mut self, key: u64, slot: u32) {
        self.shards[shard_of(key)].remove(fingerprint(key), slot);
    }

    /// The cell where the search for a key begins. Reading all of them first, with nothing that
    /// waits for one, lets their cache misses overlap.
    pub(super) fn home_cell(&self, key: u64) -> u64 {
        let shard = &self.shards[shard_of(key)];
        shard
            .cells
            .get(shard.home(fingerprint(key)))
            .copied()
            .unwrap_or(0)
    }

    /// Who has the seed, given its [`Postings::home_cell`].
    pub(super) fn find(&self, key: u64, home_cell: u64) -> Option<ListRef> {
        if home_cell == 0 {
            return None;
        }
        let wanted = fingerprint(key);
        let shard = shard_of(key);
        let value = if fingerprint_of(home_cell) == wanted {
            value_of(home_cell)
        } else {
            let cells = &self.shards[shard].cells;
            let cell = cells[self.shards[shard].place(wanted)];
            if cell == 0 || fingerprint_of(cell) != wanted {
                return None;
            }
            value_of(cell)
        };
        Some(ListRef {
            shard: u32::try_from(shard).expect("there are 256 shards"),
            value,
        })
    }

    /// The slots of a list in ascending order; `single` lends room for one that is stored inline.
    pub(super) fn slots<'a>(&'a self, list: ListRef, single: &'a mut [u32; 1]) -> &'a [u32] {
        if list.value & LIST == 0 {
            single[0] = list.value - 1;
            single
        } else {
            &self.shards[list.shard as usize].lists[(list.value & !LIST) as usize]
        }
    }

    /// Pairs of seed and donor.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.postings).sum()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.shards.iter().map(Shard::memory_bytes).sum()
    }
}

impl Shard {
    fn insert(&mut self, wanted: u32, slot: u32) {
        if self.used * 5 >= self.homes * 4 {
            self.rebuild(self.homes + self.homes / 2 + 8);
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
            if let Err(at) = list.binary_search(&slot) {
                let before = list.capacity();
                if list.len() == before {
                    // A quarter more: doubling would leave a third of the room unused.
                    list.reserve_exact(before / 4 + 2);
                }
                list.insert(at, slot);
                self.list_capacity += list.capacity() - before;
                self.postings += 1;
            }
        } else if value - 1 != slot {
            let other = value - 1;
            let list = vec![slot.min(other), slot.max(other)];
            self.list_capacity += list.capacity();
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
        let Ok(at) = list.binary_search(&slot) else {
            return;
        };
        self.postings -= 1;
        self.list_capacity -= list.capacity();
        list.remove(at);
        if let [last] = **list {
            *list = Vec::new();
            self.free_list(index);
            self.cells[place] = pack(wanted, last + 1);
        } else {
            if list.len() < list.capacity() / 2 {
                list.shrink_to_fit();
            }
            self.list_capacity += list.capacity();
        }
    }

    /// The first cell from the home on that is empty or has no smaller fingerprint.
    fn place(&self, wanted: u32) -> usize {
        let mut place = self.home(wanted);
        while self.cells[place] != 0 && fingerprint_of(self.cells[place]) < wanted {
            place += 1;
        }
        place
    }

    fn home(&self, fingerprint: u32) -> usize {
        ((u64::from(fingerprint) * u64::from(self.homes)) >> 32) as usize
    }

    /// Moves the cells from `place` up to the next empty one on by one, to make room.
    fn open(&mut self, place: usize, cell: Cell) {
        let mut empty = place;
        while self.cells[empty] != 0 {
            empty += 1;
        }
        self.cells.copy_within(place..empty, place + 1);
        self.cells[place] = cell;
        self.used += 1;
        // The last cell stays empty: it ends every probe.
        if empty + 1 == self.cells.len() {
            self.cells.resize(empty + 1 + TAIL, 0);
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
        let old = std::mem::take(&mut self.cells);
        self.homes = homes;
        let mut cells = Vec::with_capacity(homes as usize + TAIL);
        for cell in old.into_iter().filter(|&cell| cell != 0) {
            let home = self.home(fingerprint_of(cell));
            if home > cells.len() {
                cells.resize(home, 0);
            }
            cells.push(cell);
        }
        let length = (homes as usize).max(cells.len()) + TAIL;
        cells.resize(length, 0);
        self.cells = cells;
    }

    fn add_list(&mut self, list: Vec<u32>) -> u32 {
        if let Some(index) = self.free_lists.pop() {
            self.lists[index as usize] = list;
            return index;
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
        /// What the allocator adds to a list.
        const LIST_OVERHEAD: usize = 16;
        size_of::<Self>()
            + self.cells.capacity() * size_of::<Cell>()
            + self.lists.capacity() * (size_of::<Vec<u32>>() + LIST_OVERHEAD)
            + (self.list_capacity + self.free_lists.capacity()) * size_of::<u32>()
    }
}

fn shard_of(key: u64) -> usize {
    (key >> (u64::BITS - SHARD_BITS)) as usize
}

fn fingerprint(key: u64) -> u32 {
    ((key << SHARD_BITS) >> 32) as u32
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
