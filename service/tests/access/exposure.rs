//! What is open without a token: health, reflection, pages; and the warning where all is.

use kvatlas_proto::v1;
use tonic::{Code, Request};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest,
};

use crate::{
    common::within,
    doors::{Caller, Server, http_get, start, token, write_tokens},
};

const TOKENS: [(&str, &str, &str); 2] = [
    ("operator", "operator", ""),
    ("engine", "engine", ", \"tenants\": \"*\""),
];

async fn exposed(with_tokens: bool, flags: &[&str]) -> Server {
    start(|command, folder| {
        if with_tokens {
            let path = folder.join("tokens.json");
            write_tokens(&path, &TOKENS);
            command.arg("--token-file").arg(path);
        }
        command.args(flags);
    })
    .await
}

async fn health(caller: &Caller) -> Code {
    let mut health = HealthClient::new(caller.service.clone());
    let answer = within(health.check(HealthCheckRequest::default())).await;
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

async fn reflection(caller: &Caller) -> Code {
    let mut reflection = ServerReflectionClient::new(caller.service.clone());
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let call = async {
        let requests = Request::new(tokio_stream::once(request));
        let mut answers = reflection
            .server_reflection_info(requests)
            .await?
            .into_inner();
        answers.message().await
    };
    within(call)
        .await
        .map_or_else(|status| status.code(), |_| Code::Ok)
}

fn page(server: &Server, path: &str, credentials: &str) -> u16 {
    let answer = http_get(server.process.http, path, credentials);
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn health_and_reflection_are_open_closed_or_off() {
    use Code::{Ok, Unauthenticated, Unimplemented};
    for (with_tokens, flags, expected) in [
        (false, &[][..], [(Ok, Ok), (Ok, Ok)]),
        (true, &[][..], [(Ok, Unauthenticated), (Ok, Ok)]),
        (true, &["--reflection=open"][..], [(Ok, Ok), (Ok, Ok)]),
        (
            true,
            &["--health=token"][..],
            [(Unauthenticated, Unauthenticated), (Ok, Ok)],
        ),
        (
            true,
            &["--health=off", "--reflection=off"][..],
            [
                (Unauthenticated, Unauthenticated),
                (Unimplemented, Unimplemented),
            ],
        ),
        (
            false,
            &["--health=off", "--reflection=off"][..],
            [
                (Unimplemented, Unimplemented),
                (Unimplemented, Unimplemented),
            ],
        ),
    ] {
        let server = exposed(with_tokens, flags).await;
        for (name, expected) in ["", "engine"].into_iter().zip(expected) {
            let caller = server.caller(name);
            let found = (health(&caller).await, reflection(&caller).await);
            assert_eq!(found, expected, "{with_tokens} {flags:?} {name}");
        }
        let healthz = page(&server, "/healthz", "");
        let expected = match (flags.contains(&"--health=off"), flags) {
            (true, _) => 404,
            (false, ["--health=token"]) => 401,
            (false, _) => 200,
        };
        assert_eq!(healthz, expected, "{with_tokens} {flags:?}");
    }
}

#[tokio::test]
async fn pages_are_for_operators_by_token_or_by_password() {
    let server = exposed(true, &[]).await;
    let bearer = |name: &str| format!("Bearer {}", token(name));
    let basic = |name: &str| {
        use base64::{Engine, prelude::BASE64_STANDARD};
        format!(
            "Basic {}",
            BASE64_STANDARD.encode(format!("anybody:{}", token(name)))
        )
    };
    for path in ["/metrics", "/nothing"] {
        let there = if path == "/metrics" { 200 } else { 404 };
        for (credentials, expected) in [
            (String::new(), 401),
            (bearer("unknown"), 401),
            (basic("unknown"), 401),
            ("Basic ???".to_owned(), 401),
            (bearer("engine"), 403),
            (basic("engine"), 403),
            (bearer("operator"), there),
            (basic("operator"), there),
        ] {
            assert_eq!(page(&server, path, &credentials), expected, "{path}");
        }
    }
    let asked = http_get(server.process.http, "/metrics", "").to_lowercase();
    assert!(asked.contains("www-authenticate: basic"), "{asked}");
}

#[tokio::test]
async fn an_open_door_to_other_machines_is_told_of_loudly() {
    const LOUD: &str = "ANYBODY WHO REACHES THIS ADDRESS";
    const PLAIN: &str = "cross the network unencrypted";
    let everywhere = "--listen=0.0.0.0:0";
    for (with_tokens, flags, loud, plain) in [
        (false, &[][..], 0, 0),
        (false, &[everywhere][..], 1, 0),
        (false, &[everywhere, "--http-listen=[::]:0"][..], 2, 0),
        (true, &[everywhere][..], 0, 1),
        (true, &[][..], 0, 0),
    ] {
        let server = start(|command, folder| {
            if with_tokens {
                let path = folder.join("tokens.json");
                write_tokens(&path, &TOKENS);
                command.arg("--token-file").arg(path);
            }
            // Once as they stand in the harness: a flag that is given twice is an error.
            let mut given = std::process::Command::new(command.get_program());
            given.arg("serve").env("KVATLAS_LOG", "warn");
            let http = flags.iter().any(|flag| flag.starts_with("--http"));
            given.args(flags).args(["--listen=127.0.0.1:0"]);
            if !http {
                given.arg("--http-listen=127.0.0.1:0");
            }
            given.arg("--data-dir").arg(folder.join("data"));
            given.args(command.get_args().skip_while(|it| *it != "--token-file"));
            given.stderr(std::fs::File::create(folder.join("stderr")).unwrap());
            *command = given;
        })
        .await;
        let log = server.log();
        let found = (log.matches(LOUD).count(), log.matches(PLAIN).count());
        assert_eq!(found, (loud, plain), "{with_tokens} {flags:?}: {log}");
    }
}

#[tokio::test]
async fn without_a_token_file_nobody_is_asked() {
    let server = exposed(false, &[]).await;
    for name in ["", "any"] {
        let caller = server.caller(name);
        caller.status().await.unwrap();
        let mode = v1::SetModeRequest {
            mode: v1::Mode::DiscoveryOnly.into(),
            ..Default::default()
        };
        within(caller.admin.clone().set_mode(mode)).await.unwrap();
    }
    assert_eq!(page(&server, "/metrics", ""), 200);
}
