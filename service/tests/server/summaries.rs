//! Key summaries as callers see them: uploads, limits, restarts, kills and torn files.

use std::{fs, path::Path, time::Duration};

use kvatlas_proto::v1::{self, put_key_summary_request::Part};
use tempfile::TempDir;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::common::{
    Clients, ServerProcess, prior_file, serve_command, start, start_with, upload, within,
};

/// Three layers, 8 KV heads of 16 channels, 64 tokens.
const CARTRIDGE: &str = "cart_list.pt";

fn header(prefix_hash: &str) -> v1::PutKeySummaryHeader {
    v1::PutKeySummaryHeader {
        prefix_hash: prefix_hash.into(),
        frame: v1::RopeFrame::PostRope.into(),
        pair_layout: v1::PairLayout::Half.into(),
        inv_freq: vec![0.5; 8],
        attention_scaling: 1.0,
        block_size: 16,
        layer_ids: vec![0, 1, 2],
        ..Default::default()
    }
}

fn part(part: Part) -> v1::PutKeySummaryRequest {
    v1::PutKeySummaryRequest { part: Some(part) }
}

fn chunk(bytes: &[u8]) -> v1::PutKeySummaryRequest {
    part(Part::Chunk(bytes.to_vec().into()))
}

fn messages(header: v1::PutKeySummaryHeader, file: &[u8]) -> Vec<v1::PutKeySummaryRequest> {
    let chunks = file.chunks(10_000).map(chunk);
    std::iter::once(part(Part::Header(header)))
        .chain(chunks)
        .collect()
}

async fn send(
    clients: &Clients,
    messages: Vec<v1::PutKeySummaryRequest>,
) -> Result<v1::PutKeySummaryResponse, Status> {
    let mut routing = clients.routing.clone();
    let put = routing.put_key_summary(tokio_stream::iter(messages));
    within(put).await.map(tonic::Response::into_inner)
}

async fn put(clients: &Clients, prefix_hash: &str) -> v1::PutKeySummaryResponse {
    let file = prior_file(CARTRIDGE);
    send(clients, messages(header(prefix_hash), &file))
        .await
        .unwrap()
}

async fn get(clients: &Clients, prefix_hash: &str) -> Result<v1::KeySummary, Status> {
    let prefix_hash = prefix_hash.into();
    let mut routing = clients.routing.clone();
    let got = within(routing.get_key_summary(v1::GetKeySummaryRequest { prefix_hash })).await;
    got.map(tonic::Response::into_inner)
}

async fn delete(clients: &Clients, prefix_hash: &str) -> Result<(), Status> {
    let prefix_hash = prefix_hash.into();
    let mut routing = clients.routing.clone();
    let asked = routing.delete_key_summary(v1::DeleteKeySummaryRequest { prefix_hash });
    within(asked).await.map(drop)
}

/// Files below the data folder that belong to summaries, finished or not.
fn blobs(data: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(data.join("blobs")).unwrap();
    let mut blobs: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    blobs.sort();
    blobs
}

