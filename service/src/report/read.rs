//! Audit files become a picture: whole files are cut into chunks, which threads count in parallel.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    num::NonZero,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use flate2::read::MultiGzDecoder;

use super::{picture::Picture, tally::Merge};

/// Files that one report reads.
pub const FILES_MAX: usize = 65_536;
/// A longer line is damaged.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// What a thread takes at a time.
const CHUNK_BYTES: u64 = 4 << 20;
const THREADS_MAX: usize = 16;
/// The end of a gzipped file's name.
const ZIPPED: &str = ".gz";

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{} holds no audit file (audit-*.jsonl or audit-*.jsonl.gz)", path.display())]
    NoFiles { path: PathBuf },
    #[error("more than {FILES_MAX} files")]
    TooMany,
}

/// Counts every line of these files, and of the audit files in these folders.
pub fn read(paths: &[PathBuf]) -> Result<Picture, ReadError> {
    let files = find_all(paths)?;
    let chunks = chunks(&files);
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let work = || count_chunks(&files, &chunks, &next);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(THREADS_MAX).min(chunks.len()))
            .map(|_| scope.spawn(work))
            .collect();
        let mut whole = work()?;
        for other in others {
            match other.join() {
                Ok(part) => whole.merge(&part?),
                // Our bug, told where it happened.
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(whole)
    })
}

/// A file to read. It is opened when its turn comes: a folder can hold more than may be open.
struct AuditFile {
    path: PathBuf,
    /// Of a pipe, a terminal or a zipped file: how long it is shows at its end.
    is_stream: bool,
    /// What is written from now on is left out.
    bytes: u64,
}

impl AuditFile {
    fn find(path: PathBuf) -> Result<Self, ReadError> {
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) => return Err(ReadError::Unreadable { path, error }),
        };
        Ok(Self {
            is_stream: !metadata.is_file() || is_zipped(&path),
            bytes: metadata.len(),
            path,
        })
    }

    // None where it was removed meanwhile: a server that goes on makes room in its folder.
    fn open(&self) -> Result<Option<File>, ReadError> {
        match File::open(&self.path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    fn unreadable(&self, error: io::Error) -> ReadError {
        let path = self.path.clone();
        ReadError::Unreadable { path, error }
    }

    fn count_stream(&self, picture: &mut Picture) -> Result<(), ReadError> {
        let Some(file) = self.open()? else {
            return Ok(());
        };
        match is_zipped(&self.path) {
            true => self.count_all(picture, MultiGzDecoder::new(file)),
            false => self.count_all(picture, file),
        }
    }

    // What is damaged ends it: the lines before count, and the rest is one damaged line.
    fn count_all(&self, picture: &mut Picture, file: impl Read) -> Result<(), ReadError> {
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let most = LINE_BYTES_MAX as u64 + 1;
            match lines.by_ref().take(most).read_until(b'\n', &mut line) {
                Ok(0) => return Ok(()),
                Ok(_) => count_line(picture, &line),
                Err(error) if is_damage(&error) => {
                    picture.add_damaged();
                    return Ok(());
                }
                Err(error) => return Err(self.unreadable(error)),
            }
        }
    }

    // As far as the file goes.
    fn read_at(&self, bytes: &mut Vec<u8>, from: u64, length: u64) -> Result<(), ReadError> {
        bytes.clear();
        let Some(file) = self.open()? else {
            return Ok(());
        };
        let length = length.min(self.bytes.saturating_sub(from));
        bytes.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, from + done as u64) {
                // It was cut off meanwhile.
                Ok(0) => break,
                Ok(more) => done += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(error)),
            }
        }
        bytes.truncate(done);
        Ok(())
    }
}

fn is_zipped(path: &Path) -> bool {
    let name = path.as_os_str().as_encoded_bytes();
    name.ends_with(ZIPPED.as_bytes())
}

