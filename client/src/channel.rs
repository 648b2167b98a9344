//! Where the server is, and the connection to it.

use std::{fmt, str::FromStr, time::Duration};

use tonic::{
    service::interceptor::InterceptedService,
    transport::{self, Channel},
};

use crate::credentials::{CredentialsError, Shown, Tls, Token};

// Fixed windows, large enough for a long prompt: adaptive ones make the peer's flood guard close
// the connection under many small replies.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
// Finds a peer that vanished without closing the connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that shows who calls.
pub(crate) type Transport = InterceptedService<Channel, Shown>;

/// A server's address, `https://host:port`, `http://host:port`, `host:port` or `unix:PATH`, and
/// what is shown to it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    transport: transport::Endpoint,
    address: String,
    encryption: Encryption,
    token: Option<Token>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encryption {
    None,
    /// By the system's certificates.
    Usual,
    /// As it was told.
    Set,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{address:?} is not host:port, http://host:port, https://host:port or unix:PATH")]
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
        let is_https = address.starts_with(HTTPS);
        Ok(Self {
            transport,
            address: address.to_owned(),
            encryption: if is_https {
                Encryption::Usual
            } else {
                Encryption::None
            },
            token: None,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

impl Endpoint {
    /// Shows this token with every call. Without TLS, or a Unix socket, whoever listens learns it.
    #[must_use]
    pub fn with_token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Encrypts with these certificates; for an `https://` address. Without this call, the server's
    /// certificate must be signed by one that the system trusts.
    ///
    /// # Errors
    /// When the address is another one, or the certificates cannot be used.
    pub fn with_tls(mut self, tls: Tls) -> Result<Self, CredentialsError> {
        if self.encryption == Encryption::None {
            return Err(CredentialsError::NotHttps);
        }
        let encrypted = self.transport.tls_config(tls.config());
        self.transport = encrypted.map_err(|error| {
            let cause = std::error::Error::source(&error);
            CredentialsError::Tls(cause.map_or_else(|| error.to_string(), ToString::to_string))
        })?;
        self.encryption = Encryption::Set;
        Ok(self)
    }

    /// Connects when first used, and again whenever the connection has broken.
    pub(crate) fn channel(&self) -> Transport {
        let transport = self.transport.clone();
        let transport = match self.encryption {
            Encryption::None | Encryption::Set => transport,
            // Where the system has no certificates, the first call says so.
            Encryption::Usual => transport
                .tls_config(Tls::default().config())
                .unwrap_or_else(|_| self.transport.clone()),
        };
        InterceptedService::new(transport.connect_lazy(), Shown(self.token.clone()))
    }
}

const HTTPS: &str = "https://";

fn uri(address: &str) -> Option<String> {
    if let Some(path) = address.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return (!path.is_empty()).then(|| format!("unix:{path}"));
    }
    let (scheme, authority) = match address.strip_prefix(HTTPS) {
        Some(authority) => ("https", authority),
        None => ("http", address.strip_prefix("http://").unwrap_or(address)),
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = authority.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let host_is_plain = !host.is_empty() && !host.contains(['/', '@', '?', '#']);
    host_is_plain.then(|| format!("{scheme}://{host}:{port}"))
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
            ("https://h:1", "https://h:1"),
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
            "https://h",
            "ftp://h:1",
            "a b:1",
        ] {
            assert!(address.parse::<Endpoint>().is_err(), "{address}");
        }
    }
}
