//! Writes a batch as engines do, for what plays an engine: simulations, load tests, benchmarks.

use crate::event::{Adapter, Batch, Event, Extra, Kind, Medium, Removed, Stored};

/// How engines write events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Arrays with the type first: vLLM up to 0.23, SGLang up to 0.5.12.
    Positional,
    /// Maps: later ones.
    Map,
}

/// The payload of a batch; [`decode`](super::decode) gives the batch again, as far as engines can
/// say it: a salt of its own has only the map form, and one among the extra keys stands on the
/// first block of a chain. What was rejected is not written.
#[must_use]
pub fn encode(batch: &Batch<'_>, form: Form) -> Vec<u8> {
    let mut writer = Writer {
        bytes: Vec::new(),
        form,
    };
    writer.list(3);
    writer.bytes.push(0xcb);
    writer.bytes.extend(batch.sent_at_s.to_bits().to_be_bytes());
    writer.list(batch.events.len());
    for event in &batch.events {
        match event {
            Event::Stored(stored) => writer.stored(stored),
            Event::Removed(removed) => writer.removed(removed),
            Event::Cleared => writer.event("AllBlocksCleared", 0),
        }
    }
    writer.optional(batch.rank, |writer, rank| writer.unsigned(rank.into()));
    writer.bytes
}

struct Writer {
    bytes: Vec<u8>,
    form: Form,
}

impl Writer {
    fn stored(&mut self, stored: &Stored<'_>) {
        let adapter_id = match stored.adapter {
            Some(Adapter::Id(id)) => Some(id),
            Some(Adapter::Name(_)) | None => None,
        };
        let adapter_name = match stored.adapter {
            Some(Adapter::Name(name)) => Some(name),
            Some(Adapter::Id(_)) | None => None,
        };
        let named_only = stored.salt.filter(|_| self.form == Form::Map);
        self.event("BlockStored", 15 + usize::from(named_only.is_some()));
        if named_only.is_some() {
            self.name("cache_salt");
            self.optional(named_only, Self::text);
        }
        self.name("block_hashes");
        self.each(&stored.hashes, |writer, hash| writer.unsigned(hash.0));
        self.name("parent_block_hash");
        self.optional(stored.parent, |writer, hash| writer.unsigned(hash.0));
        self.name("token_ids");
        self.tokens(stored);
        self.name("block_size");
        self.unsigned(stored.block_size.into());
        self.name("lora_id");
        self.optional(adapter_id, Self::signed);
        self.name("medium");
        self.text(medium(stored.medium));
        self.name("lora_name");
        self.optional(adapter_name, Self::text);
        self.name("extra_keys");
        let extra = Some(&stored.extra).filter(|extra| !extra.is_empty());
        self.optional(extra, |writer, extra| {
            writer.each(extra, |writer, extra| writer.extra(extra, adapter_name));
        });
        self.name("group_idx");
        self.optional(stored.group, |writer, group| writer.unsigned(group.into()));
        self.name("kv_cache_spec_kind");
        self.optional(kind(stored.kind), Self::text);
        for unused in [
            "kv_cache_spec_sliding_window",
            "locality",
            "ownership",
            "session_id",
        ] {
            self.name(unused);
            self.nil();
        }
        self.name("lookahead_token_ids");
        let lookahead = Some(&stored.lookahead).filter(|tokens| !tokens.is_empty());
        self.optional(lookahead, |writer, tokens| {
            writer.list(1);
            writer.each(tokens, |writer, &token| writer.unsigned(token.into()));
        });
    }

    fn removed(&mut self, removed: &Removed) {
        self.event("BlockRemoved", 3);
        self.name("block_hashes");
        self.each(&removed.hashes, |writer, hash| writer.unsigned(hash.0));
        self.name("medium");
        self.text(medium(removed.medium));
        self.name("group_idx");
        self.optional(removed.group, |writer, group| writer.unsigned(group.into()));
    }

