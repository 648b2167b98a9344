//! The audit log: lines in files that only the server's user can read, by size and by age.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::PathBuf,
};

use prometheus_client::metrics::counter::Counter;

/// How long a log that failed is left alone.
const RETRY_AFTER_MS: u64 = 1_000;
/// Names that are tried where one millisecond has made a file already.
const NAMES_MAX: u64 = 64;
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// Where the files lie and when one ends.
#[derive(Debug, Clone)]
pub struct AuditLimits {
    pub folder: PathBuf,
    /// A file ends before it grows beyond this.
    pub bytes_max: u64,
    /// And when it is so old.
    pub age_ms_max: u64,
    /// The oldest of more are removed.
    pub files_max: usize,
}

/// What became of the lines.
#[derive(Debug, Clone, Default)]
pub struct AuditCounters {
    pub lines: Counter,
    pub lost: Counter,
    pub files: Counter,
}

/// The files. Whatever fails is told once, counted, and tried again later.
#[derive(Debug)]
pub struct AuditLog {
    limits: AuditLimits,
    counters: AuditCounters,
    /// Begins every file.
    first_line: Vec<u8>,
    open: Option<OpenFile>,
    /// Since when nothing is written; told already.
    failed_ms: Option<u64>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    bytes: u64,
    began_ms: u64,
}

impl AuditLog {
    #[must_use]
    pub fn new(limits: AuditLimits, counters: AuditCounters) -> AuditLog {
        AuditLog {
            limits,
            counters,
            first_line: Vec::new(),
            open: None,
            failed_ms: None,
        }
    }

    /// The line that every file begins with; the first file is begun at once.
    pub fn begin(&mut self, first_line: Vec<u8>, now_ms: u64) {
        self.first_line = first_line;
        self.write(&[], 0, now_ms);
    }

    /// Appends so many whole lines.
    pub fn write(&mut self, lines: &[u8], count: u64, now_ms: u64) {
        let waits = |since: u64| now_ms.saturating_sub(since) < RETRY_AFTER_MS;
        if self.failed_ms.is_some_and(waits) {
            self.counters.lost.inc_by(count);
            return;
        }
        match self.try_write(lines, now_ms) {
            Ok(()) => {
                self.counters.lines.inc_by(count);
                if self.failed_ms.take().is_some() {
                    tracing::info!("the audit log is written again");
                }
            }
            Err(error) => {
                self.counters.lost.inc_by(count);
                self.open = None;
                if self.failed_ms.replace(now_ms).is_none() {
                    tracing::error!(%error, "the audit log cannot be written: lines are lost");
                }
            }
        }
    }

    fn try_write(&mut self, lines: &[u8], now_ms: u64) -> io::Result<()> {
        let AuditLimits {
            bytes_max,
            age_ms_max,
            ..
        } = self.limits;
        let is_over = |open: &OpenFile| {
            open.bytes + lines.len() as u64 > bytes_max
                || now_ms.saturating_sub(open.began_ms) >= age_ms_max
        };
        let open = match self.open.take().filter(|open| !is_over(open)) {
            Some(open) => open,
            None => self.next_file(now_ms)?,
        };
        let open = self.open.insert(open);
        if let Err(error) = open.file.write_all(lines) {
            // A torn line would be taken for a damaged one.
            let _torn = open.file.set_len(open.bytes);
            return Err(error);
        }
        open.bytes += lines.len() as u64;
        Ok(())
    }

    fn next_file(&mut self, now_ms: u64) -> io::Result<OpenFile> {
        DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(&self.limits.folder)?;
        let mut file = self.create(now_ms)?;
        file.write_all(&self.first_line)?;
        self.counters.files.inc();
        self.remove_oldest()?;
        Ok(OpenFile {
            file,
            bytes: self.first_line.len() as u64,
            began_ms: now_ms,
        })
    }

