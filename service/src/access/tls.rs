//! Certificates: read from files, and replaced while connections go on.

use std::{io, path::Path, sync::Arc};

use parking_lot::RwLock;
use sha2::{Digest as _, Sha256};
use tokio_rustls::rustls::{
    self, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
    server::{VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier},
};

use super::{files::read_file, tokens::Digest};
use crate::config::{HttpTls, TlsFiles};

/// Largest file of certificates, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What new connections are answered with.
#[derive(Debug, Clone)]
pub struct Configs {
    pub grpc: Arc<ServerConfig>,
    pub http: Arc<ServerConfig>,
}

/// The newest good configuration.
#[derive(Debug)]
pub struct Tls {
    live: RwLock<Configs>,
}

impl Tls {
    #[must_use]
    pub fn new(configs: Configs) -> Tls {
        Tls {
            live: RwLock::new(configs),
        }
    }

    /// For connections that come from now on.
    pub fn replace(&self, configs: Configs) {
        *self.live.write() = configs;
    }

    #[must_use]
    pub fn grpc(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.live.read().grpc)
    }

    #[must_use]
    pub fn http(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.live.read().http)
    }
}

/// Why files of certificates were not taken. Never quotes what is in them.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{flag}: {error}")]
    Unreadable {
        flag: &'static str,
        error: io::Error,
    },
    #[error("{flag}: larger than {FILE_BYTES_MAX} bytes")]
    TooLarge { flag: &'static str },
    #[error("{flag}: not PEM, or not what it must hold")]
    Form { flag: &'static str },
    #[error("--tls-cert: holds no certificate")]
    NoCertificate,
    #[error("--tls-key: holds no private key")]
    NoKey,
    #[error("--tls-cert and --tls-key do not go together: {0}")]
    Pair(rustls::Error),
    #[error("--tls-client-ca: holds no certificate that can sign")]
    ClientCa(#[from] VerifierBuilderError),
    #[error("the TLS library has no protocol version: {0}")]
    Versions(rustls::Error),
}

/// The bytes of all files, as they were at one time.
#[derive(Debug)]
pub struct Material {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Material {
    pub fn read(files: &TlsFiles) -> Result<Material, TlsError> {
        let client_ca = files.client_ca.as_deref();
        Ok(Material {
            cert: read("--tls-cert", &files.cert)?,
            key: read("--tls-key", &files.key)?,
            client_ca: client_ca
                .map(|path| read("--tls-client-ca", path))
                .transpose()?,
        })
    }

    /// Differs when any byte does.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        for file in [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()] {
            let file = file.map_or(&[][..], |file| file);
            hash.update((file.len() as u64).to_le_bytes());
            hash.update(file);
        }
        hash.finalize().into()
    }

    /// # Errors
    /// When the files do not go together, or hold something else.
    pub fn configs(&self, http: HttpTls) -> Result<Configs, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let verifier = self.verifier(&provider)?;
        let http_verifier = match http {
            HttpTls::Same => verifier.clone(),
            HttpTls::ServerOnly | HttpTls::Off => None,
        };
        let http = self.config(&provider, http_verifier, b"http/1.1")?;
        let grpc = self.config(&provider, verifier, b"h2")?;
        Ok(Configs { grpc, http })
    }

    fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
        let Some(client_ca) = &self.client_ca else {
            return Ok(None);
        };
        let flag = "--tls-client-ca";
        let mut roots = RootCertStore::empty();
        for certificate in certificates(flag, client_ca)? {
            let added = roots.add(certificate);
            added.map_err(|_| TlsError::Form { flag })?;
        }
        let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        Ok(Some(builder.build()?))
    }

    fn config(
        &self,
        provider: &Arc<CryptoProvider>,
        verifier: Option<Arc<dyn ClientCertVerifier>>,
        protocol: &[u8],
    ) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = certificates("--tls-cert", &self.cert)?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| {
            if matches!(error, pem::Error::NoItemsFound) {
                TlsError::NoKey
            } else {
                TlsError::Form { flag: "--tls-key" }
            }
        })?;
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Versions)?;
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(TlsError::Pair)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates(flag: &'static str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsError::Form { flag })
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |error| TlsError::Unreadable { flag, error };
    let bytes = read_file(path, FILE_BYTES_MAX).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(TlsError::TooLarge { flag });
    }
    Ok(bytes)
}
