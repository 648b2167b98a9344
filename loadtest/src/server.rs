//! The server under test: one that is running already, or one started for the run.

use std::{ffi::OsString, path::Path, time::Duration};

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{
    args::CommonArgs,
    child::{Memory, ServerProcess},
    error::LoadtestError,
};

/// A server that uses less of a core than this, over such a time, has nothing left to do.
const QUIET_CORE_SHARE: f64 = 0.05;
const QUIET_OVER: Duration = Duration::from_millis(400);

/// The page of metrics is cut after so many bytes.
const METRICS_MAX_BYTES: u64 = 1 << 20;
/// Donors whose sketch is not made yet.
const SKETCHES_BEHIND: &str = "kvatlas_sketches_behind";

/// A server to measure.
#[derive(Debug)]
pub struct Server {
    started: Option<Started>,
    /// `host:port` of its gRPC service.
    pub address: String,
}

#[derive(Debug)]
struct Started {
    // Dropped before the folder it works in.
    process: ServerProcess,
    data: TempDir,
}

impl Server {
    /// The server at the address given, else a new one.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn of(common: &CommonArgs) -> Result<Self, LoadtestError> {
        if let Some(address) = &common.address {
            return Ok(Self {
                started: None,
                address: address.clone(),
            });
        }
        let data = TempDir::with_prefix("kvatlas-loadtest-")?;
        let process = start(data.path(), &common.server)?;
        Ok(Self {
            address: process.address.clone(),
            started: Some(Started { process, data }),
        })
    }

    /// Ends the server and starts it anew with what it has stored; says how long the start took.
    ///
    /// # Errors
    /// When it was not started for this run, or cannot be started again.
    pub fn restarted(self, common: &CommonArgs) -> Result<(Self, Duration), LoadtestError> {
        let Some(Started { process, data }) = self.started else {
            return Err(no_restart());
        };
        drop(process);
        let began = Instant::now();
        let process = start(data.path(), &common.server)?;
        let took = began.elapsed();
        let server = Self {
            address: process.address.clone(),
            started: Some(Started { process, data }),
        };
        Ok((server, took))
    }

    /// The value of a metric without labels.
    ///
    /// # Errors
    /// When the server does not answer, or has no such metric.
    pub async fn metric(&self, name: &'static str) -> Result<u64, LoadtestError> {
        let started = self.started.as_ref();
        let address = started.and_then(|started| started.process.http_address.as_deref());
        let page = metrics_of(address).await?;
        metric_of(&page, name).ok_or_else(|| LoadtestError::WrongAnswer {
            call: "/metrics",
            reason: format!("no {name}"),
        })
    }

    /// What it uses of memory; absent for a server that runs elsewhere.
    ///
    /// # Errors
    /// When it has ended.
    pub fn memory(&self) -> Result<Option<Memory>, LoadtestError> {
        self.started
            .as_ref()
            .map(|started| started.process.memory())
            .transpose()
    }

    /// Waits until the server is done with what it does behind acknowledgements; absent for a
    /// server that runs elsewhere.
    ///
    /// # Errors
    /// When it has ended.
    pub async fn settled(&self, most: Duration) -> Result<Option<Settled>, LoadtestError> {
        let Some(Started { process, .. }) = &self.started else {
            return Ok(None);
        };
        let began = Instant::now();
        loop {
            let (at, used) = (Instant::now(), process.cpu_time()?);
            sleep(QUIET_OVER).await;
            let more = process.cpu_time()?.saturating_sub(used);
            let quiet = more.as_secs_f64() < QUIET_CORE_SHARE * at.elapsed().as_secs_f64();
            let waited = began.elapsed();
            if quiet || waited >= most {
                let page = metrics_of(process.http_address.as_deref()).await?;
                return Ok(Some(Settled {
                    waited,
                    quiet,
                    sketches_behind: metric_of(&page, SKETCHES_BEHIND),
                }));
            }
        }
    }
}

async fn metrics_of(address: Option<&str>) -> Result<String, LoadtestError> {
    let mut page = String::new();
    if let Some(address) = address {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut limited = stream.take(METRICS_MAX_BYTES);
        limited.read_to_string(&mut page).await?;
    }
    Ok(page)
}

/// The value of a metric without labels.
fn metric_of(page: &str, name: &str) -> Option<u64> {
    page.lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// What the wait for a quiet server came to.
#[derive(Debug, Clone, Copy)]
pub struct Settled {
    pub waited: Duration,
    /// Whether it became quiet in that time.
    pub quiet: bool,
    /// Donors that it then had no sketch of; absent where it does not tell.
    pub sketches_behind: Option<u64>,
}

/// What a command that starts the server anew says to an address.
#[must_use]
pub fn no_restart() -> LoadtestError {
    LoadtestError::Argument {
        argument: "--address",
        reason: "a server that runs elsewhere cannot be started anew".to_owned(),
    }
}

fn start(data: &Path, further: &[OsString]) -> Result<ServerProcess, LoadtestError> {
    let own = [
        "serve-child",
        "--listen",
        "127.0.0.1:0",
        "--http-listen",
        "127.0.0.1:0",
        "--log",
        "warn",
        "--data-dir",
    ];
    let arguments = own
        .into_iter()
        .map(OsString::from)
        .chain([data.as_os_str().to_owned()])
        .chain(further.iter().cloned());
    ServerProcess::start("server", arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let page = "HTTP/1.0 200 OK\r\n\r\n# TYPE a_b gauge\na_bc 1\na_b 27\n";
        assert_eq!(metric_of(page, "a_b"), Some(27));
        assert_eq!(metric_of(page, "a"), None);
    }
}
