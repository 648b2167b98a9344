//! Serves the HTTP port: so many connections at a time, and none for long that asks for nothing.

use std::{future::pending, io, pin::pin, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    task::JoinSet,
};
use tokio_stream::{
    Stream, StreamExt,
    wrappers::{ReceiverStream, TcpListenerStream},
};

use super::Encryption;
use crate::access::handshakes::{accept, after_failure};

const LIMITS: Limits = Limits {
    connections: 512,
    request: Duration::from_secs(30),
};

/// What callers may take.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Connections that are served at a time; one more waits until another ends.
    connections: usize,
    /// Time to send a request, and to send the next.
    request: Duration,
}

/// Largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// Serves the pages, for as long as it is polled.
pub(crate) async fn serve_http(
    listener: TcpListener,
    router: Router,
    encryption: Option<Encryption>,
) {
    match encryption {
        None => serve_plain(listener, router, LIMITS).await,
        Some((tls, counts)) => {
            let (connections, accepting) = accept(listener, move || tls.http(), counts);
            let serving = serve_all(router, ReceiverStream::new(connections), LIMITS);
            tokio::join!(serving, accepting);
        }
    }
}

async fn serve_plain(listener: TcpListener, router: Router, limits: Limits) {
    let connections = TcpListenerStream::new(listener).map(|accepted| {
        accepted.inspect(|stream| {
            // Small answers go out at once.
            let _as_it_is = stream.set_nodelay(true);
        })
    });
    serve_all(router, connections, limits).await;
}

async fn serve_all<Io>(
    router: Router,
    connections: impl Stream<Item = io::Result<Io>>,
    limits: Limits,
) where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connections = pin!(connections);
    let mut open = JoinSet::new();
    loop {
        let next = tokio::select! {
            Some(_ended) = open.join_next(), if !open.is_empty() => continue,
            next = connections.next(), if open.len() < limits.connections => next,
        };
        match next {
            Some(Ok(connection)) => {
                open.spawn(serve_one(connection, router.clone(), limits.request));
            }
            Some(Err(error)) => after_failure(&error).await,
            // Nobody accepts any more: the server is ending.
            None => pending().await,
        }
    }
}

async fn serve_one<Io>(connection: Io, router: Router, request_max: Duration)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(request_max)
        .max_header_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(connection), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of the HTTP port was ended");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    use super::*;

    const TIGHT: Limits = Limits {
        connections: 2,
        request: Duration::from_millis(20),
    };
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn connected(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // It may be let go before it has sent all.
        let _sent = stream.write_all(text.as_bytes()).await;
        stream
    }

    // What is answered until the server ends the connection, with so many silent ones before it.
    async fn check(silent: usize, text: &str, answer: &str) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "there"));
        let asking = async {
            let mut held = Vec::new();
            for _ in 0..silent {
                held.push(connected(address, "").await);
            }
            let mut stream = connected(address, text).await;
            let mut told = Vec::new();
            // Ended or reset.
            let _ended = stream.read_to_end(&mut told).await;
            String::from_utf8(told).unwrap()
        };
        tokio::select! {
            () = serve_plain(listener, router, TIGHT) => {}
            told = tokio::time::timeout(PATIENCE, asking) => {
                let told = told.expect("the connection is ended");
                assert!(told.starts_with(answer), "{text:.40}: {told}");
            }
        }
    }

    #[tokio::test]
    async fn who_asks_for_nothing_is_let_go() {
        check(0, "", "").await;
        check(0, "GET / HTTP/1.1\r\nHost: a", "").await;
        let long = format!("GET / HTTP/1.1\r\nHost: {}", "a".repeat(HEAD_BYTES_MAX));
        check(0, &long, "HTTP/1.1 431").await;
        // Kept alive for another request, and for no longer.
        check(0, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200").await;
    }

    #[tokio::test]
    async fn who_says_nothing_keeps_nobody_out_for_long() {
        let asked = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        check(TIGHT.connections + 1, asked, "HTTP/1.1 200").await;
    }
}
