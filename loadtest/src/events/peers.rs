//! Other indexes, measured by a program of its own (see `loadtest/compare/events`).

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::subject::Figures;
use crate::{args::EventsArgs, child::answer, error::LoadtestError};

const ROLE: &str = "peers";
const PROGRAM: &str = "target/release/kvatlas-compare-events";

/// The indexes that it knows.
pub const NAMES: [&str; 4] = [
    "dynamo-radix",
    "dynamo-concurrent",
    "dynamo-positional",
    "kv-index",
];

/// The program, compiled.
#[derive(Debug)]
pub struct Peers(PathBuf);

impl Peers {
    /// Compiles it, which takes minutes the first time.
    ///
    /// # Errors
    /// When it does not compile, or there is no cargo.
    pub fn compile(folder: &Path) -> Result<Self, LoadtestError> {
        let status = Command::new("cargo")
            .args(["build", "--release", "--locked", "--quiet"])
            .arg("--manifest-path")
            .arg(folder.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(folder.join("target"))
            // What is printed there is the report.
            .stdout(Stdio::null())
            .status()
            .map_err(|source| LoadtestError::Spawn { role: ROLE, source })?;
        if !status.success() {
            let reason = "do not compile".to_owned();
            return Err(LoadtestError::Child { role: ROLE, reason });
        }
        Ok(Self(folder.join(PROGRAM)))
    }

    /// Measures one of them.
    ///
    /// # Errors
    /// When it cannot be run, or an answer was wrong.
    pub fn measure(&self, name: &str, args: &EventsArgs) -> Result<Figures, LoadtestError> {
        let mut program = Command::new(&self.0);
        program.arg(name);
        program.args([args.blocks, args.workers, args.look_ups].map(|number| number.to_string()));
        answer(ROLE, program)
    }
}
