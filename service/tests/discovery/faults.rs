//! Faults that operators report of such systems, none of which may happen here.

use kvatlas_proto::v1::{self, Admission, FallbackReason, FindOutcome};
use tonic::Code;

use crate::harness::{
    Expect, Harness, check, check_miss, lookup, namespace, owner, registration, tenant, text,
};

const ACME: &str = "9332cc3fc0ec09d0f04fa8e1e08637b5";
const OTHER: &str = "00000000000000000000000000000001";

fn prefix_hit<'a>(donor: &'a str, target: &'a [u32]) -> Expect<'a> {
    let covered = u32::try_from(target.len() / 16 * 16).unwrap();
    Expect {
        target,
        exact_prefix: 0,
        outcome: FindOutcome::Prefix,
        donor,
        covered,
    }
}

#[tokio::test]
async fn another_tenants_copy_is_neither_given_nor_in_the_way() {
    let mut harness = Harness::discovery().await;
    let prompt = text(1, 900);
    for (id, key) in [("mine", ACME), ("theirs", OTHER)] {
        let mut request = registration(id, &prompt);
        request.namespace = tenant(key);
        harness.register_as(request).await.unwrap();
    }
    for (key, donor) in [
        (ACME, Some("mine")),
        (OTHER, Some("theirs")),
        ("none", None),
    ] {
        let mut request = lookup(&prompt);
        request.namespace = tenant(key);
        request.explain = true;
        let answer = harness.find(request).await;
        assert_eq!(
            answer.r#match.map(|found| found.donor_id),
            donor.map(str::to_owned)
        );
        assert!(answer.rejected.is_empty());
    }
}

#[tokio::test]
async fn an_incomplete_namespace_is_a_miss_and_no_wildcard() {
    let mut harness = Harness::discovery().await;
    let prompt = text(2, 900);
    harness.register("d", &prompt).await;
    let blank = |edit: fn(&mut v1::Namespace)| {
        let mut selector = namespace().unwrap();
        if let Some(v1::namespace_selector::Selector::Namespace(namespace)) = &mut selector.selector
        {
            edit(namespace);
        }
        Some(selector)
    };
    let edits: [fn(&mut v1::Namespace); 4] = [
        |n| n.tenant_key.clear(),
        |n| n.adapter = " ".into(),
        |n| n.block_size = 0,
        |n| n.model.clear(),
    ];
    for namespace in edits.into_iter().map(blank).chain([None]) {
        let mut request = lookup(&prompt);
        request.namespace.clone_from(&namespace);
        check_miss(&mut harness, request, FallbackReason::NamespaceMismatch).await;
        let mut request = registration("e", &prompt);
        request.namespace = namespace;
        let refusal = harness.register_as(request).await.unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument);
        assert!(
            refusal.message().starts_with("namespace"),
            "{}",
            refusal.message()
        );
    }
}

#[tokio::test]
async fn a_namespace_can_be_named_by_its_id_once_it_is_known() {
    let mut harness = Harness::discovery().await;
    let prompt = text(3, 900);
    let by_id = |id: &str| {
        let selector = v1::namespace_selector::Selector::NamespaceId(id.into());
        Some(v1::NamespaceSelector {
            selector: Some(selector),
        })
    };
    let id = harness.find(lookup(&prompt)).await.namespace_id;
    let mut request = registration("d", &prompt);
    request.namespace = by_id(&id);
    assert_eq!(
        harness.register_as(request).await.unwrap_err().code(),
        Code::NotFound
    );
    harness.register("d", &prompt).await;
    let mut request = lookup(&prompt);
    request.namespace = by_id(&id);
    assert_eq!(harness.find(request).await.outcome(), FindOutcome::Prefix);
}

#[tokio::test]
async fn a_request_never_borrows_from_its_own_prompt() {
    let mut harness = Harness::discovery().await;
    let prompt = text(4, 900);
    let mut request = registration("own", &prompt);
    request.source_request_id = "request-9".into();
    harness.register_as(request).await.unwrap();
    let mut request = lookup(&prompt);
    request.request_id = "request-9".into();
    check_miss(&mut harness, request.clone(), FallbackReason::ProviderMiss).await;
    request.request_id = "request-10".into();
    assert_eq!(harness.find(request).await.outcome(), FindOutcome::Prefix);
}

#[tokio::test]
async fn the_beginning_of_a_live_donor_of_the_same_owner_is_not_admitted() {
    let mut harness = Harness::discovery().await;
    let prompt = text(5, 1600);
    harness.register("whole", &prompt).await;
    assert_eq!(
        harness.register("part", &prompt[..800]).await,
        Admission::Covered
    );
    let mut elsewhere = registration("elsewhere", &prompt[..800]);
    elsewhere.owner = owner("worker-2");
    assert_eq!(
        harness.register_as(elsewhere).await.unwrap(),
        Admission::Added
    );
    let mut differs = prompt[..800].to_vec();
    differs[799] = 160_000;
    assert_eq!(
        harness.register("differs", &differs).await,
        Admission::Added
    );
    assert_eq!(
        harness.register("whole", &prompt).await,
        Admission::Replaced
    );
    assert_eq!(
        harness.register("longer", &text(5, 1700)).await,
        Admission::Added
    );
}

