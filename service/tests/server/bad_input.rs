//! Every limit of every call: the refusal names the field and the limit, and no value that was
//! sent turns up in a message, a log, a metric or a file.

mod cases;

use std::{fs::File, path::Path};

use kvatlas_proto::v1::{self, put_prior_request::Part};
use tempfile::TempDir;
use tonic::{Code, Status};

use self::cases::{Call, Case, donors, namespaces, operators, routing};
use crate::{
    common::{
        self, Clients, ServerProcess, donor, http_get, lookup, namespace, prior_file, prompt,
        selector, serve_command, upload, within,
    },
    donor_events::publish_secrets,
};

/// Begins every string that the cases send.
const SECRET: &str = "SECRET-STRING";
/// Begins every prompt text: nothing keeps it at all.
const SECRET_TEXT: &str = "SECRET-TEXT";
/// In every prompt.
const SECRET_TOKEN: u32 = 3_735_928_559;
const PRIOR_BYTES_MAX: usize = 4 << 20;

/// A string of `length` bytes that must not come back.
fn secret(length: usize) -> String {
    SECRET.chars().cycle().take(length).collect()
}

#[tokio::test]
async fn refusals_name_the_field_and_the_limit_and_nothing_that_was_sent() {
    let folder = TempDir::new().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let mut command = serve_command(&data);
    command.args(["--log", "trace"]);
    command.args(["--prior-bytes-max", &PRIOR_BYTES_MAX.to_string()]);
    command.stderr(File::create(&log).unwrap());
    let mut server = ServerProcess::launch(command).await;
    let clients = server.clients();

    // Something to find: a prior and a donor under secret names, and a donor too long for a record.
    let put = put_prior(&clients, upload(routing::header(), &prior_file("perk.pt"))).await;
    put.unwrap();
    for length in [64, 40_000] {
        let mut kept = donors::registration();
        kept.tokens = common::tokens(secret_prompt(length));
        kept.captured_tokens = u32::try_from(length).unwrap();
        kept.donor_id = secret(200 + length % 50);
        within(clients.donors.clone().register_donor(kept))
            .await
            .unwrap();
    }
    for case in cases::all() {
        check(&clients, case).await;
    }
    publish_secrets(&clients, &secret(32)).await;
    for (name, parts, field) in bad_uploads() {
        let status = put_prior(&clients, parts).await.unwrap_err();
        check_refusal(name, &status, Code::InvalidArgument, &[field]);
    }

    let metrics = http_get(server.http, "/metrics");
    server.terminate();
    assert_eq!(server.exit_code().await, Some(0));
    let log = std::fs::read(log).unwrap();
    assert!(holds(&log, "TRACE"), "the log is at trace level");
    for found in [
        SECRET,
        SECRET_TEXT,
        &SECRET_TOKEN.to_string(),
        &format!("{SECRET_TOKEN:x}"),
    ] {
        assert!(!holds(metrics.as_bytes(), found), "metrics: {found}");
        assert!(!holds(&log, found), "log: {found}");
    }
    check_files(&data);
}

// Names are kept in the records alone, and texts nowhere.
fn check_files(data: &Path) {
    let mut is_kept = false;
    let mut folders = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            assert!(!holds(&bytes, SECRET_TEXT), "{}", path.display());
            let is_of_records = ["records", "spilled", "donors"]
                .iter()
                .any(|folder| path.starts_with(data.join(folder)));
            is_kept |= is_of_records && holds(&bytes, SECRET);
            assert!(
                is_of_records || !holds(&bytes, SECRET),
                "{}",
                path.display()
            );
        }
    }
    assert!(is_kept, "what is kept can be found");
}

async fn check(clients: &Clients, case: Case) {
    let Case {
        name,
        call,
        code,
        words,
    } = case;
    let Err(status) = call.send(clients).await else {
        panic!("{name}: not refused");
    };
    check_refusal(name, &status, code, &words);
}

