//! Which encoders there are: put, found, listed and deleted, each durable before it is visible.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use prost::Message;
use thiserror::Error;

use super::{Encoder, ModelError};
use crate::store::{Change, Store, StoreError, Table};

/// Encoders of one store.
pub const ENCODERS_MAX: usize = 64;
pub const NAME_BYTES_MAX: usize = 128;
pub const MODEL_DIR_BYTES_MAX: usize = 4096;

/// All encoders, readable from any thread.
#[derive(Debug)]
pub struct Encoders {
    store: Arc<Store>,
    /// The canonical folder that all models lie below.
    models_dir: Option<PathBuf>,
    /// Writers take turns, so that what is published last is what is stored.
    writer: Mutex<()>,
    by_name: RwLock<BTreeMap<Box<str>, Arc<Registered>>>,
}

/// What is known of a name.
#[derive(Debug)]
pub struct Registered {
    pub name: Box<str>,
    /// From the models folder, with links followed when it was put; `.` for that folder itself.
    pub model_dir: Box<str>,
    pub state: State,
}

#[derive(Debug)]
pub enum State {
    Works(Arc<Encoder>),
    /// Why the folder could not be read at the start.
    Broken(String),
}

/// What was found at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    pub working: u64,
    pub broken: u64,
    /// Records that cannot be read. They stay on the disk and answer nothing.
    pub damaged: u64,
}

#[derive(Debug)]
pub struct PutOutcome {
    pub encoder: Arc<Registered>,
    /// An encoder of the name was there before.
    pub replaced: bool,
}

#[derive(Debug, Error)]
pub enum OpenError {
    #[error("cannot use the models folder {}: {source}", path.display())]
    ModelsDir {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why an encoder was not put.
#[derive(Debug, Error)]
pub enum PutError {
    #[error("name: {bytes} bytes, must be 1 to {NAME_BYTES_MAX}")]
    Name { bytes: usize },
    #[error("model_dir: {bytes} bytes, must be 1 to {MODEL_DIR_BYTES_MAX}")]
    ModelDir { bytes: usize },
    #[error("the server reads no models: start it with --models-dir")]
    NoModelsDir,
    /// One message for what is not there and what is elsewhere: the caller learns nothing of
    /// other folders.
    #[error("model_dir: no such folder below the server's models folder")]
    NotBelow,
    #[error("model_dir: {0}")]
    Model(#[from] ModelError),
    #[error("the server keeps at most {ENCODERS_MAX} encoders")]
    Full,
    #[error("the encoder was not stored: {0}")]
    Store(#[from] StoreError),
}

#[derive(Clone, PartialEq, Message)]
struct EncoderRecord {
    #[prost(string, tag = "1")]
    model_dir: String,
}

impl Encoders {
    /// Reads all records and maps their folders. A folder that cannot be read any more is listed
    /// with its problem.
    ///
    /// # Errors
    /// A models folder that is none, and a failing disk.
    pub fn open(
        store: Arc<Store>,
        models_dir: Option<&Path>,
    ) -> Result<(Self, LoadReport), OpenError> {
        let models_dir = models_dir.map(canonical_folder).transpose()?;
        let mut report = LoadReport::default();
        let mut by_name = BTreeMap::new();
        let scan = store.scan(Table::Encoders, &mut |key, payload| {
            let Some((name, model_dir)) = decode(key, payload) else {
                report.damaged += 1;
                return;
            };
            let state = match reopen(models_dir.as_deref(), &model_dir) {
                Ok((_, encoder)) => {
                    report.working += 1;
                    State::Works(Arc::new(encoder))
                }
                Err(problem) => {
                    report.broken += 1;
                    tracing::warn!(encoder = %name, %problem, "an encoder cannot be used");
                    State::Broken(problem.to_string())
                }
            };
            let registered = Registered {
                name: name.clone(),
                model_dir,
                state,
            };
            by_name.insert(name, Arc::new(registered));
        })?;
        report.damaged += scan.damaged + scan.missing;
        let encoders = Self {
            store,
            models_dir,
            writer: Mutex::new(()),
            by_name: RwLock::new(by_name),
        };
        Ok((encoders, report))
    }

    /// Maps a model folder, stores it under a name, and then publishes it; what had the name is
    /// replaced. `model_dir` is taken from the models folder; an absolute path must lie below it.
    /// Blocks on the disk. Acknowledged means on the disk.
    ///
    /// # Errors
    /// A folder that is elsewhere or no model, too many encoders, and a failing disk.
    pub fn put(&self, name: &str, model_dir: &str) -> Result<PutOutcome, PutError> {
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            return Err(PutError::Name { bytes: name.len() });
        }
        if !(1..=MODEL_DIR_BYTES_MAX).contains(&model_dir.len()) {
            let bytes = model_dir.len();
            return Err(PutError::ModelDir { bytes });
        }
        let (model_dir, encoder) = reopen(self.models_dir.as_deref(), model_dir)?;
        let registered = Arc::new(Registered {
            name: name.into(),
            model_dir,
            state: State::Works(Arc::new(encoder)),
        });

        let _turn = self.writer.lock();
        {
            let by_name = self.by_name.read();
            if !by_name.contains_key(name) && by_name.len() >= ENCODERS_MAX {
                return Err(PutError::Full);
            }
        }
        let record = EncoderRecord {
            model_dir: registered.model_dir.to_string(),
        };
        self.write(Change::Put {
            table: Table::Encoders,
            key: name.as_bytes(),
            payload: &record.encode_to_vec(),
        })?;
        let old = self
            .by_name
            .write()
            .insert(name.into(), Arc::clone(&registered));
        Ok(PutOutcome {
            encoder: registered,
            replaced: old.is_some(),
        })
    }

    /// Forgets a name; returns whether it was there. Queries that are being made finish.
    ///
    /// # Errors
    /// A failing disk: then it may be back after a restart.
    pub fn delete(&self, name: &str) -> Result<bool, StoreError> {
        let _turn = self.writer.lock();
        if self.by_name.write().remove(name).is_none() {
            return Ok(false);
        }
        self.write(Change::Delete {
            table: Table::Encoders,
            key: name.as_bytes(),
        })?;
        Ok(true)
    }

    /// All of them, sorted by name.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Registered>> {
        self.by_name.read().values().cloned().collect()
    }

    /// What is known of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Registered>> {
        self.by_name.read().get(name).cloned()
    }

    /// The encoder of a name, if there is one and it works.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<Encoder>> {
        match &self.by_name.read().get(name)?.state {
            State::Works(encoder) => Some(Arc::clone(encoder)),
            State::Broken(_) => None,
        }
    }

