//! The same products by numpy and by torch, in a Python process of their own.

use std::{io, path::Path, process::Command};

use serde::Deserialize;

use super::{Algorithm, ModelShape};
use crate::error::LoadtestError;

/// Kept as a file of its own so that it can be run, read and changed as Python.
const SCRIPT: &str = include_str!("../../compare/score.py");
/// Where the libraries that numpy and torch multiply with look for the number of threads.
const THREAD_VARIABLES: [&str; 4] = [
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
];

/// Medians; absent where the interpreter has no such package.
#[derive(Debug, Default, Clone, Copy, PartialEq, Deserialize)]
pub struct Compared {
    pub numpy_ms_p50: Option<f64>,
    pub torch_ms_p50: Option<f64>,
}

/// What is computed.
#[derive(Debug, Clone, Copy)]
pub struct Products {
    pub algorithm: Algorithm,
    pub shape: ModelShape,
    pub blocks: usize,
    pub threads: usize,
    pub rounds: usize,
}

/// Runs the script. No interpreter is no error: nothing is compared then.
///
/// # Errors
/// When the script fails.
pub fn compare(python: &Path, products: Products) -> Result<Compared, LoadtestError> {
    let mut command = Command::new(python);
    command.arg("-c").arg(SCRIPT).args(products.arguments());
    for variable in THREAD_VARIABLES {
        command.env(variable, products.threads.to_string());
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Compared::default()),
        Err(source) => {
            return Err(LoadtestError::Spawn {
                role: "python",
                source,
            });
        }
    };
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(LoadtestError::Child {
            role: "python",
            reason: told.lines().last().unwrap_or("failed").to_owned(),
        });
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

impl Products {
    /// A matrix times a vector, `[1, blocks, width]` times `[1, width, 1]`, but for kri-t: for each
    /// (layer, KV head) `[blocks, head_dim]` times `[head_dim, group]`, and the same again for the
    /// magnitudes.
    fn arguments(self) -> Vec<String> {
        let shape = self.shape;
        let products = match self.algorithm {
            Algorithm::KriQ => vec![[1, self.blocks, shape.width(), 1]],
            Algorithm::Quest => vec![[1, self.blocks, shape.width() * 2, 1]],
            Algorithm::KriT => [shape.head_dim, shape.head_dim / 2]
                .map(|width| [shape.parts(), self.blocks, width, shape.group()])
                .to_vec(),
        };
        let spell = |sizes: [usize; 4]| sizes.map(|size| size.to_string()).join("x");
        [self.threads, self.rounds]
            .map(|number| number.to_string())
            .into_iter()
            .chain(products.into_iter().map(spell))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn products(algorithm: Algorithm) -> Products {
        Products {
            algorithm,
            shape: super::super::Model::Llama32_3b.shape(),
            blocks: 521,
            threads: 2,
            rounds: 9,
        }
    }

    #[test]
    fn the_script_is_told_the_shapes() {
        for (algorithm, shapes) in [
            (Algorithm::KriQ, "1x521x28672x1"),
            (Algorithm::Quest, "1x521x57344x1"),
            (Algorithm::KriT, "224x521x128x3 224x521x64x3"),
        ] {
            let told = products(algorithm).arguments().join(" ");
            assert_eq!(told, format!("2 9 {shapes}"));
        }
    }

    #[test]
    fn without_an_interpreter_nothing_is_compared() {
        let compared = compare(Path::new("/nonexistent/python"), products(Algorithm::KriQ));
        assert_eq!(compared.unwrap(), Compared::default());
    }
}
