//! Writes records as lines of JSON, without an allocation: a third of the time that serde takes.
//!
//! The derived serialization of [`super::record`] is the specification, and the twin in the tests.

use super::record::{
    Decimal, Gates, Hex, Line, Lookup, Manifest, Record, Reuse, Source, Sources, Stages, Start,
};

/// Appends the record and a line feed.
pub(super) fn write(line: &Line, to: &mut Vec<u8>) {
    let Line { v, at_ms, record } = line;
    let mut object = Object { to, is_empty: true };
    object.begin();
    object.number("v", u64::from(*v));
    object.number("at_ms", *at_ms);
    match record {
        Record::Start(it) => start(it, &mut object),
        Record::Lookup(it) => lookup(it, &mut object),
        Record::Manifest(it) => manifest(it, &mut object),
        Record::Reuse(it) => reuse(it, &mut object),
        Record::Sources(it) => sources(it, &mut object),
    }
    object.end();
    to.push(b'\n');
}

fn start(start: &Start, to: &mut Object<'_>) {
    let Start {
        version,
        epoch,
        mode,
    } = start;
    to.word("kind", "start");
    to.word("version", version);
    to.number("epoch", *epoch);
    to.word("mode", mode.as_str());
}

fn lookup(lookup: &Lookup, to: &mut Object<'_>) {
    let Lookup {
        request,
        took_us,
        namespace,
        outcome,
        reason,
        gate,
        mode,
        prompt_tokens,
        exact_prefix_tokens,
        verified_tokens,
        reusable_tokens,
        similarity,
        reuse_ratio,
        gates,
        tier,
        donor,
        owner,
        template,
        leased,
        lease_refusal,
        facts_differ,
        stages_us,
    } = lookup;
    to.word("kind", "lookup");
    to.hex_if("request", *request);
    to.decimal("took_us", *took_us);
    to.hex_if("namespace", *namespace);
    to.word("outcome", outcome.as_str());
    to.word_if("reason", reason.map(|it| it.as_str()));
    to.word_if("gate", gate.map(|it| it.as_str()));
    to.word("mode", mode.as_str());
    to.number("prompt_tokens", u64::from(*prompt_tokens));
    to.number("exact_prefix_tokens", u64::from(*exact_prefix_tokens));
    to.number("verified_tokens", u64::from(*verified_tokens));
    to.number("reusable_tokens", u64::from(*reusable_tokens));
    to.decimal_if("similarity", *similarity);
    to.decimal_if("reuse_ratio", *reuse_ratio);
    if let Some(gates) = gates {
        self::gates(gates, to);
    }
    to.word_if("tier", tier.map(|it| it.as_str()));
    to.hex_if("donor", *donor);
    to.hex_if("owner", *owner);
    to.hex_if("template", *template);
    to.flag("leased", *leased);
    to.word_if("lease_refusal", lease_refusal.map(|it| it.as_str()));
    if let Some(facts_differ) = facts_differ {
        to.flag("facts_differ", *facts_differ);
    }
    stages(stages_us, to);
}

fn gates(gates: &Gates, to: &mut Object<'_>) {
    let Gates {
        min_prompt_tokens,
        min_reuse_tokens,
        min_similarity,
        min_reuse_ratio,
        exact_prefix_skip_ratio,
    } = *gates;
    to.key("gates");
    to.begin();
    to.number("min_prompt_tokens", u64::from(min_prompt_tokens));
    to.number("min_reuse_tokens", u64::from(min_reuse_tokens));
    to.decimal("min_similarity", min_similarity);
    to.decimal("min_reuse_ratio", min_reuse_ratio);
    to.decimal("exact_prefix_skip_ratio", exact_prefix_skip_ratio);
    to.end();
}

fn stages(stages: &Stages, to: &mut Object<'_>) {
    let Stages {
        seeds,
        align,
        gate,
        neighbours,
        facts,
    } = *stages;
    to.key("stages_us");
    to.begin();
    to.decimal("seeds", seeds);
    to.decimal("align", align);
    to.decimal("gate", gate);
    to.decimal("neighbours", neighbours);
    to.decimal("facts", facts);
    to.end();
}

fn manifest(manifest: &Manifest, to: &mut Object<'_>) {
    let Manifest {
        request,
        took_us,
        outcome,
        reason,
        prefix,
        algorithm,
        policy,
        provenance,
        k,
        total_blocks,
    } = *manifest;
    to.word("kind", "manifest");
    to.hex_if("request", request);
    to.decimal("took_us", took_us);
    to.word("outcome", outcome.as_str());
    to.word_if("reason", reason.map(|it| it.as_str()));
    to.hex_if("prefix", Some(prefix));
    to.word_if("algorithm", algorithm.map(|it| it.as_str()));
    to.word_if("policy", policy.map(|it| it.as_str()));
    to.word_if("provenance", provenance.map(|it| it.as_str()));
    to.number("k", u64::from(k));
    to.number("total_blocks", u64::from(total_blocks));
}

