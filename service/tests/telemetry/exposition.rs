//! /metrics after all kinds of traffic: read strictly, every label of a closed set, every family
//! of a bounded size.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas_proto::v1::{self, donors_client::DonorsClient, routing_client::RoutingClient};
use tonic::transport::Channel;

use super::{
    common::{
        self, InProcess, donor, http_get, lookup, namespace, prior_file, prompt, upload, within,
    },
    openmetrics::{Family, parse},
};

const NAMESPACES: usize = 1_000;
/// With a series of their own, and the one for the others.
const NAMESPACE_SERIES: usize = 33;

const COUNTERS: [&str; 14] = [
    "semantic_lookup_requests",
    "semantic_lookup_hits",
    "semantic_lookup_misses",
    "semantic_lookup_rejected",
    "semantic_lookup_errors",
    "semantic_lookup_deferred",
    "semantic_materialize_requests",
    "semantic_materialize_success",
    "semantic_materialize_recompute",
    "semantic_materialize_failed",
    "semantic_invalid_blocks",
    "semantic_donor_registrations",
    "semantic_donor_evictions",
    "semantic_lookup_cross_namespace_rejected",
];
const HISTOGRAMS: [&str; 6] = [
    "semantic_lookup_latency_seconds",
    "semantic_lookup_stage_seconds",
    "semantic_external_tokens_reported",
    "semantic_tokens_loaded",
    "semantic_similarity",
    "semantic_reuse_ratio",
];
/// How many words each label has at most.
const LABELS: [(&str, usize); 15] = [
    ("algorithm", 15),
    ("end", 8),
    ("namespace", NAMESPACE_SERIES),
    // Of look-ups, of events about donors, and of 24 kinds of KV events.
    ("outcome", 7 + 24),
    ("policy", 8),
    // Of manifests, and of reports of reuse.
    ("provenance", 3 + 5),
    ("queue", 5),
    ("reason", 40),
    ("revision", 1),
    ("rust", 1),
    ("stage", 5),
    ("state", 7),
    ("version", 1),
    ("why", 2),
    ("le", 200),
];

/// What operators read of metrics.
const PAGE: &str = include_str!("../../../docs/metrics.md");

#[tokio::test]
async fn every_metric_is_in_the_documentation() {
    let server = common::start();
    traffic(&server).await;
    for name in settled(&server).await.keys() {
        // A counter's family has no suffix.
        let is_there = PAGE.match_indices(name.as_str()).any(|(at, _)| {
            let rest = &PAGE[at + name.len()..];
            let rest = rest.strip_prefix("_total").unwrap_or(rest);
            rest.starts_with(['`', '{'])
        });
        assert!(is_there, "{name} is not in docs/metrics.md");
    }
}

#[tokio::test]
async fn every_name_is_there_and_every_label_is_of_a_closed_set() {
    let server = common::start();
    let before = scrape(&server);
    for name in COUNTERS {
        assert_eq!(before[name].kind, "counter", "{name}");
    }
    for name in HISTOGRAMS {
        assert_eq!(before[name].kind, "histogram", "{name}");
    }
    traffic(&server).await;
    let mut words: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let series = settled(&server).await;
    for family in series.values() {
        for sample in &family.samples {
            for (label, value) in &sample.labels {
                let of_label = words.entry(label.clone()).or_default();
                of_label.insert(value.clone());
                let is_word = |it: char| it.is_ascii_alphanumeric() || "_-.+".contains(it);
                assert!(value.chars().all(is_word), "{label}=\"{value}\"");
            }
        }
    }
    let most: BTreeMap<&str, usize> = LABELS.into_iter().collect();
    for (label, values) in &words {
        let most = most.get(label.as_str());
        let most = most.unwrap_or_else(|| panic!("{label} is no label of ours: {values:?}"));
        assert!(values.len() <= *most, "{label}: {values:?}");
    }
    let digits = |it: &String| it.len() == 12 && it.bytes().all(|it| it.is_ascii_hexdigit());
    let namespaces = &words["namespace"];
    assert_eq!(namespaces.len(), NAMESPACE_SERIES);
    assert!(namespaces.iter().all(|it| digits(it) || it == "other"));
    assert!(
        words["algorithm"].contains("other"),
        "a name that nobody knows"
    );
    assert!(words["policy"].contains("anchor-recent-middle"));
}

