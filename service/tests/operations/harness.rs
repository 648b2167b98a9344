//! The built `kvatlas` as a server and as a command, and the files of the repository.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_kvatlas");
/// Longest wait for anything that is to happen, on the busiest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server on free ports. Killed when dropped.
pub(crate) struct Server {
    process: Child,
    /// `IP:PORT`.
    pub(crate) grpc: String,
    pub(crate) http: String,
    /// For what a test writes; the data is in it unless another folder was given.
    pub(crate) folder: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

impl Server {
    pub(crate) fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let data = folder.path().join("data");
        Self::start_on(folder, &data)
    }

    /// On a data folder that may hold something.
    pub(crate) fn start_on(folder: TempDir, data: &Path) -> Self {
        Self::launch(folder, &mut serve_command(data))
    }

    /// By a command that becomes the server.
    pub(crate) fn launch(folder: TempDir, command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        out.read_line(&mut ready).unwrap();
        let ready: Value = serde_json::from_str(&ready).unwrap();
        let grpc = ready["grpc"][0].as_str().unwrap().to_owned();
        let http = ready["http"].as_str().unwrap().to_owned();
        Self {
            process,
            grpc,
            http,
            folder,
        }
    }

    /// Sends it a signal, such as HUP.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }

    /// Kills it and starts another one on the same data.
    pub(crate) fn again(mut self, data: &Path) -> Self {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let folder = std::mem::replace(&mut self.folder, TempDir::new().unwrap());
        Self::start_on(folder, data)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command
            .args(["--address", &self.grpc, "--timeout-ms", "60000"])
            .args(args);
        command
    }

    /// Runs a command and checks its exit status. Returns what it printed.
    #[track_caller]
    pub(crate) fn check(&self, args: &[&str], code: i32) -> String {
        check_exit(&self.command(args).output().unwrap(), code)
    }

    #[track_caller]
    pub(crate) fn json(&self, args: &[&str], code: i32) -> Value {
        let printed = self.check(&[&["--output", "json"], args].concat(), code);
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{printed}: {error}"))
    }

    /// The path of a new file in the test's folder.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    pub(crate) fn get(&self, path: &str) -> String {
        http_get(&self.http, path)
    }
}

/// `kvatlas serve` on free ports.
pub(crate) fn serve_command(data: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(["--http-listen", "127.0.0.1:0", "--log", "warn"])
        .arg("--models-dir")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoder"))
        .arg("--data-dir")
        .arg(data);
    command
}

pub(crate) fn kvatlas(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).output().unwrap()
}

#[track_caller]
pub(crate) fn check_exit(output: &Output, code: i32) -> String {
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{error}");
    out
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub(crate) fn is_installed(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    found.unwrap().status.success()
}

/// The body of an HTTP answer, whatever its status.
pub(crate) fn http_get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    body.to_owned()
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().unwrap()
}

/// A file of the repository.
pub(crate) fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn example(name: &str) -> String {
    root()
        .join("examples/priors")
        .join(name)
        .display()
        .to_string()
}

/// The text between the backticks of a page.
pub(crate) fn is_quoted(page: &str, word: &str) -> bool {
    page.contains(&format!("`{word}`"))
}