fn check_refusal(name: &str, status: &Status, code: Code, words: &[&str]) {
    let message = status.message();
    assert_eq!(status.code(), code, "{name}: {message}");
    for word in words {
        assert!(message.contains(word), "{name}: no {word:?} in {message:?}");
    }
    for found in [SECRET, SECRET_TEXT, &SECRET_TOKEN.to_string()] {
        assert!(!message.contains(found), "{name}: {message}");
        assert!(!holds(status.details(), found), "{name}");
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

fn secret_prompt(length: usize) -> Vec<u32> {
    let mut tokens = prompt(7, length);
    tokens[0] = SECRET_TOKEN;
    tokens
}

async fn put_prior(clients: &Clients, parts: Vec<v1::PutPriorRequest>) -> Result<(), Status> {
    let mut routing = clients.routing.clone();
    let put = routing.put_prior(tokio_stream::iter(parts));
    within(put).await.map(drop)
}

fn bad_uploads() -> Vec<(&'static str, Vec<v1::PutPriorRequest>, &'static str)> {
    let file = prior_file("perk.pt");
    let header = || part(Part::Header(routing::header()));
    let chunk = |bytes: &[u8]| part(Part::Chunk(bytes.to_vec().into()));
    let sized = |size_bytes| {
        part(Part::Header(v1::PutPriorHeader {
            size_bytes,
            ..routing::header()
        }))
    };
    let as_safetensors = part(Part::Header(v1::PutPriorHeader {
        format: v1::PriorFormat::Safetensors.into(),
        ..routing::header()
    }));
    let nothing = v1::PutPriorRequest { part: None };
    let mebibyte = vec![0; 1 << 20];
    let mut too_much = vec![header()];
    too_much.extend((0..=PRIOR_BYTES_MAX >> 20).map(|_| chunk(&mebibyte)));
    let evil = upload(routing::header(), &prior_file("evil.pt"));
    let noise = secret(4096).into_bytes();
    vec![
        ("no message", vec![], "header"),
        ("no header", vec![chunk(&file)], "header"),
        ("an empty first message", vec![nothing.clone()], "header"),
        ("two headers", vec![header(), header()], "header"),
        ("header alone", vec![header()], "chunk"),
        ("an empty message", vec![header(), nothing], "chunk"),
        ("an empty chunk", vec![header(), chunk(&[])], "1048576"),
        (
            "a chunk too long",
            vec![header(), chunk(&vec![0; (1 << 20) + 1])],
            "1048576",
        ),
        ("too long a file", too_much, "4194304"),
        (
            "fewer bytes than said",
            vec![sized(1000), chunk(&file)],
            "size_bytes: 1000",
        ),
        (
            "more bytes than said",
            vec![sized(10), chunk(&file)],
            "size_bytes: 10",
        ),
        ("no prior", vec![header(), chunk(&noise)], "the file"),
        (
            "the other format",
            vec![as_safetensors, chunk(&file)],
            "the file",
        ),
        (
            "half a prior",
            vec![header(), chunk(&file[..file.len() / 2])],
            "the file",
        ),
        ("code to run", evil, "posix.system"),
    ]
}

fn part(part: Part) -> v1::PutPriorRequest {
    v1::PutPriorRequest { part: Some(part) }
}

#[tokio::test]
async fn the_largest_values_are_served() {
    let server = common::start();
    let clients = &server.clients;
    let header = v1::PutPriorHeader {
        prefix_hash: secret(512),
        query_hash: secret(512),
        algorithm: secret(128),
        repair: Some(v1::Repair {
            name: secret(64),
            ratio: 1.0,
        }),
        size_bytes: prior_file("aff_float16.pt").len() as u64,
        ..Default::default()
    };
    put_prior(clients, upload(header, &prior_file("aff_float16.pt")))
        .await
        .unwrap();
    let mut whole = namespace();
    for (_, field) in namespaces::NAMESPACE_STRINGS {
        *field(&mut whole) = secret(512);
    }
    whole.tenant_key = format!("semblend:tenant:v1:{}", "0f".repeat(16));
    whole.block_size = 4096;
    whole.tensor_parallel_size = 65_536;
    whole.pipeline_parallel_size = 65_536;
    whole.multimodal_hashes = vec![secret(128); 64];
    let mut kept = donor(&secret(256), prompt(1, 8192));
    kept.namespace = selector(whole.clone());
    kept.owner = common::owner(&secret(256));
    kept.store_id = secret(256);
    kept.source_request_id = secret(256);
    let mut asked = lookup(prompt(1, 8192));
    asked.namespace = selector(whole.clone());
    asked.request_id = secret(255);
    asked.holder = secret(256);
    asked.readable_store_ids = vec![secret(256); 64];
    asked.lease_ttl_ms = 600_000;
    asked.minimum_tier = v1::Tier::Semantic.into();
    let mut longest = lookup(prompt(1, 1 << 20));
    longest.namespace = selector(whole.clone());
    let manifest = v1::GetManifestRequest {
        prefix_hash: secret(512),
        query_hash: secret(512),
        algorithm: secret(128),
        k: 1 << 20,
        lease_ttl_ms: 600_000,
        ..Default::default()
    };
    for (name, call) in [
        ("RegisterDonor", Call::Register(kept.clone())),
        ("FindDonor", Call::Find(asked)),
        ("FindDonor, 1048576 tokens", Call::Find(longest)),
        ("GetManifest", Call::Manifest(manifest)),
        (
            "AnnounceOwner",
            donors::announce(|it| it.ttl_ms = 3_600_000),
        ),
        (
            "AnnounceOwner, briefly",
            donors::announce(|it| it.ttl_ms = 1000),
        ),
        ("ListPriors", routing::list(|it| it.page_size = 1000)),
        ("RemoveDonors", donors::remove_ids(vec![secret(256); 1000])),
    ] {
        if let Err(status) = call.send(clients).await {
            panic!("{name}: {status}");
        }
    }
}

#[tokio::test]
async fn an_empty_namespace_field_is_a_miss_for_a_look_up() {
    let server = common::start();
    let mut donors = server.clients.donors.clone();
    for (field, namespace) in namespaces::incomplete_namespaces() {
        let mut asked = lookup(prompt(1, 64));
        asked.namespace = namespace;
        let answer = within(donors.find_donor(asked)).await.unwrap().into_inner();
        assert_eq!(answer.outcome(), v1::FindOutcome::Miss, "{field}");
        let reason = answer.reason();
        assert_eq!(reason, v1::FallbackReason::NamespaceMismatch, "{field}");
        assert_eq!(answer.detail, format!("{field} is empty"));
        assert_eq!(answer.namespace_id, "");
    }
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_by_every_service() {
    let server = common::start_with(|args| args.message_bytes_max = 8192);
    let long = || secret(10_000);
    for call in [
        routing::manifest(|it| it.prefix_hash = long()),
        donors::find(|it| it.text = long()),
        operators::validate(|it| it.holder = long()),
        operators::list_namespaces(|it| it.page_token = long()),
    ] {
        let status = call.send(&server.clients).await.unwrap_err();
        // The code is the transport's.
        check_refusal("long", &status, Code::OutOfRange, &["8192"]);
    }
}
