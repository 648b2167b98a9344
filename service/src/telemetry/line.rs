//! Writes records as lines of JSON, without an allocation: a third of the time that serde takes.
//!
//! The derived serialization of [`super::record`] is the specification, and the twin in the tests.

use super::record::{
    Decimal, Gates, Hex, Line, Lookup, Manifest, Record, Reuse, Source, Sources, Stages, Start,
};

/// Room that is made for a line: most have it.
const LINE_BYTES: usize = 1_024;

/// A key that is not the first, as it stands in a line.
macro_rules! key {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}

/// Appends the record and a line feed.
pub(super) fn write(line: &Line, to: &mut Vec<u8>) {
    let Line { v, at_ms, record } = line;
    to.reserve(LINE_BYTES);
    let mut object = Object { to };
    object.number("{\"v\":", u64::from(*v));
    object.number(key!("at_ms"), *at_ms);
    match record {
        Record::Start(it) => start(it, &mut object),
        Record::Lookup(it) => lookup(it, &mut object),
        Record::Manifest(it) => manifest(it, &mut object),
        Record::Reuse(it) => reuse(it, &mut object),
        Record::Sources(it) => sources(it, &mut object),
    }
    to.extend_from_slice(b"}\n");
}

fn start(start: &Start, to: &mut Object<'_>) {
    let Start {
        version,
        epoch,
        mode,
    } = start;
    to.word(key!("kind"), "start");
    to.word(key!("version"), version);
    to.number(key!("epoch"), *epoch);
    to.word(key!("mode"), mode.as_str());
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
    to.word(key!("kind"), "lookup");
    to.hex_if(key!("request"), *request);
    to.decimal(key!("took_us"), *took_us);
    to.hex_if(key!("namespace"), *namespace);
    to.word(key!("outcome"), outcome.as_str());
    to.word_if(key!("reason"), reason.map(|it| it.as_str()));
    to.word_if(key!("gate"), gate.map(|it| it.as_str()));
    to.word(key!("mode"), mode.as_str());
    to.number(key!("prompt_tokens"), u64::from(*prompt_tokens));
    to.number(key!("exact_prefix_tokens"), u64::from(*exact_prefix_tokens));
    to.number(key!("verified_tokens"), u64::from(*verified_tokens));
    to.number(key!("reusable_tokens"), u64::from(*reusable_tokens));
    to.decimal_if(key!("similarity"), *similarity);
    to.decimal_if(key!("reuse_ratio"), *reuse_ratio);
    if let Some(gates) = gates {
        self::gates(gates, to);
    }
    to.word_if(key!("tier"), tier.map(|it| it.as_str()));
    to.hex_if(key!("donor"), *donor);
    to.hex_if(key!("owner"), *owner);
    to.hex_if(key!("template"), *template);
    to.flag(key!("leased"), *leased);
    to.word_if(key!("lease_refusal"), lease_refusal.map(|it| it.as_str()));
    if let Some(facts_differ) = facts_differ {
        to.flag(key!("facts_differ"), *facts_differ);
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
    to.number(
        concat!(key!("gates"), "{\"min_prompt_tokens\":"),
        u64::from(min_prompt_tokens),
    );
    to.number(key!("min_reuse_tokens"), u64::from(min_reuse_tokens));
    to.decimal(key!("min_similarity"), min_similarity);
    to.decimal(key!("min_reuse_ratio"), min_reuse_ratio);
    to.decimal(key!("exact_prefix_skip_ratio"), exact_prefix_skip_ratio);
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
    to.decimal(concat!(key!("stages_us"), "{\"seeds\":"), seeds);
    to.decimal(key!("align"), align);
    to.decimal(key!("gate"), gate);
    to.decimal(key!("neighbours"), neighbours);
    to.decimal(key!("facts"), facts);
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
    to.word(key!("kind"), "manifest");
    to.hex_if(key!("request"), request);
    to.decimal(key!("took_us"), took_us);
    to.word(key!("outcome"), outcome.as_str());
    to.word_if(key!("reason"), reason.map(|it| it.as_str()));
    to.hex_if(key!("prefix"), Some(prefix));
    to.word_if(key!("algorithm"), algorithm.map(|it| it.as_str()));
    to.word_if(key!("policy"), policy.map(|it| it.as_str()));
    to.word_if(key!("provenance"), provenance.map(|it| it.as_str()));
    to.number(key!("k"), u64::from(k));
    to.number(key!("total_blocks"), u64::from(total_blocks));
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
    to.word(key!("kind"), "reuse");
    to.hex_if(key!("request"), request);
    to.decimal(key!("took_us"), took_us);
    to.word(key!("provenance"), provenance.as_str());
    to.word_if(key!("reason"), reason.map(|it| it.as_str()));
    to.number(key!("tokens_loaded"), u64::from(tokens_loaded));
    to.number(key!("invalid_blocks"), u64::from(invalid_blocks));
    to.flag(key!("released"), released);
}

fn sources(sources: &Sources, to: &mut Object<'_>) {
    let Sources {
        exact,
        degraded,
        stale,
        sources,
    } = sources;
    to.word(key!("kind"), "sources");
    to.number(key!("exact"), u64::from(*exact));
    to.number(key!("degraded"), u64::from(*degraded));
    to.number(key!("stale"), u64::from(*stale));
    to.key(concat!(key!("sources"), "["));
    for (index, source) in sources.iter().enumerate() {
        let Source {
            worker,
            state,
            gaps,
            replays,
        } = *source;
        let before = if index == 0 { "" } else { "," };
        to.key(before);
        to.hex_if("{\"worker\":", Some(worker));
        to.word(key!("state"), state.as_str());
        to.number(key!("gaps"), gaps);
        to.number(key!("replays"), replays);
        to.end();
    }
    to.key("]");
}

// What a JSON object is written through. Words are ours: no character of them is escaped. Keys come
// with all that stands around them, so that each is one copy of a length the compiler knows.
struct Object<'a> {
    to: &'a mut Vec<u8>,
}

