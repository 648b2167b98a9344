//! Programs of the machine that some tests need.

use std::{ffi::OsString, io::Write, path::PathBuf};

/// Where a program lies: what the variable says, else the search path. Without it the test is
/// skipped with a line that no harness captures, or fails where KVATLAS_REQUIRE_TOOLS is 1.
pub(crate) fn find(program: &str, variable: &str) -> Option<PathBuf> {
    if let Some(path) = environment(variable) {
        return Some(path.into());
    }
    let folders = environment("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file());
    if found.is_none() {
        skip(&format!("{program} is not installed"));
    }
    found
}

/// The tests' embedding model, and what runs it; without them as [`find`].
pub(crate) fn embedding_model() -> Option<(PathBuf, PathBuf)> {
    let variables = ["KVATLAS_TEST_EMBEDDING_MODEL", "KVATLAS_TEST_ONNXRUNTIME"];
    let given = variables.map(|variable| environment(variable).map(PathBuf::from));
    if let [Some(folder), Some(onnxruntime)] = given {
        return Some((folder, onnxruntime));
    }
    skip(&format!("no {} and {}", variables[0], variables[1]));
    None
}

fn skip(missing: &str) {
    let required = environment("KVATLAS_REQUIRE_TOOLS").is_some_and(|value| value == "1");
    assert!(!required, "{missing}");
    writeln!(std::io::stderr(), "SKIPPED: {missing}").unwrap();
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests are told about the machine by its environment, and have no flags"
)]
fn environment(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}
