//! The audit log and the window: a line for each call, joinable, and never in the way of calls.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use kvatlas::telemetry::{
    record::{Line, Lookup, Manifest, Record, Reuse},
    words::{
        Gate, ManifestOutcome, ManifestReason, Mode, Outcome, Policy, ReuseProvenance, SourceState,
    },
};
use kvatlas_client::Client;
use kvatlas_proto::v1;
use tempfile::TempDir;
use tonic::Request;

use super::common::{
    self, Clients, InProcess, ServerProcess, donor, http_get, lookup, prior_file, prompt,
    serve_command, upload, within,
};

/// printf 'kvatlas:request:v1:request-1' | sha256sum | cut -c1-16
const REQUEST_1: &str = "2407c7c5d70a7ed4";

fn start(data: &Path, audit: &Path) -> InProcess {
    common::start_with(|args| {
        args.data_dir = data.to_owned();
        args.telemetry.audit = Some(audit.to_owned());
    })
}

// Every line of every file, oldest first; each file begins with a start.
fn lines(folder: &Path) -> Vec<Line> {
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{path:?}");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.ends_with('\n'), "{path:?}");
        let lines: Vec<Line> = text
            .lines()
            .map(|line| Line::parse(line).unwrap())
            .collect();
        assert!(matches!(lines[0].record, Record::Start(_)), "{path:?}");
        all.extend(lines);
    }
    all
}

fn lookups(lines: &[Line]) -> Vec<Lookup> {
    let lookup = |line: &Line| {
        if let Record::Lookup(lookup) = &line.record {
            return Some(**lookup);
        }
        None
    };
    lines.iter().filter_map(lookup).collect()
}

fn manifests(lines: &[Line]) -> Vec<Manifest> {
    let manifest = |line: &Line| {
        if let Record::Manifest(manifest) = &line.record {
            return Some(*manifest);
        }
        None
    };
    lines.iter().filter_map(manifest).collect()
}

fn reports(lines: &[Line]) -> Vec<Reuse> {
    let reuse = |line: &Line| {
        if let Record::Reuse(reuse) = &line.record {
            return Some(*reuse);
        }
        None
    };
    lines.iter().filter_map(reuse).collect()
}

async fn find(clients: &Clients, asked: v1::FindDonorRequest) -> v1::FindDonorResponse {
    let mut donors = clients.donors.clone();
    within(donors.find_donor(asked)).await.unwrap().into_inner()
}

// A hit, four misses, each by another gate, and a report of the hit. Returns the hit.
async fn look_up_and_report(server: &InProcess) -> v1::FindDonorResponse {
    let mut donors = server.clients.donors.clone();
    within(donors.register_donor(donor("kept", prompt(1, 128))))
        .await
        .unwrap();
    let mut asked = lookup(prompt(1, 128));
    asked.request_id = "request-1".into();
    let answer = find(&server.clients, asked).await;
    // A quarter of it is known: the gates turn the donor down, and say what it would have given.
    let mut partly = prompt(1, 32);
    partly.extend(prompt(3, 96));
    find(&server.clients, lookup(partly)).await;
    let mut covered = lookup(prompt(1, 128));
    covered.exact_prefix_tokens = 96;
    find(&server.clients, covered).await;
    let mut short = lookup(prompt(1, 32));
    short.gates = None;
    find(&server.clients, short).await;
    let mut nowhere = lookup(prompt(1, 128));
    nowhere.namespace = None;
    find(&server.clients, nowhere).await;
    let report = v1::ReportReuseRequest {
        request_id: "request-1".into(),
        provenance: v1::ReuseProvenance::ExactExternalHit.into(),
        tokens_loaded: 112,
        ..Default::default()
    };
    within(donors.report_reuse(report)).await.unwrap();
    answer
}

