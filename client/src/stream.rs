//! Look-ups over one bidirectional stream, for connectors on the hot path.
//!
//! Answers come in the order of the requests. Each request has its own deadline: when it passes,
//! the request is answered as timed out, and its late answer is dropped when it comes.

use std::{collections::VecDeque, time::Duration};

use kvatlas_proto::v1;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use crate::{
    client::Client,
    error::ClientError,
    lookup::{Bounds, FindDonor, Lookup},
    manifest::{Manifest, ManifestQuery},
};

/// Requests that a stream may have under way.
const IN_FLIGHT_MAX: usize = 256;

/// A stream of donor look-ups.
#[derive(Debug)]
pub struct DonorStream {
    exchange: Exchange<v1::FindDonorsRequest, v1::FindDonorsResponse, Option<Bounds>>,
}

/// A stream of manifest look-ups.
#[derive(Debug)]
pub struct ManifestStream {
    exchange: Exchange<v1::GetManifestsRequest, v1::GetManifestsResponse, ()>,
}

impl Client {
    /// Opens a stream of donor look-ups.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn find_donors(&self) -> Result<DonorStream, ClientError> {
        let (requests, outgoing) = mpsc::channel(IN_FLIGHT_MAX);
        let mut donors = self.donors();
        let call = donors.find_donors(Request::new(ReceiverStream::new(outgoing)));
        let answers = open(self.deadlines.control, call).await?;
        let exchange = Exchange::new(requests, answers, self.deadlines.lookup);
        Ok(DonorStream { exchange })
    }

    /// Opens a stream of manifest look-ups.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn get_manifests(&self) -> Result<ManifestStream, ClientError> {
        let (requests, outgoing) = mpsc::channel(IN_FLIGHT_MAX);
        let mut routing = self.routing();
        let call = routing.get_manifests(Request::new(ReceiverStream::new(outgoing)));
        let answers = open(self.deadlines.control, call).await?;
        let exchange = Exchange::new(requests, answers, self.deadlines.lookup);
        Ok(ManifestStream { exchange })
    }
}

impl DonorStream {
    /// Sends a look-up and returns its number. Never waits. On a broken stream the look-up is
    /// answered as a miss in its turn.
    ///
    /// # Errors
    /// When 256 are under way: take an answer first.
    pub fn send(&mut self, query: &FindDonor) -> Result<u64, ClientError> {
        let bounds = query.bounds();
        self.exchange.send(bounds, |correlation_id| {
            bounds.map(|_| v1::FindDonorsRequest {
                correlation_id,
                request: Some(query.to_wire()),
            })
        })
    }

    /// The next answer and its number, or `None` when nothing is under way. Never fails.
    pub async fn next(&mut self) -> Option<(u64, Lookup)> {
        use v1::find_donors_response::Result as Answer;
        let (waiting, answer) = self.exchange.next().await?;
        let Some(bounds) = waiting.context else {
            return Some((waiting.id, Lookup::unsupported()));
        };
        let answer = answer.and_then(|message| match message.result {
            Some(Answer::Answer(answer)) => Ok(answer),
            Some(Answer::Error(error)) => Err(ClientError::from_call_error(error)),
            None => Err(ClientError::Malformed("an empty answer".into())),
        });
        let lookup = Lookup::from_answer(answer, bounds, waiting.sent);
        Some((waiting.id, lookup))
    }
}

impl ManifestStream {
    /// Sends a request and returns its number. Never waits. On a broken stream the request is
    /// answered with the error in its turn.
    ///
    /// # Errors
    /// When 256 are under way: take an answer first.
    pub fn send(&mut self, query: &ManifestQuery) -> Result<u64, ClientError> {
        self.exchange.send((), |correlation_id| {
            Some(v1::GetManifestsRequest {
                correlation_id,
                request: Some(query.to_wire()),
            })
        })
    }

