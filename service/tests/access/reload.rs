//! Tokens that come and go while calls are under way.

use std::{fs, sync::Arc};

use kvatlas_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::{
    common::{lookup, prompt, until, within},
    doors::{Caller, Entry, PLANTED, Server, replace, start_with_tokens, write_tokens},
};

const ENGINE: &str = ", \"tenants\": \"*\"";
const BOTH: [Entry<'static>; 3] = [
    ("stays", "engine", ENGINE),
    ("goes", "engine", ENGINE),
    ("operator", "operator", ""),
];
const ONE: [Entry<'static>; 3] = [
    ("stays", "engine", ENGINE),
    ("comes", "engine", ENGINE),
    ("operator", "operator", ""),
];

/// A stream of look-ups that stays open.
struct Open {
    requests: mpsc::Sender<v1::FindDonorsRequest>,
    answers: Streaming<v1::FindDonorsResponse>,
}

impl Open {
    async fn new(caller: &Caller) -> Open {
        let (requests, outgoing) = mpsc::channel(1);
        let mut donors = caller.donors.clone();
        let call = donors.find_donors(ReceiverStream::new(outgoing));
        let answers = within(call).await.unwrap().into_inner();
        Open { requests, answers }
    }

    async fn ask(&mut self) -> Result<(), Status> {
        let request = v1::FindDonorsRequest {
            correlation_id: 1,
            request: Some(lookup(prompt(1, 64))),
        };
        // Of a stream that has ended the answers say why.
        let _ended = within(self.requests.send(request)).await;
        within(self.answers.message()).await.map(|answer| {
            answer.expect("an answer");
        })
    }
}

async fn code_of(caller: &Caller) -> Code {
    caller
        .status()
        .await
        .map_or_else(|status| status.code(), |_| Code::Ok)
}

async fn until_code(server: &Server, name: &str, code: Code) {
    let caller = server.caller(name);
    until(|| async { code_of(&caller).await == code }).await;
}

#[tokio::test]
async fn a_token_that_goes_ends_its_streams_and_no_other() {
    let server = start_with_tokens(&BOTH).await;
    let (stays, goes) = (server.caller("stays"), server.caller("goes"));
    let (mut kept, mut ended) = (Open::new(&stays).await, Open::new(&goes).await);
    kept.ask().await.unwrap();
    ended.ask().await.unwrap();
    // An upload, of which only the header has come.
    let (parts, outgoing) = mpsc::channel(1);
    let operator = server.caller("operator");
    let header = v1::PutPriorHeader {
        prefix_hash: "p".into(),
        ..Default::default()
    };
    let part = Some(v1::put_prior_request::Part::Header(header));
    within(parts.send(v1::PutPriorRequest { part }))
        .await
        .unwrap();
    let mut routing = operator.routing.clone();
    let mut upload = Box::pin(routing.put_prior(ReceiverStream::new(outgoing)));
    tokio::select! {
        biased;
        _ = &mut upload => panic!("it goes on"),
        code = code_of(&operator) => assert_eq!(code, Code::Ok),
    }

    let without_operator = &ONE[..2];
    write_tokens(&server.path("tokens.json"), without_operator);
    // Nobody asks: the server ends it by itself.
    let status = within(ended.answers.message()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let status = within(upload).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    kept.ask().await.unwrap();
    assert_eq!(code_of(&goes).await, Code::Unauthenticated);
    assert_eq!(code_of(&server.caller("comes")).await, Code::Ok);
    assert_eq!(code_of(&stays).await, Code::Ok);
}

#[tokio::test]
async fn a_busy_stream_ends_as_well() {
    let server = start_with_tokens(&BOTH).await;
    let mut busy = Open::new(&server.caller("goes")).await;
    busy.ask().await.unwrap();
    write_tokens(&server.path("tokens.json"), &ONE);
    let code = within(async {
        loop {
            if let Err(status) = busy.ask().await {
                return status.code();
            }
        }
    })
    .await;
    assert_eq!(code, Code::Unauthenticated);
}

#[tokio::test]
async fn a_file_that_is_not_as_it_should_be_changes_nothing() {
    let server = start_with_tokens(&BOTH).await;
    let path = server.path("tokens.json");
    let good = fs::read_to_string(&path).unwrap();
    let refused = |server: &Server| server.log().matches("nothing has changed").count();
    let bad = [
        "",
        "{",
        &good.replace("\"operator\"", &format!("\"{PLANTED}\"")),
        &good.replace("\"goes\"", "\"stays\""),
    ];
    for (number, bad) in (1..).zip(bad) {
        replace(&path, bad);
        server.process.hang_up();
        until(|| std::future::ready(refused(&server) == number)).await;
        for name in ["stays", "goes", "operator"] {
            assert_eq!(code_of(&server.caller(name)).await, Code::Ok);
        }
    }
    fs::remove_file(&path).unwrap();
    until(|| std::future::ready(refused(&server) == 5)).await;
    assert_eq!(code_of(&server.caller("goes")).await, Code::Ok);
    write_tokens(&path, &ONE);
    until_code(&server, "comes", Code::Ok).await;
    assert_eq!(code_of(&server.caller("goes")).await, Code::Unauthenticated);
    assert!(!server.log().contains(PLANTED));
}

#[tokio::test]
async fn calls_go_on_under_reloads() {
    let server = Arc::new(start_with_tokens(&BOTH).await);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (caller, stop) = (server.caller("stays"), Arc::clone(&stop));
        callers.spawn(async move {
            let mut calls = 0_u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                caller.status().await.unwrap();
                calls += 1;
            }
            calls
        });
    }
    for round in 0..3 {
        let (entries, name) = match round % 2 {
            0 => (&ONE, "comes"),
            _ => (&BOTH, "goes"),
        };
        write_tokens(&server.path("tokens.json"), entries);
        until_code(&server, name, Code::Ok).await;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    while let Some(calls) = callers.join_next().await {
        assert!(calls.unwrap() > 0);
    }
}

#[tokio::test]
async fn a_server_does_not_start_on_a_token_file_that_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.json");
    for (text, says) in [
        (None, "--token-file"),
        (
            Some(format!("{{\"tokens\": [{{\"name\": \"{PLANTED}\"")),
            "line 1",
        ),
    ] {
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        let mut command = crate::common::serve_command(&folder.path().join("data"));
        let output = command.arg("--token-file").arg(&path).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && told.contains(says), "{told}");
        assert!(!told.contains(PLANTED), "{told}");
        assert_eq!(told.matches(says).count(), 1, "told once: {told}");
    }
}

#[test]
fn a_pipe_is_refused_instead_of_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    for flags in [
        vec!["--token-file"],
        vec!["--tls-cert", "--tls-key", "--tls-client-ca"],
    ] {
        let mut command = crate::common::serve_command(&folder.path().join("data"));
        for flag in &flags {
            command.arg(flag).arg(&path);
        }
        let output = command.output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{told}");
        assert!(told.contains(&format!("{}: a pipe", flags[0])), "{told}");
    }
}
