//! The streams answer in order, drop what comes too late, and survive their server's end.

use std::time::Duration;

use kvatlas_client::{Lookup, ManifestQuery, MissReason, v1};

use crate::{
    calls::manifest,
    fake::{Running, Script, hit, query},
};

fn reason(lookup: &Lookup) -> Option<MissReason> {
    match lookup {
        Lookup::Hit(_) => None,
        Lookup::Miss { reason, .. } => Some(*reason),
    }
}

/// Sends look-ups by name all at once, and returns what came of each.
async fn answers(names: &[&str]) -> Vec<Option<MissReason>> {
    let server = Running::tcp(Script::Find(Box::new(hit())));
    let mut stream = server.client().find_donors().await.unwrap();
    for name in names {
        let mut query = query();
        query.request_id = (*name).to_owned();
        if *name == "invalid" {
            query.exact_prefix_tokens = 101;
        }
        stream.send(&query).unwrap();
    }
    let mut reasons = Vec::new();
    while let Some((id, lookup)) = stream.next().await {
        reasons.push(reason(&lookup));
        assert_eq!(id, u64::try_from(reasons.len()).unwrap());
    }
    reasons
}

#[tokio::test]
async fn answers_come_in_order() {
    let unsupported = Some(MissReason::UnsupportedRequest);
    assert_eq!(
        answers(&["a", "refuse", "hold", "invalid", "b"]).await,
        [None, unsupported, None, unsupported, None]
    );
}

#[tokio::test]
async fn the_end_of_the_stream_answers_what_is_under_way() {
    let error = Some(MissReason::ProviderError);
    assert_eq!(answers(&["a", "end", "b"]).await, [None, error, error]);
}

#[tokio::test]
async fn nothing_is_believed_once_the_order_is_broken() {
    let error = Some(MissReason::ProviderError);
    assert_eq!(answers(&["a", "ahead", "b"]).await, [None, error, error]);
}

#[tokio::test]
async fn a_late_answer_is_dropped() {
    let server = Running::tcp(Script::Find(Box::new(hit())));
    let client = server.client();
    let mut named = query();
    named.request_id = "hold".into();
    let hasty = client.with_lookup_deadline(Duration::from_millis(300));
    let mut stream = hasty.find_donors().await.unwrap();
    stream.send(&named).unwrap();
    let (id, lookup) = stream.next().await.unwrap();
    assert_eq!(
        (id, reason(&lookup)),
        (1, Some(MissReason::ProviderTimeout))
    );
    // The server now answers both; only the second may come out.
    named.request_id = "now".into();
    stream.send(&named).unwrap();
    let (id, lookup) = stream.next().await.unwrap();
    assert_eq!(id, 2);
    assert_eq!(lookup.hit().unwrap().donor_id, "dnow");
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_stream_holds_256_requests() {
    let server = Running::tcp(Script::Find(Box::new(hit())));
    let mut stream = server.client().find_donors().await.unwrap();
    let mut named = query();
    named.request_id = "hold".into();
    for _ in 0..256 {
        stream.send(&named).unwrap();
    }
    let refused = stream.send(&named).unwrap_err().to_string();
    assert!(refused.contains("256"), "{refused}");
}

#[tokio::test]
async fn manifests_are_streamed_too() {
    let server = Running::tcp(Script::Manifest(Box::new(manifest())));
    let mut stream = server.client().get_manifests().await.unwrap();
    stream.send(&ManifestQuery::top_k("p", 2)).unwrap();
    let (id, manifest) = stream.next().await.unwrap();
    assert_eq!(id, 1);
    let manifest = manifest.unwrap().unwrap();
    assert_eq!(manifest.reason, v1::ManifestReason::Unspecified);
}
