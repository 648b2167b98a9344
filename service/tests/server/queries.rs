//! Queries that are put to be used later: what is kept, what is refused, and when it is full.

use bytes::Bytes;
use kvatlas_proto::v1;
use tonic::{Code, Status};

use crate::common::{Clients, start, start_with, within};

const LAYERS: usize = 2;
const HEADS: usize = 4;
const HEAD_DIM: usize = 8;

fn numbers(count: usize, number: f32) -> Bytes {
    number.to_le_bytes().repeat(count).into()
}

/// Vectors and statistics of two layers.
fn query() -> v1::QueryVectors {
    let bands = LAYERS * HEADS * HEAD_DIM / 2;
    v1::QueryVectors {
        frame: v1::RopeFrame::PostRope.into(),
        element_type: v1::ElementType::F32.into(),
        layer_ids: vec![0, 7],
        heads: 4,
        head_dim: 8,
        vectors: numbers(LAYERS * HEADS * HEAD_DIM, 0.5),
        position: 4096,
        mean_real: numbers(bands, 0.6),
        mean_imaginary: numbers(bands, -0.8),
        mean_absolute: numbers(bands, 1.5),
        pair_layout: v1::PairLayout::Half.into(),
        ..v1::QueryVectors::default()
    }
}

fn request(query_hash: &str, query: v1::QueryVectors) -> v1::PutQueryRequest {
    v1::PutQueryRequest {
        query_hash: query_hash.to_owned(),
        query: Some(query),
        ttl_ms: 0,
    }
}

async fn put(clients: &Clients, request: v1::PutQueryRequest) -> Result<u64, Status> {
    let mut routing = clients.routing.clone();
    let answer = within(routing.put_query(request)).await?;
    Ok(answer.into_inner().expires_unix_ms)
}

#[tokio::test]
async fn a_query_is_kept_as_long_as_asked_for_or_as_the_server_says() {
    let server = start_with(|args| args.query_ttl_ms = 7_000);
    let clients = &server.clients;
    let default = put(clients, request("q", query())).await.unwrap();
    let longest = v1::PutQueryRequest {
        ttl_ms: 3_600_000,
        ..request("q", query())
    };
    let longest = put(clients, longest).await.unwrap();
    // The two calls were not a minute apart.
    let apart = longest - default;
    assert!((3_593_000..3_653_000).contains(&apart), "{apart}");
    // Either part is enough.
    let mut vectors = query();
    vectors.mean_real.clear();
    vectors.mean_imaginary.clear();
    vectors.mean_absolute.clear();
    put(clients, request("v", vectors)).await.unwrap();
    let mut statistics = query();
    statistics.vectors.clear();
    (statistics.frame, statistics.element_type) = (0, 0);
    put(clients, request("s", statistics)).await.unwrap();
}

#[tokio::test]
async fn a_full_server_refuses_one_more_but_replaces() {
    let server = start_with(|args| args.queries_max = 2);
    let clients = &server.clients;
    for query_hash in ["a", "b", "a"] {
        put(clients, request(query_hash, query())).await.unwrap();
    }
    let status = put(clients, request("c", query())).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "2 queries are kept, no more are taken");

    let server = start_with(|args| args.query_bytes_max = 2_000);
    let clients = &server.clients;
    put(clients, request("a", query())).await.unwrap();
    let status = put(clients, request("b", query())).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("at most 2000"), "{status}");
}

#[tokio::test]
async fn what_cannot_be_a_query_is_refused_by_field_and_limit() {
    let server = start();
    for (change, message) in refusals() {
        let mut bad = query();
        change(&mut bad);
        check(&server.clients, request("q", bad), message).await;
    }
    let long = v1::PutQueryRequest {
        ttl_ms: 3_600_001,
        ..request("q", query())
    };
    let message = "ttl_ms: 3600001 ms, at most 3600000";
    check(&server.clients, long, message).await;
    let empty = v1::PutQueryRequest {
        query: None,
        ..request("q", query())
    };
    check(&server.clients, empty, "query: must be given").await;
    for (query_hash, message) in [
        (
            String::new(),
            "query_hash: must not be empty, 1 to 512 bytes",
        ),
        ("q".repeat(513), "query_hash: 513 bytes, at most 512"),
    ] {
        check(&server.clients, request(&query_hash, query()), message).await;
    }
}

