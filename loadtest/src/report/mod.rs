//! `report`: writes an audit file of a made-up fleet, and measures how long reading it takes.

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "draws from small positive ranges; what is cut off changes nothing"
)]
pub mod fleet;

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use flate2::{Compression, write::GzEncoder};
use kvatlas::report::read::read;
use serde::Serialize;
use tokio::time::Instant;

use crate::{args::ReportArgs, error::LoadtestError, table::Table};
use fleet::Fleet;

/// What `report --json` prints.
#[derive(Debug, Serialize)]
pub struct ReportTimes {
    pub lines: u64,
    pub bytes: u64,
    pub threads: usize,
    /// Of reading and counting, the fastest of the rounds.
    pub read_s: f64,
    pub rounds_s: Vec<f64>,
    pub found_share: f64,
}

/// Writes the file, keeps it where that is asked for, and reads it.
///
/// # Errors
/// When a file cannot be written, or not all of its lines are found in it.
pub fn measure(args: &ReportArgs) -> Result<ReportTimes, LoadtestError> {
    let folder = tempfile::tempdir()?;
    let path = match &args.keep {
        Some(path) => path.clone(),
        None => folder.path().join("audit-0.jsonl"),
    };
    write(args, &path)?;
    let mut rounds_s = Vec::with_capacity(args.rounds);
    let mut counted = None;
    for _ in 0..args.rounds {
        let started = Instant::now();
        let picture =
            read(std::slice::from_ref(&path)).map_err(|error| LoadtestError::Argument {
                argument: "--keep",
                reason: error.to_string(),
            })?;
        rounds_s.push(started.elapsed().as_secs_f64());
        counted = Some(picture);
    }
    let picture = counted.unwrap_or_default();
    let (read, damaged) = (picture.lines.read, picture.lines.damaged);
    if read != args.lines as u64 || damaged > 0 {
        return Err(LoadtestError::WrongAnswer {
            call: "report",
            reason: format!("{read} lines and {damaged} damaged ones of {}", args.lines),
        });
    }
    let lookups = &picture.lookups;
    Ok(ReportTimes {
        lines: read,
        bytes: path.metadata()?.len(),
        threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        read_s: rounds_s.iter().copied().fold(f64::INFINITY, f64::min),
        rounds_s,
        found_share: lookups.by_class.found() as f64 / lookups.total().max(1) as f64,
    })
}

fn write(args: &ReportArgs, path: &Path) -> Result<(), LoadtestError> {
    let file = BufWriter::new(File::create(path)?);
    let mut fleet = Fleet::new(args.seed, args.lines, args.hours);
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut out = GzEncoder::new(file, Compression::best());
        write_lines(&mut fleet, args.lines, &mut out)?;
        out.finish()?.flush()?;
    } else {
        let mut out = file;
        write_lines(&mut fleet, args.lines, &mut out)?;
        out.flush()?;
    }
    Ok(())
}

fn write_lines(fleet: &mut Fleet, lines: usize, out: &mut dyn Write) -> Result<(), LoadtestError> {
    for _ in 0..lines {
        serde_json::to_writer(&mut *out, &fleet.next_line())?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

impl ReportTimes {
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new(&["audit file", "lines", "MB", "read s", "lines/s"]);
        table.row([
            format!("on {} threads", self.threads),
            self.lines.to_string(),
            format!("{:.0}", self.bytes as f64 / 1e6),
            format!("{:.2}", self.read_s),
            format!("{:.0}", self.lines as f64 / self.read_s),
        ]);
        table.render()
    }
}
