//! ONNX Runtime, a shared library that is loaded when the first model is opened.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ort::environment::Environment;
use parking_lot::Mutex;

use super::model::OpenError;

/// A process can have one, and must keep it: what is released cannot be made again.
static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

struct Loaded {
    library: PathBuf,
    environment: Environment,
}

/// Loads the library, which may also be given by the folder that it lies in.
pub(super) fn environment(given: &Path) -> Result<Environment, OpenError> {
    let library = library(given)?;
    let mut loaded = LOADED.lock();
    if let Some(loaded) = &*loaded {
        if loaded.library != library {
            return Err(OpenError::OtherLibrary {
                library: loaded.library.clone(),
            });
        }
        return Ok(loaded.environment.clone());
    }
    let refused = |reason: String| OpenError::Library {
        library: library.clone(),
        reason,
    };
    let environment = ort::init_from(&library)
        .map_err(|error| refused(error.to_string()))?
        .with_name("kvatlas")
        .with_telemetry(false)
        .build()
        .map_err(|error| refused(error.to_string()))?;
    *loaded = Some(Loaded {
        library,
        environment: environment.clone(),
    });
    Ok(environment)
}

// With its whole path: a relative one would be looked for beside this program first.
fn library(given: &Path) -> Result<PathBuf, OpenError> {
    let missing = |source| OpenError::NoLibrary {
        given: given.to_owned(),
        source,
    };
    let path = given.canonicalize().map_err(missing)?;
    if !path.is_dir() {
        return Ok(path);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&path).map_err(missing)? {
        let entry = entry.map_err(missing)?;
        if is_library(&entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        }
    }
    // The plain name first, if it is there.
    found.sort();
    let first = found.into_iter().next();
    first.ok_or(OpenError::NoLibraryIn { folder: path })
}

// Others lie beside it, such as libonnxruntime_providers_shared.so.
fn is_library(name: &str) -> bool {
    name == "libonnxruntime.so"
        || name.starts_with("libonnxruntime.so.")
        || (name.starts_with("libonnxruntime.") && name.ends_with(".dylib"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_stands_for_the_library_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let error = library(&folder).unwrap_err().to_string();
        assert!(error.contains("--onnxruntime"), "{error}");
        for name in [
            "libonnxruntime_providers_shared.so",
            "libonnxruntime.so.1.32.0",
        ] {
            fs::write(folder.join(name), "").unwrap();
        }
        let versioned = folder.join("libonnxruntime.so.1.32.0");
        assert_eq!(library(&folder).unwrap(), versioned);
        assert_eq!(library(&versioned).unwrap(), versioned);
        let plain = folder.join("libonnxruntime.so");
        fs::write(&plain, "").unwrap();
        assert_eq!(library(&folder).unwrap(), plain);
    }

    #[test]
    fn what_is_no_such_library_is_an_error_that_names_the_flag() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("libonnxruntime.so");
        fs::write(&text, "no library").unwrap();
        let check = |given: &Path| {
            let error = environment(given).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("--onnxruntime"), "{error}");
            let name = given.file_name().unwrap().to_string_lossy();
            assert!(error.contains(&*name), "{error}");
        };
        check(&text);
        check(folder.path());
        check(&folder.path().join("missing.so"));
    }
}
