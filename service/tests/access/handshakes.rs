//! Handshakes that never end are in nobody's way.

use std::{io::Write, net::TcpStream};

use crate::{
    common::{PATIENCE, until},
    doors::{Caller, Server, encrypted, start},
    pki::Authority,
};

/// More than may be under way at a time.
const CROWD: usize = 700;
const UNDER_WAY_MAX: u64 = 512;
const CALLERS: usize = 20;
/// The first bytes of a handshake, of which the rest never comes.
const HALF: [u8; 6] = [22, 3, 1, 1, 0, 1];

async fn served(authority: &Authority) -> Server {
    start(|command, folder| {
        let (cert, key) = authority.server().write(folder, "server");
        command
            .arg("--tls-cert")
            .arg(cert)
            .arg("--tls-key")
            .arg(key);
        command.args(["--http-tls", "off"]);
    })
    .await
}

fn crowd(server: &Server) -> Vec<TcpStream> {
    let address = server.process.grpc[0].parse().unwrap();
    let stall = |number: usize| {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        if number.is_multiple_of(2) {
            stream.write_all(&HALF).unwrap();
        }
        stream
    };
    (0..CROWD).map(stall).collect()
}

fn dropped(server: &Server) -> u64 {
    server.metric("kvatlas_tls_handshakes_dropped", "")
}

// Each over a connection of its own.
async fn callers_come_in(server: &Server, authority: &Authority) {
    for _ in 0..CALLERS {
        let tls = authority.trusted(None);
        let caller = Caller::new(encrypted(&server.process.grpc[0], tls), "");
        caller.status().await.unwrap();
    }
}

#[tokio::test]
async fn callers_come_in_past_a_crowd_that_stands_in_the_door() {
    let authority = Authority::new();
    let server = served(&authority).await;
    // While most of the crowd stands: were they to wait for a place, all that have one would have
    // run out of time first. On a machine that is slow enough they do anyway: then once more.
    until(|| async {
        let before = dropped(&server);
        let crowd = crowd(&server);
        callers_come_in(&server, &authority).await;
        let gone = dropped(&server) - before;
        drop(crowd);
        assert!(gone >= CROWD as u64 - UNDER_WAY_MAX, "there is a limit");
        gone < UNDER_WAY_MAX
    })
    .await;
    assert!(server.metric("kvatlas_tls_handshakes_done", "") >= CALLERS as u64);
}

#[tokio::test]
async fn a_crowd_goes_in_time_without_anybody_pushing() {
    let authority = Authority::new();
    let server = served(&authority).await;
    let _crowd = crowd(&server);
    until(|| std::future::ready(dropped(&server) == CROWD as u64)).await;
}
