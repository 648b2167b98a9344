//! Servers under test: separate processes of this same binary, ended with the run.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::SocketAddr,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::LoadtestError;

/// The line that says a server is ready has at most so many bytes.
const READY_MAX_BYTES: u64 = 65_536;
/// Orders that wait.
const ORDERS_MAX: usize = 16;
const KIBIBYTES_PER_MEGABYTE: f64 = 1e6 / 1024.0;
/// The unit of processor time in `/proc`, on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// The one line that a server writes to standard output when it can be called.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ready {
    grpc: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    http: Option<String>,
}

impl Ready {
    /// Ready at one address.
    #[must_use]
    pub fn at(address: SocketAddr) -> Self {
        Self::at_all([address])
    }

    /// Ready at several.
    #[must_use]
    pub fn at_all(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let addresses = addresses.into_iter();
        Self {
            grpc: addresses.map(|address| address.to_string()).collect(),
            http: None,
        }
    }

    /// Writes the line.
    ///
    /// # Errors
    /// When standard output is closed.
    pub fn say(&self) -> Result<(), LoadtestError> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&line)?;
        out.flush()?;
        Ok(())
    }
}

/// A running server process. It ends when this is dropped, and also when this process dies.
#[derive(Debug)]
pub struct ServerProcess {
    role: &'static str,
    process: Child,
    /// Closed with this process, which ends the child: see [`end_with_parent`].
    input: Option<ChildStdin>,
    /// `host:port` of the gRPC service, or the first of several.
    pub address: String,
    /// All that it listens on over TCP.
    pub addresses: Vec<String>,
    /// `host:port` of its metrics, where it has any.
    pub http_address: Option<String>,
}

/// Memory of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    pub resident_mb: f64,
    pub peak_resident_mb: f64,
}

impl ServerProcess {
    /// Runs this same binary with `arguments` and waits until it is ready.
    ///
    /// # Errors
    /// When it cannot be started, or ends before it is ready.
    pub fn start(
        role: &'static str,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, LoadtestError> {
        let spawn = |source| LoadtestError::Spawn { role, source };
        let mut process = Command::new(env::current_exe().map_err(spawn)?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(spawn)?;
        let input = process.stdin.take();
        let output = process.stdout.take();
        let mut server = Self {
            role,
            process,
            input,
            address: String::new(),
            addresses: Vec::new(),
            http_address: None,
        };
        let output = output.ok_or_else(|| server.failed("has no output"))?;
        let Ready { grpc, http } = server.read_ready(output)?;
        // A server may also listen on a Unix socket.
        server.addresses = grpc
            .into_iter()
            .filter(|address| address.parse::<SocketAddr>().is_ok())
            .collect();
        server.address = server
            .addresses
            .first()
            .cloned()
            .ok_or_else(|| server.failed("listens on no TCP address"))?;
        server.http_address = http;
        Ok(server)
    }

    /// Tells it a number, for one that goes by [`orders`].
    ///
    /// # Errors
    /// When it has ended.
    pub fn order(&mut self, number: usize) -> Result<(), LoadtestError> {
        match &mut self.input {
            Some(input) => Ok(writeln!(input, "{number}")?),
            None => Err(self.failed("has no input")),
        }
    }

    /// What it uses now and has used at most, of physical memory.
    ///
    /// # Errors
    /// When the process is gone or the system does not say.
    pub fn memory(&self) -> Result<Memory, LoadtestError> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        memory_of(&status).ok_or_else(|| self.failed("its memory is not known"))
    }

    /// Processor time that it has used.
    ///
    /// # Errors
    /// As [`ServerProcess::memory`].
    pub fn cpu_time(&self) -> Result<Duration, LoadtestError> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        cpu_time_of(&stat).ok_or_else(|| self.failed("its processor time is not known"))
    }

    fn read_ready(&self, output: impl Read) -> Result<Ready, LoadtestError> {
        let mut line = String::new();
        BufReader::new(output.take(READY_MAX_BYTES)).read_line(&mut line)?;
        if line.is_empty() {
            return Err(self.failed("ended before it was ready"));
        }
        Ok(serde_json::from_str(&line)?)
    }

    fn failed(&self, reason: &str) -> LoadtestError {
        LoadtestError::Child {
            role: self.role,
            reason: reason.to_owned(),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

/// Ends this process as soon as its standard input closes, which happens when the process that
/// started it ends in whatever way.
///
/// # Errors
/// When no thread can be had.
pub fn end_with_parent() -> Result<(), LoadtestError> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the only thread here, and it lives as long as the process"
    )]
    std::thread::Builder::new()
        .name("end-with-parent".to_owned())
        .spawn(|| {
            let _closed = io::copy(&mut io::stdin().lock(), &mut io::sink());
            #[expect(clippy::exit, reason = "nobody is left to report to")]
            std::process::exit(0);
        })?;
    Ok(())
}