#[tokio::test]
async fn one_off_donors_do_not_push_out_what_is_hit() {
    let mut harness = Harness::start(|args| args.donors_max = 10).await;
    let wanted = text(6, 800);
    harness.register("wanted", &wanted).await;
    for i in 0..60 {
        harness
            .register(&format!("once{i}"), &text(700 + i, 700))
            .await;
        if i % 8 == 0 {
            check(&mut harness, prefix_hit("wanted", &wanted)).await;
        }
    }
    check(&mut harness, prefix_hit("wanted", &wanted)).await;
    let status = harness
        .admin
        .get_status(v1::GetStatusRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(status.donors, 10);
}

#[tokio::test]
async fn tokens_beyond_the_captured_ones_are_never_offered() {
    let mut harness = Harness::discovery().await;
    let prompt = text(7, 2000);
    let mut request = registration("part", &prompt);
    (request.captured_tokens, request.exact_tokens) = (1200, 1200);
    harness.register_as(request).await.unwrap();
    let answer = harness.find(lookup(&prompt)).await;
    let found = answer.r#match.unwrap();
    assert_eq!(
        (found.reusable_prefix_tokens, found.captured_tokens),
        (1200, 1200)
    );
}

#[tokio::test]
async fn removal_leaves_nothing_behind() {
    use v1::remove_donors_request::What;
    let mut harness = Harness::discovery().await;
    let prompts: Vec<_> = (0..6).map(|i| text(800 + i, 700)).collect();
    for (i, prompt) in prompts.iter().enumerate() {
        let mut request = registration(&format!("d{i}"), prompt);
        request.owner = owner(if i < 3 { "worker-1" } else { "worker-2" });
        harness.register_as(request).await.unwrap();
    }
    let ids = v1::DonorIds {
        namespace: namespace(),
        donor_ids: vec!["d0".into(), "gone".into()],
    };
    let removals = [
        (What::Donors(ids), 1, 5),
        (What::Owner(owner("worker-2").unwrap()), 3, 2),
        (What::Namespace(namespace().unwrap()), 2, 0),
        (What::Namespace(namespace().unwrap()), 0, 0),
    ];
    for (what, removed, left) in removals {
        let request = v1::RemoveDonorsRequest { what: Some(what) };
        let answer = harness
            .donors
            .remove_donors(request)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.removed, removed);
        let status = harness
            .admin
            .get_status(v1::GetStatusRequest {})
            .await
            .unwrap()
            .into_inner();
        assert_eq!(status.donors, left);
    }
    harness.restart().await;
    for prompt in &prompts {
        check_miss(&mut harness, lookup(prompt), FallbackReason::ProviderMiss).await;
    }
}

#[tokio::test]
async fn donors_are_found_again_after_a_restart() {
    let mut harness = Harness::discovery().await;
    let prompts: Vec<_> = (0..20).map(|i| text(900 + i, 700)).collect();
    for (i, prompt) in prompts.iter().enumerate() {
        harness.register(&format!("d{i}"), prompt).await;
    }
    harness.register("d3", &text(999, 700)).await;
    harness.restart().await;
    for (i, prompt) in prompts.iter().enumerate().filter(|(i, _)| *i != 3) {
        check(&mut harness, prefix_hit(&format!("d{i}"), prompt)).await;
    }
    check(&mut harness, prefix_hit("d3", &text(999, 700))).await;
    check_miss(
        &mut harness,
        lookup(&prompts[3]),
        FallbackReason::ProviderMiss,
    )
    .await;
}

#[tokio::test]
async fn gates_can_be_set_by_request_by_namespace_and_by_server() {
    let mut harness = Harness::discovery().await;
    let donor = text(11, 600);
    harness.register("d", &donor).await;
    let target = [text(12, 30), donor[..300].to_vec(), text(13, 100)].concat();
    check_miss(
        &mut harness,
        lookup(&target),
        FallbackReason::UnsupportedRequest,
    )
    .await;
    let gates = v1::Gates {
        min_prompt_tokens: Some(100),
        min_reuse_tokens: Some(100),
        ..v1::Gates::default()
    };
    let mut request = lookup(&target);
    request.gates = Some(gates);
    assert_eq!(harness.find(request).await.outcome(), FindOutcome::Spans);
    for namespace in [namespace(), None] {
        let strict = v1::Gates {
            min_similarity: Some(0.99),
            ..gates
        };
        for (gates, hit) in [(gates, true), (strict, false)] {
            let request = v1::SetModeRequest {
                namespace: namespace.clone(),
                mode: v1::Mode::Unspecified.into(),
                gates: Some(gates),
            };
            harness.admin.set_mode(request).await.unwrap();
            let answer = harness.find(lookup(&target)).await;
            // The namespace's own gates hold over the server's.
            let expected = if namespace.is_none() { false } else { hit };
            assert_eq!(
                answer.outcome() == FindOutcome::Spans,
                expected,
                "{answer:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_exact_prefix_that_suffices_ends_the_search() {
    let mut harness = Harness::discovery().await;
    let prompt = text(14, 1024);
    harness.register("d", &prompt).await;
    for (exact_prefix_tokens, hit) in [(496, true), (512, false), (1024, false)] {
        let mut request = lookup(&prompt);
        request.exact_prefix_tokens = exact_prefix_tokens;
        request.gates = Some(v1::Gates {
            min_reuse_ratio: Some(0.4),
            ..v1::Gates::default()
        });
        let answer = harness.find(request).await;
        assert_eq!(answer.outcome() == FindOutcome::Prefix, hit, "{answer:?}");
        if !hit {
            assert_eq!(answer.reason(), FallbackReason::ExactPrefixSufficient);
        }
    }
}
