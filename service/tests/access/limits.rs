//! Limits of tokens: over calls, over messages of a stream, each token for itself.

use kvatlas_proto::v1;
use tokio_stream::StreamExt;
use tonic::{Code, Status};

use crate::{
    common::{donor, lookup, prompt, within},
    doors::{Server, start_with_tokens, token},
};

/// So slow that none comes back while a test runs.
const SLOW: &str = ", \"tenants\": \"*\", \"calls_per_second_max\": 1, \"burst\": 4";
/// Slow enough that messages wait, fast enough that a test does not.
const BRISK: &str = ", \"tenants\": \"*\", \"calls_per_second_max\": 200, \"burst\": 2";

async fn start() -> Server {
    start_with_tokens(&[
        ("slow", "engine", SLOW),
        ("brisk", "engine", BRISK),
        ("other", "engine", ", \"tenants\": \"*\""),
        ("operator", "operator", ""),
    ])
    .await
}

fn check_limited(status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted);
    let limit = "the token's limit of 1 calls a second is reached";
    assert_eq!(status.message(), limit);
    let number = |key: &str| {
        let value = status.metadata().get(key).unwrap().to_str().unwrap();
        value.parse::<u64>().unwrap()
    };
    assert_eq!(number("retry-after"), 1);
    let wait_ms = number("grpc-retry-pushback-ms");
    assert!((1..=1000).contains(&wait_ms), "{wait_ms}");
}

#[tokio::test]
async fn calls_beyond_the_limit_are_refused_with_it_and_when_to_come_again() {
    let server = start().await;
    let slow = server.caller("slow");
    // Some may come back while these are made.
    let mut refusal = None;
    for _ in 0..100 {
        if let Err(status) = slow.status().await {
            refusal = Some(status);
            break;
        }
    }
    check_limited(&refusal.expect("a limit"));
    for _ in 0..20 {
        server.caller("other").status().await.unwrap();
    }
}

#[tokio::test]
async fn each_message_of_a_stream_counts() {
    let server = start().await;
    let mut donors = server.caller("slow").donors;
    let messages = (0..100).map(|correlation_id| v1::FindDonorsRequest {
        correlation_id,
        request: Some(lookup(prompt(1, 64))),
    });
    let answers = within(donors.find_donors(tokio_stream::iter(messages))).await;
    let mut answers = answers.unwrap().into_inner();
    let mut refused = 0;
    while let Some(answer) = within(answers.next()).await {
        if let Some(v1::find_donors_response::Result::Error(error)) = answer.unwrap().result {
            assert_eq!(Code::from_i32(error.code), Code::ResourceExhausted);
            assert!(
                error.message.contains("limit of 1 calls"),
                "{}",
                error.message
            );
            refused += 1;
        }
    }
    assert!(refused > 50, "{refused}");
}

#[tokio::test]
async fn a_stream_of_registrations_is_slowed_down_and_loses_nothing() {
    let server = start().await;
    let mut donors = server.caller("brisk").donors;
    let messages = (0..40_u64).map(|correlation_id| v1::RegisterDonorsRequest {
        correlation_id,
        request: Some(donor(
            &format!("d-{correlation_id}"),
            prompt(correlation_id, 64),
        )),
    });
    let answers = within(donors.register_donors(tokio_stream::iter(messages))).await;
    let mut answers = answers.unwrap().into_inner();
    let mut acknowledged = 0;
    while let Some(answer) = within(answers.next()).await {
        let result = answer.unwrap().result;
        let is_done = matches!(
            result,
            Some(v1::register_donors_response::Result::Acknowledged(_))
        );
        assert!(is_done, "{result:?}");
        acknowledged += 1;
    }
    assert_eq!(acknowledged, 40);
    let operator = format!("Bearer {}", token("operator"));
    let waited = server.metric("kvatlas_access_limited", &operator);
    assert!(waited > 0, "nothing met the limit");
}
