//! What must not be trusted, or must be in spite of something odd: each of these once was wrong.

use kvatlas_proto::v1::{LeaseState, Medium, SourceState};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use crate::{
    common::within,
    events::{
        donors::{BLOCKS, Story, TOKENS},
        harness::{Harness, question},
        publish::Sidecar,
    },
    payloads::{batch, removed, stored},
};

/// On another medium or of another group.
fn with(mut event: Value, fields: &[(&str, Value)]) -> Value {
    for (name, value) in fields {
        event[*name] = value.clone();
    }
    event
}

async fn device_tokens(story: &mut Story) -> u32 {
    let found = story.harness.find(question(0..TOKENS)).await;
    found.workers[0].device_tokens
}

/// A story of a donor whose blocks all lie on the device.
async fn begin() -> Story {
    let mut story = Story::begin().await;
    story.register("d", Medium::Device, &[]).await;
    story.store(1..=BLOCKS).await;
    story
}

#[tokio::test]
async fn a_removal_ends_the_lease_also_while_a_silent_engine_is_asked_again() {
    let mut story = begin().await;
    // After ten seconds, and never answered.
    let asked = within(story.sidecar.answers.message()).await;
    assert!(asked.unwrap().unwrap().replay_from.is_some());
    let (_, lease) = story.leased().await;

    let request = kvatlas_proto::v1::PublishRequest {
        sequence: story.sidecar.next,
        payload: batch(&[removed(&[1])]).into(),
        ..story.sidecar.request()
    };
    let mut answer = story.sidecar.exchange(request).await;
    while answer.replay_from.is_some() {
        // It is asked once more, and this is no answer to the batch.
        let next = within(story.sidecar.answers.message()).await;
        answer = next.unwrap().unwrap();
    }
    assert_eq!(answer.applied_sequence, Some(story.sidecar.next));
    assert_eq!(answer.source_state(), SourceState::Exact);
    assert_eq!(story.state(&lease).await, LeaseState::Stale);
    assert_eq!(device_tokens(&mut story).await, 0);
}

#[tokio::test]
async fn larger_blocks_of_a_lower_tier_take_nothing_from_the_device() {
    let mut story = begin().await;
    let (_, lease) = story.leased().await;
    let tokens: Vec<u32> = (0..64).collect();
    let offloaded = with(
        stored(&[1004], None, 0),
        &[
            ("medium", json!("CPU")),
            ("block_size", json!(64)),
            ("token_ids", json!(tokens)),
        ],
    );
    story.sidecar.publish(&batch(&[offloaded])).await;
    assert_eq!(device_tokens(&mut story).await, TOKENS);
    assert_eq!(story.state(&lease).await, LeaseState::Valid);
    // What follows is no short page of the lower tier's.
    story.sidecar.publish(&batch(&[removed(&[BLOCKS])])).await;
    assert_eq!(device_tokens(&mut story).await, TOKENS - 16);
    story.store(BLOCKS..=BLOCKS).await;
    assert_eq!(device_tokens(&mut story).await, TOKENS);
    assert_eq!(story.leased().await.0, TOKENS);
}

#[tokio::test]
async fn a_second_attention_group_that_shows_up_late_ends_what_rested_on_the_first_alone() {
    let full = || json!("full_attention");
    // The last cuts tokens in another way.
    for (kind, size) in [(full(), 16), (Value::Null, 16), (full(), 32)] {
        let mut story = Story::begin().await;
        story.register("d", Medium::Device, &[]).await;
        let names: Vec<u64> = (1..=BLOCKS).collect();
        let first = with(stored(&names, None, 0), &[("kv_cache_spec_kind", kind)]);
        story.sidecar.publish(&batch(&[first])).await;
        let (reusable, lease) = story.leased().await;
        assert_eq!(reusable, TOKENS);
        let tokens: Vec<u32> = (40_000..40_000 + size).collect();
        let late = [
            ("group_idx", json!(1)),
            ("block_size", json!(size)),
            ("token_ids", json!(tokens)),
        ];
        let late = with(stored(&[900], None, 0), &late);
        story.sidecar.publish(&batch(&[late])).await;
        assert_eq!(device_tokens(&mut story).await, 0);
        assert_eq!(story.state(&lease).await, LeaseState::Stale);
        let answer = story.find().await;
        assert_eq!(answer.lease, None, "{answer:?}");
        if size > 16 {
            continue;
        }
        // Once the other group holds it as well it can be lent, and this lease is over.
        let both =
            [0, 1].map(|group| with(stored(&names, None, 0), &[("group_idx", json!(group))]));
        story.sidecar.publish(&batch(&both)).await;
        assert_eq!(story.leased().await.0, TOKENS);
        assert_eq!(story.state(&lease).await, LeaseState::Stale);
    }
}