    fn write(&self, change: Change<'_>) -> Result<(), StoreError> {
        self.store.write(&[change])?;
        self.store.commit()
    }
}

fn canonical_folder(path: &Path) -> Result<PathBuf, OpenError> {
    let canonical = path.canonicalize().and_then(|canonical| {
        let is_folder = canonical.metadata()?.is_dir();
        let none = std::io::ErrorKind::NotADirectory;
        is_folder.then_some(canonical).ok_or_else(|| none.into())
    });
    canonical.map_err(|source| OpenError::ModelsDir {
        path: path.to_owned(),
        source,
    })
}

/// The folder's place below the models folder, and its encoder.
fn reopen(models_dir: Option<&Path>, model_dir: &str) -> Result<(Box<str>, Encoder), PutError> {
    let root = models_dir.ok_or(PutError::NoModelsDir)?;
    let folder = root.join(model_dir).canonicalize();
    let folder = folder.map_err(|_| PutError::NotBelow)?;
    let below = folder.strip_prefix(root).map_err(|_| PutError::NotBelow)?;
    let below = below.to_str().ok_or(PutError::NotBelow)?;
    if !folder.is_dir() {
        return Err(PutError::NotBelow);
    }
    let encoder = Encoder::open(&folder, root)?;
    let place = if below.is_empty() { "." } else { below };
    Ok((place.into(), encoder))
}

fn decode(key: &[u8], payload: &[u8]) -> Option<(Box<str>, Box<str>)> {
    let name = str::from_utf8(key).ok()?;
    let EncoderRecord { model_dir } = EncoderRecord::decode(payload).ok()?;
    Some((name.into(), model_dir.into()))
}
