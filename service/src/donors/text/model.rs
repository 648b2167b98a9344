//! A sentence model of the operator's: an ONNX file and its tokenizer, run by ONNX Runtime.

use std::{
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use fastembed::{
    InitOptionsUserDefined, Pooling, TextEmbedding, TokenizerFiles, UserDefinedEmbeddingModel,
};
use ort::session::builder::AutoDevicePolicy;
use serde::Deserialize;
use thiserror::Error;

use super::{Embed, ModelFailure, check, runtime};

/// Most dimensions of a model's vectors.
pub const DIMENSIONS_MAX: usize = 4_096;
/// Largest file of a model, in bytes: ONNX files end at 2 GiB.
const FILE_BYTES_MAX: u64 = 2 << 30;
/// Longest text that a model is given, in tokens; its own tokenizer_config.json may say less.
const TOKENS_MAX: usize = 512;
const POOLING: &str = "1_Pooling/config.json";

/// Where a model and what runs it lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFiles {
    /// A folder with model.onnx, tokenizer.json, config.json, special_tokens_map.json and
    /// tokenizer_config.json. When it has 1_Pooling/config.json, as sentence-transformers writes
    /// it, that says how tokens' vectors become one; else it is their mean.
    pub folder: PathBuf,
    /// ONNX Runtime's shared library, or the folder with it.
    pub onnxruntime: PathBuf,
    /// Threads that one run of the model uses.
    pub threads: usize,
}

/// Why a model cannot be used. Made at the start, before there is any prompt.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("--onnxruntime {}: {source}", given.display())]
    NoLibrary { given: PathBuf, source: io::Error },
    #[error("--onnxruntime {}: there is no libonnxruntime in the folder", folder.display())]
    NoLibraryIn { folder: PathBuf },
    #[error("--onnxruntime {}: {reason}", library.display())]
    Library { library: PathBuf, reason: String },
    #[error("--onnxruntime: this process already uses {}", library.display())]
    OtherLibrary { library: PathBuf },
    #[error("--embedding-model: {}: {source}", file.display())]
    File { file: PathBuf, source: io::Error },
    #[error("--embedding-model: {}: larger than {FILE_BYTES_MAX} bytes", file.display())]
    Large { file: PathBuf },
    #[error("--embedding-model: {}: {reason}", file.display())]
    Config { file: PathBuf, reason: String },
    #[error("--embedding-model {}: {reason}", folder.display())]
    Model { folder: PathBuf, reason: String },
    #[error("--embedding-model {}: a try failed: {failure}", folder.display())]
    Try {
        folder: PathBuf,
        failure: ModelFailure,
    },
    #[error(
        "--embedding-model {}: its vectors have {found} dimensions, its config.json says {said}",
        folder.display()
    )]
    Dimensions {
        folder: PathBuf,
        found: usize,
        said: usize,
    },
}

/// A model that is ready. To be owned by one thread.
#[expect(missing_debug_implementations, reason = "what it holds has none")]
pub struct TextModel {
    model: TextEmbedding,
    dimensions: usize,
}

impl TextModel {
    /// Loads the runtime and the model, and tries them.
    ///
    /// # Errors
    /// Whatever is missing or does not go together; each names the flag.
    pub fn open(files: &ModelFiles) -> Result<TextModel, OpenError> {
        let folder = &files.folder;
        let dimensions = dimensions(folder)?;
        let described = UserDefinedEmbeddingModel::new(
            read(folder, "model.onnx")?,
            TokenizerFiles {
                tokenizer_file: read(folder, "tokenizer.json")?,
                config_file: read(folder, "config.json")?,
                special_tokens_map_file: read(folder, "special_tokens_map.json")?,
                tokenizer_config_file: read(folder, "tokenizer_config.json")?,
            },
        )
        .with_pooling(pooling(folder)?);
        let refused = |reason: String| OpenError::Model {
            folder: folder.clone(),
            reason,
        };
        // A library that only looks right makes the crates panic.
        let open = || {
            let options = InitOptionsUserDefined::new()
                .with_environment(runtime::environment(&files.onnxruntime)?)
                .with_max_length(TOKENS_MAX)
                .with_intra_threads(files.threads)
                .with_auto_device(AutoDevicePolicy::PreferCPU)
                // Its threads would burn the cores that serve calls while they wait.
                .with_session_config("session.intra_op.allow_spinning", "0");
            TextEmbedding::try_new_from_user_defined(described, options)
                .map_err(|error| refused(error.to_string()))
        };
        let model = catch_unwind(AssertUnwindSafe(open))
            .map_err(|_| refused("ONNX Runtime and the model do not go together".into()))??;
        let mut opened = TextModel { model, dimensions };
        opened.check_dimensions(folder)?;
        Ok(opened)
    }

