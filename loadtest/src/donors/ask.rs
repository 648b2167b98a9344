//! Asks for a donor, and judges the answer.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use kvatlas_proto::v1::{
    FindDonorRequest, FindDonorResponse, FindOutcome, Gates, NamespaceSelector,
};
use prost::Message;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::register::{donor_index, packed};
use crate::{
    error::LoadtestError,
    judge::{RIGHT_SHARE, TargetWindows, false_spans},
    measure::{Caller, Told, in_turn},
    prompts::{Class, DonorSet, Target},
    wire::Method,
};

const CALL: &str = "FindDonor";
const PATH: &str = "/kvatlas.v1.Donors/FindDonor";
/// The default gate on reusable tokens, and what is asked for where less than that is shared.
const REUSE_MIN_TOKENS: usize = 512;
const SHORT_REUSE_MIN_TOKENS: u32 = 256;

/// A look-up, encoded, and what is true of it.
#[derive(Debug, Clone)]
pub struct Question {
    pub class: Class,
    tokens: Vec<u32>,
    /// Tokens that the best donor covers.
    best: usize,
    request: Bytes,
}

/// An answer, judged.
#[derive(Debug, Clone, Copy, Default)]
pub struct Judged {
    pub right: bool,
    /// Tokens in reported spans.
    pub reported: u64,
    /// Tokens of the target that the nominated donor truly covers.
    pub covered: u64,
    pub false_spans: u64,
    pub round_trip: Duration,
    pub server_us: f32,
}

impl Question {
    /// A look-up of the target.
    #[must_use]
    pub fn new(target: Target, best: usize, namespace: &NamespaceSelector) -> Self {
        let short = target.source.is_some() && best < REUSE_MIN_TOKENS;
        let request = FindDonorRequest {
            tokens: Some(packed(&target.tokens)),
            namespace: Some(namespace.clone()),
            gates: short.then(|| Gates {
                min_reuse_tokens: Some(SHORT_REUSE_MIN_TOKENS),
                ..Gates::default()
            }),
            ..FindDonorRequest::default()
        };
        Self {
            class: target.class,
            tokens: target.tokens,
            best,
            request: request.encode_to_vec().into(),
        }
    }

    fn judge(&self, answer: &FindDonorResponse, set: &DonorSet) -> Result<Judged, String> {
        let Some(donor) = nominated(answer, set)? else {
            return Ok(Judged {
                right: self.class == Class::Negative,
                ..Judged::default()
            });
        };
        let spans = answer
            .r#match
            .as_ref()
            .map_or(&[][..], |found| &found.spans);
        let covered = TargetWindows::new(&self.tokens).covered_by(donor);
        let enough = self.best.max(covered) as f64 * RIGHT_SHARE;
        Ok(Judged {
            right: self.class != Class::Negative && covered as f64 >= enough,
            reported: spans.iter().map(|span| u64::from(span.length)).sum(),
            covered: covered as u64,
            false_spans: false_spans(&self.tokens, donor, spans),
            ..Judged::default()
        })
    }
}

/// The tokens of the donor that an answer names; none on a miss.
fn nominated<'a>(
    answer: &FindDonorResponse,
    set: &'a DonorSet,
) -> Result<Option<&'a [u32]>, String> {
    match (answer.outcome(), &answer.r#match) {
        (FindOutcome::Miss, None) => Ok(None),
        (FindOutcome::Prefix | FindOutcome::Spans, Some(found)) => donor_index(&found.donor_id)
            .and_then(|index| set.donors.get(index))
            .map(|donor| Some(donor.tokens.as_slice()))
            .ok_or_else(|| "a donor that was never registered".to_owned()),
        (FindOutcome::Unspecified, _) => Err("no outcome".to_owned()),
        (FindOutcome::Miss, Some(_)) => Err("a miss with a match".to_owned()),
        (FindOutcome::Prefix | FindOutcome::Spans, None) => Err("a hit without a match".to_owned()),
    }
}

/// From the arrival of the request to the finished answer, as the server tells it.
fn server_us(answer: &FindDonorResponse) -> f32 {
    answer
        .timings
        .map_or(f32::NAN, |timings| timings.decode_us + timings.total_us)
}

/// Asks the questions in turn.
#[derive(Debug, Clone)]
pub struct FindCaller {
    methods: Vec<Method<FindDonorResponse>>,
    questions: Arc<[Question]>,
    set: Arc<DonorSet>,
}

impl FindCaller {
    pub fn new(channels: &[Channel], questions: Arc<[Question]>, set: Arc<DonorSet>) -> Self {
        let methods = channels
            .iter()
            .map(|channel| Method::new(channel.clone(), PATH))
            .collect();
        Self {
            methods,
            questions,
            set,
        }
    }

