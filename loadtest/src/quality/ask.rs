//! A look-up of any class, and what its answer is worth.

use bytes::Bytes;
use kvatlas_proto::v1::{
    Discovery, FindDonorRequest, FindDonorResponse, FindOutcome, Gates, NamespaceSelector,
    QualitySignals,
};
use prost::Message;
use serde::Serialize;

use super::{class::QualityClass, donors::Planted};
use crate::{
    donors::register::packed,
    judge::{RIGHT_SHARE, TargetWindows, false_spans},
};

/// The default gate on reusable tokens, and what is asked for where less than that is shared.
const REUSE_MIN_TOKENS: usize = 512;
const SHORT_REUSE_MIN_TOKENS: u32 = 256;
/// A donor nominated by meaning counts when it is among so many.
const NEIGHBOURS: u32 = 5;

/// A look-up, and what is true of it.
#[derive(Debug, Clone)]
pub struct Question {
    pub class: QualityClass,
    pub tokens: Vec<u32>,
    pub text: String,
    pub namespace: NamespaceSelector,
    /// Tokens that the best donor covers.
    pub best: usize,
    /// The donor it was made from, by index.
    pub source: Option<usize>,
    /// What was done to the text, where it carries one.
    pub change: Option<&'static str>,
}

/// How a donor was found, as reports spell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundBy {
    Seeds,
    Sketch,
    Text,
}

/// What an answer says of the facts in the two texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Facts {
    #[default]
    NotCompared,
    Alike,
    Differ,
}

/// An answer, judged.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Judged {
    /// The outcome is no miss.
    pub found: bool,
    pub right: bool,
    /// Tokens in reported spans.
    pub reported: u64,
    pub false_spans: u64,
    pub facts: Facts,
    /// The donor that the target was made from is named: as the match, or among the neighbours.
    pub nominated: Option<FoundBy>,
    pub server_us: f32,
}

impl Question {
    /// The request, encoded.
    #[must_use]
    pub fn request(&self) -> Bytes {
        let short = self.source.is_some() && self.best < REUSE_MIN_TOKENS;
        let wants_neighbours = match self.class {
            QualityClass::Paraphrase | QualityClass::CrossNamespace => NEIGHBOURS,
            QualityClass::Tokens(_) | QualityClass::FactFlip | QualityClass::Benign => 0,
        };
        let request = FindDonorRequest {
            tokens: Some(packed(&self.tokens)),
            namespace: Some(self.namespace.clone()),
            gates: short.then(|| Gates {
                min_reuse_tokens: Some(SHORT_REUSE_MIN_TOKENS),
                ..Gates::default()
            }),
            text: self.text.clone(),
            neighbours_max: wants_neighbours,
            // A sign of a hidden donor would show here first.
            explain: self.class == QualityClass::CrossNamespace,
            ..FindDonorRequest::default()
        };
        request.encode_to_vec().into()
    }

    /// What an answer is worth.
    ///
    /// # Errors
    /// When it contradicts itself, or names a donor that was never registered.
    pub fn judge(&self, answer: &FindDonorResponse, donors: &[Planted]) -> Result<Judged, String> {
        let donor = matched(answer, donors)?;
        let spans = answer
            .r#match
            .as_ref()
            .map_or(&[][..], |found| &found.spans);
        let quality = answer.r#match.as_ref().and_then(|found| found.quality);
        let signals = quality.unwrap_or_default();
        let nominated = self.nominated(answer, donors);
        let right = match self.class {
            QualityClass::Paraphrase => nominated.is_some(),
            QualityClass::CrossNamespace => donor.is_none() && !self.betrays(answer, donors),
            QualityClass::Tokens(_) | QualityClass::FactFlip | QualityClass::Benign => {
                match (self.source, donor) {
                    (None, donor) => donor.is_none(),
                    (Some(_), None) => false,
                    (Some(_), Some(donor)) => self.as_good_as_the_best(&donor.tokens),
                }
            }
        };
        Ok(Judged {
            found: donor.is_some(),
            right,
            reported: spans.iter().map(|span| u64::from(span.length)).sum(),
            false_spans: donor.map_or(0, |donor| false_spans(&self.tokens, &donor.tokens, spans)),
            facts: match (signals.facts_compared, signals.facts_differ) {
                (_, true) => Facts::Differ,
                (true, false) => Facts::Alike,
                (false, false) => Facts::NotCompared,
            },
            nominated,
            server_us: answer
                .timings
                .map_or(f32::NAN, |timings| timings.decode_us + timings.total_us),
        })
    }

    fn as_good_as_the_best(&self, donor: &[u32]) -> bool {
        let covered = TargetWindows::new(&self.tokens).covered_by(donor);
        covered as f64 >= self.best.max(covered) as f64 * RIGHT_SHARE
    }

    /// How the source was found, where the answer names it.
    fn nominated(&self, answer: &FindDonorResponse, donors: &[Planted]) -> Option<FoundBy> {
        let source = &donors[self.source?].id;
        let by_match = answer
            .r#match
            .iter()
            .map(|found| (&found.donor_id, found_by(found.quality.as_ref())));
        let near = answer.neighbours.iter().take(NEIGHBOURS as usize);
        let by_meaning = near.map(|near| (&near.donor_id, spelled(near.discovery())));
        by_match
            .chain(by_meaning)
            .find_map(|(id, by)| (id == source).then_some(by))
    }

    /// Whether anything in the answer names the donor of another namespace.
    fn betrays(&self, answer: &FindDonorResponse, donors: &[Planted]) -> bool {
        let Some(hidden) = self.source.map(|source| donors[source].id.as_bytes()) else {
            return false;
        };
        let encoded = answer.encode_to_vec();
        // A longer number is another name: of a donor that may be told of, or of its owner.
        let is_named = |at: usize| {
            let next = encoded.get(at + hidden.len());
            encoded[at..].starts_with(hidden) && !next.is_some_and(u8::is_ascii_digit)
        };
        (0..encoded.len()).any(is_named)
    }
}

fn matched<'a>(
    answer: &FindDonorResponse,
    donors: &'a [Planted],
) -> Result<Option<&'a Planted>, String> {
    match (answer.outcome(), &answer.r#match) {
        (FindOutcome::Miss, None) => Ok(None),
        (FindOutcome::Prefix | FindOutcome::Spans, Some(found)) => {
            Planted::of_id(&found.donor_id, donors)
                .map(Some)
                .ok_or_else(|| "a donor that was never registered".to_owned())
        }
        (FindOutcome::Unspecified, _) => Err("no outcome".to_owned()),
        (FindOutcome::Miss, Some(_)) => Err("a miss with a match".to_owned()),
        (FindOutcome::Prefix | FindOutcome::Spans, None) => Err("a hit without a match".to_owned()),
    }
}

fn found_by(quality: Option<&QualitySignals>) -> FoundBy {
    quality.map_or(FoundBy::Seeds, |quality| spelled(quality.discovery()))
}

const fn spelled(discovery: Discovery) -> FoundBy {
    match discovery {
        Discovery::Unspecified | Discovery::Seeds => FoundBy::Seeds,
        Discovery::Sketch => FoundBy::Sketch,
        // Announced donors are none that this registers.
        Discovery::Text | Discovery::Announced => FoundBy::Text,
    }
}
