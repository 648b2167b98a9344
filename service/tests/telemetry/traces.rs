//! Spans of calls as a collector gets them, and what becomes of calls when there is none.

use std::fs::File;

use kvatlas_proto::v1;
use opentelemetry_proto::tonic::trace::v1::Span;
use tempfile::TempDir;
use tonic::Request;

use super::{
    collector::Collector,
    common::{
        self, InProcess, ServerProcess, donor, http_get, lookup, prompt, serve_command, within,
    },
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn start(endpoint: &str, ratio: f32) -> InProcess {
    common::start_with(|args| {
        args.telemetry.otlp_endpoint = Some(endpoint.to_owned());
        args.telemetry.trace_ratio = ratio;
    })
}

fn called<T>(message: T, traceparent: &str) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert("traceparent", traceparent.parse().unwrap());
    request
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[tokio::test]
async fn a_sampled_call_is_one_span_with_its_stages_in_the_callers_trace() {
    let (collector, url) = Collector::start();
    let server = start(&url, 0.0);
    let mut donors = server.clients.donors.clone();
    within(donors.register_donor(donor("kept", prompt(1, 128))))
        .await
        .unwrap();
    let sampled = format!("00-{TRACE}-{PARENT}-01");
    let unsampled = format!("00-{}-{PARENT}-00", "1".repeat(32));
    let asked = lookup(prompt(1, 128));
    within(donors.find_donor(called(asked.clone(), &unsampled)))
        .await
        .unwrap();
    within(donors.find_donor(asked.clone())).await.unwrap();
    within(donors.find_donor(called(asked, &sampled)))
        .await
        .unwrap();
    let malformed = called(lookup(Vec::new()), &sampled);
    within(donors.find_donor(malformed)).await.unwrap_err();

    common::until(|| std::future::ready(collector.spans().len() >= 6)).await;
    let spans = collector.spans();
    assert!(
        spans.iter().all(|span| hex(&span.trace_id) == TRACE),
        "{spans:?}"
    );
    let calls = named(&spans, "kvatlas.v1.Donors/FindDonor");
    assert_eq!(calls.len(), 2);
    for call in &calls {
        assert_eq!(hex(&call.parent_span_id), PARENT);
        assert!(call.end_time_unix_nano >= call.start_time_unix_nano);
    }
    let codes: Vec<i32> = calls
        .iter()
        .map(|it| it.status.as_ref().map_or(0, |it| it.code))
        .collect();
    assert_eq!(codes, [0, 2], "the second call failed");
    let [found] = named(&spans, "lookup")[..] else {
        panic!("{spans:?}");
    };
    assert_eq!(found.parent_span_id, calls[0].span_id);
    let outcome = found
        .attributes
        .iter()
        .find(|it| it.key == "kvatlas.outcome");
    assert!(format!("{outcome:?}").contains("prefix"), "{outcome:?}");
    for stage in ["seeds", "align", "gate"] {
        let [stage] = named(&spans, stage)[..] else {
            panic!("{stage}: {spans:?}");
        };
        assert_eq!(stage.parent_span_id, found.span_id);
        assert!(stage.start_time_unix_nano >= found.start_time_unix_nano);
        assert!(stage.end_time_unix_nano <= found.end_time_unix_nano + 1_000);
    }
}

#[tokio::test]
async fn without_a_caller_who_decides_the_ratio_does_for_calls_and_for_messages_of_streams() {
    let (collector, url) = Collector::start();
    let server = start(&url, 1.0);
    server.clients.status().await;
    let asked = |correlation_id| v1::GetManifestsRequest {
        correlation_id,
        request: Some(v1::GetManifestRequest {
            prefix_hash: "p".into(),
            k: 4,
            ..Default::default()
        }),
    };
    let mut routing = server.clients.routing.clone();
    let stream = routing.get_manifests(tokio_stream::iter([asked(1), asked(2)]));
    let mut answers = within(stream).await.unwrap().into_inner();
    while within(answers.message()).await.unwrap().is_some() {}
    server.server.stop().unwrap();
    let spans = collector.spans();
    assert_eq!(named(&spans, "kvatlas.v1.Admin/GetStatus").len(), 1);
    let [stream] = named(&spans, "kvatlas.v1.Routing/GetManifests")[..] else {
        panic!("{spans:?}");
    };
    // What was on its way at the end has come, too.
    let messages = named(&spans, "manifest");
    assert_eq!(messages.len(), 2);
    for message in messages {
        assert_eq!(message.trace_id, stream.trace_id);
    }
}

#[tokio::test]
async fn a_dead_collector_is_told_of_once_and_calls_go_on() {
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("log");
    let mut command = serve_command(&folder.path().join("data"));
    command.stderr(File::create(&log).unwrap());
    // Nobody listens on a port that was given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = port.local_addr().unwrap();
    drop(port);
    command.args([
        "--otlp-endpoint",
        &format!("http://{nobody}"),
        "--trace-ratio",
        "1",
    ]);
    let mut server = ServerProcess::launch(command).await;
    let clients = server.clients();
    let mut lost = Vec::new();
    // Until batches were lost at two times.
    common::until(|| {
        let page = http_get(server.http, "/metrics");
        let samples = page
            .lines()
            .find_map(|line| line.strip_prefix("kvatlas_spans_lost_total "));
        let now: u64 = samples.unwrap().parse().unwrap();
        if lost.last() != Some(&now) {
            lost.push(now);
        }
        let clients = clients.clone();
        let is_enough = lost.len() > 2;
        async move {
            clients.status().await;
            is_enough
        }
    })
    .await;
    server.terminate();
    assert_eq!(server.exit_code().await, Some(0));
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(
        log.matches("the collector takes no spans").count(),
        1,
        "{log}"
    );
}
