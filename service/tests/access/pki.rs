//! Certificates, made as they are needed.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair,
};
use tokio_rustls::rustls::{
    self, ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tonic::transport::{self, ClientTlsConfig, Identity};

/// Signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

/// A certificate and its key, in PEM.
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Authority {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// For 127.0.0.1 and localhost.
    pub(crate) fn server(&self) -> Pair {
        self.sign(ExtendedKeyUsagePurpose::ServerAuth)
    }

    pub(crate) fn client(&self) -> Pair {
        self.sign(ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, purpose: ExtendedKeyUsagePurpose) -> Pair {
        let key = KeyPair::generate().unwrap();
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![purpose];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Pair {
            cert: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// A caller that trusts whom this one signed.
    pub(crate) fn trusted(&self, own: Option<&Pair>) -> ClientTlsConfig {
        let ca = transport::Certificate::from_pem(self.pem());
        let config = ClientTlsConfig::new().ca_certificate(ca);
        match own {
            Some(own) => config.identity(Identity::from_pem(&own.cert, &own.key)),
            None => config,
        }
    }
}

impl Pair {
    /// Written as `NAME.pem` and `NAME.key`.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (cert, key) = (
            folder.join(format!("{name}.pem")),
            folder.join(format!("{name}.key")),
        );
        fs::write(&key, &self.key).unwrap();
        fs::write(&cert, &self.cert).unwrap();
        (cert, key)
    }
}

impl Authority {
    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        roots
    }
}

/// A caller that speaks HTTP/1.1.
pub(crate) fn client_config(roots: RootCertStore, own: Option<&Pair>) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let cert = CertificateDer::from_pem_slice(own.cert.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![cert], key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}
