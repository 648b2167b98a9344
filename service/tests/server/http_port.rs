//! /healthz and /metrics: every name that operators rely on, and counters that count.

use std::collections::BTreeMap;

use kvatlas_proto::v1;

use crate::common::{self, InProcess, donor, http_get, lookup, prior_file, prompt, upload, within};

const COUNTERS: [&str; 22] = [
    "semantic_lookup_requests_total",
    "semantic_lookup_hits_total",
    "semantic_lookup_misses_total",
    "semantic_lookup_rejected_total",
    "semantic_lookup_errors_total",
    "semantic_lookup_deferred_total",
    "semantic_lookup_cross_namespace_rejected_total",
    "semantic_materialize_requests_total",
    "semantic_materialize_success_total",
    "semantic_materialize_recompute_total",
    "semantic_materialize_failed_total",
    "semantic_reuse_reported_total",
    "semantic_invalid_blocks_total",
    "semantic_donor_registrations_total",
    "semantic_donor_evictions_total",
    "semantic_donor_unstored_total",
    "kvatlas_manifest_misses_total",
    "kvatlas_manifest_errors_total",
    "kvatlas_priors_put_total",
    "kvatlas_calls_refused_total",
    "kvatlas_build",
    "kvatlas_epoch",
];
const HISTOGRAMS: [&str; 6] = [
    "semantic_lookup_latency_seconds",
    "semantic_lookup_stage_seconds",
    "semantic_external_tokens_reported",
    "semantic_tokens_loaded",
    "semantic_similarity",
    "semantic_reuse_ratio",
];
const GAUGES: [&str; 9] = [
    "kvatlas_priors",
    "kvatlas_donors",
    "kvatlas_donor_tokens",
    "kvatlas_namespaces",
    "kvatlas_leases_held",
    "kvatlas_owners_live",
    "kvatlas_calls_in_flight",
    "kvatlas_donor_writes_queued",
    "kvatlas_damaged_records",
];
const REASONS: [&str; 16] = [
    "exact_prefix_sufficient",
    "provider_disabled",
    "provider_timeout",
    "provider_error",
    "provider_miss",
    "low_similarity",
    "low_reuse_tokens",
    "namespace_mismatch",
    "unsupported_request",
    "not_prefix_anchored",
    "not_block_aligned",
    "donor_stale",
    "allocation_failed",
    "load_failed",
    "invalid_blocks",
    "recompute_policy",
];

#[tokio::test]
async fn the_pages_are_what_probes_and_prometheus_expect() {
    let server = common::start();
    let page = http_get(server.server.http_address(), "/healthz");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    assert!(page.ends_with("\r\n\r\nok\n"), "{page}");
    let page = http_get(server.server.http_address(), "/nothing");
    assert!(page.starts_with("HTTP/1.1 404"), "{page}");
    let page = http_get(server.server.http_address(), "/metrics");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(page.contains(kind), "{page}");
    assert!(page.ends_with("\n# EOF\n"), "{page}");

    let samples = Samples::of(&server);
    for name in COUNTERS.into_iter().chain(GAUGES) {
        assert!(samples.has(name), "{name}");
    }
    for name in HISTOGRAMS {
        for suffix in ["_bucket", "_sum", "_count"] {
            assert!(samples.has(&format!("{name}{suffix}")), "{name}{suffix}");
        }
    }
    for reason in REASONS {
        for name in ["misses", "rejected"] {
            let sample = format!("semantic_lookup_{name}_total{{reason=\"{reason}\"}}");
            assert_eq!(samples.value(&sample).to_string(), "0", "{sample}");
        }
    }
    for stage in ["seeds", "align", "gate", "neighbours", "facts"] {
        let sample = format!("semantic_lookup_stage_seconds_count{{stage=\"{stage}\"}}");
        assert_eq!(samples.value(&sample).to_string(), "0", "{sample}");
    }
    assert_eq!(samples.value("kvatlas_epoch").to_string(), "1");
}

#[tokio::test]
async fn each_look_up_moves_its_own_counters() {
    let server = common::start();
    let mut donors = server.clients.donors.clone();
    let before = Samples::of(&server);
    within(donors.register_donor(donor("kept", prompt(1, 128))))
        .await
        .unwrap();
    check(
        &server,
        &before,
        "semantic_donor_registrations_total 1, kvatlas_donors 1, kvatlas_donor_tokens 128, \
         kvatlas_namespaces 1",
    );

    let before = Samples::of(&server);
    within(donors.register_donor(donor("shorter", prompt(1, 64))))
        .await
        .unwrap();
    check(
        &server,
        &before,
        "semantic_donor_unstored_total{why=\"covered\"} 1",
    );
    let before = Samples::of(&server);
    let nothing = v1::RegisterDonorRequest {
        captured_tokens: 0,
        exact_tokens: 0,
        ..donor("nothing", prompt(2, 128))
    };
    within(donors.register_donor(nothing)).await.unwrap();
    check(
        &server,
        &before,
        "semantic_donor_unstored_total{why=\"nothing_captured\"} 1",
    );

    let before = Samples::of(&server);
    within(donors.find_donor(lookup(prompt(1, 128))))
        .await
        .unwrap();
    check(
        &server,
        &before,
        "semantic_lookup_requests_total 1, semantic_lookup_hits_total 1, \
         semantic_lookup_latency_seconds_count 1, \
         semantic_lookup_stage_seconds_count{stage=\"seeds\"} 1, \
         semantic_external_tokens_reported_count 1, semantic_external_tokens_reported_sum 112, \
         semantic_similarity_count 1, semantic_reuse_ratio_sum 0.875",
    );

    // A stranger, one of whom a quarter is known, one without a namespace, a malformed one and a
    // long one.
    let before = Samples::of(&server);
    let mut partly = prompt(1, 32);
    partly.extend(prompt(3, 96));
    let mut nowhere = lookup(prompt(1, 128));
    nowhere.namespace = None;
    let asked = [lookup(prompt(2, 128)), lookup(partly), nowhere];
    let asked = asked.into_iter().chain([lookup(prompt(4, 40_000))]);
    for asked in asked {
        within(donors.find_donor(asked)).await.unwrap();
    }
    within(donors.find_donor(lookup(Vec::new())))
        .await
        .unwrap_err();
    check(
        &server,
        &before,
        "semantic_lookup_requests_total 5, semantic_lookup_hits_total 0, \
         semantic_lookup_errors_total 1, semantic_lookup_deferred_total 1, \
         semantic_lookup_misses_total{reason=\"namespace_mismatch\"} 1, \
         semantic_lookup_cross_namespace_rejected_total 1",
    );
    let misses = |samples: &Samples| samples.sum("semantic_lookup_misses_total");
    let moved = misses(&Samples::of(&server)) - misses(&before);
    assert_eq!(moved.to_string(), "4");
}