#[tokio::test]
async fn a_look_up_is_a_line_that_a_report_joins() {
    let folder = TempDir::new().unwrap();
    let (data, audit) = (folder.path().join("data"), folder.path().join("audit"));
    let server = start(&data, &audit);
    let answer = look_up_and_report(&server).await;
    server.server.stop().unwrap();

    let all = lines(&audit);
    let [hit, partly, covered, short, nowhere] = lookups(&all)[..] else {
        panic!("{all:?}");
    };
    assert_eq!(hit.request.unwrap().to_string(), REQUEST_1);
    let namespace = hit.namespace.unwrap().to_string();
    assert_eq!(namespace, answer.namespace_id[..12]);
    assert_eq!(
        (hit.outcome, hit.reason, hit.gate),
        (Outcome::Prefix, None, None)
    );
    assert_eq!((hit.mode, hit.leased), (Mode::DiscoveryOnly, false));
    assert_eq!(
        (hit.prompt_tokens, hit.verified_tokens, hit.reusable_tokens),
        (128, 128, 112)
    );
    assert_eq!(hit.reuse_ratio.unwrap().0, 8_750);
    assert!(hit.donor.is_some() && hit.owner.is_some() && hit.template.is_some());
    assert!(hit.took_us.0 >= hit.stages_us.seeds.0 && hit.stages_us.seeds.0 > 0);
    assert_eq!(hit.gates.unwrap().min_similarity.0, 6_000);

    assert_eq!(
        (partly.outcome, partly.gate),
        (Outcome::Miss, Some(Gate::MinSimilarity))
    );
    assert_eq!(
        (partly.verified_tokens, partly.similarity.unwrap().0),
        (32, 2_500)
    );
    assert_eq!((partly.donor, partly.request), (None, None));
    assert_eq!(covered.gate, Some(Gate::ExactPrefixSkipRatio));
    assert_eq!(covered.exact_prefix_tokens, 96);
    assert_eq!(
        (short.gate, short.template),
        (Some(Gate::MinPromptTokens), None)
    );
    assert_eq!((nowhere.namespace, nowhere.gates), (None, None));
    assert_eq!(hit.template, nowhere.template);
    assert_ne!(hit.template, lookups(&all).last().unwrap().donor);

    let [report] = reports(&all)[..] else {
        panic!("{all:?}");
    };
    assert_eq!(report.request, hit.request);
    assert_eq!(report.provenance, ReuseProvenance::ExactExternalHit);
    assert_eq!((report.tokens_loaded, report.released), (112, false));
}

#[tokio::test]
async fn digests_stay_the_same_over_a_restart_and_say_nothing_to_another_server() {
    let folder = TempDir::new().unwrap();
    let digests = async |data: &str, audit: &str| {
        let audit = folder.path().join(audit);
        let server = start(&folder.path().join(data), &audit);
        let mut donors = server.clients.donors.clone();
        within(donors.register_donor(donor("kept", prompt(1, 128))))
            .await
            .unwrap();
        find(&server.clients, lookup(prompt(1, 128))).await;
        server.server.stop().unwrap();
        let found = lookups(&lines(&audit))[0];
        (
            found.donor.unwrap(),
            found.owner.unwrap(),
            found.template.unwrap(),
        )
    };
    let first = digests("data", "first").await;
    let again = digests("data", "again").await;
    let other = digests("elsewhere", "other").await;
    assert_eq!(first, again);
    assert!(first.0 != other.0 && first.1 != other.1 && first.2 != other.2);
}

#[tokio::test]
async fn a_manifest_is_a_line_whatever_came_of_it_and_over_a_stream_too() {
    let folder = TempDir::new().unwrap();
    let audit = folder.path().join("audit");
    let server = start(&folder.path().join("data"), &audit);
    let mut routing = server.clients.routing.clone();
    let header = v1::PutPriorHeader {
        prefix_hash: "p".into(),
        algorithm: "kri-q".into(),
        ..Default::default()
    };
    let parts = upload(header, &prior_file("perk.pt"));
    within(routing.put_prior(tokio_stream::iter(parts)))
        .await
        .unwrap();
    let asked = |prefix: &str, k, policy: &str| v1::GetManifestRequest {
        prefix_hash: prefix.into(),
        k,
        policy: policy.into(),
        ..Default::default()
    };
    let mut named = Request::new(asked("p", 4, "top-k"));
    named
        .metadata_mut()
        .insert("x-request-id", "request-1".parse().unwrap());
    let given = within(routing.get_manifest(named))
        .await
        .unwrap()
        .into_inner();
    within(routing.get_manifest(asked("q", 4, "")))
        .await
        .unwrap_err();
    within(routing.get_manifest(asked("p", 4, "nonsense")))
        .await
        .unwrap_err();
    let message = v1::GetManifestsRequest {
        correlation_id: 7,
        request: Some(asked("p", 4, "recency")),
    };
    let stream = routing.get_manifests(tokio_stream::iter([message]));
    let mut answers = within(stream).await.unwrap().into_inner();
    while within(answers.message()).await.unwrap().is_some() {}
    server.server.stop().unwrap();

    let all = lines(&audit);
    let [ok, missing, refused, streamed] = manifests(&all)[..] else {
        panic!("{all:?}");
    };
    assert_eq!(ok.request.unwrap().to_string(), REQUEST_1);
    assert_eq!(
        (ok.outcome, ok.reason, ok.policy),
        (ManifestOutcome::Ok, None, Some(Policy::TopK))
    );
    assert_eq!(
        (ok.k, ok.total_blocks),
        (given.effective_k, given.total_blocks)
    );
    assert_eq!(ok.algorithm.unwrap().as_str(), "kri-q");
    assert_eq!(ok.provenance.unwrap().as_str(), "prior");
    assert_eq!(missing.outcome, ManifestOutcome::Miss);
    assert_eq!(missing.reason, Some(ManifestReason::NotFound));
    assert_ne!(missing.prefix, ok.prefix);
    assert_eq!(refused.outcome, ManifestOutcome::Refused);
    assert_eq!(refused.reason, Some(ManifestReason::InvalidArgument));
    assert_eq!((refused.prefix, streamed.prefix), (ok.prefix, ok.prefix));
    assert_eq!(streamed.policy, Some(Policy::Recency));
}

