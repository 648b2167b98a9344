//! The `kvatlas` command: starts the server, or talks to one that is running.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use kvatlas_client::{Client, Deadlines, Endpoint};

use crate::{app, config::ServeArgs};

mod admin;
mod backup;
mod credentials;
mod donor;
mod encoder;
mod error;
mod input;
mod lease;
mod manifest;
mod output;
mod prior;
mod progress;
mod query;
mod quickstart;
mod report;
mod shell;
mod summary;
mod worker;

use credentials::ShownArgs;
use error::CliError;
use output::Report;

/// The call failed.
const EXIT_FAILED: u8 = 1;
/// Also what clap exits with when it cannot make sense of the arguments.
const EXIT_USAGE: u8 = 2;
/// There is no such thing, or the look-up was a miss.
const EXIT_NOT_FOUND: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  kvatlas quickstart                           See everything once, on real data, in a second
  kvatlas serve --data-dir /var/lib/kvatlas    Run the server
  kvatlas prior put prior.pt --prefix-hash c1  Store a prior
  kvatlas manifest c1 --k 16 --policy A1R2K13  Which blocks should a request read?
  kvatlas donor find --namespace ns.json --tokens prompt.json --explain
                                               Whose cached prompt can this one borrow from?

Exit status:
  0  Done; for a look-up, found
  1  The call failed, or the server could not start or broke; `health`: not well
  2  Usage: an argument, or a file that it names, does not make sense
  3  There is no such thing, or the look-up was a miss

Each flag of `serve` is also a variable KVATLAS_...; --address is KVATLAS_ADDRESS.";

/// Tells LLM engines which blocks of a cached prefix to read, and whose cached prompt to borrow
/// from.
#[derive(Debug, Parser)]
#[command(name = "kvatlas", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
struct Connection {
    /// The server: HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH
    #[arg(
        long,
        global = true,
        env = "KVATLAS_ADDRESS",
        default_value = "127.0.0.1:50051"
    )]
    address: Endpoint,
    #[command(flatten)]
    shown: ShownArgs,
    /// How long a call may take, in milliseconds
    #[arg(long, global = true, value_name = "MS", default_value_t = 5_000)]
    timeout_ms: u32,
    /// How to print the answer
    #[arg(long, global = true, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(Box<ServeArgs>),
    /// Start a server on a temporary folder and show what it does, on real priors and prompts
    Quickstart(quickstart::QuickstartArgs),
    /// Store, list, show and remove priors
    #[command(subcommand)]
    Prior(prior::PriorCommand),
    /// Register, list and forget the models that make queries from tokens
    #[command(subcommand)]
    Encoder(encoder::EncoderCommand),
    /// Make, list, show and remove the key summaries that online scoring reads
    #[command(subcommand)]
    Summary(summary::SummaryCommand),
    /// Put queries that online scoring multiplies with a prefix's key summary
    #[command(subcommand)]
    Query(query::QueryCommand),
    /// Ask which blocks of a cached prefix a request should read
    Manifest(manifest::ManifestArgs),
    /// Register, find and remove donors
    #[command(subcommand)]
    Donor(Box<donor::DonorCommand>),
    /// Follow engines' KV events, and ask which worker holds a prompt
    #[command(subcommand)]
    Worker(worker::WorkerCommand),
    /// Check, prolong and end leases
    #[command(subcommand)]
    Lease(lease::LeaseCommand),
    /// Set what donor look-ups may lead to, for the server or for one namespace
    Mode(admin::ModeArgs),
    /// How the server is
    Status,
    /// Whether the server answers calls, for probes: exit status 0, else 1
    Health,
    /// Write the stored priors to a folder
    Export(backup::ExportArgs),
    /// Put the priors of a folder that `export` wrote
    Import(backup::ImportArgs),
    /// Print a script that completes commands and flags in a shell
    Completions(shell::CompletionsArgs),
    /// Print the manual page, or write a page of each command
    Man(shell::ManArgs),
    /// Show what audit files or the server's newest records amount to, and what to do next
    Report(report::ReportArgs),
}

