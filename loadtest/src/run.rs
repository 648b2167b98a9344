//! One command from arguments to output.

use std::io::{self, Write};

use serde::Serialize;

use crate::{
    args::{Cli, Command},
    child::end_with_parent,
    donors::{self, tables::tables},
    echo,
    error::LoadtestError,
    events, kill_test, manifest, priors, quality, report, score, telemetry,
};

/// Runs the command; its result goes to standard output.
///
/// # Errors
/// When it cannot be run to its end, or when an answer was wrong: that is printed, then an error.
pub fn run(cli: Cli) -> Result<(), LoadtestError> {
    match cli.command {
        Command::Manifest(args) => {
            let report = on_runtime(args.common.client_workers, manifest::measure(&args))?;
            tell(args.common.json, &report, report.table())?;
            report.verdict()
        }
        Command::Donors(args) => {
            let report = on_runtime(args.common.client_workers, donors::measure(&args))?;
            tell(args.common.json, &report, tables(&report))?;
            report.verdict()
        }
        Command::Telemetry(args) => {
            let report = on_runtime(args.common.client_workers, telemetry::measure(&args))?;
            tell(args.common.json, &report, report.table())?;
            report.verdict()
        }
        Command::Quality(args) => {
            let report = on_runtime(args.common.client_workers, quality::measure(&args))?;
            tell(args.common.json, &report, report.table())?;
            report.verdict()
        }
        Command::Priors(args) => {
            let report = on_runtime(args.common.client_workers, priors::measure(&args))?;
            tell(args.common.json, &report, report.table())
        }
        Command::Score(args) => {
            let report = on_runtime(1, score::measure(&args))?;
            tell(args.json, &report, report.table())?;
            report.verdict()
        }
        Command::ScoreTokens(args) => {
            let report = on_runtime(1, score::tokens::measure(&args))?;
            tell(args.json, &report, report.table())
        }
        Command::KillTest(args) => {
            let report = kill_test::measure(&args)?;
            tell(args.json, &report, report.table())
        }
        Command::Events(args) => match &args.trace.trace {
            Some(path) => {
                let report = events::trace::measure(&args, path)?;
                tell(args.json, &report, report.table())
            }
            None => {
                let report = on_runtime(1, events::measure(&args))?;
                tell(args.json, &report, report.table())
            }
        },
        Command::Report(args) => {
            let times = report::measure(&args)?;
            tell(args.json, &times, times.table())
        }
        Command::EventsChild(args) => tell(true, &events::ours::measure(&args)?, String::new()),
        Command::EngineChild(args) => events::engine::serve(&args),
        Command::CollectorChild => {
            end_with_parent()?;
            telemetry::collector::serve()
        }
        Command::EchoChild => {
            end_with_parent()?;
            echo::serve()
        }
        Command::ServeChild(args) => {
            end_with_parent()?;
            kvatlas::app::serve(&args).map_err(|error| LoadtestError::Serve(error.to_string()))
        }
    }
}

fn on_runtime<T>(
    workers: usize,
    measured: impl Future<Output = Result<T, LoadtestError>>,
) -> Result<T, LoadtestError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()?
        .block_on(measured)
}

fn tell(json: bool, report: &impl Serialize, table: String) -> Result<(), LoadtestError> {
    let text = if json {
        serde_json::to_string(report)? + "\n"
    } else {
        table
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
