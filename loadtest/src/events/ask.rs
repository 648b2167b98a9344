//! FindWorkers over gRPC against calls that carry the same bytes and do nothing, in turns.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message;
use serde::Serialize;
use tonic::transport::Channel;

use super::live::{self, Engines, Found};
use crate::{
    args::EventsArgs,
    echo::{self, Empty, Payload},
    error::LoadtestError,
    measure::{Caller, Load, Slice, Told, in_turn, median},
    wire::Method,
};

/// One call in flight: what a router waits for.
const CONCURRENCY: usize = 1;

/// Medians over the rounds, so that one disturbed round changes little; p99 is of all calls.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Asked {
    pub rpc_find_p50_us: f64,
    pub rpc_find_p99_us: f64,
    /// The echo gives back what it was sent.
    pub rpc_echo_p50_us: f64,
    /// The same call without bytes in the answer.
    pub rpc_take_p50_us: f64,
    /// Of neighbouring turns.
    pub rpc_find_of_echo: f64,
    pub rpc_find_of_take: f64,
}

/// Asks for prompts that workers hold, each a few times.
pub(super) async fn measure(
    channel: &Channel,
    echo: &Channel,
    engines: &Engines,
    args: &EventsArgs,
) -> Result<Asked, LoadtestError> {
    let questions: Arc<[Bytes]> = engines.questions().into();
    let find = FindCaller {
        method: live::method(channel),
        questions: Arc::clone(&questions),
    };
    let returned = BytesCaller::<Payload>::new(echo, echo::RETURN_PATH, &questions);
    let taken = BytesCaller::<Empty>::new(echo, echo::TAKE_PATH, &questions);
    let load = Load {
        concurrency: CONCURRENCY,
        rate: None,
        turn: Duration::from_millis(args.turn_ms as u64),
    };
    let mut rounds: Vec<[Slice; 3]> = Vec::with_capacity(args.rpc_rounds);
    // The first is the warm-up.
    for round in 0..=args.rpc_rounds {
        let turns = if round % 2 == 0 {
            let [take, echo] = [load.on(&taken).await, load.on(&returned).await];
            [load.on(&find).await, echo, take]
        } else {
            let find = load.on(&find).await;
            [find, load.on(&returned).await, load.on(&taken).await]
        };
        if round > 0 {
            rounds.push(turns);
        }
    }
    Asked::new(&rounds)
}

impl Asked {
    fn new(rounds: &[[Slice; 3]]) -> Result<Self, LoadtestError> {
        let slices = || rounds.iter().flatten();
        if let Some(first) = slices().find_map(|slice| slice.first_failure.clone()) {
            let count = slices().map(|slice| slice.failed).sum();
            return Err(LoadtestError::Failed { count, first });
        }
        let over_rounds = |value: &dyn Fn(&[Slice; 3]) -> f64| {
            let values: Vec<f64> = rounds.iter().map(value).collect();
            median(&values)
        };
        let p50 = |slice: &Slice| slice.round_trip.quantile_us(0.5);
        let mut finds = Slice::default();
        for [find, ..] in rounds {
            finds.then(find.clone());
        }
        Ok(Self {
            rpc_find_p50_us: over_rounds(&|[find, ..]| p50(find)),
            rpc_find_p99_us: finds.round_trip.quantile_us(0.99),
            rpc_echo_p50_us: over_rounds(&|[_, echo, _]| p50(echo)),
            rpc_take_p50_us: over_rounds(&|[.., take]| p50(take)),
            rpc_find_of_echo: over_rounds(&|[find, echo, _]| p50(find) / p50(echo)),
            rpc_find_of_take: over_rounds(&|[find, _, take]| p50(find) / p50(take)),
        })
    }
}

#[derive(Debug, Clone)]
struct FindCaller {
    method: Method<Found>,
    questions: Arc<[Bytes]>,
}

impl Caller for FindCaller {
    async fn call(&mut self, ordinal: u64) -> Result<Told, String> {
        let question = &self.questions[in_turn(ordinal, self.questions.len())];
        let found = self.method.call(question.clone()).await;
        let found = found.map_err(|status| format!("FindWorkers: {status}"))?;
        live::check(&found, None).map(|()| Told::default())
    }
}

/// Sends the same bytes to who does nothing with them.
#[derive(Debug)]
struct BytesCaller<Answer> {
    method: Method<Answer>,
    questions: Arc<[Bytes]>,
}

impl<Answer> Clone for BytesCaller<Answer> {
    fn clone(&self) -> Self {
        Self {
            method: self.method.clone(),
            questions: Arc::clone(&self.questions),
        }
    }
}

impl<Answer: Message + Default + 'static> BytesCaller<Answer> {
    fn new(channel: &Channel, path: &'static str, questions: &Arc<[Bytes]>) -> Self {
        Self {
            method: Method::new(channel.clone(), path),
            questions: Arc::clone(questions),
        }
    }
}

impl<Answer: Message + Default + 'static> Caller for BytesCaller<Answer> {
    async fn call(&mut self, ordinal: u64) -> Result<Told, String> {
        let question = &self.questions[in_turn(ordinal, self.questions.len())];
        let answer = self.method.call(question.clone()).await;
        answer
            .map(|_| Told::default())
            .map_err(|status| format!("echo: {status}"))
    }
}
