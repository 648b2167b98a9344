//! The same batches over Publish: a sidecar that keeps some, loses some, and is asked for more.

use std::collections::VecDeque;

use kvatlas_proto::v1::{self, PublishRefusal, SourceState};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use crate::{
    common::{self, within},
    events::{
        harness::{Harness, question},
        scenarios::found,
    },
    list::{Act, Replay, scenarios},
    payloads::{batch, removed, stored},
};

/// Forwards one engine's batches.
pub(super) struct Sidecar {
    pub(super) requests: mpsc::Sender<v1::PublishRequest>,
    pub(super) answers: Streaming<v1::PublishResponse>,
    worker: String,
    /// None: it cannot send again.
    kept_max: Option<usize>,
    pub(super) kept: VecDeque<(u64, Vec<u8>)>,
    pub(super) next: u64,
}

impl Sidecar {
    pub(super) async fn open(
        harness: &mut Harness,
        worker: &str,
        kept_max: Option<usize>,
    ) -> Sidecar {
        let (requests, sent) = mpsc::channel(64);
        let opened = harness.events.publish(ReceiverStream::new(sent));
        Sidecar {
            requests,
            answers: within(opened).await.unwrap().into_inner(),
            worker: worker.to_owned(),
            kept_max,
            kept: VecDeque::new(),
            next: 0,
        }
    }

    pub(super) fn request(&self) -> v1::PublishRequest {
        v1::PublishRequest {
            owner: Some(v1::Owner {
                worker_id: self.worker.clone(),
                data_parallel_rank: 0,
            }),
            namespace: common::selector(common::namespace()),
            can_replay: self.kept_max.is_some(),
            ..v1::PublishRequest::default()
        }
    }

    pub(super) fn keep(&mut self, payload: &[u8]) -> u64 {
        let sequence = self.next;
        self.next += 1;
        self.kept.push_back((sequence, payload.to_vec()));
        while self.kept.len() > self.kept_max.unwrap_or(0) {
            self.kept.pop_front();
        }
        sequence
    }

    pub(super) async fn exchange(&mut self, request: v1::PublishRequest) -> v1::PublishResponse {
        self.requests.send(request).await.unwrap();
        within(self.answers.message()).await.unwrap().unwrap()
    }

    /// Sends, and whatever is wanted again; returns where it stands then.
    async fn say(&mut self, request: v1::PublishRequest) -> v1::PublishResponse {
        let mut answer = self.exchange(request).await;
        while let Some(from) = answer.replay_from {
            answer = self.replay(from).await;
        }
        answer
    }

    /// Sends again what is kept from there on.
    pub(super) async fn replay(&mut self, from: u64) -> v1::PublishResponse {
        let again: Vec<_> = self.kept.iter().cloned().collect();
        for (sequence, payload) in again.into_iter().filter(|(number, _)| *number >= from) {
            let request = v1::PublishRequest {
                sequence,
                payload: payload.into(),
                replayed: true,
                ..self.request()
            };
            self.exchange(request).await;
        }
        let request = v1::PublishRequest {
            replay_ended: true,
            ..self.request()
        };
        self.exchange(request).await
    }

    pub(super) async fn publish(&mut self, payload: &[u8]) -> v1::PublishResponse {
        let sequence = self.keep(payload);
        let request = v1::PublishRequest {
            sequence,
            payload: payload.to_vec().into(),
            ..self.request()
        };
        self.say(request).await
    }
}

#[tokio::test]
async fn every_scenario_gives_the_right_answer_over_publish() {
    let mut harness = Harness::start();
    let mut wrong = Vec::new();
    for scenario in scenarios() {
        for &replay in scenario.replays {
            let kept = match replay {
                Replay::None => None,
                Replay::Kept(kept) => Some(kept),
            };
            let worker = format!("sidecar-{}", scenario.number);
            let mut sidecar = Sidecar::open(&mut harness, &worker, kept).await;
            for payload in &scenario.before {
                sidecar.keep(payload);
            }
            sidecar.say(sidecar.request()).await;
            for act in &scenario.acts {
                match act {
                    Act::Heard(payload) => {
                        sidecar.publish(payload).await;
                    }
                    Act::Unheard(payload) => {
                        sidecar.keep(payload);
                    }
                    Act::Restart => {
                        sidecar = Sidecar::open(&mut harness, &worker, kept).await;
                        sidecar.say(sidecar.request()).await;
                    }
                }
            }
            let found = found(&mut harness, &worker, &scenario.query).await;
            if found != scenario.right {
                wrong.push((scenario.number, scenario.name, kept, found, scenario.right));
            }
            assert_eq!(harness.unfollow(&worker).await.removed_sources, 1);
        }
    }
    assert!(wrong.is_empty(), "wrong: {wrong:?}");
}

#[tokio::test]
async fn a_stream_that_goes_on_is_verified_and_one_that_has_ended_is_stale() {
    let mut harness = Harness::start();
    let mut sidecar = Sidecar::open(&mut harness, "w", Some(10)).await;
    sidecar.publish(&batch(&[stored(&[1, 2], None, 0)])).await;
    let before = sidecar.publish(&batch(&[stored(&[3], Some(2), 32)])).await;
    assert_eq!(before.source_state(), SourceState::Exact);
    assert_eq!(before.applied_sequence, Some(1));
    let Sidecar { kept, next, .. } = sidecar;
    let admin = harness.admin.clone();
    common::until(|| {
        let mut admin = admin.clone();
        async move {
            let listed = admin.list_event_sources(v1::ListEventSourcesRequest {});
            let sources = listed.await.unwrap().into_inner().sources;
            sources[0].state() == SourceState::Stale
        }
    })
    .await;

    let mut sidecar = Sidecar::open(&mut harness, "w", Some(10)).await;
    (sidecar.kept, sidecar.next) = (kept, next);
    let after = sidecar.publish(&batch(&[removed(&[3])])).await;
    assert_eq!(after.source_state(), SourceState::Exact);
    assert_eq!(after.source_epoch, before.source_epoch);
    let answer = harness.find(question(0..48)).await;
    assert_eq!(answer.workers[0].device_blocks, 2);
}

