//! A look-up is answered whatever the server does, and a lie is never believed.

use std::time::Duration;

use kvatlas_client::{CachePolicy, FindDonor, Lookup, MissReason, Outcome, Tier, Tokens, v1};
use tonic::Code;

use crate::fake::{LONG, Running, Script, client, hit, namespace, query};

/// What a server under the script makes of the query.
async fn look_up(script: Script, query: &FindDonor) -> Lookup {
    Running::tcp(script).client().find_donor(query).await
}

#[track_caller]
fn check_miss(lookup: &Lookup, expected: MissReason) {
    match lookup {
        Lookup::Miss { reason, .. } => assert_eq!(*reason, expected, "{lookup:?}"),
        Lookup::Hit(_) => panic!("{lookup:?} is not a miss with {expected:?}"),
    }
}

#[tokio::test]
async fn a_truthful_answer_is_a_nomination() {
    let lookup = look_up(Script::Find(Box::new(hit())), &query()).await;
    let nomination = lookup.hit().unwrap_or_else(|| panic!("{lookup:?}"));
    assert_eq!(nomination.outcome, Outcome::Prefix);
    assert_eq!(nomination.tier, Tier::Exact);
    assert_eq!(nomination.cache_policy, CachePolicy::ExactCommit);
    assert_eq!(nomination.reusable_prefix_tokens, 48);
    let lease = nomination.lease.as_ref().unwrap();
    assert_eq!(lease.ttl, Duration::from_secs(30));
}

#[tokio::test]
async fn the_prompt_travels_packed_and_the_deadline_with_it() {
    let server = Running::tcp(Script::Find(Box::new(hit())));
    let lookup = server.client().find_donor(&query()).await;
    assert!(lookup.hit().is_some(), "{lookup:?}");
    let seen = server.fake.seen.lock();
    let tokens = seen.finds[0].tokens.as_ref().unwrap();
    assert!(tokens.ids.is_empty());
    assert_eq!(tokens.packed.len(), 400);
    assert_eq!(tokens.packed[4..12], [1, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(seen.timeouts, [format!("{}u", LONG.as_micros())]);
}

#[tokio::test]
async fn an_error_status_is_a_miss() {
    let reasons = [
        (Code::InvalidArgument, MissReason::UnsupportedRequest),
        (Code::DeadlineExceeded, MissReason::ProviderTimeout),
        (Code::ResourceExhausted, MissReason::ProviderError),
        (Code::Unavailable, MissReason::ProviderError),
        (Code::Internal, MissReason::ProviderError),
        (Code::Cancelled, MissReason::ProviderError),
        (Code::Unimplemented, MissReason::ProviderError),
        (Code::NotFound, MissReason::ProviderError),
    ];
    for (code, expected) in reasons {
        check_miss(&look_up(Script::Refuse(code), &query()).await, expected);
    }
}

#[tokio::test]
async fn silence_is_a_timeout() {
    let server = Running::tcp(Script::Silent);
    let hasty = server
        .client()
        .with_lookup_deadline(Duration::from_millis(20));
    check_miss(
        &hasty.find_donor(&query()).await,
        MissReason::ProviderTimeout,
    );
}

#[tokio::test]
async fn a_socket_that_nobody_serves_is_a_timeout() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let hasty = client(&address).with_lookup_deadline(Duration::from_millis(20));
    for _ in 0..3 {
        let lookup = hasty.find_donor(&query()).await;
        check_miss(&lookup, MissReason::ProviderTimeout);
    }
}

#[tokio::test]
async fn nobody_listening_is_a_provider_error() {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", directory.path().join("nobody").display());
    let lookup = client(&address).find_donor(&query()).await;
    check_miss(&lookup, MissReason::ProviderError);
}

#[tokio::test]
async fn a_server_that_dies_and_comes_back_is_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let server = Running::unix(Script::Find(Box::new(hit())), &path);
    let client = server.client();
    assert!(client.find_donor(&query()).await.hit().is_some());

    drop(server);
    std::fs::remove_file(&path).unwrap();
    for _ in 0..3 {
        check_miss(
            &client.find_donor(&query()).await,
            MissReason::ProviderError,
        );
    }

    let _server = Running::unix(Script::Find(Box::new(hit())), &path);
    let mut lookup = client.find_donor(&query()).await;
    for _ in 0..3 {
        if lookup.hit().is_none() {
            lookup = client.find_donor(&query()).await;
        }
    }
    assert!(lookup.hit().is_some(), "{lookup:?}");
}

#[tokio::test]
async fn a_request_that_would_be_refused_is_not_sent() {
    let server = Running::tcp(Script::Find(Box::new(hit())));
    let client = server.client();
    let mut too_much_cached = query();
    too_much_cached.exact_prefix_tokens = 101;
    let empty = FindDonor::new(Tokens::new(&[]), namespace().into());
    for query in [empty, too_much_cached] {
        let lookup = client.find_donor(&query).await;
        check_miss(&lookup, MissReason::UnsupportedRequest);
    }
    assert!(server.fake.seen.lock().finds.is_empty());
}

