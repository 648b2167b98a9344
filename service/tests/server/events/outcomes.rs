//! What became of events is told: to operators by metrics, and of each source by its status.

use kvatlas_proto::v1::{self, SourceState};
use serde_json::json;

use crate::{
    common::{self, http_get},
    events::{
        harness::{Harness, question},
        publish::Sidecar,
    },
    payloads::{batch, removed, stored},
};

#[tokio::test]
async fn what_became_of_events_is_told_of_each_source_and_over_all() {
    let server = common::start();
    let mut harness = Harness::on(&server.clients);
    let mut weird = stored(&[7], None, 0);
    weird["kv_cache_spec_kind"] = json!("weird");
    weird["group_idx"] = json!(3);
    let events = [
        stored(&[1, 2], None, 0),
        weird,
        stored(&[9], Some(8), 512),
        removed(&[55]),
    ];
    let mut sidecars = Vec::new();
    for worker in ["one", "other"] {
        let mut sidecar = Sidecar::open(&mut harness, worker, None).await;
        sidecar.publish(&batch(&events)).await;
        sidecars.push(sidecar);
    }
    let expected = [
        ("stored", 2),
        ("unknown_kind", 1),
        ("orphan_held", 1),
        ("removed_unknown", 1),
    ];
    let of_one = harness.source("one").await.unwrap();
    let told = of_one.outcomes.iter();
    let mut told: Vec<_> = told.map(|(name, count)| (name.as_str(), *count)).collect();
    let mut sorted = expected.to_vec();
    sorted.sort_unstable();
    told.sort_unstable();
    assert_eq!(told, sorted);

    let page = http_get(server.server.http_address(), "/metrics");
    for (outcome, count) in expected.into_iter().chain([("conflict", 0)]) {
        let line = format!(
            "\nkvatlas_events_outcomes{{outcome=\"{outcome}\"}} {}\n",
            2 * count
        );
        assert!(page.contains(&line), "{line} of {page}");
    }
    for name in [
        "kvatlas_event_batches_refused",
        "kvatlas_event_messages_malformed",
    ] {
        assert!(page.contains(&format!("\n{name} 0\n")), "{name} of {page}");
    }
}

#[tokio::test]
async fn blocks_of_an_odd_size_are_told_of_and_count_where_the_namespace_says_so() {
    let mut harness = Harness::start();
    let mut event = stored(&[1], None, 0);
    event["block_size"] = json!(12);
    event["token_ids"] = json!((0..12).collect::<Vec<u32>>());
    for (block_size, outcome) in [(16, "odd_size"), (12, "stored")] {
        let namespace = v1::Namespace {
            block_size,
            ..common::namespace()
        };
        let worker = format!("of-{block_size}");
        let mut sidecar = Sidecar::open(&mut harness, &worker, None).await;
        let request = v1::PublishRequest {
            payload: batch(std::slice::from_ref(&event)).into(),
            namespace: common::selector(namespace.clone()),
            ..sidecar.request()
        };
        sidecar.exchange(request).await;
        let source = harness.source(&worker).await.unwrap();
        assert_eq!(source.outcomes, [(outcome.to_owned(), 1)].into());
        let asked = v1::FindWorkersRequest {
            namespace: common::selector(namespace),
            ..question(0..12)
        };
        let found = harness.find(asked).await.workers;
        assert_eq!(found[0].device_tokens == 12, block_size == 12);
    }
}

#[tokio::test]
async fn batches_that_find_no_room_to_wait_are_counted() {
    let server = common::start();
    let mut harness = Harness::on(&server.clients);
    let value = |name: &str| {
        let page = http_get(server.server.http_address(), "/metrics");
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse::<usize>().unwrap()
    };
    let waiting = || value("kvatlas_event_waiting_bytes ");
    let mut sidecar = Sidecar::open(&mut harness, "w", Some(0)).await;
    // Of these 21 may wait for a replay.
    let large = vec![0xc0; 3 << 20];
    for sequence in 0..23 {
        let request = v1::PublishRequest {
            sequence,
            payload: large.clone().into(),
            ..sidecar.request()
        };
        let answer = sidecar.exchange(request).await;
        assert_eq!(answer.source_state(), SourceState::Degraded);
        assert!(sequence > 0 || waiting() > large.len());
    }
    // Answers may be of before: that a replay is late is answered too.
    let dropped = || value("kvatlas_event_batches_dropped ");
    common::until(|| std::future::ready(dropped() == 2)).await;
    assert_eq!(harness.source("w").await.unwrap().dropped_batches, 2);
    harness.unfollow("w").await;
    assert_eq!(waiting(), 0);
}

#[tokio::test]
async fn batches_without_room_are_counted() {
    let mut harness = Harness::start();
    let mut sidecar = Sidecar::open(&mut harness, "wide", None).await;
    // As many ranks as a source may name, and one more.
    for rank in 0..=64 {
        let mut payload = batch(&[]);
        let rank_byte = payload.last_mut().unwrap();
        *rank_byte = rank;
        sidecar.publish(&payload).await;
    }
    let source = harness.source("wide").await.unwrap();
    assert_eq!((source.refused_batches, source.malformed_messages), (1, 0));
    assert_eq!(source.data_parallel_ranks.len(), 64);
}
