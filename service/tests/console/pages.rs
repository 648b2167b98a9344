//! What the HTTP port sends: pages that fetch nothing elsewhere, events, block maps, and no more
//! clients than it has places for.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
};

use kvatlas::telemetry::console::hub::CLIENTS_MAX;
use kvatlas_proto::v1;
use serde_json::Value;

use crate::common::{self, InProcess, PATIENCE, http_get, prior_file, until, upload, within};

/// A server with one prior of 306 blocks and 4 heads.
pub(crate) async fn with_prior(prefix_hash: &str) -> InProcess {
    let server = common::start();
    put_prior(&server, prefix_hash).await;
    server
}

pub(crate) async fn put_prior(server: &InProcess, prefix_hash: &str) {
    let header = v1::PutPriorHeader {
        prefix_hash: prefix_hash.into(),
        algorithm: "kri-a".into(),
        ..Default::default()
    };
    let mut routing = server.clients.routing.clone();
    let messages = upload(header, &prior_file("aff_float32.pt"));
    within(routing.put_prior(tokio_stream::iter(messages)))
        .await
        .unwrap();
}

fn split(answer: &str) -> (&str, &str) {
    answer.split_once("\r\n\r\n").unwrap()
}

// One open stream of events, and its status line.
fn watch(address: SocketAddr) -> (BufReader<TcpStream>, String) {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut status = String::new();
    reader.read_line(&mut status).unwrap();
    (reader, status)
}

// The next event.
fn event(stream: &mut impl BufRead) -> Value {
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended");
    }
    serde_json::from_str(line.trim_start_matches("data: ")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_fetch_nothing_elsewhere_and_run_nothing_inline() {
    let server = common::start();
    let address = server.server.http_address();
    for (path, kind) in [
        ("/", "text/html"),
        ("/console.js", "text/javascript"),
        ("/console.css", "text/css"),
    ] {
        let answer = http_get(address, path);
        let (head, body) = split(&answer);
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        let head = head.to_ascii_lowercase();
        assert!(
            head.contains(&format!("content-type: {kind}")),
            "{path}: {head}"
        );
        assert!(
            head.contains("x-content-type-options: nosniff"),
            "{path}: {head}"
        );
        let policy = head.split("content-security-policy: ").nth(1).unwrap();
        let policy = policy.lines().next().unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        for word in [
            "https://",
            " style=",
            " onclick=",
            " onerror=",
            "<style",
            "@import",
        ] {
            assert!(!body.contains(word), "{path}: {word}");
        }
        // The name of a namespace, which nobody fetches.
        let addresses = body.replace("http://www.w3.org/2000/svg", "");
        assert!(!addresses.contains("http://"), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_event_is_whole_and_the_next_ones_are_what_changed() {
    let server = with_prior("c1").await;
    let (mut stream, status) = watch(server.server.http_address());
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    let first = event(&mut stream);
    let sections = first["sections"].as_object().unwrap();
    for id in [
        "server", "now", "pulse", "holds", "workers", "priors", "window", "verdict",
    ] {
        assert!(sections.contains_key(id), "{id}");
    }
    for (id, html) in sections {
        let (_, below) = html
            .as_str()
            .unwrap()
            .rsplit_once("</h2>")
            .unwrap_or(("", "it"));
        assert!(!below.is_empty(), "{id} has nothing but its heading");
    }
    assert!(
        sections["priors"]
            .as_str()
            .unwrap()
            .contains("data-prefix=\"c1\"")
    );
    put_prior(&server, "c2").await;
    let mut priors = None;
    while priors.is_none() {
        let next = event(&mut stream);
        let sections = next["sections"].as_object().unwrap();
        assert!(!sections.contains_key("verdict"), "nothing was looked up");
        priors = sections.get("priors").cloned();
    }
    assert!(
        priors
            .unwrap()
            .as_str()
            .unwrap()
            .contains("data-prefix=\"c2\"")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_so_many_places_and_who_goes_gives_one_back() {
    let server = common::start();
    let address = server.server.http_address();
    let mut watching = Vec::new();
    for _ in 0..CLIENTS_MAX {
        let (mut stream, status) = watch(address);
        assert!(status.starts_with("HTTP/1.1 200"), "{status}");
        event(&mut stream);
        watching.push(stream);
    }
    let (_, status) = watch(address);
    assert!(status.starts_with("HTTP/1.1 503"), "{status}");
    drop(watching);
    until(|| std::future::ready(watch(address).1.starts_with("HTTP/1.1 200"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_server_ends_the_streams() {
    let server = common::start();
    let (mut stream, _) = watch(server.server.http_address());
    event(&mut stream);
    drop(server);
    let mut rest = Vec::new();
    // Ended or reset, but not left open.
    let _ended = stream.read_to_end(&mut rest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_map_is_what_a_manifest_picks() {
    let server = with_prior("c 1&<2>").await;
    let address = server.server.http_address();
    let ask = |query: &str| {
        let answer = http_get(address, &format!("/manifest?{query}"));
        let (head, body) = split(&answer);
        let status: u16 = head[9..12].parse().unwrap();
        (status, serde_json::from_str::<Value>(body).unwrap())
    };
    let prefix = "prefix=c+1%26%3C2%3E";
    for (policy, k) in [
        ("", 8),
        ("top-k", 8),
        ("A1R2K13", 0),
        ("recency", 5),
        ("per-head", 4),
    ] {
        let (status, map) = ask(&format!("{prefix}&k={k}&policy={policy}"));
        assert_eq!(status, 200, "{policy}: {map}");
        let mut routing = server.clients.routing.clone();
        let manifest = within(routing.get_manifest(v1::GetManifestRequest {
            prefix_hash: "c 1&<2>".into(),
            k,
            policy: policy.into(),
            ..Default::default()
        }))
        .await
        .unwrap()
        .into_inner();
        assert_eq!(map["total_blocks"], manifest.total_blocks);
        assert_eq!(map["policy"], manifest.policy.as_str());
        let picked: Vec<u32> = serde_json::from_value(map["blocks"].clone()).unwrap();
        let counts: Vec<u32> = serde_json::from_value(map["heads_of"].clone()).unwrap();
        let Some(heads) = manifest.per_head else {
            assert_eq!(picked, manifest.block_indices, "{policy}");
            assert_eq!(map["heads"], 0);
            continue;
        };
        for (block, count) in picked.iter().zip(&counts) {
            let of = heads.block_indices.iter().filter(|it| *it == block).count();
            assert_eq!(of, *count as usize, "{block}");
        }
        assert_eq!(
            counts.iter().sum::<u32>() as usize,
            heads.block_indices.len()
        );
    }
    for (query, expected) in [
        ("prefix=unknown&k=4", 404),
        ("k=4", 400),
        ("prefix=unknown&k=-1", 400),
        ("prefix=unknown&k=4&colour=red", 400),
        (&format!("{prefix}&k=4&policy=nonsense"), 400),
    ] {
        let (status, answer) = ask(query);
        assert_eq!(status, expected, "{query}: {answer}");
        assert!(
            answer["error"].as_str().is_some_and(|it| !it.is_empty()),
            "{query}"
        );
    }
}
