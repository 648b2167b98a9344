//! Secrets planted in every kind of call, sound and malformed, are in nothing that the process ever
//! wrote but its own records.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use kvatlas_proto::v1;
use prost::Message;
use tempfile::TempDir;
use tonic::Request;

use super::{
    collector::Collector,
    common::{
        self, Clients, donor, http_get, lookup, namespace, prior_file, serve_command, upload,
        within,
    },
};

/// In every prompt, again and again.
const TOKEN: u32 = 3_735_928_559;
/// In every name that a caller may choose, with what tells them apart behind it.
const NAME: &str = "zeppelin-quartz";
const TEXT: &str = "the-vault-opens-at-noon";
/// A tenant key as it is on the wire.
const TENANT: &str = "semblend:tenant:v1:5ec4e75ec4e75ec4e75ec4e75ec4e75e";

/// The real binary, with all that it writes to its outputs in files.
struct Server {
    child: Child,
    clients: Clients,
    http: std::net::SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Server {
    async fn launch(folder: &Path, endpoint: &str) -> Server {
        let (out, err) = (folder.join("stdout"), folder.join("stderr"));
        let mut command = serve_command(&folder.join("data"));
        command
            .args(["--log", "trace", "--otlp-endpoint", endpoint])
            .args(["--trace-ratio", "1", "--audit"])
            .arg(folder.join("audit"))
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap());
        let child = command.spawn().unwrap();
        let mut ready = String::new();
        common::until(|| {
            ready = fs::read_to_string(&out).unwrap();
            std::future::ready(ready.ends_with('\n'))
        })
        .await;
        let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
        Server {
            child,
            clients: Clients::lazy(ready["grpc"][0].as_str().unwrap()),
            http: ready["http"].as_str().unwrap().parse().unwrap(),
        }
    }

    // SIGTERM, and the end.
    async fn stop(&mut self) {
        let told = std::process::Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        assert!(told.unwrap().success());
        common::until(|| {
            let ended = self.child.try_wait().unwrap();
            std::future::ready(ended.is_some_and(|it| it.success()))
        })
        .await;
    }
}

fn name(what: &str) -> String {
    format!("{NAME}-{what}")
}

fn secret_prompt(length: usize) -> Vec<u32> {
    let other = |at: usize| u32::try_from(at).unwrap();
    (0..length)
        .map(|at| if at % 4 < 2 { TOKEN } else { other(at) })
        .collect()
}

fn secret_selector() -> Option<v1::NamespaceSelector> {
    let mut secret = namespace();
    secret.tenant_key = TENANT.into();
    secret.model = name("model");
    common::selector(secret)
}

/// A request with secrets in its metadata, too.
fn secretly<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert("x-request-id", name("header").parse().unwrap());
    metadata.insert("traceparent", name("parent").parse().unwrap());
    metadata.insert("authorization", name("bearer").parse().unwrap());
    request
}

fn secret_lookup(length: usize) -> v1::FindDonorRequest {
    v1::FindDonorRequest {
        namespace: secret_selector(),
        request_id: name("request"),
        holder: name("holder"),
        readable_store_ids: vec![name("store")],
        explain: true,
        neighbours_max: 5,
        text: TEXT.into(),
        ..lookup(secret_prompt(length))
    }
}

fn secret_donor(id: &str, length: usize) -> v1::RegisterDonorRequest {
    v1::RegisterDonorRequest {
        namespace: secret_selector(),
        owner: common::owner(&name("worker")),
        store_id: name("store"),
        source_request_id: name("source"),
        ..donor(&name(id), secret_prompt(length))
    }
}

#[tokio::test]
async fn nothing_that_was_written_tells_what_was_asked() {
    let folder = TempDir::new().unwrap();
    let (collector, endpoint) = Collector::start();
    let mut server = Server::launch(folder.path(), &endpoint).await;
    // On the heap: they are long.
    Box::pin(donors(&server.clients)).await;
    Box::pin(manifests(&server.clients)).await;
    Box::pin(leases_and_reports(&server.clients)).await;
    strangers(&server).await;

    // What a scraper and an operator can get once all of it is recorded.
    common::until(|| {
        let page = http_get(server.http, "/metrics");
        let lines = page
            .lines()
            .find_map(|it| it.strip_prefix("kvatlas_audit_lines_total "));
        let lines: u64 = lines.unwrap().parse().unwrap();
        std::future::ready(lines >= 16)
    })
    .await;
    let metrics = http_get(server.http, "/metrics");
    let window = window(&server.clients).await;
    assert!(window.lines().count() > 16, "{window}");
    server.stop().await;
    let spans = collector
        .requests()
        .into_iter()
        .flat_map(|it| it.encode_to_vec());
    let spans: Vec<u8> = spans.collect();
    assert!(collector.spans().len() > 16, "traces were on");

    check("metrics", metrics.as_bytes());
    check("window", window.as_bytes());
    check("spans", &spans);
    let log = fs::read(folder.path().join("stderr")).unwrap();
    assert!(holds(&log, b"TRACE"), "the log is at trace level");
    check("stderr", &log);
    check("stdout", &fs::read(folder.path().join("stdout")).unwrap());
    check_files(folder.path());
}

