//! `kvatlas completions` and `kvatlas man`: what shells and readers of manuals need, made from the
//! arguments themselves.

use std::{fs, path::PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use serde_json::json;

use super::{Cli, error::CliError, output::Report};

const NAME: &str = "kvatlas";

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvatlas completions bash > /etc/bash_completion.d/kvatlas
  kvatlas completions zsh > ~/.zfunc/_kvatlas
  kvatlas completions fish > ~/.config/fish/completions/kvatlas.fish")]
pub(super) struct CompletionsArgs {
    /// The shell that is to complete
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvatlas man | man -l -
  kvatlas man /usr/local/share/man/man1")]
pub(super) struct ManArgs {
    /// Folder for a page of each command; without it, the page of kvatlas is printed
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl CompletionsArgs {
    pub(super) fn run(&self) -> Report {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), NAME, &mut script);
        let script = text(&script);
        let json = json!({ "shell": self.shell.to_string(), "script": script });
        Report::found(script, json)
    }
}

impl ManArgs {
    pub(super) fn run(&self) -> Result<Report, CliError> {
        let mut command = without_help(Cli::command());
        command.build();
        let Some(folder) = &self.folder else {
            let page = page(&command)?;
            let json = json!({ "page": page });
            return Ok(Report::found(page, json));
        };
        fs::create_dir_all(folder)?;
        let mut pages = Vec::new();
        for command in commands(&command) {
            let name = format!("{}.1", command.get_display_name().unwrap_or(NAME));
            fs::write(folder.join(&name), page(command)?)?;
            pages.push(name);
        }
        let text = format!("{} pages in {}\n", pages.len(), folder.display());
        Ok(Report::found(text, json!({ "pages": pages })))
    }
}

/// Without clap's own `help` below each command, which has no page.
fn without_help(command: Command) -> Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}

/// The command and all below it.
fn commands(command: &Command) -> Vec<&Command> {
    let shown = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set());
    let mut all = vec![command];
    all.extend(shown.flat_map(commands));
    all
}

fn page(command: &Command) -> Result<String, CliError> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    Ok(text(&page))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
