//! The audit log: lines in files that only the server's user can read, by size and by age.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
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
    path: PathBuf,
    bytes: u64,
    began_ms: u64,
}

impl OpenFile {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(lines) {
            // A torn line would be taken for a damaged one.
            let _torn = self.file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += lines.len() as u64;
        Ok(())
    }

    // What is written into a file that somebody has taken away nobody would find.
    fn is_there(&self) -> bool {
        let id = |it: fs::Metadata| (it.dev(), it.ino());
        let (there, own) = (fs::metadata(&self.path), self.file.metadata());
        there.is_ok_and(|there| own.is_ok_and(|own| id(there) == id(own)))
    }
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

    /// The line that every file begins with, written at once: into the newest file, where it has
    /// room, since a server that is started again and again would push out all others.
    pub fn begin(&mut self, first_line: Vec<u8>, now_ms: u64) {
        let last = self.last_file();
        self.open = last.filter(|last| !self.is_over(last, first_line.len() as u64, now_ms));
        let goes_on = self.open.is_some();
        self.first_line = first_line;
        let line = if goes_on {
            self.first_line.clone()
        } else {
            Vec::new()
        };
        self.write(&line, 0, now_ms);
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
                if self.failed_ms.replace(now_ms).is_none() {
                    tracing::error!(%error, "the audit log cannot be written: lines are lost");
                }
            }
        }
    }

    fn try_write(&mut self, lines: &[u8], now_ms: u64) -> io::Result<()> {
        let more = lines.len() as u64;
        let last = self.open.take();
        let mut last = last.filter(|it| !self.is_over(it, more, now_ms) && it.is_there());
        if let Some(open) = &mut last {
            let appended = open.append(lines);
            // One that failed is tried once more before another is begun.
            if appended.is_ok() || self.failed_ms.is_none() {
                self.open = last;
                return appended;
            }
        }
        let (open, appended) = match self.next_file(lines, now_ms) {
            Ok(next) => (Some(next), Ok(())),
            Err(error) => (last, Err(error)),
        };
        self.open = open;
        appended
    }

    fn is_over(&self, open: &OpenFile, more: u64, now_ms: u64) -> bool {
        open.bytes + more > self.limits.bytes_max
            || now_ms.saturating_sub(open.began_ms) >= self.limits.age_ms_max
    }

    // The newest file, if it ends with a whole line and no other server writes it.
    fn last_file(&self) -> Option<OpenFile> {
        let (began_ms, path) = self.files().ok()?.pop()?;
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).open(&path).ok()?;
        file.try_lock().ok()?;
        let bytes = file.metadata().ok()?.len();
        let mut last = [0];
        file.read_exact_at(&mut last, bytes.checked_sub(1)?).ok()?;
        (last == *b"\n").then_some(OpenFile {
            file,
            path,
            bytes,
            began_ms,
        })
    }

    // With the lines in it, or not there: files of nothing would push out those that say something.
    fn next_file(&self, lines: &[u8], now_ms: u64) -> io::Result<OpenFile> {
        DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(&self.limits.folder)?;
        let (path, file) = self.create(now_ms)?;
        // So that no other server goes on with it; where that cannot be said, none does.
        let _unlocked = file.try_lock();
        let mut open = OpenFile {
            file,
            path,
            bytes: 0,
            began_ms: now_ms,
        };
        if let Err(error) = open.append(&[&self.first_line, lines].concat()) {
            let _left = fs::remove_file(&open.path);
            return Err(error);
        }
        self.counters.files.inc();
        if let Err(error) = self.remove_oldest() {
            tracing::warn!(%error, "old files of the audit log cannot be removed");
        }
        Ok(open)
    }

    fn create(&self, now_ms: u64) -> io::Result<(PathBuf, File)> {
        let create = |at_ms: u64| {
            let path = self.limits.folder.join(format!("audit-{at_ms}.jsonl"));
            let mut options = OpenOptions::new();
            let options = options.append(true).create_new(true).mode(FILE_MODE);
            options.open(&path).map(|file| (path, file))
        };
        let mut tries = (now_ms..now_ms + NAMES_MAX).map(create);
        let taken = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
        tries
            .find(|made| !made.as_ref().is_err_and(taken))
            .unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))
    }

    // One that cannot be removed stays, and keeps no other.
    fn remove_oldest(&self) -> io::Result<()> {
        let files = self.files()?;
        let over = files.len().saturating_sub(self.limits.files_max);
        let mut removed = Ok(());
        for (_, path) in files.iter().take(over) {
            removed = removed.and(fs::remove_file(path));
        }
        removed
    }

    // When each was begun, the oldest first.
    fn files(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.limits.folder)? {
            let entry = entry?;
            let at_ms = entry.file_name().to_str().and_then(made_at);
            if let Some(at_ms) = at_ms.filter(|_| entry.path().is_file()) {
                files.push((at_ms, entry.path()));
            }
        }
        files.sort();
        Ok(files)
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
        fs::create_dir(log.limits.folder.join("audit-1.jsonl")).unwrap();
        log.write(b"aaaa\n", 1, 200);
        let names = fs::read_dir(&log.limits.folder).unwrap().count();
        assert_eq!((names, log.counters.lost.get()), (6, 0));
    }

    #[test]
    fn a_server_that_starts_again_goes_on_with_the_newest_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut last = log(folder.path(), 30, 2);
        last.write(b"a\n", 1, 100);
        for _ in 0..2 {
            drop(last);
            last = log(folder.path(), 30, 2);
        }
        let first = ("audit-100.jsonl", "first\na\nfirst\nfirst\n");
        check(&last, &[first]);
        // While one writes it, another begins its own.
        let other = log(folder.path(), 30, 2);
        check(&other, &[first, ("audit-101.jsonl", "first\n")]);
    }

    #[test]
    fn a_file_that_is_torn_or_full_is_not_gone_on_with() {
        for text in ["first\n{\"v\"", "", "first\nmore\n"] {
            let folder = tempfile::tempdir().unwrap();
            let place = folder.path().join("audit");
            fs::create_dir(&place).unwrap();
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true).mode(FILE_MODE);
            let mut file = options.open(place.join("audit-99.jsonl")).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let log = log(folder.path(), 12, 2);
            check(
                &log,
                &[("audit-100.jsonl", "first\n"), ("audit-99.jsonl", text)],
            );
        }
    }

    #[test]
    fn files_that_are_taken_away_are_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path(), 100, 2);
        log.write(b"a\n", 1, 100);
        fs::remove_dir_all(&log.limits.folder).unwrap();
        log.write(b"b\n", 1, 200);
        check(&log, &[("audit-200.jsonl", "first\nb\n")]);
        let place = log.limits.folder.join("audit-200.jsonl");
        fs::rename(&place, folder.path().join("moved")).unwrap();
        log.write(b"c\n", 1, 300);
        check(&log, &[("audit-300.jsonl", "first\nc\n")]);
        assert_eq!((log.counters.lines.get(), log.counters.lost.get()), (3, 0));
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
            path: "/dev/full".into(),
            bytes: 0,
            began_ms: 100,
        });
        log.write(b"a\n", 1, 100);
        assert_eq!(log.counters.lost.get(), 1);
        check(&log, &[("audit-100.jsonl", "first\n")]);
        // By then it would be old.
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