#[tokio::test]
async fn a_later_stream_takes_over_and_bad_requests_name_their_field() {
    let mut harness = Harness::start();
    let mut first = Sidecar::open(&mut harness, "w", None).await;
    first.publish(&batch(&[stored(&[1], None, 0)])).await;
    let mut second = Sidecar::open(&mut harness, "w", None).await;
    second.publish(&batch(&[stored(&[1, 2], None, 0)])).await;
    let late = first.exchange(first.request()).await;
    assert_eq!(late.refusal(), PublishRefusal::Superseded);
    let answer = harness.find(question(0..48)).await;
    assert_eq!(answer.workers[0].device_blocks, 2);

    let bad = [
        (
            v1::PublishRequest {
                owner: None,
                ..second.request()
            },
            "owner: ",
        ),
        (
            v1::PublishRequest {
                sequence: u64::MAX,
                ..second.request()
            },
            "sequence: ",
        ),
        (
            v1::PublishRequest {
                replay_ended: true,
                payload: vec![1].into(),
                ..second.request()
            },
            "payload: ",
        ),
    ];
    for (request, field) in bad {
        let sidecar = Sidecar::open(&mut harness, "bad", None).await;
        let Sidecar {
            requests,
            mut answers,
            ..
        } = sidecar;
        requests.send(request).await.unwrap();
        let refused = within(answers.message()).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with(field), "{refused:?}");
    }
    let source = "tcp://127.0.0.1:1,worker=w".to_owned();
    assert_eq!(
        harness.follow(source).await.unwrap_err().code(),
        Code::AlreadyExists
    );
}

#[tokio::test]
async fn what_is_refused_of_one_owner_costs_no_other() {
    let mut harness = Harness::start();
    let mut first = Sidecar::open(&mut harness, "healthy", None).await;
    first.publish(&batch(&[stored(&[1], None, 0)])).await;
    let of = |owner: &str, request: v1::PublishRequest| v1::PublishRequest {
        owner: common::owner(owner),
        ..request
    };
    for owner in ["taken", "removed"] {
        let known = first.exchange(of(owner, first.request())).await;
        assert_eq!(known.refusal(), PublishRefusal::Unspecified);
    }
    let mut second = Sidecar::open(&mut harness, "taken", None).await;
    second.publish(&batch(&[stored(&[1], None, 0)])).await;
    assert_eq!(harness.unfollow("removed").await.removed_sources, 1);
    let source = "tcp://127.0.0.1:1,worker=followed".to_owned();
    assert!(harness.follow(source).await.unwrap());

    let refused = [
        ("taken", PublishRefusal::Superseded),
        ("removed", PublishRefusal::Superseded),
        ("followed", PublishRefusal::Followed),
    ];
    for (owner, why) in refused {
        let answer = first.exchange(of(owner, first.request())).await;
        assert_eq!(answer.refusal(), why, "{owner}");
        assert_eq!(answer.owner, common::owner(owner));
        assert_eq!(answer.source_state(), SourceState::Stale);
    }
    // Those that are there and 1022 others are as many as may be.
    for number in 0..1022 {
        let request = of(&format!("other-{number}"), first.request());
        let answer = first.exchange(request).await;
        assert_eq!(answer.refusal(), PublishRefusal::Unspecified);
    }
    let answer = first.exchange(of("one-more", first.request())).await;
    assert_eq!(answer.refusal(), PublishRefusal::TooMany);

    let healthy = first.publish(&batch(&[stored(&[2], Some(1), 16)])).await;
    assert_eq!(healthy.source_state(), SourceState::Exact);
    assert_eq!(
        (healthy.applied_sequence, healthy.source_epoch),
        (Some(1), 0)
    );
}

#[tokio::test]
async fn the_epochs_of_an_owner_rise_for_as_long_as_the_server_runs() {
    let mut harness = Harness::start();
    let (mut epochs, mut sidecars) = (Vec::new(), Vec::new());
    // Begun anew, in another namespace, after it was removed, and in the first namespace again.
    let namespaces = ["m", "other", "other", "m"];
    for (turn, model) in namespaces.into_iter().enumerate() {
        if turn == 2 {
            harness.unfollow("w").await;
        }
        let mut sidecar = Sidecar::open(&mut harness, "w", None).await;
        let namespace = v1::Namespace {
            model: model.into(),
            ..common::namespace()
        };
        for sequence in [1, 0] {
            let request = v1::PublishRequest {
                sequence,
                payload: batch(&[stored(&[1], None, 0)]).into(),
                namespace: common::selector(namespace.clone()),
                ..sidecar.request()
            };
            epochs.push(sidecar.exchange(request).await.source_epoch);
        }
        sidecars.push(sidecar);
    }
    assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
    let source = harness.source("w").await.unwrap();
    assert_eq!(Some(&source.epoch), epochs.last());
}
