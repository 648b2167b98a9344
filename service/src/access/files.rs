//! The files of TLS and of tokens: read at the start, and again when they change.
//!
//! They are read once a second and compared, not asked for their times: a file that was replaced
//! within the tick of a clock, or by moving a link to its folder, is noticed as well. A thread does
//! it, since a file may lie in a network.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use super::{
    gate::Gate,
    tls::{Material, Tls, TlsError},
    tokens::{Digest, FILE_BYTES_MAX, Token, TokensError, digest, parse},
};
use crate::config::{HttpTls, TlsFiles};

/// How often the files are read again.
const EVERY: Duration = Duration::from_secs(1);

/// Why the token file was not taken.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    #[error("--token-file: {error}")]
    Unreadable { error: io::Error },
    #[error("--token-file: larger than {FILE_BYTES_MAX} bytes")]
    TooLarge,
    #[error("--token-file: {error}")]
    Content { error: TokensError },
}

/// What is read again, each with the digest of what was read last, taken or not.
#[derive(Debug)]
pub struct Watched {
    pub tokens: Option<(PathBuf, Arc<Gate>, Digest)>,
    pub tls: Option<(TlsFiles, HttpTls, Arc<Tls>, Digest)>,
    /// How often files were read that had changed, and were or were not taken.
    pub taken: Arc<AtomicU64>,
    pub refused: Arc<AtomicU64>,
}

/// The tokens of a file, and the digest of its bytes.
///
/// # Errors
/// When it cannot be read, or is not as documented.
pub fn read_tokens(path: &Path) -> Result<(Vec<Token>, Digest), TokenFileError> {
    let bytes = read(path)?;
    Ok((tokens_of(&bytes)?, digest(&bytes)))
}

impl Watched {
    /// Reads the files again every second, and whenever `wake` says so, until its other end is
    /// gone.
    pub fn run(mut self, wake: &Receiver<()>) {
        loop {
            match wake.recv_timeout(EVERY) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Takes what has changed. What is not as it should be changes nothing, and is told once.
    pub fn look(&mut self) {
        if let Some((path, gate, last)) = &mut self.tokens {
            let read = changed_tokens(path, last);
            let taken = read.map(|tokens| {
                tokens.map(|tokens| {
                    let count = tokens.len();
                    gate.replace(tokens);
                    tracing::info!(tokens = count, "read the token file again");
                })
            });
            tell(taken, "the token file", (&self.taken, &self.refused));
        }
        if let Some((files, http, tls, last)) = &mut self.tls {
            let read = changed_material(files, last);
            let taken = read.and_then(|material| {
                let configs = material.map(|material| material.configs(*http));
                Ok(configs.transpose()?.map(|configs| {
                    tls.replace(configs);
                    tracing::info!("read the certificates again");
                }))
            });
            tell(taken, "the certificates", (&self.taken, &self.refused));
        }
    }
}

fn tell<E: std::fmt::Display>(
    taken: Result<Option<()>, E>,
    what: &'static str,
    (yes, no): (&AtomicU64, &AtomicU64),
) {
    match taken {
        Ok(None) => {}
        Ok(Some(())) => {
            yes.fetch_add(1, Relaxed);
        }
        Err(error) => {
            no.fetch_add(1, Relaxed);
            tracing::error!(%error, "{what} changed and cannot be taken: nothing has changed");
        }
    }
}

fn changed_tokens(path: &Path, last: &mut Digest) -> Result<Option<Vec<Token>>, TokenFileError> {
    // One that cannot be read is told of once, as one that can and is wrong.
    let bytes = read(path);
    let now = bytes.as_ref().map_or(UNREADABLE, |bytes| digest(bytes));
    if std::mem::replace(last, now) == now {
        return Ok(None);
    }
    Ok(Some(tokens_of(&bytes?)?))
}

fn tokens_of(bytes: &[u8]) -> Result<Vec<Token>, TokenFileError> {
    parse(bytes).map_err(|error| TokenFileError::Content { error })
}

fn changed_material(files: &TlsFiles, last: &mut Digest) -> Result<Option<Material>, TlsError> {
    let material = Material::read(files);
    let now = material.as_ref().map_or(UNREADABLE, Material::digest);
    if std::mem::replace(last, now) == now {
        return Ok(None);
    }
    material.map(Some)
}

/// Of a file that cannot be read; no bytes have it.
const UNREADABLE: Digest = [0; 32];

fn read(path: &Path) -> Result<Vec<u8>, TokenFileError> {
    let bytes = read_file(path, FILE_BYTES_MAX as u64);
    let bytes = bytes.map_err(|error| TokenFileError::Unreadable { error })?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(TokenFileError::TooLarge);
    }
    Ok(bytes)
}

/// The bytes of a file, and one more than `bytes_max` at most.
///
/// # Errors
/// When it cannot be read, or is a pipe: that one would wait for somebody to write into it, and
/// the thread that looks for changes would look for no more.
pub(super) fn read_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    if path.metadata()?.file_type().is_fifo() {
        let problem = "a pipe, and it must be a file: it is read again when it changes";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(bytes_max + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}
