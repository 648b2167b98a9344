//! Start, limits and end: health, drain, one server a folder, admission, deadlines.

use std::{net::TcpStream, process::Stdio};

use bytes::Bytes;
use kvatlas_proto::v1::{self, put_prior_request::Part};
use prost::Message;
use tempfile::TempDir;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Response, Status, Streaming};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::common::{
    self, Clients, ServerProcess, donor, http_get, lookup, prior_file, prompt, serve_command,
    until, within,
};

const EVERY_SERVICE: [&str; 5] = [
    "",
    "kvatlas.v1.Routing",
    "kvatlas.v1.Donors",
    "kvatlas.v1.Leases",
    "kvatlas.v1.Admin",
];

#[tokio::test]
async fn sigterm_lets_calls_finish_and_takes_no_new_ones() {
    let folder = TempDir::new().unwrap();
    let mut command = serve_command(folder.path());
    command.args(["--drain-ms", "600000"]);
    let mut server = ServerProcess::launch(command).await;
    let clients = server.clients();
    let mut watches = Vec::new();
    for service in EVERY_SERVICE {
        let request = HealthCheckRequest {
            service: service.into(),
        };
        let mut health = HealthClient::new(clients.channel.clone());
        let mut watch = within(health.watch(request)).await.unwrap().into_inner();
        let first = within(watch.message()).await.unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::Serving, "{service}");
        watches.push(watch);
    }
    assert!(http_get(server.http, "/healthz").starts_with("HTTP/1.1 200"));
    let mut idle = IdleStreams::open(&clients).await;
    let upload = OpenUpload::begin(&clients, server.http).await;

    server.terminate();
    for watch in &mut watches {
        let next = within(watch.message()).await.unwrap().unwrap();
        assert_eq!(next.status(), ServingStatus::NotServing);
        assert!(within(watch.message()).await.unwrap().is_none());
    }
    idle.check_ended().await;
    let address: std::net::SocketAddr = server.grpc[0].parse().unwrap();
    until(|| std::future::ready(TcpStream::connect(address).is_err())).await;
    let page = http_get(server.http, "/healthz");
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    assert!(page.ends_with("draining\n"), "{page}");

    let put = upload.finish().await.unwrap().into_inner();
    assert_eq!(put.prior.unwrap().prefix_hash, "open");
    drop(clients);
    assert_eq!(server.exit_code().await, Some(0));
    // What was acknowledged while draining is there.
    let server = ServerProcess::launch(serve_command(folder.path())).await;
    assert_eq!(server.clients().status().await.priors, 1);
}

#[tokio::test]
async fn a_drain_has_an_end() {
    let folder = TempDir::new().unwrap();
    let mut command = serve_command(folder.path());
    command.args(["--drain-ms", "100", "--call-ms-max", "600000"]);
    let mut server = ServerProcess::launch(command).await;
    let upload = OpenUpload::begin(&server.clients(), server.http).await;
    server.terminate();
    // The upload is never finished.
    assert_eq!(server.exit_code().await, Some(0));
    assert!(upload.finish().await.is_err());
}