#[tokio::test]
async fn a_summary_is_put_shown_listed_and_deleted() {
    let server = start();
    let clients = &server.clients;
    for prefix in ["b", "a", "c"] {
        let first = put(clients, prefix).await;
        let again = put(clients, prefix).await;
        assert_eq!((first.total_blocks, first.replaced), (4, false));
        assert!(again.replaced && again.generation > first.generation);
    }
    let shown = get(clients, "a").await.unwrap();
    assert_eq!(
        (shown.total_blocks, shown.kv_heads, shown.head_dim),
        (4, 8, 16)
    );
    assert_eq!((shown.block_size, shown.layer_ids), (16, vec![0, 1, 2]));
    assert_eq!(
        (shown.frame, shown.inv_freq),
        (header("a").frame, vec![0.5; 8])
    );
    assert!(shown.has_extremes && shown.has_magnitudes && shown.put_unix_ms > 0);
    // Means, extremes, magnitudes and norms, and one byte for each of the first two's numbers.
    let numbers = 3 * 8 * 4 * 16;
    assert!(shown.stored_bytes > numbers * (2 + 4 + 1 + 1 + 2));

    let mut listed: Vec<Vec<String>> = Vec::new();
    let mut page_token = String::new();
    loop {
        let mut routing = clients.routing.clone();
        let page = routing.list_key_summaries(v1::ListKeySummariesRequest {
            page_size: 2,
            page_token,
            prefix_hash_begins: String::new(),
        });
        let page = within(page).await.unwrap().into_inner();
        listed.push(
            page.summaries
                .iter()
                .map(|s| s.prefix_hash.clone())
                .collect(),
        );
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(listed, [vec!["a".to_owned(), "b".into()], vec!["c".into()]]);

    delete(clients, "a").await.unwrap();
    assert_eq!(
        delete(clients, "a").await.unwrap_err().code(),
        Code::NotFound
    );
    assert_eq!(get(clients, "a").await.unwrap_err().code(), Code::NotFound);
}

/// Sends what is refused as INVALID_ARGUMENT, with all of the words.
async fn check_refused(clients: &Clients, parts: Vec<v1::PutKeySummaryRequest>, words: &[&str]) {
    let refused = send(clients, parts).await.unwrap_err();
    let message = refused.message();
    assert_eq!(refused.code(), Code::InvalidArgument, "{message}");
    for word in words {
        assert!(message.contains(word), "no {word:?} in {message:?}");
    }
}

type Change = dyn Fn(&mut v1::PutKeySummaryHeader);

#[tokio::test]
async fn what_is_wrong_with_a_header_is_named_before_the_file_comes() {
    let server = start_with(|args| args.summary_bytes_max = 200_000);
    let clients = &server.clients;
    let with = |change: &Change| {
        let mut header = header("p");
        change(&mut header);
        // The file never matters.
        vec![part(Part::Header(header))]
    };
    let cases: [(&Change, &[&str]); 13] = [
        (
            &|h| h.prefix_hash.clear(),
            &["prefix_hash", "1 to 512 bytes"],
        ),
        (
            &|h| h.prefix_hash = "x".repeat(513),
            &["prefix_hash", "at most 512"],
        ),
        (&|h| h.frame = 0, &["frame", "must be given"]),
        (&|h| h.frame = 9, &["frame", "9 is not a frame"]),
        (&|h| h.pair_layout = 0, &["pair_layout", "must be given"]),
        (&|h| h.inv_freq.clear(), &["inv_freq", "1 to 512"]),
        (
            &|h| h.inv_freq[3] = -1.0,
            &["inv_freq: number 3", "above 0"],
        ),
        (
            &|h| h.attention_scaling = 0.0,
            &["attention_scaling", "above 0"],
        ),
        (&|h| h.block_size = 0, &["block_size", "1 to 1048576"]),
        (&|h| h.layer_ids = vec![1, 1], &["layer_ids", "ascending"]),
        (
            &|h| h.size_bytes = 200_001,
            &["size_bytes", "at most 200000"],
        ),
        (&|h| h.content = 7, &["content", "7 is not a content"]),
        (&|h| h.format = 7, &["format", "7 is not a format"]),
    ];
    for (change, words) in cases {
        check_refused(clients, with(change), words).await;
    }
}

#[tokio::test]
async fn what_is_wrong_with_an_upload_is_named_and_nothing_of_it_stays() {
    let mut data = None;
    let server = start_with(|args| {
        args.summary_bytes_max = 200_000;
        data = Some(args.data_dir.clone());
    });
    let (clients, data, file) = (&server.clients, data.unwrap(), prior_file(CARTRIDGE));
    let first = || part(Part::Header(header("p")));
    let sized = |size_bytes| {
        let mut header = header("p");
        header.size_bytes = size_bytes;
        messages(header, &file)
    };
    let empty = v1::PutKeySummaryRequest { part: None };
    let large = vec![0; (1 << 20) + 1];
    let part_of_it = vec![0; 150_000];
    let mut other_layers = header("p");
    other_layers.layer_ids = vec![0];
    let cases: [(Vec<v1::PutKeySummaryRequest>, &[&str]); 11] = [
        (vec![], &["header", "first message"]),
        (vec![chunk(b"x")], &["header", "first message"]),
        (vec![first(), first()], &["header", "twice"]),
        (vec![first(), empty], &["chunk", "must be given"]),
        (vec![first()], &["chunk", "no byte"]),
        (vec![first(), chunk(&[])], &["chunk", "0 bytes"]),
        (vec![first(), chunk(&large)], &["chunk", "1048577 bytes"]),
        (
            vec![first(), chunk(&part_of_it), chunk(&part_of_it)],
            &["chunk", "exceeds 200000 bytes"],
        ),
        (sized(7), &["size_bytes", "7, but"]),
        (
            vec![first(), chunk(b"no tensors")],
            &["the file", "neither"],
        ),
        (
            messages(other_layers, &file),
            &["layer_ids: 1 given", "3 layers"],
        ),
    ];
    for (parts, words) in cases {
        check_refused(clients, parts, words).await;
        assert!(blobs(&data).is_empty());
    }
    assert_eq!(get(clients, "p").await.unwrap_err().code(), Code::NotFound);
    put(clients, "p").await;
}

/// An upload that goes on as long as the sender is kept.
fn stalled(
    clients: &Clients,
) -> (
    mpsc::Sender<v1::PutKeySummaryRequest>,
    impl Future<Output = Result<(), Status>> + use<>,
) {
    let (parts, received) = mpsc::channel(4);
    parts.try_send(part(Part::Header(header("p")))).unwrap();
    parts.try_send(chunk(b"PK")).unwrap();
    let mut routing = clients.routing.clone();
    let call = async move {
        let put = routing.put_key_summary(ReceiverStream::new(received));
        put.await.map(drop)
    };
    (parts, call)
}

/// Uploads that go on: as many as the server takes at a time.
async fn fill(
    clients: &Clients,
) -> (
    Vec<mpsc::Sender<v1::PutKeySummaryRequest>>,
    JoinSet<Result<(), Status>>,
) {
    let (mut senders, mut uploads) = (Vec::new(), JoinSet::new());
    for _ in 0..3 {
        let (parts, call) = stalled(clients);
        senders.push(parts);
        uploads.spawn(call);
    }
    let refused = within(uploads.join_next()).await.unwrap().unwrap();
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    (senders, uploads)
}

#[tokio::test]
async fn one_upload_more_than_the_limit_is_refused_until_one_ends() {
    let server = start();
    let clients = &server.clients;
    let (senders, mut uploads) = fill(clients).await;
    assert_eq!(uploads.len(), 2);
    let file = prior_file(CARTRIDGE);
    let refused = send(clients, messages(header("more"), &file)).await;
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    // The ends of the streams are those of the files.
    drop(senders);
    while let Some(ended) = within(uploads.join_next()).await {
        assert_eq!(ended.unwrap().unwrap_err().code(), Code::InvalidArgument);
    }
    put(clients, "more").await;
}

#[tokio::test]
async fn a_server_that_ends_waits_for_no_upload_that_pauses() {
    let server = start();
    let (_senders, mut uploads) = fill(&server.clients).await;
    server.server.stop().unwrap();
    while let Some(ended) = within(uploads.join_next()).await {
        ended.unwrap().unwrap_err();
    }
}

#[tokio::test]
async fn an_upload_ends_at_its_deadline() {
    let server = start_with(|args| args.upload_ms_max = 200);
    for _ in 0..3 {
        let (_parts, call) = stalled(&server.clients);
        let ended = within(call).await.unwrap_err();
        assert_eq!(ended.code(), Code::DeadlineExceeded, "{ended}");
    }
}

async fn put_prior(clients: &Clients, prefix_hash: &str, name: &str) -> Result<(), Status> {
    let header = v1::PutPriorHeader {
        prefix_hash: prefix_hash.into(),
        ..Default::default()
    };
    let mut routing = clients.routing.clone();
    let put = routing.put_prior(tokio_stream::iter(upload(header, &prior_file(name))));
    within(put).await.map(drop)
}

#[tokio::test]
async fn a_prior_of_other_blocks_is_refused_beside_a_summary_and_the_other_way_round() {
    let server = start();
    let clients = &server.clients;
    let check = |refused: Status| {
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        let message = refused.message();
        assert!(
            message.contains("summary has 4 and a prior of it 258"),
            "{message}"
        );
    };
    put_prior(clients, "p", "perk.pt").await.unwrap();
    let file = prior_file(CARTRIDGE);
    check(
        send(clients, messages(header("p"), &file))
            .await
            .unwrap_err(),
    );
    put(clients, "q").await;
    check(put_prior(clients, "q", "perk.pt").await.unwrap_err());
    delete(clients, "q").await.unwrap();
    put_prior(clients, "q", "perk.pt").await.unwrap();
}

/// A manifest scored against the summary of [`CARTRIDGE`], and from the prior.
async fn manifests(clients: &Clients, prefix_hash: &str) -> [Result<u64, Status>; 2] {
    let query = v1::QueryVectors {
        frame: v1::RopeFrame::PostRope.into(),
        element_type: v1::ElementType::F32.into(),
        layer_ids: vec![0, 1, 2],
        heads: 8,
        head_dim: 16,
        group_mean: true,
        vectors: 0.5_f32.to_le_bytes().repeat(3 * 8 * 16).into(),
        ..Default::default()
    };
    let online = v1::GetManifestRequest {
        prefix_hash: prefix_hash.into(),
        k: 2,
        algorithm: "kri-q".into(),
        query: Some(Box::new(query)),
        ..Default::default()
    };
    let stored = v1::GetManifestRequest {
        prefix_hash: "with a prior".into(),
        k: 4,
        ..Default::default()
    };
    let mut answers = Vec::new();
    for request in [online, stored] {
        let mut routing = clients.routing.clone();
        let answer = within(routing.get_manifest(request)).await;
        answers.push(answer.map(|answer| answer.into_inner().prior_generation));
    }
    answers.try_into().unwrap()
}

#[tokio::test]
async fn kills_leave_no_half_of_an_upload_and_take_nothing_that_was_acknowledged() {
    let folder = TempDir::new().unwrap();
    let mut server = ServerProcess::launch(serve_command(folder.path())).await;
    let clients = server.clients();
    let put = put(&clients, "p").await;
    let stored = blobs(folder.path());
    // In the middle of an upload, once its bytes have come.
    let (parts, call) = stalled(&clients);
    let call = tokio::time::timeout(Duration::from_millis(200), call);
    assert!(call.await.is_err(), "it goes on");
    server.kill();
    drop(parts);
    assert_eq!(blobs(folder.path()), stored, "an upload's file has no name");
    // What a crash in the middle of a build leaves.
    for name in ["00000000deadbeef.new", "00000000deadbeef"] {
        fs::write(folder.path().join("blobs").join(name), b"half").unwrap();
    }
    let server = ServerProcess::launch(serve_command(folder.path())).await;
    let clients = server.clients();
    assert_eq!(blobs(folder.path()), stored);
    let found = get(&clients, "p").await.unwrap();
    assert_eq!(Some(&found), put.summary.as_ref());
    let [online, _] = manifests(&clients, "p").await;
    assert_eq!(online.unwrap(), put.generation);
}

#[tokio::test]
async fn a_torn_table_is_data_loss_and_everything_else_answers() {
    let folder = TempDir::new().unwrap();
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[5] ^= 0x10;
        fs::write(path, bytes).unwrap();
    };
    let cut = |path: &Path| {
        let file = fs::File::options().write(true).open(path).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length / 2).unwrap();
    };
    let remove = |path: &Path| fs::remove_file(path).unwrap();
    let harms: [fn(&Path); 3] = [flip, cut, remove];
    for harm in harms {
        let server = ServerProcess::launch(serve_command(folder.path())).await;
        let clients = server.clients();
        put_prior(&clients, "with a prior", "perk.pt")
            .await
            .unwrap();
        let before = blobs(folder.path());
        let torn = put(&clients, "torn").await;
        let its_own = blobs(folder.path())
            .into_iter()
            .find(|blob| !before.contains(blob));
        put(&clients, "whole").await;
        assert_eq!(
            manifests(&clients, "torn").await[0].clone().unwrap(),
            torn.generation
        );
        drop(server);
        harm(&its_own.unwrap());

        let server = ServerProcess::launch(serve_command(folder.path())).await;
        let clients = server.clients();
        for _ in 0..2 {
            let [online, stored] = manifests(&clients, "torn").await;
            let lost = online.unwrap_err();
            assert_eq!(lost.code(), Code::DataLoss, "{lost}");
            assert!(lost.message().contains("put it again"), "{lost}");
            stored.unwrap();
        }
        let [online, _] = manifests(&clients, "whole").await;
        online.unwrap();
        put(&clients, "torn").await;
        let [online, _] = manifests(&clients, "torn").await;
        online.unwrap();
        for prefix in ["torn", "whole"] {
            delete(&clients, prefix).await.unwrap();
        }
        assert_eq!(clients.status().await.damaged_records, 0);
    }
}
