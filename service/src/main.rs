//! The `kvatlas` command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kvatlas::config::ServeArgs;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<ServeArgs>),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Serve(args) => match kvatlas::app::serve(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!(%error, "the server has stopped");
                ExitCode::FAILURE
            }
        },
    }
}