    /// One question, and what its answer is worth.
    ///
    /// # Errors
    /// When the call is refused, or the answer contradicts itself.
    pub async fn ask(&mut self, at: usize) -> Result<Judged, LoadtestError> {
        let question = &self.questions[at];
        let sent = Instant::now();
        let answer = self.methods[0]
            .call(question.request.clone())
            .await
            .map_err(|status| LoadtestError::call(CALL, status))?;
        let round_trip = sent.elapsed();
        let judged = question
            .judge(&answer, &self.set)
            .map_err(|reason| LoadtestError::WrongAnswer { call: CALL, reason })?;
        Ok(Judged {
            round_trip,
            server_us: server_us(&answer),
            ..judged
        })
    }
}

impl Caller for FindCaller {
    async fn call(&mut self, ordinal: u64) -> Result<Told, String> {
        let question = &self.questions[in_turn(ordinal, self.questions.len())];
        let turn = in_turn(ordinal, self.methods.len());
        let answer = self.methods[turn]
            .call(question.request.clone())
            .await
            .map_err(|status| format!("{CALL}: {status}"))?;
        // Coverage was judged before; here every span is still compared, which costs little.
        if let (Some(donor), Some(found)) = (nominated(&answer, &self.set)?, &answer.r#match)
            && false_spans(&question.tokens, donor, &found.spans) > 0
        {
            return Err(format!("{CALL}: a span that is not there"));
        }
        Ok(Told {
            server_us: Some(server_us(&answer)),
        })
    }
}

#[cfg(test)]
mod tests {
    use kvatlas_proto::v1::{DonorMatch, Span};

    use super::*;
    use crate::prompts::{Donor, Group};

    fn donor(tokens: Vec<u32>) -> Donor {
        Donor {
            group: Group::Plain,
            tokens,
            pieces: Vec::new(),
            body_start: 0,
        }
    }

    /// Donor 0 has all of the target, donor 1 has 70 of its 100 tokens, donor 2 nothing.
    fn set() -> DonorSet {
        let donors = [
            (0..100).collect(),
            (0..70).chain(900..930).collect(),
            (800..900).collect(),
        ];
        DonorSet {
            donors: donors.map(donor).into(),
            tokens_each: 100,
            preamble: Vec::new(),
            preamble_pieces: Vec::new(),
        }
    }

    fn question(class: Class) -> Question {
        Question {
            class,
            tokens: (0..100).collect(),
            best: 100,
            request: Bytes::new(),
        }
    }

    fn hit(donor_id: &str, length: u32) -> FindDonorResponse {
        FindDonorResponse {
            outcome: FindOutcome::Prefix.into(),
            r#match: Some(DonorMatch {
                donor_id: donor_id.to_owned(),
                spans: vec![Span {
                    donor_start: 0,
                    target_start: 0,
                    length,
                    tier: 0,
                }],
                ..DonorMatch::default()
            }),
            ..FindDonorResponse::default()
        }
    }

    fn miss() -> FindDonorResponse {
        FindDonorResponse {
            outcome: FindOutcome::Miss.into(),
            ..FindDonorResponse::default()
        }
    }

    fn check(class: Class, answer: &FindDonorResponse) -> (bool, u64, u64, u64) {
        let judged = question(class).judge(answer, &set()).unwrap();
        (
            judged.right,
            judged.reported,
            judged.covered,
            judged.false_spans,
        )
    }

    #[test]
    fn the_best_donor_is_right_and_a_worse_one_is_not() {
        assert_eq!(
            check(Class::Wrapper, &hit("loadtest-0", 100)),
            (true, 100, 100, 0)
        );
        assert_eq!(
            check(Class::Wrapper, &hit("loadtest-1", 70)),
            (false, 70, 70, 0)
        );
        assert_eq!(check(Class::Wrapper, &miss()), (false, 0, 0, 0));
    }

    #[test]
    fn a_span_that_is_not_there_is_counted() {
        assert_eq!(
            check(Class::Wrapper, &hit("loadtest-1", 71)),
            (false, 71, 70, 1)
        );
        assert_eq!(
            check(Class::Wrapper, &hit("loadtest-2", 100)),
            (false, 100, 0, 1)
        );
    }

    #[test]
    fn only_a_miss_is_right_for_a_negative() {
        assert_eq!(check(Class::Negative, &miss()), (true, 0, 0, 0));
        assert_eq!(
            check(Class::Negative, &hit("loadtest-0", 100)),
            (false, 100, 100, 0)
        );
    }

    #[test]
    fn an_answer_that_contradicts_itself_is_an_error() {
        let without_match = FindDonorResponse {
            r#match: None,
            ..hit("loadtest-0", 100)
        };
        let with_match = FindDonorResponse {
            outcome: FindOutcome::Miss.into(),
            ..hit("loadtest-0", 100)
        };
        let bad = [
            without_match,
            with_match,
            FindDonorResponse::default(),
            hit("loadtest-3", 16),
        ];
        for answer in bad {
            assert!(
                question(Class::Wrapper).judge(&answer, &set()).is_err(),
                "{answer:?}"
            );
        }
    }
}
