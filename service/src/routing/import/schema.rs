//! The three prior schemas: what a file must say to be a prior, whatever its format.

use std::collections::BTreeMap;
use std::fmt;

use kvatlas_kernels::Scores;

use super::{
    Affinities, BLOCK_SIZE_MAX, BLOCKS_MAX, ImportedPrior, KV_HEADS_MAX, LAYERS_MAX,
    LIST_ENTRIES_MAX, LIST_KEYS_MAX, METADATA_ENTRIES_MAX, METADATA_KEY_BYTES_MAX,
    METADATA_VALUE_BYTES_MAX, PRIOR_TYPE_BYTES_MAX,
};

pub(super) const AFFINITIES: &str = "block_affinities";
pub(super) const LISTS_BY_K: &str = "kmeans_blocks_perK";
pub(super) const LEGACY_LIST: &str = "kmeans_blocks";
pub(super) const PRIOR_TYPE: &str = "prior_type";
const DROPPED_LISTS_BY_K: &str = "dropped kmeans_blocks_perK";
const DROPPED_LEGACY_LIST: &str = "dropped kmeans_blocks";

/// The fields of a file, each checked for itself.
#[derive(Debug, Default)]
pub(super) struct Fields {
    affinities: Option<Affinities>,
    lists_by_k: BTreeMap<u32, Vec<u32>>,
    legacy_list: Option<Vec<u32>>,
    /// Entries of all lists so far.
    list_entries: usize,
    list_keys: usize,
    counts: [Option<u32>; Count::ALL.len()],
    prior_type: Option<String>,
    metadata: BTreeMap<String, String>,
    /// What to name when the file turns out to be no prior.
    found: String,
}

/// The numbers that a file may state of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    Layers,
    KvHeads,
    Blocks,
    BlockSize,
}

/// A block list, as messages name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListName {
    Legacy,
    ByK(u32),
}

/// Why a file's fields are no prior.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error(
        "no prior: none of {AFFINITIES}, {LISTS_BY_K} and {LEGACY_LIST} is there; found {found}"
    )]
    NotAPrior { found: String },
    #[error("{AFFINITIES} has the shape {shape:?}, not [layers, kv_heads, blocks]")]
    Rank { shape: Vec<u64> },
    #[error("{AFFINITIES} has {found} {field}; 1 to {limit} are read")]
    Dimension {
        field: &'static str,
        found: u64,
        limit: u32,
    },
    #[error("{field} is {stated}, but {AFFINITIES} has {found}")]
    Disagrees {
        field: &'static str,
        stated: u32,
        found: u32,
    },
    #[error("{field} is {found}; 1 to {limit} are read")]
    Count {
        field: &'static str,
        found: String,
        limit: u32,
    },
    #[error("{field} is {found}, not {wanted}")]
    Kind {
        field: String,
        found: &'static str,
        wanted: &'static str,
    },
    #[error("{LISTS_BY_K} has the key {found}; 1 to {BLOCKS_MAX} are read")]
    ListKey { found: String },
    #[error("{LISTS_BY_K} has more than {LIST_KEYS_MAX} keys")]
    ListKeys,
    #[error("the block lists have more than {LIST_ENTRIES_MAX} entries together")]
    ListEntries,
    #[error("{list} lists {entries} blocks; a list for k has at most k")]
    ListLength { list: ListName, entries: usize },
    #[error("{list} lists block {entry}; blocks are 0 to {last}")]
    Entry {
        list: ListName,
        entry: i64,
        last: u32,
    },
    #[error("{list} lists block {entry} twice")]
    Repeated { list: ListName, entry: u32 },
    #[error("{field} has {bytes} bytes; at most {limit} are read")]
    Text {
        field: &'static str,
        bytes: usize,
        limit: usize,
    },
}

impl fmt::Display for ListName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Legacy => formatter.write_str(LEGACY_LIST),
            Self::ByK(k) => write!(formatter, "{LISTS_BY_K}[{k}]"),
        }
    }
}

impl Count {
    pub(super) const ALL: [Self; 4] = [Self::Layers, Self::KvHeads, Self::Blocks, Self::BlockSize];

