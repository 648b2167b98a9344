//! TLS on both ports: who is served, who is not, and certificates that change meanwhile.

use std::{fs, path::Path, process::Command};

use tonic::{Code, transport::ClientTlsConfig};

use crate::{
    common::{until, within},
    doors::{Caller, Server, encrypted, plain, replace, start, write_tokens},
    pki::Authority,
};

/// A server with a certificate of this authority, and more flags.
async fn served(authority: &Authority, more: impl FnOnce(&mut Command, &Path)) -> Server {
    start(|command, folder| {
        let (cert, key) = authority.server().write(folder, "server");
        command
            .arg("--tls-cert")
            .arg(cert)
            .arg("--tls-key")
            .arg(key);
        more(command, folder);
    })
    .await
}

/// A call over a connection of its own.
async fn code(server: &Server, tls: ClientTlsConfig) -> Code {
    code_under(server, tls, "").await
}

async fn code_under(server: &Server, tls: ClientTlsConfig, token: &str) -> Code {
    let caller = Caller::new(encrypted(&server.process.grpc[0], tls), token);
    caller
        .status()
        .await
        .map_or_else(|status| status.code(), |_| Code::Ok)
}

async fn plain_code(server: &Server) -> Code {
    let caller = Caller::new(plain(&server.process.grpc[0]), "");
    caller
        .status()
        .await
        .map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn only_tls_is_served_and_only_to_whom_the_certificate_convinces() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = served(&authority, |_, _| {}).await;
    assert_eq!(code(&server, authority.trusted(None)).await, Code::Ok);
    assert_ne!(code(&server, other.trusted(None)).await, Code::Ok);
    assert_ne!(
        plain_code(&server).await,
        Code::Ok,
        "plain text to a port of TLS"
    );
    let other_name = authority.trusted(None).domain_name("elsewhere.test");
    assert_ne!(code(&server, other_name).await, Code::Ok);
    assert_eq!(code(&server, authority.trusted(None)).await, Code::Ok);
}

#[tokio::test]
async fn unix_sockets_stay_plain_and_ask_for_tokens() {
    let authority = Authority::new();
    let server = served(&authority, |command, folder| {
        let path = folder.join("tokens.json");
        write_tokens(&path, &[("operator", "operator", "")]);
        command.arg("--token-file").arg(path);
        let socket = folder.join("socket");
        command
            .arg("--listen")
            .arg(format!("unix:{}", socket.display()));
    })
    .await;
    let uri = format!("unix://{}", server.path("socket").display());
    let endpoint = tonic::transport::Endpoint::from_shared(uri).unwrap();
    for (token, expected) in [("operator", Code::Ok), ("", Code::Unauthenticated)] {
        let caller = Caller::new(endpoint.connect_lazy(), token);
        let status = caller.status().await;
        assert_eq!(status.map_or_else(|it| it.code(), |_| Code::Ok), expected);
        let over_tls = code_under(&server, authority.trusted(None), token).await;
        assert_eq!(over_tls, expected);
    }
}

#[tokio::test]
async fn with_a_client_ca_callers_need_a_certificate_of_it() {
    let (authority, clients, others) = (Authority::new(), Authority::new(), Authority::new());
    let server = served(&authority, |command, folder| {
        let ca = folder.join("ca.pem");
        fs::write(&ca, clients.pem()).unwrap();
        command.arg("--tls-client-ca").arg(ca);
    })
    .await;
    let with = |pair: &crate::pki::Pair| authority.trusted(Some(pair));
    let (old, new) = (clients.client(), others.client());
    assert_eq!(code(&server, with(&old)).await, Code::Ok);
    assert_ne!(code(&server, with(&new)).await, Code::Ok);
    assert_ne!(code(&server, authority.trusted(None)).await, Code::Ok);
    assert_ne!(
        code(&server, with(&clients.server())).await,
        Code::Ok,
        "not for clients"
    );

    let held = Caller::new(encrypted(&server.process.grpc[0], with(&old)), "");
    held.status().await.unwrap();
    replace(&server.path("ca.pem"), &others.pem());
    until(|| async { code(&server, with(&new)).await == Code::Ok }).await;
    assert_ne!(code(&server, with(&old)).await, Code::Ok);
    held.status()
        .await
        .expect("connections that are there go on");
}

