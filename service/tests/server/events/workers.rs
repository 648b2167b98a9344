//! FindWorkers and its pick, from the outside.

use kvatlas_proto::v1::{self, SourceState};
use tonic::Code;

use crate::{
    common,
    engine::{Engine, Reply},
    events::harness::{Harness, address, question},
    payloads::{batch, removed, stored},
};

const PROMPT: std::ops::Range<u32> = 1000..1064;

/// Engines that each hold as many blocks of the prompt, followed and settled.
async fn engines(harness: &mut Harness, blocks: &[u64]) -> Vec<Engine> {
    let mut engines = Vec::new();
    for (number, &blocks) in blocks.iter().enumerate() {
        let mut engine = Engine::start(100, Reply::FourFrames).await;
        let worker = format!("w{number}");
        harness
            .follow(address(&engine, &worker, true))
            .await
            .unwrap();
        let names: Vec<u64> = (1..=blocks).collect();
        let events = match names.as_slice() {
            [] => vec![],
            names => vec![stored(names, None, PROMPT.start)],
        };
        engine.publish(&batch(&events)).await;
        harness.settle(&worker, &engine, 1).await;
        engines.push(engine);
    }
    engines
}

fn picking(request_id: &str) -> v1::FindWorkersRequest {
    v1::FindWorkersRequest {
        pick: true,
        request_id: request_id.to_owned(),
        ..question(PROMPT)
    }
}

fn picked(answer: &v1::FindWorkersResponse) -> &str {
    &answer.picked.as_ref().unwrap().worker_id
}

#[tokio::test]
async fn workers_come_with_what_they_hold_the_fullest_first() {
    let mut harness = Harness::start();
    let _engines = engines(&mut harness, &[1, 4, 0]).await;
    let answer = harness.find(question(PROMPT)).await;
    let rows: Vec<_> = answer
        .workers
        .iter()
        .map(|row| {
            let worker = row.owner.as_ref().unwrap().worker_id.as_str();
            (
                worker,
                row.device_blocks,
                row.device_tokens,
                row.source_state(),
            )
        })
        .collect();
    let exact = SourceState::Exact;
    assert_eq!(
        rows,
        [
            ("w1", 4, 64, exact),
            ("w0", 1, 16, exact),
            ("w2", 0, 0, exact)
        ]
    );
    assert_eq!(answer.picked, None);
}

#[tokio::test]
async fn a_pick_goes_where_the_blocks_are_and_weighs_until_it_is_finished() {
    let mut harness = Harness::start();
    let _engines = engines(&mut harness, &[0, 4]).await;
    let answer = harness.find(picking("a")).await;
    assert_eq!((picked(&answer), answer.charged_blocks), ("w1", 0));
    assert!(answer.in_flight);
    // Its four blocks outweigh three requests in flight, and not four: less load breaks the tie.
    for request in ["b", "c", "d"] {
        assert_eq!(picked(&harness.find(picking(request)).await), "w1");
    }
    assert_eq!(picked(&harness.find(picking("e")).await), "w0");
    let loads = harness.find(question(PROMPT)).await.workers;
    assert!(loads.iter().all(|row| row.load_blocks > 0), "{loads:?}");
    let request_ids = ["a", "b", "c", "d", "e", "never"]
        .map(str::to_owned)
        .to_vec();
    let finish = v1::FinishRequestsRequest { request_ids };
    let finished = harness.events.finish_requests(finish).await.unwrap();
    assert_eq!(finished.into_inner().finished, 5);
    let answer = harness.find(picking("f")).await;
    assert_eq!(picked(&answer), "w1");
}

#[tokio::test]
async fn a_cold_fleet_is_charged_in_blocks_of_the_namespace_and_spreads() {
    let mut harness = Harness::start();
    let namespace = v1::Namespace {
        block_size: 32,
        ..common::namespace()
    };
    for worker in ["w0", "w1"] {
        let request = v1::AddEventSourceRequest {
            source: format!("tcp://127.0.0.1:1,worker={worker}"),
            namespace: Some(namespace.clone()),
        };
        harness.admin.add_event_source(request).await.unwrap();
    }
    let mut asked = Vec::new();
    for request in ["a", "b"] {
        let answer = harness
            .find(v1::FindWorkersRequest {
                namespace: common::selector(namespace.clone()),
                ..picking(request)
            })
            .await;
        assert_eq!(answer.charged_blocks, 2, "64 tokens");
        asked.push(picked(&answer).to_owned());
    }
    asked.sort();
    assert_eq!(asked, ["w0", "w1"]);
}

#[tokio::test]
async fn a_removed_block_is_not_found_any_more() {
    let mut harness = Harness::start();
    let mut engines = engines(&mut harness, &[4]).await;
    let engine = &mut engines[0];
    engine.publish(&batch(&[removed(&[3])])).await;
    harness.settle("w0", engine, 1).await;
    let answer = harness.find(question(PROMPT)).await;
    assert_eq!(answer.workers[0].device_blocks, 2);
}