#[tokio::test]
async fn the_window_is_read_in_pages_without_any_log() {
    let server = common::start();
    for seed in 0..300 {
        find(&server.clients, lookup(prompt(seed, 32))).await;
    }
    let address = server.server.grpc_addresses()[0].to_string();
    let client = Client::connect(&address.parse().unwrap());
    // The recorder comes by when it does.
    let read = within(async {
        loop {
            let lines = client.read_window(None, 0).await.unwrap();
            if lines.len() > 300 {
                return lines;
            }
        }
    })
    .await;
    let lines: Vec<Line> = read.iter().map(|line| Line::parse(line).unwrap()).collect();
    assert_eq!(lookups(&lines).len(), 300);
    assert!(matches!(lines[0].record, Record::Start(_)));
    assert!(lines.is_sorted_by_key(|line| line.at_ms));
    let newest = client.read_window(None, 7).await.unwrap();
    assert_eq!(newest, read[read.len() - 7..]);
    let since = lines[200].at_ms;
    let recent = client.read_window(Some(since), 0).await.unwrap();
    let expected = lines.iter().filter(|line| line.at_ms >= since).count();
    assert_eq!(recent.len(), expected);
    let refusal = client.read_window(None, 65_537).await.unwrap_err();
    assert!(refusal.to_string().contains("records_max"), "{refusal}");
}

#[tokio::test]
async fn how_far_workers_can_be_believed_is_recorded_when_it_changes() {
    let server = common::start();
    let address = server.server.grpc_addresses()[0].to_string();
    let client = Client::connect(&address.parse().unwrap());
    let follow = v1::AddEventSourceRequest {
        // Nobody listens there.
        source: "tcp://127.0.0.1:1,worker=zeppelin".into(),
        namespace: Some(common::namespace()),
    };
    let mut admin = server.clients.admin.clone();
    within(admin.add_event_source(follow)).await.unwrap();
    let said = within(async {
        loop {
            let lines = client.read_window(None, 0).await.unwrap();
            let mut lines = lines.iter().map(|line| Line::parse(line).unwrap());
            let start = lines.next().unwrap();
            assert!(matches!(start.record, Record::Start(_)), "{start:?}");
            let last = lines.next_back();
            if let Some(Record::Sources(sources)) = last.map(|line| line.record) {
                return sources;
            }
        }
    })
    .await;
    assert_eq!((said.exact, said.degraded, said.stale), (0, 0, 1));
    let [source] = said.sources[..] else {
        panic!("{said:?}");
    };
    assert_eq!((source.state, source.gaps), (SourceState::Stale, 0));
}

#[tokio::test]
async fn a_log_that_cannot_be_written_is_told_of_once_and_calls_go_on() {
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("log");
    let place = folder.path().join("in-the-way");
    fs::write(&place, "a file").unwrap();
    let mut command = serve_command(&folder.path().join("data"));
    command.stderr(File::create(&log).unwrap());
    command.arg("--audit").arg(place.join("audit"));
    let mut server = ServerProcess::launch(command).await;
    let clients = server.clients();
    common::until(|| {
        let lost = http_get(server.http, "/metrics");
        let lost = lost
            .lines()
            .find_map(|line| line.strip_prefix("kvatlas_audit_lines_lost_total "));
        let lost: u64 = lost.unwrap().parse().unwrap();
        let clients = clients.clone();
        async move {
            find(&clients, lookup(prompt(1, 32))).await;
            lost >= 20
        }
    })
    .await;
    server.terminate();
    assert_eq!(server.exit_code().await, Some(0));
    let log = fs::read_to_string(log).unwrap();
    assert_eq!(
        log.matches("the audit log cannot be written").count(),
        1,
        "{log}"
    );
}
