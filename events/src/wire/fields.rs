//! The fields of an event as they are read, in any order, and what they make together.

use super::{
    EVENT_HASHES_MAX,
    extra::read_extra,
    reader::Reader,
    tokens::{Tokens, read_lookahead, read_tokens},
};
use crate::event::{Adapter, EngineHash, Kind, Medium, Removed, Stored};
use crate::repeats::Repeats;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    AdapterId,
    Medium,
    AdapterName,
    Extra,
    Group,
    Kind,
    Lookahead,
    Salt,
    /// Passed over: not known, or known and of no use here.
    Unknown,
}

/// What has been read of an event. Of a field that comes twice in a map the last one counts.
#[derive(Default)]
pub(super) struct Fields<'a> {
    hashes: Option<Vec<EngineHash>>,
    parent: Option<EngineHash>,
    tokens: Option<Tokens>,
    block_size: Option<u32>,
    adapter_id: Option<i64>,
    adapter_name: Option<&'a str>,
    medium: Medium,
    /// Where it begins: what its strings mean depends on other fields.
    extra: Option<Reader<'a>>,
    group: Option<u32>,
    kind: Option<Kind>,
    lookahead: Vec<u32>,
    salt: Option<&'a str>,
}

impl<'a> Fields<'a> {
    /// Reads a value as the field that it is.
    pub(super) fn read(&mut self, field: Field, reader: &mut Reader<'a>) -> Option<()> {
        match field {
            Field::Hashes => self.hashes = Some(read_hashes(reader)?),
            Field::Parent => self.parent = reader.optional(Reader::hash)?,
            Field::Tokens => self.tokens = Some(read_tokens(reader)?),
            Field::BlockSize => self.block_size = Some(reader.unsigned()?),
            Field::AdapterId => self.adapter_id = reader.optional(Reader::signed_64)?,
            Field::AdapterName => self.adapter_name = reader.optional(Reader::text)?,
            Field::Medium => {
                let name = reader.optional(Reader::text)?;
                self.medium = name.map_or(Medium::Device, medium);
            }
            Field::Extra => {
                self.extra = Some(*reader);
                reader.skip().ok()?;
            }
            Field::Group => self.group = reader.optional(Reader::unsigned)?,
            Field::Kind => self.kind = reader.optional(Reader::text)?.map(kind),
            Field::Lookahead => {
                self.lookahead = reader.optional(read_lookahead)?.unwrap_or_default();
            }
            Field::Salt => self.salt = reader.optional(Reader::text)?,
            Field::Unknown => reader.skip().ok()?,
        }
        Some(())
    }

    /// `None` where a field is missing, a block would be its own ancestor, or what is said for
    /// each block is not said for as many blocks as there are.
    pub(super) fn into_stored(self, repeats: &mut Repeats) -> Option<Stored<'a>> {
        let hashes = self.hashes?;
        if self.parent.is_some_and(|parent| hashes.contains(&parent)) || repeats.any(&hashes) {
            return None;
        }
        let Tokens { ids, bigram_end } = self.tokens?;
        let extra = match self.extra {
            Some(mut reader) => read_extra(&mut reader, self.adapter_name, self.parent)?,
            None => Vec::new(),
        };
        if !extra.is_empty() && extra.len() != hashes.len() {
            return None;
        }
        let by_id = self.adapter_id.map(Adapter::Id);
        Some(Stored {
            hashes,
            parent: self.parent,
            tokens: ids,
            bigram_end,
            block_size: self.block_size?,
            medium: self.medium,
            adapter: self.adapter_name.map(Adapter::Name).or(by_id),
            salt: self.salt,
            extra,
            group: self.group,
            kind: self.kind.unwrap_or(Kind::Absent),
            lookahead: self.lookahead,
        })
    }

    /// A hash may stand there twice: of two copies both may go.
    pub(super) fn into_removed(self) -> Option<Removed> {
        Some(Removed {
            hashes: self.hashes?,
            medium: self.medium,
            group: self.group,
        })
    }
}

fn read_hashes(reader: &mut Reader<'_>) -> Option<Vec<EngineHash>> {
    let count = reader.list().filter(|&count| count <= EVENT_HASHES_MAX)?;
    let mut hashes = Vec::with_capacity(count);
    for _ in 0..count {
        hashes.push(reader.hash()?);
    }
    Some(hashes)
}

/// A medium that is not known is taken for the slowest.
fn medium(name: &str) -> Medium {
    match name {
        "GPU" => Medium::Device,
        "CPU" | "CPU_PINNED" => Medium::Host,
        // "STORAGE", "FS", "OBJ", "DISK", "EXTERNAL"
        _ => Medium::Disk,
    }
}

/// "unknown" is a name that vLLM itself gives, and means what it says.
fn kind(name: &str) -> Kind {
    match name {
        "full_attention" | "mla_attention" | "sink_full_attention" => Kind::Attention,
        "sliding_window"
        | "sliding_window_mla"
        | "mamba"
        | "chunked_local_attention"
        | "encoder_only_attention"
        | "cross_attention" => Kind::Other,
        _ => Kind::Unknown,
    }
}