/// The numbers that the process that started this one tells; with it this one ends, as with
/// [`end_with_parent`].
///
/// # Errors
/// When no thread can be had.
pub fn orders() -> Result<Receiver<usize>, LoadtestError> {
    let (tell, told) = sync_channel(ORDERS_MAX);
    #[expect(
        clippy::disallowed_methods,
        reason = "one thread, and it lives as long as the process"
    )]
    std::thread::Builder::new()
        .name("orders".to_owned())
        .spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                let Some(number) = line.parse().ok() else {
                    break;
                };
                if tell.send(number).is_err() {
                    break;
                }
            }
            #[expect(clippy::exit, reason = "nobody is left to report to")]
            std::process::exit(0);
        })?;
    Ok(told)
}

/// Runs a program to its end, and reads the JSON that it prints.
///
/// # Errors
/// When it cannot be run, fails, or prints something else.
pub fn answer<T: DeserializeOwned>(
    role: &'static str,
    mut command: Command,
) -> Result<T, LoadtestError> {
    let spawn = |source| LoadtestError::Spawn { role, source };
    let output = command.stderr(Stdio::inherit()).output().map_err(spawn)?;
    if !output.status.success() {
        let reason = output.status.to_string();
        return Err(LoadtestError::Child { role, reason });
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// This same binary, to be run once more.
///
/// # Errors
/// When the system does not say where it is.
pub fn this_program() -> Result<Command, LoadtestError> {
    Ok(Command::new(env::current_exe()?))
}

/// Processor time that this process has used.
///
/// # Errors
/// When the system does not say.
pub fn own_cpu_time() -> Result<Duration, LoadtestError> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    cpu_time_of(&stat).ok_or_else(|| LoadtestError::Child {
        role: "own",
        reason: "its processor time is not known".to_owned(),
    })
}

/// From the text of `/proc/PID/stat`: what the process and the kernel for it have used.
fn cpu_time_of(stat: &str) -> Option<Duration> {
    // The name, in parentheses, may hold spaces; the two are the 12th and 13th after it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut used = fields.split_whitespace().skip(11).map(str::parse::<u32>);
    let (user, system) = (used.next()?.ok()?, used.next()?.ok()?);
    Some(TICK * user + TICK * system)
}

/// From the text of `/proc/PID/status`.
fn memory_of(status: &str) -> Option<Memory> {
    let kibibytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<f64>().ok()
    };
    Some(Memory {
        resident_mb: kibibytes("VmRSS:")? / KIBIBYTES_PER_MEGABYTE,
        peak_resident_mb: kibibytes("VmHWM:")? / KIBIBYTES_PER_MEGABYTE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_megabytes() {
        let status = "Name:\tx\nVmHWM:\t  2000000 kB\nVmRSS:\t  1000000 kB\n";
        let memory = memory_of(status).unwrap();
        assert!((memory.resident_mb - 1024.0).abs() < 1e-9);
        assert!((memory.peak_resident_mb - 2048.0).abs() < 1e-9);
        assert_eq!(memory_of("Name:\tx\n"), None);
    }

    #[test]
    fn processor_time_is_read_past_a_name_with_spaces() {
        let stat = "7 (a) b c) S 1 1 1 0 -1 4194304 100 0 0 0 250 30 9 9 20 0 4 0 100";
        assert_eq!(cpu_time_of(stat), Some(Duration::from_millis(2800)));
        assert_eq!(cpu_time_of("7 (a) S 1"), None);
        assert!(own_cpu_time().is_ok());
    }

    #[test]
    fn the_ready_line_is_read_as_servers_write_it() {
        let line = r#"{"grpc":["unix:a.sock","127.0.0.1:7"],"http":"127.0.0.1:8"}"#;
        let ready: Ready = serde_json::from_str(line).unwrap();
        assert_eq!(ready.grpc[1], "127.0.0.1:7");
    }
}
