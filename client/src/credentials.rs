//! What a caller shows: a bearer token, and certificates.

use std::{
    fmt, fs,
    io::{self, Read as _},
    path::Path,
};

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::Interceptor,
    transport::{Certificate, ClientTlsConfig, Identity},
};

/// Longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 512;
/// Largest file of one token, in bytes: with room for white space around it.
const TOKEN_FILE_BYTES_MAX: u64 = 4096;

/// A bearer token. Never shown.
#[derive(Clone)]
pub struct Token(MetadataValue<Ascii>);

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(hidden)")
    }
}

/// Why something that a caller shows cannot be used. Never quotes it.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("{what} cannot be read: {error}")]
    Unreadable {
        what: &'static str,
        error: io::Error,
    },
    #[error("a token is 1 to {TOKEN_BYTES_MAX} letters, digits and - . _ ~ + / =")]
    Token,
    #[error("a certificate needs its private key, and a key its certificate")]
    HalfPair,
    #[error("certificates are for https:// addresses")]
    NotHttps,
    #[error("the certificates cannot be used: {0}")]
    Tls(String),
}

impl Token {
    /// # Errors
    /// When the text cannot be a bearer token (RFC 6750).
    pub fn new(text: &str) -> Result<Token, CredentialsError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        let size = text.len();
        if !(1..=TOKEN_BYTES_MAX).contains(&size) || !text.bytes().all(is_plain) {
            return Err(CredentialsError::Token);
        }
        let value: Result<MetadataValue<Ascii>, _> = format!("Bearer {text}").parse();
        let mut value = value.map_err(|_| CredentialsError::Token)?;
        // Kept out of logs, and out of the tables that headers are compressed with.
        value.set_sensitive(true);
        Ok(Token(value))
    }

    /// From a file that holds a token and nothing else; white space around it is dropped.
    ///
    /// # Errors
    /// When the file cannot be read, or holds something else.
    pub fn from_file(path: &Path) -> Result<Token, CredentialsError> {
        // A path that was mistaken may lead to something that has no end.
        let read = |file: fs::File| {
            let mut text = String::new();
            file.take(TOKEN_FILE_BYTES_MAX + 1)
                .read_to_string(&mut text)?;
            Ok(text)
        };
        let text = fs::File::open(path).and_then(read);
        let text = text.map_err(unreadable("the token file"))?;
        if text.len() as u64 > TOKEN_FILE_BYTES_MAX {
            return Err(CredentialsError::Token);
        }
        Token::new(text.trim())
    }
}

/// What TLS is to be made of.
#[derive(Clone, Default)]
pub struct Tls {
    ca: Option<Certificate>,
    identity: Option<Identity>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Tls")
            .field("ca", &self.ca.is_some())
            .field("identity", &self.identity.is_some())
            .finish()
    }
}

impl Tls {
    /// From files in PEM: the certificates that the server's must be signed by (none: the
    /// system's), and the caller's own certificate with its key, where the server asks for one.
    ///
    /// # Errors
    /// When a file cannot be read, or one of the last two is missing.
    pub fn from_files(
        ca: Option<&Path>,
        cert: Option<&Path>,
        key: Option<&Path>,
    ) -> Result<Tls, CredentialsError> {
        let ca = ca.map(|path| fs::read(path).map_err(unreadable("the CA's file")));
        let identity = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some(Identity::from_pem(
                fs::read(cert).map_err(unreadable("the certificate's file"))?,
                fs::read(key).map_err(unreadable("the key's file"))?,
            )),
            (Some(_), None) | (None, Some(_)) => return Err(CredentialsError::HalfPair),
        };
        Ok(Tls {
            ca: ca.transpose()?.map(Certificate::from_pem),
            identity,
        })
    }

    pub(crate) fn config(self) -> ClientTlsConfig {
        let Tls { ca, identity } = self;
        let config = match ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(ca),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        match identity {
            Some(identity) => config.identity(identity),
            None => config,
        }
    }
}

fn unreadable(what: &'static str) -> impl Fn(io::Error) -> CredentialsError {
    move |error| CredentialsError::Unreadable { what, error }
}

/// Shows the token, if there is one, with every call.
#[derive(Debug, Clone)]
pub(crate) struct Shown(pub(crate) Option<Token>);

impl Interceptor for Shown {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(Token(value)) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_plain_and_is_never_shown() {
        for bad in ["", "two words", "new\nline", "ümlaut", &"x".repeat(513)] {
            let error = Token::new(bad).unwrap_err();
            assert!(matches!(error, CredentialsError::Token), "{error}");
        }
        let token = Token::new("planted-secret_1.~+/=").unwrap();
        assert!(!format!("{token:?} {:?}", Shown(Some(token.clone()))).contains("planted"));
        assert!(!format!("{:?}", token.0).contains("planted"));
    }

    #[test]
    fn a_token_file_may_end_in_a_line_break() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, " abc-def\n").unwrap();
        assert_eq!(Token::from_file(&path).unwrap().0, "Bearer abc-def");
        fs::write(&path, "{\"tokens\": []}").unwrap();
        assert!(Token::from_file(&path).is_err());
        assert!(Token::from_file(&folder.path().join("none")).is_err());
        // What has no end is not read to its end.
        let error = Token::from_file(Path::new("/dev/zero")).unwrap_err();
        assert!(matches!(error, CredentialsError::Token), "{error}");
        fs::write(&path, format!("abc{}", " ".repeat(5000))).unwrap();
        assert!(Token::from_file(&path).is_err());
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let path = Path::new("any");
        for (cert, key) in [(Some(path), None), (None, Some(path))] {
            let error = Tls::from_files(None, cert, key).unwrap_err();
            assert!(matches!(error, CredentialsError::HalfPair), "{error}");
        }
    }
}
