//! Every scenario of the events crate, end to end: what an engine publishes, and what FindWorkers
//! then says of a prompt.

use kvatlas_client::tenant_key;
use kvatlas_proto::v1;

use crate::{
    common,
    engine::{Engine, Reply},
    events::harness::{Harness, address, question},
    list::{Act, Query, Replay, Scenario, scenarios},
};

#[tokio::test]
async fn every_scenario_gives_the_right_answer_end_to_end() {
    let mut harness = Harness::start();
    let mut plays = 0;
    let mut wrong = Vec::new();
    for scenario in scenarios() {
        for &replay in scenario.replays {
            for reply in [Reply::ThreeFrames, Reply::FourFrames] {
                let found = play(&mut harness, &scenario, replay, reply).await;
                plays += 1;
                if found != scenario.right {
                    wrong.push((scenario.number, scenario.name, found, scenario.right));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "wrong: {wrong:?}");
    assert!(plays >= 47 * 2, "{plays}");
}

/// The tokens that the prompt finds once the feed came to rest.
async fn play(harness: &mut Harness, scenario: &Scenario, replay: Replay, reply: Reply) -> u32 {
    let kept = match replay {
        Replay::None => 100,
        Replay::Kept(kept) => kept,
    };
    let mut engine = Engine::start(kept, reply).await;
    for payload in &scenario.before {
        engine.publish_unheard(payload);
    }
    let worker = format!("engine-{}", scenario.number);
    let source = address(&engine, &worker, matches!(replay, Replay::Kept(_)));
    assert!(harness.follow(source).await.unwrap());
    let mut engines = 1;
    for act in &scenario.acts {
        match act {
            Act::Heard(payload) => engine.publish(payload).await,
            Act::Unheard(payload) => engine.publish_unheard(payload),
            Act::Restart => {
                harness.settle(&worker, &engine, engines).await;
                engine = engine.restart().await;
                engines += 1;
            }
        }
    }
    harness.settle(&worker, &engine, engines).await;
    let found = found(harness, &worker, &scenario.query).await;
    assert_eq!(harness.unfollow(&worker).await.removed_sources, 1);
    found
}

pub(super) async fn found(harness: &mut Harness, worker: &str, query: &Query) -> u32 {
    let namespace = v1::Namespace {
        adapter: query.adapter.unwrap_or("none").to_owned(),
        tenant_key: tenant_key(query.salt).unwrap(),
        ..common::namespace()
    };
    let answer = harness
        .find(v1::FindWorkersRequest {
            namespace: common::selector(namespace),
            ..question(query.tokens.clone())
        })
        .await;
    let [found] = answer.workers.as_slice() else {
        assert!(answer.workers.is_empty(), "{:?}", answer.workers);
        return 0;
    };
    assert_eq!(found.owner.as_ref().unwrap().worker_id, worker);
    assert!(
        found.block_size == query.block_size || found.device_blocks + found.lower_tier_blocks == 0
    );
    match query.counts_lower {
        true => found.device_tokens + found.lower_tier_tokens,
        false => found.device_tokens,
    }
}
