//! The `kvatlas-loadtest` command.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;
use kvatlas_loadtest::{args::Cli, run};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _closed = writeln!(io::stderr(), "kvatlas-loadtest: {error}");
            ExitCode::FAILURE
        }
    }
}