#[tokio::test]
async fn a_miss_keeps_its_reason_and_detail() {
    let answer = v1::FindDonorResponse {
        outcome: v1::FindOutcome::Miss.into(),
        reason: v1::FallbackReason::LowReuseTokens.into(),
        detail: "limit 512, reusable 11".into(),
        namespace_id: "id".into(),
        ..Default::default()
    };
    let lookup = look_up(Script::Find(Box::new(answer)), &query()).await;
    check_miss(&lookup, MissReason::LowReuseTokens);
    let Lookup::Miss { detail, .. } = &lookup else {
        unreachable!()
    };
    assert_eq!(detail, "limit 512, reusable 11");
    assert_eq!(lookup.answered().unwrap().namespace_id, "id");
}

#[tokio::test]
async fn one_token_is_left_to_compute_unless_the_load_is_asynchronous() {
    let mut whole = hit();
    let found = whole.r#match.as_mut().unwrap();
    found.captured_tokens = 100;
    found.reusable_prefix_tokens = 90;
    found.spans.truncate(1);
    found.spans[0].length = 90;
    let script = Script::Find(Box::new(whole));
    check_miss(
        &look_up(script.clone(), &query()).await,
        MissReason::ProviderError,
    );
    let mut asynchronous = query();
    asynchronous.asynchronous_load = true;
    assert!(look_up(script, &asynchronous).await.hit().is_some());
}

/// One change that makes [`hit`] a lie.
type Lie = fn(&mut v1::FindDonorResponse, &mut v1::DonorMatch);

const LIES: &[(&str, Lie)] = &[
    ("no outcome", |answer, _| answer.outcome = 0),
    ("an unknown outcome", |answer, _| answer.outcome = 99),
    ("a miss without a reason", |answer, _| answer.outcome = 3),
    ("an unknown reason", |answer, _| {
        answer.outcome = 3;
        answer.reason = 99;
    }),
    ("no lease and no reason", |answer, _| answer.lease = None),
    ("a lease and a refusal", |answer, _| {
        answer.lease_refusal = 1;
    }),
    ("a lease without an id", |answer, _| {
        answer.lease.as_mut().unwrap().id.clear();
    }),
    ("a lease that is over", |answer, _| {
        answer.lease.as_mut().unwrap().ttl_ms = 0;
    }),
    ("no owner", |_, found| found.owner = None),
    ("no donor id", |_, found| found.donor_id.clear()),
    ("no medium", |_, found| found.medium = 0),
    ("no tier", |_, found| found.tier = 0),
    ("a worse tier than asked for", |_, found| {
        found.tier = v1::Tier::Semantic.into();
        found.cache_policy = v1::CachePolicy::DiscoveryOnly.into();
    }),
    ("an unknown cache policy", |_, found| found.cache_policy = 9),
    ("a verified span to commit", |_, found| {
        found.tier = v1::Tier::Verified.into();
    }),
    ("exact at another position", |_, found| {
        found.donor_offset = 11;
    }),
    ("nothing reusable", |_, found| {
        found.reusable_prefix_tokens = 0;
    }),
    ("over the prompt's length", |_, found| {
        found.captured_tokens = 1_000;
        found.reusable_prefix_tokens = 91;
    }),
    ("an overflowing length", |_, found| {
        found.captured_tokens = u32::MAX;
        found.reusable_prefix_tokens = u32::MAX;
    }),
    ("over what was captured", |_, found| {
        found.captured_tokens = 57;
    }),
    ("spans with reusable tokens", |answer, _| answer.outcome = 2),
    ("no spans", |_, found| found.spans.clear()),
    ("an empty span", |_, found| found.spans[1].length = 0),
    ("a span beyond the prompt", |_, found| {
        found.spans[1].length = 41;
    }),
    ("a span in the exact prefix", |_, found| {
        found.spans[0].target_start = 9;
        found.spans[0].donor_start = 9;
    }),
    ("a span of no tier", |_, found| found.spans[1].tier = 0),
    ("an exact span elsewhere", |_, found| {
        found.spans[1].tier = v1::Tier::Exact.into();
    }),
    ("spans that overlap in the prompt", |_, found| {
        found.spans[1].target_start = 57;
    }),
    ("spans that overlap in the donor", |_, found| {
        found.spans[1].donor_start = 57;
    }),
    ("spans out of order", |_, found| found.spans.reverse()),
    ("a span that wraps around", |_, found| {
        found.spans[1].donor_start = u32::MAX;
    }),
    ("a similarity over 1", |_, found| found.similarity = 1.5),
    ("a similarity of NaN", |_, found| {
        found.similarity = f32::NAN;
    }),
    ("a negative reuse ratio", |_, found| {
        found.reuse_ratio = -0.1;
    }),
];

#[tokio::test]
async fn a_lie_is_a_provider_error() {
    let server = Running::tcp(Script::Find(Box::new(hit())));
    let client = server.client();
    for (name, lie) in LIES {
        let mut answer = hit();
        let mut found = answer.r#match.take().unwrap();
        lie(&mut answer, &mut found);
        answer.r#match = Some(found);
        *server.fake.script.lock() = Script::Find(Box::new(answer));
        let lookup = client.find_donor(&query()).await;
        assert!(lookup.hit().is_none(), "{name}: {lookup:?}");
        check_miss(&lookup, MissReason::ProviderError);
    }
    let mut nobody = hit();
    nobody.r#match = None;
    *server.fake.script.lock() = Script::Find(Box::new(nobody));
    check_miss(
        &client.find_donor(&query()).await,
        MissReason::ProviderError,
    );
}
