//! What a command shows to the server: a token, and certificates.

use std::path::PathBuf;

use clap::Args;
use kvatlas_client::{Endpoint, Tls, Token};

use super::error::CliError;
use crate::config::caller_file;

/// What is shown to the server. `kvatlas serve` has flags of the same names for what it asks for;
/// so the environment is read here, where it can have other names.
#[derive(Debug, Args)]
pub(super) struct ShownArgs {
    /// File with the token to show, and nothing else [env: KVATLAS_TOKEN_FILE]
    #[arg(long, global = true, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// Certificates that an https:// server's must be signed by, in PEM; else the system's
    /// [env: KVATLAS_TLS_CA]
    #[arg(long, global = true, value_name = "PATH")]
    tls_ca: Option<PathBuf>,
    /// Own certificate, where the server asks for one, in PEM [env: KVATLAS_TLS_CERT]
    #[arg(long, global = true, value_name = "PATH")]
    tls_cert: Option<PathBuf>,
    /// The own certificate's private key, in PEM [env: KVATLAS_TLS_KEY]
    #[arg(long, global = true, value_name = "PATH")]
    tls_key: Option<PathBuf>,
}

impl ShownArgs {
    /// The server, with what is shown to it.
    pub(super) fn shown_to(&self, mut server: Endpoint) -> Result<Endpoint, CliError> {
        let is_https = server.to_string().starts_with("https://");
        // What the environment says of TLS is for those servers that have it.
        let pem = |flag: &Option<PathBuf>, name| match flag {
            None if !is_https => None,
            flag => caller_file(flag.as_ref(), name),
        };
        let ca = pem(&self.tls_ca, "KVATLAS_TLS_CA");
        let cert = pem(&self.tls_cert, "KVATLAS_TLS_CERT");
        let key = pem(&self.tls_key, "KVATLAS_TLS_KEY");
        let usage = |error: kvatlas_client::CredentialsError| CliError::Usage(error.to_string());
        if ca.is_some() || cert.is_some() || key.is_some() {
            let tls = Tls::from_files(ca.as_deref(), cert.as_deref(), key.as_deref());
            server = server.with_tls(tls.map_err(usage)?).map_err(usage)?;
        }
        if let Some(path) = caller_file(self.token_file.as_ref(), "KVATLAS_TOKEN_FILE") {
            server = server.with_token(Token::from_file(&path).map_err(usage)?);
        }
        Ok(server)
    }
}