fn find_all(paths: &[PathBuf]) -> Result<Vec<AuditFile>, ReadError> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            for path in in_folder(path)? {
                match AuditFile::find(path) {
                    Ok(file) => files.push(file),
                    Err(ReadError::Unreadable { error, .. })
                        if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        } else {
            files.push(AuditFile::find(path.clone())?);
        }
        if files.len() > FILES_MAX {
            return Err(ReadError::TooMany);
        }
    }
    Ok(files)
}

fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let unreadable = |error| ReadError::Unreadable {
        path: folder.to_owned(),
        error,
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let is_audit = |name: &str| {
            let name = name.strip_suffix(ZIPPED).unwrap_or(name);
            name.starts_with("audit-") && name.ends_with(".jsonl")
        };
        if name.is_some_and(is_audit) {
            found.push(path);
        }
        if found.len() > FILES_MAX {
            return Err(ReadError::TooMany);
        }
    }
    if found.is_empty() {
        let path = folder.to_owned();
        return Err(ReadError::NoFiles { path });
    }
    found.sort();
    Ok(found)
}

/// A file's place in the list, and where the chunk begins.
type Chunk = (usize, u64);

fn chunks(files: &[AuditFile]) -> Vec<Chunk> {
    let of_file = |(at, file): (usize, &AuditFile)| {
        let count = match file.is_stream {
            // Has to be read from its beginning.
            true => 1,
            false => file.bytes.div_ceil(CHUNK_BYTES),
        };
        (0..count).map(move |chunk| (at, chunk * CHUNK_BYTES))
    };
    files.iter().enumerate().flat_map(of_file).collect()
}

fn count_chunks(
    files: &[AuditFile],
    chunks: &[Chunk],
    next: &AtomicUsize,
) -> Result<Picture, ReadError> {
    let mut picture = Picture::default();
    let mut bytes = Vec::new();
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some((file, from)) = chunks
            .get(at)
            .and_then(|(at, from)| Some((files.get(*at)?, from)))
        else {
            return Ok(picture);
        };
        if file.is_stream {
            file.count_stream(&mut picture)?;
            continue;
        }
        // With the byte before it, which says whether a line begins here, and the end of the line
        // that begins last.
        let before = u64::from(*from > 0);
        let length = before + CHUNK_BYTES + LINE_BYTES_MAX as u64;
        file.read_at(&mut bytes, from - before, length)?;
        let own = usize::try_from(before + CHUNK_BYTES).unwrap_or(usize::MAX);
        count_lines(&mut picture, &bytes, before > 0, own);
    }
}

// Counts the lines that begin in the first `own` bytes. With `is_cut` the first byte belongs to the
// chunk before, and so does the line that it is in.
fn count_lines(picture: &mut Picture, bytes: &[u8], is_cut: bool, own: usize) {
    let mut start = 0;
    if is_cut {
        match end_of_line(bytes) {
            Some(end) => start = end + 1,
            None => return,
        }
    }
    while start < own.min(bytes.len()) {
        let rest = bytes.get(start..).unwrap_or_default();
        let end = end_of_line(rest).unwrap_or(rest.len());
        count_line(picture, rest.get(..end).unwrap_or_default());
        start += end + 1;
    }
}

fn is_damage(error: &io::Error) -> bool {
    let kinds = [
        io::ErrorKind::InvalidData,
        io::ErrorKind::InvalidInput,
        io::ErrorKind::UnexpectedEof,
    ];
    kinds.contains(&error.kind())
}

fn end_of_line(bytes: &[u8]) -> Option<usize> {
    memchr::memchr(b'\n', bytes)
}

fn count_line(picture: &mut Picture, line: &[u8]) {
    match std::str::from_utf8(line.trim_ascii()) {
        Ok("") => {}
        Ok(line) if line.len() <= LINE_BYTES_MAX => picture.add(line),
        Ok(_) | Err(_) => picture.add_damaged(),
    }
}
