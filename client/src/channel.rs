//! Where the server is, and the connection to it.

use std::{fmt, str::FromStr, time::Duration};

use tonic::transport::{self, Channel};

// Fixed windows, large enough for a long prompt: adaptive ones make the peer's flood guard close
// the connection under many small replies.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
// Finds a peer that vanished without closing the connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A server's address: `http://host:port`, `host:port` or `unix:PATH`.
#[derive(Debug, Clone)]
pub struct Endpoint {
    transport: transport::Endpoint,
    address: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{address:?} is not host:port, http://host:port or unix:PATH")]
pub struct EndpointError {
    pub address: String,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(address: &str) -> Result<Self, EndpointError> {
        let invalid = || EndpointError {
            address: address.to_owned(),
        };
        let uri = uri(address).ok_or_else(invalid)?;
        let transport = transport::Endpoint::from_shared(uri)
            .map_err(|_| invalid())?
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        Ok(Self {
            transport,
            address: address.to_owned(),
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

impl Endpoint {
    /// Connects when first used, and again whenever the connection has broken.
    pub(crate) fn channel(&self) -> Channel {
        self.transport.connect_lazy()
    }
}

fn uri(address: &str) -> Option<String> {
    if let Some(path) = address.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return (!path.is_empty()).then(|| format!("unix:{path}"));
    }
    let authority = address.strip_prefix("http://").unwrap_or(address);
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = authority.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let host_is_plain = !host.is_empty() && !host.contains(['/', '@', '?', '#']);
    host_is_plain.then(|| format!("http://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_tcp_or_a_unix_socket() {
        let same = [
            ("localhost:50051", "http://localhost:50051"),
            ("http://127.0.0.1:1/", "http://127.0.0.1:1"),
            ("[::1]:50051", "http://[::1]:50051"),
            ("unix:/run/k.sock", "unix:/run/k.sock"),
            ("unix:///run/k.sock", "unix:/run/k.sock"),
        ];
        for (address, expected) in same {
            assert_eq!(uri(address).as_deref(), Some(expected), "{address}");
            assert!(address.parse::<Endpoint>().is_ok(), "{address}");
        }
        for address in [
            "",
            "localhost",
            "unix:",
            ":1",
            "h:99999",
            "https://h:1",
            "a b:1",
        ] {
            assert!(address.parse::<Endpoint>().is_err(), "{address}");
        }
    }
}
