//! Leases seen from outside: who gets one, and every way in which it ends.

use kvatlas_proto::v1::{self, FallbackReason, FindOutcome, LeaseRefusal, LeaseState, Mode};
use tonic::Code;

use crate::harness::{Harness, check_miss, lookup, namespace, owner, registration, text};

const HOLDER: &str = "engine-1";

async fn leased(harness: &mut Harness, request: v1::FindDonorRequest) -> Vec<u8> {
    let answer = harness.find(request).await;
    answer
        .lease
        .unwrap_or_else(|| panic!("no lease: {:?}", answer.lease_refusal))
        .id
        .to_vec()
}

async fn set_mode(harness: &mut Harness, namespace: Option<v1::NamespaceSelector>, mode: Mode) {
    let request = v1::SetModeRequest {
        namespace,
        mode: mode.into(),
        gates: None,
    };
    harness.admin.set_mode(request).await.unwrap();
}

#[tokio::test]
async fn discovery_only_is_the_default_and_gives_no_lease() {
    let mut harness = Harness::discovery().await;
    let prompt = text(1, 900);
    harness.register("d", &prompt).await;
    harness.announce("worker-1", 7).await;
    let answer = harness.find(lookup(&prompt)).await;
    assert_eq!(answer.outcome(), FindOutcome::Prefix);
    assert_eq!(answer.mode(), Mode::DiscoveryOnly);
    assert_eq!(answer.lease_refusal(), LeaseRefusal::DiscoveryOnly);
    assert!(answer.lease.is_none());

    set_mode(&mut harness, namespace(), Mode::Materialize).await;
    leased(&mut harness, lookup(&prompt)).await;
    set_mode(&mut harness, namespace(), Mode::Disabled).await;
    check_miss(
        &mut harness,
        lookup(&prompt),
        FallbackReason::ProviderDisabled,
    )
    .await;
    set_mode(&mut harness, namespace(), Mode::Unspecified).await;
    assert!(harness.find(lookup(&prompt)).await.lease.is_none());
    set_mode(&mut harness, None, Mode::Materialize).await;
    harness.restart().await;
    harness.announce("worker-1", 7).await;
    leased(&mut harness, lookup(&prompt)).await;
}

