//! `kvatlas export` and `kvatlas import`: the priors of a server, in a folder and back.
//!
//! The folder has one file for each prior, as ReadPrior gives it, and an index of what they are,
//! written last: a folder without an index is an export that was cut off.

use std::{
    fs,
    io::{self, Cursor},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use kvatlas_client::{Client, PriorPage, PriorUpload, StoredPrior, v1};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    error::CliError,
    output::{Report, grouped, hex},
    progress,
};

const INDEX: &str = "priors.json";
/// Of the index. A folder of a newer version is refused.
const VERSION: u32 = 1;
/// Priors in one page of a listing.
const PAGE_SIZE: u32 = 1_000;
/// For one prior: as long as it takes over a slow line.
const PRIOR_DEADLINE: Duration = Duration::from_secs(600);

#[derive(Debug, Args)]
#[command(after_help = "\
Key summaries and donors are not in it: summaries are put again from their files, and donors live
no longer than the KV of their engines.

Examples:
  kvatlas export /backup/kvatlas-$(date +%F)
  kvatlas export c1-only --prefix-hash-begins c1")]
pub(super) struct ExportArgs {
    /// A folder that is empty or not there yet
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Only priors whose prefix hash begins so
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "BEGINNING"
    )]
    prefix_hash_begins: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A prior under the same prefix, query and algorithm is replaced. All answer as they did where they
were exported; only their generations are new. An import that failed may be run again.

Examples:
  kvatlas import /backup/kvatlas-2026-01-31")]
