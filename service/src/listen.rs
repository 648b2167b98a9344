//! The sockets that gRPC is served on: TCP and Unix.

use std::{
    io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{net::UnixListener, sync::watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Server, server::TcpIncoming};

use crate::{
    config::ListenAddress,
    rpc::admission::Admission,
    telemetry::http::{Stage, draining},
};

/// HTTP/2 windows. Adaptive ones trip h2's flood guard at a few hundred concurrent small replies.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Calls in flight of one connection.
const STREAMS_MAX: u32 = 1024;
/// How long a caller may be silent before it is asked whether it is there, and how long it then
/// has to answer. A stream of events whose host vanished would hold its owners exact for ever.
pub(crate) const PING: Duration = Duration::from_secs(10);
/// Unanswered probes of TCP before a connection counts as lost: for those that say no HTTP/2 yet.
const PINGS_MAX: u32 = 2;

/// A socket that is bound and not yet served.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpIncoming),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Takes the address; a socket file that nobody answers on is taken over.
    pub(crate) fn bind(address: &ListenAddress) -> io::Result<Listener> {
        match address {
            // With an incoming of one's own, the server's nodelay setting is not used.
            ListenAddress::Tcp(socket) => TcpIncoming::bind(*socket)
                .map(|incoming| incoming.with_keepalive(Some(PING)))
                .map(|incoming| incoming.with_keepalive_interval(Some(PING)))
                .map(|incoming| incoming.with_keepalive_retries(Some(PINGS_MAX)))
                .map(|incoming| Listener::Tcp(incoming.with_nodelay(Some(true)))),
            ListenAddress::Unix(path) => {
                remove_dead_socket(path);
                Ok(Listener::Unix(UnixListener::bind(path)?, path.clone()))
            }
        }
    }

    /// With the port that was picked.
    pub(crate) fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Listener::Tcp(incoming) => incoming.local_addr().map(ListenAddress::Tcp),
            Listener::Unix(_, path) => Ok(ListenAddress::Unix(path.clone())),
        }
    }

    /// Serves until the server drains and the last call is answered.
    pub(crate) async fn serve(
        self,
        routes: tonic::service::Routes,
        admission: Admission,
        stage: watch::Receiver<Stage>,
        ping: Duration,
    ) -> Result<(), tonic::transport::Error> {
        let router = Server::builder()
            .http2_keepalive_interval(Some(ping))
            .http2_keepalive_timeout(Some(ping))
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .max_concurrent_streams(STREAMS_MAX)
            .layer(admission)
            .add_routes(routes);
        match self {
            Listener::Tcp(incoming) => {
                router
                    .serve_with_incoming_shutdown(incoming, draining(stage))
                    .await
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
    use tokio_stream::StreamExt;

    use super::*;

    fn check(path: &Path, may_bind: bool) {
        let address = ListenAddress::Unix(path.to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        assert_eq!(Listener::bind(&address).is_ok(), may_bind);
    }

    #[tokio::test]
    async fn what_is_accepted_is_kept_alive() {
        let address = ListenAddress::Tcp(([127, 0, 0, 1], 0).into());
        let Listener::Tcp(mut incoming) = Listener::bind(&address).unwrap() else {
            panic!("{address} is TCP");
        };
        let there = incoming.local_addr().unwrap();
        let _caller = std::net::TcpStream::connect(there).unwrap();
        let accepted = incoming.next().await.unwrap().unwrap();
        let socket = socket2::SockRef::from(&accepted);
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
