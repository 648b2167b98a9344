//! The sockets that are served on: TCP, TCP with TLS, and Unix.

mod http;

use std::{
    fs::Permissions,
    io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
};
use tokio_stream::{
    StreamExt,
    wrappers::{ReceiverStream, UnixListenerStream},
};
use tonic::transport::{Server, server::TcpIncoming};

use crate::{
    access::{
        Access,
        handshakes::{Counts, accept, after_failure},
        tls::Tls,
    },
    config::ListenAddress,
    rpc::{access::AccessLayer, admission::Admission, traced::Traced},
    telemetry::http::{Stage, draining},
};

pub(crate) use self::http::serve_http;

/// HTTP/2 windows. Adaptive ones trip h2's flood guard at a few hundred concurrent small replies.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Calls in flight of one connection.
const STREAMS_MAX: u32 = 1024;
/// How connections are encrypted, and what became of their handshakes.
pub(crate) type Encryption = (Arc<Tls>, Arc<Counts>);
/// How long a caller may be silent before it is asked whether it is there, and how long it then
/// has to answer. A stream of events whose host vanished would hold its owners exact for ever.
pub(crate) const PING: Duration = Duration::from_secs(10);
/// Unanswered probes of TCP before a connection counts as lost: for those that say no HTTP/2 yet.
const PINGS_MAX: u32 = 2;

/// Who may connect to a Unix socket: its user and its group.
const SOCKET_MODE: u32 = 0o660;

/// A socket that is bound and not yet served.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpIncoming),
    Tls(TcpListener, Encryption),
    Unix(UnixListener, PathBuf),
}

/// What every call passes, in this order.
#[derive(Debug, Clone)]
pub(crate) struct Gates {
    pub(crate) access: Access,
    pub(crate) admission: Admission,
    pub(crate) traced: Traced,
}

impl Listener {
    /// Takes the address; a socket file that nobody answers on is taken over.
    pub(crate) fn bind(
        address: &ListenAddress,
        encryption: Option<Encryption>,
    ) -> io::Result<Listener> {
        match address {
            ListenAddress::Tcp(socket) if let Some(encryption) = encryption => {
                bind_encrypted(*socket).map(|listener| Listener::Tls(listener, encryption))
            }
            // With an incoming of one's own, the server's nodelay setting is not used.
            ListenAddress::Tcp(socket) => TcpIncoming::bind(*socket)
                .map(|incoming| incoming.with_keepalive(Some(PING)))
                .map(|incoming| incoming.with_keepalive_interval(Some(PING)))
                .map(|incoming| incoming.with_keepalive_retries(Some(PINGS_MAX)))
                .map(|incoming| Listener::Tcp(incoming.with_nodelay(Some(true)))),
            ListenAddress::Unix(path) => {
                remove_dead_socket(path);
                let listener = UnixListener::bind(path)?;
                // Whatever the umask: to connect is to write.
                let mode = Permissions::from_mode(SOCKET_MODE);
                std::fs::set_permissions(path, mode)?;
                Ok(Listener::Unix(listener, path.clone()))
            }
        }
    }

    /// With the port that was picked.
    pub(crate) fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Listener::Tcp(incoming) => incoming.local_addr().map(ListenAddress::Tcp),
            Listener::Tls(listener, _) => listener.local_addr().map(ListenAddress::Tcp),
            Listener::Unix(_, path) => Ok(ListenAddress::Unix(path.clone())),
        }
    }

    /// Serves until the server drains and the last call is answered.
    pub(crate) async fn serve(
        self,
        routes: tonic::service::Routes,
        Gates {
            access,
            admission,
            traced,
        }: Gates,
        stage: watch::Receiver<Stage>,
        ping: Duration,
    ) -> Result<(), tonic::transport::Error> {
        let router = Server::builder()
            .http2_keepalive_interval(Some(ping))
            .http2_keepalive_timeout(Some(ping))
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .max_concurrent_streams(STREAMS_MAX)
            // Who may not call takes no place of those who may.
            .layer(AccessLayer(access))
            .layer(admission)
            .layer(traced)
            .add_routes(routes);
        match self {
            Listener::Tcp(incoming) => {
                let incoming = incoming.then(|accepted| async {
                    if let Err(error) = &accepted {
                        after_failure(error).await;
                    }
                    accepted
                });
                router
                    .serve_with_incoming_shutdown(incoming, draining(stage))
                    .await
            }
            Listener::Tls(listener, (tls, counts)) => {
                let (connections, accepting) = accept(listener, move || tls.grpc(), counts);
                let incoming = ReceiverStream::new(connections);
                let serving = router.serve_with_incoming_shutdown(incoming, draining(stage));
                // The one ends once the other takes no more connections.
                let (served, ()) = tokio::join!(serving, accepting);
                served
            }
            Listener::Unix(listener, path) => {
                let incoming = UnixListenerStream::new(listener);
                let served = router
                    .serve_with_incoming_shutdown(incoming, draining(stage))
                    .await;
                remove_dead_socket(&path);
                served
            }
        }
    }
}

fn bind_encrypted(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let probes = TcpKeepalive::new()
        .with_time(PING)
        .with_interval(PING)
        .with_retries(PINGS_MAX);
    // What is accepted inherits it.
    SockRef::from(&listener).set_tcp_keepalive(&probes)?;
    TcpListener::from_std(listener)
}

// A socket file that nobody answers on is left over from a server that was killed. Nothing else is
// ever removed, whatever the address names.
fn remove_dead_socket(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        // What cannot be removed fails at bind.
        let _kept = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &Path, may_bind: bool) {
        let address = ListenAddress::Unix(path.to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        assert_eq!(Listener::bind(&address, None).is_ok(), may_bind);
    }

    #[tokio::test]
    async fn what_is_accepted_is_kept_alive() {
        let anywhere: SocketAddr = ([127, 0, 0, 1], 0).into();
        let address = ListenAddress::Tcp(anywhere);
        let Listener::Tcp(mut incoming) = Listener::bind(&address, None).unwrap() else {
            panic!("{address} is TCP");
        };
        let there = incoming.local_addr().unwrap();
        let _caller = std::net::TcpStream::connect(there).unwrap();
        check_kept_alive(&incoming.next().await.unwrap().unwrap());

        let encrypted = bind_encrypted(anywhere).unwrap();
        let there = encrypted.local_addr().unwrap();
        let _caller = std::net::TcpStream::connect(there).unwrap();
        check_kept_alive(&encrypted.accept().await.unwrap().0);
    }

    #[track_caller]
    fn check_kept_alive(accepted: &tokio::net::TcpStream) {
        let socket = SockRef::from(accepted);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), PING);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), PING);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), PINGS_MAX);
    }

    #[test]
    fn a_dead_socket_is_taken_over_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let dead = folder.path().join("dead");
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
        check(&dead, true);
        let live = folder.path().join("live");
        let _listening = std::os::unix::net::UnixListener::bind(&live).unwrap();
        check(&live, false);
        let file = folder.path().join("file");
        std::fs::write(&file, "kept").unwrap();
        check(&file, false);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    }
}
