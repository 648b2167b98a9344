//! Ten ways in which a peer fails, each with the right outcome.

use kvatlas_proto::v1::{self, FallbackReason, FindOutcome};

use crate::harness::{Expect, Harness, check, check_miss, lookup, registration, text};

fn concat(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

#[tokio::test]
async fn a_preamble_that_all_share_hides_no_document() {
    let mut harness = Harness::discovery().await;
    let preamble = text(1, 512);
    let document = |i: u64| text(100 + i, 700);
    for i in 0..20 {
        harness
            .register(&format!("d{i}"), &concat(&[&preamble, &document(i)]))
            .await;
    }
    for i in 0..20 {
        let target = concat(&[&preamble, &text(500 + i, 30), &document(i)]);
        let donor = format!("d{i}");
        for (exact_prefix, covered) in [(0, 1200), (512, 680)] {
            let expect = Expect {
                target: &target,
                exact_prefix,
                outcome: FindOutcome::Spans,
                donor: &donor,
                covered,
            };
            check(&mut harness, expect).await;
        }
    }
}

#[tokio::test]
async fn a_target_inside_a_donor_four_times_longer_is_found() {
    let mut harness = Harness::discovery().await;
    let donor = text(2, 4000);
    harness.register("long", &donor).await;
    let target = concat(&[&text(3, 20), &donor[1500..2500]]);
    let expect = Expect {
        target: &target,
        exact_prefix: 0,
        outcome: FindOutcome::Spans,
        donor: "long",
        covered: 1000,
    };
    let answer = check(&mut harness, expect).await;
    assert!(answer.r#match.unwrap().similarity > 0.97);
}

#[tokio::test]
async fn an_identical_prompt_of_any_length_is_an_exact_prefix() {
    let mut harness = Harness::discovery().await;
    for (i, length) in [600_usize, 2049, 5000, 40_000].into_iter().enumerate() {
        let prompt = text(10 + i as u64, length);
        let donor = format!("p{length}");
        harness.register(&donor, &prompt).await;
        let expect = Expect {
            target: &prompt,
            exact_prefix: 0,
            outcome: FindOutcome::Prefix,
            donor: &donor,
            covered: u32::try_from(length / 16 * 16).unwrap(),
        };
        let found = check(&mut harness, expect).await.r#match.unwrap();
        assert_eq!(found.tier(), v1::Tier::Exact);
        assert_eq!(found.cache_policy(), v1::CachePolicy::ExactCommit);
        let blocks = u32::try_from((length - 1) / 16 * 16).unwrap();
        assert_eq!(found.reusable_prefix_tokens, blocks);
    }
}

#[tokio::test]
async fn a_change_in_every_12th_token_is_a_miss_that_can_be_explained() {
    let mut harness = Harness::discovery().await;
    let donor = text(20, 2048);
    harness.register("worn", &donor).await;
    harness.register("other", &text(21, 2048)).await;
    let mut target = donor.clone();
    for place in (0..target.len()).step_by(12) {
        target[place] = 160_000;
    }
    let mut request = lookup(&target);
    request.explain = true;
    let answer = check_miss(&mut harness, request, FallbackReason::LowReuseTokens).await;
    let shown: Vec<_> = answer
        .rejected
        .iter()
        .map(|r| r.donor_id.as_str())
        .collect();
    assert_eq!(shown, ["worn"]);
}

#[tokio::test]
async fn ten_shuffled_blocks_are_all_found() {
    let mut harness = Harness::discovery().await;
    let donor = text(30, 3000);
    harness.register("ordered", &donor).await;
    let order = [7_usize, 2, 9, 4, 0, 8, 1, 6, 3, 5];
    let blocks: Vec<_> = order
        .iter()
        .map(|i| &donor[i * 300..(i + 1) * 300])
        .collect();
    let target = concat(&blocks);
    let expect = Expect {
        target: &target,
        exact_prefix: 0,
        outcome: FindOutcome::Spans,
        donor: "ordered",
        covered: 2990,
    };
    check(&mut harness, expect).await;
}

#[tokio::test]
async fn of_forty_donors_of_one_template_the_one_with_the_body_is_found() {
    let mut harness = Harness::discovery().await;
    let template = text(40, 900);
    let prompt = |i: u64| {
        concat(&[
            &template[..450],
            &text(400 + i, 20),
            &template[450..],
            &text(600 + i, 400),
        ])
    };
    for i in 0..40 {
        harness.register(&format!("t{i}"), &prompt(i)).await;
    }
    for i in [0_u64, 17, 39] {
        let target = concat(&[
            &template[..450],
            &text(990, 20),
            &template[450..],
            &text(600 + i, 400),
        ]);
        let donor = format!("t{i}");
        let expect = Expect {
            target: &target,
            exact_prefix: 0,
            outcome: FindOutcome::Spans,
            donor: &donor,
            covered: 1290,
        };
        check(&mut harness, expect).await;
    }
}

#[tokio::test]
async fn a_hit_refreshes_a_donor_and_registering_again_replaces_it() {
    let mut harness = Harness::start(|args| args.donors_max = 3).await;
    let prompts: Vec<_> = (0..5).map(|i| text(50 + i, 800)).collect();
    for (i, prompt) in prompts[..3].iter().enumerate() {
        harness.register(&format!("d{i}"), prompt).await;
    }
    let hit = |donor, target| Expect {
        target,
        exact_prefix: 0,
        outcome: FindOutcome::Prefix,
        donor,
        covered: 800,
    };
    check(&mut harness, hit("d0", &prompts[0])).await;
    harness.register("d3", &prompts[3]).await;
    check(&mut harness, hit("d0", &prompts[0])).await;
    check_miss(
        &mut harness,
        lookup(&prompts[1]),
        FallbackReason::ProviderMiss,
    )
    .await;

    assert_eq!(
        harness.register("d0", &prompts[4]).await,
        v1::Admission::Replaced
    );
    check(&mut harness, hit("d0", &prompts[4])).await;
    check_miss(
        &mut harness,
        lookup(&prompts[0]),
        FallbackReason::ProviderMiss,
    )
    .await;
    check(&mut harness, hit("d2", &prompts[2])).await;
}

#[tokio::test]
async fn donors_without_captured_kv_hide_nobody() {
    let mut harness = Harness::discovery().await;
    let prompt = text(60, 1000);
    harness.register("holds", &prompt).await;
    for i in 0..12 {
        let mut request = registration(&format!("reissue{i}"), &prompt);
        (request.captured_tokens, request.exact_tokens) = (0, 0);
        let admission = harness.register_as(request).await.unwrap();
        assert_eq!(admission, v1::Admission::NothingCaptured);
    }
    let expect = Expect {
        target: &prompt,
        exact_prefix: 0,
        outcome: FindOutcome::Prefix,
        donor: "holds",
        covered: 992,
    };
    check(&mut harness, expect).await;
}

#[tokio::test]
async fn reuse_at_the_same_position_counts() {
    let mut harness = Harness::discovery().await;
    let prompt = text(70, 2000);
    harness.register("same", &prompt).await;
    let mut target = prompt.clone();
    target[1300] = 160_000;
    let expect = Expect {
        target: &target,
        exact_prefix: 0,
        outcome: FindOutcome::Prefix,
        donor: "same",
        covered: 1999,
    };
    let found = check(&mut harness, expect).await.r#match.unwrap();
    assert_eq!(found.reusable_prefix_tokens, 1296);
    let places: Vec<_> = found
        .spans
        .iter()
        .map(|s| (s.donor_start, s.target_start))
        .collect();
    assert_eq!(places, [(0, 0), (1301, 1301)]);
    assert_eq!(found.spans[0].tier(), v1::Tier::Exact);
    assert_eq!(found.spans[1].tier(), v1::Tier::Verified);
}

#[tokio::test]
async fn an_edited_document_is_found_at_any_offset() {
    let mut harness = Harness::discovery().await;
    let document = text(80, 2000);
    harness.register("document", &document).await;
    for shift in [1_usize, 7, 13, 64, 255] {
        let mut target = concat(&[&text(81, shift), &document]);
        // One deletion and one insertion, so that the offset changes on the way.
        target.remove(shift + 700);
        target.insert(shift + 1400, 160_000);
        let expect = Expect {
            target: &target,
            exact_prefix: 0,
            outcome: FindOutcome::Spans,
            donor: "document",
            covered: 1990,
        };
        check(&mut harness, expect).await;
    }
}

#[tokio::test]
async fn a_miss_among_a_hundred_donors_costs_next_to_nothing() {
    let mut harness = Harness::discovery().await;
    for i in 0..100 {
        harness
            .register(&format!("d{i}"), &text(1000 + i, 1000))
            .await;
    }
    let mut fastest = f32::MAX;
    for _ in 0..5 {
        let request = lookup(&text(9, 1000));
        let answer = check_miss(&mut harness, request, FallbackReason::ProviderMiss).await;
        // The neighbours that a miss asks have a budget of their own, on a thread of their own.
        let timings = answer.timings.unwrap();
        fastest = fastest.min(timings.seeds_us + timings.align_us + timings.gate_us);
    }
    // A hundredth of the peer's half second, in a build without optimization.
    assert!(fastest < 5000.0, "{fastest} us");
}