    /// The next answer and its number, or `None` when nothing is under way.
    pub async fn next(&mut self) -> Option<(u64, Result<Option<Manifest>, ClientError>)> {
        use v1::get_manifests_response::Result as Answer;
        let (waiting, answer) = self.exchange.next().await?;
        let answer = answer.and_then(|message| match message.result {
            Some(Answer::Manifest(manifest)) => Ok(manifest),
            Some(Answer::Error(error)) => Err(ClientError::from_call_error(error)),
            None => Err(ClientError::Malformed("an empty answer".into())),
        });
        Some((waiting.id, Manifest::from_answer(answer, waiting.sent)))
    }
}

async fn open<T>(
    budget: Duration,
    call: impl Future<Output = Result<tonic::Response<Streaming<T>>, Status>>,
) -> Result<Streaming<T>, ClientError> {
    let started = Instant::now();
    match tokio::time::timeout(budget, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(ClientError::from_status(&status, started.elapsed(), budget)),
        Err(_) => Err(ClientError::Timeout { budget }),
    }
}

/// The two directions of a stream, and what is under way between them.
#[derive(Debug)]
struct Exchange<Q, A, C> {
    requests: mpsc::Sender<Q>,
    answers: Streaming<A>,
    waiting: VecDeque<Waiting<C>>,
    budget: Duration,
    next_id: u64,
    /// Why the stream ended; every later request gets it as its answer.
    broken: Option<String>,
}

#[derive(Debug)]
struct Waiting<C> {
    id: u64,
    sent: Instant,
    context: C,
    was_sent: bool,
}

/// An answer that says which request it is for.
trait Correlated {
    fn correlation_id(&self) -> u64;
}

impl Correlated for v1::FindDonorsResponse {
    fn correlation_id(&self) -> u64 {
        self.correlation_id
    }
}

impl Correlated for v1::GetManifestsResponse {
    fn correlation_id(&self) -> u64 {
        self.correlation_id
    }
}

impl<Q, A: Correlated, C> Exchange<Q, A, C> {
    fn new(requests: mpsc::Sender<Q>, answers: Streaming<A>, budget: Duration) -> Self {
        Self {
            requests,
            answers,
            waiting: VecDeque::new(),
            budget,
            next_id: 1,
            broken: None,
        }
    }

    fn send(
        &mut self,
        context: C,
        message: impl FnOnce(u64) -> Option<Q>,
    ) -> Result<u64, ClientError> {
        if self.waiting.len() >= IN_FLIGHT_MAX {
            return Err(ClientError::Invalid("256 requests are under way already"));
        }
        let id = self.next_id;
        self.next_id += 1;
        let was_sent = message(id).is_some_and(|message| self.requests.try_send(message).is_ok());
        self.waiting.push_back(Waiting {
            id,
            sent: Instant::now(),
            context,
            was_sent,
        });
        Ok(id)
    }

    async fn next(&mut self) -> Option<(Waiting<C>, Result<A, ClientError>)> {
        // Peeked, so that a caller who drops this future loses no request.
        let front = self.waiting.front()?;
        let answer = if !front.was_sent {
            Err(ClientError::StreamEnded)
        } else if let Some(why) = &self.broken {
            Err(ClientError::Unreachable(why.clone()))
        } else {
            let (id, deadline) = (front.id, front.sent + self.budget);
            match timeout_at(deadline, self.answer_to(id)).await {
                Ok(answer) => answer,
                Err(_) => Err(ClientError::Timeout {
                    budget: self.budget,
                }),
            }
        };
        let waiting = self.waiting.pop_front()?;
        Some((waiting, answer))
    }

    async fn answer_to(&mut self, id: u64) -> Result<A, ClientError> {
        loop {
            let why = match self.answers.message().await {
                // The late answer to a request that has already been given up.
                Ok(Some(answer)) if answer.correlation_id() < id => continue,
                Ok(Some(answer)) if answer.correlation_id() == id => return Ok(answer),
                Ok(Some(_)) => "an answer out of order".to_owned(),
                Ok(None) => "the stream has ended".to_owned(),
                Err(status) => status.message().to_owned(),
            };
            self.broken = Some(why.clone());
            return Err(ClientError::Unreachable(why));
        }
    }
}
