//! Connections on their way to TLS: bounded in number and in time, none in the way of another.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};

/// Handshakes under way at a time, of one listener. One more ends the oldest: among many that never
/// finish, one that does takes a few milliseconds.
const HANDSHAKES_MAX: usize = 512;
/// Longest time that one may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Encrypted connections that wait to be served.
const READY_MAX: usize = 64;
/// After the system could not accept, because it has no more files.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// What became of handshakes.
#[derive(Debug, Default)]
pub struct Counts {
    pub done: AtomicU64,
    pub failed: AtomicU64,
    /// They took too long, or others needed their place.
    pub dropped: AtomicU64,
}

/// What goes into one handshake.
#[derive(Clone)]
struct Way {
    ready: mpsc::Sender<io::Result<TlsStream<TcpStream>>>,
    counts: Arc<Counts>,
}

/// Encrypted connections as they come, and the work that makes them; it ends when they are no
/// longer wanted.
pub fn accept(
    listener: TcpListener,
    config: impl Fn() -> Arc<ServerConfig> + Send + 'static,
    counts: Arc<Counts>,
) -> (
    mpsc::Receiver<io::Result<TlsStream<TcpStream>>>,
    impl Future<Output = ()> + Send,
) {
    let (ready, taken) = mpsc::channel(READY_MAX);
    let way = Way { ready, counts };
    (taken, accept_all(listener, config, way))
}

async fn accept_all(
    listener: TcpListener,
    config: impl Fn() -> Arc<ServerConfig> + Send + 'static,
    way: Way,
) {
    let mut under_way = JoinSet::new();
    // In the order of their coming, with some that are done.
    let mut order: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_done) = under_way.join_next(), if !under_way.is_empty() => continue,
            () = way.ready.closed() => return,
        };
        let stream = match accepted {
            Ok((stream, _peer)) => stream,
            Err(error) => {
                after_failure(&error).await;
                continue;
            }
        };
        if order.len() >= 2 * HANDSHAKES_MAX {
            order.retain(|one| !one.is_finished());
        }
        if under_way.len() >= HANDSHAKES_MAX
            && let Some(oldest) = pop_unfinished(&mut order)
        {
            oldest.abort();
            way.counts.dropped.fetch_add(1, Relaxed);
        }
        let acceptor = TlsAcceptor::from(config());
        order.push_back(under_way.spawn(shake(stream, acceptor, way.clone())));
    }
}

fn pop_unfinished(order: &mut VecDeque<AbortHandle>) -> Option<AbortHandle> {
    while let Some(oldest) = order.pop_front() {
        if !oldest.is_finished() {
            return Some(oldest);
        }
    }
    None
}

async fn shake(stream: TcpStream, acceptor: TlsAcceptor, way: Way) {
    let Way { ready, counts } = way;
    // Small answers go out at once.
    let _as_it_is = stream.set_nodelay(true);
    match timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            counts.done.fetch_add(1, Relaxed);
            // The server may have stopped.
            let _gone = ready.send(Ok(stream)).await;
        }
        Ok(Err(error)) => {
            counts.failed.fetch_add(1, Relaxed);
            tracing::debug!(%error, "a TLS handshake failed");
        }
        Err(_late) => {
            counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// Returns when it is worth the while to accept again after this.
pub async fn after_failure(error: &io::Error) {
    if !is_of_connection(error) {
        tracing::warn!(%error, "cannot accept connections");
        sleep(RETRY_AFTER).await;
    }
}

// What went wrong with one connection says nothing about the next.
fn is_of_connection(error: &io::Error) -> bool {
    [
        io::ErrorKind::ConnectionRefused,
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::ConnectionReset,
    ]
    .contains(&error.kind())
}