    fn create(&self, now_ms: u64) -> io::Result<File> {
        let create = |at_ms: u64| {
            OpenOptions::new()
                .append(true)
                .create_new(true)
                .mode(FILE_MODE)
                .open(self.limits.folder.join(format!("audit-{at_ms}.jsonl")))
        };
        let mut tries = (now_ms..now_ms + NAMES_MAX).map(create);
        let taken = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
        tries
            .find(|made| !made.as_ref().is_err_and(taken))
            .unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.limits.folder)? {
            let entry = entry?;
            if let Some(at_ms) = entry.file_name().to_str().and_then(made_at) {
                files.push((at_ms, entry.path()));
            }
        }
        files.sort();
        let over = files.len().saturating_sub(self.limits.files_max);
        for (_, path) in files.into_iter().take(over) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

// Nothing else in the folder is ours to remove.
fn made_at(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("audit-")?.strip_suffix(".jsonl")?;
    let is_number = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn log(folder: &std::path::Path, bytes_max: u64, files_max: usize) -> AuditLog {
        let limits = AuditLimits {
            folder: folder.join("audit"),
            bytes_max,
            age_ms_max: 1_000,
            files_max,
        };
        let mut log = AuditLog::new(limits, AuditCounters::default());
        log.begin(b"first\n".to_vec(), 100);
        log
    }

    // Names and contents, oldest first.
    fn check(log: &AuditLog, expected: &[(&str, &str)]) {
        let mut found: Vec<(String, String)> = fs::read_dir(&log.limits.folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| {
                let mode = fs::metadata(&path).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, FILE_MODE, "{path:?}");
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, fs::read_to_string(path).unwrap())
            })
            .collect();
        found.sort();
        let found: Vec<_> = found
            .iter()
            .map(|(n, t)| (n.as_str(), t.as_str()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_file_ends_by_size_and_by_age_and_the_oldest_go() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path(), 12, 2);
        log.write(b"a\nb\n", 2, 100);
        check(&log, &[("audit-100.jsonl", "first\na\nb\n")]);
        log.write(b"c\nd\n", 2, 100);
        let second = ("audit-101.jsonl", "first\nc\nd\n");
        check(&log, &[("audit-100.jsonl", "first\na\nb\n"), second]);
        log.write(b"e\n", 1, 1_100);
        check(&log, &[second, ("audit-1100.jsonl", "first\ne\n")]);
        assert_eq!((log.counters.lines.get(), log.counters.files.get()), (5, 3));
    }

    #[test]
    fn what_others_keep_in_the_folder_stays() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path(), 8, 1);
        for name in [
            "audit-.jsonl",
            "audit-+1.jsonl",
            "audit-1.jsonl.gz",
            "notes",
        ] {
            fs::write(log.limits.folder.join(name), "kept").unwrap();
        }
        log.write(b"aaaa\n", 1, 200);
        let names = fs::read_dir(&log.limits.folder).unwrap().count();
        assert_eq!(names, 5);
    }

    #[test]
    fn a_folder_that_cannot_be_written_loses_lines_until_it_can() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("audit");
        // Root may write anywhere, but not into a file as if it were a folder.
        fs::write(&place, "in the way").unwrap();
        let mut log = log(folder.path(), 100, 2);
        log.write(b"a\n", 1, 1_500);
        fs::remove_file(&place).unwrap();
        log.write(b"b\n", 1, 1_501);
        assert!(!place.exists(), "not tried again so soon");
        log.write(b"c\n", 1, 2_600);
        check(&log, &[("audit-2600.jsonl", "first\nc\n")]);
        assert_eq!((log.counters.lines.get(), log.counters.lost.get()), (1, 2));
    }

    #[test]
    fn a_full_disk_leaves_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path(), 100, 2);
        // Every write to it fails as on a full disk.
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        log.open = Some(OpenFile {
            file: full,
            bytes: 0,
            began_ms: 100,
        });
        log.write(b"a\n", 1, 100);
        assert_eq!(log.counters.lost.get(), 1);
        log.write(b"b\n", 1, 1_200);
        check(
            &log,
            &[
                ("audit-100.jsonl", "first\n"),
                ("audit-1200.jsonl", "first\nb\n"),
            ],
        );
    }
}