#[tokio::test]
async fn of_groups_that_cut_tokens_differently_the_one_that_holds_least_counts() {
    let mut story = Story::begin().await;
    let names: Vec<u64> = (1..=BLOCKS).collect();
    let pairs: Vec<u64> = (1..=BLOCKS / 2).map(|pair| 2 * pair).collect();
    let larger = |hashes: &[u64], parent: Option<u64>, first: u32| {
        let tokens = first..first + u32::try_from(hashes.len()).unwrap() * 32;
        let fields = [
            ("group_idx", json!(1)),
            ("block_size", json!(32)),
            ("token_ids", json!(tokens.collect::<Vec<_>>())),
        ];
        with(stored(hashes, parent, first), &fields)
    };
    let both = [stored(&names, None, 0), larger(&pairs, None, 0)];
    story.sidecar.publish(&batch(&both)).await;
    assert_eq!(device_tokens(&mut story).await, TOKENS);
    let in_second = |hash: u64| with(removed(&[hash]), &[("group_idx", json!(1))]);
    story.sidecar.publish(&batch(&[in_second(8)])).await;
    assert_eq!(device_tokens(&mut story).await, 96);
    story.sidecar.publish(&batch(&[in_second(2)])).await;
    assert_eq!(device_tokens(&mut story).await, 0);
    let again = [larger(&[2], None, 0), removed(&[4])];
    story.sidecar.publish(&batch(&again)).await;
    assert_eq!(device_tokens(&mut story).await, 48);
}

#[tokio::test]
async fn blocks_known_by_their_tokens_alone_end_with_those_of_a_group_that_names_them() {
    for group in [json!(0), Value::Null] {
        let mut story = Story::begin().await;
        let kind = ("kv_cache_spec_kind", Value::Null);
        let named = |event: Value, group: Value| with(event, &[kind.clone(), ("group_idx", group)]);
        let names = [1, 2, 3, 4, 5];
        let attention = named(stored(&names, None, 0), group.clone());
        // One hash for all of them, and it is the last one's.
        let tokens: Vec<u32> = (0..80).collect();
        let other = match group.is_null() {
            true => Value::Null,
            false => json!(1),
        };
        let state = with(stored(&[5], None, 0), &[("token_ids", json!(tokens))]);
        let state = named(state, other);
        story.sidecar.publish(&batch(&[attention, state])).await;
        assert_eq!(device_tokens(&mut story).await, 80);
        for (removal, left) in [(&[4][..], 48), (&[1, 2, 3], 0)] {
            let removal = with(removed(removal), &[("group_idx", group.clone())]);
            story.sidecar.publish(&batch(&[removal])).await;
            assert_eq!(device_tokens(&mut story).await, left);
        }
    }
}

#[tokio::test]
async fn more_groups_than_can_be_kept_apart_leave_nothing_to_lease() {
    let mut story = Story::begin().await;
    story.register("d", Medium::Device, &[]).await;
    let names: Vec<u64> = (1..=BLOCKS).collect();
    for medium in ["CPU", "DISK", "GPU"] {
        for group in 0..6 {
            let fields = [("medium", json!(medium)), ("group_idx", json!(group))];
            let event = with(stored(&names, None, 0), &fields);
            story.sidecar.publish(&batch(&[event])).await;
        }
    }
    let gone = with(removed(&[1]), &[("group_idx", json!(5))]);
    story.sidecar.publish(&batch(&[gone])).await;
    assert_eq!(device_tokens(&mut story).await, 0);
    let answer = story.find().await;
    assert_eq!(answer.lease, None, "{answer:?}");
}

#[tokio::test]
async fn removals_of_what_is_not_there_cost_no_more_where_blocks_wait_for_their_parents() {
    let mut harness = Harness::start();
    let mut with_orphans = Sidecar::open(&mut harness, "orphans", None).await;
    // As many as may wait.
    let orphans: Vec<Value> = (0..4096)
        .map(|number| stored(&[number], Some(1 << 32 | number), 0))
        .collect();
    with_orphans.publish(&batch(&orphans)).await;
    let mut without = Sidecar::open(&mut harness, "none", None).await;
    without.publish(&batch(&[stored(&[1], None, 0)])).await;
    let unknown: Vec<u64> = (1 << 40..(1 << 40) + 4_000).collect();
    let unknown = batch(&[removed(&unknown)]);
    let mut least = [Duration::MAX; 2];
    for _ in 0..3 {
        for (sidecar, least) in [&mut with_orphans, &mut without]
            .into_iter()
            .zip(&mut least)
        {
            let began = Instant::now();
            sidecar.publish(&unknown).await;
            *least = began.elapsed().min(*least);
        }
    }
    // It was forty times as long when each of them looked at all that waits.
    assert!(least[0] < 8 * least[1], "{least:?}");
}