    fn tokens(&mut self, stored: &Stored<'_>) {
        let Some(end) = stored.bigram_end else {
            return self.each(&stored.tokens, |writer, &token| {
                writer.unsigned(token.into());
            });
        };
        let seconds = stored.tokens.iter().skip(1).chain([&end]);
        self.list(stored.tokens.len());
        for (&first, &second) in stored.tokens.iter().zip(seconds) {
            self.list(2);
            self.unsigned(first.into());
            self.unsigned(second.into());
        }
    }

    fn extra(&mut self, extra: &Extra<'_>, adapter: Option<&str>) {
        if *extra == Extra::default() {
            return self.nil();
        }
        let texts = [adapter, extra.salt];
        self.list(texts.iter().flatten().count() + extra.items.len());
        texts[..1].iter().flatten().for_each(|text| self.text(text));
        for &(item, offset) in &extra.items {
            self.list(2);
            self.text(item);
            self.signed(offset);
        }
        texts[1..].iter().flatten().for_each(|text| self.text(text));
    }

    /// The head of an event with a number of fields; each is then named and written.
    fn event(&mut self, event_type: &str, fields: usize) {
        match self.form {
            Form::Positional => self.list(1 + fields),
            Form::Map => {
                self.head(1 + fields, [(0x80, 15), (0xde, 0xffff), (0xdf, usize::MAX)]);
                self.text("type");
            }
        }
        self.text(event_type);
    }

    fn name(&mut self, field: &str) {
        match self.form {
            Form::Positional => {}
            Form::Map => self.text(field),
        }
    }

    fn each<T>(&mut self, values: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.list(values.len());
        values.iter().for_each(|value| write(self, value));
    }

    fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.nil(),
        }
    }

    fn nil(&mut self) {
        self.bytes.push(0xc0);
    }

    fn list(&mut self, count: usize) {
        self.head(count, [(0x90, 15), (0xdc, 0xffff), (0xdd, usize::MAX)]);
    }

    fn text(&mut self, text: &str) {
        let short = [(0xa0, 31), (0xda, 0xffff), (0xdb, usize::MAX)];
        self.head(text.len(), short);
        self.bytes.extend(text.as_bytes());
    }

    fn signed(&mut self, value: i64) {
        if let Ok(value) = u64::try_from(value) {
            return self.unsigned(value);
        }
        self.bytes.push(0xd3);
        self.bytes.extend(value.to_be_bytes());
    }

    fn unsigned(&mut self, value: u64) {
        let bytes = value.to_be_bytes();
        let (marker, from) = match value {
            0..=0x7f => (None, 7),
            0x80..=0xff => (Some(0xcc), 7),
            0x100..=0xffff => (Some(0xcd), 6),
            0x1_0000..=0xffff_ffff => (Some(0xce), 4),
            0x1_0000_0000.. => (Some(0xcf), 0),
        };
        self.bytes.extend(marker);
        self.bytes.extend(bytes.iter().skip(from));
    }

    /// A length behind the first of three markers whose bound holds it: inside the marker itself,
    /// in two bytes, in four.
    fn head(&mut self, length: usize, forms: [(u8, usize); 3]) {
        let bytes = length.to_be_bytes();
        let [.., third, second, high, low] = bytes;
        let [(inside, inside_max), (two, two_max), (four, _)] = forms;
        if length <= inside_max {
            self.bytes.push(inside | low);
        } else if length <= two_max {
            self.bytes.extend([two, high, low]);
        } else {
            self.bytes.extend([four, third, second, high, low]);
        }
    }
}

fn medium(medium: Medium) -> &'static str {
    match medium {
        Medium::Device => "GPU",
        Medium::Host => "CPU",
        Medium::Disk => "DISK",
    }
}

fn kind(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Absent => None,
        Kind::Attention => Some("full_attention"),
        Kind::Other => Some("sliding_window"),
        Kind::Unknown => Some("unknown"),
    }
}