impl Object<'_> {
    fn end(&mut self) {
        self.to.push(b'}');
    }

    #[inline]
    fn key(&mut self, key: &'static str) {
        self.to.extend_from_slice(key.as_bytes());
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

    #[inline]
    fn word(&mut self, key: &'static str, word: &str) {
        self.key(key);
        self.text(word);
    }

    fn word_if(&mut self, key: &'static str, word: Option<&str>) {
        if let Some(word) = word {
            self.word(key, word);
        }
    }

    #[inline]
    fn number(&mut self, key: &'static str, number: u64) {
        self.key(key);
        let mut digits = itoa::Buffer::new();
        self.to.extend_from_slice(digits.format(number).as_bytes());
    }

    fn flag(&mut self, key: &'static str, flag: bool) {
        self.key(key);
        let text: &[u8] = if flag { b"true" } else { b"false" };
        self.to.extend_from_slice(text);
    }

    #[inline]
    fn hex_if<const DIGITS: usize>(&mut self, key: &'static str, value: Option<Hex<DIGITS>>) {
        const DIGITS_OF: &[u8; 16] = b"0123456789abcdef";
        let Some(Hex(value)) = value else {
            return;
        };
        self.key(key);
        let mut text = [b'"'; 18];
        let text = &mut text[..DIGITS + 2];
        for (place, digit) in text[1..=DIGITS].iter_mut().rev().enumerate() {
            *digit = DIGITS_OF[(value >> (4 * place) & 15) as usize];
        }
        self.to.extend_from_slice(text);
    }

    fn decimal_if<const PLACES: u32>(&mut self, key: &'static str, value: Option<Decimal<PLACES>>) {
        if let Some(value) = value {
            self.decimal(key, value);
        }
    }

    #[inline]
    fn decimal<const PLACES: u32>(&mut self, key: &'static str, value: Decimal<PLACES>) {
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