#[tokio::test]
async fn certificates_change_under_load_and_nothing_breaks() {
    let (old, new) = (Authority::new(), Authority::new());
    let server = served(&old, |_, _| {}).await;
    let held = Caller::new(encrypted(&server.process.grpc[0], old.trusted(None)), "");
    held.status().await.unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let (held, stop) = (held.clone(), stop.clone());
        load.spawn(async move {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                held.status().await.unwrap();
            }
        });
    }
    // A key without its certificate is not taken; the two together are.
    let pair = new.server();
    replace(&server.path("server.key"), &pair.key);
    until(|| std::future::ready(server.log().contains("nothing has changed"))).await;
    assert_eq!(code(&server, old.trusted(None)).await, Code::Ok);
    replace(&server.path("server.pem"), "no certificate");
    until(|| std::future::ready(server.log().matches("nothing has changed").count() == 2)).await;
    assert_eq!(code(&server, old.trusted(None)).await, Code::Ok);
    replace(&server.path("server.pem"), &pair.cert);
    until(|| async { code(&server, new.trusted(None)).await == Code::Ok }).await;
    assert_ne!(code(&server, old.trusted(None)).await, Code::Ok);
    held.status()
        .await
        .expect("connections that are there go on");
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    while let Some(ended) = load.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn a_server_does_not_start_on_certificates_that_are_wrong() {
    let (one, other) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = one.server().write(folder.path(), "one");
    let (other_cert, _) = other.server().write(folder.path(), "other");
    let none = folder.path().join("none");
    for (cert, key, says) in [
        (&other_cert, &key, "do not go together"),
        (&key, &key, "--tls-cert"),
        (&cert, &cert, "--tls-key"),
        (&none, &key, "--tls-cert"),
    ] {
        let mut command = crate::common::serve_command(&folder.path().join("data"));
        command
            .arg("--tls-cert")
            .arg(cert)
            .arg("--tls-key")
            .arg(key);
        let output = command.output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && told.contains(says), "{told}");
        assert!(!told.contains("PRIVATE KEY"), "{told}");
    }
}

#[tokio::test]
async fn the_commands_and_the_rust_client_speak_tls_and_show_tokens() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = served(&authority, |command, folder| {
        let path = folder.join("tokens.json");
        write_tokens(&path, &[("operator", "operator", "")]);
        let ca = folder.join("ca.pem");
        fs::write(&ca, clients.pem()).unwrap();
        command
            .arg("--token-file")
            .arg(path)
            .arg("--tls-client-ca")
            .arg(ca);
    })
    .await;
    let (cert, key) = clients.client().write(server.folder.path(), "client");
    let trusted = server.path("trusted.pem");
    fs::write(&trusted, authority.pem()).unwrap();
    let token = server.path("token");
    fs::write(&token, format!("{}\n", crate::doors::token("operator"))).unwrap();
    let address = format!("https://{}", server.process.grpc[0]);
    let run = |with: &dyn Fn(&mut Command)| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvatlas"));
        command.args(["--address", &address, "status", "--output", "json"]);
        with(&mut command);
        command.output().unwrap()
    };
    let tls = |command: &mut Command| {
        command
            .arg("--tls-ca")
            .arg(&trusted)
            .arg("--tls-cert")
            .arg(&cert);
        command.arg("--tls-key").arg(&key);
    };
    let by_flags = run(&|command| {
        tls(command);
        command.arg("--token-file").arg(&token);
    });
    assert!(by_flags.status.success(), "{by_flags:?}");
    let by_environment = run(&|command| {
        command
            .env("KVATLAS_TLS_CA", &trusted)
            .env("KVATLAS_TLS_CERT", &cert);
        command
            .env("KVATLAS_TLS_KEY", &key)
            .env("KVATLAS_TOKEN_FILE", &token);
    });
    assert!(by_environment.status.success(), "{by_environment:?}");
    for bad in [
        run(&tls),
        run(&|command| {
            command
                .arg("--tls-ca")
                .arg(&trusted)
                .arg("--token-file")
                .arg(&token);
        }),
        run(&|command| {
            command.arg("--token-file").arg(&token);
        }),
    ] {
        assert!(!bad.status.success(), "{bad:?}");
    }
    let told = String::from_utf8(run(&tls).stderr).unwrap();
    assert!(told.contains("--token-file"), "{told}");
}

#[tokio::test]
async fn pages_are_served_over_tls_as_it_is_set() {
    let (authority, clients) = (Authority::new(), Authority::new());
    for (http_tls, needs_certificate, is_plain) in [
        ("same", true, false),
        ("server-only", false, false),
        ("off", false, true),
    ] {
        let server = served(&authority, |command, folder| {
            let ca = folder.join("ca.pem");
            fs::write(&ca, clients.pem()).unwrap();
            command
                .args(["--http-tls", http_tls])
                .arg("--tls-client-ca")
                .arg(ca);
        })
        .await;
        let own = clients.client();
        let ask =
            async |own: Option<&crate::pki::Pair>| https_get(&server, authority.roots(), own).await;
        assert_eq!(
            within(ask(Some(&own))).await.is_some(),
            !is_plain,
            "{http_tls}"
        );
        let without = !is_plain && !needs_certificate;
        assert_eq!(within(ask(None)).await.is_some(), without, "{http_tls}");
        let plain = crate::doors::http_get_or_nothing(server.process.http, "/healthz");
        assert_eq!(plain.contains("200 OK"), is_plain, "{http_tls}: {plain}");
    }
}

/// /healthz over TLS; none where there is no answer.
async fn https_get(
    server: &Server,
    roots: tokio_rustls::rustls::RootCertStore,
    own: Option<&crate::pki::Pair>,
) -> Option<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let connector = tokio_rustls::TlsConnector::from(crate::pki::client_config(roots, own));
    let stream = tokio::net::TcpStream::connect(server.process.http)
        .await
        .ok()?;
    let name = "localhost".try_into().ok()?;
    let mut stream = connector.connect(name, stream).await.ok()?;
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut answer = String::new();
    // A server that has closed without saying so has answered all the same.
    let _end = stream.read_to_string(&mut answer).await;
    answer.starts_with("HTTP/1.1 200").then_some(answer)
}
