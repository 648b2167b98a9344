//! `kvatlas quickstart`: a server of its own, and one look at everything it does.

use std::{io, net::SocketAddr, time::Duration};

use clap::Args;
use kvatlas_client::{Client, Deadlines, Endpoint};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use super::{error::CliError, output, single_threaded};
use crate::{
    app::{self, RunningServer},
    config::{ListenAddress, ServeArgs},
};

mod corpus;
mod donors;
mod manifests;
mod online;
mod try_it;

/// A tour is no race: a slow machine gets to its end too.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often a call is made to say how long it takes; the median is shown.
const REPEATS: usize = 21;

const DEBUG_NOTE: &str = if cfg!(debug_assertions) {
    "This is a debug build: a release build takes about a tenth of the times shown.\n"
} else {
    ""
};

#[derive(Debug, Args)]
pub(super) struct QuickstartArgs {
    /// End after the tour instead of staying up until Ctrl-C
    #[arg(long)]
    exit: bool,
}

/// Starts a server on free ports and a temporary folder, and shows it.
pub(super) fn run(args: &QuickstartArgs) -> Result<(), CliError> {
    let folder = tempfile::Builder::new()
        .prefix("kvatlas-quickstart-")
        .tempdir()?;
    let server = app::start(serve_args(&folder)).map_err(CliError::server)?;
    let toured = single_threaded()?.block_on(tour(&server, &folder, args.exit));
    let stopped = server.stop().map_err(CliError::server);
    toured.and(stopped)
}

fn serve_args(folder: &TempDir) -> ServeArgs {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    ServeArgs {
        listen: vec![ListenAddress::Tcp(any_port)],
        http_listen: any_port,
        data_dir: folder.path().join("data"),
        ..ServeArgs::default()
    }
}

async fn tour(server: &RunningServer, folder: &TempDir, exit: bool) -> Result<(), CliError> {
    let address = match server.grpc_addresses() {
        [address, ..] => address.to_string(),
        [] => return Err(CliError::Server("the server listens nowhere".into())),
    };
    let endpoint: Endpoint = address
        .parse()
        .map_err(|error| CliError::Server(format!("its own address: {error}")))?;
    let client = Client::connect(&endpoint).with_deadlines(Deadlines {
        lookup: DEADLINE,
        control: DEADLINE,
        upload: DEADLINE,
    });
    let version = client.status().await?.version;
    output::print(&format!(
        "kvatlas {version} has started a server of its own.\n\
         gRPC on {address}, metrics on http://{}/metrics\n{DEBUG_NOTE}",
        server.http_address()
    ))?;
    manifests::show(&client).await?;
    online::show(&client).await?;
    let prompts = corpus::read()?;
    let namespace_id = donors::show(&client, &prompts).await?;
    if exit {
        return output::print("\nDone.\n").map_err(CliError::Output);
    }
    let body = try_it::write_body(folder.path(), &namespace_id, &prompts)?;
    output::print(&try_it::lines(&address, &body))?;
    // Either way the temporary folder goes.
    let mut terminate = signal(SignalKind::terminate()).map_err(CliError::Output)?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.map_err(CliError::Output),
        _ = terminate.recv() => Ok(()),
    }
}

/// A numbered heading with a line that says what is shown.
fn heading(number: u32, title: &str, explanation: &str) -> io::Result<()> {
    output::print(&format!("\n{number}. {title}\n   {explanation}\n"))
}

/// The table, indented under its heading.
fn show_table(table: &output::Table) -> io::Result<()> {
    let columns = output::terminal_columns().map(|columns| columns.saturating_sub(2));
    let lines = table.within(columns);
    let indented: Vec<String> = lines.lines().map(|line| format!("  {line}\n")).collect();
    output::print(&format!("\n{}", indented.concat()))
}

/// The middle one of an odd number of times.
fn median(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    short(times.get(times.len() / 2).copied().unwrap_or_default())
}

/// A time in at most seven columns, so that no table grows on a slow machine.
fn short(time: Duration) -> String {
    match time.as_micros() {
        micros @ 0..10_000 => format!("{micros} us"),
        micros @ 10_000..10_000_000 => format!("{} ms", micros / 1_000),
        micros => format!("{} s", micros / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_their_largest_unit() {
        let shown = |micros| short(Duration::from_micros(micros));
        assert_eq!(shown(0), "0 us");
        assert_eq!(shown(9_999), "9999 us");
        assert_eq!(shown(10_000), "10 ms");
        assert_eq!(shown(9_999_999), "9999 ms");
        assert_eq!(shown(10_000_000), "10 s");
    }
}