// Everything in the folder but the server's own records, where all of it can be found.
fn check_files(folder: &Path) {
    let data = folder.join("data");
    let own: Vec<PathBuf> = ["records", "spilled", "donors"]
        .map(|it| data.join(it))
        .into();
    let mut is_kept = false;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            if own.iter().any(|own| path.starts_with(own)) {
                is_kept |= holds(&bytes, NAME.as_bytes());
            } else {
                check(&path.display().to_string(), &bytes);
            }
        }
    }
    assert!(is_kept, "what is kept can be found");
}

// No secret, in none of the ways that it could be spelled.
fn check(place: &str, bytes: &[u8]) {
    let run: Vec<u8> = TOKEN.to_le_bytes().repeat(2);
    let mut spelled: Vec<Vec<u8>> = vec![
        TOKEN.to_string().into_bytes(),
        format!("{TOKEN:x}").into_bytes(),
        format!("{TOKEN:X}").into_bytes(),
        hex(&run).into_bytes(),
        run.clone(),
        TOKEN.to_be_bytes().repeat(2),
    ];
    for text in [NAME, TEXT, TENANT, &TENANT[19..]] {
        spelled.push(text.as_bytes().to_vec());
        spelled.push(hex(text.as_bytes()).into_bytes());
        spelled.extend(base64_of(text.as_bytes()));
    }
    spelled.extend(base64_of(&run));
    for secret in spelled {
        let shown = String::from_utf8_lossy(&secret).into_owned();
        assert!(!holds(bytes, &secret), "{place}: {shown}");
    }
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// The characters that depend on these bytes alone, wherever they lie within what is encoded.
fn base64_of(bytes: &[u8]) -> Vec<Vec<u8>> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let whole = |bytes: &[u8]| -> Vec<u8> {
        let threes = bytes.chunks_exact(3);
        let digits = threes.flat_map(|three| {
            let bits = three
                .iter()
                .fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte));
            [18, 12, 6, 0].map(|shift| DIGITS[bits >> shift & 63])
        });
        digits.collect()
    };
    (0..3).map(|skipped| whole(&bytes[skipped..])).collect()
}

#[test]
fn a_secret_is_found_however_it_is_spelled() {
    let found = |text: &str| std::panic::catch_unwind(|| check("here", text.as_bytes())).is_err();
    assert!(!found("nothing to see"));
    assert!(found("token 3735928559."));
    assert!(found("efbeaddeefbeadde"));
    // Of "a:" and the tenant's digits, by any other encoder.
    assert!(found("YTo1ZWM0ZTc1ZWM0ZTc1ZWM0ZTc1ZWM0ZTc1ZWM0ZTc1ZQ=="));
    assert!(found("the-vault-opens-at-noon!"));
}

async fn donors(clients: &Clients) {
    let Clients {
        mut donors,
        mut admin,
        ..
    } = clients.clone();
    let announce = v1::AnnounceOwnerRequest {
        owner: common::owner(&name("worker")),
        generation: 1,
        ttl_ms: 60_000,
    };
    within(donors.announce_owner(announce)).await.unwrap();
    let materialize = v1::SetModeRequest {
        namespace: None,
        mode: v1::Mode::Materialize.into(),
        gates: None,
    };
    within(admin.set_mode(materialize)).await.unwrap();
    for (id, length) in [("donor", 128), ("long", 40_000)] {
        within(donors.register_donor(secretly(secret_donor(id, length))))
            .await
            .unwrap();
    }
    let stream = v1::RegisterDonorsRequest {
        correlation_id: 1,
        request: Some(secret_donor("streamed", 256)),
    };
    let answers = donors.register_donors(tokio_stream::iter([stream]));
    drain(within(answers).await.unwrap().into_inner()).await;
    // A hit with a lease, a long one, a miss, a malformed one, and one of an incomplete namespace.
    let mut miss = secret_lookup(64);
    miss.tokens = common::tokens(secret_prompt(64).into_iter().rev().collect());
    let mut nowhere = secret_lookup(128);
    nowhere.namespace = None;
    for asked in [secret_lookup(128), secret_lookup(40_000), miss, nowhere] {
        within(donors.find_donor(secretly(asked))).await.unwrap();
    }
    let mut malformed = secret_lookup(128);
    malformed.exact_prefix_tokens = 129;
    let mut too_long = secret_lookup(128);
    too_long.request_id = name(&"long".repeat(100));
    for asked in [malformed, too_long, secret_lookup(0)] {
        within(donors.find_donor(secretly(asked)))
            .await
            .unwrap_err();
    }
    let stream = [secret_lookup(128), secret_lookup(0)].map(|request| v1::FindDonorsRequest {
        correlation_id: 2,
        request: Some(request),
    });
    let answers = donors.find_donors(secretly(tokio_stream::iter(stream)));
    drain(within(answers).await.unwrap().into_inner()).await;
    let mut unsound = secret_donor("unsound", 16);
    unsound.captured_tokens = 17;
    within(donors.register_donor(unsound)).await.unwrap_err();
}

