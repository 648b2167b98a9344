//! A server process with closed doors, and callers that show something.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
};

use kvatlas_proto::v1::{
    self, admin_client::AdminClient, donors_client::DonorsClient, events_client::EventsClient,
    leases_client::LeasesClient, routing_client::RoutingClient,
};
use tempfile::TempDir;
use tonic::{
    Request, Status,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, ClientTlsConfig, Endpoint},
};

use crate::common::{PATIENCE, ServerProcess, serve_command, within};

/// In every token of these tests.
pub(crate) const PLANTED: &str = "planted-0123456789";

/// The tenants of two customers, and one that is nobody's.
pub(crate) const ACME: &str = "semblend:tenant:v1:9332cc3fc0ec09d0f04fa8e1e08637b5";
pub(crate) const BOLT: &str = "semblend:tenant:v1:00112233445566778899aabbccddeeff";
pub(crate) const NOBODY: &str = "semblend:tenant:v1:ffffffffffffffffffffffffffffffff";

/// A server process; what it writes to standard error is kept.
pub(crate) struct Server {
    pub(crate) process: ServerProcess,
    pub(crate) folder: TempDir,
}

/// Starts a server. `flags` gets the command and a folder of its own.
pub(crate) async fn start(flags: impl FnOnce(&mut Command, &Path)) -> Server {
    let folder = TempDir::new().unwrap();
    let mut command = serve_command(&folder.path().join("data"));
    command.stderr(File::create(folder.path().join("stderr")).unwrap());
    flags(&mut command, folder.path());
    Server {
        process: ServerProcess::launch(command).await,
        folder,
    }
}

/// Starts a server with these tokens.
pub(crate) async fn start_with_tokens(entries: &[Entry<'_>]) -> Server {
    start(|command, folder| {
        let path = folder.join("tokens.json");
        write_tokens(&path, entries);
        command.arg("--token-file").arg(path);
    })
    .await
}

/// A token's name, its role, and what else the file says of it.
pub(crate) type Entry<'a> = (&'a str, &'a str, &'a str);

/// The token of that name.
pub(crate) fn token(name: &str) -> String {
    format!("{PLANTED}-{name}")
}

/// Replaces a token file in one step.
pub(crate) fn write_tokens(path: &Path, entries: &[Entry<'_>]) {
    let lines = entries.iter().map(|(name, role, more)| {
        let token = token(name);
        format!("{{\"name\":\"{name}\",\"token\":\"{token}\",\"role\":\"{role}\"{more}}}")
    });
    let text = format!("{{\"tokens\":[{}]}}", lines.collect::<Vec<_>>().join(","));
    replace(path, &text);
}

/// Replaces a file in one step.
pub(crate) fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

impl Server {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the process wrote to standard error so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("stderr")).unwrap()
    }

    /// A caller with the token of that name; with none, where it is empty.
    pub(crate) fn caller(&self, name: &str) -> Caller {
        Caller::new(plain(&self.process.grpc[0]), name)
    }
}

pub(crate) fn plain(address: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect_lazy()
}

pub(crate) fn encrypted(address: &str, tls: ClientTlsConfig) -> Channel {
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    endpoint.tls_config(tls).unwrap().connect_lazy()
}

/// Shows a token with every call.
#[derive(Clone)]
pub(crate) struct Shows(Option<String>);

impl Interceptor for Shows {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(credentials) = &self.0 {
            let value = credentials.parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }
}

type Shown = InterceptedService<Channel, Shows>;

/// The typed clients of one connection under one token.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) service: Shown,
    pub(crate) routing: RoutingClient<Shown>,
    pub(crate) donors: DonorsClient<Shown>,
    pub(crate) leases: LeasesClient<Shown>,
    pub(crate) events: EventsClient<Shown>,
    pub(crate) admin: AdminClient<Shown>,
}

impl Caller {
    pub(crate) fn new(channel: Channel, name: &str) -> Caller {
        let credentials = (!name.is_empty()).then(|| format!("Bearer {}", token(name)));
        let service = InterceptedService::new(channel, Shows(credentials));
        Caller {
            routing: RoutingClient::new(service.clone()),
            donors: DonorsClient::new(service.clone()),
            leases: LeasesClient::new(service.clone()),
            events: EventsClient::new(service.clone()),
            admin: AdminClient::new(service.clone()),
            service,
        }
    }

    pub(crate) async fn status(&self) -> Result<v1::GetStatusResponse, Status> {
        let mut admin = self.admin.clone();
        let answer = within(admin.get_status(v1::GetStatusRequest {})).await;
        answer.map(tonic::Response::into_inner)
    }
}

/// Status line, headers and body of one HTTP GET that shows these credentials.
pub(crate) fn http_get(address: SocketAddr, path: &str, credentials: &str) -> String {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let shown = match credentials {
        "" => String::new(),
        shown => format!("Authorization: {shown}\r\n"),
    };
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{shown}\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What comes, of a server that may speak something else.
pub(crate) fn http_get_or_nothing(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // It may hang up on what it does not understand.
    let _end = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

impl Server {
    /// A number of /metrics, as the operator's token shows it.
    pub(crate) fn metric(&self, name: &str, credentials: &str) -> u64 {
        let page = http_get(self.process.http, "/metrics", credentials);
        let mut lines = page.lines();
        let line = lines.find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {page}"))
            .parse()
            .unwrap()
    }
}
