//! Handshakes that never end are in nobody's way.

use std::{io::Write, net::TcpStream};

use tonic::Code;

use crate::{
    common::{PATIENCE, until},
    doors::{Caller, encrypted, start},
    pki::Authority,
};

/// More than may be under way at a time.
const STALLED: usize = 700;
const UNDER_WAY_MAX: u64 = 512;
/// The first bytes of a handshake, of which the rest never comes.
const HALF: [u8; 6] = [22, 3, 1, 1, 0, 1];

#[tokio::test]
async fn callers_come_in_past_a_crowd_that_stands_in_the_door() {
    let authority = Authority::new();
    let server = start(|command, folder| {
        let (cert, key) = authority.server().write(folder, "server");
        command
            .arg("--tls-cert")
            .arg(cert)
            .arg("--tls-key")
            .arg(key);
        command.args(["--http-tls", "off"]);
    })
    .await;
    let address = server.process.grpc[0].parse().unwrap();
    let mut crowd = Vec::new();
    for number in 0..STALLED {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        if number % 2 == 0 {
            stream.write_all(&HALF).unwrap();
        }
        crowd.push(stream);
    }
    let dropped = || server.metric("kvatlas_tls_handshakes_dropped", "");
    until(|| std::future::ready(dropped() >= STALLED as u64 - UNDER_WAY_MAX)).await;
    // Each over a connection of its own, while the crowd stands.
    for _ in 0..20 {
        let caller = Caller::new(
            encrypted(&server.process.grpc[0], authority.trusted(None)),
            "",
        );
        let status = caller.status().await;
        assert_eq!(status.map_or_else(|it| it.code(), |_| Code::Ok), Code::Ok);
    }
    assert!(server.metric("kvatlas_tls_handshakes_done", "") >= 20);
    // In time all of it is gone, without anybody pushing.
    until(|| std::future::ready(dropped() >= STALLED as u64)).await;
    drop(crowd);
}