#[tokio::test]
async fn after_a_cut_the_same_engine_is_believed_again_and_another_one_is_not() {
    let mut harness = Harness::start();
    let mut engines = engines(&mut harness, &[4]).await;
    let before = harness.source("w0").await.unwrap();
    let mut engine = engines.pop().unwrap().cut().await;
    engine.publish(&batch(&[removed(&[4])])).await;
    harness.settle("w0", &engine, 2).await;
    let after = harness.source("w0").await.unwrap();
    assert_eq!(
        (after.epoch, after.state()),
        (before.epoch, SourceState::Exact)
    );
    let answer = harness.find(question(PROMPT)).await;
    assert_eq!(answer.workers[0].device_blocks, 3);

    let mut engine = engine.restart().await;
    engine.publish(&batch(&[stored(&[9], None, 7)])).await;
    harness.settle("w0", &engine, 3).await;
    let restarted = harness.source("w0").await.unwrap();
    assert!(restarted.epoch > after.epoch);
    let answer = harness.find(question(PROMPT)).await;
    assert_eq!(answer.workers[0].device_blocks, 0);
}

#[tokio::test]
async fn nobody_is_found_in_another_namespace_or_without_one() {
    let mut harness = Harness::start();
    let _engines = engines(&mut harness, &[4]).await;
    let other = v1::Namespace {
        model: "another-model".into(),
        ..common::namespace()
    };
    let answer = harness
        .find(v1::FindWorkersRequest {
            namespace: common::selector(other),
            ..picking("a")
        })
        .await;
    assert_eq!((answer.workers, answer.picked), (vec![], None));
    let answer = harness
        .find(v1::FindWorkersRequest {
            namespace: None,
            ..picking("a")
        })
        .await;
    assert_eq!((answer.workers, answer.picked), (vec![], None));
    // Nothing is known of the images in a prompt, so that nothing matches.
    let pictures = v1::Namespace {
        multimodal_hashes: vec!["image".into()],
        ..common::namespace()
    };
    let answer = harness
        .find(v1::FindWorkersRequest {
            namespace: common::selector(pictures),
            ..question(PROMPT)
        })
        .await;
    assert_eq!(answer.workers[0].device_blocks, 0);
}

#[tokio::test]
async fn the_same_source_twice_changes_nothing_and_a_second_for_the_worker_is_refused() {
    let mut harness = Harness::start();
    let engine = Engine::start(100, Reply::FourFrames).await;
    let other = Engine::start(100, Reply::FourFrames).await;
    assert!(harness.follow(address(&engine, "w", true)).await.unwrap());
    assert!(!harness.follow(address(&engine, "w", true)).await.unwrap());
    let refused = harness
        .follow(address(&other, "w", true))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(refused.message().contains("rank 0"), "{refused:?}");
    assert_eq!(harness.sources().await.len(), 1);
    assert_eq!(harness.unfollow("w").await.removed_sources, 1);
    assert_eq!(harness.unfollow("w").await.removed_sources, 0);
    assert!(harness.follow(address(&other, "w", true)).await.unwrap());
}

#[tokio::test]
async fn bad_input_names_the_field_and_the_limit() {
    let mut harness = Harness::start();
    for (source, field) in [
        ("tcp://a", "source: events"),
        ("tcp://a:1,namespace=/n", "source: "),
    ] {
        let refused = harness.follow(source.into()).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with(field), "{refused:?}");
    }
    let item = |start, tokens| v1::MultimodalItem {
        identifier: "image".into(),
        start,
        tokens,
    };
    let with_items = |items: Vec<v1::MultimodalItem>| v1::FindWorkersRequest {
        items,
        ..question(PROMPT)
    };
    let long = "r".repeat(257);
    let bad = [
        (question([]), "tokens: "),
        (
            v1::FindWorkersRequest {
                pick: false,
                ..picking("a")
            },
            "request_id: ",
        ),
        (picking(&long), "request_id: 257 bytes, at most 256"),
        (with_items(vec![item(60, 5)]), "items: "),
        (with_items(vec![item(0, 0)]), "items: "),
        (with_items(vec![item(8, 2), item(9, 2)]), "items: "),
        (
            with_items(vec![item(0, 1); 1025]),
            "items: 1025 items, at most 1024",
        ),
    ];
    for (request, says) in bad {
        let refused = harness.events.find_workers(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(
            refused.message().starts_with(says),
            "{refused:?}, not {says}"
        );
    }
    let none = v1::FinishRequestsRequest::default();
    let refused = harness.events.finish_requests(none).await.unwrap_err();
    assert!(
        refused.message().starts_with("request_ids: "),
        "{refused:?}"
    );
}
