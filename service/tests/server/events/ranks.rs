//! Ranks of a worker that two bring: the later is told, and nothing is taken from the first.

use kvatlas_proto::v1::{self, PublishRefusal, SourceState};
use serde_json::Value;
use tonic::Code;

use crate::{
    engine::{Engine, Reply},
    events::{
        harness::{Harness, address, question},
        publish::Sidecar,
    },
    payloads::{batch, stored},
};

/// A batch of a rank below 128.
fn of_rank(rank: u8, events: &[Value]) -> Vec<u8> {
    let mut payload = batch(events);
    let last = payload.last_mut().unwrap();
    assert_eq!(*last, 0, "the rank is what comes last");
    *last = rank;
    payload
}

fn as_rank(rank: u32, request: v1::PublishRequest) -> v1::PublishRequest {
    let owner = v1::Owner {
        worker_id: "w".into(),
        data_parallel_rank: rank,
    };
    v1::PublishRequest {
        owner: Some(owner),
        ..request
    }
}

/// Rank and blocks of the workers that hold any of a prompt of three.
async fn found(harness: &mut Harness) -> Vec<(u32, u32)> {
    let workers = harness.find(question(0..48)).await.workers;
    let rows = workers.into_iter().filter(|row| row.device_blocks > 0);
    rows.map(|row| (row.owner.unwrap().data_parallel_rank, row.device_blocks))
        .collect()
}

#[tokio::test]
async fn over_publish_a_batch_of_anothers_rank_is_refused() {
    let mut harness = Harness::start();
    let mut first = Sidecar::open(&mut harness, "w", None).await;
    let held = of_rank(3, &[stored(&[1, 2], None, 0)]);
    let answer = first.publish(&held).await;
    assert_eq!(answer.source_state(), SourceState::Exact);

    let mut second = Sidecar::open(&mut harness, "w", None).await;
    let introduced = second.exchange(as_rank(3, second.request())).await;
    assert_eq!(introduced.refusal(), PublishRefusal::RankTaken);
    let named = v1::PublishRequest {
        payload: of_rank(3, &[stored(&[1, 2, 3], None, 0)]).into(),
        ..as_rank(5, second.request())
    };
    assert_eq!(
        second.exchange(named).await.refusal(),
        PublishRefusal::RankTaken
    );
    let asked = second.exchange(as_rank(5, second.request())).await;
    assert_eq!(asked.refusal(), PublishRefusal::Unspecified);
    assert_eq!(asked.source_state(), SourceState::Degraded);
    assert_eq!(found(&mut harness).await, [(3, 2)]);
    let standings: Vec<_> = harness.sources().await;
    let standings: Vec<_> = standings
        .iter()
        .map(|source| (source.state(), source.refused_batches, source.blocks))
        .collect();
    let expected = [(SourceState::Exact, 0, 2), (SourceState::Degraded, 1, 0)];
    assert_eq!(standings, expected);
    // What is its own is taken, and the first goes on.
    let own = v1::PublishRequest {
        sequence: 1,
        payload: of_rank(5, &[stored(&[1], None, 0)]).into(),
        ..as_rank(5, second.request())
    };
    let answer = second.exchange(own).await;
    assert_eq!(answer.refusal(), PublishRefusal::Unspecified);
    assert_eq!(found(&mut harness).await, [(3, 2), (5, 1)]);
    assert_eq!(
        first.publish(&held).await.source_state(),
        SourceState::Exact
    );
}

#[tokio::test]
async fn over_sockets_a_taken_rank_is_refused_or_shown() {
    let mut harness = Harness::start();
    let mut one = Engine::start(10, Reply::FourFrames).await;
    let mut other = Engine::start(10, Reply::FourFrames).await;
    assert!(harness.follow(address(&one, "w", false)).await.unwrap());
    harness.settle("w", &one, 1).await;
    one.publish(&of_rank(1, &[stored(&[1, 2], None, 0)])).await;
    harness.settle("w", &one, 1).await;

    let refused = harness
        .follow(address(&other, "w", false) + ",rank=1")
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(refused.message().starts_with("source: rank 1"), "{refused}");

    let later = address(&other, "w", false) + ",rank=2";
    assert!(harness.follow(later).await.unwrap());
    let admin = harness.admin.clone();
    crate::common::until(|| {
        let mut admin = admin.clone();
        async move {
            let listed = admin.list_event_sources(v1::ListEventSourcesRequest {});
            let sources = listed.await.unwrap().into_inner().sources;
            sources.iter().all(|source| source.connections == 1)
        }
    })
    .await;
    other.publish(&of_rank(1, &[stored(&[1], None, 0)])).await;
    crate::common::until(|| {
        let mut admin = admin.clone();
        async move {
            let listed = admin.list_event_sources(v1::ListEventSourcesRequest {});
            let sources = listed.await.unwrap().into_inner().sources;
            let is_shown = |source: &v1::EventSourceStatus| {
                source.state() == SourceState::Degraded
                    && source.refused_batches == 1
                    && source.data_parallel_ranks.is_empty()
            };
            sources.iter().any(is_shown)
        }
    })
    .await;
    assert_eq!(found(&mut harness).await, [(1, 2)]);
}