    pub(super) fn field(self) -> &'static str {
        match self {
            Self::Layers => "num_layers",
            Self::KvHeads => "num_kv_heads",
            Self::Blocks => "num_blocks",
            Self::BlockSize => "block_size",
        }
    }

    fn limit(self) -> u32 {
        match self {
            Self::Layers => LAYERS_MAX,
            Self::KvHeads => KV_HEADS_MAX,
            Self::Blocks => BLOCKS_MAX,
            Self::BlockSize => BLOCK_SIZE_MAX,
        }
    }
}

/// Whether a field's name is one of the schema's, and so no metadata.
pub(super) fn is_schema_field(name: &str) -> bool {
    [AFFINITIES, LISTS_BY_K, LEGACY_LIST, PRIOR_TYPE].contains(&name)
        || Count::ALL.iter().any(|count| count.field() == name)
}

/// Checks the shape of `block_affinities`, before its elements are read.
pub(super) fn affinity_shape(shape: &[u64]) -> Result<[u32; 3], SchemaError> {
    let &[layers, kv_heads, blocks] = shape else {
        return Err(SchemaError::Rank {
            shape: shape.to_vec(),
        });
    };
    let dimension = |field, found, limit| match u32::try_from(found) {
        Ok(size @ 1..) if size <= limit => Ok(size),
        Ok(_) | Err(_) => Err(SchemaError::Dimension {
            field,
            found,
            limit,
        }),
    };
    Ok([
        dimension("layers", layers, LAYERS_MAX)?,
        dimension("KV heads", kv_heads, KV_HEADS_MAX)?,
        dimension("blocks", blocks, BLOCKS_MAX)?,
    ])
}

impl Fields {
    pub(super) fn affinities(&mut self, [layers, kv_heads, blocks]: [u32; 3], scores: Scores) {
        self.affinities = Some(Affinities {
            layers,
            kv_heads,
            blocks,
            scores,
        });
    }

    pub(super) fn count(&mut self, count: Count, found: i64) -> Result<(), SchemaError> {
        let (field, limit) = (count.field(), count.limit());
        let number = u32::try_from(found)
            .ok()
            .filter(|&number| 1 <= number && number <= limit);
        let Some(number) = number else {
            return Err(SchemaError::Count {
                field,
                found: found.to_string(),
                limit,
            });
        };
        self.counts[count as usize] = Some(number);
        Ok(())
    }

    pub(super) fn prior_type(&mut self, text: &str) -> Result<(), SchemaError> {
        let (field, bytes, limit) = (PRIOR_TYPE, text.len(), PRIOR_TYPE_BYTES_MAX);
        if bytes > limit {
            return Err(SchemaError::Text {
                field,
                bytes,
                limit,
            });
        }
        self.prior_type = Some(text.to_owned()).filter(|text| !text.is_empty());
        Ok(())
    }

    /// Keeps a scalar that belongs to no schema; drops it where there is no room.
    pub(super) fn metadata(&mut self, key: &str, text: &str) {
        let room = self.metadata.len() < METADATA_ENTRIES_MAX || self.metadata.contains_key(key);
        if room && !key.is_empty() && key.len() <= METADATA_KEY_BYTES_MAX {
            let end = text.floor_char_boundary(METADATA_VALUE_BYTES_MAX);
            self.metadata.insert(key.to_owned(), text[..end].to_owned());
        }
    }

    pub(super) fn found(&mut self, found: String) {
        self.found = found;
    }

    /// Checks a key of the lists by k, and how many there were.
    pub(super) fn list_key(&mut self, k: i64) -> Result<ListName, SchemaError> {
        self.list_keys += 1;
        if self.list_keys > LIST_KEYS_MAX {
            return Err(SchemaError::ListKeys);
        }
        match u32::try_from(k) {
            Ok(k @ 1..=BLOCKS_MAX) => Ok(ListName::ByK(k)),
            Ok(_) | Err(_) => Err(SchemaError::ListKey {
                found: k.to_string(),
            }),
        }
    }

    /// Takes the room that a list of so many entries needs: to be asked for before a list is
    /// built, since one list of a pickle can stand under every key.
    pub(super) fn reserve(&mut self, entries: usize) -> Result<(), SchemaError> {
        self.list_entries = self.list_entries.saturating_add(entries);
        if self.list_entries > LIST_ENTRIES_MAX {
            Err(SchemaError::ListEntries)
        } else {
            Ok(())
        }
    }