#[tokio::test]
async fn a_folder_has_one_server() {
    let folder = TempDir::new().unwrap();
    let first = ServerProcess::launch(serve_command(folder.path())).await;
    let second = serve_command(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(second.stdout.is_empty(), "no ready line");
    let told = String::from_utf8(second.stderr).unwrap();
    assert!(told.contains("in use by another process"), "{told}");
    // The first is not disturbed.
    first.clients().status().await;
}

#[tokio::test]
async fn a_log_filter_that_cannot_be_read_is_told() {
    let folder = TempDir::new().unwrap();
    let output = serve_command(folder.path())
        .args(["--log", "kvatlas=loud"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("--log"), "{told}");
}

#[tokio::test]
async fn one_call_over_the_limit_is_refused_at_once_and_health_still_answers() {
    let server = common::start_with(|args| args.calls_in_flight_max = 1);
    let clients = &server.clients;
    let (requests, receiver) = mpsc::channel(1);
    let mut routing = clients.routing.clone();
    let opened = routing.get_manifests(ReceiverStream::new(receiver));
    let mut answers = within(opened).await.unwrap().into_inner();
    let http = server.server.http_address();
    let upload = OpenUpload::begin(clients, http).await;

    let asked = v1::GetManifestRequest {
        prefix_hash: "any".into(),
        k: 1,
        ..Default::default()
    };
    let refusal = within(clients.routing.clone().get_manifest(asked.clone())).await;
    let refusal = refusal.unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    assert!(
        refusal.message().contains("1 calls are in flight"),
        "{refusal}"
    );
    // Messages of a stream that is open already are calls as well.
    let message = v1::GetManifestsRequest {
        correlation_id: 9,
        request: Some(asked.clone()),
    };
    requests.send(message).await.unwrap();
    let answer = within(answers.message()).await.unwrap().unwrap();
    assert_eq!(answer.correlation_id, 9);
    let Some(v1::get_manifests_response::Result::Error(error)) = answer.result else {
        panic!("{answer:?}");
    };
    assert_eq!(error.code, i32::from(Code::ResourceExhausted));
    let mut health = HealthClient::new(clients.channel.clone());
    let checked = within(health.check(HealthCheckRequest::default())).await;
    assert_eq!(checked.unwrap().get_ref().status(), ServingStatus::Serving);
    let metrics = http_get(http, "/metrics");
    assert!(
        metrics.contains("\nkvatlas_calls_refused_total 2\n"),
        "{metrics}"
    );

    upload.finish().await.unwrap();
    let after = within(clients.routing.clone().get_manifest(asked)).await;
    assert_eq!(after.unwrap_err().code(), Code::NotFound);
}

/// One of each stream that connectors keep open.
struct IdleStreams {
    manifests: Streaming<v1::GetManifestsResponse>,
    look_ups: Streaming<v1::FindDonorsResponse>,
    registrations: Streaming<v1::RegisterDonorsResponse>,
}

impl IdleStreams {
    async fn open(clients: &Clients) -> IdleStreams {
        let Clients {
            mut routing,
            mut donors,
            ..
        } = clients.clone();
        let manifests = routing.get_manifests(tokio_stream::pending());
        let manifests = within(manifests).await.unwrap().into_inner();
        let look_ups = donors.find_donors(tokio_stream::pending());
        let look_ups = within(look_ups).await.unwrap().into_inner();
        let registrations = donors.register_donors(tokio_stream::pending());
        let registrations = within(registrations).await.unwrap().into_inner();
        IdleStreams {
            manifests,
            look_ups,
            registrations,
        }
    }

    async fn check_ended(&mut self) {
        let ends = [
            within(self.manifests.message()).await.map(drop),
            within(self.look_ups.message()).await.map(drop),
            within(self.registrations.message()).await.map(drop),
        ];
        for end in ends {
            let status = end.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable);
            assert!(
                status.message().contains("the server is stopping"),
                "{status}"
            );
        }
    }
}

/// A PutPrior whose last chunk is still to come.
struct OpenUpload {
    parts: mpsc::Sender<v1::PutPriorRequest>,
    call: JoinSet<Result<Response<v1::PutPriorResponse>, Status>>,
}

impl OpenUpload {
    // Returns once the server counts the call.
    async fn begin(clients: &Clients, http: std::net::SocketAddr) -> OpenUpload {
        let (parts, receiver) = mpsc::channel(2);
        let header = v1::PutPriorHeader {
            prefix_hash: "open".into(),
            ..Default::default()
        };
        let header = Some(Part::Header(header));
        parts
            .send(v1::PutPriorRequest { part: header })
            .await
            .unwrap();
        let mut routing = clients.routing.clone();
        let mut call = JoinSet::new();
        call.spawn(async move { routing.put_prior(ReceiverStream::new(receiver)).await });
        until(|| {
            let metrics = http_get(http, "/metrics");
            std::future::ready(metrics.contains("\nkvatlas_calls_in_flight 1\n"))
        })
        .await;
        OpenUpload { parts, call }
    }

    async fn finish(mut self) -> Result<Response<v1::PutPriorResponse>, Status> {
        let chunk = Some(Part::Chunk(prior_file("perk.pt").into()));
        // Nobody takes it when the call was cut off.
        let _taken = self.parts.send(v1::PutPriorRequest { part: chunk }).await;
        drop(self.parts);
        within(self.call.join_next()).await.unwrap().unwrap()
    }
}

#[tokio::test]
async fn a_deadline_that_passed_ends_the_call() {
    let server = common::start();
    let mut donors = server.clients.donors.clone();
    let kept = donor("kept", prompt(1, 128));
    within(donors.register_donor(kept)).await.unwrap();
    let raw = RawCalls::connect(&server.server.grpc_addresses()[0].to_string()).await;

    let (status, body) = raw
        .call("Donors/FindDonor", "0m", &lookup(prompt(1, 128)))
        .await;
    assert_eq!(status, None, "a late look-up is a miss, not an error");
    let answer = v1::FindDonorResponse::decode(&body[..]).unwrap();
    assert_eq!(answer.reason(), v1::FallbackReason::ProviderTimeout);

    let late = donor("late", prompt(2, 128));
    let manifest = v1::GetManifestRequest {
        prefix_hash: "any".into(),
        k: 1,
        ..Default::default()
    };
    let removal = v1::RemoveDonorsRequest {
        what: Some(v1::remove_donors_request::What::Owner(
            common::owner("worker").unwrap(),
        )),
    };
    let announcement = v1::AnnounceOwnerRequest {
        owner: common::owner("worker"),
        generation: 2,
        ttl_ms: 0,
    };
    let mode = v1::SetModeRequest {
        mode: v1::Mode::Disabled.into(),
        ..Default::default()
    };
    let header = v1::PutPriorRequest {
        part: Some(Part::Header(v1::PutPriorHeader {
            prefix_hash: "late".into(),
            ..Default::default()
        })),
    };
    for timeout in ["0m", "1n"] {
        raw.check("Routing/GetManifest", timeout, &manifest).await;
        raw.check("Routing/PutPrior", timeout, &header).await;
        raw.check("Donors/RegisterDonor", timeout, &late).await;
        raw.check("Donors/RemoveDonors", timeout, &removal).await;
        raw.check("Donors/AnnounceOwner", timeout, &announcement)
            .await;
        raw.check("Admin/SetMode", timeout, &mode).await;
    }
    // A call that waits ends while it waits.
    raw.check_open("Routing/PutPrior", "100m", &header).await;
    // None of them left a trace.
    let status = server.clients.status().await;
    assert_eq!((status.donors, status.priors), (1, 0));
    assert_eq!(status.mode(), v1::Mode::DiscoveryOnly);
}

/// Calls below the gRPC client, whose own timer would end a call before the server's answer.
struct RawCalls {
    sender: h2::client::SendRequest<Bytes>,
    authority: String,
    _connection: JoinSet<Result<(), h2::Error>>,
}

impl RawCalls {
    async fn connect(authority: &str) -> RawCalls {
        let stream = tokio::net::TcpStream::connect(authority).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        let mut running = JoinSet::new();
        running.spawn(connection);
        RawCalls {
            sender,
            authority: authority.to_owned(),
            _connection: running,
        }
    }

    async fn check(&self, method: &str, timeout: &str, message: &impl Message) {
        let (status, _) = self.call(method, timeout, message).await;
        assert_eq!(
            status,
            Some(Code::DeadlineExceeded),
            "{method} within {timeout}"
        );
    }

    // The caller's side of the stream stays open.
    async fn check_open(&self, method: &str, timeout: &str, message: &impl Message) {
        let (response, _stream) = self.send(method, timeout, message, false).await;
        let response = within(response).await.unwrap();
        let status = status(response.headers());
        assert_eq!(
            status,
            Some(Code::DeadlineExceeded),
            "{method} within {timeout}"
        );
    }

    // The status, none where it is OK, and the first message.
    async fn call(
        &self,
        method: &str,
        timeout: &str,
        message: &impl Message,
    ) -> (Option<Code>, Bytes) {
        let (response, _stream) = self.send(method, timeout, message, true).await;
        let response = within(response).await.unwrap();
        let refused = status(response.headers());
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        while let Some(data) = within(body.data()).await {
            bytes.extend_from_slice(&data.unwrap());
        }
        // One byte of flags and four of length come before a message.
        let message = bytes.get(5..).unwrap_or_default();
        (refused, Bytes::copy_from_slice(message))
    }

    async fn send(
        &self,
        method: &str,
        timeout: &str,
        message: &impl Message,
        is_last: bool,
    ) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
        let request = http::Request::post(format!("http://{}/kvatlas.v1.{method}", self.authority))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", timeout)
            .body(())
            .unwrap();
        let mut sender = within(self.sender.clone().ready()).await.unwrap();
        let (response, mut stream) = sender.send_request(request, false).unwrap();
        let payload = message.encode_to_vec();
        let mut frame = vec![0];
        frame.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
        frame.extend_from_slice(&payload);
        stream.send_data(frame.into(), is_last).unwrap();
        (response, stream)
    }
}

fn status(headers: &http::HeaderMap) -> Option<Code> {
    let status = headers.get("grpc-status")?;
    let code = Code::from_bytes(status.as_bytes());
    (code != Code::Ok).then_some(code)
}
