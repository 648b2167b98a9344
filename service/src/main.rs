//! The `kvatlas` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvatlas::cli::run()
}