/// Runs the command that the arguments name.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let address = cli.connection.address.to_string();
    match execute(cli) {
        Ok(code) => code,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            let advice = output::plain(&error.advice(&address), "\n\t");
            let message = format!("error: {advice}\n");
            // Without a standard error there is nobody to tell.
            drop(io::stderr().write_all(message.as_bytes()));
            ExitCode::from(error.exit_code())
        }
    }
}

fn execute(cli: Cli) -> Result<ExitCode, CliError> {
    let Cli {
        mut connection,
        command,
    } = cli;
    if matches!(&command, Command::Report(args) if args.is_json()) {
        connection.output = OutputFormat::Json;
    }
    match command {
        Command::Serve(args) => {
            app::serve(&args).map_err(CliError::server)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Quickstart(args) => {
            quickstart::run(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Prior(command) => call(&connection, async |client| command.run(client).await),
        Command::Encoder(command) => call(&connection, async |client| command.run(client).await),
        Command::Summary(command) => call(&connection, async |client| {
            Box::pin(command.run(client)).await
        }),
        Command::Query(command) => call(&connection, async |client| command.run(client).await),
        Command::Manifest(args) => call(&connection, async |client| args.run(client).await),
        Command::Donor(command) => call(&connection, async |client| {
            Box::pin(command.run(client)).await
        }),
        Command::Worker(command) => call(&connection, async |client| command.run(client).await),
        Command::Lease(command) => call(&connection, async |client| command.run(client).await),
        Command::Mode(args) => call(&connection, async |client| args.run(client).await),
        Command::Status => call(&connection, admin::status),
        Command::Health => call(&connection, admin::health),
        Command::Export(args) => call(&connection, async |client| args.run(client).await),
        Command::Import(args) => call(&connection, async |client| args.run(client).await),
        Command::Completions(args) => show(&connection, &args.run()),
        Command::Man(args) => show(&connection, &args.run()?),
        Command::Report(args) if args.is_live() => {
            call(&connection, async |client| args.ask(client).await)
        }
        Command::Report(args) => show(&connection, &args.run()?),
    }
}

/// Makes the calls of one command and prints what came of them.
fn call(
    connection: &Connection,
    command: impl AsyncFnOnce(&Client) -> Result<Report, CliError>,
) -> Result<ExitCode, CliError> {
    let deadline = Duration::from_millis(connection.timeout_ms.into());
    let deadlines = Deadlines {
        lookup: deadline,
        control: deadline,
        ..Deadlines::default()
    };
    let endpoint = connection.shown.shown_to(connection.address.clone())?;
    let report = single_threaded()?.block_on(async {
        let client = Client::connect(&endpoint).with_deadlines(deadlines);
        command(&client).await
    })?;
    show(connection, &report)
}

fn show(connection: &Connection, report: &Report) -> Result<ExitCode, CliError> {
    output::print(&match connection.output {
        OutputFormat::Table => output::plain(&report.text, "\n\t"),
        OutputFormat::Json => format!("{:#}\n", report.json),
    })?;
    Ok(match report.found {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(EXIT_NOT_FOUND),
    })
}

fn single_threaded() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::Output)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn each_flag_of_the_server_is_a_variable_of_its_name() {
        // Callers have flags, and so variables, of these names.
        const OF_BOTH: [&str; 3] = ["tls-cert", "tls-key", "token-file"];
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let flags: Vec<_> = serve.get_arguments().collect();
        assert!(flags.len() > 50);
        for flag in flags {
            let long = flag.get_long().unwrap();
            let name = long.replace('-', "_").to_ascii_uppercase();
            let expected = match OF_BOTH.contains(&long) {
                true => format!("KVATLAS_SERVER_{name}"),
                false => format!("KVATLAS_{name}"),
            };
            let variable = flag.get_env().and_then(|it| it.to_str());
            assert_eq!(variable, Some(expected.as_str()), "--{long}");
        }
    }
}