    fn check_dimensions(&mut self, folder: &Path) -> Result<(), OpenError> {
        let failed = |failure| OpenError::Try {
            folder: folder.to_owned(),
            failure,
        };
        let texts = ["a try", "another, longer one"];
        let vectors = self.embed(&texts).map_err(failed)?;
        let found = vectors.first().map_or(0, Vec::len);
        if found != self.dimensions {
            return Err(OpenError::Dimensions {
                folder: folder.to_owned(),
                found,
                said: self.dimensions,
            });
        }
        check(&vectors, texts.len(), self.dimensions).map_err(failed)
    }
}

impl Embed for TextModel {
    fn dimensions(&self) -> usize {
        self.dimensions
    }

    // Texts come from anybody and go through much code of others: a panic there is a failure of
    // this text. The model has no state between runs that it could leave half changed.
    fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ModelFailure> {
        let run = || self.model.embed(texts, Some(texts.len().max(1)));
        catch_unwind(AssertUnwindSafe(run))
            .map_err(|_| ModelFailure::Panicked)?
            .map_err(|_| ModelFailure::Run)
    }
}

#[derive(Deserialize)]
struct Config {
    hidden_size: usize,
}

fn dimensions(folder: &Path) -> Result<usize, OpenError> {
    let name = "config.json";
    let Config { hidden_size } = parse(folder, name, &read(folder, name)?)?;
    if (1..=DIMENSIONS_MAX).contains(&hidden_size) {
        return Ok(hidden_size);
    }
    Err(OpenError::Config {
        file: folder.join(name),
        reason: format!("hidden_size must be from 1 to {DIMENSIONS_MAX}"),
    })
}

#[derive(Deserialize)]
struct PoolingConfig {
    #[serde(default)]
    pooling_mode_cls_token: bool,
    #[serde(default)]
    pooling_mode_mean_tokens: bool,
}

fn pooling(folder: &Path) -> Result<Pooling, OpenError> {
    if !folder.join(POOLING).exists() {
        return Ok(Pooling::Mean);
    }
    let config: PoolingConfig = parse(folder, POOLING, &read(folder, POOLING)?)?;
    match (
        config.pooling_mode_cls_token,
        config.pooling_mode_mean_tokens,
    ) {
        (true, false) => Ok(Pooling::Cls),
        (false, true) => Ok(Pooling::Mean),
        (true, true) | (false, false) => Err(OpenError::Config {
            file: folder.join(POOLING),
            reason: "must ask for either the first token or the mean".into(),
        }),
    }
}

fn parse<'a, T: Deserialize<'a>>(
    folder: &Path,
    name: &str,
    bytes: &'a [u8],
) -> Result<T, OpenError> {
    serde_json::from_slice(bytes).map_err(|error| OpenError::Config {
        file: folder.join(name),
        reason: error.to_string(),
    })
}

fn read(folder: &Path, name: &str) -> Result<Vec<u8>, OpenError> {
    let file = folder.join(name);
    let failed = |source| OpenError::File {
        file: file.clone(),
        source,
    };
    if fs::metadata(&file).map_err(failed)?.len() > FILE_BYTES_MAX {
        return Err(OpenError::Large { file });
    }
    fs::read(&file).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 5] = [
        "config.json",
        "model.onnx",
        "tokenizer.json",
        "special_tokens_map.json",
        "tokenizer_config.json",
    ];

    /// A folder with these files, the last of which is as given.
    fn check(files: &[&str], last: &str, expected: &str) {
        let folder = tempfile::tempdir().unwrap();
        for name in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, r#"{"hidden_size": 32}"#).unwrap();
        }
        if let Some(name) = files.last() {
            fs::write(folder.path().join(name), last).unwrap();
        }
        let files = ModelFiles {
            folder: folder.path().to_owned(),
            onnxruntime: folder.path().join("libonnxruntime.so"),
            threads: 1,
        };
        let error = TextModel::open(&files).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with("--"), "{error}");
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn each_missing_file_is_named() {
        let size = r#"{"hidden_size": 32}"#;
        for present in 0..FILES.len() {
            check(&FILES[..present], size, FILES[present]);
        }
        check(&FILES, size, "--onnxruntime");
    }

    #[test]
    fn what_the_files_say_is_checked() {
        check(&FILES[..1], "{}", "hidden_size");
        check(&FILES[..1], r#"{"hidden_size": 0}"#, "from 1 to 4096");
        check(&FILES[..1], r#"{"hidden_size": 4097}"#, "from 1 to 4096");
        let pooled: Vec<&str> = FILES.into_iter().chain([POOLING]).collect();
        check(&pooled, "{}", "first token or the mean");
        let mean = r#"{"pooling_mode_mean_tokens": true}"#;
        check(&pooled, mean, "--onnxruntime");
    }
}