async fn check(clients: &Clients, request: v1::PutQueryRequest, message: &str) {
    let status = put(clients, request).await.expect_err(message);
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert_eq!(status.message(), message);
}

type Change = fn(&mut v1::QueryVectors);

fn refusals() -> Vec<(Change, &'static str)> {
    let mut all = bad_shapes();
    all.extend(bad_arrays());
    all
}

fn bad_shapes() -> Vec<(Change, &'static str)> {
    vec![
        (|q| q.frame = 0, "query.frame: must be given"),
        (|q| q.frame = 3, "query.frame: 3 is not a frame"),
        (
            |q| q.element_type = 0,
            "query.element_type: must be given with vectors",
        ),
        (
            |q| q.element_type = 9,
            "query.element_type: 9 is not an element type",
        ),
        (
            |q| q.pair_layout = 3,
            "query.pair_layout: 3 is not a layout",
        ),
        (
            |q| q.layer_ids.clear(),
            "query.layer_ids: 0 layers, must be 1 to 512",
        ),
        (
            |q| q.layer_ids = (0..513).collect(),
            "query.layer_ids: 513 layers, must be 1 to 512",
        ),
        (
            |q| q.layer_ids = vec![7, 0],
            "query.layer_ids: must be ascending, none twice",
        ),
        (
            |q| q.layer_ids = vec![7, 7],
            "query.layer_ids: must be ascending, none twice",
        ),
        (|q| q.heads = 0, "query.heads: 0, must be 1 to 1024"),
        (|q| q.heads = 1025, "query.heads: 1025, must be 1 to 1024"),
        (
            |q| q.head_dim = 0,
            "query.head_dim: 0, must be even, 2 to 1024",
        ),
        (
            |q| q.head_dim = 7,
            "query.head_dim: 7, must be even, 2 to 1024",
        ),
        (
            |q| q.head_dim = 1026,
            "query.head_dim: 1026, must be even, 2 to 1024",
        ),
        (
            |q| q.position = (1 << 31) + 1,
            "query.position: 2147483649, at most 2147483648",
        ),
    ]
}

fn bad_arrays() -> Vec<(Change, &'static str)> {
    const ELEMENTS: &str =
        "query.vectors: every element must be finite, of a magnitude of at most 1000000000000000";
    vec![
        (
            |q| {
                q.vectors.clear();
                q.mean_real.clear();
                q.mean_imaginary.clear();
                q.mean_absolute.clear();
            },
            "query: neither vectors nor calibration statistics (mean_real, mean_imaginary, \
             mean_absolute) are given",
        ),
        (
            |q| q.vectors.truncate(255),
            "query.vectors: 255 bytes, must be 256: 2 layers * 4 heads * 8 of 4 bytes",
        ),
        (
            |q| q.element_type = v1::ElementType::F16.into(),
            "query.vectors: 256 bytes, must be 128: 2 layers * 4 heads * 8 of 2 bytes",
        ),
        (
            |q| q.mean_real.clear(),
            "query.mean_real: 0 bytes, must be 128: 2 layers * 4 heads * 4 of 4 bytes",
        ),
        (
            |q| q.mean_imaginary.truncate(124),
            "query.mean_imaginary: 124 bytes, must be 128: 2 layers * 4 heads * 4 of 4 bytes",
        ),
        (
            |q| q.mean_absolute.clear(),
            "query.mean_absolute: 0 bytes, must be 128: 2 layers * 4 heads * 4 of 4 bytes",
        ),
        (|q| q.vectors = numbers(64, f32::NAN), ELEMENTS),
        (|q| q.vectors = numbers(64, f32::NEG_INFINITY), ELEMENTS),
        (|q| q.vectors = numbers(64, 1.1e15), ELEMENTS),
        (
            |q| q.mean_imaginary = numbers(32, f32::INFINITY),
            "query.mean_imaginary: every element must be finite, of a magnitude of at most \
             1000000000000000",
        ),
        (
            |q| q.mean_absolute = numbers(32, 0.99),
            "query.mean_absolute: E|q| must nowhere be below |E[q]|",
        ),
    ]
}
