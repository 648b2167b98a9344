//! What is recorded of each call, and how it reads as a line of JSON.
//!
//! No tokens, no text, no salts; ids only as digests. `docs/audit.md` is the schema for people.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::words::{
    Algorithm, Gate, LeaseRefusal, ManifestOutcome, ManifestProvenance, ManifestReason, Mode,
    Outcome, Policy, ReuseProvenance, SourceState, Tier,
};
use crate::donors::vocabulary::FallbackReason;

/// The version of the schema. Fields are added without a new one; readers skip what they do not
/// know.
pub const VERSION: u32 = 1;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub v: u32,
    /// Milliseconds since 1970 (UTC).
    pub at_ms: u64,
    #[serde(flatten)]
    pub record: Record,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    Start(Start),
    /// In a box: it is three times as large as the next, which there can be a hundred of for each.
    Lookup(Box<Lookup>),
    Manifest(Manifest),
    Reuse(Reuse),
    Sources(Sources),
}

/// The first line of every file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub version: String,
    /// The service's restart counter.
    pub epoch: u64,
    pub mode: Mode,
}

/// One donor look-up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Lookup {
    /// The join key; absent when the request had no id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Digest>,
    pub took_us: Micros,
    /// Absent when the namespace was incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<NamespaceDigest>,
    pub outcome: Outcome,
    /// Absent on a prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<FallbackReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
    pub mode: Mode,
    pub prompt_tokens: u32,
    pub exact_prefix_tokens: u32,
    pub verified_tokens: u32,
    /// Under the outcome; of a miss, what the refused candidate would have given.
    pub reusable_tokens: u32,
    /// Of the nominated donor, else of the best that was refused; absent without either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub similarity: Option<Share>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reuse_ratio: Option<Share>,
    /// Absent when the look-up ended before they were known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates: Option<Gates>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub donor: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Digest>,
    /// Of the prompt's first 64 tokens; absent for shorter prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Digest>,
    pub leased: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_refusal: Option<LeaseRefusal>,
    /// Absent when the two texts were not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts_differ: Option<bool>,
    pub stages_us: Stages,
}

/// The thresholds that held.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gates {
    pub min_prompt_tokens: u32,
    pub min_reuse_tokens: u32,
    pub min_similarity: Share,
    pub min_reuse_ratio: Share,
    pub exact_prefix_skip_ratio: Share,
}

/// Time in each stage; 0 when it did not run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Stages {
    pub seeds: Micros,
    pub align: Micros,
    pub gate: Micros,
    pub neighbours: Micros,
    pub facts: Micros,
}

/// One call for a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Digest>,
    pub took_us: Micros,
    pub outcome: ManifestOutcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<ManifestReason>,
    /// Of the request's prefix_hash.
    pub prefix: Digest,
    /// Absent when no scores took part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// Absent unless the outcome is ok, as the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<ManifestProvenance>,
    /// Blocks of the answer; 0 without one.
    pub k: u32,
    pub total_blocks: u32,
}

/// What an engine reported.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Reuse {
    /// The join key of the look-up that nominated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Digest>,
    pub took_us: Micros,
    pub provenance: ReuseProvenance,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<FallbackReason>,
    pub tokens_loaded: u32,
    pub invalid_blocks: u32,
    /// Whether the report ended a lease.
    pub released: bool,
}

impl Reuse {
    /// Whether a load did not work, whatever the engine did then.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let went_wrong = [
            FallbackReason::AllocationFailed,
            FallbackReason::LoadFailed,
            FallbackReason::InvalidBlocks,
        ];
        let is_wrong = self.reason.is_some_and(|why| went_wrong.contains(&why));
        is_wrong || self.invalid_blocks > 0
    }

    /// Whether tokens came from a donor.
    #[must_use]
    pub fn has_loaded(&self) -> bool {
        let is_load = match self.provenance {
            ReuseProvenance::ExactExternalHit | ReuseProvenance::RequestOnlyReuse => true,
            ReuseProvenance::ExactLocalPrefixHit
            | ReuseProvenance::CandidateRejected
            | ReuseProvenance::FallbackRecompute => false,
        };
        is_load && !self.has_failed()
    }
}

/// How far the workers' events can be believed: once a minute, and when it changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sources {
    pub exact: u32,
    pub degraded: u32,
    pub stale: u32,
    pub sources: Vec<Source>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Source {
    pub worker: Digest,
    pub state: SourceState,
    pub gaps: u64,
    pub replays: u64,
}

/// 64 bits of a digest, as 16 hexadecimal digits.
pub type Digest = Hex<16>;
/// The first 48 bits of a namespace_id, as 12.
pub type NamespaceDigest = Hex<12>;
/// A number from 0 to 1 in ten-thousandths.
pub type Share = Decimal<4>;
/// Microseconds, in nanoseconds.
pub type Micros = Decimal<3>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hex<const DIGITS: usize>(pub u64);

/// A number with so many decimals, kept as a whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Decimal<const PLACES: u32>(pub u64);

