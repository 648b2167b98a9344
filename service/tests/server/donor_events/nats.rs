//! The same events from a real NATS server: found, across an outage, and without a word of the
//! password.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use async_nats::{Client, ConnectOptions};
use kvatlas_proto::v1::{self, Discovery};
use serde_json::Value;
use tempfile::TempDir;

use super::{TEXT, metric, registered};
use crate::{
    common::{ServerProcess, lookup, prompt, serve_command, until, within},
    tools,
};

const USER: &str = "provider";
const PASSWORD: &str = "S3CRET-PASSWORD";
const SUBJECT: &str = "fleet.donors";

/// A server of its own, killed when dropped.
struct NatsServer {
    child: Child,
    /// HOST:PORT.
    address: String,
}

impl NatsServer {
    /// On the port of an earlier one, or on one that it picks itself.
    async fn start(program: &Path, port: Option<&str>) -> NatsServer {
        let folder = TempDir::new().unwrap();
        let child = Command::new(program)
            .args(["--addr", "127.0.0.1", "--port", port.unwrap_or("-1")])
            .args(["--user", USER, "--pass", PASSWORD])
            .arg("--ports_file_dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = NatsServer {
            child,
            address: String::new(),
        };
        until(|| {
            assert!(server.child.try_wait().unwrap().is_none(), "it ended");
            server.address = address(folder.path()).unwrap_or_default();
            std::future::ready(!server.address.is_empty())
        })
        .await;
        server
    }

    fn port(&self) -> &str {
        self.address.rsplit_once(':').unwrap().1
    }

    async fn client(&self) -> Client {
        let options = ConnectOptions::with_user_and_password(USER.into(), PASSWORD.into());
        within(options.connect(&self.address)).await.unwrap()
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

// What the server wrote once it listened.
fn address(folder: &Path) -> Option<String> {
    let file = fs::read_dir(folder).unwrap().next()?.unwrap();
    let ports: Value = serde_json::from_slice(&fs::read(file.path()).unwrap()).ok()?;
    let url = ports["nats"][0].as_str()?;
    Some(url.trim_start_matches("nats://").to_owned())
}

fn command(folder: &TempDir, nats: &NatsServer) -> (Command, PathBuf) {
    let log = folder.path().join("log");
    let mut command = serve_command(&folder.path().join("data"));
    let source = format!(
        "nats://{USER}:{PASSWORD}@{},subject={SUBJECT}",
        nats.address
    );
    command
        .args(["--log", "trace", "--donor-events", &source])
        .stderr(File::create(&log).unwrap());
    (command, log)
}

// Until it is counted: nothing tells when the subscription has come to the NATS server. What comes
// twice is a duplicate.
async fn publish(server: &ServerProcess, client: &Client, event: &Value, outcome: &str) {
    let name = format!("kvatlas_donor_events_total{{outcome=\"{outcome}\"}}");
    let before = metric(server.http, &name);
    let payload = event.to_string();
    until(async || {
        client
            .publish(SUBJECT, payload.clone().into())
            .await
            .unwrap();
        client.flush().await.unwrap();
        metric(server.http, &name) > before
    })
    .await;
}

#[tokio::test]
async fn events_come_from_nats_also_after_an_outage() {
    let Some(program) = tools::find("nats-server", "KVATLAS_NATS_SERVER") else {
        return;
    };
    let nats = NatsServer::start(&program, None).await;
    let folder = TempDir::new().unwrap();
    let (command, log) = command(&folder, &nats);
    let mut server = ServerProcess::launch(command).await;
    let connected = |expected| {
        let http = server.http;
        until(move || {
            let connected = metric(http, "kvatlas_donor_event_sources_connected");
            std::future::ready(connected == expected)
        })
    };
    connected(1).await;
    assert_eq!(metric(server.http, "kvatlas_donor_event_sources"), 1);
    let event = |event_id| registered(event_id, "d", &[vec![1.0, 2.0]]);
    let client = nats.client().await;
    publish(&server, &client, &event(0), "applied").await;
    publish(&server, &client, &event(1), "applied").await;
    publish(&server, &client, &Value::Null, "refused").await;

    let port = nats.port().to_owned();
    drop(nats);
    connected(0).await;
    let nats = NatsServer::start(&program, Some(&port)).await;
    connected(1).await;
    let client = nats.client().await;
    publish(&server, &client, &event(3), "applied_after_gap").await;

    server.terminate();
    assert_eq!(server.exit_code().await, Some(0));
    let log = fs::read_to_string(log).unwrap();
    for told in [
        "connected for donor events",
        "no connection for donor events",
    ] {
        assert!(log.contains(told), "{told}");
    }
    assert!(!log.contains(PASSWORD));
    assert!(!log.contains("async_nats"), "it may quote messages");
}

#[tokio::test]
async fn a_server_that_starts_before_nats_finds_what_is_announced_there() {
    let Some(program) = tools::find("nats-server", "KVATLAS_NATS_SERVER") else {
        return;
    };
    let Some((model, onnxruntime)) = tools::embedding_model() else {
        return;
    };
    let nats = NatsServer::start(&program, None).await;
    let (folder, port) = (TempDir::new().unwrap(), nats.port().to_owned());
    let (mut command, _) = command(&folder, &nats);
    drop(nats);
    command
        .arg("--text")
        .arg("--embedding-model")
        .arg(&model)
        .arg("--onnxruntime")
        .arg(&onnxruntime);
    let server = ServerProcess::launch(command).await;
    let nats = NatsServer::start(&program, Some(&port)).await;
    let client = nats.client().await;
    // Of the same direction in every element: near enough to any text to be listed.
    let event = registered(0, "announced", &[vec![1.0; 32]]);
    publish(&server, &client, &event, "applied").await;
    let request = v1::FindDonorRequest {
        text: TEXT.into(),
        neighbours_max: 5,
        ..lookup(prompt(3, 64))
    };
    let mut donors = server.clients().donors;
    let answer = within(donors.find_donor(request))
        .await
        .unwrap()
        .into_inner();
    let listed: Vec<_> = answer
        .neighbours
        .iter()
        .map(|it| (it.donor_id.as_str(), it.discovery()))
        .collect();
    assert_eq!(listed, [("announced", Discovery::Announced)]);
}

#[tokio::test]
async fn a_source_that_is_not_understood_ends_the_start_without_being_quoted() {
    for source in [
        "nats://user:S3CRET-PASSWORD@",
        "http://S3CRET-PASSWORD@host",
        "S3CRET-PASSWORD",
        "nats://S3CRET-PASSWORD@host:99999999",
        "nats://user:%FFS3CRET-PASSWORD@host",
        "nats://S3CRET-PASSWORD@host,subject=a..b",
    ] {
        let folder = TempDir::new().unwrap();
        let mut command = serve_command(folder.path());
        let ended = command.args(["--donor-events", source]).output().unwrap();
        let told = String::from_utf8(ended.stderr).unwrap();
        assert!(!ended.status.success(), "{source}");
        assert!(told.contains("--donor-events: "), "{told}");
        assert!(!told.contains(PASSWORD), "{told}");
    }
}