#[tokio::test]
async fn only_an_announced_owner_in_the_same_generation_can_be_leased() {
    let mut harness = Harness::materialize().await;
    let prompt = text(2, 900);
    harness.register("d", &prompt).await;
    check_miss(&mut harness, lookup(&prompt), FallbackReason::DonorStale).await;
    let late = v1::AnnounceOwnerRequest {
        owner: owner("worker-1"),
        generation: 6,
        ttl_ms: 0,
    };
    for _ in 0..2 {
        // Generation 7 is known from its donor, also after a restart.
        let refusal = harness
            .donors
            .announce_owner(late.clone())
            .await
            .unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition);
        harness.restart().await;
    }
    harness.announce("worker-1", 7).await;
    let lease = leased(&mut harness, lookup(&prompt)).await;
    assert_eq!(harness.validate(&lease, HOLDER).await, LeaseState::Valid);

    // A donor of a newer generation ends the older one; its announcement drops what is older.
    let mut next = registration("next", &text(22, 900));
    next.owner_generation = 8;
    harness.register_as(next).await.unwrap();
    assert_eq!(harness.validate(&lease, HOLDER).await, LeaseState::Stale);
    assert_eq!(harness.announce("worker-1", 8).await, 1);
    assert_eq!(harness.validate(&lease, HOLDER).await, LeaseState::Stale);
    check_miss(&mut harness, lookup(&prompt), FallbackReason::ProviderMiss).await;
    let request = v1::AnnounceOwnerRequest {
        owner: owner("worker-1"),
        generation: 7,
        ttl_ms: 0,
    };
    let refusal = harness.donors.announce_owner(request).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    let refusal = harness
        .register_as(registration("d", &prompt))
        .await
        .unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn a_stale_donor_does_not_hide_one_that_can_be_leased() {
    let mut harness = Harness::materialize().await;
    let prompt = text(3, 1200);
    for i in 0..12 {
        let mut request = registration(&format!("silent{i}"), &prompt);
        request.owner = owner(&format!("silent-{i}"));
        harness.register_as(request).await.unwrap();
    }
    harness.register("live", &prompt[..900]).await;
    harness.announce("worker-1", 7).await;
    let answer = harness.find(lookup(&prompt)).await;
    assert_eq!(answer.r#match.unwrap().donor_id, "live");
    assert!(answer.lease.is_some());
}

#[tokio::test]
async fn replacing_and_removing_a_donor_make_its_leases_stale() {
    let mut harness = Harness::materialize().await;
    let prompt = text(4, 900);
    harness.announce("worker-1", 7).await;
    harness.register("d", &prompt).await;
    let first = leased(&mut harness, lookup(&prompt)).await;
    harness.register("d", &prompt).await;
    assert_eq!(harness.validate(&first, HOLDER).await, LeaseState::Stale);
    let second = leased(&mut harness, lookup(&prompt)).await;
    let ids = v1::DonorIds {
        namespace: namespace(),
        donor_ids: vec!["d".into()],
    };
    let what = Some(v1::remove_donors_request::What::Donors(ids));
    harness
        .donors
        .remove_donors(v1::RemoveDonorsRequest { what })
        .await
        .unwrap();
    assert_eq!(harness.validate(&second, HOLDER).await, LeaseState::Stale);
}

#[tokio::test]
async fn no_lease_survives_a_restart_and_device_donors_wait_for_events() {
    let mut harness = Harness::materialize().await;
    let (host, device) = (text(5, 900), text(6, 900));
    harness.announce("worker-1", 7).await;
    harness.register("host", &host).await;
    let mut request = registration("device", &device);
    request.medium = v1::Medium::Device.into();
    harness.register_as(request).await.unwrap();
    let lease = leased(&mut harness, lookup(&host)).await;
    // Whether the blocks are there is not known: nobody listens to the owner.
    check_miss(&mut harness, lookup(&device), FallbackReason::DonorStale).await;

    harness.restart().await;
    assert_eq!(harness.validate(&lease, HOLDER).await, LeaseState::Stale);
    check_miss(&mut harness, lookup(&host), FallbackReason::DonorStale).await;
    harness.announce("worker-1", 7).await;
    leased(&mut harness, lookup(&host)).await;
    check_miss(&mut harness, lookup(&device), FallbackReason::DonorStale).await;
}

#[tokio::test]
async fn a_look_up_repeated_under_its_request_id_keeps_answer_and_lease() {
    let mut harness = Harness::materialize().await;
    let prompt = text(7, 900);
    harness.announce("worker-1", 7).await;
    harness.register("d", &prompt).await;
    let mut request = lookup(&prompt);
    request.request_id = "r1".into();
    let first = leased(&mut harness, request.clone()).await;
    harness
        .register("fresher", &[prompt.clone(), text(8, 100)].concat())
        .await;
    let again = harness.find(request.clone()).await;
    assert!(again.repeated_answer);
    assert_eq!(again.lease.unwrap().id, first);
    assert_eq!(again.r#match.unwrap().donor_id, "d");

    let other_requests: [fn(&mut v1::FindDonorRequest); 3] = [
        |r| r.request_id = "r2".into(),
        |r| r.holder = "engine-2".into(),
        |r| r.exact_prefix_tokens = 16,
    ];
    for edit in other_requests {
        let mut other = request.clone();
        edit(&mut other);
        assert_ne!(leased(&mut harness, other).await, first);
    }
    assert!(harness.release(&first, HOLDER).await);
    assert_ne!(leased(&mut harness, request).await, first);
}

#[tokio::test]
async fn only_the_holder_renews_and_releases_and_a_second_release_changes_nothing() {
    let mut harness = Harness::materialize().await;
    let prompt = text(9, 900);
    harness.announce("worker-1", 7).await;
    harness.register("d", &prompt).await;
    let mine = leased(&mut harness, lookup(&prompt)).await;
    let other = leased(&mut harness, lookup(&prompt)).await;
    assert_ne!(mine, other);
    assert_eq!(
        harness.validate(&mine, "engine-2").await,
        LeaseState::NotHolder
    );
    assert!(!harness.release(&mine, "engine-2").await);
    let renew = v1::RenewRequest {
        lease_id: mine.clone().into(),
        holder: HOLDER.into(),
        ttl_ms: 120_000,
    };
    let renewed = harness
        .leases
        .renew(renew.clone())
        .await
        .unwrap()
        .into_inner();
    assert!(renewed.lease.unwrap().ttl_ms > 100_000);
    let stolen = v1::RenewRequest {
        holder: "engine-2".into(),
        ..renew
    };
    let refused = harness.leases.renew(stolen).await.unwrap().into_inner();
    assert_eq!(
        (refused.state(), refused.lease),
        (LeaseState::NotHolder, None)
    );
    assert!(harness.release(&mine, HOLDER).await);
    assert!(!harness.release(&mine, HOLDER).await);
    assert_eq!(harness.validate(&mine, HOLDER).await, LeaseState::Unknown);
    assert_eq!(harness.validate(&other, HOLDER).await, LeaseState::Valid);
}

#[tokio::test]
async fn a_leased_donor_is_not_evicted_and_a_full_house_refuses() {
    let mut harness = Harness::start(|args| {
        args.mode = Some(kvatlas::config::ServeMode::Materialize);
        args.donors_max = 1;
    })
    .await;
    let prompt = text(10, 900);
    harness.announce("worker-1", 7).await;
    harness.register("leased", &prompt).await;
    let lease = leased(&mut harness, lookup(&prompt)).await;
    let refusal = harness
        .register_as(registration("next", &text(11, 900)))
        .await
        .unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    assert_eq!(harness.validate(&lease, HOLDER).await, LeaseState::Valid);
    harness.release(&lease, HOLDER).await;
    harness.register("next", &text(11, 900)).await;
}

#[tokio::test]
async fn a_lease_that_ran_out_keeps_no_donor() {
    let mut harness = Harness::start(|args| {
        args.mode = Some(kvatlas::config::ServeMode::Materialize);
        args.donors_max = 1;
    })
    .await;
    let prompt = text(10, 900);
    harness.announce("worker-1", 7).await;
    harness.register("leased", &prompt).await;
    let mut short = lookup(&prompt);
    short.lease_ttl_ms = 50;
    leased(&mut harness, short.clone()).await;
    short.holder = "engine-2".into();
    let later = leased(&mut harness, short).await;
    // Whoever asks for a lease that has run out ends it: nobody asks for the earlier one.
    while harness.validate(&later, "engine-2").await == LeaseState::Valid {}
    harness.register("next", &text(11, 900)).await;
}

#[tokio::test]
async fn a_full_lease_table_is_a_miss() {
    let mut harness = Harness::start(|args| {
        args.mode = Some(kvatlas::config::ServeMode::Materialize);
        args.leases_max = 2;
    })
    .await;
    let prompt = text(12, 900);
    harness.announce("worker-1", 7).await;
    harness.register("d", &prompt).await;
    let first = leased(&mut harness, lookup(&prompt)).await;
    leased(&mut harness, lookup(&prompt)).await;
    check_miss(&mut harness, lookup(&prompt), FallbackReason::ProviderError).await;
    harness.release(&first, HOLDER).await;
    leased(&mut harness, lookup(&prompt)).await;
}

#[tokio::test]
async fn an_answer_without_a_lease_says_why() {
    let mut harness = Harness::materialize().await;
    let prompt = text(13, 900);
    harness.announce("worker-1", 7).await;
    harness.register("d", &prompt).await;
    let shifted = [text(14, 20), prompt.clone()].concat();
    let refusal = |request: v1::FindDonorRequest, expected: LeaseRefusal| (request, expected);
    let mut elsewhere = lookup(&prompt);
    elsewhere.readable_store_ids = vec!["host-b".into()];
    let mut nobody = lookup(&prompt);
    nobody.holder.clear();
    for (request, expected) in [
        refusal(elsewhere, LeaseRefusal::StoreNotReadable),
        refusal(nobody, LeaseRefusal::HolderMissing),
        refusal(lookup(&shifted), LeaseRefusal::SpansNotAccepted),
    ] {
        let answer = harness.find(request).await;
        assert_ne!(answer.outcome(), FindOutcome::Miss);
        assert_eq!((answer.lease_refusal(), answer.lease), (expected, None));
    }
    let mut spans = lookup(&shifted);
    spans.accept_spans = true;
    let answer = harness.find(spans).await;
    assert_eq!(answer.reason(), FallbackReason::NotPrefixAnchored);
    assert!(answer.lease.is_some());
}

#[tokio::test]
async fn who_names_no_holder_is_answered_as_discovery_answers() {
    let mut harness = Harness::materialize().await;
    let (host, device) = (text(32, 900), text(33, 900));
    // Neither can be leased: the owner is silent, and nobody follows its events.
    harness.register("host", &host).await;
    let mut request = registration("device", &device);
    request.medium = v1::Medium::Device.into();
    harness.register_as(request).await.unwrap();
    let spans = [text(34, 20), device.clone()].concat();
    for (prompt, donor, outcome) in [
        (&host, "host", FindOutcome::Prefix),
        (&device, "device", FindOutcome::Prefix),
        (&spans, "device", FindOutcome::Spans),
    ] {
        let mut request = lookup(prompt);
        request.request_id = "r".into();
        check_miss(&mut harness, request.clone(), FallbackReason::DonorStale).await;
        request.holder.clear();
        request.readable_store_ids.clear();
        let answer = harness.find(request).await;
        assert_eq!(
            (answer.outcome(), answer.mode()),
            (outcome, Mode::Materialize)
        );
        assert_eq!(answer.lease_refusal(), LeaseRefusal::HolderMissing);
        assert_eq!((answer.lease, answer.repeated_answer), (None, false));
        let found = answer.r#match.unwrap();
        assert_eq!(found.donor_id, donor);
        assert!(found.spans.iter().map(|span| span.length).sum::<u32>() >= 896);
    }
}

#[tokio::test]
async fn a_reuse_report_releases_the_lease_of_its_holder() {
    let mut harness = Harness::materialize().await;
    let prompt = text(15, 900);
    harness.announce("worker-1", 7).await;
    harness.register("d", &prompt).await;
    let lease = leased(&mut harness, lookup(&prompt)).await;
    let report = |holder: &str| v1::ReportReuseRequest {
        holder: holder.into(),
        lease_id: lease.clone().into(),
        provenance: v1::ReuseProvenance::ExactExternalHit.into(),
        tokens_loaded: 896,
        ..v1::ReportReuseRequest::default()
    };
    for (holder, released) in [("engine-2", false), (HOLDER, true), (HOLDER, false)] {
        let answer = harness
            .donors
            .report_reuse(report(holder))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.released, released);
    }
}

#[tokio::test]
async fn exact_only_nominates_what_the_engine_may_keep() {
    let mut harness = Harness::materialize().await;
    harness.announce("worker-1", 7).await;
    let prompt = text(16, 1600);
    let mut request = registration("half", &prompt);
    request.exact_tokens = 800;
    harness.register_as(request).await.unwrap();
    let answer = harness.find(lookup(&prompt)).await;
    let found = answer.r#match.unwrap();
    assert_eq!(
        (found.tier(), found.reusable_prefix_tokens),
        (v1::Tier::Verified, 1584)
    );
    assert_eq!(found.cache_policy(), v1::CachePolicy::RequestOnly);
    let mut exact = lookup(&prompt);
    exact.minimum_tier = v1::Tier::Exact.into();
    exact.gates = Some(v1::Gates {
        min_reuse_ratio: Some(0.4),
        ..v1::Gates::default()
    });
    let found = harness.find(exact).await.r#match.unwrap();
    assert_eq!(
        (found.tier(), found.reusable_prefix_tokens),
        (v1::Tier::Exact, 800)
    );
    assert_eq!(found.cache_policy(), v1::CachePolicy::ExactCommit);
}

#[tokio::test]
async fn donors_that_share_more_elsewhere_do_not_hide_the_exact_one() {
    let mut harness = Harness::discovery().await;
    for i in 0..12 {
        let prompt = text(300 + i, 2000);
        let exact = [&prompt[..1300], &text(400 + i, 200)].concat();
        harness.register(&format!("exact{i}"), &exact).await;
        for j in 0..10 {
            let seed = 500 + 20 * i + j;
            let length = 300 + usize::try_from(j).unwrap();
            let moved = [
                &text(seed, length)[..],
                &prompt[..1290],
                &[160_000],
                &prompt[1290..],
            ];
            harness
                .register(&format!("moved{i}-{j}"), &moved.concat())
                .await;
        }
        let mut request = lookup(&prompt);
        request.minimum_tier = v1::Tier::Exact.into();
        let found = harness.find(request).await.r#match.unwrap();
        assert_eq!(found.donor_id, format!("exact{i}"));
        assert_eq!(
            (found.tier(), found.reusable_prefix_tokens),
            (v1::Tier::Exact, 1296)
        );
    }
}

#[tokio::test]
async fn donors_that_are_not_exact_enough_do_not_hide_one_that_is() {
    let mut harness = Harness::materialize().await;
    for worker in 1..12 {
        harness.announce(&format!("worker-{worker}"), 7).await;
    }
    // So many tokens of a longer donor are exact; beside those the right one is found all the same.
    for (case, exact_tokens) in [(0, 0), (1, 256), (2, 1_104)] {
        let prompt = text(900 + case, 2_000);
        harness
            .register(&format!("exact{case}"), &prompt[..1_500])
            .await;
        for worker in 2..12 {
            let mut longer = registration(&format!("longer{case}-{worker}"), &prompt);
            longer.owner = owner(&format!("worker-{worker}"));
            longer.exact_tokens = exact_tokens;
            harness.register_as(longer).await.unwrap();
        }
        let mut request = lookup(&prompt);
        request.minimum_tier = v1::Tier::Exact.into();
        let answer = harness.find(request).await;
        assert!(answer.lease.is_some(), "{answer:?}");
        let found = answer.r#match.unwrap();
        assert_eq!(found.donor_id, format!("exact{case}"));
        assert_eq!(
            (found.tier(), found.reusable_prefix_tokens),
            (v1::Tier::Exact, 1_488)
        );
    }
}

#[tokio::test]
async fn a_miss_for_want_of_exact_tokens_says_so() {
    let mut harness = Harness::discovery().await;
    let prompt = text(31, 1_600);
    let mut request = registration("verified", &prompt);
    request.exact_tokens = 0;
    harness.register_as(request).await.unwrap();
    let mut request = lookup(&prompt);
    request.minimum_tier = v1::Tier::Exact.into();
    request.explain = true;
    let answer = check_miss(&mut harness, request, FallbackReason::NotPrefixAnchored).await;
    assert_eq!(answer.rejected[0].donor_id, "verified");
}