fn reuse(reuse: &Reuse, to: &mut Object<'_>) {
    let Reuse {
        request,
        took_us,
        provenance,
        reason,
        tokens_loaded,
        invalid_blocks,
        released,
    } = *reuse;
    to.word("kind", "reuse");
    to.hex_if("request", request);
    to.decimal("took_us", took_us);
    to.word("provenance", provenance.as_str());
    to.word_if("reason", reason.map(|it| it.as_str()));
    to.number("tokens_loaded", u64::from(tokens_loaded));
    to.number("invalid_blocks", u64::from(invalid_blocks));
    to.flag("released", released);
}

fn sources(sources: &Sources, to: &mut Object<'_>) {
    let Sources {
        exact,
        degraded,
        stale,
        sources,
    } = sources;
    to.word("kind", "sources");
    to.number("exact", u64::from(*exact));
    to.number("degraded", u64::from(*degraded));
    to.number("stale", u64::from(*stale));
    to.key("sources");
    to.to.push(b'[');
    for (index, source) in sources.iter().enumerate() {
        let Source {
            worker,
            state,
            gaps,
            replays,
        } = *source;
        if index > 0 {
            to.to.push(b',');
        }
        to.begin();
        to.hex_if("worker", Some(worker));
        to.word("state", state.as_str());
        to.number("gaps", gaps);
        to.number("replays", replays);
        to.end();
    }
    to.to.push(b']');
}

// What a JSON object is written through. Keys and words are ours: no character of them is escaped.
struct Object<'a> {
    to: &'a mut Vec<u8>,
    is_empty: bool,
}

impl Object<'_> {
    fn begin(&mut self) {
        self.to.push(b'{');
        self.is_empty = true;
    }

    fn end(&mut self) {
        self.to.push(b'}');
        self.is_empty = false;
    }

    fn key(&mut self, key: &str) {
        if !self.is_empty {
            self.to.push(b',');
        }
        self.is_empty = false;
        self.text(key);
        self.to.push(b':');
    }

    fn text(&mut self, text: &str) {
        debug_assert!(
            text.bytes()
                .all(|it| (b' '..0x7f).contains(&it) && it != b'"' && it != b'\\'),
            "words need no escapes"
        );
        self.to.push(b'"');
        self.to.extend_from_slice(text.as_bytes());
        self.to.push(b'"');
    }

    fn word(&mut self, key: &str, word: &str) {
        self.key(key);
        self.text(word);
    }

    fn word_if(&mut self, key: &str, word: Option<&str>) {
        if let Some(word) = word {
            self.word(key, word);
        }
    }

    fn number(&mut self, key: &str, number: u64) {
        self.key(key);
        let mut digits = itoa::Buffer::new();
        self.to.extend_from_slice(digits.format(number).as_bytes());
    }

    fn flag(&mut self, key: &str, flag: bool) {
        self.key(key);
        let text: &[u8] = if flag { b"true" } else { b"false" };
        self.to.extend_from_slice(text);
    }

    fn hex_if<const DIGITS: usize>(&mut self, key: &str, value: Option<Hex<DIGITS>>) {
        const DIGITS_OF: &[u8; 16] = b"0123456789abcdef";
        let Some(Hex(value)) = value else {
            return;
        };
        self.key(key);
        self.to.push(b'"');
        for place in (0..DIGITS).rev() {
            let digit = (value >> (4 * place)) & 15;
            self.to.push(DIGITS_OF[digit as usize]);
        }
        self.to.push(b'"');
    }

    fn decimal_if<const PLACES: u32>(&mut self, key: &str, value: Option<Decimal<PLACES>>) {
        if let Some(value) = value {
            self.decimal(key, value);
        }
    }

    fn decimal<const PLACES: u32>(&mut self, key: &str, value: Decimal<PLACES>) {
        let one = 10_u64.pow(PLACES);
        self.number(key, value.0 / one);
        let mut rest = value.0 % one;
        if rest == 0 {
            return;
        }
        self.to.push(b'.');
        let mut unit = one / 10;
        while rest > 0 {
            let digit = u8::try_from(rest / unit).unwrap_or(9);
            self.to.push(b'0' + digit);
            rest %= unit;
            unit /= 10;
        }
    }
}

#[cfg(test)]
mod tests;