#[tokio::test]
async fn a_look_up_counts_in_one_series_of_one_namespace() {
    let server = common::start();
    traffic(&server).await;
    let families = settled(&server).await;
    let sum = |name: &str| -> f64 {
        let samples = families[name].samples.iter();
        samples.map(|sample| sample.value).sum()
    };
    let requests = sum("semantic_lookup_requests") - sum("semantic_lookup_errors");
    assert!((sum("kvatlas_namespace_lookups") - requests).abs() < 0.5);
    let granted = families["kvatlas_leases"].samples.iter();
    let granted = granted.filter(|it| it.labels["state"] == "granted");
    let granted: f64 = granted.map(|it| it.value).sum();
    assert!(
        (granted - 1.0).abs() < 0.5,
        "{:?}",
        families["kvatlas_leases"]
    );
}

// The recorder comes by when it does.
async fn settled(server: &InProcess) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::new();
    common::until(|| {
        families = scrape(server);
        let sum = |name: &str| -> f64 { families[name].samples.iter().map(|it| it.value).sum() };
        let asked = sum("semantic_lookup_requests") - sum("semantic_lookup_errors");
        std::future::ready(sum("kvatlas_namespace_lookups") > asked - 0.5)
    })
    .await;
    families
}

fn scrape(server: &InProcess) -> BTreeMap<String, Family> {
    let page = http_get(server.server.http_address(), "/metrics");
    let (_, body) = page.split_once("\r\n\r\n").unwrap();
    parse(body)
}

// Hits, misses, refusals, a lease, reports, manifests under names of the caller's, and look-ups in
// a thousand namespaces.
async fn traffic(server: &InProcess) {
    let common::Clients {
        mut donors,
        mut routing,
        mut admin,
        ..
    } = server.clients.clone();
    let materialize = v1::SetModeRequest {
        mode: v1::Mode::Materialize.into(),
        ..Default::default()
    };
    within(admin.set_mode(materialize)).await.unwrap();
    let announce = v1::AnnounceOwnerRequest {
        owner: common::owner("worker"),
        generation: 1,
        ttl_ms: 60_000,
    };
    within(donors.announce_owner(announce)).await.unwrap();
    within(donors.register_donor(donor("kept", prompt(1, 128))))
        .await
        .unwrap();
    let mut leased = lookup(prompt(1, 128));
    leased.holder = "engine".into();
    leased.readable_store_ids = vec!["store".into()];
    for asked in [leased, lookup(prompt(2, 128)), lookup(prompt(3, 40_000))] {
        within(donors.find_donor(asked)).await.unwrap();
    }
    within(donors.find_donor(lookup(Vec::new())))
        .await
        .unwrap_err();
    for number in 0..NAMESPACES {
        let mut asked = lookup(prompt(4, 32));
        let mut other = namespace();
        other.tenant_key = format!("semblend:tenant:v1:{number:032x}");
        asked.namespace = common::selector(other);
        within(donors.find_donor(asked)).await.unwrap();
    }
    report_all(&mut donors).await;
    manifests(&mut routing).await;
}

async fn report_all(donors: &mut DonorsClient<Channel>) {
    for provenance in 1..=5 {
        let report = v1::ReportReuseRequest {
            provenance,
            reason: 14,
            tokens_loaded: 64,
            invalid_blocks: 1,
            ..Default::default()
        };
        within(donors.report_reuse(report)).await.unwrap();
    }
}

// Of a prior whose algorithm nobody knows; some are refused.
async fn manifests(routing: &mut RoutingClient<Channel>) {
    let header = v1::PutPriorHeader {
        prefix_hash: "p".into(),
        algorithm: "a-name-of-the-bakers".into(),
        ..Default::default()
    };
    let parts = upload(header, &prior_file("aff_float16.pt"));
    within(routing.put_prior(tokio_stream::iter(parts)))
        .await
        .unwrap();
    for (prefix, policy) in [
        ("p", "top-k"),
        ("p", "A1R1K2"),
        ("p", "nonsense"),
        ("q", ""),
    ] {
        let asked = v1::GetManifestRequest {
            prefix_hash: prefix.into(),
            policy: policy.into(),
            k: 4,
            ..Default::default()
        };
        // Some are refused.
        let _given = within(routing.get_manifest(asked)).await;
    }
}