#[tokio::test]
async fn each_report_and_manifest_moves_its_own_counters() {
    let server = common::start();
    let before = Samples::of(&server);
    use v1::{FallbackReason as Reason, ReuseProvenance as Provenance};
    for (provenance, reason, invalid_blocks) in [
        (Provenance::RequestOnlyReuse, Reason::Unspecified, 0),
        // Its blocks were not what was promised.
        (Provenance::ExactExternalHit, Reason::Unspecified, 3),
        // As connectors tell of a load that failed.
        (Provenance::FallbackRecompute, Reason::LoadFailed, 6),
        (Provenance::FallbackRecompute, Reason::RecomputePolicy, 0),
        // Declined before anything was loaded.
        (Provenance::CandidateRejected, Reason::Unspecified, 0),
        (Provenance::CandidateRejected, Reason::AllocationFailed, 0),
    ] {
        report(&server, provenance, reason, invalid_blocks).await;
    }
    check(
        &server,
        &before,
        "semantic_materialize_success_total 1, semantic_materialize_recompute_total 2, \
         semantic_materialize_failed_total 3, semantic_tokens_loaded_count 1, \
         semantic_tokens_loaded_sum 64, semantic_invalid_blocks_total 9, \
         semantic_reuse_reported_total{reason=\"load_failed\"} 1, \
         kvatlas_reuse_reports_total{provenance=\"request_only_reuse\"} 1, \
         kvatlas_reuse_reports_total{provenance=\"candidate_rejected\"} 2",
    );

    let mut routing = server.clients.routing.clone();
    let before = Samples::of(&server);
    let header = v1::PutPriorHeader {
        prefix_hash: "p".into(),
        ..Default::default()
    };
    let parts = upload(header, &prior_file("perk.pt"));
    within(routing.put_prior(tokio_stream::iter(parts)))
        .await
        .unwrap();
    for (prefix, k) in [("p", 4), ("p", 4), ("q", 4), ("p", 0)] {
        let asked = v1::GetManifestRequest {
            prefix_hash: prefix.into(),
            k,
            ..Default::default()
        };
        // Two of the four are refused.
        let _given = within(routing.get_manifest(asked)).await;
    }
    check(
        &server,
        &before,
        "kvatlas_priors_put_total 1, kvatlas_priors 1, kvatlas_manifest_misses_total 1, \
         kvatlas_manifest_errors_total 1, kvatlas_calls_in_flight 0",
    );
    let given = Samples::of(&server).sum("kvatlas_manifests_total");
    assert_eq!(given.to_string(), "2");
}

async fn report(
    server: &InProcess,
    provenance: v1::ReuseProvenance,
    reason: v1::FallbackReason,
    invalid_blocks: u32,
) {
    let report = v1::ReportReuseRequest {
        provenance: provenance.into(),
        reason: reason.into(),
        tokens_loaded: 64,
        invalid_blocks,
        ..Default::default()
    };
    let mut donors = server.clients.donors.clone();
    within(donors.report_reuse(report)).await.unwrap();
}

// Each sample has moved by so much since `before`.
fn check(server: &InProcess, before: &Samples, moves: &str) {
    let after = Samples::of(server);
    for (name, moved) in moves.split(", ").map(|each| each.split_once(' ').unwrap()) {
        let by = after.value(name) - before.value(name);
        assert_eq!(by.to_string(), moved, "{name}");
    }
}

/// A scrape: sample names with their labels, and values.
struct Samples(BTreeMap<String, f64>);

impl Samples {
    fn of(server: &InProcess) -> Samples {
        let page = http_get(server.server.http_address(), "/metrics");
        let (_, body) = page.split_once("\r\n\r\n").unwrap();
        let lines = body.lines().filter(|line| !line.starts_with('#'));
        let samples = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        });
        Samples(samples.collect())
    }

    // With whatever labels.
    fn has(&self, name: &str) -> bool {
        self.0.keys().any(|sample| name_of(sample) == name)
    }

    fn value(&self, sample: &str) -> f64 {
        let value = self.0.get(sample);
        *value.unwrap_or_else(|| panic!("no sample {sample}"))
    }

    // Over all labels.
    fn sum(&self, name: &str) -> f64 {
        let of_name = self.0.iter().filter(|(sample, _)| name_of(sample) == name);
        of_name.map(|(_, value)| value).sum()
    }
}

fn name_of(sample: &str) -> &str {
    sample.split('{').next().unwrap()
}