pub(super) struct ImportArgs {
    /// A folder that `kvatlas export` made
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// What lies in the folder.
#[derive(Debug, Serialize, Deserialize)]
struct Index {
    version: u32,
    /// In the order in which they were put: of two that both would answer, the newest does.
    priors: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    file: String,
    bytes: u64,
    sha256: String,
    prefix_hash: String,
    query_hash: String,
    algorithm: String,
    total_blocks: u32,
    put_unix_ms: u64,
}

impl ExportArgs {
    pub(super) async fn run(self, client: &Client) -> Result<Report, CliError> {
        let Self {
            folder,
            prefix_hash_begins,
        } = self;
        let at = |source| CliError::file(&folder, source);
        fs::create_dir_all(&folder).map_err(at)?;
        if fs::read_dir(&folder).map_err(at)?.next().is_some() {
            let problem = "is not empty: an export goes to a folder of its own";
            return Err(CliError::Usage(format!("{} {problem}", folder.display())));
        }
        let client = client.clone().with_upload_deadline(PRIOR_DEADLINE);
        let mut listed = list(&client, prefix_hash_begins).await?;
        listed.sort_by_key(|prior| prior.generation);
        let bar = progress::counted("exporting", listed.len());
        let mut priors = Vec::with_capacity(listed.len());
        for prior in listed {
            // One that was deleted meanwhile is not missed.
            if let Some(stored) = client.read_prior(key(&prior)).await? {
                priors.push(keep(&folder, &stored).map_err(at)?);
            }
            bar.inc(1);
        }
        drop(bar);
        let bytes: u64 = priors.iter().map(|entry| entry.bytes).sum();
        let count = priors.len();
        let index = Index {
            version: VERSION,
            priors,
        };
        let index = serde_json::to_vec_pretty(&index).map_err(io::Error::from)?;
        write(&folder.join(INDEX), &index).map_err(at)?;
        let text = format!(
            "exported {} priors, {} bytes\n",
            grouped(count as u64),
            grouped(bytes)
        );
        let json = json!({ "exported": count, "bytes": bytes });
        Ok(Report::found(text, json))
    }
}

impl ImportArgs {
    pub(super) async fn run(self, client: &Client) -> Result<Report, CliError> {
        let index = read_index(&self.folder)?;
        let client = client.clone().with_upload_deadline(PRIOR_DEADLINE);
        let bar = progress::counted("importing", index.priors.len());
        let (mut imported, mut replaced) = (0_u64, 0_u64);
        for entry in &index.priors {
            let file = read_file(&self.folder, entry)?;
            let answer = client.put_prior(upload(entry, file)).await;
            let answer = answer.map_err(|error| {
                let done = format!("{imported} of {} priors were imported", index.priors.len());
                CliError::Partly { done, error }
            })?;
            imported += 1;
            replaced += u64::from(answer.replaced);
            bar.inc(1);
        }
        drop(bar);
        let text = format!(
            "imported {} priors, of which {} replaced others\n",
            grouped(imported),
            grouped(replaced)
        );
        let json = json!({ "imported": imported, "replaced": replaced });
        Ok(Report::found(text, json))
    }
}

async fn list(client: &Client, begins: String) -> Result<Vec<v1::Prior>, CliError> {
    let mut priors = Vec::new();
    let mut page = PriorPage {
        page_size: PAGE_SIZE,
        page_token: String::new(),
        prefix_hash_begins: begins,
    };
    loop {
        let answer = client.list_priors(page.clone()).await?;
        priors.extend(answer.priors);
        if answer.next_page_token.is_empty() {
            return Ok(priors);
        }
        page.page_token = answer.next_page_token;
    }
}

fn key(prior: &v1::Prior) -> v1::PriorKey {
    v1::PriorKey {
        prefix_hash: prior.prefix_hash.clone(),
        query_hash: prior.query_hash.clone(),
        algorithm: prior.algorithm.clone(),
    }
}

/// Writes a prior's file under the hash of its bytes.
fn keep(folder: &Path, stored: &StoredPrior) -> io::Result<Entry> {
    let StoredPrior { prior, file } = stored;
    let sha256 = hex(&Sha256::digest(file));
    let name = format!("{sha256}.kvprior");
    write(&folder.join(&name), file)?;
    Ok(Entry {
        file: name,
        bytes: file.len() as u64,
        sha256,
        prefix_hash: prior.prefix_hash.clone(),
        query_hash: prior.query_hash.clone(),
        algorithm: prior.algorithm.clone(),
        total_blocks: prior.total_blocks,
        put_unix_ms: prior.put_unix_ms,
    })
}

/// Whole and on the disk, or not there under its name.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    io::Write::write_all(&mut file, bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

fn read_index(folder: &Path) -> Result<Index, CliError> {
    let path = folder.join(INDEX);
    let json = fs::read(&path).map_err(|source| CliError::file(&path, source))?;
    let index: Index = serde_json::from_slice(&json)
        .map_err(|error| CliError::Usage(format!("{}: {error}", path.display())))?;
    if index.version > VERSION {
        return Err(CliError::Usage(format!(
            "{} was written in version {}, this kvatlas reads up to {VERSION}",
            path.display(),
            index.version
        )));
    }
    Ok(index)
}

fn read_file(folder: &Path, entry: &Entry) -> Result<Vec<u8>, CliError> {
    // A name, not a way out of the folder.
    let name = Path::new(&entry.file).file_name().unwrap_or_default();
    let path = folder.join(name);
    let file = fs::read(&path).map_err(|source| CliError::file(&path, source))?;
    if hex(&Sha256::digest(&file)) != entry.sha256 {
        let problem = "is not the file that was exported: its SHA-256 differs";
        return Err(CliError::Usage(format!("{} {problem}", path.display())));
    }
    Ok(file)
}

fn upload(entry: &Entry, file: Vec<u8>) -> PriorUpload<Cursor<Vec<u8>>> {
    let header = v1::PutPriorHeader {
        prefix_hash: entry.prefix_hash.clone(),
        query_hash: entry.query_hash.clone(),
        algorithm: entry.algorithm.clone(),
        format: v1::PriorFormat::Stored.into(),
        size_bytes: file.len() as u64,
        ..Default::default()
    };
    PriorUpload {
        header,
        file: Cursor::new(file),
    }
}