async fn manifests(clients: &Clients) {
    let mut routing = clients.routing.clone();
    let header = v1::PutPriorHeader {
        prefix_hash: name("prefix"),
        algorithm: name("algorithm"),
        ..Default::default()
    };
    let parts = upload(header, &prior_file("perk.pt"));
    within(routing.put_prior(tokio_stream::iter(parts)))
        .await
        .unwrap();
    let broken = v1::PutPriorHeader {
        prefix_hash: name("broken"),
        ..Default::default()
    };
    let parts = upload(broken, TEXT.as_bytes());
    within(routing.put_prior(tokio_stream::iter(parts)))
        .await
        .unwrap_err();
    let asked = |prefix: &str, policy: &str| v1::GetManifestRequest {
        prefix_hash: name(prefix),
        query_hash: name("query"),
        policy: policy.into(),
        k: 4,
        ..Default::default()
    };
    let long = "prefix".repeat(100);
    for asked in [
        asked("prefix", "top-k"),
        asked("prefix", &name("policy")),
        asked("unknown", "top-k"),
        asked(&long, "top-k"),
    ] {
        // Some are refused.
        let _given = within(routing.get_manifest(secretly(asked))).await;
    }
    let stream =
        [asked("prefix", ""), asked("unknown", "")].map(|request| v1::GetManifestsRequest {
            correlation_id: 3,
            request: Some(request),
        });
    let answers = routing.get_manifests(secretly(tokio_stream::iter(stream)));
    drain(within(answers).await.unwrap().into_inner()).await;
    let key = Some(v1::PriorKey {
        prefix_hash: name("unknown"),
        ..Default::default()
    });
    within(routing.get_prior(v1::GetPriorRequest { key: key.clone() }))
        .await
        .unwrap_err();
    within(routing.delete_prior(v1::DeletePriorRequest { key }))
        .await
        .unwrap_err();
    let query = v1::PutQueryRequest {
        query_hash: name("query"),
        ..Default::default()
    };
    // Without a query it is refused.
    let _put = within(routing.put_query(query)).await;
}

async fn leases_and_reports(clients: &Clients) {
    let Clients {
        mut leases,
        mut donors,
        mut admin,
        ..
    } = clients.clone();
    let lease_id = name("lease").into_bytes();
    let validate = v1::ValidateRequest {
        lease_id: lease_id.clone().into(),
        ..Default::default()
    };
    // Nobody gave such a lease: answered or refused, as it may be.
    let _state = within(leases.validate(validate)).await;
    let report = |provenance| v1::ReportReuseRequest {
        request_id: name("request"),
        holder: name("holder"),
        provenance,
        reason: 14,
        tokens_loaded: 64,
        invalid_blocks: 1,
        ..Default::default()
    };
    within(donors.report_reuse(secretly(report(2))))
        .await
        .unwrap();
    within(donors.report_reuse(secretly(report(77))))
        .await
        .unwrap_err();
    let mut named = report(3);
    named.lease_id = lease_id.into();
    // As above.
    let _reported = within(donors.report_reuse(named)).await;
    let nowhere = v1::ListNamespacesRequest {
        page_size: 0,
        page_token: name("page"),
    };
    within(admin.list_namespaces(nowhere)).await.unwrap_err();
    let source = v1::AddEventSourceRequest {
        source: name("source"),
        namespace: None,
    };
    within(admin.add_event_source(source)).await.unwrap_err();
}

// What no method and no page is there for.
async fn strangers(server: &Server) {
    let path = format!("/{NAME}.Service/{NAME}").parse().unwrap();
    let mut grpc = tonic::client::Grpc::new(server.clients.channel.clone());
    within(grpc.ready()).await.unwrap();
    let codec = tonic_prost::ProstCodec::<v1::GetStatusRequest, v1::GetStatusResponse>::default();
    let request = secretly(v1::GetStatusRequest {});
    within(grpc.unary(request, path, codec)).await.unwrap_err();
    let page = http_get(server.http, &format!("/{NAME}?{TEXT}"));
    assert!(page.starts_with("HTTP/1.1 404"), "{page}");
}

async fn drain<T>(mut answers: tonic::Streaming<T>) {
    while within(answers.message()).await.unwrap().is_some() {}
}

async fn window(clients: &Clients) -> String {
    let mut admin = clients.admin.clone();
    let request = v1::ReadWindowRequest::default();
    let mut pages = within(admin.read_window(request))
        .await
        .unwrap()
        .into_inner();
    let mut text = String::new();
    while let Some(page) = within(pages.message()).await.unwrap() {
        for line in page.lines {
            text += &line;
            text.push('\n');
        }
    }
    text
}
