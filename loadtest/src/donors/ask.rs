//! Asks for a donor, and judges the answer.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use kvatlas_proto::v1::{
    FindDonorRequest, FindDonorResponse, FindOutcome, Gates, NamespaceSelector,
};
use parking_lot::Mutex;
use prost::Message;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::{
    register::{donor_index, packed},
    seen::{Seen, Times},
};
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
/// Tokens of nominated donors kept, so that not every answer makes its donor again.
const KNOWN_TOKENS_MAX: usize = 32 << 20;

/// A look-up, encoded, and what is true of it.
#[derive(Debug, Clone)]
pub struct Question {
    pub class: Class,
    tokens: Arc<[u32]>,
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
    /// Tokens of the target that the best donor covers.
    pub best: u64,
    pub false_spans: u64,
    pub round_trip: Duration,
    pub times: Times,
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
            tokens: target.tokens.into(),
            best,
            request: request.encode_to_vec().into(),
        }
    }

    /// `donor`: the tokens of the one that the answer names.
    fn judge(&self, answer: &FindDonorResponse, donor: Option<&[u32]>) -> Judged {
        let Some(donor) = donor else {
            return Judged {
                right: self.class == Class::Negative,
                best: self.best as u64,
                ..Judged::default()
            };
        };
        let spans = answer
            .r#match
            .as_ref()
            .map_or(&[][..], |found| &found.spans);
        let covered = TargetWindows::new(&self.tokens).covered_by(donor);
        let best = self.best.max(covered);
        Judged {
            right: self.class != Class::Negative && covered as f64 >= best as f64 * RIGHT_SHARE,
            reported: spans.iter().map(|span| u64::from(span.length)).sum(),
            covered: covered as u64,
            best: best as u64,
            false_spans: false_spans(&self.tokens, donor, spans),
            ..Judged::default()
        }
    }
}

/// The index of the donor that an answer names; none on a miss.
fn nominated(answer: &FindDonorResponse) -> Result<Option<usize>, String> {
    match (answer.outcome(), &answer.r#match) {
        (FindOutcome::Miss, None) => Ok(None),
        (FindOutcome::Prefix | FindOutcome::Spans, Some(found)) => {
            let index = donor_index(&found.donor_id);
            index.map(Some).ok_or_else(never_registered)
        }
        (FindOutcome::Unspecified, _) => Err("no outcome".to_owned()),
        (FindOutcome::Miss, Some(_)) => Err("a miss with a match".to_owned()),
        (FindOutcome::Prefix | FindOutcome::Spans, None) => Err("a hit without a match".to_owned()),
    }
}

fn never_registered() -> String {
    "a donor that was never registered".to_owned()
}

type DonorTokens = Arc<[u32]>;

/// The tokens of donors that answers name.
#[derive(Debug, Clone)]
struct Known {
    set: Arc<DonorSet>,
    /// Donors that may be registered: those with a lower index.
    registered: usize,
    made: Arc<Mutex<HashMap<usize, DonorTokens>>>,
}

impl Known {
    fn tokens(&self, answer: &FindDonorResponse) -> Result<Option<DonorTokens>, String> {
        let Some(index) = nominated(answer)? else {
            return Ok(None);
        };
        if index >= self.registered {
            return Err(never_registered());
        }
        let mut made = self.made.lock();
        if made.len() * self.set.tokens_each > KNOWN_TOKENS_MAX {
            made.clear();
        }
        let tokens = made
            .entry(index)
            .or_insert_with(|| self.set.donor(index).tokens.into());
        Ok(Some(Arc::clone(tokens)))
    }
}

/// Asks the questions in turn; its clones keep the times together.
#[derive(Debug, Clone)]
pub struct FindCaller {
    methods: Vec<Method<FindDonorResponse>>,
    questions: Arc<[Question]>,
    known: Known,
    seen: Arc<Mutex<Seen>>,
}

impl FindCaller {
    /// `registered`: donors with a lower index may be named.
    pub fn new(
        channels: &[Channel],
        questions: Arc<[Question]>,
        set: Arc<DonorSet>,
        registered: usize,
    ) -> Self {
        let methods = channels
            .iter()
            .map(|channel| Method::new(channel.clone(), PATH))
            .collect();
        Self {
            methods,
            questions,
            known: Known {
                set,
                registered,
                made: Arc::default(),
            },
            seen: Arc::default(),
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
        let donor = self
            .known
            .tokens(&answer)
            .map_err(|reason| LoadtestError::WrongAnswer { call: CALL, reason })?;
        Ok(Judged {
            round_trip,
            times: Times::of(&answer),
            ..question.judge(&answer, donor.as_deref())
        })
    }

    /// One question; coverage was judged before, but every span is compared again.
    ///
    /// # Errors
    /// When the call is refused, or the answer contradicts itself or has a span that is not there.
    pub async fn find(&mut self, ordinal: u64) -> Result<Times, String> {
        let question = &self.questions[in_turn(ordinal, self.questions.len())];
        let turn = in_turn(ordinal, self.methods.len());
        let answer = self.methods[turn]
            .call(question.request.clone())
            .await
            .map_err(|status| format!("{CALL}: {status}"))?;
        if let (Some(donor), Some(found)) = (self.known.tokens(&answer)?, &answer.r#match)
            && false_spans(&question.tokens, &donor, &found.spans) > 0
        {
            return Err(format!("{CALL}: a span that is not there"));
        }
        let times = Times::of(&answer);
        self.seen.lock().add(question.class, times);
        Ok(times)
    }

    /// The times of all look-ups since this was last called.
    #[must_use]
    pub fn take_seen(&self) -> Seen {
        std::mem::take(&mut self.seen.lock())
    }
}

impl Caller for FindCaller {
    async fn call(&mut self, ordinal: u64) -> Result<Told, String> {
        let times = self.find(ordinal).await?;
        Ok(Told {
            server_us: Some(times.whole_us),
        })
    }
}

#[cfg(test)]
mod tests {
    use kvatlas_proto::v1::{DonorMatch, Span};

    use super::*;
    use crate::{prompts::Library, random::Random};

    /// Donor 0 has all of the target, donor 1 has 70 of its 100 tokens, donor 2 nothing.
    fn donor(index: usize) -> Vec<u32> {
        match index {
            0 => (0..100).collect(),
            1 => (0..70).chain(900..930).collect(),
            _ => (800..900).collect(),
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
        let donor = nominated(answer).unwrap().map(donor);
        let judged = question(class).judge(answer, donor.as_deref());
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
            hit("another", 16),
        ];
        for answer in bad {
            assert!(nominated(&answer).is_err(), "{answer:?}");
        }
    }

    #[test]
    fn a_donor_past_those_registered_is_an_error() {
        let mut random = Random::new(1);
        let passages = vec![vec![7; 245]; 60];
        let library = Library::new(passages, 0, &mut random);
        let known = Known {
            set: Arc::new(DonorSet::new(library, 40, 1024, &mut random)),
            registered: 40,
            made: Arc::default(),
        };
        for (id, named) in [("loadtest-39", true), ("loadtest-40", false)] {
            let tokens = known.tokens(&hit(id, 16)).map(|tokens| tokens.unwrap());
            assert_eq!(tokens.is_ok(), named, "{id}");
            assert!(tokens.is_err() || tokens.unwrap().len() == 1024);
        }
        assert_eq!(known.tokens(&miss()), Ok(None));
    }
}