    /// Takes a block list. An empty one counts as absent; of two for one k, the later counts.
    pub(super) fn list(&mut self, name: ListName, entries: &[i64]) -> Result<(), SchemaError> {
        if entries.is_empty() {
            return Ok(());
        }
        let last = BLOCKS_MAX - 1;
        let block = |&entry: &i64| match u32::try_from(entry) {
            Ok(block) if block <= last => Ok(block),
            Ok(_) | Err(_) => Err(SchemaError::Entry {
                list: name,
                entry,
                last,
            }),
        };
        let list: Vec<u32> = entries.iter().map(block).collect::<Result<_, _>>()?;
        let mut sorted = list.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(SchemaError::Repeated {
                list: name,
                entry: pair[0],
            });
        }
        match name {
            ListName::Legacy => self.legacy_list = Some(list),
            ListName::ByK(k) if list.len() > k as usize => {
                return Err(SchemaError::ListLength {
                    list: name,
                    entries: list.len(),
                });
            }
            ListName::ByK(k) => drop(self.lists_by_k.insert(k, list)),
        }
        Ok(())
    }

    /// Checks the fields against each other.
    pub(super) fn check(mut self) -> Result<ImportedPrior, SchemaError> {
        if self.affinities.is_none() && self.lists_by_k.is_empty() && self.legacy_list.is_none() {
            return Err(SchemaError::NotAPrior { found: self.found });
        }
        let tensor = self.affinities.as_ref();
        let shape = tensor.map(|tensor| [tensor.layers, tensor.kv_heads, tensor.blocks]);
        if let Some([layers, kv_heads, blocks]) = shape {
            self.agrees(Count::Layers, layers)?;
            self.agrees(Count::KvHeads, kv_heads)?;
            self.agrees(Count::Blocks, blocks)?;
            self.drop_lists_beyond(blocks);
        } else if let Some(blocks) = self.stated(Count::Blocks)
            && let Some((list, entry)) = self.list_beyond(blocks, |_| true)
        {
            return Err(SchemaError::Entry {
                list,
                entry: entry.into(),
                last: blocks - 1,
            });
        }
        Ok(ImportedPrior {
            total_blocks: shape
                .map(|[.., blocks]| blocks)
                .or(self.stated(Count::Blocks)),
            block_size: self.stated(Count::BlockSize),
            affinities: self.affinities,
            lists_by_k: self.lists_by_k,
            legacy_list: self.legacy_list,
            prior_type: self.prior_type,
            metadata: self.metadata,
        })
    }

    fn stated(&self, count: Count) -> Option<u32> {
        self.counts[count as usize]
    }

    fn agrees(&self, count: Count, found: u32) -> Result<(), SchemaError> {
        match self.stated(count) {
            Some(stated) if stated != found => Err(SchemaError::Disagrees {
                field: count.field(),
                stated,
                found,
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Lists that name blocks which the tensor lacks were made for another cartridge: the tensor
    /// stands, the lists go (all by k, or the legacy one), and the metadata says so.
    fn drop_lists_beyond(&mut self, blocks: u32) {
        let note = |(list, entry): (ListName, u32)| {
            format!("{list} lists block {entry}, {AFFINITIES} has {blocks}")
        };
        if let Some(beyond) = self.list_beyond(blocks, |list| list != ListName::Legacy) {
            self.lists_by_k.clear();
            self.note(DROPPED_LISTS_BY_K, note(beyond));
        }
        if let Some(beyond) = self.list_beyond(blocks, |list| list == ListName::Legacy) {
            self.legacy_list = None;
            self.note(DROPPED_LEGACY_LIST, note(beyond));
        }
    }

    /// Makes room for a note of our own.
    fn note(&mut self, key: &str, text: String) {
        if self.metadata.len() >= METADATA_ENTRIES_MAX {
            self.metadata.pop_last();
        }
        self.metadata.insert(key.to_owned(), text);
    }

    /// The first entry, of the lists asked for, that is no block of so many.
    fn list_beyond(&self, blocks: u32, of: impl Fn(ListName) -> bool) -> Option<(ListName, u32)> {
        let by_k = self
            .lists_by_k
            .iter()
            .map(|(&k, list)| (ListName::ByK(k), list));
        let legacy = self.legacy_list.iter().map(|list| (ListName::Legacy, list));
        by_k.chain(legacy)
            .filter(|&(name, _)| of(name))
            .find_map(|(name, list)| {
                let entry = list.iter().copied().find(|&entry| entry >= blocks);
                entry.map(|entry| (name, entry))
            })
    }
}