impl Line {
    /// Reads one line. Fields that are not known are skipped; what cannot be known is absent, and
    /// never null.
    ///
    /// # Errors
    /// When the line is no record of this version.
    pub fn parse(line: &str) -> Result<Line, serde_json::Error> {
        // Twice over the line, and still faster than one pass that keeps all until it meets `kind`.
        let Head { v, at_ms, kind } = serde_json::from_str(line)?;
        if v != VERSION {
            return Err(de::Error::custom("a version that is not known"));
        }
        let record = match kind {
            Kind::Start => Record::Start(serde_json::from_str(line)?),
            Kind::Lookup => Record::Lookup(serde_json::from_str(line)?),
            Kind::Manifest => Record::Manifest(serde_json::from_str(line)?),
            Kind::Reuse => Record::Reuse(serde_json::from_str(line)?),
            Kind::Sources => Record::Sources(serde_json::from_str(line)?),
        };
        Ok(Line { v, at_ms, record })
    }
}

/// Whether a line is one of the vLLM connector's own audit, which says what an engine decided.
#[must_use]
pub fn is_of_connector(line: &str) -> bool {
    serde_json::from_str::<ConnectorHead>(line).is_ok()
}

/// As client/python writes it.
#[derive(Deserialize)]
struct ConnectorHead {
    #[serde(rename = "time")]
    _time: f64,
    #[serde(rename = "event")]
    _event: String,
}

#[derive(Deserialize)]
struct Head {
    v: u32,
    at_ms: u64,
    kind: Kind,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Start,
    Lookup,
    Manifest,
    Reuse,
    Sources,
}

impl<const PLACES: u32> Decimal<PLACES> {
    const ONE: u64 = 10_u64.pow(PLACES);

    #[must_use]
    pub fn of(value: f64) -> Decimal<PLACES> {
        let scaled = (value * Self::one()).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rounded and not negative; beyond the range it is the range's end"
        )]
        Decimal(scaled.max(0.0) as u64)
    }

    #[must_use]
    pub fn value(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let scaled = self.0 as f64;
        scaled / Self::one()
    }

    fn one() -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a small power of ten")]
        let one = Self::ONE as f64;
        one
    }
}

impl<const PLACES: u32> Serialize for Decimal<PLACES> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(Self::ONE) {
            to.serialize_u64(self.0 / Self::ONE)
        } else {
            to.serialize_f64(self.value())
        }
    }
}

impl<'de, const PLACES: u32> Deserialize<'de> for Decimal<PLACES> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        f64::deserialize(from).map(Decimal::of)
    }
}

impl<const DIGITS: usize> std::fmt::Display for Hex<DIGITS> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:0DIGITS$x}", self.0)
    }
}

impl<const DIGITS: usize> Serialize for Hex<DIGITS> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de, const DIGITS: usize> Deserialize<'de> for Hex<DIGITS> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(HexDigits::<DIGITS>)
    }
}

struct HexDigits<const DIGITS: usize>;

impl<const DIGITS: usize> de::Visitor<'_> for HexDigits<DIGITS> {
    type Value = Hex<DIGITS>;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{DIGITS} hexadecimal digits")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Hex<DIGITS>, E> {
        let well_formed = text.len() == DIGITS && text.bytes().all(|it| it.is_ascii_hexdigit());
        let value = u64::from_str_radix(text, 16).ok().filter(|_| well_formed);
        let value = value.ok_or_else(|| E::custom("not that many hexadecimal digits"))?;
        Ok(Hex(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Line {
        Line {
            v: VERSION,
            at_ms: 1_700_000_000_123,
            record: Record::Manifest(Manifest {
                request: None,
                took_us: Decimal(2_345),
                outcome: ManifestOutcome::Ok,
                reason: Some(ManifestReason::PriorShort),
                prefix: Hex(0xabc),
                algorithm: Some(Algorithm::KriQQuest),
                policy: Some(Policy::TopK),
                provenance: Some(ManifestProvenance::Prior),
                k: 32,
                total_blocks: 512,
            }),
        }
    }

    #[test]
    fn a_line_reads_as_the_schema_says() {
        let text = serde_json::to_string(&manifest()).unwrap();
        assert_eq!(
            text,
            "{\"v\":1,\"at_ms\":1700000000123,\"kind\":\"manifest\",\"took_us\":2.345,\
             \"outcome\":\"ok\",\"reason\":\"prior_short\",\"prefix\":\"0000000000000abc\",\
             \"algorithm\":\"kri-q-quest\",\"policy\":\"top-k\",\"provenance\":\"prior\",\"k\":32,\
             \"total_blocks\":512}"
        );
        assert_eq!(Line::parse(&text).unwrap(), manifest());
    }

    #[test]
    fn what_is_not_known_is_skipped_and_what_is_wrong_refused() {
        let text = serde_json::to_string(&manifest()).unwrap();
        let more = text.replace("\"k\":32", "\"k\":32,\"later\":{\"a\":[1]}");
        assert_eq!(Line::parse(&more).unwrap(), manifest());
        for (old, new) in [
            ("\"v\":1", "\"v\":2"),
            ("\"manifest\"", "\"memo\""),
            ("prior_short", "prior_long"),
            ("0000000000000abc", "abc"),
            ("0000000000000abc", "+000000000000abc"),
            ("\"k\":32,", ""),
        ] {
            assert!(Line::parse(&text.replace(old, new)).is_err(), "{old} {new}");
        }
    }
}
