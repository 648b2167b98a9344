//! The file of sources, read at the start and at every SIGHUP.

use std::{fs, path::Path};

use tempfile::TempDir;

use crate::{
    common::{self, ServerProcess, http_get, until},
    engine::{Engine, Reply},
    events::harness::{Harness, address, question},
    payloads::{batch, stored},
};

const TOKEN: u32 = 1000;

/// As `kvatlas donor namespace-template` spells it.
fn namespace_file(folder: &Path) -> String {
    let namespace = common::namespace();
    let json = serde_json::json!({
        "model": namespace.model,
        "model_revision": namespace.model_revision,
        "tokenizer": namespace.tokenizer,
        "tokenizer_revision": namespace.tokenizer_revision,
        "tokenization": namespace.tokenization,
        "chat_template": namespace.chat_template,
        "dtype": namespace.dtype,
        "kv_cache_dtype": namespace.kv_cache_dtype,
        "block_size": namespace.block_size,
        "kv_layout": namespace.kv_layout,
        "attention_backend": namespace.attention_backend,
        "tensor_parallel_size": namespace.tensor_parallel_size,
        "pipeline_parallel_size": namespace.pipeline_parallel_size,
        "adapter": namespace.adapter,
        "rope_scaling": namespace.rope_scaling,
    });
    let path = folder.join("namespace.json");
    fs::write(&path, json.to_string()).unwrap();
    path.display().to_string()
}

async fn workers(harness: &mut Harness) -> Vec<String> {
    let sources = harness.sources().await;
    sources.into_iter().map(|source| source.worker_id).collect()
}

async fn until_workers(harness: &mut Harness, wanted: &[&str]) {
    let admin = harness.admin.clone();
    until(|| {
        let mut admin = admin.clone();
        async move {
            let listed = admin.list_event_sources(kvatlas_proto::v1::ListEventSourcesRequest {});
            let sources = listed.await.unwrap().into_inner().sources;
            sources.iter().map(|source| &source.worker_id).eq(wanted)
        }
    })
    .await;
}

#[tokio::test]
async fn a_file_is_read_again_on_sighup_and_a_bad_one_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let (one, two) = (
        Engine::start(100, Reply::FourFrames).await,
        Engine::start(100, Reply::FourFrames).await,
    );
    let namespace = namespace_file(folder.path());
    let line = |engine: &Engine, worker| {
        format!("{},namespace={namespace}\n", address(engine, worker, true))
    };
    let path = folder.path().join("engines");
    fs::write(&path, format!("# the fleet\n\n{}", line(&one, "one"))).unwrap();
    let mut command = common::serve_command(&folder.path().join("data"));
    command.arg("--kv-events-file").arg(&path);
    let server = ServerProcess::launch(command).await;
    let mut harness = Harness::on(&server.clients());
    assert_eq!(workers(&mut harness).await, ["one"]);

    fs::write(&path, format!("{}tcp://nowhere\n", line(&two, "two"))).unwrap();
    server.hang_up();
    let refused = "\nkvatlas_event_files_refused 1\n";
    until(|| std::future::ready(http_get(server.http, "/metrics").contains(refused))).await;
    assert_eq!(workers(&mut harness).await, ["one"]);

    fs::write(&path, line(&two, "two")).unwrap();
    server.hang_up();
    until_workers(&mut harness, &["two"]).await;
    let mut two = two;
    two.publish(&batch(&[stored(&[1, 2], None, TOKEN)])).await;
    harness.settle("two", &two, 1).await;
    let answer = harness.find(question(TOKEN..TOKEN + 32)).await;
    let rows: Vec<_> = answer.workers.iter().map(|row| row.device_blocks).collect();
    assert_eq!(rows, [2]);
}

#[tokio::test]
async fn a_server_does_not_start_on_a_bad_source() {
    let folder = TempDir::new().unwrap();
    let bad = folder.path().join("engines");
    fs::write(&bad, "\ntcp://a:1,rank=x\n").unwrap();
    let twice = folder.path().join("twice");
    fs::write(&twice, "tcp://a:1,worker=w\n\ntcp://a:2,worker=w\n").unwrap();
    let secret = folder.path().join("namespace.json");
    fs::write(&secret, r#"{"cache_salt": "planted-salt", "model": 3}"#).unwrap();
    let named = format!("tcp://a:1,namespace={}", secret.display());
    for (flag, value, says) in [
        (
            "--kv-events-file",
            bad.display().to_string(),
            "line 2: rank: not a number",
        ),
        (
            "--kv-events-file",
            "/nowhere".to_owned(),
            "--kv-events-file: /nowhere: ",
        ),
        (
            "--kv-events-file",
            twice.display().to_string(),
            "line 3: rank 0 of that worker is on line 1 too",
        ),
        (
            "--kv-events",
            "tcp://a:1,worker=w;tcp://a:2,worker=w".to_owned(),
            "--kv-events: worker w: source: rank 0 of that worker",
        ),
        (
            "--kv-events",
            named,
            "is not a namespace file: line 1, column",
        ),
        ("--kv-events", "tcp://a".to_owned(), "events: an address is"),
    ] {
        let mut command = common::serve_command(&folder.path().join("data"));
        let output = command.arg(flag).arg(value).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && told.contains(says), "{told}");
        assert!(told.matches("/nowhere").count() < 2, "{told}");
        assert!(!told.contains("planted-salt"), "{told}");
    }
}
