//! Flags on who may call: TLS, tokens, and what is open without one.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use thiserror::Error;

/// Who may call, and how.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Access")]
pub struct AccessArgs {
    /// The server's certificate chain, in PEM: TCP and HTTP are served over TLS alone. Read again
    /// when it changes, as are all files of this part. Unix sockets stay plain.
    #[arg(
        long,
        env = "KVATLAS_SERVER_TLS_CERT",
        requires = "tls_key",
        value_name = "PATH"
    )]
    pub tls_cert: Option<PathBuf>,

    /// The certificate's private key, in PEM.
    #[arg(
        long,
        env = "KVATLAS_SERVER_TLS_KEY",
        requires = "tls_cert",
        value_name = "PATH"
    )]
    pub tls_key: Option<PathBuf>,

    /// Certificates, in PEM, that callers' certificates must be signed by. Without it callers need
    /// no certificate.
    #[arg(
        long,
        env = "KVATLAS_TLS_CLIENT_CA",
        requires = "tls_cert",
        value_name = "PATH"
    )]
    pub tls_client_ca: Option<PathBuf>,

    /// TLS of the HTTP port.
    #[arg(long, env = "KVATLAS_HTTP_TLS", value_enum, default_value_t = HttpTls::Same)]
    pub http_tls: HttpTls,

    /// Who may call, in JSON: tokens, each with a role and what it may name (docs/access.md).
    /// Without it everybody may do everything.
    #[arg(long, env = "KVATLAS_SERVER_TOKEN_FILE", value_name = "PATH")]
    pub token_file: Option<PathBuf>,

    /// Who may ask for the description of the calls (gRPC reflection).
    #[arg(long, env = "KVATLAS_REFLECTION", value_enum, default_value_t = Exposure::Token)]
    pub reflection: Exposure,

    /// Who may ask how the server is (gRPC health, /healthz).
    #[arg(long, env = "KVATLAS_HEALTH", value_enum, default_value_t = Exposure::Open)]
    pub health: Exposure,
}

/// To whom a part of the server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Exposure {
    /// To everybody.
    Open,
    /// To those with a token; to everybody where there is no token file.
    Token,
    /// To nobody: it is not served.
    Off,
}

/// TLS of the HTTP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HttpTls {
    /// As for gRPC.
    Same,
    /// TLS, and no certificate is asked of callers: for browsers and probes.
    ServerOnly,
    /// No TLS.
    Off,
}

impl Default for AccessArgs {
    fn default() -> AccessArgs {
        AccessArgs {
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            http_tls: HttpTls::Same,
            token_file: None,
            reflection: Exposure::Token,
            health: Exposure::Open,
        }
    }
}

/// The files that TLS needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub client_ca: Option<PathBuf>,
}

/// Flags that do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AccessArgsError {
    #[error("--tls-cert and --tls-key need each other")]
    HalfPair,
    #[error("--tls-client-ca needs --tls-cert and --tls-key")]
    ClientCaAlone,
}

impl AccessArgs {
    /// The files of TLS, where it is asked for.
    ///
    /// # Errors
    /// When only a part of them is named.
    pub fn tls(&self) -> Result<Option<TlsFiles>, AccessArgsError> {
        match (&self.tls_cert, &self.tls_key, &self.tls_client_ca) {
            (None, None, None) => Ok(None),
            (None, None, Some(_)) => Err(AccessArgsError::ClientCaAlone),
            (Some(cert), Some(key), client_ca) => Ok(Some(TlsFiles {
                cert: cert.clone(),
                key: key.clone(),
                client_ca: client_ca.clone(),
            })),
            (Some(_), None, _) | (None, Some(_), _) => Err(AccessArgsError::HalfPair),
        }
    }
}

/// A file that a caller shows: the flag's, else the environment's.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where the environment is read; the server's flags of the same names must not \
              see what is meant for callers"
)]
#[must_use]
pub fn caller_file(flag: Option<&PathBuf>, name: &str) -> Option<PathBuf> {
    let given = || std::env::var_os(name).filter(|path| !path.is_empty());
    flag.cloned().or_else(|| given().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_tls_is_an_error() {
        let check = |[cert, key, ca]: [bool; 3], expected: Result<bool, AccessArgsError>| {
            let path = |is_given: bool| is_given.then(|| PathBuf::from("f"));
            let args = AccessArgs {
                tls_cert: path(cert),
                tls_key: path(key),
                tls_client_ca: path(ca),
                ..AccessArgs::default()
            };
            assert_eq!(args.tls().map(|files| files.is_some()), expected);
        };
        check([false; 3], Ok(false));
        check([true, true, false], Ok(true));
        check([true; 3], Ok(true));
        check([true, false, false], Err(AccessArgsError::HalfPair));
        check([false, true, true], Err(AccessArgsError::HalfPair));
        check([false, false, true], Err(AccessArgsError::ClientCaAlone));
    }
}
